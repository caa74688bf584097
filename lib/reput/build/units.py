"""Consume-queue units: from a scan's rows to packed bytes, one run a queue.

Source: ``ConsumeQueue.putMessagePositionInfo`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format.batchconsumequeue import NOT_COMPACTED
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.dtypes import BATCH_UNIT_DTYPE, get_batch_units
from reput.scan.load import swapped_u32
from reput.scan.output import UNITS, OutputArrays

# Source: ``BatchConsumeQueue.putMessagePositionInfoWrapper``, ``putBatchMessagePositionInfo``
# (rocketmq-all-5.3.3).


class BatchRows(NamedTuple):
    """Messages of one queue in log order."""

    #: position, tags, timestamp: int64[rows], physicalOffset, tagsCode, storeTimestamp in ms
    position: NDArray[np.int64]
    size: NDArray[np.int32]  # int32[rows], bytes
    tags: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    base_offset: NDArray[np.int64]  # int64[rows], queueOffset of the first message inside
    batch_size: NDArray[np.int16]  # int16[rows], messages inside

    def dispatched(self) -> BatchRows:
        """Those that get a unit: messages with a negative base offset or batch size get none."""
        good = get_batch_units(self.base_offset, self.batch_size)
        chosen: list[NDArray[Any]] = [column[good] for column in self]
        return self if good.all() else BatchRows(*chosen)


def pack_batch(rows: BatchRows) -> bytes:
    """The units of messages that are all dispatched."""
    packed = np.empty(len(rows.position), BATCH_UNIT_DTYPE)
    for name, column in rows._asdict().items():
        packed[name] = column
    packed["compacted"] = NOT_COMPACTED
    packed["reserved"] = 0
    return packed.tobytes()


class PackedUnits(NamedTuple):
    """A scan's units, packed and grouped by queue, in log order within a queue."""

    data: NDArray[np.uint8]  # uint8[units * 20]
    starts: NDArray[np.int64]  # int64[queues + 1], queue q has the units [starts[q], starts[q + 1])
    #: int64[queues], queueOffset of a queue's first unit; undefined where it has none
    first: NDArray[np.int64]

    def runs(self) -> Iterator[tuple[int, int, memoryview]]:
        """(queue number, queueOffset of the first unit, bytes) of each queue that has units."""
        data = self.data.data
        bounds = (self.starts * UNIT_LENGTH).tolist()
        for queue in np.flatnonzero(np.diff(self.starts)).tolist():
            yield queue, int(self.first[queue]), data[bounds[queue] : bounds[queue + 1]]


#: Units that are collected before they are packed, of 32 bytes each.
_MOST_COLLECTED = 1 << 22


class Collected:
    """Units of several chunks of a scan, until they are packed."""

    def __init__(self) -> None:
        self._chunks: list[tuple[NDArray[Any], ...]] = []
        self._count = 0

    def add(self, chunk: OutputArrays) -> None:
        """Take a chunk, which is used before this returns."""
        self._chunks.append(tuple(column.copy() for column in _columns(chunk)))
        self._count += int(chunk.counts[UNITS])

    @property
    def is_full(self) -> bool:
        """Whether they are to be packed before there are more."""
        return self._count > _MOST_COLLECTED

    def packed(self, queues: int) -> PackedUnits | None:
        """Those since the last time, over ``queues`` queues; None without any."""
        chunks, self._chunks, self._count = self._chunks, [], 0
        return (
            _packed([np.concatenate(column) for column in zip(*chunks, strict=True)], queues)
            if chunks
            else None
        )


def pack(out: OutputArrays, queues: int) -> PackedUnits:
    """Pack the units of a scan over ``queues`` queues."""
    return _packed(_columns(out), queues)


def _columns(out: OutputArrays) -> list[NDArray[Any]]:
    """Queue, queueOffset, physical offset, size and tagsCode of what a scan has filled: views."""
    count = int(out.counts[UNITS])
    columns = (out.unit_queue, out.unit_offset, out.unit_position, out.unit_size, out.unit_tags)
    return [column[:count] for column in columns]


def _packed(columns: Sequence[NDArray[Any]], queues: int) -> PackedUnits:
    words, starts, first = _pack(*columns, queues)
    return PackedUnits(words.view(np.uint8), starts, first)


def by_queue(out: OutputArrays, queues: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A scan's units grouped by queue, in log order within a queue.

    Returns int64[units], their rows in that order; int64[queues + 1], where each queue's begin, and the end.
    """
    return _by_queue(out.unit_queue[: int(out.counts[UNITS])], queues)  # type: ignore[no-any-return]


@njit(cache=CACHED, nogil=True)
def _by_queue(queue, queues):  # type: ignore[no-untyped-def]
    starts = np.zeros(queues + 1, np.int64)
    for row in range(len(queue)):
        starts[queue[row] + 1] += 1
    for number in range(queues):
        starts[number + 1] += starts[number]
    following = starts[:-1].copy()
    order = np.empty(len(queue), np.int64)
    for row in range(len(queue)):
        number = queue[row]
        order[following[number]] = row
        following[number] += 1
    return order, starts


@njit(cache=CACHED, nogil=True)
def _pack(queue, offset, position, size, tags, queues):  # type: ignore[no-untyped-def]
    starts = np.zeros(queues + 1, np.int64)
    for row in range(len(queue)):
        starts[queue[row] + 1] += 1
    for number in range(queues):
        starts[number + 1] += starts[number]
    following = starts[:-1].copy()
    first = np.zeros(queues, np.int64)
    words = np.empty(len(queue) * 5, np.uint32)
    for row in range(len(queue)):
        number = queue[row]
        place = following[number]
        if place == starts[number]:
            first[number] = offset[row]
        following[number] = place + 1
        at = place * 5
        words[at] = swapped_u32(np.uint32(position[row] >> 32))
        words[at + 1] = swapped_u32(np.uint32(position[row] & 0xFFFFFFFF))
        words[at + 2] = swapped_u32(np.uint32(size[row]))
        words[at + 3] = swapped_u32(np.uint32(tags[row] >> 32))
        words[at + 4] = swapped_u32(np.uint32(tags[row] & 0xFFFFFFFF))
    return words, starts, first
