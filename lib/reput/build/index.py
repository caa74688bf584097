"""Index files: from key hashes in log order to entries, slots and header.

Source: ``IndexFile.putKey``, ``IndexService.buildIndex`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format.indexfile import (
    MAX_TIME_DIFF,
    IndexHeader,
)
from reput.scan.load import swapped_u32

_BEGIN_TIME, _END_TIME, _BEGIN_OFFSET, _END_OFFSET, _SLOT_COUNT, _INDEX_COUNT = range(6)


class KeyRows(NamedTuple):
    """Index keys of messages in log order."""

    position: NDArray[np.int64]  # int64[rows], physicalOffset of a message
    timestamp: NDArray[np.int64]  # int64[rows], its storeTimestamp, ms
    keys: NDArray[np.int32]  # int32[rows], how many keys it has
    key_hash: NDArray[np.int32]  # int32[keys], as the index stores them


class Put(NamedTuple):
    """What :func:`put_keys` made of some rows."""

    header: IndexHeader  # the file's header afterwards
    entries: NDArray[np.uint8]  # uint8[entries * 20], they belong at the ordinal that the header had before
    rows: int  # rows, keys: rows that were put whole, and keys that were put, those of a row begun included
    keys: int


def put_keys(
    header: IndexHeader, slots: NDArray[np.int32], rows: KeyRows, skip: int, max_index_num: int
) -> Put:
    """Put keys into one index file until it is full or the rows end.

    ``slots``, int32[slots] in native byte order, are the ordinals in the hash slots, and are updated. The
    first ``skip`` keys of the first row are in the file before already. The unused first ordinal counts as
    one of ``max_index_num``.
    """
    state = np.array(
        [
            header.begin_timestamp,
            header.end_timestamp,
            header.begin_physical_offset,
            header.end_physical_offset,
            header.slot_count,
            header.index_count,
        ],
        np.int64,
    )
    room = max(min(max_index_num - header.index_count, len(rows.key_hash) - skip), 0)
    words = np.empty(room * 5, np.uint32)
    done_rows, done_keys = _put(state, slots, *rows, skip, words, room)
    return Put(IndexHeader(*state.tolist()), words.view(np.uint8), int(done_rows), int(done_keys))


@njit(cache=CACHED, nogil=True, _nrt=False)
def rebuild_slots(key_hash, slots, first_ordinal):  # type: ignore[no-untyped-def]
    """Set ``slots`` (int32[slots]) as putting ``key_hash`` (int32[keys]) from ``first_ordinal`` on does."""
    for key in range(len(key_hash)):
        slots[key_hash[key] % len(slots)] = np.int32(first_ordinal + key)


# Two loops, since one that writes all of an entry at once takes three times as long: the fields that a
# message's keys share would be computed between loads from hash slots all over 20 MB.


@njit(cache=CACHED, nogil=True, _nrt=False)
def _put(state, slots, position, timestamp, keys, key_hash, skip, words, room):  # type: ignore[no-untyped-def]
    begin_time = state[_BEGIN_TIME]
    first = state[_INDEX_COUNT]
    put = np.int64(0)
    row = np.int64(0)
    skipped = np.int64(skip)
    while row < len(position):
        offset, time = position[row], timestamp[row]
        high = swapped_u32(np.uint32(offset >> 32))
        low = swapped_u32(np.uint32(offset & 0xFFFFFFFF))
        wanted = keys[row] - skipped
        taken = np.int64(wanted)
        if taken > room - put:
            taken = np.int64(room - put)
        skipped = np.int64(0)
        for _ in range(taken):
            # It overflows as in Java: a time far enough below 0 counts as one far ahead.
            difference = time - begin_time
            if begin_time <= 0 or difference < 0:
                difference = np.int64(0)
            difference //= 1000
            if difference > MAX_TIME_DIFF:
                difference = np.int64(MAX_TIME_DIFF)
            at = put * 5
            words[at + 1] = high
            words[at + 2] = low
            words[at + 3] = swapped_u32(np.uint32(difference))
            if first + put <= 1:
                begin_time = time
                state[_BEGIN_TIME] = time
                state[_BEGIN_OFFSET] = offset
            put += 1
        if taken:
            state[_END_TIME] = time
            state[_END_OFFSET] = offset
        if taken < wanted:
            break
        row += 1
    state[_SLOT_COUNT] += _chain(slots, key_hash[skip : skip + put], first, words)
    state[_INDEX_COUNT] = first + put
    return row, put


@njit(cache=CACHED, nogil=True, _nrt=False)
def _chain(slots, key_hash, first, words):  # type: ignore[no-untyped-def]
    """Put hashes and previous ordinals into entries; how many slots were empty before."""
    slot_number = np.uint32(len(slots))
    filled = np.int64(0)
    for key in range(len(key_hash)):
        slot = np.uint32(key_hash[key]) % slot_number
        previous = slots[slot]
        slots[slot] = np.int32(first + key)
        at = key * 5
        words[at] = swapped_u32(np.uint32(key_hash[key]))
        words[at + 4] = swapped_u32(np.uint32(previous))
        filled += previous == 0
    return filled
