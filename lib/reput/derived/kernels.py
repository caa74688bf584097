"""The kernels of the models of queues and index: apart, since who looks at a few units needs no numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from reput.caches import CACHED
from reput.format import commitlog
from reput.scan.fields import INNER_BASE, INNER_NUM, property_value
from reput.scan.kernel import _integer
from reput.scan.load import i32, i64, u8, u32


@njit(cache=CACHED)
def prefix(data, start, stop, before):  # type: ignore[no-untyped-def]
    """Up to which unit a file holds valid ones, and where the last one's message ends, -1 without one.

    ``before`` ends it at the first unit at or past a physical offset, unless it is below 0.
    """
    end = np.int64(-1)
    for number in range(start, stop):
        at = number * 20
        offset, size = i64(data, at), np.int64(i32(data, at + 8))
        if offset < 0 or size <= 0 or 0 <= before <= offset:
            return number, end
        end = offset + size
    return stop, end


@njit(cache=CACHED)
def place(position, size, offset, file_size, has_files, base, wrote, fresh, max_physical, min_logic):  # type: ignore[no-untyped-def]
    """Where each unit goes: ``ConsumeQueue.putMessagePositionInfo``, one message after the other."""
    places = np.full(len(position), -1, np.int64)
    first_base = np.int64(-1)
    blanks = np.int64(0)
    for row in range(len(position)):
        end = position[row] + size[row]
        if end <= max_physical:
            continue
        expected = offset[row] * 20
        if not has_files:
            has_files = True
            base = expected - expected % file_size
            wrote = np.int64(0)
            fresh = True
            first_base = base
        elif wrote == file_size:
            base += file_size
            wrote = np.int64(0)
            fresh = False
        if offset[row] != 0:
            if fresh and wrote == 0:
                min_logic = expected
                wrote = expected % file_size
                blanks = wrote // 20
            if expected < base + wrote:
                continue
        max_physical = end
        places[row] = base + wrote
        wrote += 20
    return places, (has_files, base, wrote, fresh, max_physical, min_logic, first_base, blanks)


@njit(cache=CACHED)
def ext_records(data):  # type: ignore[no-untyped-def]
    """Whether a size that isn't positive ends the records before the file's end, and where."""
    position = np.int64(0)
    while position + 2 <= len(data):
        size = (np.int64(data[position]) << 8) | np.int64(data[position + 1])
        if size == 0 or size >= 0x8000:
            return True, position
        position += size
    return False, position


@njit(cache=CACHED)
def fill_index(  # type: ignore[no-untyped-def]
    position, timestamp, keys, row, done, most, count, begin, end, begun, ended
):
    """Put keys from ``row`` on (``done`` of it are put) until the file is full and another key comes."""
    added = 0
    while row < len(position):
        # A message is skipped by the file's end as it is when its first key comes.
        if done == 0 and position[row] < end:
            row += 1
            continue
        while done < keys[row]:
            if count >= most:
                return row, done, count, begin, end, begun, ended, added
            if count <= 1:
                begin = position[row]
                begun = timestamp[row]
            count += 1
            added += 1
            end = position[row]
            ended = timestamp[row]
            done += 1
        row += 1
        done = 0
        if count >= most and row < len(position):
            return row, done, count, begin, end, begun, ended, added
    return row, done, count, begin, end, begun, ended, added


@njit(cache=CACHED)
def inner(data, positions):  # type: ignore[no-untyped-def]
    """INNER_BASE, INNER_NUM and storeTimestamp of whole records at positions of a segment."""
    first = np.full(len(positions), -1, np.int64)
    count = np.ones(len(positions), np.int64)
    time = np.zeros(len(positions), np.int64)
    for row in range(len(positions)):
        position = positions[row]
        if position + commitlog.BORN_HOST + 64 > len(data):
            continue  # a record that is somewhere else than it says
        flag = i32(data, position + commitlog.SYS_FLAG)
        time[row] = i64(data, position + commitlog.store_timestamp_at(flag))
        first[row] = i64(data, position + commitlog.QUEUE_OFFSET)
        at = position + commitlog.body_at(flag)
        body = np.int64(i32(data, at - 4))
        if body < 0 or at + body + 8 > len(data):
            continue
        at += body
        if np.int64(u32(data, position + commitlog.MAGIC)) == commitlog.MAGIC_V2:
            at += 2 + ((np.int64(u8(data, at)) << 8) | np.int64(u8(data, at + 1)))
        else:
            at += 1 + np.int64(u8(data, at))
        if at + 2 > len(data):
            continue
        end = at + 2 + ((np.int64(u8(data, at)) << 8) | np.int64(u8(data, at + 1)))
        if end > len(data):
            continue
        base_at, base_end = property_value(data, at + 2, end, INNER_BASE)
        num_at, num_end = property_value(data, at + 2, end, INNER_NUM)
        if base_end > base_at and num_end > num_at:
            # The scan found them numbers.
            first[row] = _integer(data, base_at, base_end, 64)[1]
            count[row] = _integer(data, num_at, num_end, 64)[1]
    return first, count, time
