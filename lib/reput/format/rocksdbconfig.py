"""Topics, groups and offsets in RocksDB: where they lie, and the bytes of their keys and values.

Three forms. *Separate*: a database for each kind, the names are keys and JSON the values. *Single*: the same
in one database, a column family for each kind. *V2*: one database and one column family, where keys are::

    01 table:u16 02 len:u16 name                                     → 01 JSON, of topic and group
    01 table:u16 02 len:u16 group 01 len:u16 topic 01 queueId:i32    → offset:i64
    01 table:u16 01 "data_version"            → stateVersion:i64 timestamp:i64 counter:i64

Integers are big-endian. Of values of topics and groups the first byte says how the rest is written; 1 is
JSON, and no release writes another. docs/formats/rocksdb.md has a worked example.

Source (rocketmq-all-5.3.3; 5.5.0 by its bytecode): ``RocksDBConfigManager``, ``ConfigRocksDBStorage``,
``RocksDBTopicConfigManager``, ``RocksDBSubscriptionGroupManager``, ``RocksDBConsumerOffsetManager``; for v2
``ConfigHelper``, ``TableId``, ``RecordPrefix``, ``SerializationType``, ``ConsumerOffsetManagerV2``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

#: Below ``config/``: the directories of the three forms.
SEPARATE = {"topics": "topics", "groups": "subscriptionGroups", "offsets": "consumerOffsets"}
SINGLE = "metadata"
V2 = "rdb"

#: Separate (5.3.1 and later): the column family with the version, and the key in each such family.
VERSION_FAMILY = "kvDataVersion"
VERSION_KEY = b"kvDataVersionKey"
#: Which topics a group may not read; as JSON by group.
FORBIDDEN_FAMILY = "forbidden"
#: Single: the column families; those of versions have the suffix.
SINGLE_FAMILIES = {"topics": "topic", "groups": "subscriptionGroup", "offsets": "consumerOffset"}
VERSION_SUFFIX = "Version"

_TABLE, _VERSION, _DATA = 1, 1, 2
_SEPARATOR = b"\x01"
_JSON = 1
_HEAD = struct.Struct(">BHB")
_LENGTH = struct.Struct(">H")
_QUEUE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_THREE = struct.Struct(">3q")
_VERSION_NAME = b"data_version"
#: Java reads lengths as signed.
_MOST = 0x7FFF


class Table(IntEnum):
    """Tables of v2 (``TableId``)."""

    OFFSETS = 1
    PULL_OFFSETS = 2
    TOPICS = 3
    GROUPS = 4


class DataVersion(NamedTuple):
    """How new a table is (``DataVersion``).

    Attributes:
        counter: how often it has changed.
        timestamp: when it last did, ms since 1970.
        state_version: of the message store, then.
    """

    counter: int
    timestamp: int = 0
    state_version: int = 0


class QueueOf(NamedTuple):
    """Whose offset it is, and in which queue."""

    group: bytes
    topic: bytes
    queue_id: int


def table_range(table: Table) -> tuple[bytes, bytes]:
    """The half-open range of the keys of a table of v2, without its version."""
    return _HEAD.pack(_TABLE, table, _DATA), _HEAD.pack(_TABLE, table, _DATA + 1)


def version_key(table: Table) -> bytes:
    """The key of a table's version in v2."""
    return _HEAD.pack(_TABLE, table, _VERSION) + _VERSION_NAME


def parse_name(key: bytes) -> bytes:
    """The name in a key of a topic or a group in v2.

    Raises:
        ValueError: it is no such key.
    """
    name, rest = _parse_text(key, _head(key))
    if rest != len(key):
        raise ValueError(f"{len(key) - rest} bytes after the name")
    return name


def parse_queue(key: bytes) -> QueueOf:
    """Group, topic and queue in a key of an offset in v2.

    Raises:
        ValueError: it is no such key.
    """
    group, at = _parse_text(key, _head(key))
    topic, at = _parse_text(key, _separated(key, at))
    at = _separated(key, at)
    if len(key) - at != _QUEUE.size:
        raise ValueError(f"{len(key) - at} bytes for the queue id, not {_QUEUE.size}")
    return QueueOf(group, topic, _QUEUE.unpack_from(key, at)[0])


def parse_offset(value: bytes) -> int:
    """The offset in a value of v2.

    Raises:
        ValueError: it is no such value.
    """
    if len(value) != _OFFSET.size:
        raise ValueError(f"{len(value)} bytes for an offset, not {_OFFSET.size}")
    offset: int = _OFFSET.unpack(value)[0]
    return offset


def parse_version(value: bytes) -> DataVersion:
    """The version in a value of v2.

    Raises:
        ValueError: it is no such value.
    """
    if len(value) != _THREE.size:
        raise ValueError(f"{len(value)} bytes for a version, not {_THREE.size}")
    state, timestamp, counter = _THREE.unpack(value)
    return DataVersion(counter, timestamp, state)


def parse_json(value: bytes) -> bytes:
    """The JSON in a value of a topic or a group in v2.

    Raises:
        ValueError: it isn't written as JSON; a broker passes over such an entry.
    """
    if not value or value[0] != _JSON:
        raise ValueError(f"serialization {value[0] if value else 'missing'}, not {_JSON}, which is JSON")
    return value[1:]


def _head(key: bytes) -> int:
    if len(key) < _HEAD.size or (key[0], key[3]) != (_TABLE, _DATA):
        raise ValueError(f"a key that begins with {key[:4].hex(' ') or 'nothing'}, not 01, table and 02")
    return _HEAD.size


def _separated(key: bytes, at: int) -> int:
    if key[at : at + 1] != _SEPARATOR:
        raise ValueError(f"{key[at : at + 1].hex() or 'nothing'} at byte {at}, not 01")
    return at + 1


def _parse_text(key: bytes, at: int) -> tuple[bytes, int]:
    if len(key) - at < _LENGTH.size:
        raise ValueError(f"{len(key) - at} bytes for a length, not {_LENGTH.size}")
    length: int = _LENGTH.unpack_from(key, at)[0]
    begin = at + _LENGTH.size
    if length > _MOST or len(key) - begin < length:
        raise ValueError(f"a name of {length} bytes, where {len(key) - begin} follow")
    return key[begin : begin + length], begin + length
