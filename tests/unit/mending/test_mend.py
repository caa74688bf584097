"""``reput mend --apply``: what is done to the log, and what a death at any step leaves."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from reput import mending
from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.errors import ReputError
from reput.format import commitlog, names
from reput.format.consumequeue import PRE_BLANK_SIZE
from reput.format.dtypes import UNIT_DTYPE
from reput.job import rebuilding, undo
from reput.job.in_place import staging_of
from reput.job.options import RebuildOptions
from reput.job.plan import preview
from reput.job.rebuilding import rebuild, stage
from reput.mending import Mended, mend
from reput.recovery.mend_log import LogCopies, WholeMessagesError, mend_log, stand_ins
from reput.recovery.plan import plan
from reput.replay.state import FILLED
from reput.store import files
from reput.store.listing import ignored_features, queues_in
from reput.store.ownership import Owner
from reput.store.swap import KEPT, is_pending
from reput.store.system import System
from reput.verify.plan import VerifyOptions
from tests.compat import damage
from tests.compat.damage import Copy, Record
from tests.crash import Dying, Failing, LosingPower, died
from tests.golden.store import GoldenStore, unpack
from tests.levels import sampled
from tests.rebuilds import broker_lock, tree
from tests.stores import add_left_alone

OURS = (names.REPUT, names.LOCK)


@dataclass
class Case:
    """A golden store, and how it is mended."""

    store: GoldenStore
    options: RebuildOptions
    last: Record

    @property
    def root(self) -> Path:
        return self.store.root

    @property
    def copy(self) -> Copy:
        return Copy(self.root, int(str(self.store.config["mappedFileSizeCommitLog"])), 0)

    def mend(self) -> Mended:
        return mend(self.options, apply=True)

    def exit_code(self) -> int:
        options = self.options
        settings = StoreSettings.load(options.store, options.broker_conf, options.rocketmq_version)
        return int(plan(take(settings)).loses)

    def log(self) -> dict[str, str]:
        return tree(self.root / names.COMMIT_LOG)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A store that is sound but for the closing record of a segment."""
    store = unpack("5.3.3-restart", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    copy = Copy(store.root, int(str(store.config["mappedFileSizeCommitLog"])), 0)
    damage.no_blank(copy)
    options = RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version)
    return Case(store, options, copy.records()[-1])


def without_kept(root: Path) -> dict[str, str]:
    kept = [path.name for path in root.glob(f"{KEPT}*")]
    return tree(root, *OURS, *kept)


# --- What is done -----------------------------------------------------------------------------------------


def closed(case: Case) -> Path:
    """The segment whose closing record is gone: the last but one that was written."""
    return sorted({record.segment for record in case.copy.records()})[-2]


def test_a_lost_closing_record_comes_back_and_goes(case: Case) -> None:
    beside = add_left_alone(case.root)
    assert ignored_features(case.root) == beside
    before, segment = tree(case.root, *OURS), closed(case)
    mended = case.mend()
    assert {change.kind for change in mended.changes} <= {"stand-in", "closing-record"}
    assert (mended.exit_code, mended.rebuilt, case.exit_code()) == (0, None, 0)
    after = without_kept(case.root)
    assert {name for name in before if before[name] != after[name]} == {f"{names.COMMIT_LOG}/{segment.name}"}
    assert segment.stat().st_size == case.copy.segment_size
    undo(case.root)
    assert without_kept(case.root) == before


def test_half_a_message_behind_the_log_is_left_to_the_start(case: Case) -> None:
    case.mend()
    last = case.last
    data = last.segment.read_bytes()[last.position : last.position + last.size // 2]
    damage.write(last.segment, last.position + last.size, data)
    (case.root / names.ABORT).touch()
    before = tree(case.root)
    mended = case.mend()
    assert (mended.exit_code, mended.applied, mended.steps) == (0, False, [])
    assert ("torn-tail", "heals") in [(one.kind, one.effect) for one in mended.now.findings]
    assert tree(case.root) == before


def test_a_copy_keeps_its_segments_time(case: Case) -> None:
    segment = closed(case)
    os.utime(segment, ns=(1_000_000_000, 2_000_000_001))
    case.mend()
    assert segment.stat().st_mtime_ns == 2_000_000_001


@pytest.mark.parametrize("lost", ["nothing", "unit", "queues", "index"])
@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_light_queues_stay_where_a_broker_has_them(version: str, lost: str, tmp_path: Path) -> None:
    """Messages that named them twice, and moved all later units, have expired."""
    store = unpack(f"{version}-lmq", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    first, start = sorted((store.root / names.COMMIT_LOG).iterdir())[:2]
    first.unlink()
    queues = {path: path.read_bytes() for path in (store.root / "consumequeue").rglob("0*") if path.is_file()}
    if lost == "unit":
        damage.write(max(path for path in queues if "%LMQ%device-3" in path.parts), 20 * 2, bytes(20))
    elif lost == "queues":
        for path in queues:
            if "Parent" in path.parts or "%LMQ%device-2" in path.parts:
                path.write_bytes(path.read_bytes()[:-20])
    elif lost == "index":
        shutil.rmtree(store.root / names.INDEX)
    mended = mend(RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version), apply=True)
    assert (mended.exit_code, mended.applied) == (0, lost != "nothing")
    for path, before in queues.items():
        was, now = (np.frombuffer(data, UNIT_DTYPE) for data in (before, path.read_bytes()))
        here = (was["position"] >= int(start.name)) & (was["size"] != PRE_BLANK_SIZE)
        assert was[here].tobytes() == now[here].tobytes(), path


def test_on_a_sound_store_nothing_is_done(case: Case) -> None:
    case.mend()
    before = tree(case.root)
    mended = case.mend()
    assert (mended.exit_code, mended.kept, mended.changes) == (0, None, [])
    assert tree(case.root) == before


def test_what_a_truncation_left_behind_isnt_brought_back(case: Case, tmp_path: Path) -> None:
    """Whole messages behind the log's end that are older than the last one: their log was cut once."""
    last = case.last
    old = commitlog.decode(last.segment.read_bytes(), last.position)
    old.physical_offset = last.offset + 3 * last.size
    case.mend()
    for older, kinds in ((1, []), (0, ["stand-in"])):
        old.store_timestamp = last.timestamp - older
        damage.write(last.segment, last.position + 3 * last.size, commitlog.encode(old))
        settings = StoreSettings.load(case.root, case.options.broker_conf, case.options.rocketmq_version)
        copies = LogCopies(settings, tmp_path / f"{older}", case.copy.segment_size, Owner.default())
        assert [change.kind for change in mend_log(take(settings), copies).changes] == kinds


@pytest.mark.parametrize(("newer", "found"), [(-1, 0), (0, 1)])
def test_what_a_truncation_left_behind_is_no_loss(case: Case, newer: int, found: int) -> None:
    """A log that ends within the rest of an old record; or messages that are as new as the log's last one."""
    case.mend()
    last = case.last
    old = commitlog.decode(last.segment.read_bytes(), last.position)
    old.store_timestamp = last.timestamp + newer
    end = last.position + last.size
    rest = last.segment.read_bytes()[last.position + 50 : end]
    damage.write(last.segment, end, rest)
    for number in range(3):
        at = end + len(rest) + number * last.size
        old.physical_offset = last.offset - last.position + at
        damage.write(last.segment, at, commitlog.encode(old))
    settings = StoreSettings.load(case.root, case.options.broker_conf, case.options.rocketmq_version)
    planned = plan(take(settings))
    assert [(loss.kind, loss.count) for loss in planned.losses] == [("log-cut", 3)] * found
    assert planned.prediction.log_end == last.offset + last.size
    if not found:
        before = tree(case.root)
        assert not case.mend().applied
        assert tree(case.root) == before


def test_a_file_that_is_no_segment_is_moved_away(case: Case) -> None:
    case.mend()
    before = tree(case.root, *OURS)
    damage.stray_in_log(case.copy)
    mended = case.mend()
    assert [change.kind for change in mended.changes] == ["moved-away"]
    assert mended.kept is not None
    assert (Path(mended.kept) / names.COMMIT_LOG / "notes.txt").read_text() == "hello"
    now = without_kept(case.root)
    assert now == {name: digest for name, digest in before.items() if name in now}
    assert case.exit_code() == 0


# --- What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [0, 1, 3])
def test_half_a_restored_log_is_not_taken_for_a_log(case: Case, copied: int) -> None:
    """A start on what is made of it would give new messages the places of those that aren't here yet."""
    for name in (*names.QUEUES, names.INDEX):
        shutil.rmtree(case.root / name, ignore_errors=True)
    (case.root / names.CHECKPOINT).unlink()
    for segment in sorted((case.root / names.COMMIT_LOG).iterdir())[copied:]:
        segment.unlink()
    (case.root / names.COMMIT_LOG / names.RESTORING).write_bytes(b"\0")
    (case.root / names.COMMIT_LOG / f"{names.offset_name(1 << 30)}.partial").write_bytes(bytes(100))
    before = tree(case.root, *OURS)
    mended = case.mend()
    assert not mended.applied
    assert tree(case.root, *OURS) == before
    assert [step.kind for step in mended.steps] == ["by-hand"]
    assert [one.kind for one in mended.before.left] == ["unfinished-restore"]
    assert mended.exit_code == 4


@pytest.mark.parametrize(
    "harm",
    [
        damage.second_segment,
        damage.second_segment_of_zeros,
        damage.second_segment_in_front,
        damage.short_second_segment,
    ],
)
def test_a_second_file_for_a_place_is_moved_away(case: Case, harm: Callable[[Copy], None]) -> None:
    case.mend()
    sound = case.log()
    harm(case.copy)
    (odd,) = {path.name for path in case.copy.segments} - {Path(name).name for name in sound}
    settings = StoreSettings.load(case.root, case.options.broker_conf, case.options.rocketmq_version)
    told = plan(take(settings))
    kinds = {problem.kind for problem in told.snapshot.problems}
    assert (told.loses, "second-file" in kinds, "missing-segments" in kinds) == (True, True, False)
    mended = case.mend()
    assert (mended.exit_code, mended.rebuilt) == (0, None)
    moved = f"{names.COMMIT_LOG}/{odd}"
    assert [(change.kind, change.path) for change in mended.changes] == [("moved-away", moved)]
    assert (case.log(), case.exit_code()) == (sound, 0)
    assert (Path(str(mended.kept)) / moved).is_file()


@pytest.mark.parametrize("is_renamed", [True, False])
def test_names_that_nothing_proves_change_nothing(case: Case, is_renamed: bool) -> None:
    case.mend()
    if is_renamed:
        last = case.copy.segments[-1]
        last.rename(last.with_name(f"0{last.name}"))
    else:
        second = case.copy.segments[1]
        second.with_name(str(int(second.name))).write_bytes(second.read_bytes()[::-1])
        damage.write(second, 0, bytes(8))
    before = tree(case.root, *OURS)
    mended = case.mend()
    assert (mended.exit_code, all(step.by_hand for step in mended.steps)) == (5, True)
    assert ("odd-name" if is_renamed else "rival-file") in {one.kind for one in mended.now.findings}
    assert tree(case.root, *OURS) == before


def test_a_store_in_use_is_refused(case: Case) -> None:
    (case.root / names.LOCK).touch()
    before = tree(case.root)
    with broker_lock(case.root) as pid, pytest.raises(ReputError, match=f"process {pid}"):
        case.mend()
    assert tree(case.root) == before


@pytest.mark.parametrize("setting", ["mappedFileSizeConsumeQueue", "maxIndexNum"])
def test_settings_that_no_file_fits_change_nothing(setting: str, case: Case) -> None:
    conf = case.options.broker_conf
    assert conf is not None
    lines = [line for line in conf.read_text().splitlines() if not line.startswith(setting)]
    conf.write_text("\n".join(lines))
    before = tree(case.root)
    mended = case.mend()
    assert (mended.applied, all(step.by_hand for step in mended.steps)) == (False, True)
    assert any(setting in one.expected for one in mended.now.findings)
    assert tree(case.root) == before


def test_a_body_without_its_crc_gives_way_unless_the_broker_lets_it_pass(case: Case) -> None:
    conf = case.options.broker_conf
    assert conf is not None
    case.mend()
    at = case.last.position + 88  # its body
    later = commitlog.decode(case.last.segment.read_bytes(), case.last.position)
    later.physical_offset = case.last.offset + case.last.size
    damage.write(case.last.segment, case.last.position + case.last.size, commitlog.encode(later))
    damage.write(case.last.segment, at, bytes([case.last.segment.read_bytes()[at] ^ 1]))
    settings = StoreSettings.load(case.root, conf, case.options.rocketmq_version)
    copies = LogCopies(settings, case.root.parent / "copies", case.copy.segment_size, Owner.default())
    with pytest.raises(WholeMessagesError) as found:
        mend_log(take(settings), copies)
    assert found.value.offsets == (case.last.offset,), "queues and index are made without it first"
    again = LogCopies(settings, case.root.parent / "again", case.copy.segment_size, Owner.default())
    changes = mend_log(take(settings), again, without=found.value.offsets).changes
    assert [(change.kind, change.offset, change.end) for change in changes] == [
        ("stand-in", case.last.offset, later.physical_offset)
    ]
    with conf.open("a") as file:
        file.write("checkCRCOnRecover=false\n")
    settings = StoreSettings.load(case.root, conf, case.options.rocketmq_version)
    assert mend_log(take(settings), copies).changes == []


@pytest.mark.parametrize(("name", "exit_code"), [("5.5.0-mixed", 0), ("5.5.0-rocksdb-mixed", 1)])
def test_a_store_that_lost_a_segment_is_mended_and_says_what_is_lost(
    name: str, exit_code: int, tmp_path: Path
) -> None:
    """In RocksDB, queues that lost their last messages end before."""
    store = unpack(name, tmp_path / "store")
    shutil.copytree(store.root, tmp_path / "replica")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    (store.root / names.COMMIT_LOG / names.offset_name(262144)).unlink()
    options = RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version)
    mended = mend(options, apply=True)
    assert (mended.exit_code, mended.lost) == (exit_code, 37), "the walk comes by places that were filled"
    ends = [one.outcome for one in mended.now.left if one.kind == "extra-unit"]
    assert all("the queue ends at" in one for one in ends)
    assert len(ends) == 4 * exit_code
    assert mend(options).steps == []
    mended = mend(options, tmp_path / "replica", apply=True)
    assert (mended.exit_code, mended.lost) == (0, 0), "nothing of what was taken"


@pytest.fixture
def whole(tmp_path: Path) -> Case:
    """A sound store."""
    store = unpack("5.3.3-mixed", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    options = RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version)
    return Case(store, options, Copy(store.root, 65536, 0).records()[-1])


def interrupted(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let all be made in staging, and end before the swap."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(mending, "stage", lambda *words: end(stage(*words)))
        patched.setattr(rebuilding, "_swap", end)
        with pytest.raises(KeyboardInterrupt):
            work()
    assert (staging_of(root) / names.REPUT / names.JOURNAL).exists()


def spoil_index(case: Case) -> None:
    path = min((case.root / names.INDEX).iterdir())
    path.write_bytes(path.read_bytes()[:60] + b"\1" * 400 + path.read_bytes()[460:])


@pytest.mark.parametrize("by", ["mend", "rebuild"])
@pytest.mark.parametrize("harm", ["segment", "bytes"])
def test_what_was_repaired_by_hand_isnt_taken_for_damaged(
    whole: Case, harm: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was interrupted has found damage; the segment comes back; the next run looks again."""
    path = whole.copy.segments[1]
    before, data = whole.log(), path.read_bytes()
    spoil_index(whole)
    if harm == "segment":
        path.unlink()
    else:
        path.write_bytes(data[:20000] + bytes(3000) + data[23000:])
    interrupted(whole.mend, monkeypatch, whole.root)
    path.write_bytes(data)
    if by == "mend":
        mended = whole.mend()
        assert (mended.exit_code, mended.lost, mended.changes) == (0, 0, [])
    else:
        rebuilt = rebuild(whole.options, None)
        assert [one for one in rebuilt.findings if one.span == "physical"] == []
    assert whole.log() == before
    assert mend(whole.options).now.verdict.exit_code == 0


@pytest.mark.parametrize(("first", "second"), [("rebuild", "mend"), ("mend", "rebuild"), ("mend", "more")])
def test_a_run_that_another_one_began_otherwise_is_begun_anew(
    whole: Case, first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = tree(whole.root / names.CONSUME_QUEUE)
    shutil.rmtree(whole.root / names.CONSUME_QUEUE / "Orders" / "0")
    work = whole.mend if first == "mend" else lambda: rebuild(whole.options, None)
    interrupted(work, monkeypatch, whole.root)
    if second == "more":
        shutil.rmtree(whole.root / names.CONSUME_QUEUE / "Payments" / "1")
    assert preview(whole.options).continues is (first == "rebuild"), "rebuild --in-place --dry-run"
    if second == "rebuild":
        rebuild(whole.options, None)
    else:
        assert whole.mend().exit_code == 0
    assert tree(whole.root / names.CONSUME_QUEUE) == sound
    assert not staging_of(whole.root).exists()


def test_what_a_killed_mend_from_a_replica_left_goes(case: Case) -> None:
    for left in (case.root / names.VIEW, case.root / names.REPUT / names.MENDING):
        left.mkdir(parents=True)
        (left / "file").touch()
    assert case.mend().exit_code == 0
    assert not (case.root / names.VIEW).exists()
    assert not (case.root / names.REPUT / names.MENDING).exists()


def test_a_message_that_gives_way_is_lost(case: Case) -> None:
    case.mend()
    at = case.last.position + 88  # its body
    later = commitlog.decode(case.last.segment.read_bytes(), case.last.position)
    later.physical_offset = case.last.offset + case.last.size
    damage.write(case.last.segment, case.last.position + case.last.size, commitlog.encode(later))
    damage.write(case.last.segment, at, bytes([case.last.segment.read_bytes()[at] ^ 1]))
    assert case.mend().lost == 1


def test_a_log_of_one_short_segment_is_mended(tmp_path: Path) -> None:
    store = unpack("5.5.0-lost-head", tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    first, *others = sorted((store.root / names.COMMIT_LOG).iterdir())
    for path in others:
        path.unlink()
    os.truncate(first, 30000)
    mended = mend(RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version), apply=True)
    assert (mended.applied, mended.exit_code) == (True, 1)
    assert [one.kind for one in mended.now.left] == ["expired-queues"], "two queues have lost all messages"
    assert mended.lost > 100, "units past the log's end tell of them"


# --- Deaths -----------------------------------------------------------------------------------------------


def again(case: Case, tmp_path: Path) -> Callable[[], None]:
    """Sets the store back to what it is now."""
    saved = tmp_path / "saved"
    shutil.copytree(case.root, saved)

    def reset() -> None:
        shutil.rmtree(case.root)
        shutil.copytree(saved, case.root)

    return reset


@pytest.mark.parametrize("system", [Dying, Failing])
@pytest.mark.slow
def test_a_death_at_any_step_is_mended_by_the_same_command_or_undone(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: type[Dying]
) -> None:
    before, reset = without_kept(case.root), again(case, tmp_path)
    counting = Dying()
    monkeypatch.setattr(files, "system", counting)
    case.mend()
    expected = without_kept(case.root)
    seen = set()
    for last in sampled(range(1, counting.calls + 1, 1 if system is Dying else 3)):
        reset()
        monkeypatch.setattr(files, "system", system(last))
        try:
            died(case.mend)
        except ReputError:
            assert system is Failing
        monkeypatch.setattr(files, "system", System())
        now = case.log()
        assert now in (
            {
                name.partition("/")[2]: digest
                for name, digest in state.items()
                if name.startswith("commitlog/")
            }
            for state in (before, expected)
        )
        if last % 2 and list(case.root.glob(f"{KEPT}*")):
            undo(case.root)
            assert without_kept(case.root) == before, last
            seen.add("undone")
        else:
            case.mend()
            assert without_kept(case.root) == expected, last
            seen.add("mended")
    assert seen == {"undone", "mended"}


@pytest.mark.parametrize("lost", [damage.queues_gone, damage.topic_gone])
@pytest.mark.slow
def test_queues_and_log_take_their_places_together(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Callable[[damage.Copy], None]
) -> None:
    """A rebuild lies in staging, and a segment gets a stand-in: a death leaves the old or the new of all.

    If one queue is gone, the others in staging don't take their places, and mustn't stay there.
    """
    record = case.copy.records()[-4]
    damage.write(record.segment, record.position + commitlog.MAGIC, b"oops")
    lost(case.copy)
    damage.stray_in_log(case.copy)
    before = without_kept(case.root)
    reset = again(case, tmp_path)
    counting = Dying()
    monkeypatch.setattr(files, "system", counting)
    mended = case.mend()
    expected = without_kept(case.root)
    assert mended.exit_code == 0
    assert [change.kind for change in mended.changes][:2] == ["moved-away", "stand-in"]
    states = set()
    for last in sampled(range(1, counting.calls + 1, max(counting.calls // 40, 1))):
        reset()
        monkeypatch.setattr(files, "system", Dying(last))
        assert died(case.mend)
        monkeypatch.setattr(files, "system", System())
        pending = is_pending(case.root)
        if pending:
            states.add("pending")
        else:
            assert without_kept(case.root) in (before, expected)
        if pending and last % 2:
            undo(case.root)
            assert without_kept(case.root) == before
        else:
            case.mend()
            assert without_kept(case.root) == expected
        assert not staging_of(case.root).exists()
    assert "pending" in states


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
def test_a_power_loss_leaves_the_old_log_or_the_new_one(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    before, reset, random = without_kept(case.root), again(case, tmp_path), Random(seed)
    counting = Dying()
    monkeypatch.setattr(files, "system", counting)
    case.mend()
    expected = without_kept(case.root)
    reset()
    losing = LosingPower(case.root, random.randint(1, counting.calls))
    monkeypatch.setattr(files, "system", losing)
    died(case.mend)
    monkeypatch.setattr(files, "system", System())
    losing.lose(random)
    # Inodes and times aren't what they were, so that nothing can go on here. But all that it needs is there.
    name = case.last.segment.relative_to(case.root).as_posix()
    old, new = before[name], expected[name]
    places = (case.root, case.root / names.REPUT / "mending", *case.root.glob(f"{KEPT}*"))
    found = {
        hashlib.sha256((place / name).read_bytes()).hexdigest() for place in places if (place / name).exists()
    }
    assert found == {old, new} if is_pending(case.root) or list(case.root.glob(f"{KEPT}*")) else old in found


# --- Stand-ins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [92, 93, 96, 97, 500, 1 << 20, (1 << 20) + 1, (1 << 20) + 92, (5 << 20) + 7]
)
def test_stand_ins_fill_a_range(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length + 300, np.uint8)
    written = data.copy()
    for position, part in stand_ins(data, 4096, 100, 100 + length, 77):
        written[position : position + len(part)] = np.frombuffer(part, np.uint8)
    at = 100
    while at < 100 + length:
        decoded = commitlog.decode(written.data, at)
        record = commitlog.encode(decoded)
        assert record == written[at : at + len(record)].tobytes()
        assert (decoded.physical_offset, decoded.store_timestamp) == (4096 + at + 1, 77)
        assert decoded.sys_flag & commitlog.TRANSACTION_MASK == commitlog.TRANSACTION_ROLLBACK
        assert decoded.topic
        body = at + 88
        assert decoded.body == data[body : body + len(decoded.body)].tobytes()
        at += len(record)
    assert at == 100 + length
    with pytest.raises(ValueError, match="no room"):
        list(stand_ins(data, 0, 0, 91, 1))


@pytest.mark.parametrize("name", ["1", "20261121", "131072"])
def test_a_foreign_file_with_a_number_for_its_name_is_moved_aside(case: Case, name: str) -> None:
    """As a shell makes one by a wrong redirection. A broker's own have 20 digits."""
    foreign = case.root / names.COMMIT_LOG / name
    foreign.write_text("hi\n")
    wanted = VerifyOptions(case.root, None, case.options.broker_conf, case.options.rocketmq_version)
    assert check(wanted).exit_code == 4
    mended = case.mend()
    assert mended.kept is not None
    assert (Path(mended.kept) / names.COMMIT_LOG / name).read_text() == "hi\n"
    assert not foreign.exists()
    assert check(wanted).verdict.text == mended.verdict.text
    assert not case.mend().applied


def test_what_no_start_is_foretold_of_is_left_to_the_operator(case: Case) -> None:
    """A file as long as a segment, with a name that none can have: nothing is made anew again and again."""
    size = int(str(case.store.config["mappedFileSizeCommitLog"]))
    foreign = case.root / names.COMMIT_LOG / names.offset_name(99_999_999)
    foreign.write_bytes(bytes(size))
    mended = case.mend()
    assert not mended.applied
    assert [step.kind for step in mended.steps] == ["by-hand"]
    assert not list(case.root.glob(f"{KEPT}*"))


# --- Queues whose last messages are lost --------------------------------------------------------------------


def units(store: GoldenStore, topic: str, queue_id: int) -> NDArray[np.void]:
    """A queue's units, without the empty places behind them."""
    directory = names.queue_directory(store.root, topic, queue_id)
    data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    found = np.frombuffer(data, UNIT_DTYPE)
    return found[: int(np.flatnonzero(found["size"])[-1]) + 1]


def unreadable(store: GoldenStore, positions: list[int]) -> None:
    """Damage the magic of the messages at some physical offsets."""
    size = int(str(store.config["mappedFileSizeCommitLog"]))
    for at in positions:
        segment = store.root / names.COMMIT_LOG / names.offset_name(at - at % size)
        damage.write(segment, at % size + commitlog.MAGIC, b"oops")


def lose_ends(store: GoldenStore, count: int) -> dict[tuple[str, int], NDArray[np.void]]:
    """Make the last messages of some queues unreadable; these queues, with their units."""
    last = max((store.root / names.COMMIT_LOG).iterdir()).name
    found = {}
    for topic, queue_id, _ in queues_in(store.root / names.CONSUME_QUEUE):
        there = units(store, topic, queue_id)
        lost = there["position"][-count:].astype(int).tolist()
        apart = all(at not in there["position"][:-count] for at in lost)
        if len(there) <= count or not apart or lost[-1] >= int(last) or topic.startswith("%LMQ%"):
            continue
        found[topic, queue_id] = there
        unreadable(store, lost)
        if len(found) == 3:
            break
    return found


@pytest.mark.parametrize("name", ["4.9.7-mixed", "5.3.3-mixed", "5.5.0-mixed", "4.9.7-queue-ext"])
def test_a_queue_that_lost_its_last_messages_keeps_its_end(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    conf = store.write_broker_conf(tmp_path / "broker.conf")
    options = RebuildOptions(store.root, broker_conf=conf, rocketmq_version=store.version)
    lost = lose_ends(store, 2)
    assert lost
    mended = mend(options, apply=True)
    assert (mended.exit_code, mended.lost) == (0, 2 * len(lost))
    for queue, before in lost.items():
        now = units(store, *queue)
        assert len(now) == len(before), "a new message gets no queueOffset that a group has committed"
        assert (now[:-2] == before[:-2]).all()
        assert (now[-2:] == before[-3]).all()
    after = mend(options)
    assert (after.exit_code, after.steps, after.before.filled) == (0, [], 2 * len(lost))
    made_again = rebuild(options, None)
    assert made_again.salvaged[FILLED] >= 2 * len(lost)
    assert {queue: len(units(store, *queue)) for queue in lost} == {
        queue: len(before) for queue, before in lost.items()
    }
