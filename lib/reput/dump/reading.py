"""Whole units, slots and entries of a file, as arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.store.unreadable import unreadable


def read(what: str, path: Path, kind: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    """Up to ``count`` whole items from a byte on; fewer where the file ends.

    Args:
        what: the file is called so when it can't be read.
        path: the file.
        kind: of an item.
        offset: of the first one's first byte.
        count: how many at most.

    Raises:
        SegmentGoneError, StoreError: it can't be read.
    """
    try:
        # Of a pipe nobody may ever open the other end: it is refused by the read.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.pread(descriptor, count * kind.itemsize, offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(what, path, error) from error
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)


def read_bytes(what: str, path: Path, offset: int, count: int) -> bytes:
    """Up to ``count`` bytes; see :func:`read`.

    Raises:
        SegmentGoneError, StoreError: the file can't be read.
    """
    return read(what, path, np.dtype("u1"), offset, count).tobytes()
