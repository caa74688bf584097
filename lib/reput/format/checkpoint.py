"""StoreCheckpoint: one page of longs. Field table: docs/formats/checkpoint.md.

Source: ``StoreCheckpoint`` (rocketmq-all-4.9.7, 5.3.3; the sixth long by ``javap`` of 5.5.0).
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

LENGTH = 4096
FIELDS = 6
#: Longs that a release's checkpoint has at least if it holds confirmPhyOffset, and logicsPhysicalOffset.
CONFIRM_FIELDS, LOGICS_FIELDS = 5, 6
_FIELDS = struct.Struct(f">{FIELDS}q")


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """The longs of the checkpoint, in file order; older versions leave the later ones zero.

    Attributes:
        physic_msg_timestamp, logics_msg_timestamp, index_msg_timestamp: ms.
        master_flushed_offset, confirm_physical_offset, logics_physical_offset: physical offsets.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0

    def encode(self) -> bytes:
        """The whole page."""
        return _FIELDS.pack(*astuple(self)).ljust(LENGTH, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> StoreCheckpoint:
        """The longs at the start of ``data``; what is cut off counts as zero."""
        return cls(*_FIELDS.unpack_from(data.ljust(_FIELDS.size, b"\0")))
