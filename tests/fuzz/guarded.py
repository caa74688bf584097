"""Memory between two pages that nobody may touch: a read past either end ends the process."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.log import segments

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0
_PAGE = mmap.PAGESIZE


def guarded(data: bytes, *, at_end: bool) -> NDArray[np.uint8]:
    """The bytes as a read-only array between two guard pages.

    Args:
        at_end: the last byte is followed by a guard page; else the first one follows a guard page.
    """
    room = -(-max(len(data), 1) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, room + 2 * _PAGE)
    start = _PAGE + (room - len(data) if at_end else 0)
    memory[start : start + len(data)] = data
    whole = np.frombuffer(memory, np.uint8)
    address = whole.ctypes.data
    for place in (address, address + _PAGE + room):
        if _LIBC.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(_PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    array = whole[start : start + len(data)]
    array.flags.writeable = False
    return array


@contextmanager
def guarded_segments(*, at_end: bool) -> Iterator[None]:
    """Whatever reads a segment of the log meanwhile gets it between guard pages."""
    real = segments.map_segment

    def map_segment(path: str | Path, length: int) -> NDArray[np.uint8]:
        return guarded(real(path, length).tobytes(), at_end=at_end)

    users = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("reput.") and getattr(module, "map_segment", None) is real
    ]
    for module in users:
        module.map_segment = map_segment  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in users:
            module.map_segment = real  # type: ignore[attr-defined]
