"""Why a scan stopped, and what it remarked without stopping."""

from __future__ import annotations

from enum import IntEnum


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
