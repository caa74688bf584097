"""What is wrong with a store: each kind of damage, what is said about it, and what is written all the same.

The input is never changed, nothing is written outside the output, and what can be read is not lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.config.settings import StoreSettings
from reput.errors import Finding, OutputError, SettingsError, StoreError
from reput.format import commitlog, names
from reput.format.commitlog import Record
from reput.format.consumequeue import MAX_QUEUE_OFFSET, PRE_BLANK, unit
from reput.log.segments import discover
from reput.output import audit
from reput.recovery.mend_log import stand_ins
from reput.replay import placing
from reput.replay.state import FILLED, HIDDEN, KEPT, Salvaged, State
from reput.scan import output
from reput.scan.output import Status
from reput.scan.part import PartOutcome, scan_part
from reput.scan.rules import Part
from reput.store import system
from tests import slow_rebuild
from tests.local import (
    Store,
    in_log_order,
    index_of,
    kinds,
    queues,
    rebuild_locally,
    target_of,
    tree,
    units,
    write_store,
)
from tests.memory import scratch
from tests.property.logs import with_property_crc


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: thousands of flushes are not what is tested here."""
    with scratch() as place:
        yield place


SIZE = 1000
NOW = 1_700_000_000_000


def message(queue_offset: int, topic: bytes = b"T", **fields: object) -> Record:
    record = Record(
        topic, b"body", b"KEYS\x01k\x02", queue_offset=queue_offset, store_timestamp=NOW + queue_offset
    )
    return replace(record, **fields)  # type: ignore[arg-type]


def segment(*records: Record, base: int = 0, blank: bool = False, size: int = SIZE) -> tuple[int, bytes]:
    """A segment with these messages, each in its place; closed by a BLANK or preallocated."""
    data = b""
    for record in records:
        data += commitlog.encode(replace(record, physical_offset=base + len(data)))
    if blank:
        data += commitlog.encode_blank(size - len(data))
    return base, data.ljust(size, b"\0")


LENGTH = len(commitlog.encode(message(0)))


class Result:
    """A rebuild of a store."""

    def __init__(self, tmp_path: Path, segments: list[tuple[int, bytes]], **options: object) -> None:
        self.store: Store = write_store(tmp_path / "store", segments, **options)  # type: ignore[arg-type]
        before = tree(tmp_path)
        self.state: State = rebuild_locally(self.store, tmp_path / "out")
        self.root = tmp_path / "out"
        after = {path: data for path, data in tree(tmp_path).items() if not path.startswith("out/")}
        assert after == before

    @property
    def finding(self) -> Finding:
        (finding,) = self.state.findings
        return finding

    def segment(self, base: int = 0) -> str:
        return str(self.store.root / names.COMMIT_LOG / names.offset_name(base))

    def positions(self, topic: str = "T", queue_id: int = 0) -> list[int]:
        return [position for position, _size, _tags in units(self.root, topic, queue_id)]


def changed(data: tuple[int, bytes], at: int, new: bytes) -> tuple[int, bytes]:
    base, old = data
    return base, old[:at] + new + old[at + len(new) :]


# --- what is refused ------------------------------------------------------------------------------------


def refusal(tmp_path: Path, conf: str = "") -> StoreError | SettingsError:
    before = tree(tmp_path)
    path = tmp_path / "broker.conf"
    path.write_text(conf)
    with pytest.raises((StoreError, SettingsError)) as caught:
        discover(StoreSettings.load(tmp_path / "store", path, None))
    path.unlink()
    assert tree(tmp_path) == before
    return caught.value


def test_no_store(tmp_path: Path) -> None:
    error = refusal(tmp_path)
    assert error.path == str(tmp_path / "store" / "commitlog")
    assert str(error).startswith(f"{error.path}: the commit log can't be read; expected a directory of")
    assert "found No such file or directory" in str(error)


def test_a_commit_log_without_segments(tmp_path: Path) -> None:
    write_segments(tmp_path, {"00000000000000000000.tmp": 10, "0": 10, "lock": 0})
    error = refusal(tmp_path)
    assert "the commit log is empty; expected segments named by 20 digits, found none" in str(error)


def test_a_single_segment_without_a_byte(tmp_path: Path) -> None:
    write_segments(tmp_path, {names.offset_name(0): 0})
    error = refusal(tmp_path)
    assert "the commit log is empty" in str(error)
    assert error.found == "1 segment without a byte"


def write_segments(tmp_path: Path, files: dict[str, int]) -> None:
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    for name, length in files.items():
        (directory / name).write_bytes(bytes(length))


def test_segments_that_overlap(tmp_path: Path) -> None:
    write_segments(tmp_path, {names.offset_name(base): 100 for base in (0, 100, 150)})
    error = refusal(tmp_path)
    assert (error.offset, error.path) == (
        150,
        str(tmp_path / "store" / "commitlog" / names.offset_name(150)),
    )
    assert "two segments overlap; expected a name of at least 00000000000000000200" in str(error)


def test_broker_conf_with_another_segment_size(tmp_path: Path) -> None:
    write_segments(tmp_path, {names.offset_name(base): 100 for base in (0, 100)})
    error = refusal(tmp_path, "mappedFileSizeCommitLog=1000\n")
    assert error.path == str(tmp_path / "broker.conf")
    assert "mappedFileSizeCommitLog is not this store's; expected 100, the length of every" in str(error)
    assert error.found == "1000"


def test_the_same_segment_twice(tmp_path: Path) -> None:
    write_segments(tmp_path, {names.offset_name(0): 100})
    other = tmp_path / "other"
    other.mkdir()
    (other / names.offset_name(0)).write_bytes(b"x" * 100)
    store = tmp_path / "store"
    error = refusal(tmp_path, f"storePathRootDir={store}\nstorePathCommitLog={store / 'commitlog'},{other}\n")
    assert "two files are for one place of the commit log" in str(error)
    assert str(error.found).startswith("also ")


# --- segments -------------------------------------------------------------------------------------------


def test_an_expired_head_is_no_damage(tmp_path: Path) -> None:
    result = Result(tmp_path, [segment(message(7), message(8), base=3 * SIZE)])
    assert result.state.findings == []
    (file,) = queues(result.root).items()
    assert file == (
        "T/0/00000000000000000100",
        PRE_BLANK * 2 + unit(3000, LENGTH, 0) + unit(3000 + LENGTH, LENGTH, 0) + bytes(20),
    )


def test_the_first_messages_of_a_queue_are_lost(tmp_path: Path) -> None:
    """A broker takes pre-blank units for expired messages by the log's start: with 0 it can't."""
    for log, first in (
        ([changed(segment(message(0), message(1)), 4, b"oops")], [LENGTH, LENGTH]),  # lost
        ([segment(message(1))], [0, 0]),  # nothing is missing from the log
        ([changed(segment(message(0), message(9)), 4, b"oops")], [0] * 4),  # not so many messages
        ([changed(segment(message(0), message(1), base=SIZE), 4, b"oops")], [0]),  # or expired
    ):
        result = Result(tmp_path / f"{len(first)}-{log[0][0]}-{first[0]}", log)
        assert result.positions()[: len(first)] == first
        filled = [one for one in result.state.salvaged if one.kind == "filled"]
        assert bool(filled) == (first == [LENGTH, LENGTH])


def test_what_is_passed_over_is_kept_and_what_no_queue_shows_is_listed(tmp_path: Path) -> None:
    log = [
        changed(segment(message(0), message(1), message(1), message(1), message(4)), LENGTH + 4, b"oops"),
    ]
    result = Result(tmp_path, log)
    name = f"{LENGTH:020d}-{LENGTH}"
    assert result.state.salvaged == [
        Salvaged(KEPT, LENGTH, 2 * LENGTH, file=name),
        Salvaged(HIDDEN, 3 * LENGTH, 4 * LENGTH, "T", 0, 1),
    ]
    assert tree(result.root / names.LOST_AND_FOUND).keys() == {name}
    assert (result.root / names.LOST_AND_FOUND / name).read_bytes() == log[0][1][LENGTH : 2 * LENGTH]


def test_without_room_for_what_is_kept_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = changed(segment(*map(message, range(5))), LENGTH + 4, b"oops")
    log = [changed(damaged, 3 * LENGTH + 4, b"oops")]
    monkeypatch.setattr(system, "free_bytes", lambda _path: 2 * LENGTH - 1)
    with pytest.raises(OutputError, match="no room for what is damaged") as no:
        Result(tmp_path / "full", log)
    assert no.value.expected == f"{2 * LENGTH} bytes free"
    assert not list(tmp_path.rglob(names.LOST_AND_FOUND))
    monkeypatch.setattr(system, "free_bytes", lambda _path: 2 * LENGTH)
    assert len(tree(Result(tmp_path / "enough", log).root / names.LOST_AND_FOUND)) == 2


@pytest.mark.parametrize(
    ("of_queue", "of_batch", "rows"),
    [(9, 9, [(2, 1), (3, 1), (4, 1)]), (1, 9, [(2, 1), (3, 2)]), (9, 2, [(2, 3)])],
)
def test_very_many_hidden_messages_are_told_as_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_queue: int,
    of_batch: int,
    rows: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr(placing, "MOST_HIDDEN", of_queue)
    monkeypatch.setattr(audit, "MOST_HIDDEN_IN_BATCH", of_batch)
    result = Result(tmp_path, [segment(*map(message, (0, 1, 1, 1, 1)))])
    assert result.state.salvaged == [
        Salvaged(HIDDEN, first * LENGTH, (first + count) * LENGTH, "T", 0, 1, count) for first, count in rows
    ]


def test_a_hole_is_told_with_where_its_messages_lay(tmp_path: Path) -> None:
    zeros = (LENGTH, bytes(2 * LENGTH))
    result = Result(tmp_path, [changed(segment(*map(message, range(4))), *zeros)])
    assert result.state.salvaged == [
        Salvaged(KEPT, LENGTH, 3 * LENGTH),
        Salvaged(FILLED, LENGTH, 3 * LENGTH, "T", 0, 1, 2),
    ]
    assert not (result.root / names.LOST_AND_FOUND).exists()


def test_a_missing_segment(tmp_path: Path) -> None:
    result = Result(
        tmp_path,
        [
            segment(message(0), message(1), blank=True),
            segment(message(4), message(5), base=2 * SIZE),
        ],
        segment_size=SIZE,
    )
    gap, hole = result.state.findings
    assert str(gap) == (
        f"{result.segment(2000)} at physical offset 1000 to 2000: missing-segments: expected segment "
        "00000000000000001000, found 00000000000000002000 as the next one; the gap was passed over"
    )
    assert (hole.kind, hole.queue_offset, hole.count) == ("missing-queue-offsets", 2, 2)
    assert (hole.topic, hole.queue_id, hole.offset) == ("T", 0, 2000)
    assert hole.expected == "the queueOffset that is due, 2"
    assert hole.found == "4"
    assert "filled with the unit after it" in hole.outcome
    assert result.positions() == [0, LENGTH, 2000, 2000, 2000, 2000 + LENGTH]


@pytest.mark.parametrize("length", [0, 5, 2 * LENGTH, SIZE - 1])
def test_a_short_segment_in_the_middle(tmp_path: Path, length: int) -> None:
    full = segment(message(0), message(1), blank=True)
    result = Result(
        tmp_path,
        [(0, full[1][:length]), segment(message(2), base=SIZE)],
        segment_size=SIZE,
    )
    first = result.state.findings[0]
    assert first.kind == "segment-length"
    assert (first.path, first.offset, first.end) == (result.segment(), length, SIZE)
    assert (first.expected, first.found) == ("1000 bytes", f"{length} bytes")
    assert result.positions()[-1] == SIZE
    assert result.state.cursor == SIZE + LENGTH


def test_a_long_segment(tmp_path: Path) -> None:
    base, data = segment(message(0), blank=True)
    result = Result(tmp_path, [(base, data + b"more"), segment(message(1), base=SIZE)], segment_size=SIZE)
    assert str(result.finding).endswith(
        "00000000000000000000 at physical offset 1000: segment-length: expected 1000 bytes, "
        "found 1004 bytes; what is beyond was not read; no broker starts with it"
    )
    assert result.positions() == [0, SIZE]


def test_a_short_last_segment_without_a_word_of_its_size(tmp_path: Path) -> None:
    result = Result(
        tmp_path, [segment(message(0), blank=True), (SIZE, segment(message(1), base=SIZE)[1][:LENGTH])]
    )
    assert result.positions() == [0, SIZE]
    assert kinds(result.state.findings) == ["segment-length"]


@pytest.mark.parametrize("length", [LENGTH, LENGTH + 40, SIZE - 1])
def test_a_last_segment_that_is_cut_behind_its_last_message(tmp_path: Path, length: int) -> None:
    """Nothing is lost, but a broker doesn't start with the file."""
    first, (base, data) = segment(message(0), blank=True), segment(message(1), base=SIZE)
    result = Result(tmp_path, [first, (base, data[:length])], segment_size=SIZE)
    assert result.positions() == [0, SIZE]
    assert (result.finding.kind, result.finding.offset) == ("segment-length", SIZE + length)
    assert rebuild_locally(result.store, result.root).findings == [result.finding]


# --- records --------------------------------------------------------------------------------------------

RECORD_DAMAGE = {
    "a size of zero": (LENGTH, struct.pack(">i", 0), "bad-size", "0 with"),
    "a negative size": (LENGTH, struct.pack(">i", -5), "bad-size", "-5 with"),
    "a size beyond the segment": (LENGTH, struct.pack(">i", 5000), "bad-size", "5000 with"),
    "a size less than a record has": (LENGTH, struct.pack(">i", 90), "bad-size", "90 with"),
    "a size less than its parts": (LENGTH, struct.pack(">i", 95), "bad-lengths", "a record of 95 bytes"),
    "an unknown magic": (LENGTH + 4, b"\xde\xad\xbe\xef", "bad-magic", "0xdeadbeef"),
    "zeros": (LENGTH, bytes(8), "unwritten-range", "zeros"),
    "another place": (
        LENGTH + commitlog.PHYSICAL_OFFSET,
        struct.pack(">q", 99),
        "bad-physical-offset",
        f"99 at {LENGTH}",
    ),
    "properties that are cut short": (2 * LENGTH - 9, b"\0\3", "bad-lengths", f"a record of {LENGTH}"),
}


@pytest.mark.parametrize("case", RECORD_DAMAGE)
@pytest.mark.parametrize("last", [True, False])
def test_a_damaged_record_is_passed_over(tmp_path: Path, case: str, last: bool) -> None:
    at, new, kind, found = RECORD_DAMAGE[case]
    log = [changed(segment(message(0), message(1), message(2), blank=not last), at, new)]
    if not last:
        log.append(segment(message(3), base=SIZE))
    result = Result(tmp_path, log)
    damage, hole = result.state.findings
    assert (damage.kind, damage.path) == (kind, result.segment())
    assert (damage.offset, damage.end) == (LENGTH, 2 * LENGTH)
    assert damage.found.startswith(found)
    assert damage.expected
    assert damage.outcome == "passed over up to the next whole record"
    assert (hole.kind, hole.queue_offset, hole.count) == ("missing-queue-offsets", 1, 1)
    assert result.positions()[:3] == [0, 2 * LENGTH, 2 * LENGTH]


def test_a_stand_in_for_damage_is_said_to_be_one(tmp_path: Path) -> None:
    log = changed(segment(message(0), message(1), message(2)), LENGTH, b"\xee" * LENGTH)
    data = np.frombuffer(log[1], np.uint8)
    for position, record in stand_ins(data, 0, LENGTH, 2 * LENGTH, NOW):
        log = changed(log, position, record)
    damage, _hole = Result(tmp_path, [log]).state.findings
    assert (damage.kind, damage.offset, damage.end) == ("bad-physical-offset", LENGTH, 2 * LENGTH)
    assert damage.found == f"{LENGTH + 1} at {LENGTH}, a stand-in of `reput mend`"


@pytest.mark.parametrize("case", RECORD_DAMAGE)
def test_a_damaged_last_record_is_a_torn_tail(tmp_path: Path, case: str) -> None:
    at, new, _kind, found = RECORD_DAMAGE[case]
    result = Result(tmp_path, [changed(segment(message(0), message(1)), at, new)])
    finding = result.finding
    assert (finding.kind, finding.offset, finding.end) == ("torn-tail", LENGTH, LENGTH)
    assert finding.found.startswith(found)
    assert "the log is taken to end here" in finding.outcome
    assert result.positions() == [0]
    assert result.state.cursor == LENGTH


@pytest.mark.parametrize("case", RECORD_DAMAGE)
def test_a_damaged_last_record_of_a_segment_before_the_last(tmp_path: Path, case: str) -> None:
    at, new, kind, found = RECORD_DAMAGE[case]
    log = [changed(segment(message(0), message(1)), at, new), segment(message(2), base=SIZE)]
    result = Result(tmp_path, log)
    damage, hole = result.state.findings
    assert (damage.kind, damage.offset, damage.end) == (kind, LENGTH, SIZE)
    assert damage.found.startswith(found)
    assert damage.outcome == "passed over up to the next segment"
    assert hole.kind == "missing-queue-offsets"
    assert result.positions() == [0, SIZE, SIZE]


TORN_PROPERTIES = {
    "zeros": (bytes(6), "zeros in the last 6 of 7 bytes"),
    "the last byte": (b"EYS\x01k\0", "zeros in the last 1 of 7 bytes"),
    "no pairs": (b"\xee" * 6, "7 bytes that are no pairs"),
    "a record's fields": (b"\0\x06O\x01v\x02", "7 bytes that are no pairs"),
}


@pytest.mark.parametrize("case", TORN_PROPERTIES)
@pytest.mark.parametrize("behind", ["damage", "zeros", "a torn tail", "the segment's end"])
def test_damage_that_begins_in_the_properties_of_a_message(tmp_path: Path, case: str, behind: str) -> None:
    new, found = TORN_PROPERTIES[case]
    records = [message(0), message(1), message(2)][: 1 if behind == "zeros" else None]
    log = [changed(segment(*records), LENGTH - 6, new)]
    if behind == "the segment's end":
        log = [changed(segment(message(0)), LENGTH - 6, new), segment(message(1), base=SIZE)]
    elif behind != "zeros":
        log = [changed(log[0], LENGTH, b"\xee" * ((1 if behind == "damage" else 2) * LENGTH))]
    result = Result(tmp_path, log)
    told = [one for one in result.state.findings if one.kind == "torn-properties"]
    if behind in ("zeros", "the segment's end") and found == "7 bytes that are no pairs":
        assert not told
        return
    (finding,) = told
    assert (finding.path, finding.offset, finding.end) == (result.segment(), LENGTH - 7, LENGTH)
    assert finding.expected == "pairs of name and value as the properties"
    assert finding.found == f"{found}, in the message at 0"
    assert finding.outcome == "it was taken, with tagsCode and keys of what is left"
    assert result.positions()[0] == 0


@pytest.mark.parametrize("written", [1, 20, 45, 60])
def test_a_message_torn_behind_its_body_over_what_a_cut_left(tmp_path: Path, written: int) -> None:
    """Its body has its CRC; its properties go on with bytes of an older one, which may look like pairs."""

    def record(number: int, place: int, body: bytes, time: int) -> bytes:
        text = b"UNIQ_KEY\x017F000001ABCD%016d\x02KEYS\x01order-%06d\x02TAGS\x01tag\x02" % (number, number)
        one = Record(topic=b"Orders", body=body, properties=text, queue_offset=number, physical_offset=place)
        return commitlog.encode(replace(one, born_timestamp=time, store_timestamp=time))

    old = b""
    for number in range(8):
        old += record(number, len(old), b"o" * 40, 1000 + number)
    cut = len(record(0, 0, b"o" * 40, 0)) * 2
    new = record(2, cut, b"new", 9000)
    torn = record(3, cut + len(new), b"torn", 9001)
    properties = len(commitlog.decode(torn).properties)
    log = bytearray(old.ljust(4096, b"\0"))
    log[cut : cut + len(new)] = new
    log[cut + len(new) : cut + len(new) + len(torn) - properties + written] = torn[: written - properties]
    result = Result(tmp_path, [(0, bytes(log))])
    (finding,) = result.state.findings
    end = cut + len(new) + len(torn)
    assert (finding.kind, finding.offset, finding.end) == ("torn-properties", end - properties, end)
    assert result.state.cursor == end, "and the old messages behind are no torn tail"


def test_torn_properties_are_told_once(tmp_path: Path) -> None:
    late = message(2, commitlog.SCHEDULE_TOPIC, properties=b"DELAY\x01soon\x02")
    log = changed(segment(message(0), message(1), late, message(3), message(4)), LENGTH - 3, bytes(3))
    for damaged in (LENGTH, 2 * LENGTH + len(commitlog.encode(late))):
        log = changed(log, damaged + commitlog.MAGIC, b"\xee")
    kinds_ = kinds(Result(tmp_path, [log]).state.findings)
    assert kinds_ == ["torn-properties", "bad-magic", "bad-delay", "bad-magic", "missing-queue-offsets"]


def test_properties_before_damage_that_are_as_a_client_wrote_them(tmp_path: Path) -> None:
    odd = [b"", b"KEYS\x01k", b"A\x01\x02B\x01b\x02", b"A\x01a\x02\x02B\x01b\x02", b"A\x01\x01\x02"]
    for number, properties in enumerate(odd):
        first = message(0, properties=properties)
        whole = len(commitlog.encode(first))
        log = changed(segment(first, message(1), message(2)), whole, b"\xee" * LENGTH)
        findings = Result(tmp_path / str(number), [log]).state.findings
        assert kinds(findings) == ["bad-magic", "missing-queue-offsets"]


def test_a_wrong_crc_in_the_middle_is_reported_and_taken(tmp_path: Path) -> None:
    result = Result(
        tmp_path, [changed(segment(message(0), message(1)), commitlog.BODY_AFTER_STORE_HOST + 72, b"B")]
    )
    finding = result.finding
    assert (finding.kind, finding.offset, finding.end) == ("bad-crc", 0, LENGTH)
    assert finding.expected == "a body with the stored CRC"
    wrong, stored = commitlog.body_crc(b"Body"), commitlog.body_crc(b"body")
    assert finding.found == f"CRC 0x{wrong:08x} where 0x{stored:08x} is stored"
    assert finding.outcome == "taken, for its frame is whole"
    assert result.positions() == [0, LENGTH]


def test_a_wrong_crc_at_the_end_is_a_torn_tail(tmp_path: Path) -> None:
    at = LENGTH + commitlog.BODY_AFTER_STORE_HOST + 72
    result = Result(tmp_path, [changed(segment(message(0), message(1)), at, b"B")])
    assert (result.finding.kind, result.finding.offset) == ("torn-tail", LENGTH)
    assert result.finding.found.startswith("CRC 0x")
    assert result.positions() == [0]


def test_a_wrong_crc_before_a_blank_is_taken(tmp_path: Path) -> None:
    at = commitlog.BODY_AFTER_STORE_HOST + 72
    result = Result(tmp_path, [changed(segment(message(0), blank=True), at, b"B")])
    assert result.finding.kind == "bad-crc"
    assert result.positions() == [0]


def test_a_wrong_property_crc(tmp_path: Path) -> None:
    whole = commitlog.encode(message(0, properties=b"KEYS\x01k\x02" + bytes(20)))
    data = with_property_crc(whole[:-20])
    second = commitlog.encode(message(1, physical_offset=len(data)))
    log = (0, (data + second).ljust(SIZE, b"\0"))
    assert Result(tmp_path / "sound", [log]).state.findings == []
    result = Result(tmp_path, [changed(log, len(data) - 22, b"x")])
    assert (result.finding.kind, result.finding.offset) == ("bad-property-crc", 0)
    assert result.finding.expected == "a record with the CRC in its __CRC32# property"
    assert result.positions() == [0, len(data)]


def test_delay_that_is_no_number(tmp_path: Path) -> None:
    result = Result(
        tmp_path,
        [
            segment(
                message(0, commitlog.SCHEDULE_TOPIC, properties=b"DELAY\x01soon\x02"),
                message(1, commitlog.SCHEDULE_TOPIC, properties=b"DELAY\x013\x02"),
            )
        ],
    )
    finding, hole = result.state.findings
    assert (finding.kind, finding.offset) == ("bad-delay", 0)
    assert finding.expected == "a number in DELAY"
    assert finding.outcome == "no unit and no keys were written"
    assert (hole.kind, hole.queue_offset, hole.count) == ("missing-queue-offsets", 0, 1)
    assert [tags for _, _, tags in units(result.root, "SCHEDULE_TOPIC_XXXX")] == [NOW + 1 + 10_000] * 2


def test_inner_batch_without_numbers(tmp_path: Path) -> None:
    log = [segment(message(0), message(1, properties=b"INNER_BASE\x01x\x02INNER_NUM\x011\x02"), message(2))]
    result = Result(tmp_path / "5", log)
    assert kinds(result.state.findings) == ["bad-inner-batch", "missing-queue-offsets"]
    assert Result(tmp_path / "4", log, version="4.9.7").state.findings == []


def test_long_topics_are_no_messages_to_4_9(tmp_path: Path) -> None:
    log = [segment(message(0), message(0, b"t" * 130, version=2), message(1))]
    assert Result(tmp_path / "5", log).state.findings == []
    result = Result(tmp_path / "4", log, version="4.9.7")
    assert kinds(result.state.findings) == ["bad-magic"]
    assert result.finding.found == "0xdaa320ab"


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        (b"../../escaped", "a name with a path separator or NUL: '../../escaped'"),
        (b"/etc", "a name with a path separator or NUL: '/etc'"),
        (b"a/b", "a name with a path separator or NUL: 'a/b'"),
        (b"a\0b", "a name with a path separator or NUL: 'a\\x00b'"),
        (b"..", "a name that means another directory: '..'"),
        (b".", "a name that means another directory: '.'"),
        (b"", "an empty name: ''"),
        (b"t" * 256, "a name of 256 bytes: "),
        (b"\xff" * 86, "a name of 258 bytes: '\ufffd\ufffd"),
    ],
)
def test_topics_that_are_no_directory(tmp_path: Path, topic: bytes, problem: str) -> None:
    version = 2 if len(topic) > 127 else 1
    odd = message(0, topic, version=version)
    result = Result(tmp_path / "in", [segment(odd, message(0), replace(odd, queue_offset=1), size=2000)])
    finding = result.finding
    assert (finding.kind, finding.offset, finding.count) == ("unsafe-topic", 0, 2)
    assert finding.path == result.segment()
    assert finding.found.startswith(problem)
    assert finding.expected == "a topic that can be a directory of its own"
    assert finding.outcome == "its messages got no units"
    assert set(queues(result.root)) == {"T/0/00000000000000000000"}
    assert list(result.state.without_unit.values()) == [2]
    # Nothing but the two directories that were asked for, here and one level up.
    assert {path.name for path in tmp_path.iterdir()} == {"in"}
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"store", "out"}
    assert len(index_of(result.root)) == 1


def test_topics_that_java_reads_alike_are_one(tmp_path: Path) -> None:
    """As the real stores have it: tests/compat/test_texts.py."""
    log = [
        message(0, b"caf\xe9"),
        message(1, b"caf\xff"),
        message(2, "caf\ufffd".encode()),
        message(0, b"\xff\xfe"),
    ]
    result = Result(tmp_path, [segment(*log)])
    assert result.state.findings == []
    assert result.state.without_unit == {}
    assert sorted({path.split("/")[0] for path in queues(result.root)}) == ["caf\ufffd", "\ufffd\ufffd"]
    assert len(units(result.root, "caf\ufffd")) == 3


def test_a_light_queue_that_would_escape(tmp_path: Path) -> None:
    properties = b"INNER_MULTI_DISPATCH\x01../../x,%LMQ%ok\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02"
    log = [segment(message(0, properties=properties))]
    old = Result(tmp_path / "old", log, version="4.9.7", enable_multi_dispatch=True)
    assert kinds(old.state.findings) == ["unsafe-topic"]
    assert old.positions("%LMQ%ok") == [0]
    new = Result(tmp_path / "new", log, enable_multi_dispatch=True)
    assert new.state.findings == []
    assert new.positions("%LMQ%ok") == [0]
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new"}


@pytest.mark.parametrize(
    ("names_text", "offsets", "kind", "lmq"),
    [
        (b"%LMQ%a,%LMQ%b", b"0", "lmq-counts", {}),
        (b"%LMQ%a,%LMQ%b", b"0,x", "bad-lmq-offset", {"%LMQ%a": [0]}),
        (b"%LMQ%a,%LMQ%b", b"-1,0", "bad-lmq-offset", {}),
        (b"%LMQ%a", b"9223372036854775807", "bad-lmq-offset", {}),
    ],
)
def test_light_queues_that_cannot_be_dispatched(
    tmp_path: Path, names_text: bytes, offsets: bytes, kind: str, lmq: dict[str, list[int]]
) -> None:
    properties = b"INNER_MULTI_DISPATCH\x01%b\x02INNER_MULTI_QUEUE_OFFSET\x01%b\x02" % (names_text, offsets)
    result = Result(tmp_path, [segment(message(0, properties=properties))], enable_multi_dispatch=True)
    assert (result.finding.kind, result.finding.offset) == (kind, 0)
    assert result.positions() == [0]
    assert {name: result.positions(name) for name in ("%LMQ%a",) if result.positions(name)} == lmq


# --- queue offsets --------------------------------------------------------------------------------------


def of(*offsets: int) -> list[tuple[int, bytes]]:
    return [segment(*(message(offset) for offset in offsets), size=2000)]


def test_a_jump_in_a_whole_log_is_appended_as_by_a_broker(tmp_path: Path) -> None:
    result = Result(tmp_path, of(0, 1, 7, 8, 9))
    finding = result.finding
    assert (finding.kind, finding.queue_offset, finding.count) == ("queue-offset-jump", 7, 3)
    assert finding.expected == "the queueOffset that is due, 2"
    assert finding.outcome == "appended at the due place, as the broker's dispatch does"
    assert result.positions() == [LENGTH * row for row in range(5)]


@pytest.mark.parametrize("huge", [1 << 40, MAX_QUEUE_OFFSET])
def test_a_huge_queue_offset_makes_no_huge_file(tmp_path: Path, huge: int) -> None:
    result = Result(tmp_path, of(0, huge, 1))
    assert kinds(result.state.findings) == ["queue-offset-jump", "repeated-queue-offset"]
    assert sum(map(len, queues(result.root).values())) == 100


@pytest.mark.parametrize("offset", [-1, -(1 << 63), MAX_QUEUE_OFFSET + 1, (1 << 63) - 1])
def test_a_queue_offset_without_a_place(tmp_path: Path, offset: int) -> None:
    result = Result(tmp_path, [segment(message(0), message(offset, store_timestamp=NOW), message(1))])
    finding = result.finding
    assert (finding.kind, finding.offset, finding.found) == ("bad-queue-offset", LENGTH, str(offset))
    assert finding.expected == "a queueOffset that fits a file"
    assert result.positions() == [0, 2 * LENGTH]


def test_the_first_of_a_repeat_wins(tmp_path: Path) -> None:
    result = Result(tmp_path, of(3, 4, 5, 4, 5, 6))
    finding = result.finding
    assert (finding.kind, finding.queue_offset, finding.count) == ("repeated-queue-offset", 4, 2)
    assert finding.offset == 3 * LENGTH
    assert result.positions()[3:] == [0, LENGTH, 2 * LENGTH, 5 * LENGTH]


def test_a_queue_that_runs_backwards(tmp_path: Path) -> None:
    result = Result(tmp_path, of(5, 4, 3, 2))
    assert result.finding.count == 3
    assert result.finding.kind == "repeated-queue-offset"
    assert result.positions() == [0]


def test_the_newest_incarnation_is_kept(tmp_path: Path) -> None:
    result = Result(tmp_path, of(0, 1, 2, 3, 0, 1))
    finding = result.finding
    assert (finding.kind, finding.offset, finding.count) == ("queue-restarted", 4 * LENGTH, 4)
    assert "the newest messages alone are kept" in finding.outcome
    assert result.positions() == [4 * LENGTH, 5 * LENGTH]


def test_a_lone_zero_is_appended_as_by_a_broker(tmp_path: Path) -> None:
    result = Result(tmp_path, of(0, 1, 0, 3))
    assert result.finding.kind == "queue-offset-jump"
    assert result.positions() == [LENGTH * row for row in range(4)]


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("ends", [(), (2,), (3,)])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_lone_zero_begins_a_queue_whose_own_file_does(
    tmp_path: Path, ends: tuple[int, ...], begins: bool, in_order: bool
) -> None:
    records = [message(0), message(1), message(0), message(0, topic=b"U")]
    store = write_store(tmp_path / "store", [segment(*records)])
    file = names.queue_file(store.root, "T", 0, 0)
    file.parent.mkdir(parents=True)
    file.write_bytes(unit(2 * LENGTH if begins else 0, LENGTH, 0).ljust(100, b"\0"))
    store = in_log_order(store) if in_order else store
    state = rebuild_locally(store, tmp_path / "out", ends=[LENGTH * end for end in ends])
    assert [one.kind for one in state.findings] == ["queue-restarted" if begins else "queue-offset-jump"]
    found = [position for position, _, _ in units(tmp_path / "out", "T", 0)]
    assert found == ([2 * LENGTH] if begins else [0, LENGTH, 2 * LENGTH])


# --- tails ----------------------------------------------------------------------------------------------


def test_zeros_after_the_last_message_are_no_damage(tmp_path: Path) -> None:
    result = Result(tmp_path, [segment(message(0), size=100_000)])
    assert result.state.findings == []
    assert result.state.cursor == LENGTH


def test_what_a_truncation_left_over_is_not_taken(tmp_path: Path) -> None:
    """A broker that truncates moves its position back, the bytes stay; newer messages overwrite some."""
    base, old = segment(*(message(row) for row in range(4)))
    torn = commitlog.encode(message(1, physical_offset=LENGTH, store_timestamp=NOW + 9_000))[:-13]
    newer = commitlog.encode(message(0, store_timestamp=NOW + 8_000))
    log = changed(changed((base, old), 0, newer), LENGTH, torn + bytes(30))
    result = Result(tmp_path, [log])
    assert (result.finding.kind, result.finding.offset) == ("torn-tail", LENGTH)
    assert result.positions() == [0]


def test_what_lies_behind_a_blank_is_not_taken(tmp_path: Path) -> None:
    """Also when the BLANK's magic or size is damaged. Else the first of a repeated queueOffset would win.

    The segment was cut after its first message and written on; the BLANK lies over the fourth old one.
    """
    old = segment(*(message(row, store_timestamp=NOW - 5 + row) for row in range(5)))
    large = commitlog.encode(message(1, body=b"new" * 40, physical_offset=LENGTH))
    blank = LENGTH + len(large)
    assert 3 * LENGTH < blank < 4 * LENGTH
    log = changed(old, LENGTH, large + commitlog.encode_blank(SIZE - blank)[:8])
    following = segment(message(2), message(3), message(4), base=SIZE)
    expected = [0, LENGTH, *(SIZE + LENGTH * row for row in range(3))]
    sound = Result(tmp_path / "sound", [log, following])
    assert (sound.positions(), sound.state.findings) == (expected, [])
    by_magic = Result(tmp_path / "size", [changed(log, blank, b"\x7f\0\0\1"), following])
    assert (by_magic.positions(), by_magic.state.findings) == (expected, [])
    by_size = Result(tmp_path / "magic", [changed(log, blank + 5, b"\xff"), following])
    assert by_size.positions() == expected
    finding = by_size.finding
    assert (finding.kind, finding.offset, finding.end) == ("bad-magic", blank, SIZE)
    assert finding.outcome == "treated as the BLANK that its size indicates"


def last_record_cut(tmp_path: Path, cut: Callable[[bytes, int], bytes]) -> None:
    """A log whose last record was cut at every length, against what a broker would take of it."""
    _, data = segment(message(0), message(1), message(2))
    without = slow_rebuild.rebuild([segment(message(0), message(1))], slow_rebuild.Settings()).queues
    for length in range(LENGTH):
        log = [(0, cut(data, 2 * LENGTH + length))]
        try:
            expected = slow_rebuild.rebuild(log, slow_rebuild.Settings()).queues
        except slow_rebuild.DamagedError:
            expected = without
        result = Result(tmp_path / str(length), log, segment_size=SIZE)
        assert queues(result.root) == expected
        torn = [finding for finding in result.state.findings if finding.kind == "torn-tail"]
        if any(log[0][1][2 * LENGTH :]) and expected == without:
            assert [finding.offset for finding in torn] == [2 * LENGTH]
        if len(log[0][1]) < SIZE:
            assert result.state.findings


def test_the_last_message_half_written_at_every_length(tmp_path: Path) -> None:
    last_record_cut(tmp_path, lambda data, length: data[:length].ljust(SIZE, b"\0"))


def test_the_file_truncated_at_every_length(tmp_path: Path) -> None:
    last_record_cut(tmp_path, lambda data, length: data[:length])


def test_a_torn_tail_is_told_once(tmp_path: Path) -> None:
    """Also when the same command runs again, and when the tail has grown whole."""
    base, data = segment(message(0), message(1))
    store = write_store(tmp_path / "store", [(base, data[: 2 * LENGTH - 13].ljust(SIZE, b"\0"))])
    for _ in range(3):
        state = rebuild_locally(store, tmp_path / "out")
        assert kinds(state.findings) == ["torn-tail"]
        assert state.batches == 1
    write_store(tmp_path / "store", [(base, data)])
    state = rebuild_locally(store, tmp_path / "out")
    assert (state.batches, state.messages, state.cursor) == (2, 2, 2 * LENGTH)


# --- single bits ----------------------------------------------------------------------------------------


def small_log() -> bytes:
    """Two messages and the BLANK, and a segment with one more."""
    return segment(message(0, properties=b"TAGS\x01t\x02"), message(1), blank=True, size=250)[1]


def test_no_flipped_bit_goes_unnoticed_in_a_part(tmp_path: Path) -> None:
    """Unless the record is whole all the same: then it is a sound one, of another message."""
    target = target_of(write_store(tmp_path, [(0, small_log())]), tmp_path / "out")
    out, rules = output.output(), target.rules()
    for bit in range(8 * len(small_log())):
        data = np.frombuffer(flipped(small_log(), bit), np.uint8)
        part = Part("log", 0, len(data), len(data), 0, len(data), last=True)
        outcome = PartOutcome()
        positions: list[int] = []
        for chunk in scan_part(part, data, rules, target.table(), out, outcome):
            positions += chunk.unit_position[: int(chunk.counts[output.UNITS])].tolist()
        try:
            sound = list(slow_rebuild.read(0, data.tobytes(), slow_rebuild.Settings()))
        except slow_rebuild.DamagedError:
            assert outcome.findings or outcome.status >= Status.BAD_SIZE or outcome.status is Status.UNWRITTEN
        else:
            assert not [finding for finding in outcome.findings if finding.kind not in REMARKS]
            assert len(sound) == int(out.counts[output.MESSAGES])


REMARKS = {"bad-queue-offset", "lmq-counts", "bad-lmq-offset", "bad-delay"}


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("start", range(5))
def test_no_flipped_bit_breaks_a_rebuild(tmp_path: Path, start: int) -> None:
    whole = small_log()
    for bit in range(start * 7, 8 * len(whole), 35):
        log = [(0, flipped(whole, bit)), segment(message(2), base=250, size=250)]
        result = Result(tmp_path / str(bit), log, segment_size=250)
        try:
            expected = slow_rebuild.rebuild(log, slow_rebuild.Settings())
        except slow_rebuild.DamagedError:
            assert result.state.findings
        else:
            assert queues(result.root) == expected.queues
            assert index_of(result.root) == expected.index
        assert {path.name for path in (tmp_path / str(bit)).iterdir()} == {"store", "out"}
