"""Where a log, a queue and an index begin and end: what is to be said where nothing was found."""

from __future__ import annotations

from dataclasses import dataclass

from reput.dump.batchqueue import batch_extent
from reput.dump.commitlog import Block, Reader
from reput.dump.consumequeue import is_of_batches, unit_extent
from reput.dump.index import IndexPlace, read_header
from reput.dump.places import LogPlace, QueuePlace
from reput.dump.wanted import Wanted


@dataclass(frozen=True, slots=True)
class LogExtent:
    """What a log holds.

    Attributes:
        start, end: physical offsets, half open, up to the last record's end; equal where there is none.
        first, last: storeTimestamp, ms, of the first and the last record; 0 where there is none.
    """

    start: int
    end: int
    first: int = 0
    last: int = 0


def of_log(place: LogPlace) -> LogExtent:
    """Where a log begins and ends. Read from both sides up to the first segment that has a record.

    Raises:
        SegmentGoneError, StoreError: a segment can't be read.
    """
    log = place.log
    reader = Reader(place.settings, entries=log.entries, wanted=Wanted())
    found: LogExtent | None = None
    for segment in reversed(log.segments):
        for event in reader.segment(segment, log.segment_size, last=True):
            if isinstance(event, Block):
                data, rows = event.frames, event.rows
                end = event.base + int(data.position[rows[-1]] + data.size[rows[-1]])
                found = LogExtent(log.start, end, 0, int(data.store_timestamp[rows[-1]]))
        if found is not None:
            break
    if found is None:
        return LogExtent(log.start, log.start)
    for segment in log.segments:
        for event in reader.segment(segment, log.segment_size, last=True):
            if isinstance(event, Block):
                first = int(event.frames.store_timestamp[event.rows[0]])
                return LogExtent(found.start, found.end, first, found.last)
    return found


def of_queue(place: QueuePlace) -> tuple[int, int] | None:
    """The queueOffsets that a queue's files hold, half open; None where they have no unit.

    Raises:
        SegmentGoneError, StoreError: a file can't be read.
    """
    return batch_extent(place) if is_of_batches(place) else unit_extent(place)


def of_index(files: list[IndexPlace]) -> tuple[int, int] | None:
    """The times that index files say of themselves, ms, the first and the last; None without an entry.

    Raises:
        SegmentGoneError, StoreError: one can't be read.
    """
    headers = [read_header(place) for place in files]
    used = [one for one in headers if one.index_count > 1]
    if not used:
        return None
    return min(one.begin_timestamp for one in used), max(one.end_timestamp for one in used)
