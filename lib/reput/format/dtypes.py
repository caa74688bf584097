"""Records of the formats for many at once, as numpy has them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.format.consumequeue import PRE_BLANK_SIZE

UNIT_DTYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])
BATCH_UNIT_DTYPE = np.dtype(
    [
        ("position", ">i8"),
        ("size", ">i4"),
        ("tags", ">i8"),
        ("timestamp", ">i8"),
        ("base_offset", ">i8"),
        ("batch_size", ">i2"),
        ("compacted", ">i4"),
        ("reserved", ">i4"),
    ]
)
ROCKSDB_UNIT_DTYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8"), ("timestamp", ">i8")])
EXT_HEAD_DTYPE = np.dtype([("size", ">i2"), ("tags", ">i8"), ("timestamp", ">i8"), ("width", ">i2")])
ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


class UnitKind(IntEnum):
    """What stands in a place of a queue, told by its 20 bytes alone."""

    EMPTY = 0  # zeros: nothing was written there
    PRE_BLANK = 1  # exactly what fillPreBlank writes
    MESSAGE = 2  # what a start counts (ConsumeQueue.recover): a position of 0 or more, a size above 0
    BROKEN = 3  # a start ends the queue before it


def classify(units: NDArray[Any]) -> NDArray[np.uint8]:
    """The :class:`UnitKind` of each unit, uint8[units]; of any dtype with position, size and tags."""
    position, size = units["position"], units["size"]
    kinds = np.where((position >= 0) & (size > 0), np.uint8(UnitKind.MESSAGE), np.uint8(UnitKind.BROKEN))
    bare = (position == 0) & (units["tags"] == 0)
    kinds[bare & (size == 0)] = UnitKind.EMPTY
    kinds[bare & (size == PRE_BLANK_SIZE)] = UnitKind.PRE_BLANK
    return kinds
