"""Arrow arrays from their buffers.

``pyarrow.array`` imports pandas, which costs a worker half a second and is of no use here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(
    values: NDArray[Any], kind: pa.DataType | None = None, present: NDArray[np.bool_] | None = None
) -> pa.Array:
    """A column over the memory of ``values``, which must not change any more; null where not ``present``."""
    kind = pa.from_numpy_dtype(values.dtype) if kind is None else kind
    return pa.Array.from_buffers(kind, len(values), [_validity(present), pa.py_buffer(values)])


def booleans(values: Sequence[bool]) -> pa.Array:
    """A column of truth values."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _validity(np.array(values, np.bool_))])


def pieces(
    kind: pa.DataType,
    offsets: NDArray[np.int32],
    raw: NDArray[np.uint8] | bytes,
    present: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """A column of strings or bytes: ``offsets`` says where each begins in ``raw`` and where the last ends."""
    buffers = [_validity(present), pa.py_buffer(offsets), pa.py_buffer(raw)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


#: Spark's timestamps, and Python's, run from the year 1 to 9999; ms.
_LEAST_MS, _MOST_MS = -62_135_596_800_000, 253_402_300_799_999
_MICROSECONDS = 1000


def are_timestamps(times: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which times, ms, are timestamps to Spark: bool[times]."""
    return (_LEAST_MS <= times) & (times <= _MOST_MS)


def timestamps(times: NDArray[np.int64], present: NDArray[np.bool_] | None = None) -> pa.Array:
    """A column of instants from ms; null where not ``present``, and where it is no timestamp to Spark."""
    fits = are_timestamps(times)
    if present is not None:
        fits &= present
    return numbers(np.where(fits, times, 0) * _MICROSECONDS, pa.timestamp("us", tz="UTC"), fits)


def repeated(text: str, rows: int) -> pa.Array:
    """A column of one string."""
    return labels((text,), np.zeros(rows, np.int32))


def labels(texts: Sequence[str], which: NDArray[np.int32]) -> pa.Array:
    """A column of few strings: which of ``texts`` each row has."""
    return strings(texts).take(numbers(which))


def spread(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions in several stretches, one stretch after the other: int64[sum of the lengths]."""
    ends = np.cumsum(lengths)
    first = np.repeat(starts - (ends - lengths), lengths)
    return first + np.arange(len(first))


def strings(texts: Sequence[str], present: NDArray[np.bool_] | None = None) -> pa.Array:
    """A column of Python's strings; a path's bytes that aren't UTF-8 become U+FFFD."""
    encoded = [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return pieces(pa.string(), offsets, b"".join(encoded), present)


def _validity(present: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
