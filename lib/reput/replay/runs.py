"""What runs of units and of index keys have in common: sorted keys in a file that one task wrote."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from reput.store import files


class Keys(Sequence[bytes]):
    """Keys, ascending, of which each is made when it is asked for: of a million, a task needs its share.

    Args:
        text: has the keys one after the other.
        begin: where the first begins in ``text``.
        ends: int64[keys], where each ends, counted from there.
    """

    def __init__(self, text: bytes | mmap.mmap, begin: int, ends: NDArray[np.int64]) -> None:
        self._text = text
        self._begin = begin
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...

    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        if isinstance(number, slice):
            begin, stop, step = number.indices(len(self))
            if step != 1 or begin >= stop:
                return [self[at] for at in range(begin, stop, step)]
            first = self._at(begin)
            ends = (self._ends[begin:stop] + (self._begin - first)).tolist()
            text = self._text[first : first + ends[-1]]
            return [text[low:high] for low, high in pairwise([0, *ends])]
        if not 0 <= number < len(self):
            raise IndexError(number)  # which is how going over all of them ends
        return self._text[self._at(number) : self._at(number + 1)]

    def _at(self, number: int) -> int:
        return self._begin + (int(self._ends[number - 1]) if number else 0)


def write_run(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a new file; on disk when this returns."""
    fd = files.create_file(path, None)
    try:
        at = 0
        for block in blocks:
            files.pwrite_all(fd, block, at)
            at += len(block)
        files.fsync_file(fd)
    finally:
        os.close(fd)
