"""What a scan yields: consume-queue units, index rows and keys, remarks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.scan.status import Status

# A message's properties are at most 32767 bytes, a key or an LMQ name at least 1 and a separator.
MOST_PER_RECORD = 16_512

UNITS, ROWS, KEYS, REMARKS, MESSAGES, BYTES, LAST_TIMESTAMP, LAST_POSITION = range(8)
NAME_START, NAME_LENGTH = 8, 9  # kernel: the topic to intern, when it stops with NEW_TOPIC


class OutputArrays(NamedTuple):
    """The arrays a scan fills.

    Attributes:
        unit_queue: int32[units], queue number.
        unit_offset: int64[units], queueOffset.
        unit_position: int64[units], physicalOffset.
        unit_size: int32[units], bytes.
        unit_tags: int64[units], tagsCode.
        row_position: int64[rows], physicalOffset of a message with index keys.
        row_timestamp: int64[rows], its storeTimestamp, ms.
        row_keys: int32[rows], how many keys it has.
        key_hash: int32[keys], their hashes as the index stores them, in the broker's order.
        remark_kind: int32[remarks], :class:`reput.scan.status.Remark`.
        remark_position: int64[remarks], physicalOffset.
        remark_value: int64[remarks], the value that is remarked.
        counts: int64[10], how much of each is filled, and running facts (see the module's constants).
    """

    unit_queue: NDArray[np.int32]
    unit_offset: NDArray[np.int64]
    unit_position: NDArray[np.int64]
    unit_size: NDArray[np.int32]
    unit_tags: NDArray[np.int64]
    row_position: NDArray[np.int64]
    row_timestamp: NDArray[np.int64]
    row_keys: NDArray[np.int32]
    key_hash: NDArray[np.int32]
    remark_kind: NDArray[np.int32]
    remark_position: NDArray[np.int64]
    remark_value: NDArray[np.int64]
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
