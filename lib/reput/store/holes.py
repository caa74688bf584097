"""Which ranges of a file were never written: a segment is made whole, and most file systems keep no zeros."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from os import PathLike

from reput.store.unreadable import reading


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


def written(what: str, path: str | PathLike[str], start: int, end: int) -> list[tuple[int, int]]:
    """The same of a file that isn't open; bytes there may still be zeros.

    Args:
        what: the file is called so when it can't be read.

    Raises:
        SegmentGoneError, StoreError: it can't be read.
    """
    with reading(path, what) as descriptor:
        return list(extents(descriptor, start, end))
