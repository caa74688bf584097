"""Which segments can hold what a query wants, by their names and by the time of each one's first record."""

from __future__ import annotations

from itertools import pairwise

from reput.log import walk
from reput.log.segments import CommitLog, Segment
from reput.source.filters import ALL, Wanted
from reput.source.read_statistics import ReadStatistics

#: Bytes of a record and its entry's header that tell its time, at the most.
_HEAD = 144


def first_time(log: CommitLog, segment: Segment, reads: ReadStatistics) -> int | None:
    """The storeTimestamp, ms, of the record that a segment begins with; None if it begins with none.

    Raises:
        SegmentGoneError, StoreError: the segment can't be read.
    """
    reads.files += 1
    reads.passed += min(_HEAD, segment.length)
    time = walk.first_time(segment, topic_length_v2=True, entries=log.entries)
    return time if time is not None and time > 0 else None


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
        firsts = [first_time(log, segment, reads) for segment in log.segments]
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
