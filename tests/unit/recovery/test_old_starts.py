"""How releases before 4.5 start, on a store that 4.9.7 wrote: log, queues and checkpoint are as theirs.

What their real stores do is in tests/compat/test_recovery.py, what a mending makes of their own stores in
tests/compat/test_old_starts.py.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from reput.broker.snapshot import Snapshot, take
from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.errors import UnsupportedError
from reput.format import names
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.recovery.plan import Plan, plan
from reput.recovery.refusals import without_strays
from reput.verify.plan import VerifyOptions
from tests.compat import damage
from tests.compat.conf import conf_text
from tests.compat.damage import Copy, Damage
from tests.compat.java_store import spelled
from tests.golden.store import GoldenStore, unpack


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    return unpack("4.9.7-restart", tmp_path_factory.mktemp("golden") / "store")


class Old:
    """A copy of the store for a release."""

    def __init__(self, written: GoldenStore, root: Path, release: str, *, crash: bool = False) -> None:
        self.root, self.release = root / "store", release
        shutil.copytree(written.root, self.root)
        self.conf = root / "broker.conf"
        self.conf.write_text(conf_text(spelled(written.config, release)), encoding="utf-8")
        sizes = (int(str(written.config[f"mappedFileSize{what}"])) for what in ("CommitLog", "ConsumeQueue"))
        self.copy = Copy(self.root, *sizes)
        if crash:
            (self.root / names.ABORT).touch()

    def snapshot(self) -> Snapshot:
        return take(StoreSettings.load(self.root, self.conf, self.release))

    def plan(self, harm: Damage = damage.nothing) -> Plan:
        harm(self.copy)
        return plan(self.snapshot())


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("release", ["4.2.0", "4.3.1", "4.4.0", "4.5.2"])
def test_a_sound_store_loses_nothing(release: str, crash: bool, written: GoldenStore, tmp_path: Path) -> None:
    found = Old(written, tmp_path, release, crash=crash).plan()
    assert found.prediction.starts
    assert (found.losses, [one for one in found.unrepaired if one.kind != "missing-entry"]) == ([], [])
    assert {queue: model.max_offset for queue, model in found.prediction.queues.items()} == {
        queue: model.max_offset
        for queue, model in Old(written, tmp_path / "now", "4.9.7").plan().prediction.queues.items()
    }


def test_lost_queues_stay_lost_up_to_4_4(written: GoldenStore, tmp_path: Path) -> None:
    old = Old(written, tmp_path / "old", "4.4.0")
    lost = [one for one in old.plan(damage.queues_gone).losses if one.kind == "queues-stay-lost"]
    assert len(lost) == 1
    assert lost[0].text == (
        f"there is no queue, and this start makes none: new messages get queueOffsets from 0 on, as the "
        f"{lost[0].count} messages that it reads have, and a rebuild after that keeps the new alone"
    )
    later = Old(written, tmp_path / "later", "4.5.2").plan(damage.queues_gone)
    assert later.prediction.units_added == sum(model.max_offset for model in later.prediction.queues.values())
    assert not later.losses


def test_a_crash_makes_lost_queues_on_4_4(written: GoldenStore, tmp_path: Path) -> None:
    found = Old(written, tmp_path, "4.4.0", crash=True).plan(damage.queues_gone)
    assert found.prediction.units_added
    assert "queues-stay-lost" not in [one.kind for one in found.losses]


def test_queues_are_not_cut_up_to_4_3_1(written: GoldenStore, tmp_path: Path) -> None:
    old = Old(written, tmp_path / "old", "4.3.1")
    found = old.plan(damage.log_shorter)
    past = [one for one in found.losses if one.kind == "past-log-end"]
    assert past
    assert not any(queue.is_changed for queue in found.prediction.queues.values())
    first = past[0]
    assert first.text.startswith(
        f"queue {first.queue[0]}:{first.queue[1]} goes {first.count}" if first.queue else "?"
    )
    assert "isn't cut: new messages get no unit until the log has passed" in first.text
    cut = Old(written, tmp_path / "cut", "4.4.0").plan(damage.log_shorter)
    assert {one.kind for one in cut.losses} >= {"queue-cut"}
    assert "past-log-end" not in [one.kind for one in cut.losses]
    crashed = Old(written, tmp_path / "crashed", "4.3.1", crash=True).plan(damage.log_shorter)
    assert "past-log-end" not in [one.kind for one in crashed.losses]


def test_a_queue_knows_where_its_last_message_begins(written: GoldenStore, tmp_path: Path) -> None:
    old = Old(written, tmp_path / "old", "4.4.0").plan().prediction
    new = Old(written, tmp_path / "new", "4.5.2").plan().prediction
    last = {queue: model.last_unit() for queue, model in new.queues.items()}
    assert {queue: model.max_physical for queue, model in old.queues.items()} == {
        queue: unit[0] for queue, unit in last.items() if unit is not None
    }
    assert new.queue_end == new.log_end > old.queue_end


@pytest.mark.parametrize("release", ["4.2.0", "4.4.0"])
def test_files_behind_one_of_another_length_are_written_over(
    release: str, written: GoldenStore, tmp_path: Path
) -> None:
    def harm(copy: Copy) -> None:
        path = copy.segments[1]
        path.write_bytes(path.read_bytes()[:-1])

    old = Old(written, tmp_path / "old", release)
    found = old.plan(harm)
    assert found.prediction.starts
    assert len(found.prediction.segments) == 1
    lost = next(one for one in found.losses if one.kind == "unloaded-files")
    assert (lost.offset, lost.count > 100) == (65536, True)
    assert "2 segments from 65536 on will not be loaded: new messages are written over" in lost.text
    refused = Old(written, tmp_path / "new", "4.5.2").plan(harm)
    assert not refused.prediction.starts


def test_a_stray_file_in_front_hides_all_segments(written: GoldenStore, tmp_path: Path) -> None:
    old = Old(written, tmp_path / "old", "4.4.0")
    found = old.plan(damage.stray_in_front)
    assert (found.prediction.starts, found.prediction.segments) == (True, [])
    assert [one.kind for one in found.losses if one.kind == "unloaded-files"] == ["unloaded-files"]
    without = plan(without_strays(old.snapshot()))
    assert (len(without.prediction.segments), without.losses) == (3, [])


def test_a_queue_ends_before_a_file_of_another_length(written: GoldenStore, tmp_path: Path) -> None:
    old = Old(written, tmp_path / "old", "4.4.0")
    sound = Old(written, tmp_path / "sound", "4.4.0").plan().prediction.queues["Orders", 0]
    found = old.plan(damage.short_queue_file)
    model = found.prediction.queues["Orders", 0]
    assert (model.max_offset, sound.max_offset > 0) == (0, True)
    lost = next(one for one in found.losses if one.kind == "unloaded-files")
    assert lost.queue == ("Orders", 0)
    assert (lost.offset, lost.end >= sound.max_offset) == (0, True)


def test_a_unit_for_what_is_no_file_is_not_foretold(written: GoldenStore, tmp_path: Path) -> None:
    old = Old(written, tmp_path / "old", "4.4.0", crash=True)
    with pytest.raises(UnsupportedError, match="isn't known what a start makes of this file"):
        old.plan(damage.device_in_queue)
    assert Old(written, tmp_path / "clean", "4.4.0").plan(damage.device_in_queue).prediction.starts


def test_without_a_log_queues_stay_up_to_4_4(written: GoldenStore, tmp_path: Path) -> None:
    old = Old(written, tmp_path / "old", "4.4.0")
    assert all(queue.files for queue in old.plan(damage.no_log).prediction.queues.values())
    said = [one.said for one in old.snapshot().problems if one.kind == "no-log"]
    assert "gives its new messages no unit until the log reaches as far as the queues do" in said[0]
    for release, crash in (("4.4.0", True), ("4.5.2", False)):
        gone = Old(written, tmp_path / f"{release}{crash}", release, crash=crash).plan(damage.no_log)
        assert not any(queue.files for queue in gone.prediction.queues.values())


@pytest.mark.parametrize(("harm", "moved"), [(damage.longer_size, 3), (damage.shorter_size, -3)])
def test_a_bad_length_is_counted_after_a_crash_up_to_4_3_1(
    harm: Damage, moved: int, written: GoldenStore, tmp_path: Path
) -> None:
    sound = Old(written, tmp_path / "sound", "4.3.1", crash=True).plan().prediction
    old = Old(written, tmp_path / "old", "4.3.1", crash=True)
    found = old.plan(harm)
    assert found.prediction.log_end == sound.log_end + moved
    assert found.prediction.queues["", 0].max_offset == 1
    kinds = {one.kind: one.text for one in found.losses}
    where = f"{abs(moved)} bytes {'behind' if moved > 0 else 'before'} where reading ends"
    assert kinds["log-end-moved"].endswith(where)
    later = Old(written, tmp_path / "later", "4.4.0", crash=True).plan(harm)
    assert later.prediction.log_end < sound.log_end
    assert ("", 0) not in later.prediction.queues


@pytest.mark.parametrize("size", [60, 88, 91, 100])
def test_a_last_record_that_says_less_than_it_needs_is_closed(
    size: int, written: GoldenStore, tmp_path: Path
) -> None:
    """A start of 4.3.1 goes by its size field, which may leave no room for a stand-in."""
    old = Old(written, tmp_path, "4.3.1", crash=True)
    shutil.rmtree(old.root / names.INDEX)  # which shows a later release
    last = old.copy.records()[-1]
    with last.segment.open("r+b") as file:
        file.seek(last.position)
        file.write(struct.pack(">i", size))
    options = RebuildOptions(old.root, None, old.conf, "4.3.1")
    assert mend(options, apply=True).exit_code in (0, 1)
    assert check(VerifyOptions(old.root, None, old.conf, "4.3.1")).mendable == []


def test_4_2_counts_segments(written: GoldenStore, tmp_path: Path) -> None:
    def harm(copy: Copy) -> None:
        copy.segments[1].unlink()

    for release, text in (("4.2.0", "reads other segments"), ("4.3.1", "what lies between is missing")):
        old = Old(written, tmp_path / release, release)
        gap = [one.text for one in old.plan(harm).unrepaired if one.kind == "missing-segments"]
        assert text in gap[0]
