"""A segment elsewhere as an array, of which ranges are read when they are wanted."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.remote.client import RANGE
from reput.remote.store import RemoteStore, client_of

#: No request is for less: a look at records one by one would be a request for each.
_LEAST = 256 << 10
#: Ranges that are read ahead.
_AHEAD = 2
#: Memory is given back in multiples of this: a large page of most processors.
_PAGE = 2 << 20
#: Bytes before a position that stay, for the header of its entry.
_KEPT = 1 << 10
#: Absent where the platform has none; then a segment's whole length counts as used.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class RemoteSegment:
    """The bytes of one segment, uint8[length]. What wasn't fetched reads as zeros: fetch first.

    With ``keeps``, what was fetched stays; else :meth:`passed` gives memory back, so that going over a
    segment takes that of some ranges.
    """

    def __init__(self, store: RemoteStore, path: str | Path, length: int, *, keeps: bool = True) -> None:
        self._file = store.file_at(path)
        self._client = client_of(store.url)
        self._memory = mmap.mmap(-1, max(length, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        with suppress(OSError):  # a kernel without: twice the processor time
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._written = np.frombuffer(self._memory, np.uint8)[:length]
        self.data: NDArray[np.uint8] = self._written[:]
        self.data.flags.writeable = False
        self._keeps = keeps
        self._fetched: list[tuple[int, int]] = []  # disjoint, sorted
        self._coming: dict[tuple[int, int], Future[None]] = {}

    def fetch(self, start: int, stop: int) -> None:
        """Have [start, stop) there, as far as the segment goes.

        Raises RemoteStoreError also where it isn't what was planned with.
        """
        start, stop = max(start, 0) // _LEAST * _LEAST, -(-stop // _LEAST) * _LEAST
        stop = min(stop, len(self.data))
        try:
            while missing := self._missing(start, stop):
                for piece in [piece for span in missing for piece in _pieces(*span)]:
                    if len(self._coming) <= _AHEAD:  # not all at once: what has failed is to end soon
                        self._begin(piece)
                awaited = [one for one in self._coming if one[0] < stop and start < one[1]]
                self._take((awaited or [*self._coming])[0])
        except BaseException:
            for coming in self._coming.values():
                coming.cancel()
            self._coming.clear()
            raise

    def _take(self, piece: tuple[int, int]) -> None:
        """Wait for a range that is coming."""
        self._coming.pop(piece).result()
        self._note(piece)

    def has(self, start: int, stop: int) -> bool:
        """Whether [start, stop) is there, as far as the segment goes."""
        return not self._missing(max(start, 0), min(stop, len(self.data)))

    def until(self, start: int, wanted: int) -> int:
        """Have what follows ``start`` there, to the end of a range or beyond ``wanted``; read ahead of that.

        Returns the position up to which all is there from ``start`` on.
        """
        length = len(self.data)
        missing = self._missing(start, length)
        if missing and missing[0][0] < min(wanted, length, start + RANGE // 2):
            self.fetch(start, min(missing[0][0] // RANGE * RANGE + RANGE, length))
            missing = self._missing(start, length)
        there, end = missing[0] if missing else (length, length)
        for piece in _pieces(there, min(end, wanted)):
            if len(self._coming) < _AHEAD:
                self._begin(piece)
        return there

    def passed(self, position: int) -> None:
        """Let go of what lies before a position, but for what may belong to the record there."""
        stop = position - _KEPT
        if not self._keeps and self._fetched and stop - self._fetched[0][0] >= RANGE:
            self._let_go(self._fetched[0][0], stop)

    def _let_go(self, start: int, stop: int) -> None:
        """Give the memory of whole pages back."""
        start, stop = (at - at % _PAGE for at in (start, stop))
        for piece in [one for one in self._coming if one[0] < stop]:
            self._take(piece)  # else it would be noted as there when it isn't any more
        self._memory.madvise(mmap.MADV_DONTNEED, start, stop - start)
        self._fetched = [(max(begin, stop), end) for begin, end in self._fetched if end > stop]

    def _begin(self, piece: tuple[int, int]) -> None:
        if piece not in self._coming:
            self._coming[piece] = _pool().submit(self._read, *piece)

    def _read(self, start: int, stop: int) -> None:
        self._written[start:stop] = np.frombuffer(self._client.read(self._file, start, stop), np.uint8)

    def _missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """What of a range wasn't fetched; what is coming counts as missing."""
        missing = []
        for begin, end in self._fetched:
            if begin >= stop:
                break
            if end > start:
                if begin > start:
                    missing.append((start, begin))
                start = end
        if start < stop:
            missing.append((start, stop))
        return missing

    def _note(self, piece: tuple[int, int]) -> None:
        spans = sorted([*self._fetched, piece])
        joined = spans[:1]
        for begin, end in spans[1:]:
            if begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], end)
            else:
                joined.append((begin, end))
        self._fetched = joined


def _pieces(start: int, stop: int) -> list[tuple[int, int]]:
    """A range, cut at multiples of :data:`RANGE`."""
    if start >= stop:
        return []
    cuts = [start, *range(start - start % RANGE + RANGE, stop, RANGE), stop]
    return list(pairwise(cuts))


_pools: dict[int, ThreadPoolExecutor] = {}


def _pool() -> ThreadPoolExecutor:
    """This process's threads: a forked one doesn't have its parent's."""
    pid = os.getpid()
    if pid not in _pools:
        _pools[pid] = ThreadPoolExecutor(_AHEAD + 1, "remote")
    return _pools[pid]
