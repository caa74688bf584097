"""Whole messages behind the place where a starting broker ends the log."""

from __future__ import annotations

from dataclasses import dataclass

from reput.broker.files import StoreFile
from reput.broker.predict import Prediction
from reput.broker.snapshot import Snapshot
from reput.broker.walk import store_timestamp
from reput.broker.written import first_written, written_ranges
from reput.log.segments import map_segment
from reput.scan.extent import Extents


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a start ends the log, and what is behind.

    Attributes:
        segment: the one that it ends in.
        position: where, in the segment.
        found: position in the segment of the first whole message from there on, -1 if missing.
        written: the segments behind it that something was written to.
        timestamp: storeTimestamp, ms, of the message before it; see :func:`left_from`.
    """

    segment: StoreFile
    position: int
    found: int
    written: list[StoreFile]
    timestamp: int


def first_cut(prediction: Prediction) -> Cut | None:
    """Where the start ends the log within a segment; None if it deletes whole ones."""
    view, cut = prediction.snapshot, prediction.cuts[0]
    if cut.deleted:
        return None
    segment = next(one for one in view.log.files if one.path == cut.path)
    position = cut.start - segment.base
    written, timestamp = written_behind(view, segment.base), left_from(prediction)
    found = first_whole(view, segment, position, 0 if written else timestamp)
    return Cut(segment, position, found, written, timestamp)


def first_whole(snapshot: Snapshot, segment: StoreFile, start: int, not_before: int) -> int:
    """The position of the first whole message from ``start`` on, -1 if missing.

    Args:
        start: position in the segment, to which the chain of records has led.
        not_before: storeTimestamp, ms, that it has at least; see :func:`left_from`.
    """
    size, settings = snapshot.segment_size, snapshot.settings
    data = map_segment(segment.path, size)
    stop = max((end for _, end in written_ranges(segment, start, size)), default=start)
    extents = Extents(
        data,
        segment.base,
        size,
        topic_length_v2=settings.dialect.topic_length_v2,
        largest_record=settings.largest_record,
        not_before=not_before or None,
    )
    found = start
    if not extents.is_message(start):
        found = extents.resume(start, stop).position
    return found if found >= 0 and extents.is_message(found) else -1


def written_behind(snapshot: Snapshot, base: int) -> list[StoreFile]:
    """The segments behind the one at ``base`` that something was written to."""
    size = snapshot.segment_size
    return [
        segment
        for segment in snapshot.log.files
        if segment.base > base and first_written(segment, size, 0) < size
    ]


def left_from(prediction: Prediction) -> int:
    """StoreTimestamp of the message before the walk's end, ms; of an earlier one, or 0, if it met none.

    In the last segment that was written, messages older than that are what an earlier truncation left
    behind: the broker moved its position back, and the bytes stayed. They are no part of the log.
    """
    snapshot, walked = prediction.snapshot, prediction.recovered or prediction.tail
    if walked is not None and walked.last_valid >= 0:
        return store_timestamp(snapshot.log.files, snapshot.segment_size, walked.last_valid)
    end = 0 if walked is None else walked.end
    for segment in reversed(snapshot.log.files):
        if segment.base < end and first_whole(snapshot, segment, 0, 0) == 0:
            return store_timestamp(snapshot.log.files, snapshot.segment_size, segment.base)
    return 0
