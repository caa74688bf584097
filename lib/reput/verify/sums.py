"""Sums that bind what was verified to its bytes: of units and index entries as they were compared. Pure.

A sum is of numbers of 64 bits, one for each unit or entry and its place, so that tasks' sums add up to that
of a whole segment, and a later run gets the same one from the same bytes in any order. They tell what faults
change, not what somebody changes who means to deceive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reput.format.indexfile import FIRST_ORDINAL
from reput.verify.units import units_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reput.verify.index import Entries
    from reput.verify.index_file import IndexInfo

_U64 = NDArray[np.uint64]
#: How many, and their sum modulo 2**64.
Sum = tuple[int, int]
#: Modulo which sums count.
MODULUS = 1 << 64
_STEPS = tuple(np.uint64(step) for step in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31))


def unit_sum(first: int, data: bytes | memoryview) -> int:
    """The sum of consecutive units of a queue; places without a unit count as well."""
    units = units_of(data)
    places = np.arange(first, first + len(units), dtype=np.uint64)
    sizes = units["size"].astype(np.int64)
    return _total(_mixed(places, units["position"], sizes, units["tags"]))


def sums_by(keys: NDArray[np.integer[Any]], mixed: _U64) -> dict[int, Sum]:
    """How many numbers each key has, and their sum."""
    found: dict[int, Sum] = {}
    starts = _runs(keys)
    if len(starts):
        counts = np.diff(starts, append=len(keys))
        totals = np.add.reduceat(mixed, starts)
        for key, *one in zip(keys[starts].tolist(), counts.tolist(), totals.tolist(), strict=True):
            found[key] = added(found.get(key, (0, 0)), (one[0], one[1]))
    return found


def _runs(keys: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    """Where runs of like keys begin."""
    return np.flatnonzero(np.append(len(keys) > 0, keys[1:] != keys[:-1])[: len(keys)])


def mixed_entries(entries: Entries, infos: Sequence[IndexInfo]) -> _U64:
    """One number for each entry, uint64[entries]."""
    ordinals, numbers = entries.ordinal, entries.number
    mixed = _mixed(ordinals, entries.hash, entries.position, entries.seconds)
    for number in set(numbers[_runs(numbers)].tolist()):
        info = infos[number]
        header = info.header
        for ordinal, said in (
            (FIRST_ORDINAL, (1, header.begin_timestamp, header.begin_physical_offset)),
            (info.end - 1, (2, header.end_timestamp, header.end_physical_offset)),
        ):
            rows = np.flatnonzero(ordinals == ordinal)
            rows = rows[numbers[rows] == number]
            mixed[rows] += _mixed(*(np.full(len(rows), one, np.int64) for one in said))
    return mixed


def added(one: Sum, other: Sum) -> Sum:
    """The sum of both."""
    return one[0] + other[0], (one[1] + other[1]) % MODULUS


def _total(mixed: _U64) -> int:
    return int(mixed.sum(dtype=np.uint64))


def _mixed(*columns: NDArray[np.generic]) -> _U64:
    """One number for each row: the finalizer of SplitMix64 after each column."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        # Big-endian columns of files become the machine's, and negative numbers wrap.
        mixed = (mixed ^ column.astype(column.dtype.newbyteorder("=")).astype(np.uint64)) + _STEPS[0]
        mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _STEPS[1]
        mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _STEPS[2]
        mixed = mixed ^ (mixed >> _SHIFTS[2])
    return mixed
