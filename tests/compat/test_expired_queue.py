"""A queue whose messages have all expired goes on in a rebuilt store where it was, as in the broker's own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.format import names
from reput.job import RebuildOptions, rebuild
from tests.compat.cleaning import expire
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried
from tests.rebuilds import tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

CONFIG = {
    **SMALL_FILES,
    "fileReservedTime": 0,
    "enableConsumeQueueExt": True,
    "mappedFileSizeConsumeQueueExt": 500,
}
#: Where the release has batch queues.
BATCH_FILES = {"mapperFileSizeBatchConsumeQueue": 20 * 46}
BATCHED = {"Batched": {"queue.type": "BatchCQ"}}
#: One is in the middle of its last file, one has filled it.
LENGTHS = {0: 70, 1: 100}


def expire_most(store: JavaStore) -> None:
    """Have the store delete all segments but the one that it writes, and what goes with them, at once."""
    written = int(store.store.getMaxPhyOffset()) & -CONFIG["mappedFileSizeCommitLog"]
    expire(store, sum(int(path.name) < written for path in (store.root / names.COMMIT_LOG).iterdir()))


def offsets(store: JavaStore, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """The least and the next queueOffset of each queue of the expired topics."""
    return {
        (topic, queue): (
            int(store.store.getMinOffsetInQueue(topic, queue)),
            int(store.store.getMaxOffsetInQueue(topic, queue)),
        )
        for topic in topics
        for queue in LENGTHS
    }


def last_files(root: Path, topics: Sequence[str]) -> dict[str, str]:
    """The last file of each queue of theirs that isn't empty, by its path below the store."""
    found = {}
    for kind in names.QUEUES:
        for directory in (root / kind).glob("*/*"):
            if directory.parent.name in topics:
                used = [path for path in directory.iterdir() if any(path.read_bytes())]
                found[max(used).relative_to(root).as_posix()] = tree(directory)[max(used).name]
    return found


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7"]))
def test_an_expired_queue_goes_on(version: str, tmp_path: Path, spark: SparkSession) -> None:
    root = tmp_path / "store"
    batched, config = (BATCHED, CONFIG | BATCH_FILES) if version > "5" else ({}, CONFIG)
    topics = ["Expired", *batched]
    with JavaStore(version, root, config, topics=batched) as store:
        assert store.load()
        store.start()
        for topic in topics:
            for queue, length in LENGTHS.items():
                for n in range(length):
                    store.put(Message(topic, queue, f"{n}".encode(), keys=f"k{n}"))
        for _ in range(200):
            store.put(Message("Orders", 0, bytes(1000)))
        store.wait_dispatched()
        expire_most(store)
        assert int(store.store.getMinPhyOffset()) > 65_536
    (root / names.CONFIG).mkdir(exist_ok=True)
    table = {topic: {"attributes": attributes} for topic, attributes in batched.items()}
    (root / names.CONFIG / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    own = last_files(root, topics)
    assert len(own) == (4 if not batched else 6), "the last file of each queue, and its last records"
    with JavaStore(version, root, config, topics=batched) as store:
        assert store.load()
        before = offsets(store, topics)
    assert {queue: most for queue, (_, most) in before.items()} == {
        (topic, queue): length for topic in topics for queue, length in LENGTHS.items()
    }

    for topic in ("Orders", "index"):  # the damage
        shutil.rmtree(root / names.CONSUME_QUEUE / topic, ignore_errors=True)
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(config), encoding="utf-8")
    options = RebuildOptions(store=root, broker_conf=conf, rocketmq_version=version)
    summary = rebuild(options, lambda: spark)
    assert sorted(summary.carried_queues) == sorted(f"{topic}:{queue}" for topic, queue in before)
    assert summary.doubtful_queues == []
    assert own.items() <= last_files(root, topics).items()

    with JavaStore(version, root, config, topics=batched) as store:
        assert store.load()
        assert offsets(store, topics) == before
        store.start()
        for topic in topics:
            assert {queue: store.put(Message(topic, queue)).queue_offset for queue in LENGTHS} == LENGTHS
        store.wait_dispatched()
        assert {queue: most for queue, (_, most) in offsets(store, topics).items()} == {
            (topic, queue): length + 1 for topic in topics for queue, length in LENGTHS.items()
        }


@pytest.mark.proof
@pytest.mark.parametrize("version", ["5.5.0", "5.3.3"])
def test_an_expired_queue_of_files_goes_on_in_rocksdb(
    version: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Its least queueOffset is the next one, as with files, and what is sent next comes there."""
    root, config = tmp_path / "store", {**SMALL_FILES, "fileReservedTime": 0}
    with JavaStore(version, root, config) as store:
        assert store.load()
        store.start()
        for queue, length in LENGTHS.items():
            for n in range(length):
                store.put(Message("Expired", queue, f"{n}".encode(), keys=f"k{n}"))
        for _ in range(200):
            store.put(Message("Orders", 0, bytes(1000)))
        store.wait_dispatched()
        expire_most(store)
    with JavaStore(version, root, config) as store:
        assert store.load()
        before = offsets(store, ["Expired"])
    assert before == {("Expired", queue): (length, length) for queue, length in LENGTHS.items()}
    conf, in_rocksdb = tmp_path / "broker.conf", {**config, "storeType": "defaultRocksDB"}
    conf.write_text(conf_text(in_rocksdb), encoding="utf-8")
    options = RebuildOptions(store=root, broker_conf=conf, rocketmq_version=version)
    assert rebuild(options, lambda: spark).findings == []
    with JavaStore(version, root, in_rocksdb) as store:
        assert store.load()
        store.start()
        assert offsets(store, ["Expired"]) == before
        for queue, length in LENGTHS.items():
            assert store.put(Message("Expired", queue, b"next")).queue_offset == length
        store.wait_dispatched()
        assert offsets(store, ["Expired"]) == {
            ("Expired", queue): (length, length + 1) for queue, length in LENGTHS.items()
        }
