"""DLedger's entries, which stand around the records of a commit log. docs/formats/dledger.md has the grammar.

Source: ``DLedgerEntry``, ``DLedgerEntryCoder``, ``DLedgerMmapFileStore``, ``MmapFileList.preAppend`` (dledger
0.3.1.2 and 0.3.2), ``DLedgerCommitLog`` (rocketmq-all-4.9.7, 5.3.3). All integers are big-endian.
"""

from __future__ import annotations

import struct

from reput.format.commitlog import MAGIC_BLANK, MAGIC_V1, MAGIC_V2

ENTRY_MAGIC = 1  # DLedgerMmapFileStore.CURRENT_MAGIC
BLANK_MAGIC = -1  # closes a segment: MmapFileList.BLANK_MAGIC_CODE

# Offsets of the header's fields from the entry's first byte.
MAGIC = 0  # int32
SIZE = 4  # int32, header and body
INDEX = 8  # int64, counts the group's entries from 0
TERM = 16  # int64
POSITION = 24  # int64, the entry's own place
CHANNEL = 32  # int32, 0
CHAIN_CRC = 36  # int32, 0
BODY_CRC = 40  # int32, 0
BODY_LENGTH = 44  # int32
HEADER_LENGTH = 48  # DLedgerEntry.BODY_OFFSET: the record begins here

BLANK_LENGTH = 8  # magic and the number of bytes up to the segment's end

#: The second number of a record is one of these, that of an entry its size, which is above zero.
RECORD_MAGICS = frozenset({MAGIC_V1, MAGIC_V2, MAGIC_BLANK})

_HEADER = struct.Struct(">iiqqqiiii")


def record_at(data: bytes | memoryview, position: int) -> int:
    """Where the record of the whole frame at ``position`` begins: there, or behind an entry's header."""
    magic = int.from_bytes(data[position + 4 : position + 8], "big")
    return position if magic in RECORD_MAGICS else position + HEADER_LENGTH


def frame_size(data: bytes | memoryview, position: int) -> int:
    """Bytes of the frame at ``position`` as its first fields give them: of a record, or of an entry."""
    first, second = struct.unpack_from(">iI", data, position)
    return int(first) if second in RECORD_MAGICS else int(second)


def entry_index(data: bytes | memoryview, position: int, base: int) -> int | None:
    """The index of the entry whose header stands at ``position``, None if it isn't one of its own place.

    Args:
        data: a segment, or a part of one.
        position: in ``data``.
        base: physical offset of its first byte.
    """
    if position < 0 or position + HEADER_LENGTH > len(data):
        return None
    magic, size, index, _term, place, _channel, _chain, _crc, body = _HEADER.unpack_from(data, position)
    sound = magic == ENTRY_MAGIC and place == base + position and body == size - HEADER_LENGTH
    return int(index) if sound and index >= 0 else None
