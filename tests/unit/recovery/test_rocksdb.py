"""What check and plan say of stores whose queues are in RocksDB; tests/compat asks the real stores, too."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from reput.broker.rocksdb_queues import QueueLeft
from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.diagnosis.check import Diagnosis, check
from reput.diagnosis.findings import not_derived
from reput.diagnosis.verdict import Effect, Finding, Remedy, Sort
from reput.errors import OutputError
from reput.format import commitlog, names, rocksdbindex, rocksdbqueue
from reput.format.rocksdbqueue import CHECKPOINT_KEY, MAX, MIN, OFFSETS, UNITS
from reput.job.options import RebuildOptions
from reput.mending import Mended, mend
from reput.recovery.plan import Plan, plan
from reput.store.lock import Holder
from reput.verify.plan import VerifyOptions
from tests.compat.conf import conf_text
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import tree
from tests.rocksdbs import writing

OLD, NEW = "5.3.3-rocksdb-mixed", "5.5.0-rocksdb-mixed"
_OF_INDEX = ("index-", "checkpoint-")


class Store:
    """A copy of a golden store."""

    def __init__(self, name: str, directory: Path) -> None:
        self.golden: GoldenStore = unpack(name, directory / "store")
        self.root = self.golden.root
        self.conf = dict(self.golden.config)
        self.directory = self.root / str(self.settings().rocksdb.queues)
        self.entries = self.golden.dump()[self.directory.name]
        self.checkpoint = int.from_bytes(self.entries[OFFSETS][CHECKPOINT_KEY])
        self.places: dict[tuple[str, int], dict[int, int]] = {}
        for key, value in self.entries[UNITS].items():
            at, unit = rocksdbqueue.parse_unit_key(key), rocksdbqueue.parse_unit(value)
            assert at is not None
            assert unit is not None
            self.places.setdefault((at.topic.decode(), at.queue_id), {})[at.queue_offset] = unit.position
        self.longest = max(self.places, key=lambda queue: len(self.places[queue]))

    def change(self, family: str, entries: Mapping[bytes, bytes | None]) -> None:
        with writing(self.directory, OFFSETS) as db:
            opened = db if family == UNITS else db.get_column_family(family)
            for key, value in entries.items():
                if value is None:
                    del opened[key]
                else:
                    opened[key] = value
            opened.flush()
            if opened is not db:
                opened.close()

    def settings(self, release: str | None = None) -> StoreSettings:
        conf = self.root.parent / "broker.conf"
        conf.write_text(conf_text(self.conf))
        release = release or self.golden.version
        return StoreSettings.load(self.root, conf, release, rocksdb=True, elsewhere=True)

    def check(self, *, quick: bool = True) -> Diagnosis:
        settings = self.settings()
        return check(VerifyOptions(self.root, None, settings.broker_conf, settings.basis.given), quick=quick)

    def mend(self) -> Mended:
        settings = self.settings()
        options = RebuildOptions(
            self.root, broker_conf=settings.broker_conf, rocketmq_version=settings.basis.given
        )
        return mend(options, apply=True)

    def index_database(self) -> list[Finding]:
        """What is said of rocksdbstore/, quickly and in full."""
        of_it = [
            [one for one in self.check(quick=quick).findings if one.kind == "broken-rocksdbstore"]
            for quick in (True, False)
        ]
        assert of_it[0] == of_it[1]
        return of_it[0]

    def plan(self, release: str | None = None, most: int | None = None) -> Plan:
        before = _tree(self.root)
        found = plan(take(self.settings(release)), most)
        assert _tree(self.root) == before, "a plan writes nothing"
        return found

    def crashed(self) -> None:
        (self.root / names.ABORT).touch()

    def key(self, which: bytes) -> bytes:
        return rocksdbqueue.offset_key(self.longest[0].encode(), self.longest[1], which)

    def end_at(self, which: bytes, place: int, position: int | None = None) -> None:
        position = self.places[self.longest][place] if position is None else position
        self.change(OFFSETS, {self.key(which): rocksdbqueue.offset_value(position, place)})


def _tree(root: Path) -> dict[str, tuple[int, int]]:
    facts = {path: path.stat() for path in root.rglob("*")}
    return {str(path): (fact.st_size, fact.st_mtime_ns) for path, fact in facts.items()}


def kinds(found: Plan) -> dict[str, int]:
    """Messages by kind, of what is said about queues."""
    counts: dict[str, int] = {}
    for loss in (*found.losses, *found.unrepaired):
        if not loss.kind.startswith(_OF_INDEX):
            counts[loss.kind] = counts.get(loss.kind, 0) + loss.count
    return counts


def left(found: Plan, queue: tuple[str, int]) -> QueueLeft:
    assert found.prediction.rocksdb is not None
    return found.prediction.rocksdb.queues[queue]


@pytest.fixture(params=[OLD, NEW])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


def test_a_sound_store_loses_nothing(store: Store) -> None:
    found = store.plan()
    assert not found.loses
    for quick in (True, False):
        checked = store.check(quick=quick)
        assert (checked.verdict.sort, checked.findings) == (Sort.START, [])
    assert found.prediction.queue_end == store.checkpoint
    for queue, places in store.places.items():
        after = left(found, queue)
        assert (after.first, after.following) == (min(places), max(places) + 1)
    store.crashed()
    assert kinds(store.plan()) == {}


def test_without_rocksdb_a_clean_stop_costs_the_first_record(store: Store) -> None:
    shutil.rmtree(store.directory)
    assert [one.kind for one in not_derived(take(store.settings()))] == ["no-queues"]
    used = replace(take(store.settings()), holder=Holder(1, "process 1"))
    assert list(not_derived(used)) == [], "a broker may have them in memory"
    assert [one.kind for one in store.check().findings] == ["missing-unit"], "it is said in detail"
    found = store.plan()
    (loss,) = [one for one in found.unrepaired if one.kind == "missing-unit"]
    assert (loss.count, loss.offset, loss.end) == (1, 0, 1)
    assert "from 0 of the log on" in loss.text
    assert found.prediction.began_at is not None
    assert found.prediction.began_at.base == 0
    store.crashed()
    assert kinds(store.plan()) == {}
    (one,) = store.check().findings
    assert (one.kind, one.effect, one.remedy) == ("no-queues", Effect.HEALS, Remedy.START)


@pytest.mark.parametrize("lost", ["", "CURRENT"])
@pytest.mark.parametrize("name", ["5.3.3-rocksdb-double-write", "5.5.0-rocksdb-double-write"])
def test_a_torn_database_beside_files_is_one_problem(name: str, lost: str, tmp_path: Path) -> None:
    store = Store(name, tmp_path)
    directory = store.directory
    if lost:
        (directory / lost).unlink()
    found = [(one.kind, one.path) for one in store.check().findings]
    assert found == [("broken-rocksdb", str(directory))] * bool(lost)


def test_releases_before_5_3_2_dispatch_nothing_after_a_clean_stop(tmp_path: Path) -> None:
    store = Store(OLD, tmp_path)
    shutil.rmtree(store.directory)
    found = store.plan("5.3.1")
    walked = found.prediction.recovered
    assert walked is not None
    assert walked.segments == 3
    # It counts units; a light queue's come on top of the messages, prepared ones have none.
    assert kinds(found)["missing-unit"] > 100
    assert found.prediction.units_added == 0


def test_a_long_log_is_walked_from_a_segment_near_its_end_by_5_5(tmp_path: Path) -> None:
    store = Store(NEW, tmp_path)
    shutil.rmtree(store.directory)
    store.crashed()
    store.conf["commitLogRecoverMaxNum"] = 2
    found = store.plan()
    assert found.prediction.began_at is not None
    assert found.prediction.began_at.base > 0
    assert "queue-begins-late" in kinds(found)


def test_without_max_keys_queues_look_empty(store: Store) -> None:
    ends = [key for key in store.entries[OFFSETS] if b"\x01max\x01" in key and key != CHECKPOINT_KEY]
    store.change(OFFSETS, dict.fromkeys(ends))
    assert {one.kind for one in store.check().findings} == {"queue-ends-early"}
    assert {one.kind for one in store.check(quick=False).findings} == {"missing-max"}
    found = store.plan()
    assert kinds(found) == {"queue-ends-early": sum(len(places) for places in store.places.values())}
    assert left(found, store.longest).following == 0


@pytest.mark.parametrize("change", [None, -1, 1 << 20])
def test_a_wrong_checkpoint_key_does_no_harm(store: Store, change: int | None) -> None:
    wrong = None if change is None else (store.checkpoint // 2 if change < 0 else store.checkpoint + change)
    value = None if wrong is None else rocksdbqueue.checkpoint_value(wrong)
    store.change(OFFSETS, {CHECKPOINT_KEY: value})
    found = store.plan()
    assert store.check().findings == []
    assert kinds(found) == {}
    assert found.prediction.rocksdb is not None
    assert found.prediction.rocksdb.checkpoint == store.checkpoint or change is None or change < 0
    began = found.prediction.began_at
    assert began is not None
    assert began.base <= (wrong or 0)


def test_a_max_key_that_is_too_low_hides_messages(store: Store) -> None:
    places = store.places[store.longest]
    store.end_at(MAX, max(places) // 2)
    assert [one.kind for one in store.check().findings] == ["queue-ends-early"]
    assert kinds(store.plan()) == {"queue-ends-early": max(places) - max(places) // 2}


def test_a_max_key_that_is_too_high_leaves_a_hole(store: Store) -> None:
    places = store.places[store.longest]
    store.end_at(MAX, max(places) + 50, places[max(places)])
    assert [one.kind for one in store.check().findings] == ["queue-ends-late"]
    found = store.plan()
    assert "queue-ends-late" in kinds(found)
    assert left(found, store.longest).late == 50


def test_a_min_key_that_is_too_high_hides_messages(store: Store) -> None:
    places = store.places[store.longest]
    store.end_at(MIN, max(places) // 2)
    assert kinds(store.plan()) == {"queue-begins-late": max(places) // 2}


def test_missing_units_are_counted_whether_or_not_the_walk_comes_by(store: Store) -> None:
    queue = store.longest
    last = max(store.places[queue])
    lost = [place for place in store.places[queue] if place % 2]
    keys = [rocksdbqueue.unit_key(queue[0].encode(), queue[1], place) for place in lost]
    store.change(UNITS, dict.fromkeys(keys))
    store.end_at(MIN, 0)
    found = store.plan()
    assert kinds(found)["missing-unit"] + left(found, queue).late == len(lost)
    assert left(found, queue).following == last + 1
    assert store.check().verdict.sort is Sort.MEND


def test_units_of_other_messages_and_of_none_are_counted(store: Store) -> None:
    topic, queue_id = store.longest
    middle = max(store.places[store.longest]) // 2
    keys = [rocksdbqueue.unit_key(topic.encode(), queue_id, place) for place in range(middle, middle + 4)]
    following = store.entries[UNITS][rocksdbqueue.unit_key(topic.encode(), queue_id, middle + 4)]
    units = [store.entries[UNITS][key] for key in keys]
    store.change(UNITS, dict(zip(keys, reversed(units), strict=True)))
    assert kinds(store.plan()) == {"misplaced-unit": 3}
    store.change(UNITS, dict.fromkeys(keys, following))  # as a hole is filled
    assert kinds(store.plan()) == {}
    nowhere = (1 << 40).to_bytes(8) + following[8:]
    store.change(UNITS, dict.fromkeys(keys, nowhere))
    assert kinds(store.plan()) == {"past-log-end": 4}


def test_a_torn_log_end_cuts_queues(store: Store) -> None:
    offsets = sorted({offset for places in store.places.values() for offset in places.values()})
    for segment in sorted((store.root / names.COMMIT_LOG).iterdir()):
        base, size = int(segment.name), segment.stat().st_size
        if (at := max(offsets[-3] - base, 0)) < size:
            with segment.open("r+b") as file:
                file.seek(at)
                file.write(bytes(size - at))
    assert "queue-cut" in [one.kind for one in store.check().findings]
    found = store.plan()
    assert found.prediction.log_end == offsets[-3]
    assert kinds(found)["queue-cut"] >= 3
    for queue, places in store.places.items():
        whole = [place for place, offset in places.items() if offset < offsets[-3]]
        after = left(found, queue)
        # The broker's search may end further off than it should: what is behind is said.
        assert after.following + after.behind == max(whole) + 1


def test_what_was_not_read_is_said(store: Store) -> None:
    size = int(str(store.conf["mappedFileSizeCommitLog"]))
    found = store.plan(most=size)
    assert found.prediction.unread is None
    assert found.prediction.rocksdb is not None
    assert found.prediction.rocksdb.unread
    assert found.unread is not None
    assert "units in RocksDB" in found.unread


def _without_current(directory: Path) -> Path:
    (directory / "CURRENT").unlink()
    return directory


def _without_manifest(directory: Path) -> Path:
    for path in directory.glob("MANIFEST-*"):
        path.unlink()
    return directory


def _without_table(directory: Path) -> Path:
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    table.unlink()
    return table


def _short_table(directory: Path) -> Path:
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])
    return table


def _foreign_family(directory: Path) -> Path:
    with writing(directory, OFFSETS, "foreign"):
        return directory


@pytest.mark.parametrize(
    "tear", [_without_current, _without_manifest, _without_table, _short_table, _foreign_family]
)
def test_a_torn_rocksdb_stops_the_start(tmp_path: Path, tear: object) -> None:
    store = Store(NEW, tmp_path)
    path = tear(store.directory)  # type: ignore[operator]
    checked, found = store.check(), store.plan()
    (problem,) = [one for one in checked.findings if one.effect is Effect.BLOCKS]
    assert problem.kind == "broken-rocksdb"
    assert Path(problem.path).is_relative_to(store.directory)
    if path.suffix == ".sst":
        assert Path(problem.path).name == path.name
    assert problem.expected
    assert problem.found
    assert not found.prediction.starts
    assert checked.verdict.sort is Sort.NO_START
    assert any("reput mend" in step for step in checked.next_steps)


@pytest.mark.parametrize("tear", [_without_current, _without_table, _foreign_family])
def test_a_torn_rocksdbstore_is_said(tmp_path: Path, tear: object) -> None:
    store = Store("5.5.0-rocksdb-index", tmp_path)
    directory = store.root / names.ROCKSDB_STORE
    assert store.index_database() == []
    if tear is _foreign_family:
        with writing(directory, "timer", "trans", "foreign"):
            pass
    else:
        tear(directory)  # type: ignore[operator]
    (found,) = store.index_database()
    assert Path(found.path).is_relative_to(directory)
    assert (found.effect, found.remedy) == (Effect.LACKS, Remedy.BY_HAND)


@pytest.mark.parametrize("mark", [None, 1000])
def test_a_lost_or_old_key_of_the_queues_end_is_mended_at_once(tmp_path: Path, mark: int | None) -> None:
    store = Store("5.5.0-rocksdb-tiny", tmp_path)
    value = None if mark is None else rocksdbqueue.checkpoint_value(mark)
    store.change(OFFSETS, {CHECKPOINT_KEY: value})
    assert store.check(quick=False).verdict.sort is Sort.MEND
    assert store.mend().now.verdict.sort is Sort.START
    assert store.check(quick=False).verdict.sort is Sort.START
    assert not store.mend().applied


def test_a_unit_stays_where_a_byte_of_its_message_has_changed(tmp_path: Path) -> None:
    store = Store("5.5.0-rocksdb-tiny", tmp_path)
    ((_, position),) = [one for one in store.places["One", 0].items() if one[0] == 1]
    log = store.root / names.COMMIT_LOG / names.offset_name(0)
    data = bytearray(log.read_bytes())
    data[position + commitlog.QUEUE_OFFSET + 5] ^= 1  # 65,537
    log.write_bytes(data)
    found = store.check(quick=False)
    assert [(one.kind, one.first) for one in found.left] == [("altered-message", position)]
    assert found.verdict.sort is Sort.START_WITH_LOSS
    before = tree(store.root)
    assert not store.mend().applied
    assert tree(store.root) == before


@pytest.mark.parametrize("mark", [None, 0, 1 << 40])
def test_a_start_goes_back_to_where_the_index_ends(tmp_path: Path, mark: int | None) -> None:
    store = Store("5.5.0-rocksdb-index", tmp_path)
    with writing(store.root / names.ROCKSDB_STORE, "timer", "trans") as db:
        if mark is None:
            del db[rocksdbindex.LAST_POSITION]
        else:
            db[rocksdbindex.LAST_POSITION] = rocksdbindex.value(mark)
        db.flush()
    began = store.plan().prediction.began_at
    assert began is not None
    files = store.plan().snapshot.log.files
    assert (began == files[0]) == (mark != 1 << 40)
    store.conf["messageIndexEnable"] = False
    assert store.plan().prediction.began_at == began
    store.conf["indexRocksDBEnable"] = False
    assert store.plan().prediction.began_at == files[-1]


def test_without_room_for_links_no_start_is_foretold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("5.5.0-rocksdb-index", tmp_path)
    monkeypatch.setattr("reput.broker.snapshot.open_index", _without_room)
    assert store.check().verdict.sort is Sort.UNKNOWN


def test_without_room_for_links_the_rest_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("5.5.0-rocksdb-index", tmp_path)
    before = store.check()
    monkeypatch.setattr("reput.diagnosis.findings.open_index", _without_room)
    found = store.check()
    assert found.findings == before.findings
    (line,) = [
        line for line in found.not_read if line.startswith(f"{names.ROCKSDB_STORE}/, whether it opens")
    ]
    assert "no room" in line


def _without_room(*_: object, **_more: object) -> NoReturn:
    raise OutputError("no room")


def test_a_block_that_cannot_be_read_is_a_finding_and_no_stop(store: Store) -> None:
    table = max(store.directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    with table.open("r+b") as file:
        file.seek(1000)
        file.write(bytes(100))
    assert "broken-rocksdb" in [one.kind for one in store.check().findings]
    found = store.plan()
    assert found.prediction.starts
    assert "broken-rocksdb" in kinds(found)


def test_a_rocksdb_in_the_other_directory_stops_5_5(tmp_path: Path) -> None:
    store = Store(NEW, tmp_path)
    store.conf["useSeparateStorePathForRocksdbCQ"] = True
    checked = store.check()
    (problem,) = [one for one in checked.findings if one.effect is Effect.BLOCKS]
    assert problem.kind == "rocksdb-elsewhere"
    assert problem.path == str(store.directory / "CURRENT")
    assert checked.verdict.sort is Sort.NO_START


def test_a_rocksdb_that_storetype_does_not_name_is_left_alone(store: Store) -> None:
    del store.conf["storeType"]
    assert "rocksdb-elsewhere" in [one.kind for one in store.check().findings]
    found = store.plan()
    assert found.prediction.starts
    assert found.prediction.rocksdb is None


def test_files_that_a_broker_does_not_read_any_more_are_named(store: Store) -> None:
    (store.directory / "Orders" / "0").mkdir(parents=True)
    assert [one.kind for one in store.check().findings] == ["unused-queue-files"]
    assert kinds(store.plan()) == {}
