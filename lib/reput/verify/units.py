"""Consume-queue units as they should be against those that are there, as ranges. Pure: no files, no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reput.format.consumequeue import PRE_BLANK_SIZE
from reput.format.consumequeueext import MAX_ADDRESS
from reput.format.dtypes import UNIT_DTYPE, UnitKind, classify
from reput.newer_python import Self

#: Ranges of one comparison that are listed one by one; what is beyond goes into one more range a kind.
MOST_RANGES = 256
#: Ranges of one queue; more become the last one of their kind.
_MOST_PER_QUEUE = 512

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
    """A unit's fields: physical offset, bytes and tagsCode of a record."""

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

    def __str__(self) -> str:
        if self.is_zero:
            return "nothing"
        if self.is_pre_blank:
            return "a pre-blank unit"
        return f"{self.position}, {self.size} bytes, tagsCode {self.tags}"


class Record(NamedTuple):
    """A record of consumequeue_ext: tagsCode, and storeTimestamp in ms."""

    tags: int
    timestamp: int

    def __str__(self) -> str:
        return f"tagsCode {self.tags}, storeTimestamp {self.timestamp}"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Units of one queue that differ in one way."""

    kind: str  # a stable, hyphenated name
    field: str | None  # what is wrong with them, where the kind alone doesn't say it
    first: int  # first, end: queueOffsets, half open; between them ``count`` units differ
    end: int
    count: int  # units; fewer than end - first where many ranges became one

    def goes_on(self, other: Self) -> bool:
        """Whether ``other`` continues this one in the same way."""
        return (self.kind, self.field, self.end) == (other.kind, other.field, other.first)

    def with_all_between(self, other: Self) -> Self:
        """One that spans both; fewer units differ than it is long where they don't touch."""
        first, end = min(self.first, other.first), max(self.end, other.end)
        return replace(self, first=first, end=end, count=self.count + other.count)


@dataclass(frozen=True, slots=True)
class UnitRange(QueueRange):
    """Places of one queue that differ in one way.

    Attributes:
        kind: MISSING, WRONG, MISPLACED or EXTRA; DANGLING, WRONG_EXT or UNORDERED.
        field: what is wrong, where the kind is WRONG: "size", "tagsCode", both, or "message"; where it is
            WRONG_EXT: "tagsCode", "storeTimestamp" or both; where it is DANGLING: "file" or "record".
        expected: what the log says of ``first``; None for EXTRA.
        found: what is there.
        shift: where the kind is MISPLACED, how much higher the place is where the right unit lies.
        record: where the kind is WRONG_EXT, what the message says and what the address leads to.
    """

    expected: Unit | None
    found: Unit
    shift: int = 0
    record: tuple[Record, Record] | None = None

    def goes_on(self, other: Self) -> bool:
        """Whether ``other`` continues this one in the same way."""
        return QueueRange.goes_on(self, other) and (
            (self.shift, self.is_hash(), self.found.is_pre_blank, self.has_lost_tags())
            == (other.shift, other.is_hash(), other.found.is_pre_blank, other.has_lost_tags())
        )

    def is_hash(self) -> bool:
        """Whether the tagsCode that was found could be a tag's hash."""
        return -0x80000000 <= self.found.tags <= 0x7FFFFFFF

    def has_lost_tags(self) -> bool:
        """Whether the message in the log has no tags, and its unit a hash, in more than one byte."""
        lost = self.field == "tagsCode" and self.expected is not None and self.expected.tags == 0
        tags = self.found.tags & 0xFFFFFFFF
        return lost and self.is_hash() and sum(tags >> bits & 0xFF > 0 for bits in (0, 8, 16, 24)) > 1


_Range = TypeVar("_Range", bound=QueueRange)


@dataclass(slots=True)
class Compared:
    """What came of a comparison."""

    ranges: list[UnitRange] = field(default_factory=list)  # what differs, by queueOffset
    ext: int = 0  # units whose tagsCode is an address in consumequeue_ext
    plain: int = 0  # units of a queue with such addresses whose tagsCode is none
    sum: int = 0  # of the units that are there (:mod:`reput.verify.sums`), 0 where it wasn't asked for

    def add(self, other: Compared) -> None:
        """Take in what came of a comparison of places further on."""
        add_ranges(self.ranges, other.ranges)
        self.ext += other.ext
        self.plain += other.plain
        self.sum = (self.sum + other.sum) % (1 << 64)


def units_of(data: bytes | memoryview) -> NDArray[Any]:
    """Packed units as a structured array, UNIT_DTYPE[units]."""
    return np.frombuffer(data, UNIT_DTYPE)


def compare_units(
    first: int,
    expected: bytes | memoryview,
    found: bytes,
    *,
    around: bytes = b"",
    around_first: int = 0,
    may_be_address: NDArray[np.bool_] | None = None,
) -> Compared:
    """Compare the units that the log has for places from ``first`` on with those that lie there.

    Where no unit is, there are zeros. Units that aren't in their place are looked for in ``around``, which
    begins at ``around_first``. Where ``may_be_address`` (bool[units]) is true, an address in consumequeue_ext
    may stand for a tagsCode.
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
        return Compared(ext=ext)
    shifts = np.zeros(len(rows), np.int64)
    strange = np.flatnonzero((ways[rows] == _OTHER) | (ways[rows] == _MISSING))
    if len(strange) and len(around):
        places = find_units(right[rows[strange]], units_of(around))
        met = places >= 0
        shifts[strange[met]] = places[met] + around_first - (first + rows[strange[met]])
        ways[rows[strange[met]]] = _MISPLACED
    return Compared(_ranges(first, rows, ways[rows], shifts, right, there), ext)


def find_units(wanted: NDArray[Any], units: NDArray[Any]) -> NDArray[np.int64]:
    """For each wanted unit the row where a unit of the same message lies, -1 where none does."""
    position = units["position"].astype(np.int64)
    size = units["size"].astype(np.int64)
    used = np.flatnonzero(classify(units) == UnitKind.MESSAGE)
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
    ways = np.full(len(right), _OTHER, np.int8)
    ways[position & size & ~tags] = _TAGS
    ways[position & ~size & tags] = _SIZE
    ways[position & ~size & ~tags] = _BOTH
    ways[classify(there) <= UnitKind.PRE_BLANK] = _MISSING
    ways[position & size & tags] = _SOUND
    return ways


def _ranges(
    first: int,
    rows: NDArray[np.int64],
    ways: NDArray[np.int8],
    shifts: NDArray[np.int64],
    right: NDArray[Any],
    there: NDArray[Any],
) -> list[UnitRange]:
    # Blanks and hashes stay apart from zeros and times: they have causes of their own.
    blank = classify(there[rows]) == UnitKind.PRE_BLANK
    tags = there["tags"][rows].astype(np.int64)
    hashes = (tags >= -0x80000000) & (tags <= 0x7FFFFFFF)
    new = (
        (np.diff(rows) != 1)
        | (np.diff(ways) != 0)
        | (np.diff(shifts) != 0)
        | (blank[1:] != blank[:-1])
        | (hashes[1:] != hashes[:-1])
    )
    alike = np.split(np.arange(len(rows)), np.flatnonzero(new) + 1)
    told, rest = alike[:MOST_RANGES], alike[MOST_RANGES:]
    if rest:
        others = np.concatenate(rest)
        told += [others[ways[others] == way] for way in np.unique(ways[others])]
    return [
        UnitRange(
            *_KINDS[int(ways[group[0]])],
            *span(first, rows[group]),
            Unit(*right[rows[group[0]]].tolist()),
            Unit(*there[rows[group[0]]].tolist()),
            int(shifts[group[0]]),
        )
        for group in told
    ]


def extra_ranges(first: int, rows: NDArray[np.int64], there: NDArray[Any]) -> list[UnitRange]:
    """Units that the log has no message for; ``rows`` of ``there``, whose first row is at ``first``."""
    return [
        UnitRange(EXTRA, None, *span(first, piece), None, Unit(*there[piece[0]].tolist()))
        for piece in pieces(rows, rows, MOST_RANGES + 1)
    ]


def missing_ranges(first: int, rows: NDArray[np.int64], there: NDArray[Any]) -> list[UnitRange]:
    """Places before the queue's first message in the log that hold nothing, though they must."""
    return [replace(piece, kind=MISSING) for piece in extra_ranges(first, rows, there)]


def span(first: int, rows: NDArray[np.int64]) -> tuple[int, int, int]:
    """The queueOffset of the first row and after the last, row 0 being at ``first``; how many they are."""
    return first + int(rows[0]), first + int(rows[-1]) + 1, len(rows)


def pieces(rows: NDArray[np.int64], numbers: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """``rows`` cut where ``numbers`` (int64[rows]) don't go up by one, into at most ``most`` pieces.

    The last piece holds all that is left, gaps included.
    """
    if not len(rows):
        return []
    return np.split(rows, (np.flatnonzero(np.diff(numbers) != 1) + 1)[: most - 1])


def add_ranges(known: list[_Range], more: Iterable[_Range]) -> None:
    """Append ranges; one that continues the last becomes part of it, and so does what is too much."""
    for one in more:
        at = len(known) - 1
        if known and not known[at].goes_on(one):
            alike = (at for at in reversed(range(len(known))) if known[at].kind == one.kind)
            at = next(alike, -1) if len(known) >= _MOST_PER_QUEUE else -1
        if at < 0:
            known.append(one)
        else:
            known[at] = known[at].with_all_between(one)
