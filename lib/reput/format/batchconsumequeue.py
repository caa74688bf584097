"""Units of a BatchConsumeQueue. Grammar and a worked example: docs/formats/batchconsumequeue.md.

A unit stands for a message that holds ``batch_size`` others, whose queueOffsets begin at ``base_offset``.
Units stand in the order in which they were dispatched, so that a unit's place says nothing of queueOffsets.

Source: ``BatchConsumeQueue.putBatchMessagePositionInfo`` (rocketmq-all-5.3.3).
"""

from __future__ import annotations

import struct

UNIT_LENGTH = 46
NOT_COMPACTED = -1

#: physicalOffset, size, tagsCode, storeTimestamp, base offset, batch size, compacted offset, reserved.
UNIT = struct.Struct(">qiqqqhii")
