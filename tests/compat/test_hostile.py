"""Messages that hold records, in stores of the real RocketMQ, and what reput makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.config.settings import StoreSettings
from reput.format import commitlog, names
from reput.format.commitlog import Record
from reput.job.options import RebuildOptions
from reput.mending import mend
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm
from tests.compat.message import Message
from tests.hostile import NOW, fake
from tests.levels import tried
from tests.local import Store, rebuild_locally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

SEGMENT = 1 << 20
CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
BODY = 200_000


def hostile_body(place: int) -> bytes:
    """Records of queue Orders:0 for the body's true place, at queueOffsets to come and of the past."""
    body = bytearray(b"\xee" * BODY)
    at = 64
    while at + 300 < BODY:
        one = fake(place + 88 + at, queue_offset=at % 90, topic=b"Orders")
        body[at : at + len(one)] = one
        at += len(one) if at < BODY // 2 else 1009
    return bytes(body)


def written(version: str, root: Path) -> int:
    """Fifty honest messages; where the log ends."""
    with JavaStore(version, root, CONFIG) as store:
        assert store.load()
        store.start()
        for number in range(50):
            store.put(Message("Orders", 0, b"honest", keys=f"key{number}", uniq_key=f"id{number}"))
        store.wait_dispatched()
        place = int(store.store.getMaxPhyOffset())
        store.kill()
    for path in sorted((root / names.COMMIT_LOG).iterdir())[1:]:
        path.unlink()  # made ahead of time
    return place


def served(version: str, roots: Iterable[Path]) -> dict[str, int]:
    """How many messages the real store has in Orders:0 after a start on each of these stores, by its name."""
    found = {}
    with Jvm(version) as jvm:  # which ends with all of them running: a stop is mostly sleep
        for root in roots:
            store = JavaStore(version, root, CONFIG, jvm=jvm)
            assert store.load()
            store.start()
            store.wait_dispatched()
            found[root.name] = int(store.store.getMaxOffsetInQueue("Orders", 0))
    return found


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7", "5.3.3"]))
def test_a_broker_that_died_over_a_hostile_message(version: str, tmp_path: Path, spark: SparkSession) -> None:
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    place = written(version, root)
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    settings = StoreSettings.load(root, conf, version)
    whole = commitlog.encode(
        Record(
            b"Orders",
            hostile_body(place),
            b"KEYS\x01k\x02",
            queue_id=1,
            physical_offset=place,
            store_timestamp=NOW + 10**9,
        )
    )
    # The broker copied so much of it into the log, and died.
    halves = []
    for copied in (len(whole) - 40_000, 100_003, 95):
        halves.append(half := tmp_path / f"half {copied}")
        shutil.copytree(root, half)
        with (half / names.COMMIT_LOG / names.offset_name(0)).open("r+b") as log:
            log.seek(place)
            log.write(whole[:copied])
        state = rebuild_locally(
            Store(half, replace(settings, root=half, commit_log_dirs=(half / "commitlog",))),
            tmp_path / f"out {copied}",
        )
        assert (state.messages, state.cursor) == (50, place)
        assert set(state.queues) == {("Orders", 0)}
        if copied == 100_003:
            mend(RebuildOptions(half, broker_conf=conf, rocketmq_version=version), apply=True)
    assert served(version, halves) == dict.fromkeys((half.name for half in halves), 50)
