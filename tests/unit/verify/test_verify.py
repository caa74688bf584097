"""What ``reput verify`` says of stores that brokers wrote, and of each kind of damage done to them."""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.diagnosis.check import compare
from reput.errors import SettingsError, StoreError
from reput.format import batchconsumequeue, names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, HEADER_LENGTH, SLOT_LENGTH, IndexHeader
from reput.replay.runner import InlineRunner
from reput.verify.index_file import check_chains
from reput.verify.plan import VerifyOptions, prepare, prepare_pair
from reput.verify.report import Difference, Report
from reput.verify.run import check, compare_pair, verify
from reput.verify.tasks import PartTask
from tests.golden.store import NAMES, GoldenStore, unpack
from tests.local import Store, rebuild_locally
from tests.rebuilds import broker_lock
from tests.stores import tree_of

STORE = "5.3.3-mixed"
FIRST_ENTRY = 40 + 100 * 4 + ENTRY_LENGTH


def open_golden(name: str, directory: Path) -> GoldenStore:
    store = unpack(name, directory / "store")
    store.write_broker_conf(directory / "broker.conf")
    if store.manifest["topics"]:
        store.write_topics_json()
    return store


def options(store: GoldenStore, **changes: object) -> VerifyOptions:
    asked: dict[str, object] = {
        "broker_conf": store.root.parent / "broker.conf",
        "rocketmq_version": store.version,
        "part_bytes": 50_000,
        "batch_bytes": 100_000,
        **changes,
    }
    return VerifyOptions(store.root, **asked)  # type: ignore[arg-type]


def report_on(store: GoldenStore, **changes: object) -> Report:
    return check(prepare(options(store, **changes)), InlineRunner())


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return open_golden(STORE, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_broker_wrote_is_sound(name: str, tmp_path: Path) -> None:
    golden = open_golden(name, tmp_path)
    before = tree_of(golden.root)
    report = report_on(golden)
    assert report.findings == []
    assert tree_of(golden.root) == before
    # What isn't looked at is named.
    unchecked = {"queue-ext": ["queue-ext"], "no-index": ["switched-off"]}
    expected = unchecked.get(str(golden.manifest["workload"]), [])
    assert [note.kind for note in report.not_checked] == expected


def test_a_queue_that_was_deleted_with_its_topic_is_no_loss(tmp_path: Path) -> None:
    report = report_on(open_golden("5.5.0-recreated-topic", tmp_path))
    kinds = {(note.kind, note.topic, note.queue_id) for note in report.notes}
    assert ("deleted-queue", "Again", 2) in kinds
    assert ("queue-restarted", "Again", 0) in kinds


# --- queues -----------------------------------------------------------------------------------------------


def queue_file(store: GoldenStore, topic: str = "Orders", queue_id: int = 0, number: int = 0) -> Path:
    return sorted((store.root / names.CONSUME_QUEUE / topic / str(queue_id)).iterdir())[number]


def change(path: Path, how: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    how(data)
    path.write_bytes(data)


def put(place: int, field: int, value: bytes) -> Callable[[bytearray], None]:
    def write(data: bytearray) -> None:
        data[place * UNIT_LENGTH + field : place * UNIT_LENGTH + field + len(value)] = value

    return write


def only(report: Report) -> Difference:
    (found,) = report.findings
    return found


def test_zeroed_units_in_the_middle(store: GoldenStore) -> None:
    path = queue_file(store)
    change(path, put(7, 0, bytes(3 * UNIT_LENGTH)))
    found = only(report_on(store))
    assert (found.kind, found.cause) == ("missing-unit", "zeroed")
    assert (found.topic, found.queue_id, found.first, found.end, found.count) == ("Orders", 0, 7, 10, 3)
    assert (found.path, found.offset, found.found) == (str(path), 7 * UNIT_LENGTH, "nothing")


def test_a_queue_that_ends_early(store: GoldenStore) -> None:
    path = queue_file(store, number=-1)
    units = len(path.read_bytes().rstrip(b"\0")) // UNIT_LENGTH
    change(path, put(units - 1, 0, bytes(2 * UNIT_LENGTH)))
    path.write_bytes(path.read_bytes()[:1000].ljust(1000, b"\0"))
    found = only(report_on(store))
    assert (found.kind, found.cause) == ("missing-unit", "queue-short")


@pytest.mark.parametrize(("field", "value", "said"), [(8, 7, "size"), (19, 99, "tagsCode")])
def test_a_wrong_field(store: GoldenStore, field: int, value: int, said: str) -> None:
    change(queue_file(store), put(3, field, bytes([value])))
    found = only(report_on(store))
    assert (found.kind, found.first, found.count, found.cause) == ("wrong-unit", 3, 1, None)
    assert found.offset == 3 * UNIT_LENGTH + (8 if said == "size" else 12)


def test_a_message_lost_from_a_queue_shifts_those_after_it(store: GoldenStore) -> None:
    """What 5.3.3 and later make of a lost unit, last table of what a restart repairs."""
    path = queue_file(store, "Payments", 1)
    units = -(-len(path.read_bytes().rstrip(b"\0")) // UNIT_LENGTH)

    def shift(data: bytearray) -> None:
        data[2 * UNIT_LENGTH : -UNIT_LENGTH] = data[3 * UNIT_LENGTH :]

    change(path, shift)
    report = report_on(store)
    kinds = [(one.kind, one.cause, one.first, one.end) for one in report.findings]
    assert kinds == [
        ("wrong-unit", "other-message", 2, 3),
        ("misplaced-unit", "shifted", 3, units),
    ]
    assert "it lies at queueOffset 2" in report.findings[1].found


@pytest.mark.parametrize(
    ("position", "cause"),
    [(1 << 40, "past-log-end"), (17, "no-message"), (0, "other-message")],
)
def test_a_unit_that_no_message_has(store: GoldenStore, position: int, cause: str) -> None:
    path = queue_file(store, number=-1)
    data = path.read_bytes()
    units = -(-len(data.rstrip(b"\0")) // UNIT_LENGTH)
    change(path, put(units, 0, struct.pack(">qiq", position, 100, 5)))
    found = only(report_on(store))
    assert (found.kind, found.cause, found.count) == ("extra-unit", cause, 1)


def test_a_lost_queue_and_a_lost_file(store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments" / "2")
    queue_file(store, "Orders", 0, 1).unlink()
    report = report_on(store)
    causes = {(one.kind, one.topic, one.queue_id, one.cause) for one in report.findings}
    assert causes == {
        ("missing-unit", "Payments", 2, "queue-lost"),
        ("missing-unit", "Orders", 0, "queue-file-lost"),
        ("queue-file-missing", "Orders", 0, None),
    }


def test_a_topic_that_was_deleted_has_no_queues(store: GoldenStore) -> None:
    topics = {path.name for path in (store.root / names.CONSUME_QUEUE).iterdir()} - {"Payments"}
    store.manifest["topics"].update({topic: {} for topic in topics})
    store.write_topics_json()
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Payments")
    report = report_on(store)
    assert not report.findings
    assert {note.kind for note in report.notes} == {"deleted-queue"}


def test_files_that_a_broker_does_not_start_with(store: GoldenStore) -> None:
    path = queue_file(store, "Orders", 1)
    path.write_bytes(path.read_bytes() + b"\0")
    path.with_name("stray").write_bytes(b"")
    path.with_name("stray-directory").mkdir()
    (store.root / names.INDEX / "20990101000000000").mkdir()
    report = report_on(store)
    assert [(one.kind, one.found) for one in report.findings[-2:]] == [
        ("queue-stray-directory", "a directory"),
        ("index-stray-directory", "a directory"),
    ]
    assert [one.kind for one in report.findings[:-2]] == ["queue-file-length", "queue-file-name"]


def test_delay_queues_after_a_recovery_of_4_9(tmp_path: Path) -> None:
    store = open_golden("4.9.7-mixed", tmp_path)
    path = queue_file(store, "SCHEDULE_TOPIC_XXXX", 3)
    change(path, put(0, 12, struct.pack(">q", 2598919)))
    found = only(report_on(store))
    assert (found.kind, found.cause) == ("wrong-unit", "delay-tags-hashed")


def test_a_queue_that_the_log_knows_nothing_of(store: GoldenStore) -> None:
    queue = store.root / names.CONSUME_QUEUE / "Nobody" / "0"
    queue.mkdir(parents=True)
    shutil.copy(queue_file(store, "Payments", 1), queue)
    report = report_on(store)
    assert {(one.kind, one.topic) for one in report.findings} == {("extra-unit", "Nobody")}


def test_damage_in_the_log_explains_units_that_point_into_it(store: GoldenStore) -> None:
    path = queue_file(store, "Orders", 0)
    (position,) = struct.unpack_from(">q", path.read_bytes(), 5 * UNIT_LENGTH)
    segment = store.root / names.COMMIT_LOG / names.offset_name(position - position % 65536)
    change(segment, lambda data: data.__setitem__(slice(position % 65536, position % 65536 + 8), b"\xff" * 8))
    report = report_on(store)
    (unit,) = [one for one in report.findings if one.area == "queue"]
    assert (unit.kind, unit.cause, unit.first) == ("wrong-unit", "log-damaged", 5)
    assert {one.kind for one in report.findings if one.area == "log"} == {
        "bad-magic",
        "missing-queue-offsets",
    }
    (entries,) = [one for one in report.findings if one.area == "index"]
    assert entries.kind == "dangling-entry"


def test_a_hole_that_a_rebuild_filled_is_a_note(store: GoldenStore, tmp_path: Path) -> None:
    (position,) = struct.unpack_from(">q", queue_file(store).read_bytes(), 5 * UNIT_LENGTH)
    segment = store.root / names.COMMIT_LOG / names.offset_name(position - position % 65536)
    change(segment, lambda data: data.__setitem__(slice(position % 65536, position % 65536 + 8), b"\xff" * 8))
    settings = StoreSettings.load(store.root, tmp_path / "broker.conf", store.version)
    rebuild_locally(Store(store.root, settings), tmp_path / "out")
    for name in (names.CONSUME_QUEUE, names.INDEX):
        shutil.rmtree(store.root / name)
        shutil.move(tmp_path / "out" / name, store.root / name)
    report = report_on(store)
    assert [one.kind for one in report.findings] == ["bad-magic"]
    (note,) = [one for one in report.notes if one.kind == "filled-hole"]
    assert (note.topic, note.queue_id, note.count) == ("Orders", 0, 1)
    change(queue_file(store), put(5, 0, bytes(UNIT_LENGTH)))
    report = report_on(store)
    assert sorted(one.kind for one in report.findings) == [
        "bad-magic",
        "missing-queue-offsets",
        "missing-unit",
    ]
    assert [one.kind for one in report.notes if one.kind == "filled-hole"] == []


def test_chosen_queues(store: GoldenStore) -> None:
    change(queue_file(store, "Orders", 0), put(3, 8, b"\1"))
    change(queue_file(store, "Payments", 1), put(3, 8, b"\1"))
    assert only(report_on(store, queues=("Payments",))).topic == "Payments"


# --- index and checkpoint ---------------------------------------------------------------------------------


def index_file(store: GoldenStore, number: int = 0) -> Path:
    return sorted((store.root / names.INDEX).iterdir())[number]


def write_at(offset: int, value: bytes) -> Callable[[bytearray], None]:
    return lambda data: data.__setitem__(slice(offset, offset + len(value)), value)


@pytest.mark.parametrize(
    ("offset", "value", "kinds"),
    [
        (FIRST_ENTRY + 50 * 20 + 16, struct.pack(">i", 51), {"index-cycle"}),
        (FIRST_ENTRY + 50 * 20 + 16, struct.pack(">i", 5), {"index-chain"}),
        (FIRST_ENTRY + 50 * 20 + 12, struct.pack(">i", 9999), {"index-time"}),
        (FIRST_ENTRY + 50 * 20 + 4, struct.pack(">q", 1 << 50), {"missing-entry", "dangling-entry"}),
        (40 + 4 * 17, struct.pack(">i", 3), {"index-slot"}),
        (32, struct.pack(">i", 3), {"index-header"}),
        (24, struct.pack(">q", 3), {"index-header"}),
    ],
)
def test_a_damaged_index(store: GoldenStore, offset: int, value: bytes, kinds: set[str]) -> None:
    change(index_file(store), write_at(offset, value))
    report = report_on(store)
    assert {one.kind for one in report.findings} == kinds
    assert {one.path for one in report.findings} == {str(index_file(store))}


def test_a_lost_index_and_a_lost_last_file(store: GoldenStore) -> None:
    index_file(store, -1).unlink()
    assert only(report_on(store)).cause == "index-short"
    shutil.rmtree(store.root / names.INDEX)
    kinds = [(one.kind, one.cause) for one in report_on(store).findings]
    assert kinds == [("missing-entry", "index-lost"), ("checkpoint-ahead", None)]


def test_a_lost_index_file_is_not_said_of_its_neighbours(store: GoldenStore) -> None:
    files = sorted((store.root / names.INDEX).iterdir())
    assert len(files) > 4
    for number in range(1, len(files) - 1):
        kept = files[number].read_bytes()
        files[number].unlink()
        found = only(report_on(store))
        assert (found.kind, found.cause, found.path) == (
            "missing-entry",
            "index-file-missing",
            str(store.root / names.INDEX),
        )
        beside = f"{files[number - 1].name} and {files[number + 1].name}"
        assert found.remark == f"no file has the keys between {beside}"
        files[number].write_bytes(kept)
    files[2].unlink()
    files[3].unlink()
    assert (
        only(report_on(store)).remark == f"no file has the keys between {files[1].name} and {files[4].name}"
    )


@pytest.mark.parametrize("at", ["last", "first"])
def test_a_bad_entry_beside_another_index_file_is_no_missing_file(store: GoldenStore, at: str) -> None:
    path = index_file(store, 1 if at == "first" else 0)
    header = IndexHeader.decode(path.read_bytes()[:HEADER_LENGTH])
    slots, entries = (int(str(store.config[name])) for name in ("maxHashSlotNum", "maxIndexNum"))
    ordinal = 1 if at == "first" else header.index_count - 1
    assert header.index_count == entries
    place = HEADER_LENGTH + slots * SLOT_LENGTH + ordinal * ENTRY_LENGTH
    change(path, write_at(place + 4, (1 << 40).to_bytes(8, "big")))
    found = [one for one in report_on(store).findings if one.kind == "missing-entry"]
    assert [one.cause for one in found] == [None]
    assert Path(found[0].path).parent == path.parent


def test_a_message_that_is_indexed_twice_is_a_note(store: GoldenStore) -> None:
    """A broker that is started dispatches its last message again: its entries stand there twice."""
    path = index_file(store, -1)
    data = path.read_bytes()
    (count,) = struct.unpack_from(">i", data, 36)
    last = FIRST_ENTRY + (count - 2) * 20
    key_hash, position, seconds, _ = struct.unpack_from(">iqii", data, last)
    again = struct.pack(">iqii", key_hash, position, seconds, count - 1)
    change(path, write_at(last + 20, again))
    change(path, write_at(36, struct.pack(">i", count + 1)))
    change(path, write_at(40 + 4 * (key_hash % 100), struct.pack(">i", count)))
    report = report_on(store)
    assert not report.findings
    assert [note.kind for note in report.notes] == ["indexed-twice"]


@pytest.mark.parametrize(
    ("name", "version", "kind"), [(STORE, "5.5", "tags-not-indexed"), ("5.5.0-mixed", "5.3", "tags-indexed")]
)
def test_an_index_of_another_release(name: str, version: str, kind: str, tmp_path: Path) -> None:
    report = report_on(open_golden(name, tmp_path), rocketmq_version=version)
    assert not report.findings
    assert [one.kind for one in report.notes if one.count > 8] == [kind]


@pytest.mark.parametrize("field", range(3))
def test_a_checkpoint_from_the_future(store: GoldenStore, field: int) -> None:
    change(store.root / names.CHECKPOINT, write_at(8 * field, struct.pack(">q", 1 << 45)))
    found = only(report_on(store))
    assert (found.area, found.kind, found.offset) == ("checkpoint", "checkpoint-ahead", 8 * field)


# --- beside a broker --------------------------------------------------------------------------------------


def test_what_a_running_broker_adds_is_let_be(store: GoldenStore) -> None:
    end = int(store.manifest["log"]["end"])
    path = queue_file(store, number=-1)
    units = -(-len(path.read_bytes().rstrip(b"\0")) // UNIT_LENGTH)
    change(path, put(units, 0, struct.pack(">qiq", end, 100, 5)))
    index = index_file(store, -1)
    data = index.read_bytes()
    (count, slot_count) = struct.unpack_from(">i", data, 36)[0], struct.unpack_from(">i", data, 32)[0]
    slot = next(each for each in range(100) if data[40 + 4 * each : 44 + 4 * each] == bytes(4))
    change(index, write_at(FIRST_ENTRY + (count - 1) * 20, struct.pack(">iqii", slot, end, 0, 0)))
    change(index, write_at(40 + 4 * slot, struct.pack(">i", count)))
    change(index, write_at(32, struct.pack(">ii", slot_count + 1, count + 1)))
    assert {one.kind for one in report_on(store).findings} == {"extra-unit", "dangling-entry"}
    with broker_lock(store.root):
        report = report_on(store)
    assert (report.broker_running, report.end) == (True, end)
    assert report.findings == []
    assert [note.kind for note in report.not_checked] == ["live"]


@pytest.mark.parametrize(("known", "kinds"), [(True, []), (False, ["index-slot"])])
def test_keys_that_a_running_broker_puts_meanwhile_are_let_be(
    store: GoldenStore, known: bool, kinds: list[str]
) -> None:
    """A slot leads to entries behind those of the header, which was read before, and on to one of them."""
    index = index_file(store, -1)
    data = index.read_bytes()
    (count,) = struct.unpack_from(">i", data, 36)
    slot = next(each for each in range(100) if data[40 + 4 * each : 44 + 4 * each] != bytes(4))
    (last,) = struct.unpack_from(">i", data, 40 + 4 * slot)
    for ordinal, previous in ((count, last if known else last - 1), (count + 1, count)):
        entry = struct.pack(">iqii", slot, int(store.manifest["log"]["end"]), 0, previous)
        change(index, write_at(FIRST_ENTRY + (ordinal - 1) * 20, entry))
    change(index, write_at(40 + 4 * slot, struct.pack(">i", count + 1)))
    assert "index-slot" in {one.kind for one in report_on(store).findings}
    with broker_lock(store.root):
        assert [one.kind for one in report_on(store).findings] == kinds


# --- two stores -------------------------------------------------------------------------------------------


def pair_report(store: GoldenStore, other: Path) -> Report:
    return compare_pair(prepare_pair(options(store, against=other)), InlineRunner())


def test_a_slave_that_has_less_is_the_same(store: GoldenStore) -> None:
    slave = store.root.parent / "slave"
    shutil.copytree(store.root, slave)
    first = min((slave / names.COMMIT_LOG).iterdir())
    first.unlink()
    for number, path in enumerate(sorted((slave / names.INDEX).iterdir())):
        path.rename(path.with_name(f"2099010100000000{number}"))
    assert pair_report(store, slave).findings == []
    change(slave / queue_file(store, "Orders", 0, -1).relative_to(store.root), put(0, 19, b"\x55"))
    found = only(pair_report(store, slave))
    assert (found.kind, found.topic, found.queue_id, found.count) == ("differs", "Orders", 0, 1)


def test_a_slave_without_a_queue_and_an_index_file(store: GoldenStore) -> None:
    slave = store.root.parent / "slave"
    shutil.copytree(store.root, slave)
    shutil.rmtree(slave / names.CONSUME_QUEUE / "Payments" / "1")
    max((slave / names.INDEX).iterdir()).unlink()
    report = pair_report(store, slave)
    assert {(one.area, one.kind) for one in report.findings} == {
        ("queue", "only-in-first"),
        ("index", "only-in-first"),
    }


def halve(directory: Path, unit_length: int) -> None:
    """Make two files of each, as a broker with half of its file size writes them."""
    for path in sorted(directory.rglob("000*")):
        data, base = path.read_bytes(), int(path.name)
        half = len(data) // 2
        assert half % unit_length == 0
        path.unlink()
        for place in (0, half):
            if place == 0 or any(data[place:]):
                (path.parent / names.offset_name(base + place)).write_bytes(data[place : place + half])


@pytest.mark.parametrize(
    ("name", "kind", "unit_length"),
    [
        (STORE, names.CONSUME_QUEUE, UNIT_LENGTH),
        ("5.5.0-queue-ext", names.CONSUME_QUEUE, UNIT_LENGTH),
        ("5.5.0-batch-queue", names.BATCH_CONSUME_QUEUE, batchconsumequeue.UNIT_LENGTH),
    ],
)
def test_each_store_is_read_by_its_own_file_size(
    name: str, kind: str, unit_length: int, tmp_path: Path
) -> None:
    store, other = (open_golden(name, tmp_path / which) for which in "ab")
    halve(other.root / kind, unit_length)

    def compared(first: GoldenStore, second: GoldenStore) -> Report:
        asked = options(first, broker_conf=None, against=second.root)
        return compare_pair(prepare_pair(asked), InlineRunner())

    for first, second in ((store, other), (other, store)):
        report = compared(first, second)
        assert report.findings == []
        assert report.units == compared(store, store).units
    last = max((path for path in (other.root / kind).rglob("000*") if any(path.read_bytes())), key=str)
    change(last, put(0, 8, b"\x7f"))  # a message's size
    for first, second in ((store, other), (other, store)):
        found = only(compared(first, second))
        assert (found.kind, found.count) == ("differs", 1)
        at = Path(found.path).read_bytes()[found.offset or 0 :][:unit_length]
        assert any(at)


def test_a_broker_conf_that_is_not_that_of_both_is_refused(store: GoldenStore, tmp_path: Path) -> None:
    other = Path(shutil.copytree(store.root, tmp_path / "other"))
    halve(other / names.CONSUME_QUEUE, UNIT_LENGTH)
    expected = "isn't that of both.*mappedFileSizeConsumeQueue=1000.*500 bytes: 59 of 59.*Give none"
    with pytest.raises(SettingsError, match=expected):
        pair_report(store, other)


def test_batch_queue_files_in_each_others_place_differ(tmp_path: Path) -> None:
    """All of their units are there; a broker searches them by queueOffset, and goes wrong."""
    store = open_golden("5.5.0-batch-queue", tmp_path / "one")
    other = Path(shutil.copytree(store.root, tmp_path / "other"))
    one, two, *_ = sorted((other / names.BATCH_CONSUME_QUEUE / "Batches" / "0").iterdir())
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    for root, against, at in ((store.root, other, "second"), (other, store.root, "first")):
        asked = VerifyOptions(root, against=against, rocketmq_version=store.version)
        found = only(compare_pair(prepare_pair(asked), InlineRunner()))
        assert (found.kind, found.topic, found.queue_id, found.count) == ("differs", "Batches", 0, 20)
        assert f"after a later one ({at} store)" in found.said
        assert found.path == str(two)
    asked = VerifyOptions(other, against=other, rocketmq_version=store.version)
    assert compare_pair(prepare_pair(asked), InlineRunner()).findings == []


def test_what_is_not_compared_of_an_index_is_said(store: GoldenStore, tmp_path: Path) -> None:
    """Each broker begins its index files where it likes, and timeDiff and slots go by that."""
    other = Path(shutil.copytree(store.root, tmp_path / "other"))
    for path in (other / names.INDEX).iterdir():
        change(path, write_at(HEADER_LENGTH, bytes(100 * SLOT_LENGTH)))
    done = compare(options(store, against=other))
    said = "slots, chains, timeDiff and headers of index files"
    assert done.not_read == [said]
    assert done.verdict.text.endswith(f": nothing that was compared differs. Not read: {said}")
    for path in (*(store.root / names.INDEX).iterdir(), *(other / names.INDEX).iterdir()):
        path.unlink()
    done = compare(options(store, against=other))
    assert done.not_read == []
    assert done.verdict.text.endswith(": nothing that was compared differs")


# --- refusals ---------------------------------------------------------------------------------------------


def test_what_is_refused(store: GoldenStore) -> None:
    with pytest.raises(StoreError, match="no store here"):
        prepare(VerifyOptions(store.root / "nothing"))
    with pytest.raises(SettingsError, match="queue can't be understood"):
        prepare(options(store, queues=("a:b",)))


def test_settings_that_no_file_fits_are_no_reason_to_rebuild(store: GoldenStore) -> None:
    """One finding for each setting, not one for each file, and Spark isn't started for it."""
    (other := store.root.parent / "other.conf").touch()
    asked = options(store, broker_conf=other)
    report = verify(asked, lambda: pytest.fail("Spark was to be started"))
    assert [(found.area, found.kind) for found in report.findings] == [
        ("queue", "other-settings"),
        ("index", "other-settings"),
    ]
    first, second = report.findings
    assert first.expected == "mappedFileSizeConsumeQueue=6000000, RocketMQ's default"
    assert first.found == "queue files of 1,000 bytes: 54 of 54"
    assert second.found == "index files of 100 slots and 400 entries: 6 of 6"
    assert [note.kind for note in report.not_checked] == ["other-settings"]
    steps = {one.next_step for one in prepare(asked).settings.basis.hiding}
    assert steps == {"Give the broker.conf that this store was written with: -c FILE"}


def test_without_settings_the_store_is_verified_by_what_it_shows(store: GoldenStore) -> None:
    plan = prepare(options(store, broker_conf=None, rocketmq_version=None))
    assert check(plan, InlineRunner()).findings == []
    assert plan.settings.dialect.name == "5.3"
    assert "queue files of 1,000 bytes: 54 of 54" in plan.settings.basis.files


@pytest.mark.parametrize("queue", ["orders", "Orders:99", "Orders:0:0"])
def test_a_queue_that_is_not_there_is_refused(queue: str, store: GoldenStore) -> None:
    assert not report_on(store, queues=("Orders:0", "Payments")).findings
    with pytest.raises(SettingsError, match=f"no such queue.*found {queue}"):
        report_on(store, queues=("Orders:0", queue))


@pytest.mark.parametrize(
    ("queue", "meant"), [("orders", "Orders"), ("Orders:99", "Orders:3"), ("Payment:1", "Payments:1")]
)
def test_the_nearest_of_the_store_and_the_log_is_offered(queue: str, meant: str, store: GoldenStore) -> None:
    with pytest.raises(SettingsError, match=f"Did you mean --queue {meant}"):
        report_on(store, queues=(queue,))
    if not queue.startswith("Orders"):
        shutil.rmtree(store.root / names.CONSUME_QUEUE)
        with pytest.raises(SettingsError, match=f"Did you mean --queue {meant.split(':', maxsplit=1)[0]}"):
            report_on(store, queues=(queue,))


def test_two_stores_that_lack_a_queue_are_not_the_same(store: GoldenStore, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(store.root, other)
    shutil.rmtree(other / names.CONSUME_QUEUE / "Orders" / "3")
    asked = options(store, against=other, queues=("Orders:3",))
    assert compare_pair(prepare_pair(asked), InlineRunner()).findings
    with pytest.raises(SettingsError, match=r"no such queue.*found orders:3.*Did you mean --queue Orders:3"):
        prepare_pair(options(store, against=other, queues=("orders:3",)))


def test_index_files_in_each_others_place(store: GoldenStore) -> None:
    """Their entries are all there; a broker that searches by time stops at the wrong file."""
    first, second = sorted((store.root / names.INDEX).iterdir())[1:3]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    found = [one for one in report_on(store).findings if one.kind == "index-header"]
    assert {(one.path, one.offset) for one in found} >= {(str(second), 16)}


@pytest.mark.parametrize("name", [names.CHECKPOINT, "consumequeue/Orders/0/00000000000000000000"])
def test_what_cannot_be_read_is_an_error_of_the_store(name: str, store: GoldenStore) -> None:
    (store.root / name).unlink()
    (store.root / name).mkdir()
    with pytest.raises(StoreError, match="can't be read"):
        report_on(store)


def test_a_run_that_has_failed_begins_no_more_of_the_index(store: GoldenStore) -> None:
    chains: list[object] = []
    failed = threading.Event()

    class Failing(InlineRunner):
        def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
            if isinstance(items[0], PartTask):
                failed.set()
                return [StoreError("the store can't be read") for _ in items]
            if getattr(items[0], "func", None) is check_chains:
                failed.wait()
                time.sleep(0.05)
                chains.extend(items)
            return super().map(function, items)

    with pytest.raises(StoreError):
        check(prepare(options(store)), Failing())
    assert len(chains) < len(list((store.root / names.INDEX).iterdir()))
