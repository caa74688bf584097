"""ConsumeQueue units. Grammar and a worked example: docs/formats/consumequeue.md.

Source: ``ConsumeQueue`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNIT_LENGTH = 20
PHYSICAL_OFFSET = 0  # int64
SIZE = 8  # int32, bytes
TAGS_CODE = 12  # int64

UNIT = struct.Struct(">qiq")
UNIT_DTYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])

# Stands before a queue's first unit in its first file (ConsumeQueue.fillPreBlank).
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)

# A queue offset above this has no place: its byte offset would leave int64.
MAX_QUEUE_OFFSET = (1 << 63) // UNIT_LENGTH - 1


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


def unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    """The 20 bytes of one unit."""
    return UNIT.pack(physical_offset, size, tags_code)
