"""Ranges of equally long pieces of files: how they are gathered into partitions, and read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reput.source.read_statistics import ReadStatistics
from reput.store.reading import extents, reading

#: Pieces in one batch of rows.
BATCH = 1 << 16
#: What opening a file is worth, in bytes: a partition shall not have thousands of them.
_FILE = 64 << 10


class Sized(Protocol):
    """Something that goes into a partition."""

    @property
    def path(self) -> str:
        """The file."""

    @property
    def span(self) -> tuple[int, int]:
        """Its bytes in the file, half open."""

    @property
    def weight(self) -> int:
        """Bytes to be read."""


_S = TypeVar("_S", bound=Sized)


def gathered(pieces: Iterable[_S], part_bytes: int) -> Iterator[list[_S]]:
    """Pieces one after another in lists of about ``part_bytes`` bytes; each counts for 64 KiB at least."""
    found: list[_S] = []
    weight = 0
    for piece in pieces:
        more = max(piece.weight, _FILE)
        if found and weight + more > part_bytes:
            yield found
            found, weight = [], 0
        found.append(piece)
        weight += more
    if found:
        yield found


@contextmanager
def opened(path: str | Path, what: str, reads: ReadStatistics) -> Iterator[int]:
    """A file's descriptor, for reading.

    Args:
        what: what is read, for the error.

    Raises:
        SegmentGoneError, StoreError: it can't be opened, or the block can't read it.
    """
    with reading(path, what) as descriptor:
        reads.files += 1
        yield descriptor


def stretches(
    descriptor: int, kind: np.dtype[np.void], first: int, last: int, start: int, reads: ReadStatistics
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """The elements [first, last) of a file that begin with ``start`` bytes of something else, in batches.

    Elements in holes of the file, which are zeros, are left out. Yields the ordinal of a batch's first
    element and the elements, kind[up to BATCH].
    """
    size = kind.itemsize
    done = first
    for begin, end in extents(descriptor, start + first * size, start + last * size):
        at = max(done, (begin - start) // size)
        stop = min(last, -(-(end - start) // size))
        while at < stop:
            count = min(BATCH, stop - at)
            data = os.pread(descriptor, count * size, start + at * size)
            reads.read += len(data)
            if len(data) < size:
                return  # shorter than it was
            yield at, np.frombuffer(data, kind, len(data) // size)
            at += count
        done = max(done, stop)
