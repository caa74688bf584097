"""Records of the formats for many at once, as numpy has them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.format import names
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


@dataclass(frozen=True, slots=True)
class Form:
    """A form of queue: how its units are laid out."""

    name: str
    dtype: np.dtype[Any]  # of a unit
    by_place: bool  # a unit's queueOffset is its place; else it says that itself
    has_time: bool  # units have a storeTimestamp
    directory: str  # of a store, where its files are

    @property
    def unit_length(self) -> int:
        """Bytes of a unit."""
        return self.dtype.itemsize

    def place(self, root: Path, topic: str, queue_id: int) -> Path:
        """The directory of a queue's files under ``root``."""
        return root / f"{self.directory}/{topic}/{queue_id}"

    def counts(self, units: NDArray[Any]) -> NDArray[np.bool_]:
        """bool[units]: which a broker's start takes for units; of plain queues blanks before them, too."""
        good: NDArray[np.bool_] = (units["position"] >= 0) & (units["size"] > 0)
        return good if self.by_place else good & (units["base_offset"] >= 0) & (units["batch_size"] > 0)


PLAIN = Form("plain", UNIT_DTYPE, by_place=True, has_time=False, directory=names.CONSUME_QUEUE)
BATCH = Form("batch", BATCH_UNIT_DTYPE, by_place=False, has_time=True, directory=names.BATCH_CONSUME_QUEUE)
IN_ROCKSDB = Form("rocksdb", ROCKSDB_UNIT_DTYPE, by_place=True, has_time=True, directory="")
#: Those that have files.
IN_FILES = (PLAIN, BATCH)


def get_batch_units(base_offset: NDArray[Any], batch_size: NDArray[Any]) -> NDArray[np.bool_]:
    """bool[messages]: which a batch queue takes (``BatchConsumeQueue.putMessagePositionInfoWrapper``)."""
    return np.asarray((base_offset >= 0) & (batch_size >= 0), np.bool_)


def are_written(units: NDArray[Any]) -> NDArray[np.bool_]:
    """bool[units]: which aren't all zeros."""
    return np.asarray(units.view(np.uint8).reshape(len(units), units.itemsize).any(axis=1), np.bool_)


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
