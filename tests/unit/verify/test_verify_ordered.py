"""Verifying what is written in log order, on stores of the real one: consumequeue_ext and batch queues."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.format import names
from reput.format.batchconsumequeue import UNIT_LENGTH as BATCH_UNIT
from reput.replay.runner import InlineRunner
from reput.verify.batch import look_at
from reput.verify.plan import prepare
from reput.verify.report import Difference, Report
from reput.verify.run import check
from reput.verify.units import BLOCK
from tests.golden.store import FILTERED, GoldenStore, unpack
from tests.local import Store, in_log_order, rebuild_locally
from tests.rebuilds import broker_lock
from tests.unit.verify.test_verify import change, only, open_golden, options, pair_report, report_on

EXT, BATCH = "5.3.3-queue-ext", "5.3.3-batch-queue"
RECORD = 20


@pytest.fixture
def ext(tmp_path: Path) -> GoldenStore:
    return open_golden(EXT, tmp_path)


@pytest.fixture
def batch(tmp_path: Path) -> GoldenStore:
    return open_golden(BATCH, tmp_path)


def ext_file(store: GoldenStore, number: int = 0) -> Path:
    return sorted((store.root / names.CONSUME_QUEUE_EXT / "Orders" / "0").iterdir())[number]


def batch_file(store: GoldenStore, number: int = 0) -> Path:
    return sorted((store.root / names.BATCH_CONSUME_QUEUE / "Batches" / "0").iterdir())[number]


def put(at: int, value: bytes) -> Callable[[bytearray], None]:
    def write(data: bytearray) -> None:
        data[at : at + len(value)] = value

    return write


def kinds(report: Report) -> set[tuple[str, str | None]]:
    return {(one.kind, one.cause) for one in report.findings}


@pytest.mark.parametrize("name", FILTERED)
def test_records_with_bit_maps_are_sound(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    store.write_broker_conf(tmp_path / "broker.conf")
    report = report_on(store)
    assert report.findings == []
    (note,) = [note for note in report.not_checked if note.kind == "queue-ext"]
    assert note.count > 0
    assert "bit maps" in note.text


# --- consumequeue_ext -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "kind", "cause"),
    [
        (9, b"\x55", "wrong-ext-unit", None),
        (17, b"\x55", "wrong-ext-unit", None),
        (0, b"\x00\x00", "dangling-address", "queue-ext-broken"),
        (18, b"\x00\x07", "dangling-address", "queue-ext-broken"),
    ],
)
def test_a_wrong_record(ext: GoldenStore, field: int, value: bytes, kind: str, cause: str | None) -> None:
    path = ext_file(ext)
    change(path, put(3 * RECORD + field, value))
    found = only(report_on(ext))
    assert (found.kind, found.cause, found.topic, found.queue_id) == (kind, cause, "Orders", 0)
    assert (found.first, found.count, found.path, found.offset) == (3, 1, str(path), 3 * RECORD)


def test_lost_records(ext: GoldenStore) -> None:
    ext_file(ext).unlink()
    report = report_on(ext)
    assert kinds(report) == {("dangling-address", "queue-ext-file-lost")}
    shutil.rmtree(ext.root / names.CONSUME_QUEUE_EXT)
    assert kinds(report_on(ext)) == {("dangling-address", "queue-ext-lost")}


def test_addresses_that_go_down(ext: GoldenStore) -> None:
    def swap(data: bytearray) -> None:
        """The addresses of units 4 and 5, which have no tags, so that their records are nearly the same."""
        data[92:100], data[112:120] = data[112:120], data[92:100]

    path = sorted((ext.root / names.CONSUME_QUEUE / "Orders" / "0").iterdir())[0]
    change(path, swap)
    report = report_on(ext)
    assert report.findings
    assert {one.kind for one in report.findings} <= {"wrong-ext-unit", "unordered-address"}


def test_a_switch_that_was_turned_on_later(tmp_path: Path) -> None:
    store = open_golden("5.3.3-tiny", tmp_path)
    with (tmp_path / "broker.conf").open("a", encoding="utf-8") as conf:
        conf.write("\nenableConsumeQueueExt=true\n")
    report = report_on(store)
    assert report.findings == []
    (note,) = [note for note in report.notes if note.kind == "plain-tags"]
    assert 0 < note.count < report.units  # light queues hold plain ones for good


def test_records_of_two_stores_are_compared_by_what_they_say(ext: GoldenStore) -> None:
    slave = ext.root.parent / "slave"
    shutil.copytree(ext.root, slave)
    change(slave / ext_file(ext).relative_to(ext.root), put(2 * RECORD + 9, b"\x77"))
    found = only(pair_report(ext, slave))
    assert (found.kind, found.topic, found.first, found.count) == ("differs", "Orders", 2, 1)
    # Other addresses, the same records: a broker gives them by itself.
    for path in (slave / names.CONSUME_QUEUE_EXT / "Orders" / "0").iterdir():
        path.unlink()
    shutil.copytree(ext.root / names.CONSUME_QUEUE_EXT, slave / names.CONSUME_QUEUE_EXT, dirs_exist_ok=True)
    assert pair_report(ext, slave).findings == []


# --- batch queues -----------------------------------------------------------------------------------------


def test_zeroed_units(batch: GoldenStore) -> None:
    path = batch_file(batch)
    change(path, put(2 * BATCH_UNIT, bytes(BATCH_UNIT)))
    report = report_on(batch)
    assert kinds(report) == {("missing-unit", "zeroed"), ("blank-unit", "zeroed")}
    assert {one.count for one in report.findings} == {1}
    assert {(one.path, one.offset) for one in report.findings if one.kind == "blank-unit"} == {
        (str(path), 2 * BATCH_UNIT)
    }


@pytest.mark.parametrize(("field", "said"), [(11, "size"), (27, "storeTimestamp"), (35, "msgBaseOffset")])
def test_a_wrong_field(batch: GoldenStore, field: int, said: str) -> None:
    change(batch_file(batch), put(BATCH_UNIT + field, b"\x99"))
    found = only(report_on(batch))
    assert (found.kind, found.count, found.path) == ("wrong-unit", 1, str(batch_file(batch)))
    assert found.offset == BATCH_UNIT
    assert found.expected != found.found, said


def test_units_in_each_others_place(batch: GoldenStore) -> None:
    def swap(data: bytearray) -> None:
        first, second = data[:BATCH_UNIT], data[BATCH_UNIT : 2 * BATCH_UNIT]
        data[: 2 * BATCH_UNIT] = second + first

    change(batch_file(batch), swap)
    found = only(report_on(batch))
    assert (found.kind, found.count, found.offset) == ("unordered-unit", 1, BATCH_UNIT)


def test_a_unit_that_is_there_twice_and_one_of_no_message(batch: GoldenStore) -> None:
    last = batch_file(batch, -1)
    used = len(last.read_bytes().rstrip(b"\0"))
    used += -used % BATCH_UNIT
    change(last, lambda data: put(used, data[used - BATCH_UNIT : used])(data))
    assert kinds(report_on(batch)) == {("extra-unit", "repeated-unit")}
    change(last, put(used, (1 << 40).to_bytes(8, "big")))
    assert kinds(report_on(batch)) == {("extra-unit", "past-log-end")}


def test_a_lost_batch_queue_and_a_short_one(batch: GoldenStore) -> None:
    last = batch_file(batch, -1)
    change(last, put(0, bytes(len(last.read_bytes()))))
    assert kinds(report_on(batch)) == {("missing-unit", "queue-short")}
    shutil.rmtree(batch.root / names.BATCH_CONSUME_QUEUE / "Batches")
    report = report_on(batch)
    assert kinds(report) == {("missing-unit", "queue-lost")}


def test_a_batch_queue_that_the_log_knows_nothing_of(batch: GoldenStore) -> None:
    shutil.copytree(batch_file(batch).parent, batch_file(batch).parent.parent / "77")
    report = report_on(batch)
    assert {one.kind for one in report.findings} == {"extra-unit"}
    assert {(one.topic, one.queue_id) for one in report.findings} == {("Batches", 77)}


@pytest.mark.parametrize("gap", [1, BLOCK])
def test_units_that_a_running_broker_writes_are_let_be(tmp_path: Path, gap: int) -> None:
    """Those of messages past the end that was looked at, and what is read before they are there."""
    size, unit = 3 * BLOCK * BATCH_UNIT, (5000).to_bytes(8, "big") + bytes(30) + b"\xff" * 4 + bytes(4)
    path = names.batch_queue_directory(tmp_path, "Batches", 0) / names.offset_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes((bytes(gap * BATCH_UNIT) + unit).ljust(size, b"\0"))
    for running, log_end, expected in ((False, 5000, 1), (True, 5000, 0), (True, 5001, 1)):
        found = look_at(tmp_path, size, ("Batches", 0), log_end, running=running)
        assert [(one.kind, one.count, one.place) for one in found.ranges] == [
            ("blank-unit", gap, 0)
        ] * expected
        assert (found.count, found.blanks, found.least) == (1, gap * expected, 5000)


def test_a_running_broker_that_adds_to_a_batch_queue(batch: GoldenStore) -> None:
    last = batch_file(batch, -1)
    used = len(last.read_bytes().rstrip(b"\0"))
    used += -used % BATCH_UNIT
    end = int(batch.manifest["log"]["end"])
    change(last, put(used + BATCH_UNIT, end.to_bytes(8, "big") + b"\0\0\0\x01"))
    assert kinds(report_on(batch)) == {("blank-unit", "zeroed"), ("extra-unit", "past-log-end")}
    with broker_lock(batch.root):
        assert report_on(batch).findings == []


def test_chosen_batch_queues(batch: GoldenStore) -> None:
    change(batch_file(batch), put(2 * BATCH_UNIT, bytes(BATCH_UNIT)))
    asked = options(batch, queues=("Batches:1",))
    assert check(prepare(asked), InlineRunner()).findings == []
    asked = options(batch, queues=("Batches",))
    assert check(prepare(asked), InlineRunner()).findings


def test_batch_queues_of_two_stores(batch: GoldenStore) -> None:
    slave = batch.root.parent / "slave"
    shutil.copytree(batch.root, slave)
    assert pair_report(batch, slave).findings == []
    path = slave / batch_file(batch).relative_to(batch.root)
    change(path, put(BATCH_UNIT + 27, b"\x99"))
    change(path, put(3 * BATCH_UNIT, bytes(BATCH_UNIT)))
    found: list[Difference] = pair_report(batch, slave).findings
    assert sorted((one.kind, one.count) for one in found) == [("differs", 1), ("only-in-first", 1)]


# --- a batch topic that was deleted and created again -----------------------------------------------------

FILE = 20 * BATCH_UNIT


@pytest.fixture
def again(tmp_path: Path) -> GoldenStore:
    """Topic ``Again`` with batch queues as a live broker holds them: of its newest incarnation only."""
    store = open_golden("5.3.3-recreated-topic", tmp_path)
    shutil.rmtree(store.root / names.CONSUME_QUEUE / "Again")
    store.manifest["topics"]["Again"] = {"queue.type": "BatchCQ"}
    store.write_topics_json()
    with (tmp_path / "broker.conf").open("a", encoding="utf-8") as conf:
        conf.write(f"\nmapperFileSizeBatchConsumeQueue={FILE}\n")
    settings = StoreSettings.load(store.root, tmp_path / "broker.conf", store.version)
    rebuild_locally(in_log_order(Store(store.root, settings), "Again"), tmp_path / "out", index=False)
    for queue in (tmp_path / "out" / names.BATCH_CONSUME_QUEUE / "Again").iterdir():
        units = incarnations(queue)
        if queue.name != "2":  # which got no message since
            write_units(store.root / queue.relative_to(tmp_path / "out"), units[-1])
    return store


def incarnations(queue: Path) -> list[bytes]:
    """The units of a rebuilt queue, cut where its queueOffsets begin at 0 again."""
    found: list[bytes] = []
    data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
    for at in range(0, len(data), BATCH_UNIT):
        unit = data[at : at + BATCH_UNIT]
        if not any(unit):
            break
        if unit[28:36] == bytes(8):
            found.append(b"")
        found[-1] += unit
    return found


def write_units(queue: Path, units: bytes) -> None:
    queue.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(units), FILE):
        (queue / names.offset_name(at)).write_bytes(units[at : at + FILE].ljust(FILE, b"\0"))


@pytest.mark.parametrize("part_bytes", [3_000, 1_000_000])
def test_a_batch_topic_that_was_created_again_is_sound(again: GoldenStore, part_bytes: int) -> None:
    report = report_on(again, part_bytes=part_bytes)
    assert report.findings == []
    notes = {(note.kind, note.topic, note.queue_id): note for note in report.notes}
    assert {"queue-restarted", "deleted-queue"} >= {kind for kind, _, _ in notes}
    # 200 messages over three queues, then 30 in queue 0.
    assert notes["queue-restarted", "Again", 0].count == 67 + 30
    assert notes["queue-restarted", "Again", 1].count == 67
    assert notes["deleted-queue", "Again", 2].count == 66


def test_a_rebuilt_batch_queue_holds_both_incarnations(again: GoldenStore) -> None:
    for queue in (again.root.parent / "out" / names.BATCH_CONSUME_QUEUE / "Again").iterdir():
        units = b"".join(incarnations(queue))
        write_units(again.root / names.BATCH_CONSUME_QUEUE / "Again" / queue.name, units)
    report = report_on(again)
    assert (report.findings, report.notes) == ([], [])
    # One that holds some of the old one has lost the rest of it.
    queue = again.root / names.BATCH_CONSUME_QUEUE / "Again" / "0"
    min(queue.iterdir()).unlink()
    assert kinds(report_on(again)) == {("missing-unit", "queue-begins-late")}
    assert only(report_on(again)).count == 20


@pytest.mark.parametrize("part_bytes", [3_000, 1_000_000])
def test_what_the_newest_incarnation_lost_is_told(again: GoldenStore, part_bytes: int) -> None:
    queue = again.root / names.BATCH_CONSUME_QUEUE / "Again" / "0"
    first = min(queue.iterdir())
    first.unlink()
    found = [one for one in report_on(again, part_bytes=part_bytes).findings if one.kind == "missing-unit"]
    assert {one.cause for one in found} == {"queue-begins-late"}
    assert (sum(one.count for one in found), found[0].first) == (20, 0)
    shutil.rmtree(queue)
    report = report_on(again, part_bytes=part_bytes)
    assert kinds(report) == {("missing-unit", "queue-lost")}
    assert sum(one.count for one in report.findings) == 85
