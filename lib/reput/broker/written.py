"""What of a segment was written, without reading its holes: brokers make segments of zeros ahead of time."""

from __future__ import annotations

from reput.broker.snapshot import Snapshot
from reput.derived.files import StoreFile
from reput.errors import StoreError
from reput.log.segments import map_segment
from reput.scan import kernel
from reput.store.reading import written


def written_ranges(segment: StoreFile, start: int, end: int) -> list[tuple[int, int]]:
    """The half-open ranges of positions in [start, end) that aren't holes; bytes there may still be zeros."""
    try:
        return written("the segment", segment.path, start, end)
    except StoreError:
        return [(start, end)]  # mapping it says what is wrong


def first_written(segment: StoreFile, size: int, start: int) -> int:
    """Position of the first byte from ``start`` on that isn't zero, else ``size``."""
    data = map_segment(segment.path, size)
    for first, stop in written_ranges(segment, start, size):
        found = kernel.first_written(data, first, stop)
        if found < stop:
            return found
    return size


def last_written(snapshot: Snapshot) -> tuple[StoreFile, int]:
    """The last segment that something was written to, and up to which physical offset there may be something.

    The first segment, and its base, when nothing was written. The store has segments.
    """
    size = snapshot.segment_size
    for segment in reversed(snapshot.log.files):
        if first_written(segment, size, 0) < size:
            return segment, segment.base + written_ranges(segment, 0, size)[-1][1]
    return snapshot.log.files[0], snapshot.log.files[0].base
