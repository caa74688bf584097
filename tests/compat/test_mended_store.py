"""Damaged stores that ``reput mend --apply`` has mended, opened by the real store and by a real broker."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reput.broker.predict import predict
from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.format import commitlog, names
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.recovery.plan import plan
from reput.scan import kernel
from reput.verify.plan import VerifyOptions
from tests.compat import damage
from tests.compat.broker import Broker, Received
from tests.compat.conf import conf_text
from tests.compat.damage import Copy
from tests.compat.message import Message
from tests.compat.starts import Bench, Case, differences, expected
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

CONFIG = {**SMALL_FILES, "timerWheelEnable": False}
TOPICS = ("Orders", "Payments")
#: A damage, and how the last broker ended: the kinds that are mended in different ways.
CASES = (
    (damage.torn_last_message, "killed"),
    (damage.bad_magic, None),
    (damage.bad_crc, "killed"),
    (damage.no_blank, "behind"),
    (damage.log_shorter, "killed"),
    (damage.empty_queue_file_behind, None),
)
#: What no mending brings back: the last message, or the last segments.
LOST = (damage.torn_last_message, damage.log_shorter)


def whole(copy: Copy, version: str) -> set[int]:
    """Physical offsets of the messages that queues lead to, damaged ones left out."""
    found = set()
    for path in copy.segments:
        if not path.name.isdecimal():
            continue
        data, base = np.fromfile(path, np.uint8), int(path.name)
        at = kernel.find_record(data, base, 0, len(data), not version.startswith("4."))
        while at >= 0:
            record = commitlog.decode(data.data, at)
            if record.sys_flag & commitlog.TRANSACTION_MASK in (0, commitlog.TRANSACTION_COMMIT):
                found.add(base + at)
            at = kernel.find_record(data, base, at + 1, len(data), not version.startswith("4."))
    return found


@pytest.mark.parametrize("version", tried("4.9.7", "5.5.0", more=["5.3.3"]))
def test_the_real_store_loses_nothing_of_a_mended_store(
    version: str, tmp_path: Path, spark: SparkSession
) -> None:
    bench = Bench(version, tmp_path)
    tried, survivors = [], {}
    try:
        for harm, crash in CASES:
            copy = bench.copy(f"{harm.__name__}-{crash}", crash=crash)
            harm(copy)
            name = copy.root.name
            survivors[name] = whole(copy, version)
            mend(RebuildOptions(copy.root, broker_conf=bench.conf, rocketmq_version=version), apply=True)
            left = check(VerifyOptions(copy.root, None, bench.conf, version))
            assert (left.mendable, left.exit_code in (0, 1)) == ([], True), (name, left.findings)
            result = plan(take(bench.settings(copy.root)))
            # The start still takes away what was torn or lost before, and units of that.
            assert result.is_whole, name
            assert not result.cuts_messages, (name, result.losses)
            assert not result.unrepaired, (name, result.unrepaired)
            assert {loss.kind for loss in result.losses} <= {"log-cut", "queue-cut"}, (name, result.losses)
            assert bool(result.losses) == (harm in LOST), (name, result.losses)
            tried.append(Case(name, copy.root, expected(result.prediction)))
        bench.open_all(tried)
        for case in tried:
            assert differences(case.predicted, case.seen) == [], (case.name, case.error)
            reached = {
                position
                for units in case.seen.units.values()
                for position, size, _ in UNIT.iter_unpack(units)
                if 0 < size < 1 << 30
            }
            assert survivors[case.name] <= reached, case.name
            assert all(len(units) % UNIT_LENGTH == 0 for units in case.seen.units.values())
    finally:
        bench.close()


@dataclass(frozen=True, slots=True)
class Killed:
    """A store of a broker that was killed.

    Attributes:
        version: its release.
        root: the store, which tests copy.
        conf: its broker.conf.
        before: what a consumer had got of it.
    """

    version: str
    root: Path
    conf: Path
    before: list[Received]


@pytest.fixture(scope="module", params=tried("5.5.0", more=["4.9.7"]))
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    place = tmp_path_factory.mktemp("killed")
    with Broker(request.param, place / "store", CONFIG) as broker:
        for topic in TOPICS:
            broker.create_topic(topic, 2)
        broker.produce(
            Message(topic, n % 2, f"{topic} {n}".encode(), keys=f"key{n}", uniq_key=f"{topic}{n}")
            for n in range(200)
            for topic in TOPICS
        )
        broker.wait_dispatched()
        before = [message for topic in TOPICS for message in broker.consume_all(topic)]
        broker.kill()
    assert len(before) == 400
    conf = place / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    return Killed(request.param, place / "store", conf, before)


def test_a_broker_serves_all_that_survived(killed: Killed, tmp_path: Path, spark: SparkSession) -> None:
    version, conf, before = killed.version, killed.conf, killed.before
    root = shutil.copytree(killed.root, tmp_path / "store")
    # A message in the middle and one near the end are destroyed, the last one is torn, a topic has lost its
    # queues, and the index is gone.
    copy = Copy(root, int(str(CONFIG["mappedFileSizeCommitLog"])), 0)
    by_place = {message.physical_offset: message for message in before}
    records = [record for record in copy.records() if record.offset in by_place]
    damage.torn_in_the_body(copy)
    for record in (records[200], records[-20]):
        damage.write(record.segment, record.position + commitlog.MAGIC, b"oops")
    lost = {records[200].offset, records[-20].offset, records[-1].offset}
    shutil.rmtree(root / names.CONSUME_QUEUE / "Payments")
    shutil.rmtree(root / names.INDEX)
    mended = mend(RebuildOptions(root, broker_conf=conf, rocketmq_version=version), apply=True)
    assert {change.kind for change in mended.changes} == {"stand-in"}
    foretold = predict(take(StoreSettings.load(root, conf, version)))

    with Broker(version, root, CONFIG) as broker:
        assert int(broker.store.getMaxPhyOffset()) >= foretold.log_end
        after = [message for topic in TOPICS for message in broker.consume_all(topic)]
        times = Counter(message.physical_offset for message in after)
        assert set(times) == set(by_place) - lost
        # A hole in a queue is filled with the message behind it; else none comes twice.
        holes = [by_place[place] for place in lost if place != records[-1].offset]
        behind = {next(m.physical_offset for m in before if _follows(m, hole)) for hole in holes}
        assert {place for place, count in times.items() if count > 1} <= behind
        for place in sorted(times)[::25]:
            message = by_place[place]
            found = broker.query_by_key(message.topic, message.keys or "")
            assert message.unique_key in {one.unique_key for one in found}
        (sent,) = broker.produce([Message("Payments", 0, b"one more", keys="after", uniq_key="another")])
        broker.wait_dispatched()
        queue = [message for message in broker.consume_all("Payments") if message.queue_id == 0]
        assert (queue[-1].queue_offset, queue[-1].body) == (sent.queue_offset, b"one more")
        broker.kill()


@pytest.mark.proof
def test_a_consumer_gets_every_message_of_a_log_mended_from_its_replica(
    killed: Killed, tmp_path: Path, spark: SparkSession
) -> None:
    version, conf, before = killed.version, killed.conf, killed.before
    root, replica = shutil.copytree(killed.root, tmp_path / "store"), tmp_path / "replica"
    shutil.copytree(root / names.COMMIT_LOG, replica / names.COMMIT_LOG)
    copy = Copy(root, int(str(CONFIG["mappedFileSizeCommitLog"])), 0)
    by_place = {message.physical_offset: message for message in before}
    records = [record for record in copy.records() if record.offset in by_place]
    for record in (records[40], records[41], records[200]):
        damage.write(record.segment, record.position, bytes(record.size))
    damage.write(records[-20].segment, records[-20].position + commitlog.MAGIC, b"oops")
    shutil.rmtree(root / names.CONSUME_QUEUE / "Orders")
    options = RebuildOptions(root, broker_conf=conf, rocketmq_version=version)
    mended = mend(options, replica, apply=True)
    assert mended.replica is not None
    assert mended.replica.left == []
    assert len(mended.replica.taken) >= 3

    with Broker(version, root, CONFIG) as broker:
        after = [message for topic in TOPICS for message in broker.consume_all(topic)]
        assert [(one.physical_offset, one.queue_offset, one.body) for one in after] == [
            (one.physical_offset, one.queue_offset, one.body) for one in before
        ]
        message = by_place[records[41].offset]
        found = broker.query_by_key(message.topic, message.keys or "")
        assert message.unique_key in {one.unique_key for one in found}
        broker.kill()


def _follows(message: Received, hole: Received) -> bool:
    queue = hole.topic, hole.queue_id
    return (message.topic, message.queue_id) == queue and message.queue_offset == hole.queue_offset + 1
