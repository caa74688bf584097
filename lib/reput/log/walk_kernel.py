"""The walk of :mod:`reput.log.walk` in numba."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format.commitlog import SYS_FLAG, store_timestamp_at
from reput.log.walk import Walked
from reput.scan.kernel import _FULL, _GOOD, _frame
from reput.scan.load import come, i32, i64


@njit(cache=CACHED, nogil=True, _nrt=False)
def _walk(data, base, start, trusted, topic_length_v2, top, most, entries):  # type: ignore[no-untyped-def]
    segment_end = np.int64(len(data))
    position = ahead = np.int64(start)
    records = np.int64(0)
    top = np.int64(top)
    timestamp = top
    last = before = drop = before_drop = np.int64(-1)
    while True:
        status, size, header, _b, _bl, _t, _tl, _p, _pl = _frame(
            data, base, position, segment_end, topic_length_v2, entries
        )
        if status != _GOOD:
            break
        if records >= most:
            status = _FULL
            break
        ahead = come(data, position + size, ahead)
        record = position + header
        timestamp = i64(data, record + store_timestamp_at(i32(data, record + SYS_FLAG)))
        if position < trusted:
            top = timestamp
        elif timestamp >= top:
            drop = before_drop = np.int64(-1)
            top = timestamp
        elif drop < 0:
            drop = position
            before_drop = last
        records += 1
        before = last
        last = position
        position += size
    return status, position, records, last, before, timestamp, top, drop, before_drop


def walk(
    data: NDArray[np.uint8],
    base: int,
    start: int,
    trusted: int,
    topic_length_v2: bool,
    top: int,
    most: int,
    entries: bool = False,
) -> Walked:
    """See :func:`reput.log.walk.walk`; ``data`` is the segment."""
    return Walked(*map(int, _walk(data, base, start, trusted, topic_length_v2, top, most, entries or None)))


def load() -> None:
    """Have the kernel compiled or its cached code loaded."""
    _walk(np.zeros(8, np.uint8), 0, 0, 0, True, 0, 0, None)
