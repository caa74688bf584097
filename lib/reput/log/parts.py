"""Cutting the log into parts, by arithmetic alone: nothing is read, and no kernel is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from reput.log.segments import CommitLog, Segment
from reput.scan.rules import Part


def part_of(log: CommitLog, segment: Segment, start: int, end: int, *, exact: bool = False) -> Part:
    """The range [start, end) of a segment, physical offsets; a segment's first byte is exact."""
    return Part(
        path=str(segment.path),
        base=segment.base,
        segment_length=segment.length,
        segment_size=log.segment_size,
        start=start,
        end=end,
        exact=exact or start == segment.base,
        last=segment is log.segments[-1],
    )


def cut(log: CommitLog, start: int, end: int, part_bytes: int, exact_start: int | None) -> Iterator[Part]:
    """The parts of [start, end) in log order; stretches without a segment have none.

    Parts end at multiples of ``part_bytes``, counted from their segment's base. At ``exact_start`` a record
    is known to begin.
    """
    for segment in log.segments:
        at = max(start, segment.base)
        stop = min(end, segment.base + segment.length)
        while at < stop:
            cut_at = min(at + part_bytes - (at - segment.base) % part_bytes, stop)
            yield part_of(log, segment, at, cut_at, exact=at == exact_start)
            at = cut_at


def next_place(log: CommitLog, offset: int) -> int:
    """``offset``, or where the log continues after a gap that it lies in; ``offset`` past the log's end."""
    for segment in log.segments:
        if offset < segment.base + segment.length:
            return max(offset, segment.base)
    return offset


def batch_end(log: CommitLog, begin: int, end: int, max_bytes: int | None) -> int:
    """Where a micro-batch that begins at ``begin`` ends, at most at ``end``.

    Its ``max_bytes`` are counted from where there is something, so that a gap is not crossed batch by batch.
    """
    return end if max_bytes is None else min(end, next_place(log, begin) + max(max_bytes, 1))
