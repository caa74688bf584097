"""The units of a batch queue, and in their places what is no unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.dump.damage import Damage
from reput.dump.places import QueuePlace
from reput.dump.queueevents import ENDS_HERE, UNWRITTEN, Event, QueueUnit, Run, file_length
from reput.dump.reading import pieces, read, read_bytes
from reput.format import batchconsumequeue

_BATCH_UNIT = np.dtype(batchconsumequeue.FIELDS)
_CHUNK = 1 << 16  # units
_MOST = (1 << 63) - 1


@dataclass(slots=True)
class _Zeros:
    """A run of zeros that may turn out to be a hole: numbers of units, and where it begins."""

    start: int
    end: int
    path: Path
    offset: int


def looks_like_batches(path: Path) -> bool:
    """Whether a file begins with a unit of 46 bytes.

    Its last fields are -1, where it wasn't compacted, and 0. In units of 20 bytes a physicalOffset would be
    negative there.
    """
    return read_bytes("the queue", path, 0, batchconsumequeue.UNIT_LENGTH)[-8:] == b"\xff\xff\xff\xff\0\0\0\0"


def dump_batches(place: QueuePlace, start: int, end: int) -> Iterator[Event]:
    """What the files of a batch queue hold; see :func:`reput.dump.consumequeue.dump`."""
    length = batchconsumequeue.UNIT_LENGTH
    zeros: _Zeros | None = None
    for path, base, size in place.files:
        at = 0
        while at < size // length:
            units = read("the queue", path, _BATCH_UNIT, at * length, _CHUNK)
            if not len(units):
                break
            empty = (units["position"] == 0) & (units["size"] == 0)
            bad = ~empty & ((units["position"] < 0) | (units["size"] <= 0) | (units["base_offset"] < 0))
            first, count = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
            # No sum here is past what an int64 holds.
            before = min(start, _MOST) - np.maximum(first, 0)
            wanted = (first < end) & (before < count - min(max(start - _MOST, 0), 1 << 32))
            for row in np.flatnonzero(empty | bad | wanted).tolist():
                number = base // length + at + row
                if empty[row]:
                    if zeros is None:
                        zeros = _Zeros(number, number + 1, path, (at + row) * length)
                    zeros.end = number + 1
                    continue
                if zeros is not None:
                    yield _batch_damage(
                        place, zeros.path, zeros.offset, zeros.end - zeros.start, "hole", "zeros"
                    )
                    zeros = None
                unit = units[row]
                if bad[row]:
                    found = f"{unit['position']}, {unit['size']} bytes, base offset {unit['base_offset']}"
                    yield _batch_damage(place, path, (at + row) * length, 1, "bad-unit", found)
                elif wanted[row]:
                    yield _batch_unit(place, unit)
            at += len(units)
        if size % length:
            yield file_length(place, path, size, length)
    if zeros is not None:
        yield Run(place, UNWRITTEN, zeros.start, zeros.end)


def batch_extent(place: QueuePlace) -> tuple[int, int] | None:
    """From the first batch's first queueOffset to the last one's last, half open; None without one.

    Raises:
        SegmentGoneError, StoreError: a file can't be read.
    """
    first = next((found[0] for file in place.files for found in _good(*file)), None)
    last = next((found[-1] for file in reversed(place.files) for found in _good(*file, backwards=True)), None)
    if first is None or last is None:
        return None
    return int(first["base_offset"]), int(last["base_offset"]) + int(last["batch_size"])


def _good(path: Path, _base: int, size: int, *, backwards: bool = False) -> Iterator[NDArray[Any]]:
    """Units that lead somewhere, in pieces that have some."""
    for _, units in pieces("the queue", path, _BATCH_UNIT, size, backwards=backwards):
        found = units[(units["position"] >= 0) & (units["size"] > 0) & (units["base_offset"] >= 0)]
        if len(found):
            yield found


def _batch_unit(place: QueuePlace, unit: Any) -> QueueUnit:
    return QueueUnit(
        place,
        int(unit["base_offset"]),
        int(unit["position"]),
        int(unit["size"]),
        int(unit["tags"]),
        batch=(int(unit["timestamp"]), int(unit["batch_size"]), int(unit["compacted"])),
    )


def _batch_damage(place: QueuePlace, path: Path, offset: int, units: int, kind: str, found: str) -> Damage:
    return Damage(
        kind=kind,
        path=str(path),
        offset=offset,
        end=offset + units * batchconsumequeue.UNIT_LENGTH,
        expected="a unit" if kind == "hole" else "a physicalOffset, a size and a base offset of a message",
        found=found,
        outcome=ENDS_HERE,
        topic=place.topic,
        queue_id=place.queue_id,
    )
