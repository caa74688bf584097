"""Going over the frames of a log's tail, with an eye on the broker's clock. Slow and obvious; no numba.

:mod:`reput.log.walk_kernel` is the same, some hundred times as fast, but loading it takes as long as
walking over fifty thousand records here: the first answer doesn't wait for it.
"""

from __future__ import annotations

from typing import NamedTuple

from reput.format.commitlog import store_timestamp
from reput.log.frame import Frame, frame
from reput.log.segments import Segment, open_segment
from reput.scan.output import Status


class Walked(NamedTuple):
    """Where a walk over whole frames ended. Positions are relative to the segment; -1 is none.

    Attributes:
        status: why it ended: BLANK, UNWRITTEN or what is wrong; FULL after as many records as were wanted.
        position: where no whole frame stands.
        records: frames that were passed.
        last: position of the last of them.
        before: position of the one before it.
        timestamp: the last one's storeTimestamp, ms; the one given when there is none.
        top: the highest storeTimestamp, ms.
        drop: position of the first record that is older than the one before it, if none after it is as new
            again as the newest before.
        before_drop: position of the record before ``drop``.
    """

    status: int
    position: int
    records: int
    last: int
    before: int
    timestamp: int
    top: int
    drop: int
    before_drop: int


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
    """Go over whole frames from ``start`` on.

    Args:
        view: the segment.
        base: physical offset of its first byte.
        start: position of a record.
        trusted: the clock may do what it likes before this position.
        topic_length_v2: records of magic v2 are known.
        top: storeTimestamp, ms, that the first record should not be below.
        most: records to pass at most.
        entries: records may stand in DLedger's entries; positions are those of the entries.
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
