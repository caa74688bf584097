"""Scanning one part of the log: chunk after chunk, skipping whatever is damaged in it.

A part is a range of one segment. Its records are those that *begin* in the range. Unless the part's start
is known to be a record's first byte, the first whole record that names its own place is searched for;
:mod:`reput.replay.part_result` checks that each part begins where the one before it ended.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reput.errors import STAND_IN, Finding
from reput.format import commitlog, dledger, properties
from reput.scan import kernel, output
from reput.scan.extent import NOWHERE, Extents
from reput.scan.output import OutputArrays, Remark, Status
from reput.scan.rules import Part, Rules
from reput.scan.table import QueueTable

#: More than the fixed fields of an entry and its record.
_HEAD = 1 << 10
#: Bytes that are searched for a first record before more is asked for.
_SEARCHED = 8 << 20


class Arriving(Protocol):
    """A segment whose bytes come while it is scanned; what isn't there yet reads as anything."""

    def fetch(self, start: int, stop: int) -> None:
        """Have positions [start, stop) there, as far as the segment goes."""
        ...

    def until(self, start: int, wanted: int) -> int:
        """Have some of what follows ``start`` there, as far as ``wanted``; up to which position all is."""
        ...

    def passed(self, position: int) -> None:
        """What lies before ``position`` isn't looked at any more, unless it is fetched again."""
        ...


class Visible:
    """What a kernel is shown of a segment: never a byte that isn't there.

    ``stop_at`` is the position before which the records begin that are looked for.
    """

    def __init__(
        self, data: NDArray[np.uint8], arriving: Arriving | None, stop_at: int, largest: int
    ) -> None:
        self._data = data
        self._arriving = arriving
        self._stop_at = stop_at
        self._largest = largest
        self._enough = min(stop_at + largest, len(data))
        self._shown = 0

    def at(self, position: int) -> tuple[NDArray[np.uint8], int]:
        """The bytes that are there, and up to where records in them may begin: behind ``position``."""
        if self._arriving is None:
            return self._data, self._stop_at
        # What the last record has behind the end is fetched when it is asked for.
        there = self._arriving.until(position, self._stop_at)
        while there < self._stop_at and there - _HEAD <= position:
            self._arriving.fetch(position, min(there + _SEARCHED, self._stop_at))
            there = self._arriving.until(position, self._stop_at)
        self._shown = there
        return self._data[:there], self._stop_at if there >= self._stop_at else there - _HEAD

    def passed(self, position: int) -> None:
        """What lies before ``position`` isn't looked at any more."""
        if self._arriving is not None:
            self._arriving.passed(position)

    def more(self, position: int, status: Status) -> bool:
        """Have more there, since a scan stopped at ``position``; False if all is that can change its result.

        Whether zeros lead to the end is told by what is there; all else may depend on the whole rest of the
        segment.
        """
        if self._arriving is None:
            return False
        there = self._arriving.until(position, self._enough)
        if there > self._shown:
            return True
        if there < self._enough:
            self._arriving.fetch(position, min(there + _SEARCHED, self._enough))
            return True
        to_the_end = kernel.first_written(self._data, position, self._stop_at) == self._stop_at
        if status is Status.UNWRITTEN and to_the_end:
            return False
        self._arriving.fetch(position - _HEAD, len(self._data))
        self._arriving = None
        return True

    def hides(self, part: Part, position: int, v2: bool, newest: int) -> bool:
        """Whether a BLANK ends before its segment, and whole messages lie behind, none older than ``newest``.

        A broker looks at its magic alone, and passes over them (``CommitLog.checkMessageAndReturnSize``).
        Those that one writes reach the segment's end (``doAppend``; rocketmq-all-4.9.7, 5.3.3): it is damage.
        """
        size = int.from_bytes(self._data[position : position + 4].tobytes(), "big")
        if size == part.segment_size - position:
            return False
        if self._arriving is not None:
            self._arriving.fetch(position, len(self._data))
            self._arriving = None
        found = kernel.find_record(self._data, part.base, position, len(self._data), v2)
        return found >= 0 and _store_timestamp(self._data, found) >= newest

    def find(self, base: int, position: int, v2: bool, entries: bool) -> int:
        """Find the next record up to the end, as :func:`reput.scan.kernel.find_record` does."""
        if self._arriving is not None:
            self._arriving.fetch(position - _HEAD, position)  # an entry's header may begin there
        while True:
            data, end = self.at(position)
            is_all = self._arriving is None or len(data) >= self._enough
            # What begins in the last bytes may go on in those that aren't there.
            last = self._stop_at if is_all else max(position, end - self._largest)
            found = kernel.find_record(data, base, position, last, v2, entries)
            if found >= 0 or self._arriving is None or is_all:
                return found
            self._arriving.fetch(position, min(len(data) + _SEARCHED, self._enough))


@dataclass(slots=True)
class PartOutcome:
    """Where a part's scan began and ended."""

    first: int = -1  # physical offset of the first record, -1 if none begins in the part
    first_timestamp: int = 0  # storeTimestamp (ms) of the first record that was taken, 0 if missing
    #: storeTimestamp (ms) of the last whole record, undispatchable ones too; None without one
    newest: int | None = None
    #: physical offset after the last record; the segment's end after a BLANK; where it stopped else
    end: int = 0
    status: Status = Status.END  # END, BLANK, UNWRITTEN, or what is wrong at ``end``
    #: everything from ``end`` to the part's end is zero, or older than the log's last message
    rest_is_zero: bool = False
    findings: list[Finding] = field(default_factory=list)  # what was skipped
    #: physical offsets where messages may be missing, because something was skipped
    breaks: list[int] = field(default_factory=list)
    #: (start, end), physical offsets: records that begin there may be part of a damaged record's body;
    #: see :mod:`reput.scan.extent`
    unproven: list[tuple[int, int]] = field(default_factory=list)
    entries: bool = False  # records may be in DLedger's entries


#: The finding of a message whose properties damage has reached.
TORN_PROPERTIES = "torn-properties"
#: What is done about a segment that ends without BLANK though another follows.
TO_NEXT_SEGMENT = "passed over up to the next segment"
#: How a closing record is told that ends before its segment.
CLOSES_EARLY = "a closing record of "
#: Topic of the records that ``reput mend`` puts in place of damage.
STAND_IN_TOPIC = b"reput"
#: Of so many bytes at the beginning of a frame some aren't zero: those of its magic, or of its entry's.
_MAGIC_END = commitlog.MAGIC + 4
_EXPECTED = {
    Status.BAD_SIZE: "a record size of 91 bytes up to the segment's end",
    Status.BAD_MAGIC: "magic 0xdaa320a7 (v1), 0xdaa320ab (v2) or 0xcbd43194 (blank)",
    Status.BAD_PHYSICAL_OFFSET: "the record's own place as its physicalOffset",
    Status.BAD_LENGTHS: "body, topic and properties that add up to the record's size",
    Status.BAD_CRC: "a body with the stored CRC",
    Status.BAD_PROPERTY_CRC: "a record with the CRC in its __CRC32# property",
    Status.BAD_DELAY: "a number in DELAY",
    Status.BAD_INNER_BATCH: "numbers in INNER_BASE and INNER_NUM",
    Status.UNWRITTEN: "a record",
}
_EXPECTED_ENTRY = {
    **_EXPECTED,
    Status.BAD_SIZE: "an entry size of 139 bytes up to the segment's end, and a record that it holds",
    Status.BAD_MAGIC: "magic 1 and a record of magic 0xdaa320a7 (v1) or 0xdaa320ab (v2), or -1 (blank)",
    Status.BAD_PHYSICAL_OFFSET: "the entry's own place as its pos, its record's as physicalOffset",
    Status.BAD_LENGTHS: "a record that fills its entry, whose body, topic and properties add up to its size",
    Status.UNWRITTEN: "an entry",
}
_KIND = {
    Status.BAD_SIZE: "bad-size",
    Status.BAD_MAGIC: "bad-magic",
    Status.BAD_PHYSICAL_OFFSET: "bad-physical-offset",
    Status.BAD_LENGTHS: "bad-lengths",
    Status.BAD_CRC: "bad-crc",
    Status.BAD_PROPERTY_CRC: "bad-property-crc",
    Status.BAD_DELAY: "bad-delay",
    Status.BAD_INNER_BATCH: "bad-inner-batch",
    Status.UNWRITTEN: "unwritten-range",
}
#: Kinds of findings whose range was passed over, or taken as it is though it is damaged.
SKIPPED = frozenset(_KIND.values())
_REMARKS = {
    Remark.QUEUE_OFFSET_RANGE: ("bad-queue-offset", "a queueOffset that fits a file", "no unit was written"),
    Remark.LMQ_COUNTS: (
        "lmq-counts",
        "as many entries in INNER_MULTI_QUEUE_OFFSET as in INNER_MULTI_DISPATCH",
        "no LMQ units were written, as by the broker",
    ),
    Remark.LMQ_OFFSET: (
        "bad-lmq-offset",
        "a number in INNER_MULTI_QUEUE_OFFSET",
        "no LMQ unit was written for it and those after it",
    ),
}


def scan_part(
    part: Part,
    data: NDArray[np.uint8],
    rules: Rules,
    table: QueueTable,
    out: OutputArrays,
    outcome: PartOutcome,
    arriving: Arriving | None = None,
    passed_over: Container[int] = (),
) -> Iterator[OutputArrays]:
    """Scan a part; yields ``out`` whenever there is something in it, to be used before the next one.

    ``data`` is the segment, uint8[segment_length]. ``outcome`` is complete when the iterator ends. Records at
    the physical offsets ``passed_over`` have a wrong CRC and aren't taken, whatever follows.
    """
    v2, entries = rules.topic_length_v2, bool(rules.entries)
    outcome.entries = entries
    stop_at = min(part.end - part.base, len(data))
    position = part.start - part.base
    out.counts.fill(0)
    out.counts[output.LAST_TIMESTAMP] = part.after_timestamp
    outcome.end = part.start
    visible = Visible(data, arriving, stop_at, rules.largest_record)
    if not part.exact:
        if arriving is None:  # zeros are passed over faster than a record is looked for in them
            written = kernel.first_written(data, position, min(stop_at + _MAGIC_END - 1, len(data)))
            position = max(position, written - _MAGIC_END + 1)
        found = visible.find(part.base, position, v2, entries)
        if found < 0:
            outcome.rest_is_zero = kernel.first_written(data, position, stop_at) == stop_at
            return
        position = found
    status = Status.END
    accept = -1
    while position < stop_at:
        begun_at, taken = position, int(out.counts[output.MESSAGES])
        visible.passed(_last_record(out, part.base) if taken else position)
        seen, end_at = visible.at(position)
        status, position = kernel.scan(seen, part.base, position, end_at, rules, table, out, accept=accept)
        accept = -1
        if out.counts[output.MESSAGES] > taken:
            outcome.newest = int(out.counts[output.LAST_TIMESTAMP])
        if outcome.first < 0 and out.counts[output.MESSAGES]:
            outcome.first = part.start if part.exact else part.base + found
            outcome.first_timestamp = _store_timestamp(data, begun_at)
        outcome.findings += _remarks(part, out)
        if out.counts[: output.KEYS + 1].any():
            yield out
        output.clear(out)
        if status in (Status.END, Status.FULL):
            continue
        if status is Status.BLANK:
            newest = part.after_timestamp if outcome.newest is None else outcome.newest
            if entries or not visible.hides(part, position, v2, newest):
                position = part.segment_size
                break
            status = Status.BAD_SIZE
        if visible.more(position, status):
            status = Status.END
            continue
        if status is Status.UNWRITTEN and kernel.first_written(data, position, stop_at) == stop_at:
            outcome.rest_is_zero = True
            outcome.findings += _torn(part, data, position, out, zeros_follow=True)
            break
        if status.is_framed:
            end = position + dledger.frame_size(data.data, position)
            if status in (Status.BAD_DELAY, Status.BAD_INNER_BATCH):
                outcome.findings.append(
                    _finding(part, data, status, position, end, "no unit and no keys were written", entries)
                )
                outcome.breaks.append(part.base + position)
                outcome.newest = _store_timestamp(data, position)
                position = end
                status = Status.END
                continue
            following = kernel.walk(data, part.base, end, end + 1, v2, entries).status
            if following in (Status.END, Status.BLANK) and part.base + position not in passed_over:
                outcome.findings.append(
                    _finding(part, data, status, position, end, "taken, for its frame is whole", entries)
                )
                accept = position
                continue
        torn = list(_torn(part, data, position, out))
        outcome.findings += torn
        if is_blank_but_for_its_magic(
            data, position, part.segment_size, status, last=part.last, entries=entries
        ):
            treated = "treated as the BLANK that its size indicates"
            outcome.findings.append(_finding(part, data, status, position, len(data), treated, entries))
            status, position = Status.BLANK, part.segment_size
            break
        newest = part.after_timestamp if outcome.newest is None else outcome.newest
        extents = Extents(
            data,
            part.base,
            part.segment_size,
            topic_length_v2=v2,
            largest_record=rules.largest_record,
            entries=entries,
            not_before=newest if part.last else None,
        )
        resumed = extents.resume(position, stop_at)
        if resumed == NOWHERE:
            left = -1
            if part.last and not entries:
                left = _left_over(data, part.base, position, stop_at, v2, newest)
            if left >= 0:
                status, outcome.rest_is_zero = Status.UNWRITTEN, True
                ends = commitlog.decode(data.data, left).properties.endswith(b"\x02")
                outcome.findings += () if torn else _torn(part, data, position, out, terminated=ends)
            break
        text = extents.told(resumed)
        if resumed.unproven > resumed.position:
            outcome.unproven.append((part.base + resumed.position, part.base + resumed.unproven))
        outcome.findings.append(_finding(part, data, status, position, resumed.position, text, entries))
        outcome.breaks.append(part.base + position)
        position = resumed.position
    else:
        status = Status.END
    outcome.end = part.base + position
    outcome.status = status


def begins_record(data: NDArray[np.uint8], base: int, position: int) -> bool:
    """Whether magic or physicalOffset at ``position`` are those of a message that begins there."""
    head = data[position : position + commitlog.SYS_FLAG].tobytes()
    magic = int.from_bytes(head[commitlog.MAGIC : _MAGIC_END], "big")
    stored = int.from_bytes(head[commitlog.PHYSICAL_OFFSET :], "big")
    return magic in (commitlog.MAGIC_V1, commitlog.MAGIC_V2) or stored == base + position


def _left_over(data: NDArray[np.uint8], base: int, position: int, stop: int, v2: bool, newest: int) -> int:
    """Where behind ``position``, at which no record begins, lie messages of before a cut of the log; or -1.

    ``MappedFileQueue.truncateDirtyFiles`` moves positions back, and the bytes stay; what is written then ends
    anywhere in them (rocketmq-all-4.9.7, 5.3.3). They are older than ``newest``, the last message's time, ms.
    """
    if not position or begins_record(data, base, position):
        return -1  # a record that was written in part, or damaged; a segment begins with one
    found = kernel.find_record(data, base, position, stop, v2)
    return found if found >= 0 and _store_timestamp(data, found) < newest else -1


def is_blank_but_for_its_magic(
    data: NDArray[np.uint8],
    position: int,
    segment_size: int,
    status: Status,
    *,
    last: bool,
    entries: bool = False,
) -> bool:
    """Whether a bad record before the last segment can only be a BLANK whose magic is damaged.

    Its size reaches the segment's end, and no message does: a broker leaves room for a BLANK behind each
    (``CommitLog.DefaultAppendMessageCallback.doAppend``, END_FILE_MIN_BLANK_LENGTH; rocketmq-all-4.9.7,
    5.3.3). What is behind it, such as records from before a truncation, isn't part of the log. DLedger's
    BLANK has its two numbers in the other order, and as much room (``MmapFileList.preAppend``).
    """
    if last or status is not Status.BAD_MAGIC:
        return False
    sizes = [position, position + dledger.SIZE] if entries else [position]
    return any(int.from_bytes(data[at : at + 4].tobytes(), "big") == segment_size - position for at in sizes)


def missing_range(
    part: Part,
    data: NDArray[np.uint8],
    position: int,
    end: int,
    status: Status,
    outcome: str = TO_NEXT_SEGMENT,
    *,
    entries: bool = False,
) -> Finding:
    """The finding for a range that was passed over, up to the next segment unless said. Physical offsets."""
    return _finding(part, data, status, position - part.base, end - part.base, outcome, entries)


def wrong_end(
    part: Part,
    data: NDArray[np.uint8],
    position: int,
    status: Status,
    *,
    rest_is_zero: bool = False,
    entries: bool = False,
) -> Finding | None:
    """What is wrong where a segment's last record ends: the rest is missing, or the log has a torn tail.

    ``position`` is behind that record, or the closing one; the part goes up to the segment's end. None where
    the segment is closed, or the log's unwritten part begins.
    """
    end = part.base + part.segment_size
    if status is Status.BLANK or position >= end:
        return None
    if not part.last:
        if position >= part.base + part.segment_length:
            return None
        unwritten = Status.UNWRITTEN if status is Status.END else status
        return missing_range(part, data, position, end, unwritten, entries=entries)
    if status is Status.END or (status is Status.UNWRITTEN and rest_is_zero):
        return None
    place = position - part.base
    outcome = "the log is taken to end here, where a starting broker truncates it"
    return _finding(part, data, status, place, place, outcome, entries, kind="torn-tail")


def _torn(
    part: Part,
    data: NDArray[np.uint8],
    end: int,
    out: OutputArrays,
    *,
    zeros_follow: bool = False,
    terminated: bool = False,
) -> Iterator[Finding]:
    """What damage that begins at ``end``, or before, has of the properties of the message before it.

    No CRC covers them, so such a message looks whole. It is the last one in ``out``: of one before the part
    nothing is told.
    """
    record = _last_record(out, part.base)
    if not out.counts[output.MESSAGES] or record + dledger.frame_size(data.data, record) != end:
        return
    written = commitlog.decode(data.data, record).properties
    found = torn_properties(written, zeros_follow=zeros_follow, terminated=terminated)
    if found is None:
        return
    yield Finding(
        kind=TORN_PROPERTIES,
        path=part.path,
        offset=part.base + end - len(written),
        end=part.base + end,
        expected="pairs of name and value as the properties",
        found=f"{found}, in the message at {part.base + record}",
        outcome="it was taken, with tagsCode and keys of what is left",
    )


def torn_properties(written: bytes, *, zeros_follow: bool = False, terminated: bool = False) -> str | None:
    """What of a message's properties can't be as it was written, in words; None where nothing is odd.

    With ``zeros_follow`` only zeros are told: a client may have written what it liked. ``terminated``: those
    of another message of this log end with 0x02.
    """
    zeros = len(written) - len(written.rstrip(b"\0"))
    if zeros:
        return f"zeros in the last {zeros:,} of {len(written):,} bytes"
    if zeros_follow or properties.are_pairs(written):
        unended = terminated and written and not written.endswith(b"\x02")
        return f"{len(written):,} bytes without the separator that ends those of others" if unended else None
    return f"{len(written):,} bytes that are no pairs"


def _last_record(out: OutputArrays, base: int) -> int:
    """Position of the last record that was taken, if there is one."""
    return int(out.counts[output.LAST_POSITION]) - base


def _store_timestamp(data: NDArray[np.uint8], position: int) -> int:
    """Of the record in the whole frame at ``position``, ms."""
    return commitlog.decode(data.data, dledger.record_at(data.data, position)).store_timestamp


def _finding(
    part: Part,
    data: NDArray[np.uint8],
    status: Status,
    position: int,
    end: int,
    outcome: str,
    entries: bool,
    kind: str | None = None,
) -> Finding:
    return Finding(
        kind=_KIND[status] if kind is None else kind,
        path=part.path,
        offset=part.base + position,
        end=part.base + end,
        expected=(_EXPECTED_ENTRY if entries else _EXPECTED)[status],
        found=_found(part, data, status, position, entries),
        outcome=outcome,
    )


def _found(part: Part, data: NDArray[np.uint8], status: Status, position: int, entries: bool) -> str:
    head = data[position : position + dledger.HEADER_LENGTH + commitlog.BORN_HOST].tobytes()
    if len(head) < commitlog.BLANK_LENGTH:
        return f"{len(head)} bytes before the segment's end"
    in_entry = entries and dledger.record_at(head, 0) > 0
    size = dledger.frame_size(head, 0) if entries else struct.unpack_from(">i", head)[0]
    if status is Status.BAD_MAGIC:
        return _found_magic(head, in_entry)
    if status is Status.BAD_SIZE:
        is_blank = head[commitlog.MAGIC : _MAGIC_END] == commitlog.MAGIC_BLANK.to_bytes(4, "big")
        return f"{CLOSES_EARLY if is_blank else ''}{size} with {len(data) - position} bytes left"
    if status is Status.BAD_PHYSICAL_OFFSET:
        found = f"{_stored_place(head, part.base + position, in_entry)} at {part.base + position}"
        return f"{found}, {STAND_IN}" if _is_stand_in(data, position, part) else found
    if status is Status.UNWRITTEN:
        return "zeros"
    if status is Status.BAD_CRC:
        record = commitlog.decode(data.data, position + (dledger.HEADER_LENGTH if in_entry else 0))
        return f"CRC 0x{commitlog.body_crc(record.body):08x} where 0x{record.body_crc:08x} is stored"
    return f"a record of {size} bytes that breaks this"


def _is_stand_in(data: NDArray[np.uint8], position: int, part: Part) -> bool:
    """Whether damage was there, and the record was put in its place by reput."""
    try:
        record = commitlog.decode(data.data, position)
    except (struct.error, IndexError):
        return False
    is_its = record.sys_flag == commitlog.TRANSACTION_ROLLBACK and STAND_IN_TOPIC.startswith(record.topic)
    return is_its and record.physical_offset == part.base + position + 1


def _found_magic(head: bytes, in_entry: bool) -> str:
    if not in_entry:
        return f"0x{struct.unpack_from('>I', head, commitlog.MAGIC)[0]:08x}"
    (magic,) = struct.unpack_from(">i", head)
    if magic != dledger.ENTRY_MAGIC:
        return f"{magic}"
    (inner,) = struct.unpack_from(">I", head, dledger.HEADER_LENGTH + commitlog.MAGIC)
    return f"0x{inner:08x} in an entry"


def _stored_place(head: bytes, place: int, in_entry: bool) -> str:
    if not in_entry:
        return str(struct.unpack_from(">q", head, commitlog.PHYSICAL_OFFSET)[0])
    (stored,) = struct.unpack_from(">q", head, dledger.POSITION)
    if stored != place:
        return str(stored)
    (inner,) = struct.unpack_from(">q", head, dledger.HEADER_LENGTH + commitlog.PHYSICAL_OFFSET)
    return f"{inner} in the entry"


def _remarks(part: Part, out: OutputArrays) -> list[Finding]:
    findings = []
    for row in range(int(out.counts[output.REMARKS])):
        kind, expected, outcome = _REMARKS[Remark(int(out.remark_kind[row]))]
        position = int(out.remark_position[row])
        found = str(int(out.remark_value[row])) if kind != "lmq-counts" else "different counts"
        findings.append(Finding(kind, part.path, position, position, expected, found, outcome))
    return findings
