"""The slow twins of what :mod:`reput.build` makes: one unit, one key at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reput.build.ext import ExtLayout
from reput.build.index import KeyRows, Put
from reput.build.placement import Breaks, giving_way, is_unproven
from reput.build.rocksdb import UnitRows
from reput.build.units import BatchRows, PackedUnits
from reput.format import rocksdbqueue
from reput.format.commitlog import MIN_RECORD_LENGTH
from reput.format.consumequeue import unit
from reput.format.consumequeueext import END_BLANK, END_MARK, MAX_PLACE, MAX_UNIT_LENGTH, TRIES
from reput.format.indexfile import ENTRY_LENGTH, HEADER_LENGTH, MAX_TIME_DIFF, SLOT_LENGTH, IndexHeader
from reput.scan.output import UNITS, OutputArrays
from tests import encoders


def pack_units(out: OutputArrays, queues: int) -> PackedUnits:
    """What :func:`reput.build.units.pack` does, one unit at a time."""
    grouped: list[list[int]] = [[] for _ in range(queues)]
    for row in range(int(out.counts[UNITS])):
        grouped[out.unit_queue[row]].append(row)
    data = b"".join(
        unit(int(out.unit_position[row]), int(out.unit_size[row]), int(out.unit_tags[row]))
        for rows in grouped
        for row in rows
    )
    return PackedUnits(
        np.frombuffer(data, np.uint8),
        np.cumsum([0, *map(len, grouped)], dtype=np.int64),
        np.array([int(out.unit_offset[rows[0]]) if rows else 0 for rows in grouped], np.int64),
    )


def pack_batch(rows: BatchRows) -> bytes:
    """What :func:`reput.build.units.pack_batch` does, one unit at a time."""
    return b"".join(
        encoders.batch_unit(*(int(column[row]) for column in rows)) for row in range(len(rows.position))
    )


def lay_out_ext(start: int, count: int, unit_length: int, file_size: int) -> ExtLayout:
    """What :func:`reput.build.ext.lay_out` does, one unit at a time; its runs hold one unit each."""
    layout = ExtLayout(start, unit_length)
    for number in range(count):
        if unit_length > MAX_UNIT_LENGTH or layout.end + unit_length > MAX_PLACE:
            continue
        for _ in range(TRIES):
            wrote = layout.end % file_size
            if unit_length <= file_size - wrote - END_BLANK:
                layout.runs.append((layout.end, number, number + 1))
                layout.end += unit_length
                break
            if file_size - wrote < len(END_MARK):
                break
            layout.marks.append(layout.end)
            layout.end += file_size - wrote
    return layout


def pack_ext(
    layout: ExtLayout,
    tags: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    bit_maps: NDArray[np.uint8],
) -> Iterator[tuple[int, bytes]]:
    """What :func:`reput.build.ext.pack` does, one unit at a time."""
    for place, first, stop in layout.runs:
        units = (
            encoders.ext_unit(int(tags[row]), int(timestamps[row]), bit_maps[row].tobytes())
            for row in range(first, stop)
        )
        yield place, b"".join(units)
    for place in layout.marks:
        yield place, END_MARK


def put_keys(file: bytearray, rows: KeyRows, skip: int, max_hash_slot_num: int, max_index_num: int) -> Put:
    """What :func:`reput.build.index.put_keys` does, on the bytes of a whole file, one key at a time."""
    header = IndexHeader.decode(bytes(file[:HEADER_LENGTH]))
    first_entry = HEADER_LENGTH + max_hash_slot_num * SLOT_LENGTH
    start = first_entry + header.index_count * ENTRY_LENGTH
    keys = -skip
    done_rows = 0
    hashes = iter(rows.key_hash.tolist())
    for position, timestamp, count in zip(
        rows.position.tolist(), rows.timestamp.tolist(), rows.keys.tolist(), strict=True
    ):
        for _ in range(count):
            if keys >= 0 and header.index_count >= max_index_num:
                break
            keys += 1
            key_hash = next(hashes)
            if keys <= 0:
                continue
            slot = HEADER_LENGTH + key_hash % max_hash_slot_num * SLOT_LENGTH
            previous = int.from_bytes(file[slot : slot + SLOT_LENGTH], "big")
            entry = first_entry + header.index_count * ENTRY_LENGTH
            file[entry : entry + ENTRY_LENGTH] = b"".join(
                (
                    key_hash.to_bytes(4, "big"),
                    position.to_bytes(8, "big"),
                    time_diff(timestamp, header.begin_timestamp).to_bytes(4, "big"),
                    previous.to_bytes(4, "big"),
                )
            )
            file[slot : slot + SLOT_LENGTH] = header.index_count.to_bytes(4, "big")
            if header.index_count <= 1:
                header = replace(header, begin_timestamp=timestamp, begin_physical_offset=position)
            header = replace(
                header,
                slot_count=header.slot_count + (previous == 0),
                index_count=header.index_count + 1,
                end_timestamp=timestamp,
                end_physical_offset=position,
            )
        else:
            done_rows += 1
            continue
        break
    file[:HEADER_LENGTH] = header.encode()
    end = first_entry + header.index_count * ENTRY_LENGTH
    return Put(header, np.frombuffer(bytes(file[start:end]), np.uint8), done_rows, max(keys, 0))


def time_diff(store_timestamp: int, begin_timestamp: int) -> int:
    """Seconds that an entry stores, as ``IndexFile.putKey`` computes and clamps them.

    The difference is a Java long, which overflows: a time far enough below 0 counts as one far ahead.
    """
    difference = store_timestamp - begin_timestamp
    if difference < -(1 << 63):
        difference += 1 << 64
    if begin_timestamp <= 0 or difference <= 0:
        return 0
    return min(difference // 1000, MAX_TIME_DIFF)


def keep(
    offset: NDArray[np.int64],
    position: NDArray[np.int64],
    size: NDArray[np.int32],
    breaks: Breaks,
    *,
    from_zero: bool,
) -> dict[int, int]:
    """The row of each place that ``rocksdb_placement.keep`` gives a unit to, one message at a time."""
    unproven = giving_way(offset, is_unproven(position, breaks))
    rows = [row for row in range(len(offset)) if not unproven[row]]
    for number in range(len(rows) - 1, 0, -1):
        here = int(offset[rows[number]])
        follows = number + 1 < len(rows) and int(offset[rows[number + 1]]) == 1
        if here == 0 and follows and int(offset[rows[number - 1]]) >= 0:
            restarted, rows = True, rows[number:]
            break
    else:
        restarted = False
    places = {int(offset[row]): row for row in rows}
    before, end = -1, 0
    is_first = True
    for place in sorted(places, key=lambda place: place & (1 << 64) - 1):
        row = places[place]
        missing = place - before - 1
        if is_first and (not from_zero or restarted):
            missing = 0
        room = (int(position[row]) - end) // MIN_RECORD_LENGTH
        if 0 < missing <= room and any(end <= each <= int(position[row]) for each in breaks.places):
            places.update(dict.fromkeys(range(before + 1, place), row))
        before, end, is_first = place, int(position[row]) + int(size[row]), False
    return places


def pack_rocksdb_units(prefixes: Sequence[bytes], rows: UnitRows) -> NDArray[np.uint8]:
    """What :func:`reput.build.rocksdb.pack_units` does, one unit at a time."""
    data = []
    for row in range(len(rows.queue)):
        offset = rocksdbqueue.unit_key(b"", 0, int(rows.offset[row]))[-8:]
        data.append(prefixes[rows.queue[row]] + offset)
        fields = (rows.position, rows.size, rows.tags, rows.timestamp)
        data.append(encoders.unit_value(*(int(column[row]) for column in fields)))
    width = len(prefixes[0]) + 8 + rocksdbqueue.UNIT_LENGTH
    return np.frombuffer(b"".join(data), np.uint8).reshape(-1, width)
