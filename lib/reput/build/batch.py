"""The units of a BatchConsumeQueue, packed.

Source: ``BatchConsumeQueue.putMessagePositionInfoWrapper``, ``putBatchMessagePositionInfo``
(rocketmq-all-5.3.3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format.batchconsumequeue import NOT_COMPACTED
from reput.format.dtypes import BATCH_UNIT_DTYPE


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
        good = (self.base_offset >= 0) & (self.batch_size >= 0)
        chosen: list[NDArray[Any]] = [column[good] for column in self]
        return self if good.all() else BatchRows(*chosen)


def pack(rows: BatchRows) -> bytes:
    """The units of messages that are all dispatched."""
    packed = np.empty(len(rows.position), BATCH_UNIT_DTYPE)
    for name, column in rows._asdict().items():
        packed[name] = column
    packed["compacted"] = NOT_COMPACTED
    packed["reserved"] = 0
    return packed.tobytes()
