"""Units of consumequeue_ext. Grammar and a worked example: docs/formats/consumequeueext.md.

With ``enableConsumeQueueExt`` a consume queue unit's tagsCode is the address of a unit here, which has the
tagsCode itself, the storeTimestamp and a bit map. Units differ in length, and none crosses the end of a file.

Source: ``ConsumeQueueExt``, ``ConsumeQueueExt.CqExtUnit`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import struct

#: Bytes before the bit map: ``CqExtUnit.MIN_EXT_UNIT_SIZE``.
HEAD_LENGTH = 20
#: A unit of more bytes is not stored: ``CqExtUnit.MAX_EXT_UNIT_SIZE``.
MAX_UNIT_LENGTH = 0x7FFF
#: Bytes that stay free behind the last unit of a file: ``ConsumeQueueExt.END_BLANK_DATA_LENGTH``.
END_BLANK = 4
#: Ends the units of a file before its end: a size of -1.
END_MARK = b"\xff\xff"
#: ``ConsumeQueueExt.put`` tries this often to find room for a unit.
TRIES = 3

#: The address of the first byte.
FIRST_ADDRESS = -(1 << 63)
#: A tagsCode up to this is an address: ``ConsumeQueueExt.MAX_ADDR``.
MAX_ADDRESS = -(1 << 31) - 1
#: Past this place nothing is stored: ``ConsumeQueueExt.MAX_REAL_OFFSET``.
MAX_PLACE = MAX_ADDRESS - FIRST_ADDRESS

#: Length of the unit, tagsCode, storeTimestamp, length of the bit map that follows.
HEAD = struct.Struct(">hqqh")


def address(place: int) -> int:
    """What a consume queue unit holds for the unit at a byte offset: ``ConsumeQueueExt.decorate``."""
    return FIRST_ADDRESS + place


def place_of(tags_code: int) -> int | None:
    """The place that a consume queue unit's tagsCode leads to; None where it is no address."""
    return tags_code - FIRST_ADDRESS if tags_code <= MAX_ADDRESS else None
