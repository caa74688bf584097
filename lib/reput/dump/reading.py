"""Whole units, slots and entries of a file, as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.store.reading import reading, written

_PIECE = 1 << 13  # items


def read(what: str, path: Path, kind: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    """Up to ``count`` whole items from a byte on; fewer where the file ends.

    Args:
        what: the file is called so when it can't be read.
        kind: of an item.
        offset: of the first one's first byte.
        count: how many at most.
    """
    with reading(path, what) as descriptor:
        data = os.pread(descriptor, count * kind.itemsize, offset)
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)


def pieces(
    what: str, path: Path, kind: np.dtype[Any], size: int, *, backwards: bool = False
) -> Iterator[tuple[int, NDArray[Any]]]:
    """A file's whole items in pieces, without those that lie in holes of the file, which are zeros.

    Args:
        what: the file is called so when it can't be read.
        kind: of an item.
        size: bytes of the file.
        backwards: the last piece first.

    Yields:
        How many items are before the piece, and its items; a piece may be empty where the file was cut.
    """
    width, cuts = kind.itemsize, []
    done = 0
    for start, end in written(what, path, 0, size):
        at, stop = max(start // width, done), min(-(-end // width), size // width)
        cuts += [(one, min(one + _PIECE, stop)) for one in range(at, stop, _PIECE)]
        done = max(done, stop)
    for first, stop in reversed(cuts) if backwards else cuts:
        yield first, read(what, path, kind, first * width, stop - first)


def read_bytes(what: str, path: Path, offset: int, count: int) -> bytes:
    """Up to ``count`` bytes; see :func:`read`."""
    return read(what, path, np.dtype("u1"), offset, count).tobytes()
