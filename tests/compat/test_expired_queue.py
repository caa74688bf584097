"""A queue whose messages have all expired goes on in a rebuilt store where it was, as in the broker's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.format import names
from reput.job import RebuildOptions, rebuild
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.rebuilds import tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

CONFIG = {**SMALL_FILES, "fileReservedTime": 0}
#: One is in the middle of its last file, one has filled it.
LENGTHS = {0: 70, 1: 100}


def expire(store: JavaStore) -> None:
    """Have the store delete all segments but the last, and what of the queues goes with them, at once.

    It does so by itself a minute after its start, at an hour of the configuration.
    """
    store.store.executeDeleteFilesManually()
    java, new = store.jvm.gateway.jvm.java.lang, store.jvm.gateway.new_array
    cleaners = [(store.store, "cleanFilesPeriodically")]
    if store.version.startswith("5.5"):  # the queues have a cleaner of their own
        cleaners.append((store.store.getQueueStore(), "cleanQueueFilesPeriodically"))
    for cleaner, name in cleaners:
        method = cleaner.getClass().getDeclaredMethod(name, new(java.Class, 0))
        method.setAccessible(True)
        for _ in range(10):
            method.invoke(cleaner, new(java.Object, 0))


def offsets(store: JavaStore) -> dict[int, tuple[int, int]]:
    """The least and the next queueOffset of each queue of the expired topic."""
    return {
        queue: (
            int(store.store.getMinOffsetInQueue("Expired", queue)),
            int(store.store.getMaxOffsetInQueue("Expired", queue)),
        )
        for queue in LENGTHS
    }


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_an_expired_queue_goes_on(version: str, tmp_path: Path, spark: SparkSession) -> None:
    root = tmp_path / "store"
    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        store.start()
        for queue, length in LENGTHS.items():
            for n in range(length):
                store.put(Message("Expired", queue, f"{n}".encode(), keys=f"k{n}"))
        for _ in range(200):
            store.put(Message("Orders", 0, bytes(1000)))
        store.wait_dispatched()
        expire(store)
        assert int(store.store.getMinPhyOffset()) > 65_536
    queues = root / names.CONSUME_QUEUE
    own = {name: digest for name, digest in tree(queues).items() if name.startswith("Expired/") and digest}
    assert len(own) == 2, "the last file of each queue"
    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        before = offsets(store)
    assert {queue: most for queue, (_, most) in before.items()} == LENGTHS

    for topic in ("Orders", "index"):  # the damage
        shutil.rmtree(queues / topic, ignore_errors=True)
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    options = RebuildOptions(store=root, broker_conf=conf, rocketmq_version=version)
    summary = rebuild(options, lambda: spark)
    assert summary.carried_queues == ["Expired:0", "Expired:1"]
    assert summary.doubtful_queues == []
    assert own.items() <= tree(queues).items()

    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        assert offsets(store) == before
        store.start()
        assert {queue: store.put(Message("Expired", queue)).queue_offset for queue in LENGTHS} == LENGTHS
        store.wait_dispatched()
        assert {queue: most for queue, (_, most) in offsets(store).items()} == {
            queue: length + 1 for queue, length in LENGTHS.items()
        }
