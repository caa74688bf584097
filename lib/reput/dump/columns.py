"""Kernels over the columns of a block of records: which of them are wanted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format import javastring
from reput.scan.fields import begins
from reput.scan.load import u8


@njit(cache=CACHED, nogil=True)
def _equal(data, starts, lengths, text):  # type: ignore[no-untyped-def]
    found = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        found[row] = lengths[row] == len(text) and begins(data, starts[row], text)
    return found


@njit(cache=CACHED, nogil=True)
def _holds(data, starts, lengths, word):  # type: ignore[no-untyped-def]
    found = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        begin = starts[row]
        end = begin + lengths[row]
        at = begin
        while at < end and not found[row]:
            stop = at
            while stop < end and u8(data, stop) != 0x20:
                stop += 1
            found[row] = stop - at == len(word) and begins(data, at, word)
            at = stop + 1
    return found


class Pieces(NamedTuple):
    """Pieces of ``data``, uint8[bytes]: where each starts and its length, both int64[pieces]."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def are(self, text: bytes) -> NDArray[np.bool_]:
        """Which of them are this text: bool[pieces]."""
        found: NDArray[np.bool_] = _equal(*self, np.frombuffer(text, np.uint8))
        return found

    def read_as(self, text: bytes) -> NDArray[np.bool_]:
        """Which of them are this text, or what Java reads as it: bool[pieces]."""
        found = self.are(text)
        if "\ufffd".encode() in text:  # else it has no other spelling
            for row in np.flatnonzero(~found).tolist():
                piece = self.data[self.starts[row] : self.starts[row] + self.lengths[row]].tobytes()
                found[row] = javastring.utf8(piece) == text
        return found

    def hold(self, word: bytes) -> NDArray[np.bool_]:
        """Which of them have this among their words, which single spaces separate: bool[pieces]."""
        found: NDArray[np.bool_] = _holds(*self, np.frombuffer(word, np.uint8))
        return found
