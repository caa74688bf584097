"""Consume-queue units as they should be against those that are there, as ranges. Pure: no files, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reput.format.consumequeue import PRE_BLANK_SIZE
from reput.format.consumequeueext import MAX_ADDRESS
from reput.format.dtypes import UNIT_DTYPE, UnitKind, classify

#: Ranges of one comparison that are listed one by one; what is beyond goes into one more range a kind.
MOST_RANGES = 256
#: Ranges of one queue; more become the last one of their kind.
_MOST_PER_QUEUE = 512

MISSING, WRONG, MISPLACED, EXTRA = "missing-unit", "wrong-unit", "misplaced-unit", "extra-unit"
#: An address in consumequeue_ext that leads to no record, to one of another message, or isn't above the
#: address of the unit before.
DANGLING, WRONG_EXT, UNORDERED = "dangling-address", "wrong-ext-unit", "unordered-address"
#: Of a batch queue: zeros, and units behind them.
BLANK = "blank-unit"

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

    @property
    def is_hash(self) -> bool:
        """Whether its tagsCode could be a tag's hash."""
        return -0x80000000 <= self.tags <= 0x7FFFFFFF

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


class AnyUnit(Protocol):
    """A unit of any form of queue."""

    @property
    def position(self) -> int:
        """Physical offset of its record."""

    @property
    def tags(self) -> int:
        """Its tagsCode."""


@dataclass(frozen=True, slots=True)
class Range:
    """Units of one queue that differ in one way, whatever form the queue has."""

    kind: str  # MISSING, WRONG, EXTRA and others, by form
    #: what is wrong with them, where the kind alone doesn't say it: of WRONG and WRONG_EXT the field;
    #: "file" or "record" of DANGLING; REPEATED of an EXTRA one that is there twice
    field: str | None
    first: int  # first, end: queueOffsets, half open; between them ``count`` units differ
    end: int
    count: int  # units; fewer than end - first where many ranges became one
    expected: AnyUnit | None  # the first one, by the log or by the first store; None where it has none
    found: (
        AnyUnit | bytes | None
    )  # the first one, as it is there; bytes that no broker writes are as they are
    shift: int = 0  # where the kind is MISPLACED, how much higher the place is where the right unit lies
    #: where the kind is WRONG_EXT, what the message says and what the address leads to
    record: tuple[Record, Record] | None = None
    #: of a batch queue, byte offset of the first one, or of what stands where it should; -1: unknown
    place: int = -1
    last: int = -1  # of a batch queue, physical offset of the last one's record, by the log

    def goes_on(self, other: Range) -> bool:
        """Whether ``other`` continues this one in the same way."""
        return self.kind != BLANK and (
            (self.kind, self.field, self.end, self.shift, self._traits())
            == (other.kind, other.field, other.first, other.shift, other._traits())
        )

    def with_all_between(self, other: Range) -> Range:
        """One that spans both; fewer units differ than it is long where they don't touch."""
        first, end = min(self.first, other.first), max(self.end, other.end)
        count, last = self.count + other.count, max(self.last, other.last)
        return replace(self, first=first, end=end, count=count, last=last)

    @property
    def stored(self) -> Unit:
        """The first one that is there, of a plain queue."""
        return self.found if isinstance(self.found, Unit) else Unit(0, 0, 0)

    def has_lost_tags(self) -> bool:
        """Whether the message in the log has no tags, and its unit a hash, in more than one byte."""
        lost = self.field == "tagsCode" and self.expected is not None and self.expected.tags == 0
        tags = self.stored.tags & 0xFFFFFFFF
        return lost and self.stored.is_hash and sum(tags >> bits & 0xFF > 0 for bits in (0, 8, 16, 24)) > 1

    def _traits(self) -> tuple[bool, ...]:
        """What of a plain queue's units has causes of its own."""
        return self.stored.is_hash, self.stored.is_pre_blank, self.has_lost_tags()


@dataclass(slots=True)
class Compared:
    """What came of a comparison."""

    ranges: list[Range] = field(default_factory=list)  # what differs, by queueOffset
    ext: int = 0  # units whose tagsCode is an address in consumequeue_ext
    plain: int = 0  # units of a queue with such addresses whose tagsCode is none
    sum: int = 0  # of the units that are there (:func:`unit_sum`), 0 where it wasn't asked for

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
) -> list[Range]:
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
        Range(
            *_KINDS[int(ways[group[0]])],
            *span(first, rows[group]),
            Unit(*right[rows[group[0]]].tolist()),
            Unit(*there[rows[group[0]]].tolist()),
            int(shifts[group[0]]),
        )
        for group in told
    ]


def extra_ranges(first: int, rows: NDArray[np.int64], there: NDArray[Any]) -> list[Range]:
    """Units that the log has no message for; ``rows`` of ``there``, whose first row is at ``first``."""
    return [
        Range(EXTRA, None, *span(first, piece), None, Unit(*there[piece[0]].tolist()))
        for piece in pieces(rows, rows, MOST_RANGES + 1)
    ]


def missing_ranges(first: int, rows: NDArray[np.int64], there: NDArray[Any]) -> list[Range]:
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


def add_ranges(known: list[Range], more: Iterable[Range]) -> None:
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


# --- where units and entries point to, block by block ---------------------------------------------------

#: Units or entries whose positions are given by their least and their greatest.
BLOCK = 4096


class Blocks(NamedTuple):
    """Where the items of a file point to in the log, by blocks of them."""

    least: NDArray[np.int64]  # least, greatest: of the positions of each block, int64[blocks]
    greatest: NDArray[np.int64]

    @classmethod
    def of(cls, position: NDArray[np.int64]) -> Blocks:
        """Those of consecutive items, the first one beginning a block."""
        starts = np.arange(0, len(position), BLOCK)
        if not len(starts):
            return cls(position, position)
        return cls(np.minimum.reduceat(position, starts), np.maximum.reduceat(position, starts))

    def then(self, more: Blocks) -> Blocks:
        """These, and those behind them."""
        return Blocks(*(np.concatenate(both) for both in zip(self, more, strict=True)))

    def reaching(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The stretches of blocks, half open, that may hold items which point into [start, end)."""
        rows = np.flatnonzero((self.least < end) & (self.greatest >= start))
        for piece in pieces(rows, rows, len(rows)):
            yield int(piece[0]), int(piece[-1]) + 1


# --- sums that bind what was compared to its bytes -----------------------------------------------------

# A sum is of numbers of 64 bits, one for each unit or entry and its place, so that tasks' sums add up to
# that of a whole segment, and a later run gets the same one from the same bytes in any order. They tell what
# faults change, not what somebody changes who means to deceive.

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
    return int(mixed(places, units["position"], sizes, units["tags"]).sum(dtype=np.uint64))


def sums_by(keys: NDArray[np.integer[Any]], numbers: _U64) -> dict[int, Sum]:
    """How many numbers each key has, and their sum."""
    found: dict[int, Sum] = {}
    starts = runs_of(keys)
    if len(starts):
        counts = np.diff(starts, append=len(keys))
        totals = np.add.reduceat(numbers, starts)
        for key, *one in zip(keys[starts].tolist(), counts.tolist(), totals.tolist(), strict=True):
            found[key] = added(found.get(key, (0, 0)), (one[0], one[1]))
    return found


def runs_of(keys: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    """Where runs of like keys begin."""
    return np.flatnonzero(np.append(len(keys) > 0, keys[1:] != keys[:-1])[: len(keys)])


def added(one: Sum, other: Sum) -> Sum:
    """The sum of both."""
    return one[0] + other[0], (one[1] + other[1]) % MODULUS


def mixed(*columns: NDArray[np.generic]) -> _U64:
    """One number for each row: the finalizer of SplitMix64 after each column."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        # Big-endian columns of files become the machine's, and negative numbers wrap.
        found = (found ^ column.astype(column.dtype.newbyteorder("=")).astype(np.uint64)) + _STEPS[0]
        found = (found ^ (found >> _SHIFTS[0])) * _STEPS[1]
        found = (found ^ (found >> _SHIFTS[1])) * _STEPS[2]
        found = found ^ (found >> _SHIFTS[2])
    return found
