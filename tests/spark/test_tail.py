"""``reput tail`` through a real Spark session, over a real store's log that appears bit by bit."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.errors import OutputError, ReputError, StoreInUseError
from reput.format import names
from reput.job import Summary, TailOptions
from reput.job.tail import tail
from reput.sink.journal import State, read_state
from reput.store.compare import compare
from tests.golden.store import GoldenStore
from tests.rebuilds import broker_conf, golden, record_starts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LONGEST = 180.0


@dataclass
class Live:
    """A store whose log appears bit by bit, in segments that are preallocated.

    Attributes:
        whole: the store in the end.
        root: the store as it is now.
        reached: physical offset up to which its log is written.
    """

    whole: GoldenStore
    root: Path
    reached: int = 0
    segments: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.segments = sorted((self.whole.root / names.COMMIT_LOG).iterdir())
        (self.root / names.COMMIT_LOG).mkdir(parents=True)
        self.starts = [
            start for segment in self.segments for start in record_starts(self.whole.root, int(segment.name))
        ]

    @property
    def options(self) -> TailOptions:
        return TailOptions(
            store=self.root,
            out=self.root.parent / "out",
            broker_conf=broker_conf(self.whole),
            rocketmq_version=self.whole.version,
        )

    def grow(self, end: int) -> None:
        """Write the log up to a physical offset."""
        for segment in self.segments:
            data, base = segment.read_bytes(), int(segment.name)
            path = self.root / names.COMMIT_LOG / segment.name
            if base > end:
                return
            if not path.exists():
                path.write_bytes(bytes(len(data)))
            start, stop = max(self.reached - base, 0), min(end - base, len(data))
            if start < stop:
                with path.open("r+b") as file:
                    file.seek(start)
                    file.write(data[start:stop])
                self.reached = base + stop

    def share(self, part: float) -> int:
        """Where the record begins that lies at this share of the log."""
        return self.starts[int(part * (len(self.starts) - 1))]

    def finish(self) -> None:
        self.grow(int(self.segments[-1].name) + self.segments[-1].stat().st_size)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    whole = golden("5.5.0-mixed", tmp_path)
    conf = broker_conf(whole)
    lines = [line for line in conf.read_text().splitlines() if not line.startswith("storePath")]
    conf.write_text("\n".join(lines) + "\n")
    return Live(whole, tmp_path / "live")


@dataclass
class Running:
    """A tail in another thread."""

    out: Path
    stopping: threading.Event
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

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield running
    finally:
        running.stopping.set()
        thread.join(LONGEST)
        assert not thread.is_alive()


def assert_equal(live: Live, out: Path) -> None:
    found = compare(live.whole.root, out)
    assert found.differences == ()
    assert found.queue_files
    assert found.index_files


def test_the_log_is_followed_to_the_stores_own_bytes(live: Live, spark: SparkSession) -> None:
    live.grow(live.share(0.1))
    with tailing(live.options, spark) as running:
        for part in (0.1, 0.3, 0.35, 0.8):
            live.grow(live.share(part) + 50)  # and the beginning of a record that isn't whole
            running.reach(live.share(part))
            assert running.state.cursor <= live.reached
        live.finish()
        running.wait(lambda: running.state.messages == len(live.starts))
    assert running.summary is not None
    assert running.summary.exit_code == 0
    assert running.summary.followed
    assert not (running.out / names.REPUT / names.SCRATCH).exists()
    assert_equal(live, running.out)


@pytest.mark.parametrize("checkpoint", ["kept", "lost", "torn", "ahead", "behind"])
def test_it_goes_on_whatever_became_of_sparks_checkpoint(
    checkpoint: str, live: Live, spark: SparkSession, tmp_path: Path
) -> None:
    live.grow(live.share(0.2))
    with tailing(live.options, spark) as running:
        running.reach(live.share(0.2))
    own = running.out / names.REPUT / names.SPARK_CHECKPOINT
    shutil.copytree(own, tmp_path / "behind")
    live.grow(live.share(0.5))
    with tailing(live.options, spark) as running:
        running.reach(live.share(0.5))
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
        shutil.move(tmp_path / "behind", own)
    live.finish()
    with tailing(live.options, spark) as running:
        running.wait(lambda: running.state.messages == len(live.starts))
    aside = own.with_name(own.name + ".aside")
    assert aside.exists() == (checkpoint in ("torn", "ahead"))
    assert_equal(live, running.out)


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
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.truncate(offset - base)
                file.truncate(size)
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
