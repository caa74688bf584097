"""What stands at a place of the log, and going over its tail so, with an eye on the broker's clock; no numba.

:mod:`reput.log.walk_kernel` is the same, some hundred times as fast, but loading it takes as long as
walking over fifty thousand records here: the first answer doesn't wait for it.

Source: ``CommitLog.checkMessageAndReturnSize`` (rocketmq-all-4.9.7, 5.3.3). With ``entries``:
``DLedgerCommitLog.checkMessageAndReturnSize`` of the same tags.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

from reput.format import commitlog, dledger, properties
from reput.format.commitlog import store_timestamp
from reput.log.segments import Segment, open_segment
from reput.scan.output import Status


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the parts of a record lie; positions are relative to the scanned data."""

    position: int  # position, size: of the frame: of the record, or of the entry that it stands in
    size: int
    body: tuple[int, int]  # body, topic, properties: half-open ranges
    topic: tuple[int, int]
    properties: tuple[int, int]
    header: int = 0  # bytes from the frame's first byte to the record's: 48 in an entry, else 0

    @property
    def record(self) -> int:
        """Position of the record's first byte."""
        return self.position + self.header


def frame(
    data: memoryview, base: int, position: int, topic_length_v2: bool, entries: bool = False
) -> Frame | Status:
    """The frame at ``position``, or why there is none. ``data`` ends with its segment.

    With ``entries`` the frame is an entry with a record in it, or a record that stands alone: an older part
    of the log, from before ``enableDLegerCommitLog``.
    """
    if len(data) - position < commitlog.BLANK_LENGTH:
        return Status.BAD_SIZE
    if entries:
        (second,) = struct.unpack_from(">I", data, position + commitlog.MAGIC)
        is_record = second in (commitlog.MAGIC_BLANK, commitlog.MAGIC_V1)
        if not is_record and not (second == commitlog.MAGIC_V2 and topic_length_v2):
            return _entry(data, base, position, topic_length_v2)
    return _record(data, base, position, len(data), topic_length_v2)


def _entry(data: memoryview, base: int, position: int, topic_length_v2: bool) -> Frame | Status:
    magic, size = struct.unpack_from(">ii", data, position)
    if magic == dledger.BLANK_MAGIC:
        return Status.BLANK
    if magic == 0 and size == 0:
        return Status.UNWRITTEN
    if magic != dledger.ENTRY_MAGIC:
        return Status.BAD_MAGIC
    if not dledger.HEADER_LENGTH + commitlog.MIN_RECORD_LENGTH <= size <= len(data) - position:
        return Status.BAD_SIZE
    (place,) = struct.unpack_from(">q", data, position + dledger.POSITION)
    if place != base + position:
        return Status.BAD_PHYSICAL_OFFSET
    (body_length,) = struct.unpack_from(">i", data, position + dledger.BODY_LENGTH)
    if body_length != size - dledger.HEADER_LENGTH:
        return Status.BAD_LENGTHS
    found = _record(data, base, position + dledger.HEADER_LENGTH, position + size, topic_length_v2)
    if found in (Status.BLANK, Status.UNWRITTEN):
        return Status.BAD_MAGIC
    if isinstance(found, Status):
        return found
    if found.size != body_length:
        return Status.BAD_LENGTHS
    return replace(found, position=position, size=size, header=dledger.HEADER_LENGTH)


def _record(data: memoryview, base: int, position: int, limit: int, topic_length_v2: bool) -> Frame | Status:
    left = limit - position
    size, magic = struct.unpack_from(">iI", data, position)
    if magic == commitlog.MAGIC_BLANK:
        return Status.BLANK
    if magic == 0 and size == 0:
        return Status.UNWRITTEN
    if magic != commitlog.MAGIC_V1 and not (magic == commitlog.MAGIC_V2 and topic_length_v2):
        return Status.BAD_MAGIC
    if not commitlog.MIN_RECORD_LENGTH <= size <= left:
        return Status.BAD_SIZE
    (physical_offset,) = struct.unpack_from(">q", data, position + commitlog.PHYSICAL_OFFSET)
    if physical_offset != base + position:
        return Status.BAD_PHYSICAL_OFFSET
    end = position + size
    (sys_flag,) = struct.unpack_from(">i", data, position + commitlog.SYS_FLAG)
    at = (
        position
        + commitlog.BORN_HOST
        + commitlog.host_length(sys_flag, commitlog.SYS_FLAG_BORN_HOST_V6)
        + commitlog.STORE_HOST_AFTER_BORN_HOST
        + commitlog.host_length(sys_flag, commitlog.SYS_FLAG_STORE_HOST_V6)
        + commitlog.BODY_AFTER_STORE_HOST
    )
    shortest_rest = 3  # topic length and properties length of a v1 record
    if at + shortest_rest > end:
        return Status.BAD_LENGTHS
    (body_length,) = struct.unpack_from(">i", data, at - 4)
    body = (at, at + max(body_length, 0))
    at = body[1]
    if at + shortest_rest > end:
        return Status.BAD_LENGTHS
    if magic == commitlog.MAGIC_V1:
        (topic_length,) = struct.unpack_from(">b", data, at)
        at += 1
    else:
        (topic_length,) = struct.unpack_from(">h", data, at)
        at += 2
    topic = (at, at + topic_length)
    at = topic[1]
    if topic_length < 0 or at + 2 > end:
        return Status.BAD_LENGTHS
    (properties_length,) = struct.unpack_from(">h", data, at)
    at += 2
    if at + max(properties_length, 0) != end:
        return Status.BAD_LENGTHS
    return Frame(position, size, body, topic, (at, end))


def body_crc_is_wrong(view: memoryview, record: Frame) -> bool:
    """Whether the stored CRC isn't that of the body; an empty body has none."""
    start, end = record.body
    if start == end:
        return False
    (stored,) = struct.unpack_from(">I", view, record.record + commitlog.BODY_CRC)
    return bool(commitlog.body_crc(view[start:end]) != stored)


def property_crc_is_wrong(view: memoryview, record: Frame, raw: bytes, values: dict[bytes, bytes]) -> bool:
    """Whether the CRC in the last property isn't that of the record before it; others count as right."""
    stored = values.get(properties.CRC32, b"")
    if len(stored) != 10 or not raw.endswith(properties.CRC32 + b"\x01" + stored + b"\x02"):
        return False
    # The digits stand the least significant first; each byte counts as its distance from "0".
    expected = sum((byte - 0x30) * 10**power for power, byte in enumerate(stored))
    end = record.properties[1] - commitlog.PROPERTY_CRC_RESERVED
    return bool(commitlog.body_crc(view[record.record : end]) != expected)


class Walked(NamedTuple):
    """Where a walk over whole frames ended. Positions are relative to the segment; -1 is none."""

    status: int  # why it ended: BLANK, UNWRITTEN or what is wrong; FULL after as many records as were wanted
    position: int  # where no whole frame stands
    records: int  # frames that were passed
    last: int  # position of the last of them
    before: int  # position of the one before it
    timestamp: int  # the last one's storeTimestamp, ms; the one given when there is none
    top: int  # the highest storeTimestamp, ms
    #: position of the first record that is older than the one before it, if none after it is as new
    #: again as the newest before
    drop: int
    before_drop: int  # position of the record before ``drop``


def first_time(segment: Segment, *, topic_length_v2: bool, entries: bool) -> int | None:
    """The storeTimestamp, ms, of the record that a segment begins with; None if that isn't whole."""
    opened = open_segment(segment.path, segment.length)
    opened.fetch_frame(0)
    view = opened.data.data
    found = frame(view, segment.base, 0, topic_length_v2, entries)
    return store_timestamp(view, found.record) if isinstance(found, Frame) else None


def walk(
    view: memoryview,
    base: int,
    start: int,
    trusted: int,
    topic_length_v2: bool,
    top: int,
    most: int,
    entries: bool = False,
) -> Walked:
    """Go over whole frames from ``start`` on, past ``most`` records at most.

    Before the position ``trusted`` the clock may do what it likes. The first record's storeTimestamp should
    not be below ``top``, ms. In DLedger's entries, positions are those of the entries.
    """
    position, records, timestamp = start, 0, top
    last = before = drop = before_drop = -1
    while True:
        found = frame(view, base, position, topic_length_v2, entries)
        if isinstance(found, Status):
            return Walked(found, position, records, last, before, timestamp, top, drop, before_drop)
        if records >= most:
            return Walked(Status.FULL, position, records, last, before, timestamp, top, drop, before_drop)
        timestamp = store_timestamp(view, found.record)
        if position < trusted:
            top = timestamp
        elif timestamp >= top:
            drop = before_drop = -1
            top = timestamp
        elif drop < 0:
            drop, before_drop = position, last
        records += 1
        before, last = last, position
        position += found.size
