"""``reput tail`` through a real Spark session, over a real store's log that appears bit by bit."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reput.errors import OutputError, ReputError, SettingsError, SparkError, StoreInUseError
from reput.format import names
from reput.job import Summary, TailOptions
from reput.job.tail import tail
from reput.output.batch import BatchScan
from reput.output.journal import read_state
from reput.output.writer import BatchWriter
from reput.replay.state import State
from reput.scan.rules import Part
from reput.store.compare import compare
from reput.store.lock import output_holder
from reput.stream import NAME
from tests.live import Live, live_store
from tests.rebuilds import broker_conf, golden
from tests.torture.tailing import Tailing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

LONGEST = 180.0
#: Names of the threads that work ahead.
AHEAD = {"reput-batch", "reput-scan", "reput-wave"}


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return live_store("5.5.0-mixed", tmp_path)


@dataclass
class Running:
    """A tail in another thread."""

    out: Path
    stopping: threading.Event
    ended: threading.Event = field(default_factory=threading.Event)
    summary: Summary | None = None
    error: ReputError | None = None

    @property
    def state(self) -> State:
        return read_state(self.out / names.REPUT / names.JOURNAL)[1]

    def reach(self, offset: int) -> None:
        """Wait until everything below a physical offset is committed."""
        self.wait(lambda: self.state.cursor >= offset)

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST
        while not (self.journal.exists() and holds()):
            assert self.error is None, self.error
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @property
    def journal(self) -> Path:
        return self.out / names.REPUT / names.JOURNAL


@contextmanager
def tailing(options: TailOptions, spark: SparkSession) -> Iterator[Running]:
    assert options.out is not None
    running = Running(options.out, threading.Event())

    def run() -> None:
        try:
            running.summary = tail(options, lambda: spark, running.stopping)
        except ReputError as error:
            running.error = error
        finally:
            running.ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield running
    finally:
        running.stopping.set()
        thread.join(LONGEST)
        assert not thread.is_alive()


def assert_equal(live: Live, out: Path, *, but: str = "nothing") -> None:
    """Compare with the store's own files, but for those whose names begin so."""
    found = compare(live.whole.root, out)
    assert [line for line in found.differences if not line.startswith(but)] == []
    assert found.queue_files
    assert found.index_files


def told(query: StreamingQuery) -> list[Any]:
    """What Spark's own progress says of each batch so far."""
    return [found for progress in query.recentProgress if (found := progress.observedMetrics.get(NAME))]


def test_the_log_is_followed_to_the_stores_own_bytes(live: Live, spark: SparkSession) -> None:
    live.grow(live.share(0.1))
    with tailing(live.options, spark) as running:
        for part in (0.1, 0.3, 0.35, 0.8):
            live.grow(live.share(part) + 50)  # and the beginning of a record that isn't whole
            running.reach(live.share(part))
            assert running.state.cursor <= live.reached
        live.finish()
        running.wait(lambda: running.state.messages == len(live.starts))
        (query,) = spark.streams.active
        running.wait(lambda: sum(batch["messages"] or 0 for batch in told(query)) == len(live.starts))
        assert sum(batch["bytes"] or 0 for batch in told(query)) == running.state.cursor
        assert all(batch["firstTimestamp"] for batch in told(query) if batch["messages"])
    assert running.summary is not None
    assert running.summary.exit_code == 0
    assert running.summary.followed
    assert not (running.out / names.REPUT / names.SCRATCH).exists()
    assert_equal(live, running.out)


def test_a_killed_one_is_gone_on_with(live: Live, spark: SparkSession, tmp_path: Path) -> None:
    options, log = live.options, tmp_path / "tail.log"
    assert options.out is not None
    assert options.broker_conf is not None
    words = ["tail", options.store, "--out", options.out, "--broker-conf", options.broker_conf]
    live.grow(live.share(0.3))
    with Tailing([*words, "--rocketmq-version", live.whole.version], options.out, log) as doomed:
        seen = Running(options.out, threading.Event())
        seen.reach(live.share(0.3))
        length = seen.journal.stat().st_size
        live.grow(live.share(0.7))
        seen.wait(lambda: seen.journal.stat().st_size > length)
        assert doomed.kill() > 1, doomed.said()
    live.finish()
    with tailing(options, spark) as running:
        running.wait(lambda: running.state.messages == len(live.starts))
    assert_equal(live, running.out)


@pytest.fixture(scope="module")
def halfway(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Live:
    """A store that two tails followed to its half; Spark's checkpoint of the first is in ``behind``."""
    place = tmp_path_factory.mktemp("halfway")
    live = live_store("5.5.0-mixed", place)
    for part in (0.2, 0.5):
        live.grow(live.share(part))
        with tailing(live.options, spark) as running:
            running.reach(live.share(part))
        if part < 0.5:
            shutil.copytree(running.out / names.REPUT / names.SPARK_CHECKPOINT, place / "behind")
    shutil.copytree(live.root, place / "kept" / "live")
    shutil.copytree(running.out, place / "kept" / "out")
    return live


@pytest.mark.parametrize("checkpoint", ["kept", "lost", "torn", "ahead", "behind"])
def test_it_goes_on_whatever_became_of_sparks_checkpoint(
    checkpoint: str, halfway: Live, spark: SparkSession
) -> None:
    live, place = copy(halfway), halfway.root.parent
    for name in ("live", "out"):
        shutil.rmtree(place / name)
        shutil.copytree(place / "kept" / name, place / name)
    own = place / "out" / names.REPUT / names.SPARK_CHECKPOINT
    newest = max((own / "offsets").iterdir(), key=lambda path: (path.name.isdecimal(), path.name.zfill(9)))
    if checkpoint == "lost":
        shutil.rmtree(own)
    elif checkpoint == "torn":
        newest.write_bytes(b"")
    elif checkpoint == "ahead":
        text = newest.read_text()
        newest.write_text(text.replace(str(live.share(0.5)), str(live.share(0.5) + 10**9)))
        assert newest.read_text() != text
    elif checkpoint == "behind":
        shutil.rmtree(own)
        shutil.copytree(place / "behind", own)
    live.finish()
    with tailing(live.options, spark) as running:
        running.wait(lambda: running.state.messages == len(live.starts))
    aside = own.with_name(own.name + ".aside")
    assert aside.exists() == (checkpoint in ("torn", "ahead"))
    assert_equal(live, running.out)


def test_a_backlog_is_begun_before_spark_asks(
    live: Live, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[BatchScan | None] = []
    look = BatchWriter._begun

    def remember(writer: BatchWriter, parts: list[Part]) -> BatchScan | None:
        begun.append(look(writer, parts))
        return begun[-1]

    monkeypatch.setattr("reput.output.writer._INLINE_BYTES", 0)
    monkeypatch.setattr(BatchWriter, "_begun", remember)
    live.finish()
    size = live.segments[0].stat().st_size
    with tailing(
        replace(live.options, max_bytes_per_trigger=2 * size, part_bytes=size // 3), spark
    ) as running:
        running.reach(live.share(1) + 1)
        running.stopping.set()
    assert running.error is None
    assert begun[0] is not None, "Spark asked for the very parts that were expected"
    assert begun[1:] == [None] * (len(begun) - 1)
    assert len(begun) > 2
    assert_equal(live, running.out)


def test_a_limited_rate_reads_nothing_ahead(
    live: Live, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[Part]] = []
    monkeypatch.setattr("reput.output.writer._INLINE_BYTES", 0)
    monkeypatch.setattr(BatchWriter, "begin_ahead", lambda _writer, parts: begun.append(parts))
    live.finish()
    size = live.segments[0].stat().st_size
    limited = replace(live.options, max_bytes_per_trigger=2 * size, max_rate=1 << 30)
    with tailing(limited, spark) as running:
        running.reach(live.share(0.5))
    assert running.error is None
    assert begun == []


def test_what_was_begun_ahead_ends_when_the_query_does_not_start(
    live: Live, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SparkError("the query doesn't start")

    monkeypatch.setattr("reput.output.writer._INLINE_BYTES", 0)
    monkeypatch.setattr("reput.job.tail.TailQuery", fail)
    live.finish()
    size = live.segments[0].stat().st_size
    with tailing(replace(live.options, max_bytes_per_trigger=2 * size), spark) as running:
        running.ended.wait(LONGEST)
    assert isinstance(running.error, SparkError)
    deadline = time.monotonic() + LONGEST  # a thread that has done its work takes a moment to end
    while {thread.name.split("_")[0] for thread in threading.enumerate()} & AHEAD:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_goes_on_on_another_machine(live: Live, spark: SparkSession, tmp_path: Path) -> None:
    live.grow(live.share(0.4))
    with tailing(live.options, spark) as running:
        running.reach(live.share(0.4))
    there = tmp_path / "there"
    there.mkdir()
    shutil.move(live.root, there / "live")
    shutil.move(running.out, there / "out")
    live.root = there / "live"
    live.finish()
    with tailing(live.options, spark) as running:
        running.wait(lambda: running.state.messages == len(live.starts))
    assert running.out == there / "out"
    assert_equal(live, running.out)


def cut(live: Live, offset: int) -> None:
    """What a broker's recovery does: zeros from a physical offset on, segments behind it gone."""
    for path in sorted((live.root / names.COMMIT_LOG).iterdir()):
        base = int(path.name)
        if base > offset:
            path.unlink()
        elif base + path.stat().st_size > offset:
            # Never shorter, not for a moment: who has it mapped would read behind its end, and die of that.
            with path.open("r+b") as file:
                file.seek(offset - base)
                file.write(bytes(path.stat().st_size - (offset - base)))
    live.reached = offset


@pytest.mark.parametrize("while_running", [True, False])
def test_a_log_that_goes_back_is_followed(while_running: bool, live: Live, spark: SparkSession) -> None:
    live.grow(live.share(0.3))
    with tailing(live.options, spark) as running:
        running.reach(live.share(0.3))
        live.grow(live.share(0.6))
        running.reach(live.share(0.6))
        if while_running:
            cut(live, live.share(0.45))
            running.wait(lambda: running.state.cursor < live.share(0.6))
            live.finish()
            running.wait(lambda: running.state.messages == len(live.starts))
    if not while_running:
        cut(live, live.share(0.45))
        live.finish()
        with tailing(live.options, spark) as running:
            running.wait(lambda: running.state.messages == len(live.starts))
    assert running.summary is not None
    assert {finding.kind for finding in running.summary.findings} <= {"log-went-back"}
    assert_equal(live, running.out)


def test_another_log_is_refused(live: Live, spark: SparkSession) -> None:
    live.finish()
    with tailing(live.options, spark) as running:
        running.wait(lambda: running.state.messages == len(live.starts))
    shutil.rmtree(live.root)
    other = golden("5.5.0-lmq", live.root.parent / "other")
    shutil.copytree(other.root, live.root)
    with tailing(live.options, spark) as running:
        pass
    assert isinstance(running.error, OutputError)
    assert "another one" in str(running.error)


def test_a_second_writer_is_refused(live: Live, spark: SparkSession) -> None:
    live.grow(live.share(0.2))
    with tailing(live.options, spark) as running:
        running.reach(live.share(0.2))
        with tailing(live.options, spark) as second:
            pass
    assert isinstance(second.error, StoreInUseError)
    assert running.error is None


def test_a_new_brokers_first_segment_is_waited_for(live: Live, spark: SparkSession) -> None:
    log = live.root / names.COMMIT_LOG
    log.rmdir()
    with tailing(live.options, spark) as running:
        deadline = time.monotonic() + LONGEST
        while output_holder(running.out) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        log.mkdir()
        (log / live.segments[0].name).touch()  # as a 5.x broker makes it first
        time.sleep(0.3)
        assert not running.journal.exists()
        live.finish()
        running.wait(lambda: running.state.messages == len(live.starts))
    assert running.summary is not None
    assert running.summary.exit_code == 0
    assert_equal(live, running.out)


def tell_topics(live: Live, **kinds: str) -> None:
    """The broker's topics, with the types of their queues."""
    table = {topic: {"topicName": topic, "attributes": {"queue.type": kind}} for topic, kind in kinds.items()}
    config = live.root / names.CONFIG / "topics.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({"topicConfigTable": table}))


def test_topics_that_come_while_it_runs_are_what_the_broker_says(tmp_path: Path, spark: SparkSession) -> None:
    live = live_store("5.5.0-batch-queue", tmp_path)
    tell_topics(live)
    live.grow(0)  # nothing but a segment
    with tailing(live.options, spark) as running:
        running.wait(lambda: True)  # the journal is there, so that the topics have been read
        tell_topics(live, Batches="BatchCQ")
        live.grow(live.share(0.8))
        running.reach(live.share(0.8))
    assert any(topic == "Batches" and queue.is_batch for (topic, _), queue in running.state.queues.items())
    live.finish()
    with tailing(live.options, spark) as running:
        running.wait(lambda: running.state.messages == len(live.starts))
    assert running.summary is not None
    assert_equal(live, running.out)

    written = next(topic for topic, _ in running.state.queues if topic != "Batches")
    tell_topics(live, Batches="BatchCQ", **{written: "BatchCQ"})
    with tailing(live.options, spark) as running:
        pass
    assert isinstance(running.error, OutputError)
    assert f"topic {written} has queues of type BatchCQ now" in str(running.error)


def test_a_batch_topic_that_comes_while_it_runs_asks_for_files_of_whole_units(
    tmp_path: Path, spark: SparkSession
) -> None:
    live = live_store("5.5.0-batch-queue", tmp_path)
    with broker_conf(live.whole).open("a") as conf:
        conf.write("mapperFileSizeBatchConsumeQueue=1000\n")
    options = live.options
    tell_topics(live)
    live.grow(0)
    with tailing(options, spark) as running:
        running.wait(lambda: True)
        tell_topics(live, Batches="BatchCQ")
        live.grow(live.share(0.8))
        assert running.ended.wait(LONGEST)
    assert isinstance(running.error, SettingsError)
    assert "multiple of 46" in str(running.error)
