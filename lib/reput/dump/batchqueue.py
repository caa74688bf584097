"""The units of a batch queue, and in their places what is no unit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reput.derived.files import pieces, read, read_bytes
from reput.dump.places import QueuePlace
from reput.dump.queueevents import UNWRITTEN, Event, Open, QueueUnit, Run, damage, file_length
from reput.format import batchconsumequeue
from reput.format.dtypes import BATCH_UNIT_DTYPE

_CHUNK = 1 << 16  # units
_MOST = (1 << 63) - 1


def looks_like_batches(path: Path) -> bool:
    """Whether a file begins with a unit of 46 bytes.

    Its last fields are -1, where it wasn't compacted, and 0. In units of 20 bytes a physicalOffset would be
    negative there.
    """
    return read_bytes("the queue", path, 0, batchconsumequeue.UNIT_LENGTH)[-8:] == b"\xff\xff\xff\xff\0\0\0\0"


def dump_batches(place: QueuePlace, start: int, end: int) -> Iterator[Event]:
    """What the files of a batch queue hold; see :func:`reput.dump.consumequeue.dump`."""
    length = batchconsumequeue.UNIT_LENGTH
    zeros: Open | None = None
    for path, base, size in place.files:
        at = 0
        while at < size // length:
            units = read("the queue", path, BATCH_UNIT_DTYPE, at * length, _CHUNK)
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
                        zeros = Open(0, number, number + 1, path, (at + row) * length)
                    zeros.end = number + 1
                    continue
                if zeros is not None:
                    after = zeros.offset + (zeros.end - zeros.start) * length
                    yield damage(
                        place, "hole", zeros.path, zeros.offset, after, expected="a unit", found="zeros"
                    )
                    zeros = None
                unit = units[row]
                if bad[row]:
                    begin = (at + row) * length
                    yield damage(
                        place,
                        "bad-unit",
                        path,
                        begin,
                        begin + length,
                        expected="a physicalOffset, a size and a base offset of a message",
                        found=f"{unit['position']}, {unit['size']} bytes, base offset {unit['base_offset']}",
                    )
                elif wanted[row]:
                    yield _batch_unit(place, unit)
            at += len(units)
        if size % length:
            yield file_length(place, path, size, length)
    if zeros is not None:
        yield Run(place, UNWRITTEN, zeros.start, zeros.end)


def batch_extents(path: Path, _base: int, size: int, *, backwards: bool = False) -> Iterator[tuple[int, int]]:
    """The queueOffsets of a file's units that lead somewhere, half open, piece by piece."""
    for _, units in pieces("the queue", path, BATCH_UNIT_DTYPE, size, backwards=backwards):
        found = units[(units["position"] >= 0) & (units["size"] > 0) & (units["base_offset"] >= 0)]
        if len(found):
            last = found[-1]
            yield int(found[0]["base_offset"]), int(last["base_offset"]) + int(last["batch_size"])


def _batch_unit(place: QueuePlace, unit: Any) -> QueueUnit:
    return QueueUnit(
        place,
        int(unit["base_offset"]),
        int(unit["position"]),
        int(unit["size"]),
        int(unit["tags"]),
        batch=(int(unit["timestamp"]), int(unit["batch_size"]), int(unit["compacted"])),
    )
