"""ConsumeQueue units. Grammar and a worked example: docs/formats/consumequeue.md.

Source: ``ConsumeQueue`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import struct

UNIT_LENGTH = 20
PHYSICAL_OFFSET = 0  # int64
SIZE = 8  # int32, bytes
TAGS_CODE = 12  # int64

UNIT = struct.Struct(">qiq")

# Stands before a queue's first unit in its first file (ConsumeQueue.fillPreBlank).
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)

# A queue offset above this has no place: its byte offset would leave int64.
MAX_QUEUE_OFFSET = (1 << 63) // UNIT_LENGTH - 1


def unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    """The 20 bytes of one unit."""
    return UNIT.pack(physical_offset, size, tags_code)
