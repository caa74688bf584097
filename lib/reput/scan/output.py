"""What a scan yields: consume-queue units, index rows and keys, remarks."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Status(IntEnum):
    """Why a scan returned. The bad ones leave the position at the bad record's first byte."""

    END = 0  # the next record starts at or after the end of the range
    FULL = 1  # the output has no room for another record: empty it and continue
    BLANK = 2  # the segment's closing record: the next record is in the next segment
    UNWRITTEN = 3  # size and magic are both zero: nothing was written here
    NEW_TOPIC = 4  # kernel only: a topic has to be interned before the scan continues
    NEW_QUEUE = 5  # kernel only: the queue table is full
    BAD_SIZE = 10
    BAD_MAGIC = 11
    BAD_PHYSICAL_OFFSET = 12
    BAD_LENGTHS = 13  # body, topic and properties don't add up to the size
    BAD_CRC = 14
    BAD_PROPERTY_CRC = 15
    BAD_DELAY = 16  # DELAY of a scheduled message is no number: the broker can't dispatch it
    BAD_INNER_BATCH = 17  # INNER_BASE or INNER_NUM is no number: a 5.x broker can't dispatch it

    @property
    def is_framed(self) -> bool:
        """Bad, but the record's size can be trusted: the next record follows it."""
        return self >= Status.BAD_CRC


class Remark(IntEnum):
    """Something about a message that was taken, but not as it stands."""

    QUEUE_OFFSET_RANGE = 0  # negative, or too large for a file offset: no unit
    LMQ_COUNTS = 1  # INNER_MULTI_DISPATCH and INNER_MULTI_QUEUE_OFFSET differ in length: no LMQ units
    LMQ_OFFSET = 2  # an LMQ queue offset is no number: no LMQ units from there on


# A message's properties are at most 32767 bytes, a key or an LMQ name at least 1 and a separator.
MOST_PER_RECORD = 16_512

UNITS, ROWS, KEYS, REMARKS, MESSAGES, BYTES, LAST_TIMESTAMP, LAST_POSITION = range(8)
NAME_START, NAME_LENGTH = 8, 9  # kernel: the topic to intern, when it stops with NEW_TOPIC


class OutputArrays(NamedTuple):
    """The arrays a scan fills."""

    unit_queue: NDArray[np.int32]  # int32[units], queue number
    unit_offset: NDArray[np.int64]  # int64[units], queueOffset
    unit_position: NDArray[np.int64]  # int64[units], physicalOffset
    unit_size: NDArray[np.int32]  # int32[units], bytes
    unit_tags: NDArray[np.int64]  # int64[units], tagsCode
    row_position: NDArray[np.int64]  # int64[rows], physicalOffset of a message with index keys
    row_timestamp: NDArray[np.int64]  # int64[rows], its storeTimestamp, ms
    row_keys: NDArray[np.int32]  # int32[rows], how many keys it has
    key_hash: NDArray[np.int32]  # int32[keys], their hashes as the index stores them, in the broker's order
    remark_kind: NDArray[np.int32]  # int32[remarks], :class:`Remark`
    remark_position: NDArray[np.int64]  # int64[remarks], physicalOffset
    remark_value: NDArray[np.int64]  # int64[remarks], the value that is remarked
    #: int64[10], how much of each is filled, and running facts (see the module's constants)
    counts: NDArray[np.int64]


def output(units: int = 1 << 17, keys: int = 1 << 19) -> OutputArrays:
    """Arrays for at least ``units`` units and rows and ``keys`` keys; one record always fits."""
    units = max(units, 2 * MOST_PER_RECORD)
    keys = max(keys, 2 * MOST_PER_RECORD)
    return OutputArrays(
        unit_queue=np.empty(units, np.int32),
        unit_offset=np.empty(units, np.int64),
        unit_position=np.empty(units, np.int64),
        unit_size=np.empty(units, np.int32),
        unit_tags=np.empty(units, np.int64),
        row_position=np.empty(units, np.int64),
        row_timestamp=np.empty(units, np.int64),
        row_keys=np.empty(units, np.int32),
        key_hash=np.empty(keys, np.int32),
        remark_kind=np.empty(1024, np.int32),
        remark_position=np.empty(1024, np.int64),
        remark_value=np.empty(1024, np.int64),
        counts=np.zeros(10, np.int64),
    )


def clear(out: OutputArrays) -> None:
    """Make room: forget units, rows, keys and remarks; running facts stay."""
    out.counts[: REMARKS + 1] = 0


class Stop(NamedTuple):
    """Where a scan stopped and why; ``position`` is relative to the scanned data."""

    status: Status
    position: int
