"""What stands at a place of the log: a frame and its parts, or why there is none. One at a time, in Python.

Source: ``CommitLog.checkMessageAndReturnSize`` (rocketmq-all-4.9.7, 5.3.3). With ``entries``:
``DLedgerCommitLog.checkMessageAndReturnSize`` of the same tags.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from reput.format import commitlog, dledger, properties
from reput.scan.output import Status


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the parts of a record lie; positions are relative to the scanned data.

    Attributes:
        position, size: of the frame: of the record, or of the entry that it stands in.
        body, topic, properties: half-open ranges.
        header: bytes from the frame's first byte to the record's: 48 in an entry, else 0.
    """

    position: int
    size: int
    body: tuple[int, int]
    topic: tuple[int, int]
    properties: tuple[int, int]
    header: int = 0

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
