"""The values of a few properties in many records, as columns of codes.

Source: ``MessageDecoder.string2messageProperties``: the first 0x01 of an entry ends its name, entries without
a name or a value don't count, the last of a repeated name does. The slow twin goes by
:func:`reput.format.properties.parse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format.commitlog import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

# mypy: disable-error-code="untyped-decorator, no-untyped-call"

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_SHIFT = np.uint64(29)


@dataclass(frozen=True, slots=True)
class Column:
    """One property of N messages."""

    codes: NDArray[np.int32]  # int32[N]: index into ``values``; -1 where the message lacks the property
    values: tuple[bytes, ...]  # distinct values, as bytes of the record


def columns(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    names: Sequence[str],
    *,
    present: Sequence[str] = (),
) -> dict[str, Column]:
    """Columns of the properties of N records.

    Args:
        data: uint8, what the records are in.
        starts: int64[N], where each record's properties begin in ``data``.
        lengths: int64[N], their bytes, 0 for none.
        names: the properties that are wanted, ASCII.
        present: more properties, of which only matters whether a message has them: all their values count as
            one, which is some message's.

    Returns:
        a column for each name.
    """
    wanted = [*names, *present]
    texts = [name.encode("ascii") for name in wanted]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    blob = np.frombuffer(b"".join(texts), np.uint8)
    value_starts, value_lengths = _find_values(data, starts, lengths, blob, ends)
    found = {}
    for at, name in enumerate(wanted):
        if at < len(names):
            codes, firsts = _encode(data, value_starts[at], value_lengths[at])
        else:
            codes = np.where(value_starts[at] < 0, -1, 0).astype(np.int32)
            firsts = np.flatnonzero(codes == 0)[:1]
        places = zip(value_starts[at][firsts].tolist(), value_lengths[at][firsts].tolist(), strict=True)
        found[name] = Column(codes, tuple(data[start : start + size].tobytes() for start, size in places))
    return found


@njit(cache=CACHED, nogil=True)
def _find_values(data, starts, lengths, names, ends):  # type: ignore[no-untyped-def]
    """Start (-1 for none) and length of each value: int64[P, N] twice; ``names`` one after the other."""
    count, wanted = len(starts), len(ends)
    value_starts = np.full((wanted, count), -1, np.int64)
    value_lengths = np.zeros((wanted, count), np.int64)
    for record in range(count):
        at = starts[record]
        limit = at + lengths[record]
        while at < limit:
            name_end = at
            while (
                name_end < limit
                and data[name_end] != NAME_VALUE_SEPARATOR
                and data[name_end] != PROPERTY_SEPARATOR
            ):
                name_end += 1
            end = name_end
            while end < limit and data[end] != PROPERTY_SEPARATOR:
                end += 1
            # With a name, a separator and a value.
            if name_end > at and name_end + 1 < end:
                size = name_end - at
                name = np.int64(0)
                for which in range(wanted):
                    if ends[which] - name == size:
                        same = True
                        for i in range(size):
                            if data[at + i] != names[name + i]:
                                same = False
                                break
                        if same:
                            value_starts[which, record] = name_end + 1
                            value_lengths[which, record] = end - name_end - 1
                    name = ends[which]
            at = end + 1
    return value_starts, value_lengths


@njit(cache=CACHED, nogil=True)
def _encode(data, starts, lengths):  # type: ignore[no-untyped-def]
    """int32[N] codes in order of appearance, and int64[distinct]: the first message with each."""
    count = len(starts)
    codes = np.full(count, -1, np.int32)
    firsts = np.empty(count, np.int64)
    slots = 16
    while slots < 2 * count:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    distinct = 0
    for record in range(count):
        start, size = starts[record], lengths[record]
        if start < 0:
            continue
        value = _OFFSET
        for i in range(start, start + size):
            value = np.uint64((value ^ np.uint64(data[i])) * _PRIME)
        slot = np.int64((value ^ (value >> _SHIFT)) & np.uint64(slots - 1))
        while True:
            code = table[slot]
            if code < 0:
                table[slot] = distinct
                codes[record] = distinct
                firsts[distinct] = record
                distinct += 1
                break
            other = firsts[code]
            if lengths[other] == size:
                same = True
                for i in range(size):
                    if data[starts[other] + i] != data[start + i]:
                        same = False
                        break
                if same:
                    codes[record] = code
                    break
            slot = (slot + 1) & (slots - 1)
    return codes, firsts[:distinct].copy()
