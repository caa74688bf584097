"""What a commit log, a queue and an index file hold, one record after the other: slow, to compare with.

The commit log is gone over by :mod:`tests.slow_scan`, and around damage by :mod:`reput.scan.extent`;
queues and index files by their formats alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from reput.format import commitlog
from reput.log import walk
from reput.log.walk import Frame
from reput.scan import output
from reput.scan.extent import Extents
from reput.scan.output import Remark, Status
from reput.scan.part import _KIND, _REMARKS, is_blank_but_for_its_magic
from reput.scan.rules import Rules
from reput.scan.table import QueueTable
from tests import slow_scan

#: ("row", physicalOffset, end), ("damage", kind, offset, end, taken), ("blank" or "unwritten", offset)
Event = tuple[object, ...]


def segment_events(
    base: int, data: bytes, rules: Rules, *, last: bool, segment_size: int | None = None
) -> Iterator[Event]:
    """What a segment holds."""
    array = np.frombuffer(data, np.uint8)
    size = len(data) if segment_size is None else segment_size
    v2, entries = rules.topic_length_v2, bool(rules.entries)
    view, at, timestamp = array.data, 0, 0
    properties = b""  # of the message that ends where the next record begins
    while at < len(data):
        status, remarks = _scan(array, base, at, rules)
        found = walk.frame(view, base, at, v2, entries)
        if status in (Status.BAD_CRC, Status.BAD_PROPERTY_CRC):
            assert isinstance(found, Frame)
            end = at + found.size
            following = walk.frame(view, base, end, v2, entries)
            if isinstance(following, Frame) or following is Status.BLANK:
                yield "damage", _KIND[status], base + at, base + end, True
                status, remarks = _scan(array, base, at, rules, accept=at)
        if status is Status.END or status in (Status.BAD_DELAY, Status.BAD_INNER_BATCH):
            assert isinstance(found, Frame)
            end = at + found.size
            if status is not Status.END:
                yield "damage", _KIND[status], base + at, base + end, True
            message = commitlog.decode(view, found.record)
            timestamp = message.store_timestamp
            properties = message.properties if status is Status.END else b""
            for kind in remarks:
                yield "damage", _REMARKS[kind][0], base + found.record, base + found.record, True
            yield "row", base + found.record, base + end
            at = end
            continue
        if status is Status.BLANK:
            yield "blank", base + at
            return
        is_end = status is Status.UNWRITTEN and not any(data[at:])
        is_torn = properties.endswith(b"\0") or (
            not is_end and any(map(_is_no_pair, properties.split(b"\x02")))
        )
        if is_torn:
            yield "damage", "torn-properties", base + at - len(properties), base + at, True
        before, properties = properties, b""
        if is_end:
            if last:
                yield "unwritten", base + at
            else:
                yield "damage", "unwritten-range", base + at, base + size, False
            return
        if is_blank_but_for_its_magic(array, at, size, status, last=last, entries=entries):
            yield "damage", "bad-magic", base + at, base + len(data), False
            return
        extents = Extents(
            array,
            base,
            size,
            topic_length_v2=v2,
            largest_record=rules.largest_record,
            entries=entries,
            not_before=timestamp if last else None,
        )
        following_at = extents.resume(at, len(data)).position
        if following_at < 0:
            older = _left_by_a_cut(array, base, at, v2, timestamp) if last and not entries else None
            if older is not None:
                if before and not is_torn and older.endswith(b"\x02") > before.endswith(b"\x02"):
                    yield "damage", "torn-properties", base + at - len(before), base + at, True
                yield "unwritten", base + at
            elif last:
                yield "damage", "torn-tail", base + at, base + at, False
            else:
                yield "damage", _KIND[status], base + at, base + size, False
            return
        yield "damage", _KIND[status], base + at, base + following_at, False
        at = following_at


def _left_by_a_cut(array: np.ndarray, base: int, at: int, v2: bool, timestamp: int) -> bytes | None:
    """The properties of the first whole message behind, if it is older than the log's last one."""
    if at == 0 or array[at + 4 : at + 8].tobytes() in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"):
        return None
    if array[at + 28 : at + 36].tobytes() == (base + at).to_bytes(8, "big"):
        return None
    for place in range(at, len(array)):
        found = walk.frame(array.data, base, place, v2, False)
        if isinstance(found, Frame):
            message = commitlog.decode(array.data, place)
            if commitlog.body_crc(message.body) == message.body_crc:
                return message.properties if message.store_timestamp < timestamp else None
    return None


def _is_no_pair(entry: bytes) -> bool:
    if not entry:
        return False
    text = entry.replace(b"\x01", b"") if entry.count(b"\x01") > 1 else entry.partition(b"\x01")[0]
    return b"\x01" not in entry[1:] or entry[:1] == b"\x01" or any(byte < 32 for byte in text)


def _scan(
    array: np.ndarray, base: int, at: int, rules: Rules, accept: int = -1
) -> tuple[Status, list[Remark]]:
    out = output.output(units=1, keys=1)
    status = slow_scan.scan(array, base, at, at + 1, rules, QueueTable(), out, accept=accept).status
    return status, [Remark(int(kind)) for kind in out.remark_kind[: int(out.counts[output.REMARKS])]]


def queue_units(files: list[Path]) -> list[tuple[int, int, int, int]]:
    """(queueOffset, physicalOffset, size, tagsCode) of every place that isn't zero or pre-blank."""
    units = []
    for path in files:
        first = int(path.name) // 20
        for number, unit in enumerate(struct.iter_unpack(">qiq", path.read_bytes())):
            if unit not in ((0, 0, 0), (0, 0x7FFFFFFF, 0)):
                units.append((first + number, *unit))
    return units


def batch_units(files: list[Path]) -> list[tuple[int, ...]]:
    """(base offset, physicalOffset, size, tagsCode, storeTimestamp, messages) of every unit."""
    units = []
    for path in files:
        for position, size, tags, timestamp, first, count, _compacted, _reserved in struct.iter_unpack(
            ">qiqqqhii", path.read_bytes()
        ):
            if size:
                units.append((first, position, size, tags, timestamp, count))
    return units


def index_entries(path: Path, slots: int) -> list[tuple[int, int, int, int, int]]:
    """(ordinal, keyHash, physicalOffset, timestamp, prevIndex) of every entry."""
    data = path.read_bytes()
    begin, _end, _first, _last, _used, count = struct.unpack_from(">qqqqii", data)
    found = []
    for ordinal in range(1, count):
        hashed, position, seconds, previous = struct.unpack_from(">iqii", data, 40 + 4 * slots + 20 * ordinal)
        found.append((ordinal, hashed, position, begin + 1000 * seconds, previous))
    return found
