"""Consume-queue units as they should be against those that are there, as ranges. Pure: no files, no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format.consumequeue import FIELDS, PRE_BLANK_SIZE
from reput.format.consumequeueext import MAX_ADDRESS
from reput.verify.pieces import pieces

UNIT = np.dtype(FIELDS)
#: Ranges of one comparison that are told one by one; what is beyond goes into one more range a kind.
MOST_RANGES = 256

MISSING, WRONG, MISPLACED, EXTRA = "missing-unit", "wrong-unit", "misplaced-unit", "extra-unit"
#: An address in consumequeue_ext that leads to no record, to one of another message, or isn't above the
#: address of the unit before.
DANGLING, WRONG_EXT, UNORDERED = "dangling-address", "wrong-ext-unit", "unordered-address"

_SOUND, _MISSING, _SIZE, _TAGS, _BOTH, _OTHER, _MISPLACED = range(7)
_KINDS = {
    _MISSING: (MISSING, None),
    _SIZE: (WRONG, "size"),
    _TAGS: (WRONG, "tagsCode"),
    _BOTH: (WRONG, "size and tagsCode"),
    _OTHER: (WRONG, "message"),
    _MISPLACED: (MISPLACED, None),
}


class Unit(NamedTuple):
    """A unit's fields.

    Attributes:
        position: physical offset.
        size: bytes.
        tags: tagsCode.
    """

    position: int
    size: int
    tags: int

    @property
    def is_zero(self) -> bool:
        """Whether nothing was written there."""
        return self == (0, 0, 0)

    @property
    def is_pre_blank(self) -> bool:
        """Whether it stands for a place before the queue's first unit."""
        return self == (0, PRE_BLANK_SIZE, 0)


class Record(NamedTuple):
    """A record of consumequeue_ext.

    Attributes:
        tags: tagsCode.
        timestamp: storeTimestamp, ms.
    """

    tags: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Places of one queue that differ in one way.

    Attributes:
        kind: MISSING, WRONG, MISPLACED or EXTRA; DANGLING, WRONG_EXT or UNORDERED.
        field: what is wrong, where the kind is WRONG: "size", "tagsCode", both, or "message"; where it is
            WRONG_EXT: "tagsCode", "storeTimestamp" or both; where it is DANGLING: "file" or "record".
        shift: where the kind is MISPLACED, how much higher the place is where the right unit lies.
        first, end: queueOffsets, half open; between them ``count`` units differ.
        count: units; fewer than end - first where many ranges became one.
        expected: what the log says of ``first``; None for EXTRA.
        found: what is there.
        record: where the kind is WRONG_EXT, what the message says and what the address leads to.
    """

    kind: str
    field: str | None
    shift: int
    first: int
    end: int
    count: int
    expected: Unit | None
    found: Unit
    record: tuple[Record, Record] | None = None

    def joined(self, other: UnitRange) -> UnitRange | None:
        """Both as one where ``other`` goes on behind this one in the same way."""
        same = (self.kind, self.field, self.shift) == (other.kind, other.field, other.shift)
        if not same or self.end != other.first or self.is_hash() != other.is_hash():
            return None
        if self.found.is_pre_blank != other.found.is_pre_blank:
            return None
        return self.with_all_between(other)

    def with_all_between(self, other: UnitRange) -> UnitRange:
        """One that spans both; fewer units differ than it is long where they don't touch."""
        first, end = min(self.first, other.first), max(self.end, other.end)
        return replace(self, first=first, end=end, count=self.count + other.count)

    def is_hash(self) -> bool:
        """Whether the tagsCode that was found could be a tag's hash."""
        return -0x80000000 <= self.found.tags <= 0x7FFFFFFF


@dataclass(slots=True)
class Compared:
    """What came of a comparison.

    Attributes:
        ranges: what differs, by queueOffset.
        ext: units whose tagsCode is an address in consumequeue_ext.
        plain: units of a queue with such addresses whose tagsCode is none.
    """

    ranges: list[UnitRange]
    ext: int = 0
    plain: int = 0


def units_of(data: bytes | memoryview) -> NDArray[Any]:
    """Packed units as a structured array, UNIT[units]."""
    return np.frombuffer(data, UNIT)


def compare_units(
    first: int,
    expected: bytes | memoryview,
    found: bytes,
    *,
    around: bytes = b"",
    around_first: int = 0,
    may_be_address: NDArray[np.bool_] | None = None,
) -> Compared:
    """Compare the units that the log has for consecutive places with those that lie there.

    Args:
        first: queueOffset of the first place.
        expected: packed units.
        found: as many bytes, zeros where the files have none.
        around: units of a wider stretch of the queue, in which units that aren't in their place are looked
            for.
        around_first: queueOffset of its first place.
        may_be_address: bool[units], whether a tagsCode that is an address in consumequeue_ext is let pass.
    """
    right, there = units_of(expected), units_of(found)
    ways = _ways(right, there)
    ext = 0
    if may_be_address is not None:
        addresses = may_be_address & (there["tags"] <= MAX_ADDRESS)
        ways[(ways == _TAGS) & addresses] = _SOUND
        ways[(ways == _BOTH) & addresses] = _SIZE
        ext = int(addresses.sum())
    rows = np.flatnonzero(ways)
    if not len(rows):
        return Compared([], ext)
    shifts = np.zeros(len(rows), np.int64)
    strange = np.flatnonzero((ways[rows] == _OTHER) | (ways[rows] == _MISSING))
    if len(strange) and len(around):
        places = find_units(right[rows[strange]], units_of(around))
        met = places >= 0
        shifts[strange[met]] = places[met] + around_first - (first + rows[strange[met]])
        ways[rows[strange[met]]] = _MISPLACED
    return Compared(list(_ranges(first, rows, ways[rows], shifts, right, there)), ext)


def find_units(wanted: NDArray[Any], units: NDArray[Any]) -> NDArray[np.int64]:
    """For each wanted unit the row where a unit of the same message lies, -1 where none does."""
    position = units["position"].astype(np.int64)
    size = units["size"].astype(np.int64)
    used = np.flatnonzero((size > 0) & (size != PRE_BLANK_SIZE))
    missing = np.full(len(wanted), -1, np.int64)
    if not len(used):
        return missing
    order = used[np.argsort(position[used], kind="stable")]
    at = np.searchsorted(position[order], wanted["position"].astype(np.int64))
    inside = at < len(order)
    rows = order[np.where(inside, at, 0)]
    same = inside & (position[rows] == wanted["position"]) & (size[rows] == wanted["size"])
    return np.where(same, rows, missing)


def _ways(right: NDArray[Any], there: NDArray[Any]) -> NDArray[np.int8]:
    """In which way each unit differs, int8[units]."""
    position = there["position"] == right["position"]
    size = there["size"] == right["size"]
    tags = there["tags"] == right["tags"]
    nothing = (there["position"] == 0) & (there["tags"] == 0)
    nothing &= (there["size"] == 0) | (there["size"] == PRE_BLANK_SIZE)
    ways = np.full(len(right), _OTHER, np.int8)
    ways[position & size & ~tags] = _TAGS
    ways[position & ~size & tags] = _SIZE
    ways[position & ~size & ~tags] = _BOTH
    ways[nothing] = _MISSING
    ways[position & size & tags] = _SOUND
    return ways


def _ranges(
    first: int,
    rows: NDArray[np.int64],
    ways: NDArray[np.int8],
    shifts: NDArray[np.int64],
    right: NDArray[Any],
    there: NDArray[Any],
) -> Iterable[UnitRange]:
    # Blanks and hashes stay apart from zeros and times: they have causes of their own.
    sizes = there["size"][rows] == PRE_BLANK_SIZE
    tags = there["tags"][rows].astype(np.int64)
    hashes = (tags >= -0x80000000) & (tags <= 0x7FFFFFFF)
    new = np.ones(len(rows), bool)
    new[1:] = (
        (np.diff(rows) != 1)
        | (np.diff(ways) != 0)
        | (np.diff(shifts) != 0)
        | (sizes[1:] != sizes[:-1])
        | (hashes[1:] != hashes[:-1])
    )
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(rows))
    ranges = [
        UnitRange(
            *_KINDS[int(ways[start])],
            shift=int(shifts[start]),
            first=first + int(rows[start]),
            end=first + int(rows[end - 1]) + 1,
            count=int(end - start),
            expected=Unit(*right[int(rows[start])].tolist()),
            found=Unit(*there[int(rows[start])].tolist()),
        )
        for start, end in zip(starts[:MOST_RANGES].tolist(), ends[:MOST_RANGES].tolist(), strict=True)
    ]
    if len(starts) <= MOST_RANGES:
        return ranges
    rest = slice(int(starts[MOST_RANGES]), len(rows))
    for way in np.unique(ways[rest]).tolist():
        chosen = rows[rest][ways[rest] == way]
        row = int(chosen[0])
        shift = int(shifts[rest][ways[rest] == way][0])
        ranges.append(
            UnitRange(
                *_KINDS[way],
                shift=shift,
                first=first + row,
                end=first + int(chosen[-1]) + 1,
                count=len(chosen),
                expected=Unit(*right[row].tolist()),
                found=Unit(*there[row].tolist()),
            )
        )
    return ranges


def extra_ranges(first: int, rows: NDArray[np.int64], there: NDArray[Any]) -> list[UnitRange]:
    """Units that the log has no message for; ``rows`` of ``there``, whose first row is at ``first``."""
    found: list[UnitRange] = []
    for piece in pieces(rows, rows, MOST_RANGES + 1):
        unit = Unit(*there[int(piece[0])].tolist())
        start, end = first + int(piece[0]), first + int(piece[-1]) + 1
        found.append(UnitRange(EXTRA, None, 0, start, end, len(piece), None, unit))
    return found


def missing_ranges(first: int, rows: NDArray[np.int64], there: NDArray[Any]) -> list[UnitRange]:
    """Places before the queue's first message in the log that hold nothing, though they must."""
    return [replace(piece, kind=MISSING) for piece in extra_ranges(first, rows, there)]
