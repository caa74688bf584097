"""IndexFile: header, hash slots, entries. Grammar and a worked example: docs/formats/indexfile.md.

Source: ``IndexFile``, ``IndexHeader``, ``IndexService`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_LENGTH = 40
SLOT_LENGTH = 4
ENTRY_LENGTH = 20

# Offsets within an entry.
KEY_HASH = 0  # int32, not negative
PHYSICAL_OFFSET = 4  # int64
TIME_DIFF = 12  # int32, seconds since the header's beginTimestamp
PREVIOUS = 16  # int32, the ordinal of the slot's entry before this one; 0: none

MAX_TIME_DIFF = 0x7FFFFFFF
FIRST_ORDINAL = 1  # entry 0 stays unused

_HEADER = struct.Struct(">qqqqii")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The 40 bytes at an index file's start.

    Attributes:
        begin_timestamp, end_timestamp: storeTimestamp of the first and last entry, ms.
        begin_physical_offset, end_physical_offset: of the first and last entry.
        slot_count: slots that hold a chain; on disk, up to 4.7.0, keys.
        index_count: the next free ordinal; 1 in a file without entries (0 on disk in 4.9 stores).
    """

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    slot_count: int = 0
    index_count: int = FIRST_ORDINAL

    def encode(self, *, counts_keys: bool = False) -> bytes:
        """The header's 40 bytes.

        Args:
            counts_keys: with keys for the slots, as ``IndexFile.putKey`` counts up to 4.7.0.
        """
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            max(self.index_count - FIRST_ORDINAL, 0) if counts_keys else self.slot_count,
            self.index_count,
        )

    @classmethod
    def decode(cls, data: bytes) -> IndexHeader:
        """The header at the start of ``data``."""
        return cls(*_HEADER.unpack_from(data))

    def successor(self) -> IndexHeader:
        """The header that a file starts with when this one is full."""
        return IndexHeader(
            begin_timestamp=self.end_timestamp,
            end_timestamp=self.end_timestamp,
            begin_physical_offset=self.end_physical_offset,
            end_physical_offset=self.end_physical_offset,
        )


def file_length(slots: int, entries: int) -> int:
    """Bytes of an index file with ``maxHashSlotNum`` slots and ``maxIndexNum`` entries."""
    return HEADER_LENGTH + slots * SLOT_LENGTH + entries * ENTRY_LENGTH


def key_hash(hash_code: int) -> int:
    """``IndexFile.indexKeyHashMethod``: the absolute value, 0 where int32 has none."""
    return 0 if hash_code == -0x8000_0000 else abs(hash_code)
