"""Which ranges of a file were never written: a segment is made whole, and most file systems keep no zeros."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def extents(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The half-open ranges of a file's [start, end) that aren't holes; the whole where none are known."""
    at = start
    while at < end:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            stop = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                yield at, end
            return
        if at >= end:
            return
        yield at, min(stop, end)
        at = stop
