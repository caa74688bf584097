"""Units of batch queues as they should be against those that are there. Pure: no files, no Spark.

A unit's place says nothing of queueOffsets, so units are told apart by the record that they point to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format.batchconsumequeue import NOT_COMPACTED, UNIT_DTYPE
from reput.newer_python import Self
from reput.verify.units import EXTRA, MISSING, MOST_RANGES, WRONG, QueueRange, pieces

#: A unit that points before one that comes before it; zeros, and units behind them.
UNORDERED, BLANK = "unordered-unit", "blank-unit"
REPEATED = "repeated-unit"

_NAMES = {
    "size": "size",
    "tags": "tagsCode",
    "timestamp": "storeTimestamp",
    "base_offset": "msgBaseOffset",
    "batch_size": "batchSize",
    "compacted": "compactedOffset",
    "reserved": "reserved",
}


class BatchUnit(NamedTuple):
    """A unit's fields; see docs/formats/batchconsumequeue.md."""

    position: int
    size: int
    tags: int
    timestamp: int
    base_offset: int
    batch_size: int
    compacted: int
    reserved: int

    @property
    def end_offset(self) -> int:
        """The queueOffset after its last message, at least one after the first."""
        return self.base_offset + max(self.batch_size, 1)

    def __str__(self) -> str:
        text = f"{self.position}, {self.size} bytes, tagsCode {self.tags}, storeTimestamp {self.timestamp}"
        text += f", queueOffset {self.base_offset}, {self.batch_size} messages"
        if (self.compacted, self.reserved) != (NOT_COMPACTED, 0):
            text += f", compactedOffset {self.compacted}, reserved {self.reserved}"
        return text


@dataclass(frozen=True, slots=True)
class BatchRange(QueueRange):
    """Units of one batch queue that differ in one way.

    Attributes:
        kind: MISSING, WRONG, EXTRA, UNORDERED or BLANK of this module and :mod:`reput.verify.units`.
        field: what is wrong, where the kind is WRONG; REPEATED where an EXTRA one is there twice.
        first, end: queueOffsets, half open, by the log where it has them; 0, 0 where the kind is BLANK.
        place: byte offset of the first one in the queue; where the kind is MISSING, of the unit that stands
            where it should, -1 where that isn't known.
        expected: the first one, by the log; None for EXTRA, UNORDERED and BLANK.
        found: the first one, as it is there; None for MISSING and BLANK.
        last: physical offset of the last one's record, where the kind is MISSING.
    """

    place: int
    expected: BatchUnit | None
    found: BatchUnit | None
    last: int = -1

    @property
    def position(self) -> int:
        """Physical offset of the record that the first one is of, or points to."""
        unit = self.expected or self.found
        return -1 if unit is None else unit.position

    def goes_on(self, other: Self) -> bool:
        """Whether ``other`` continues this one in the same way."""
        return self.kind != BLANK and QueueRange.goes_on(self, other)

    def with_all_between(self, other: Self) -> Self:
        """One that spans both."""
        return replace(QueueRange.with_all_between(self, other), last=max(self.last, other.last))


class Found(NamedTuple):
    """Units that are there.

    Attributes:
        units: UNIT_DTYPE[n], in the order of files and places.
        place: int64[n], byte offsets in the queue.
    """

    units: NDArray[Any]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, blocks: list[tuple[int, bytes]], start: int, end: int) -> Found:
        """Those that point into [start, end) of the log, of (byte offset in the queue, packed units)."""
        units, places = [np.zeros(0, UNIT_DTYPE)], [np.zeros(0, np.int64)]
        for place, data in blocks:
            block = units_of(data)
            rows = np.flatnonzero((block["position"] >= start) & (block["position"] < end) & ~is_blank(data))
            units.append(block[rows])
            places.append(place + UNIT_DTYPE.itemsize * rows.astype(np.int64))
        return cls(np.concatenate(units), np.concatenate(places))


def units_of(data: bytes) -> NDArray[Any]:
    """Packed units as a structured array, UNIT_DTYPE[units]; what is left over at the end isn't one."""
    return np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_DTYPE.itemsize)


def is_blank(data: bytes) -> NDArray[np.bool_]:
    """bool[units]: whether nothing was written there."""
    count = len(data) // UNIT_DTYPE.itemsize
    rows = np.frombuffer(data, np.uint8, count * UNIT_DTYPE.itemsize).reshape(count, UNIT_DTYPE.itemsize)
    return (rows == 0).all(axis=1)  # type: ignore[no-any-return]


def compare_batch(expected: NDArray[Any], found: Found) -> list[BatchRange]:
    """Compare the units that the log has for one queue in a range of it with those that point there.

    Args:
        expected: UNIT_DTYPE[n], in log order.
    """
    order = np.argsort(found.units["position"], kind="stable")
    units, places = found.units[order], found.place[order]
    position = units["position"].astype(np.int64)
    wanted = expected["position"].astype(np.int64)
    again = np.zeros(len(units), bool)
    again[1:] = position[1:] == position[:-1]
    at = np.searchsorted(position, wanted)
    met = at < len(position)
    met[met] = position[at[met]] == wanted[met]
    # Where a missing one should be, the next one is.
    place = np.append(places, -1)[at]
    lost = np.flatnonzero(~met)
    # Those of a queue that was deleted and those of its successor are reported separately.
    incarnation = np.cumsum(begins_anew(expected))
    ranges = [
        BatchRange(
            MISSING,
            None,
            *_span(expected, piece),
            int(place[piece[0]]),
            _unit(expected, piece),
            None,
            int(wanted[piece[-1]]),
        )
        for piece in pieces(lost, lost + incarnation[lost], MOST_RANGES)
    ]
    ranges += _wrong(expected, units, places, np.flatnonzero(met), at)
    known = np.zeros(len(units), bool)
    known[at[met]] = True
    for field, rows in ((REPEATED, np.flatnonzero(again)), (None, np.flatnonzero(~known & ~again))):
        for piece in pieces(rows, places[rows] // UNIT_DTYPE.itemsize, MOST_RANGES):
            span, one = _span(units, piece), _unit(units, piece)
            ranges.append(BatchRange(EXTRA, field, *span, int(places[piece[0]]), None, one))
    return ranges


def begins_anew(expected: NDArray[Any]) -> NDArray[np.bool_]:
    """bool[n]: whether a queue that has units begins again with this one: its topic was deleted and created.

    Args:
        expected: UNIT_DTYPE[n], in log order.
    """
    anew: NDArray[np.bool_] = expected["base_offset"] == 0
    return anew & (np.arange(len(expected)) > 0)


def _wrong(
    expected: NDArray[Any],
    units: NDArray[Any],
    places: NDArray[np.int64],
    met: NDArray[np.int64],
    at: NDArray[np.int64],
) -> list[BatchRange]:
    """Units of the right records whose fields aren't the records'."""
    ways = np.zeros(len(met), np.int64)
    for bit, name in enumerate(_NAMES):
        ways |= (expected[name][met] != units[name][at[met]]).astype(np.int64) << bit
    ranges = []
    for way in np.unique(ways[ways > 0]).tolist():
        said = " and ".join(text for bit, text in enumerate(_NAMES.values()) if way >> bit & 1)
        rows = met[ways == way]
        for piece in pieces(rows, rows, MOST_RANGES):
            row = int(at[piece[0]])
            ranges.append(
                BatchRange(
                    WRONG,
                    said,
                    *_span(expected, piece),
                    int(places[row]),
                    _unit(expected, piece),
                    BatchUnit(*units[row].tolist()),
                )
            )
    return ranges


def _span(units: NDArray[Any], rows: NDArray[np.int64]) -> tuple[int, int, int]:
    """Queueoffsets of the first and after the last of some units; how many there are."""
    first, last = _unit(units, rows), BatchUnit(*units[int(rows[-1])].tolist())
    return first.base_offset, max(last.end_offset, first.base_offset), len(rows)


def _unit(units: NDArray[Any], rows: NDArray[np.int64]) -> BatchUnit:
    return BatchUnit(*units[int(rows[0])].tolist())


def order_ranges(
    units: NDArray[Any], blank: NDArray[np.bool_], place: int, highest: int, log_end: int
) -> tuple[list[BatchRange], int]:
    """Units of consecutive places that point before one that comes before them.

    A unit that points behind the log isn't in anybody's way.

    Args:
        blank: bool[units], nothing was written there.
        place: byte offset of the first one in the queue.
        highest: physical offset of the highest one before, -1 without one.
        log_end: physical offset.

    Returns:
        The ranges; the highest position by now.
    """
    position = units["position"].astype(np.int64)
    inside = ~blank & (position >= 0) & (position < log_end)
    highs = np.maximum.accumulate(np.append(highest, np.where(inside, position, -1)))
    rows = np.flatnonzero(inside & (position < highs[:-1]))
    ranges = [
        BatchRange(
            UNORDERED,
            None,
            *_span(units, piece),
            place + UNIT_DTYPE.itemsize * int(piece[0]),
            None,
            _unit(units, piece),
        )
        for piece in pieces(rows, rows, MOST_RANGES)
    ]
    return ranges, int(highs[-1])
