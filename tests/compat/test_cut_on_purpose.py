"""A log that was cut on purpose: ``DefaultMessageStore.truncateFiles``, which a controller's broker calls.

It moves positions back. Old messages stay behind the log's end, and units of them in the queues' files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.export.write import ExportOptions, export
from reput.format import names
from reput.job import RebuildOptions
from reput.mending import mend
from reput.recovery.plan import Plan, brings_back, plan
from reput.verify.plan import VerifyOptions
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried

pytestmark = pytest.mark.compat

#: Queues are flushed at a stop alone: else the checkpoint may hold a place from before the cut, or none.
CONFIG = {**SMALL_FILES, "timerWheelEnable": False, "flushIntervalConsumeQueue": 600_000}
WRITTEN, KEPT, NEW = 700, 150, 45


def cut_store(release: str, root: Path, new: int, *, clean: bool, keys: bool = False) -> int:
    """A log of two segments, cut in the first one, with new messages behind; returns where it ends."""
    with JavaStore(release, root, CONFIG) as store:
        assert store.load()
        store.start()
        places = [
            store.put(
                Message(f"T{n % 3}", n % 5, b"old %d" % n * 4, keys=f"k{n}" if keys else "")
            ).physical_offset
            for n in range(WRITTEN)
        ]
        store.wait_dispatched()
        assert store.store.truncateFiles(places[KEPT])
        for n in range(new):
            store.put(Message(f"T{n % 3}", n % 5, b"new"))  # shorter than the old ones
        store.wait_dispatched()
        end = int(store.store.getMaxPhyOffset())
        if not clean:
            store.store.flush()
            store.kill()
    # MappedFile.destroy deletes the second segment as soon as nobody holds it, which a kill may forestall.
    (root / "commitlog" / f"{65536:020d}").unlink(missing_ok=True)
    return end


def planned(root: Path, conf: Path, release: str) -> Plan:
    return plan(take(StoreSettings.load(root, conf, release)))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("release", tried("5.5.0", more=["5.3.3"]))
def test_what_was_cut_is_no_loss(release: str, clean: bool, tmp_path: Path) -> None:
    conf, root = tmp_path / "broker.conf", tmp_path / "store"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    end = cut_store(release, root, NEW, clean=clean)
    found = planned(root, conf, release)
    assert (found.prediction.log_end, found.loses) == (end, False)
    queues = found.prediction.queues.values()
    assert any(queue.recovered_end > queue.end for queue in queues), "units of the old log are cut off"
    assert not mend(RebuildOptions(root, broker_conf=conf, rocketmq_version=release), apply=True).applied
    whole = check(VerifyOptions(root, None, conf, release))
    assert whole.exit_code == 0, whole.verdict.text
    assert {one.kind for one in whole.findings} <= {"extra-unit"}, "old bytes behind the log are no torn tail"
    with JavaStore(release, root, CONFIG) as store:
        assert store.load()
        assert int(store.store.getMaxPhyOffset()) == end
        for (topic, queue_id), queue in found.prediction.queues.items():
            assert int(store.store.getMaxOffsetInQueue(topic, queue_id)) == queue.max_offset


def test_a_checkpoint_from_before_the_cut_is_made_anew(tmp_path: Path) -> None:
    """5.5 writes down the last place with a unit once a minute; after a cut and a stop it may be ahead."""
    conf, root = tmp_path / "broker.conf", tmp_path / "store"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    end = cut_store("5.5.0", root, NEW, clean=True)
    ahead = planned(root, conf, "5.5.0").prediction.queue_end
    assert ahead > end
    with (root / names.CHECKPOINT).open("r+b") as checkpoint:
        checkpoint.seek(40)
        checkpoint.write(ahead.to_bytes(8, "big"))
    whole = check(VerifyOptions(root, None, conf, "5.5.0"))
    assert [one.kind for one in whole.mendable] == ["checkpoint-ahead"]
    mended = mend(RebuildOptions(root, broker_conf=conf, rocketmq_version="5.5.0"), apply=True)
    assert (mended.exit_code, mended.made) == (0, [names.CHECKPOINT])
    assert check(VerifyOptions(root, None, conf, "5.5.0")).exit_code == 0
    with JavaStore("5.5.0", root, CONFIG) as store:
        assert store.load()
        assert int(store.store.getMaxPhyOffset()) == end


@pytest.mark.parametrize("release", tried("5.5.0", more=["5.3.3"]))
def test_after_a_rebuild_nothing_is_left_to_find(release: str, tmp_path: Path) -> None:
    conf, root = tmp_path / "broker.conf", tmp_path / "store"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    cut_store(release, root, NEW, clean=False, keys=True)
    found = planned(root, conf, release)
    assert {loss.kind for loss in (*found.losses, *found.unrepaired)} == {"index-ahead"}, "it isn't cut"
    mended = mend(RebuildOptions(root, broker_conf=conf, rocketmq_version=release), apply=True)
    assert (mended.exit_code, mended.changes) == (0, [])
    assert not planned(root, conf, release).loses
    assert check(VerifyOptions(root, None, conf, release)).exit_code == 0


def test_what_the_start_brings_back_is_said(tmp_path: Path) -> None:
    """Without a new message nothing shows the cut but queues, if they lost their files with it."""
    conf, root = tmp_path / "broker.conf", tmp_path / "store"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    end = cut_store("5.5.0", root, 0, clean=False)
    for path in (root / "consumequeue").glob("*/*/*"):  # what a start leaves of a queue that it cuts
        if int(path.name):
            path.unlink()
        else:
            units = path.read_bytes()
            kept = [units[at : at + 20] for at in range(0, len(units), 20)]
            kept = [unit for unit in kept if int.from_bytes(unit[:8], "big") < end]
            path.write_bytes(b"".join(kept).ljust(len(units), b"\0"))
    found = planned(root, conf, "5.5.0")
    (said,) = brings_back(found.prediction)
    assert f"brings back {found.prediction.walked.behind(end)} messages behind {end}, where" in said
    saved = export(ExportOptions(root, tmp_path / "saved", finding="missing-unit", broker_conf=conf))
    assert saved.messages
    assert saved.not_checked == [said], "saved, they could be sent again"
    with JavaStore("5.5.0", root, CONFIG) as store:
        assert store.load()
        assert int(store.store.getMaxPhyOffset()) == found.prediction.log_end > end
