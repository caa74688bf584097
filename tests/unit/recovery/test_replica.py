"""What a damaged log lacks and a replica has: the comparison, and what it refuses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest

from reput import mending
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.format import commitlog, names
from reput.job import undo
from reput.job.in_place import staging_of
from reput.job.options import RebuildOptions
from reput.job.plan import Plan
from reput.mending import Mended
from reput.recovery.replica import Comparison, compare_logs
from reput.scan.same import compare
from reput.store import files
from reput.store.swap import KEPT
from reput.store.system import System
from tests.compat import damage
from tests.compat.damage import Copy, Record
from tests.crash import Dying, Failing, died
from tests.golden.store import unpack
from tests.levels import sampled
from tests.rebuilds import broker_lock, tree


@dataclass
class Pair:
    """A store, and a replica of it."""

    root: Path
    replica: Path
    conf: Path
    version: str
    size: int

    @property
    def ours(self) -> Copy:
        return Copy(self.root, self.size, 0)

    @property
    def theirs(self) -> Copy:
        return Copy(self.replica, self.size, 0)

    def compare(self) -> Comparison:
        before = tree(self.root), tree(self.replica)
        try:
            return compare_logs(StoreSettings.load(self.root, self.conf, self.version), self.replica)
        finally:
            assert (tree(self.root), tree(self.replica)) == before


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    root = tmp_path_factory.mktemp("golden")
    store = unpack("5.3.3-restart", root / "store")
    conf = store.write_broker_conf(root / "broker.conf")
    return Pair(
        store.root, store.root, conf, store.version, int(str(store.config["mappedFileSizeCommitLog"]))
    )


@pytest.fixture
def pair(golden: Pair, tmp_path: Path) -> Pair:
    for name in ("store", "replica"):
        shutil.copytree(golden.root, tmp_path / name)
        (tmp_path / name / names.ABORT).unlink(missing_ok=True)
    return Pair(tmp_path / "store", tmp_path / "replica", golden.conf, golden.version, golden.size)


def kinds(found: Comparison) -> list[tuple[str, int, int]]:
    return [(one.kind, one.offset, one.end) for one in found.taken]


def middle(copy: Copy) -> Record:
    records = copy.records()
    return records[len(records) // 2]


def flip(path: Path, position: int) -> None:
    damage.write(path, position, bytes([path.read_bytes()[position] ^ 0x55]))


def bad_body(record: Record) -> None:
    sys_flag = commitlog.decode(record.segment.read_bytes(), record.position).sys_flag
    flip(record.segment, record.position + commitlog.body_at(sys_flag))


def gives(found: Comparison) -> list[object]:
    """What a replica gives, and what it doesn't help with."""
    return [*found.taken, *found.left]


def test_the_same_log_has_nothing_to_give(pair: Pair) -> None:
    found = pair.compare()
    assert (found.taken, found.left) == ([], [])
    assert found.same > 0


@pytest.mark.parametrize("at", [0, commitlog.MAGIC, commitlog.PHYSICAL_OFFSET + 7])
def test_a_broken_frame_is_taken(at: int, pair: Pair) -> None:
    record = middle(pair.ours)
    flip(record.segment, record.position + at)
    found = pair.compare()
    assert [one.kind for one in found.taken] == ["damaged-range"]
    assert (found.taken[0].offset, found.taken[0].end) == (record.offset, record.offset + record.size)
    assert (found.taken[0].count, found.left) == (1, [])


def test_a_body_without_its_crc_is_taken(pair: Pair) -> None:
    record = middle(pair.ours)
    bad_body(record)
    assert kinds(pair.compare()) == [("damaged-range", record.offset, record.offset + record.size)]


def test_zeros_over_several_records_are_taken(pair: Pair) -> None:
    records = [one for one in pair.ours.records() if one.segment == middle(pair.ours).segment]
    first, last = records[1], records[4]
    damage.write(first.segment, first.position + 7, bytes(last.position - first.position))
    assert kinds(pair.compare()) == [("damaged-range", first.offset, last.offset + last.size)]


def test_a_bare_directory_of_segments_will_do(pair: Pair, tmp_path: Path) -> None:
    record = middle(pair.ours)
    bad_body(record)
    bare = tmp_path / "backup"
    shutil.copytree(pair.replica / names.COMMIT_LOG, bare)
    pair.replica = bare
    assert kinds(pair.compare()) == [("damaged-range", record.offset, record.offset + record.size)]


@pytest.mark.parametrize(("number", "kind"), [(0, "log-head"), (1, "missing-segment"), (-1, "log-end")])
def test_a_missing_segment_is_taken(number: int, kind: str, pair: Pair) -> None:
    written = sorted({record.segment for record in pair.ours.records()})
    path = written[number]
    for later in pair.ours.segments:
        if later == path or (number == -1 and later > path):
            later.unlink()
    found = pair.compare()
    assert {one.kind for one in found.taken} == {kind}
    assert found.new == {int(path.name)}
    assert found.left == []


def test_the_end_of_a_log_is_taken(pair: Pair) -> None:
    records = pair.ours.records()
    lost = records[-3]
    damage.write(lost.segment, lost.position, bytes(pair.size - lost.position))
    found = pair.compare()
    assert kinds(found) == [("log-end", lost.offset, records[-1].offset + records[-1].size)]
    assert found.taken[0].count == 3


def test_a_segment_that_was_cut_short_is_taken(pair: Pair) -> None:
    record = middle(pair.ours)
    with record.segment.open("r+b") as file:
        file.truncate(record.position + 20)
    found = pair.compare()
    assert kinds(found)[0] == ("short-segment", record.offset + 20, int(record.segment.name) + pair.size)
    assert found.taken[-1].end == int(record.segment.name) + pair.size
    assert found.left == []


def test_what_is_damaged_in_both_is_said(pair: Pair) -> None:
    record = middle(pair.ours)
    for root in (pair.root, pair.replica):
        bad_body(Record(root / names.COMMIT_LOG / record.segment.name, record.position, 0, 0, 0))
    found = pair.compare()
    assert found.taken == []
    assert [(one.kind, one.offset) for one in found.left] == [("damaged-in-both", record.offset)]


def test_damage_of_the_replica_alone_is_no_matter(pair: Pair) -> None:
    bad_body(middle(pair.theirs))
    assert not gives(pair.compare())


def test_a_replica_that_begins_later_and_ends_earlier(pair: Pair) -> None:
    record = middle(pair.ours)
    bad_body(record)
    for path in pair.theirs.segments:
        if path.name != record.segment.name:
            path.unlink()
    assert kinds(pair.compare()) == [("damaged-range", record.offset, record.offset + record.size)]


def test_what_a_truncation_left_behind_isnt_taken(pair: Pair) -> None:
    """Whole messages behind a replica's end, older than its last one: its log was cut once."""
    last = pair.theirs.records()[-1]
    old = commitlog.decode(last.segment.read_bytes(), last.position)
    old.physical_offset = last.offset + 3 * last.size
    old.store_timestamp = last.timestamp - 1
    damage.write(last.segment, last.position + 3 * last.size, commitlog.encode(old))
    assert not gives(pair.compare())
    here = pair.root / names.COMMIT_LOG / last.segment.name
    shutil.copyfile(last.segment, here)
    assert not gives(pair.compare())


def test_a_record_of_another_release_is_sound(pair: Pair) -> None:
    """4.9 doesn't know records of a long topic, but this is no reason to take them for damage."""
    last = pair.theirs.records()[-1]
    new = commitlog.decode(last.segment.read_bytes(), last.position)
    new.version, new.topic, new.physical_offset = 2, b"t" * 200, last.offset + last.size
    damage.write(last.segment, last.position + last.size, commitlog.encode(new))
    pair.version = "4.9.7"
    assert [(one.kind, one.count) for one in pair.compare().taken] == [("log-end", 1)]


# --- What is refused --------------------------------------------------------------------------------------


def test_a_record_that_is_whole_in_both_and_different(pair: Pair) -> None:
    record = middle(pair.theirs)
    flip(record.segment, record.position + commitlog.QUEUE_OFFSET + 7)
    with pytest.raises(ReputError, match="whole in both logs, and yet different") as error:
        pair.compare()
    assert error.value.offset == record.offset
    assert "queue_offset" in str(error.value.expected)
    assert "queue_offset" in str(error.value.found)


def test_a_log_that_parted_ways(pair: Pair) -> None:
    records = pair.theirs.records()
    for record in records[-20:]:
        written = commitlog.decode(record.segment.read_bytes(), record.position)
        written.flag ^= 1
        damage.write(record.segment, record.position, commitlog.encode(written))
    with pytest.raises(ReputError, match="parted ways") as error:
        pair.compare()
    assert error.value.offset == records[-20].offset


def test_another_log(pair: Pair) -> None:
    for record in pair.theirs.records():
        flip(record.segment, record.position + commitlog.QUEUE_OFFSET + 6)
    with pytest.raises(ReputError, match="another log: no record"):
        pair.compare()


def test_other_segment_sizes(pair: Pair) -> None:
    for path in pair.theirs.segments:
        path.unlink()
    for base in (0, pair.size * 2):
        path = pair.replica / names.COMMIT_LOG / names.offset_name(base)
        path.write_bytes(b"\1" * (pair.size * 2))
    with pytest.raises(ReputError, match="segments of another size") as error:
        pair.compare()
    assert str(pair.size) in str(error.value.expected)
    assert str(pair.size * 2) in str(error.value.found)


def locked(pair: Pair) -> None:
    (pair.replica / names.LOCK).touch()


def abort(pair: Pair) -> None:
    (pair.replica / names.ABORT).touch()


def empty(pair: Pair) -> None:
    shutil.rmtree(pair.replica / names.COMMIT_LOG)
    (pair.replica / names.COMMIT_LOG).mkdir()


def gone(pair: Pair) -> None:
    shutil.rmtree(pair.replica)
    pair.replica.mkdir()


def the_store_itself(pair: Pair) -> None:
    shutil.rmtree(pair.replica)
    pair.replica.symlink_to(pair.root)


def hard_links(pair: Pair) -> None:
    for path in pair.theirs.segments:
        path.unlink()
        os.link(pair.root / names.COMMIT_LOG / path.name, path)


def entries(pair: Pair) -> None:
    damage.write(pair.theirs.segments[0], 0, (1).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (abort, "the replica's broker runs, or it crashed"),
        (empty, "the commit log is empty"),
        (gone, "the commit log is empty"),
        (the_store_itself, "a part of the store itself"),
        (hard_links, "the store's own file"),
        (entries, "DLedger"),
    ],
)
def test_what_is_no_replica(change: Callable[[Pair], None], text: str, pair: Pair) -> None:
    change(pair)
    with pytest.raises(ReputError, match=text):
        pair.compare()


def test_a_replica_in_use(pair: Pair) -> None:
    locked(pair)
    with broker_lock(pair.replica) as pid, pytest.raises(ReputError, match=f"process {pid}"):
        pair.compare()


def test_a_replica_that_grows_while_it_is_read(pair: Pair) -> None:
    settings = StoreSettings.load(pair.root, pair.conf, pair.version)
    last = pair.theirs.records()[-1]

    def write(done: int, total: int) -> None:
        if done == total:
            damage.write(last.segment, last.position + last.size, b"\1")
            os.utime(last.segment, ns=(1, 1))

    with pytest.raises(ReputError, match="written while it was read"):
        compare_logs(settings, pair.replica, write)


# --- Any damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_what_is_sound_in_one_of_both_is_there_in_the_end(seed: int, golden: Pair, pair: Pair) -> None:
    """Records are damaged in either log, some in both: the ranges taken restore all others."""
    random = Random(seed)
    records = golden.ours.records()
    hurt: list[set[int]] = [set(), set()]
    for number, root in enumerate((pair.root, pair.replica)):
        for place in random.sample(range(len(records)), random.randint(1, 12)):
            for at in range(place, min(place + random.choice((1, 1, 2, 5)), len(records))):
                record = records[at]
                path = root / names.COMMIT_LOG / record.segment.name
                match random.randrange(3):
                    case 0:
                        flip(path, record.position + commitlog.MAGIC + random.randrange(4))
                    case 1:
                        damage.write(path, record.position, bytes(record.size))
                    case _:
                        damage.write(path, record.position, random.randbytes(40))
                hurt[number].add(at)
    found, lost = pair.compare(), set[int]()
    for path in pair.ours.segments:
        base, data = int(path.name), bytearray(path.read_bytes())
        original = (golden.root / names.COMMIT_LOG / path.name).read_bytes()
        theirs = (pair.replica / names.COMMIT_LOG / path.name).read_bytes()
        for one in found.taken:
            if base <= one.offset < base + pair.size:
                data[one.offset - base : one.end - base] = theirs[one.offset - base : one.end - base]
        for at, record in enumerate(records):
            start, end = record.position, record.position + record.size
            if record.segment.name != path.name or data[start:end] == original[start:end]:
                continue
            lost.add(at)
            assert at in hurt[0], (seed, at)
            assert at in hurt[1], (seed, at)
    covered = {at for at in lost for one in found.left if one.offset <= records[at].offset < one.end}
    for at in lost - covered:  # zeros are what a log ends with
        record = records[at]
        rest = (pair.root / names.COMMIT_LOG / record.segment.name).read_bytes()[record.position :]
        assert not any(rest), (seed, at)


def test_closing_records_that_differ_are_no_contradiction(pair: Pair) -> None:
    path = pair.ours.segments[0]
    last = [one for one in pair.ours.records() if one.segment == path][-1]
    flip(path, last.position + last.size + 2)
    hurt = middle(pair.ours)
    flip(hurt.segment, hurt.position)
    assert kinds(pair.compare()) == [("damaged-range", hurt.offset, hurt.offset + hurt.size)]


@pytest.mark.parametrize("seed", range(10))
def test_records_are_compared_as_by_the_slow_twin(seed: int, golden: Pair) -> None:
    """Two chains of records, one of which has other bytes, or begins later."""
    random = Random(seed)
    records = [one for one in golden.ours.records() if one.segment == golden.ours.segments[0]]
    one = np.fromfile(golden.ours.segments[0], np.uint8)
    other = one.copy()
    hurt = sorted(random.sample(range(len(records)), random.randint(0, 5)))
    for number in hurt:  # neither size nor magic
        place = records[number].position + random.randrange(8, records[number].size)
        other[place] ^= random.randint(1, 255)
    skipped = random.randrange(len(records) // 2)
    end = len(one)
    found = compare(one, other, (0, end), (records[skipped].position, end))
    pairs = records[skipped:]
    differ = [
        record.position
        for record in pairs
        if (one[record.position :][: record.size] != other[record.position :][: record.size]).any()
    ]
    same = [record.position for record in pairs if record.position not in differ]
    assert (found.same, found.different) == (len(same), len(differ))
    assert (found.first, found.other) == ((differ[0], differ[0]) if differ else (-1, -1))
    assert found.last_same == same[-1]


def test_damage_that_begins_behind_a_body_is_taken_with_its_record(pair: Pair) -> None:
    """No CRC covers properties: it is the replica that shows where the damage begins."""
    records = [one for one in pair.ours.records() if one.segment == middle(pair.ours).segment]
    first, last = records[3], records[6]
    damage.write(first.segment, first.position + first.size - 2, bytes(last.position - first.position))
    assert kinds(pair.compare()) == [("damaged-range", first.offset, last.offset + last.size)]


@pytest.mark.parametrize("ours", [True, False])
def test_torn_properties_of_the_last_message_of_both(pair: Pair, *, ours: bool) -> None:
    last = (pair.ours if ours else pair.theirs).records()[-1]
    damage.write(last.segment, last.position + last.size - 3, bytes(3))
    taken = [("log-end", last.offset, last.offset + last.size)] if ours else []
    assert kinds(pair.compare()) == taken


def test_damage_of_the_replica_that_begins_behind_a_body_is_no_contradiction(pair: Pair) -> None:
    records = [one for one in pair.theirs.records() if one.segment == middle(pair.theirs).segment]
    first, last = records[3], records[6]
    damage.write(first.segment, first.position + first.size - 2, bytes(last.position - first.position))
    assert not gives(pair.compare())


# --- Applying ---------------------------------------------------------------------------------------------


@pytest.fixture
def derived(golden: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues, index and checkpoint as the real store wrote them, in place of a rebuild by Spark."""

    def stage(plan: Plan, *_: object) -> None:
        log = tree(plan.settings.root / names.COMMIT_LOG)
        assert log == tree(golden.root / names.COMMIT_LOG)
        for name in (names.CONSUME_QUEUE, names.INDEX):
            shutil.copytree(golden.root / name, plan.root / name)
        shutil.copy2(golden.root / names.CHECKPOINT, plan.root / names.CHECKPOINT)

    monkeypatch.setattr(mending, "stage", stage)
    # No journal names these queues.
    monkeypatch.setattr("reput.job.summary.gone_queues", lambda *_: ())


def apply(pair: Pair) -> Mended:
    options = RebuildOptions(pair.root, broker_conf=pair.conf, rocketmq_version=pair.version)
    return mending.mend(options, pair.replica, apply=True)


def now(pair: Pair) -> dict[str, str]:
    kept = [path.name for path in pair.root.glob(f"{KEPT}*")]
    return tree(pair.root, names.REPUT, names.LOCK, *kept)


def hurt_in_many_ways(pair: Pair) -> None:
    bad_body(middle(pair.ours))
    written = sorted({record.segment for record in pair.ours.records()})
    written[0].unlink()
    with written[-1].open("r+b") as file:
        file.truncate(pair.size // 3)


def test_what_is_taken_is_in_place_and_undo_takes_it_back(pair: Pair, golden: Pair, derived: None) -> None:
    hurt_in_many_ways(pair)
    before, theirs = now(pair), tree(pair.replica)
    for path in pair.theirs.segments:
        path.chmod(0o444)
    mended = apply(pair)
    assert mended.exit_code == 0
    assert now(pair) == {name: value for name, value in tree(golden.root).items() if name in now(pair)}
    assert tree(pair.root / names.COMMIT_LOG) == tree(golden.root / names.COMMIT_LOG)
    assert tree(pair.replica) == theirs
    assert not (pair.root / names.REPUT / "mending").exists()
    assert not (pair.root / names.VIEW).exists()
    again = apply(pair)
    assert (again.kept, again.exit_code) == (None, 0)
    undo(pair.root)
    assert now(pair) == before


def test_a_stale_rebuild_of_the_damaged_log_is_given_up(pair: Pair, derived: None) -> None:
    bad_body(middle(pair.ours))
    stale = staging_of(pair.root) / names.CONSUME_QUEUE / "Stale" / "0"
    stale.mkdir(parents=True)
    (stale / names.offset_name(0)).write_bytes(b"\1" * 20)
    apply(pair)
    assert not staging_of(pair.root).exists()
    assert not (pair.root / names.CONSUME_QUEUE / "Stale").exists()


@pytest.mark.parametrize("system", [Dying, Failing])
@pytest.mark.slow
def test_a_death_at_any_step_is_finished_by_the_same_command_or_undone(
    pair: Pair, derived: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: type[Dying]
) -> None:
    hurt_in_many_ways(pair)
    shutil.copytree(pair.root, tmp_path / "saved")
    before, theirs = now(pair), tree(pair.replica)
    counting = Dying()
    monkeypatch.setattr(files, "system", counting)
    apply(pair)
    expected, seen = now(pair), set()
    for last in sampled(range(1, counting.calls + 1, 9 if system is Dying else 17)):
        shutil.rmtree(pair.root)
        shutil.copytree(tmp_path / "saved", pair.root)
        monkeypatch.setattr(files, "system", system(last))
        try:
            died(lambda: apply(pair))
        except ReputError:
            assert system is Failing
        monkeypatch.setattr(files, "system", System())
        if last % 2 and list(pair.root.glob(f"{KEPT}*")):
            undo(pair.root)
            assert now(pair) == before, last
            assert not (pair.root / names.VIEW).exists()
            seen.add("undone")
        else:
            apply(pair)
            assert now(pair) == expected, last
            seen.add("mended")
        assert tree(pair.replica) == theirs
    assert seen == {"undone", "mended"}


def test_a_log_outside_the_store_is_refused(pair: Pair, tmp_path: Path) -> None:
    bad_body(middle(pair.ours))
    shutil.move(pair.root / names.COMMIT_LOG, tmp_path / "elsewhere")
    conf = tmp_path / "other.conf"
    conf.write_text(pair.conf.read_text() + f"storePathCommitLog={tmp_path / 'elsewhere'}\n")
    pair.conf = conf
    before = tree(pair.root, names.REPUT, names.LOCK)
    (*_, step) = apply(pair).steps
    assert (step.by_hand, f"{tmp_path / 'elsewhere'} lies outside of" in step.said) == (True, True)
    assert tree(pair.root, names.REPUT, names.LOCK) == before
