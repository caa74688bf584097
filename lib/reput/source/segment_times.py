"""Which segments can hold what a query wants, by their names and by the time of each one's first record."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from reput.errors import SegmentGoneError, StoreError
from reput.format.commitlog import MAGIC, MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET, store_timestamp
from reput.format.dledger import HEADER_LENGTH, record_at
from reput.log.segments import CommitLog, Segment
from reput.source.filters import ALL, Wanted
from reput.source.read_statistics import ReadStatistics

#: From a frame's first byte to behind a record's storeTimestamp, at the most: an entry's header, IPv6 hosts.
_HEAD = HEADER_LENGTH + 96


def first_time(segment: Segment, reads: ReadStatistics) -> int | None:
    """The storeTimestamp, ms, of the record that a segment begins with; None if it begins with none.

    Raises:
        SegmentGoneError: the file isn't there any more.
        StoreError: it can't be read.
    """
    head = _head(segment.path, min(_HEAD, segment.length))
    reads.files += 1
    reads.passed += len(head)
    if len(head) < _HEAD:
        return None
    record = record_at(head, 0)
    magic = int.from_bytes(head[record + MAGIC : record + MAGIC + 4], "big")
    place = int.from_bytes(head[record + PHYSICAL_OFFSET : record + PHYSICAL_OFFSET + 8], "big")
    if magic not in (MAGIC_V1, MAGIC_V2) or place != segment.base + record:
        return None
    time = store_timestamp(memoryview(head), record)
    return time if time > 0 else None


def segments_within(log: CommitLog, wanted: Wanted, slack_ms: int, reads: ReadStatistics) -> list[Segment]:
    """The segments that can hold a wanted message.

    Records are taken to lie between the first record of their segment and that of the next one, give and
    take ``slack_ms``. Where first records themselves go back further than that, times tell nothing.

    Raises:
        StoreError: a segment can't be read.
    """
    if wanted.is_nothing:
        return []
    offsets, times = wanted.range_of("physicalOffset"), wanted.range_of("storeTimestamp")
    spans = [(segment.base, segment.base + segment.length - 1) for segment in log.segments]
    kept = [offsets.clip(*span) is not None for span in spans]
    if times != ALL and any(kept):
        firsts = [first_time(segment, reads) for segment in log.segments]
        known = [time for time in firsts if time is not None]
        if all(other >= one - slack_ms for one, other in pairwise(known)):
            before: int | None = None
            # Up to the next segment's first record; where that isn't known, there is no bound.
            for at, (first, after) in enumerate(zip(firsts, [*firsts[1:], None], strict=True)):
                before = before if first is None else first
                low = times.low if before is None else before - slack_ms
                high = times.high if after is None else after + slack_ms
                kept[at] &= times.clip(low, high) is not None
    return [segment for segment, is_kept in zip(log.segments, kept, strict=True) if is_kept]


def _head(path: Path, length: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.pread(descriptor, length, 0)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise SegmentGoneError(
            "the segment can't be read",
            path=path,
            found="no such file: it has expired, or the log was cut",
            next_step="Run the same query again; it begins with the first segment that there is",
        ) from error
    except OSError as error:
        raise StoreError(
            "the segment can't be read",
            path=path,
            found=error.strerror,
            next_step="Check the file and its permissions, then run the same query again",
        ) from error
