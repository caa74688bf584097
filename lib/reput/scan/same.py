"""Two logs' records at the same places, compared: a store's and its replica's.

Source: ``HAConnection``, ``HAService.HAClient.dispatchReadRequest`` (rocketmq-all-4.9.7),
``DefaultHAConnection``, ``DefaultHAClient.dispatchReadRequest`` (rocketmq-all-5.3.3) and
``CommitLog.appendData``: a slave appends the bytes that its master sends at the offset where they lie there,
and changes none. One that joins with an empty log begins with its master's last segment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format.commitlog import BLANK_LENGTH, MAGIC, MAGIC_BLANK
from reput.scan.load import i32, u8, u32, u64

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


class Compared(NamedTuple):
    """What came of it; positions are relative to the segment."""

    same: int  # same, different: records; a BLANK only where the other log has a message
    different: int
    first: int  # first, other: of the first two that differ, in the one log and in the other; -1 without any
    other: int
    last_same: int  # of the last two that are the same; -1 without any


def compare(
    one: NDArray[np.uint8], other: NDArray[np.uint8], ones: tuple[int, int], others: tuple[int, int]
) -> Compared:
    """Compare two chains of whole records, each of which a scan found; a BLANK may end them.

    Records that overlap without beginning at the same place are different if a byte in both of them is. Two
    BLANKs aren't, whatever they hold. ``ones`` and ``others`` are half-open ranges of positions: from
    a record's first byte to behind the last.
    """
    found = _compare(one, other, ones[0], ones[1], others[0], others[1])
    return Compared(*(int(value) for value in found))


@njit(inline="always")
def _end(data, at, end):
    """Where the record or BLANK at a place ends."""
    if np.int64(u32(data, at + MAGIC)) == MAGIC_BLANK:
        return end
    return at + np.int64(i32(data, at))


@njit(cache=CACHED, nogil=True)
def _equal(one, other, start, end):
    at = start
    while at + 8 <= end:
        if u64(one, at) != u64(other, at):
            return False
        at += 8
    while at < end:
        if u8(one, at) != u8(other, at):
            return False
        at += 1
    return True


@njit(cache=CACHED, nogil=True)
def _compare(one, other, at, end, other_at, other_end):
    at, other_at = np.int64(at), np.int64(other_at)
    same = different = np.int64(0)
    first = first_other = last_same = np.int64(-1)
    while at < end and other_at < other_end:
        behind, other_behind = _end(one, at, end), _end(other, other_at, other_end)
        low, high = max(at, other_at), min(behind, other_behind)
        is_blank = np.int64(u32(one, at + MAGIC)) == MAGIC_BLANK
        other_is_blank = np.int64(u32(other, other_at + MAGIC)) == MAGIC_BLANK
        # A BLANK's bytes mean nothing, so one that overlaps by these alone doesn't differ; nor do two.
        if (
            (at == other_at and is_blank and other_is_blank)
            or (is_blank and low >= at + BLANK_LENGTH)
            or (other_is_blank and low >= other_at + BLANK_LENGTH)
        ):
            high = low
        if low < high and not _equal(one, other, low, high):
            if not different:
                first, first_other = at, other_at
            different += 1
        elif at == other_at and behind == other_behind and not is_blank:
            same += 1
            last_same = at
        if behind <= other_behind:
            at = behind
        if other_behind <= behind:
            other_at = other_behind
    return same, different, first, first_other, last_same
