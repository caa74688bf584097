"""What a broker writes and reput only reads, encoded one by one: for the stores that tests make."""

from __future__ import annotations

import struct

from reput.format import dledger
from reput.format.rocksdbconfig import DataVersion, QueueOf, Table, table_range


def batch_unit(
    physical_offset: int, size: int, tags_code: int, store_timestamp: int, base_offset: int, batch_size: int
) -> bytes:
    """The 46 bytes of one unit."""
    return struct.pack(
        ">qiqqqhii", physical_offset, size, tags_code, store_timestamp, base_offset, batch_size, -1, 0
    )


def ext_unit(tags_code: int, store_timestamp: int, bit_map: bytes = b"") -> bytes:
    """The bytes of one unit: length, tagsCode, storeTimestamp in ms, length of the bit map, bit map."""
    head = struct.pack(">hqqh", 20 + len(bit_map), tags_code, store_timestamp, len(bit_map))
    return head + bit_map


def unit_value(position: int, size: int, tags: int, timestamp: int) -> bytes:
    """A unit's value: physicalOffset, bytes, tagsCode, storeTimestamp in ms.

    >>> unit_value(0x1E8AE, 0x172, 0x27A811, 0x1A20360284C).hex()
    '000000000001e8ae00000172000000000027a811000001a20360284c'
    """
    return struct.pack(">qiqq", position, size, tags, timestamp)


def entry_header(record: bytes, index: int, term: int, position: int) -> bytes:
    """The 48 bytes that stand before ``record`` when its entry begins at ``position``, a physical offset."""
    size = dledger.HEADER_LENGTH + len(record)
    return struct.pack(">iiqqqiiii", dledger.ENTRY_MAGIC, size, index, term, position, 0, 0, 0, len(record))


def entry_blank(length: int) -> bytes:
    """What closes a segment with ``length`` bytes left (at least 8), zero-filled."""
    return struct.pack(">ii", dledger.BLANK_MAGIC, length) + bytes(length - 8)


def encode_name(table: Table, name: bytes) -> bytes:
    """The key of a topic or a group in v2.

    Raises:
        ValueError: the name is too long.
    """
    return table_range(table)[0] + _text(name)


def encode_queue(table: Table, of: QueueOf) -> bytes:
    """The key of an offset in v2.

    Raises:
        ValueError: a name is too long.
    """
    parts = (table_range(table)[0], _text(of.group), b"\x01", _text(of.topic), b"\x01")
    return b"".join(parts) + struct.pack(">i", of.queue_id)


def encode_offset(offset: int) -> bytes:
    """An offset's value in v2."""
    return struct.pack(">q", offset)


def encode_version(version: DataVersion) -> bytes:
    """A version's value in v2."""
    return struct.pack(">3q", version.state_version, version.timestamp, version.counter)


def encode_json(text: bytes) -> bytes:
    """The value of a topic or a group in v2."""
    return b"\x01" + text


def _text(text: bytes) -> bytes:
    if len(text) > 0x7FFF:
        raise ValueError(f"a name of {len(text)} bytes, more than {0x7FFF}")
    return struct.pack(">H", len(text)) + text
