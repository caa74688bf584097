"""Every golden store, rebuilt from its log alone, on Spark or without, is the store that Java wrote."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.config.basis import look
from reput.config.dialect import dialect
from reput.errors import SettingsError
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.job import RebuildOptions, Summary, rebuild
from reput.store.compare import compare
from tests.golden.store import FILTERED, NAMES, GoldenStore, unpack
from tests.levels import tried

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    StartSpark = Callable[[], SparkSession] | None

# What a rebuild from the log alone reports, by workload; all others are sound.
FINDINGS = {
    "lmq": {"repeated-message", "queue-offset-jump"},
    "recreated-topic": {"queue-restarted"},
}
# What the store holds beside queues that reput derives: one whose topic's deletion left no trace in the log.
NOT_DERIVED = {"recreated-topic": (f"{names.CONSUME_QUEUE}/Again/2/",)}


def settle(store: GoldenStore) -> Path:
    """What a broker would have beside the store: its broker.conf, and its topics if they have attributes."""
    topics = store.manifest["topics"]
    if topics:
        table = {topic: {"topicName": topic, "attributes": facts} for topic, facts in topics.items()}
        config = store.root / names.CONFIG / "topics.json"
        config.parent.mkdir(exist_ok=True)
        # Without a counter, a broker whose settings are in RocksDB doesn't take it over.
        text = json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": table})
        config.write_text(text, encoding="utf-8")
    return store.write_broker_conf(store.root.parent / "broker.conf")


def options(store: GoldenStore, broker_conf: Path) -> RebuildOptions:
    # Parts smaller than a segment begin inside messages; the longer stores take two batches.
    return RebuildOptions(
        store=store.root,
        out=store.root.parent / "out",
        broker_conf=broker_conf,
        rocketmq_version=store.version,
        part_bytes=50_000,
        max_bytes_per_trigger=300_000,
    )


EVERY = (*NAMES, *FILTERED)
#: What is rebuilt on Spark; without it all are.
ON_SPARK = tried(
    "4.9.7-mixed",
    "4.9.7-queue-ext",
    "5.3.3-lmq",
    "5.5.0-mixed",
    "5.5.0-batch-queue",
    "5.5.0-crash",
    more=EVERY,
)
RUNS = [
    *((name, "processes") for name in EVERY),
    *(pytest.param(name, "spark", marks=pytest.mark.spark) for name in dict.fromkeys(ON_SPARK)),
]


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack(request.param, tmp_path / "store")


def workload(store: GoldenStore) -> str:
    return str(store.manifest["workload"])


@pytest.mark.parametrize(("golden", "start_spark"), RUNS, indirect=True)
def test_every_byte_is_that_of_the_java_store(golden: GoldenStore, start_spark: StartSpark) -> None:
    summary = rebuild(options(golden, settle(golden)), start_spark)
    out = Path(summary.output)

    found = compare(golden.root, out)
    passed_over = NOT_DERIVED.get(workload(golden), ())
    assert [line for line in found.differences if not line.startswith(passed_over)] == []
    assert [line for line in found.empty_directories if not line.startswith(passed_over)] == []
    assert found.queue_files
    check_counts(golden, summary)
    check_checkpoint(golden, out)
    kinds = {finding.kind for finding in summary.findings}
    assert kinds <= FINDINGS.get(workload(golden), set())


@pytest.mark.parametrize(
    "name",
    [
        *("4.9.7-mixed", "4.9.7-lmq-own-ids", "4.9.7-queue-ext", "5.3.3-restart", "5.3.3-batch-queue"),
        *("5.5.0-lost-head", "5.5.0-tiny"),
    ],
)
def test_so_it_is_when_nothing_is_given(name: str, tmp_path: Path, start_spark: StartSpark) -> None:
    """In place, without broker.conf and without a release: by what the store shows."""
    golden = unpack(name, tmp_path / "store")
    settle(golden)
    (tmp_path / "broker.conf").unlink()
    before = tmp_path / "before"
    shutil.copytree(golden.root, before)
    summary = rebuild(RebuildOptions(store=golden.root), start_spark)
    assert summary.in_place
    assert summary.findings == []
    assert summary.basis.contradictions == ()
    assert dialect(golden.version).name == summary.rocketmq_version
    found = compare(before, golden.root)
    passed_over = NOT_DERIVED.get(workload(golden), ())
    assert [line for line in found.differences if not line.startswith(passed_over)] == []
    assert found.queue_files
    check_checkpoint(replace(golden, root=before), golden.root)


def test_a_store_is_converted_where_that_is_asked_for(tmp_path: Path, start_spark: StartSpark) -> None:
    """To files of other sizes and another release; without --convert it is refused."""
    golden = unpack("4.9.7-lost-head", tmp_path / "store")
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=10\nmaxIndexNum=900\n")
    asked = RebuildOptions(store=golden.root, broker_conf=conf, rocketmq_version="5.5.0")
    with pytest.raises(SettingsError, match="--convert"):
        rebuild(asked, lambda: pytest.fail("Spark was to be started"))
    assert rebuild(replace(asked, convert=True), start_spark).in_place
    found = look(golden.root, [golden.root / names.COMMIT_LOG])
    assert (found.queues.shown, found.index.shown) == ((2_000,), (10, 900))
    assert "the index has tags" in [mark.why for mark in found.release.marks]


def check_counts(golden: GoldenStore, summary: Summary) -> None:
    assert (summary.start, summary.end) == (golden.manifest["log"]["start"], golden.manifest["log"]["end"])
    counts = golden.manifest["counts"]
    if summary.start == 0:
        more = ("messages in batches", "FillSegment", "Hostile")
        assert summary.messages == counts["Message"] + sum(counts.get(kind, 0) for kind in more)


def check_checkpoint(golden: GoldenStore, out: Path) -> None:
    """The times that a clean stop leaves; 5.5 writes logicsMsgTimestamp once a minute only."""
    rebuilt = StoreCheckpoint.decode((out / names.CHECKPOINT).read_bytes())
    java = StoreCheckpoint.decode((golden.root / names.CHECKPOINT).read_bytes())
    if not golden.crashed:
        assert rebuilt.index_msg_timestamp == java.index_msg_timestamp
        if golden.version != "5.5.0":
            assert rebuilt.logics_msg_timestamp == java.logics_msg_timestamp
    else:
        # What the index files hold is covered, so that no recovery deletes one.
        headers = sorted((out / names.INDEX).iterdir())
        last = int.from_bytes(headers[-1].read_bytes()[8:16], "big")
        assert rebuilt.index_msg_timestamp == last
