"""Queues that a log with a lost end has no message of: what mends them, and that a broker goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.errors import Finding
from reput.format import names
from reput.format.consumequeue import unit
from reput.job import RebuildOptions, rebuild, undo
from reput.mending import mend
from reput.recovery.plan import Plan, plan
from reput.verify.plan import VerifyOptions
from tests.compat import damage
from tests.compat.damage import Copy
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.golden.store import GoldenStore, unpack
from tests.levels import tried
from tests.rebuilds import tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

OURS = (names.REPUT, names.LOCK, names.LEDGER)


def lose_end(store: GoldenStore, messages: int) -> None:
    """Leave the log's first messages, and zeros behind them."""
    first = Copy(store.root, int(str(store.config["mappedFileSizeCommitLog"])), 0).records()[messages]
    length = len(first.segment.read_bytes()) - first.position
    damage.write(first.segment, first.position, bytes(length))
    for segment in (store.root / names.COMMIT_LOG).iterdir():
        if segment.name > first.segment.name:
            segment.unlink()


def planned(options: RebuildOptions) -> Plan:
    return plan(take(StoreSettings.load(options.store, options.broker_conf, options.rocketmq_version)))


@pytest.mark.parametrize("release", tried("5.5.0", more=["4.9.7"]))
def test_queues_whose_messages_are_all_gone(release: str, tmp_path: Path, spark: SparkSession) -> None:
    store = unpack(f"{release}-restart", tmp_path / "store")
    lose_end(store, 0)
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    options = RebuildOptions(store.root, broker_conf=conf, rocketmq_version=release)
    before = tree(store.root, *OURS)
    assert {loss.kind for loss in planned(options).losses} == {"queue-cut"}

    mended = mend(options, apply=True)
    assert mended.made == [names.INDEX, names.CHECKPOINT], "the start takes away units without a message"
    left = check(VerifyOptions(store.root, None, conf, release))
    gone = [one for one in left.left if one.kind == "queue-cut"]
    assert (left.exit_code, left.mendable, len(gone)) == (1, [], 22)
    assert "478 messages are gone for good" in left.verdict.text
    assert left.left == gone
    assert mend(options, apply=True).kept is None, "nothing is left to mend"
    aside = shutil.ignore_patterns("replaced-*", ".reput")
    alone = shutil.copytree(store.root, tmp_path / "alone", ignore=aside)
    undo(store.root)
    kept = {path.name for path in store.root.glob("replaced-*")}
    assert tree(store.root, *OURS, *kept) == before

    # A rebuild takes them away itself.
    summary = rebuild(options, lambda: spark)
    assert (summary.exit_code, len(summary.vanished_queues)) == (1, 22)
    assert (
        summary.vanished_queues["Orders:0"]
        == "all its units (218) lead behind 0, where the log begins, and the log has no message of it"
    )
    assert not planned(options).loses
    for root in (alone, store.root):
        with JavaStore(release, root, store.config) as java:
            assert java.load()
            java.start()
            assert java.put(Message("Orders", 0, b"new")).queue_offset == 0
            java.wait_dispatched()
            assert int(java.store.getMaxOffsetInQueue("Orders", 0)) == 1
            assert int(java.store.getMaxOffsetInQueue("t", 3)) == 0
        started = check(VerifyOptions(root, None, conf, release))
        assert started.exit_code == 0, started.verdict.text


@pytest.mark.parametrize("release", tried("5.5.0", more=["4.9.7"]))
def test_a_queue_of_which_blanks_are_left_goes_on(release: str, tmp_path: Path, spark: SparkSession) -> None:
    store = unpack(f"{release}-lost-head", tmp_path / "store")
    lose_end(store, 3)
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    options = RebuildOptions(store.root, broker_conf=conf, rocketmq_version=release)
    text = next(loss.text for loss in planned(options).unrepaired if loss.queue == ("Orders", 1))
    assert text == (
        "queue Orders:1 ends with a blank at 12: a broker gives its new messages no unit as long as the log "
        "ends below 2 GiB"
    )
    alone = shutil.copytree(store.root, tmp_path / "alone")
    mended = mend(options, apply=True)
    assert mended.rebuilt is not None
    assert "Orders:1" in mended.rebuilt.carried_queues
    assert not planned(options).loses
    again = rebuild(options, lambda: spark)
    findings: list[Finding] = []
    assert (again.carried_queues, again.findings) == (mended.rebuilt.carried_queues, findings)
    for root, places in ((alone, 13), (store.root, 14)):
        with JavaStore(release, root, store.config) as java:
            assert java.load()
            java.start()
            assert java.put(Message("Orders", 1, b"new")).queue_offset == 13
            java.wait_dispatched()
            assert int(java.store.getMaxOffsetInQueue("Orders", 1)) == places
            if root == alone:
                java.kill()  # 4.9 keeps its abort file: it has dispatched a message to no queue


@pytest.mark.parametrize("release", tried("5.5.0", more=["4.9.7"]))
def test_no_new_message_gets_the_place_of_a_lost_one(release: str, tmp_path: Path) -> None:
    store = unpack(f"{release}-lost-head", tmp_path / "store")
    start, size = store.manifest["log"]["start"], int(str(store.config["mappedFileSizeConsumeQueue"]))
    file = names.queue_file(store.root, "Lost", 0, 0)
    file.parent.mkdir(parents=True)
    file.write_bytes((unit(start - 200, 100, 7) + unit(start + 7, 100, 7) * 3).ljust(size, b"\0"))
    options = RebuildOptions(
        store.root, broker_conf=store.write_broker_conf(tmp_path / "broker.conf"), rocketmq_version=release
    )
    mended = mend(options, apply=True)
    assert mended.rebuilt is not None
    assert mended.rebuilt.doubtful_queues == ["Lost:0"]
    assert not mend(options, apply=True).applied
    with JavaStore(release, store.root, store.config) as java:
        assert java.load()
        java.start()
        assert java.put(Message("Lost", 0, b"new")).queue_offset == 4
        java.wait_dispatched()
        # A consumer in between is sent on to the new message.
        behind = int(java.store.getMessage("group", "Lost", 0, 2, 32, None).getNextBeginOffset())
        found = java.store.getMessage("group", "Lost", 0, min(behind, 4), 32, None)
        assert (str(found.getStatus().toString()), int(found.getMessageCount())) == ("FOUND", 1)
        assert int(found.getNextBeginOffset()) == 5
