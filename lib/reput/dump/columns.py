"""Kernels over the columns of a block of records: which of them are wanted."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format import javastring
from reput.scan.load import u8


@njit(inline="always")
def _is(data, start, text):  # type: ignore[no-untyped-def]
    for at in range(len(text)):  # noqa: SIM110 - what numba can't compile
        if u8(data, start + at) != text[at]:
            return False
    return True


@njit(cache=CACHED, nogil=True)
def _equal(data, starts, lengths, text):  # type: ignore[no-untyped-def]
    found = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        found[row] = lengths[row] == len(text) and _is(data, starts[row], text)
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
            found[row] = stop - at == len(word) and _is(data, at, word)
            at = stop + 1
    return found


def equal(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], text: bytes
) -> NDArray[np.bool_]:
    """Which pieces of ``data`` are this text: bool[pieces]."""
    found: NDArray[np.bool_] = _equal(data, starts, lengths, np.frombuffer(text, np.uint8))
    return found


def read_as(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], text: bytes
) -> NDArray[np.bool_]:
    """Which pieces of ``data`` are this text, or what Java reads as it: bool[pieces]."""
    found = equal(data, starts, lengths, text)
    if "\ufffd".encode() in text:  # else it has no other spelling
        for row in np.flatnonzero(~found).tolist():
            piece = data[starts[row] : starts[row] + lengths[row]].tobytes()
            found[row] = javastring.utf8(piece) == text
    return found


def holds(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], word: bytes
) -> NDArray[np.bool_]:
    """Which pieces of ``data`` have this among their words, which single spaces separate: bool[pieces]."""
    found: NDArray[np.bool_] = _holds(data, starts, lengths, np.frombuffer(word, np.uint8))
    return found
