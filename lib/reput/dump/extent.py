"""Where a log and an index begin and end: what is to be said where nothing was found."""

from __future__ import annotations

from dataclasses import dataclass

from reput.dump.commitlog import Reader
from reput.dump.index import IndexPlace, read_header
from reput.dump.places import LogPlace
from reput.dump.wanted import Wanted
from reput.log.segments import Segment, SegmentBytes
from reput.scan.frames import FrameWalk
from reput.scan.rules import Part


@dataclass(frozen=True, slots=True)
class LogExtent:
    """What a log holds."""

    #: start, end: physical offsets, half open, up to the last record's end; equal where there is none
    start: int
    end: int
    first: int = 0  # first, last: storeTimestamp, ms, of the first and the last record; 0 if missing
    last: int = 0


def of_log(place: LogPlace) -> LogExtent:
    """Where a log begins and ends. Read from both sides up to the first segment that has a record.

    Only the heads of records are looked at, of the last segment's all: what lies behind half a record tells
    whether the log goes on there or was cut.
    """
    log = place.log
    ends = (_last(place, segment) for segment in reversed(log.segments))
    found = next((end for end in ends if end is not None), None)
    if found is None:
        return LogExtent(log.start, log.start)
    end, last = found
    times = (_first(place, segment) for segment in log.segments)
    first = next((time for time in times if time is not None), last)
    return LogExtent(log.start, end, first, last)


def _last(place: LogPlace, segment: Segment) -> tuple[int, int] | None:
    """Of a segment's last record the end, a physical offset, and its storeTimestamp, ms."""
    walk, opened, part = _walk(place, segment)
    walk.advance(part.end - part.base)
    if walk.last_record < 0:
        return None
    size = int.from_bytes(opened.data[walk.last_record : walk.last_record + 4].tobytes(), "big")
    return segment.base + walk.last_record + size, walk.timestamp


def _first(place: LogPlace, segment: Segment) -> int | None:
    """Of a segment's first record the storeTimestamp, ms."""
    walk, _, part = _walk(place, segment)
    while walk.last_record < 0 and walk.position < part.end - part.base:
        walk.advance(walk.position + 1)
    return walk.timestamp if walk.last_record >= 0 else None


def _walk(place: LogPlace, segment: Segment) -> tuple[FrameWalk, SegmentBytes, Part]:
    reader = Reader(place.settings, entries=place.log.entries, wanted=Wanted())
    return reader.walk(segment, place.log.segment_size, last=True)


def of_index(files: list[IndexPlace]) -> tuple[int, int] | None:
    """The times that index files say of themselves, ms, the first and the last; None without an entry."""
    headers = [read_header(place) for place in files]
    used = [one for one in headers if one.index_count > 1]
    if not used:
        return None
    return min(one.begin_timestamp for one in used), max(one.end_timestamp for one in used)
