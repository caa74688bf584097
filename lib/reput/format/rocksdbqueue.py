"""The keys and values of consume queues in RocksDB. Grammar and worked bytes: docs/formats/rocksdb.md.

Two column families: ``default`` has a unit for each message, ``offset`` the ends of each queue and the
checkpoint. Keys compare byte by byte, so that queues come by the length of their topic's name, then by that
name, then by queueId as an unsigned number: a negative one comes after all others, and so does a negative
queueOffset within its queue.

Source: ``RocksDBConsumeQueueTable``, ``RocksDBConsumeQueueOffsetTable``, ``RocksDBConsumeQueueStore``
(rocketmq-all-5.2.0, 5.3.3, 5.5.0).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

UNITS = "default"  # column family
OFFSETS = "offset"  # column family

CTRL_0 = b"\x00"
CTRL_1 = b"\x01"
CTRL_2 = b"\x02"
MAX = b"max"
MIN = b"min"

#: Bytes of a key beside the topic's.
UNIT_KEY_LENGTH = 4 + 1 + 1 + 4 + 1 + 8
OFFSET_KEY_LENGTH = 4 + 1 + 1 + 3 + 1 + 4
#: A broker's buffers hold no longer key (``RocksDBConsumeQueueStore.MAX_KEY_LEN``).
MAX_KEY_LENGTH = 300
#: Bytes of the longest topic that has a place.
MAX_TOPIC_LENGTH = MAX_KEY_LENGTH - UNIT_KEY_LENGTH

_UNIT = struct.Struct(">qiqq")
_OFFSET = struct.Struct(">qq")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
UNIT_LENGTH = _UNIT.size
OFFSET_LENGTH = _OFFSET.size
CHECKPOINT_LENGTH = _LONG.size

#: The topic under which the end of the last dispatched record stands
#: (``TopicValidator.RMQ_SYS_ROCKSDB_OFFSET_TOPIC``).
CHECKPOINT_TOPIC = b"CHECKPOINT_TOPIC"


class Unit(NamedTuple):
    """A message's unit.

    Attributes:
        position: physicalOffset.
        size: bytes of the record.
        tags: tagsCode.
        timestamp: storeTimestamp, ms.
    """

    position: int
    size: int
    tags: int
    timestamp: int


class UnitKey(NamedTuple):
    """Where a unit stands: topic in UTF-8, queueId, queueOffset."""

    topic: bytes
    queue_id: int
    queue_offset: int


class QueueEnd(NamedTuple):
    """A queue's last message, or its first: physicalOffset and queueOffset."""

    position: int
    queue_offset: int


class OffsetKey(NamedTuple):
    """Which end of which queue: topic in UTF-8, queueId, :data:`MAX` or :data:`MIN`."""

    topic: bytes
    queue_id: int
    which: bytes


def prefix(topic: bytes, queue_id: int) -> bytes:
    """What the keys of a queue's units begin with.

    >>> prefix(b"%LMQ%a0", 0).hex(" ", -4)
    '00000007 01254c4d 51256130 01000000 0001'
    """
    return _INT.pack(len(topic)) + CTRL_1 + topic + CTRL_1 + _INT.pack(queue_id) + CTRL_1


def unit_key(topic: bytes, queue_id: int, queue_offset: int) -> bytes:
    """The key of a unit.

    >>> unit_key(b"%LMQ%a0", 0, 0).hex(" ", -8)
    '0000000701254c4d 5125613001000000 0001000000000000 0000'
    """
    return prefix(topic, queue_id) + _LONG.pack(queue_offset)


def after(topic: bytes, queue_id: int) -> bytes:
    """A key past all of a queue's units, and before those of the next queue."""
    return prefix(topic, queue_id)[:-1] + CTRL_2


def parse_unit_key(key: bytes) -> UnitKey | None:
    """Where a key puts its unit; None for what no broker writes.

    >>> parse_unit_key(unit_key(b"orders", 3, 17))
    UnitKey(topic=b'orders', queue_id=3, queue_offset=17)
    """
    topic = _topic(key, UNIT_KEY_LENGTH)
    if topic is None or key[-9:-8] != CTRL_1:
        return None
    return UnitKey(topic, _INT.unpack_from(key, len(key) - 13)[0], _LONG.unpack_from(key, len(key) - 8)[0])


def parse_unit(value: bytes) -> Unit | None:
    """A unit's fields; None for a value of another length."""
    return Unit(*_UNIT.unpack(value)) if len(value) == UNIT_LENGTH else None


def offset_key(topic: bytes, queue_id: int, which: bytes) -> bytes:
    """The key of a queue's last message (:data:`MAX`) or first one (:data:`MIN`).

    >>> offset_key(b"t", 2, MAX).hex(" ")
    '00 00 00 01 01 74 01 6d 61 78 01 00 00 00 02'
    """
    return _INT.pack(len(topic)) + CTRL_1 + topic + CTRL_1 + which + CTRL_1 + _INT.pack(queue_id)


def offset_value(position: int, queue_offset: int) -> bytes:
    """The value of a queue's end: physicalOffset and queueOffset of that message."""
    return _OFFSET.pack(position, queue_offset)


def parse_offset_key(key: bytes) -> OffsetKey | None:
    """Which queue's end a key is; None for what no broker writes. The checkpoint's key is one, too.

    >>> parse_offset_key(offset_key(b"t", 2, MIN))
    OffsetKey(topic=b't', queue_id=2, which=b'min')
    """
    topic = _topic(key, OFFSET_KEY_LENGTH)
    which = key[-8:-5]
    if topic is None or which not in (MAX, MIN) or key[-5:-4] != CTRL_1:
        return None
    return OffsetKey(topic, _INT.unpack_from(key, len(key) - 4)[0], which)


def parse_offset(value: bytes) -> QueueEnd | None:
    """The message at a queue's end; None for a value of another length."""
    return QueueEnd(*_OFFSET.unpack(value)) if len(value) == OFFSET_LENGTH else None


#: The key of the checkpoint: ``00000010 01 "CHECKPOINT_TOPIC" 01 "max" 01 00000000``.
CHECKPOINT_KEY = offset_key(CHECKPOINT_TOPIC, 0, MAX)


def checkpoint_value(end: int) -> bytes:
    """The checkpoint: physical offset after the last dispatched record."""
    return _LONG.pack(end)


def parse_checkpoint(value: bytes) -> int | None:
    """The checkpoint's physical offset; None for a value of another length."""
    return int(_LONG.unpack(value)[0]) if len(value) == CHECKPOINT_LENGTH else None


def topic_problem(topic: bytes) -> str | None:
    """Why a broker can't write a key for a topic's units; None when it can."""
    if not topic:
        return "an empty name"
    return f"a name of {len(topic)} bytes" if len(topic) > MAX_TOPIC_LENGTH else None


def _topic(key: bytes, others: int) -> bytes | None:
    """The topic of a key that has ``others`` bytes beside it."""
    length = len(key) - others
    if length < 0 or _INT.unpack_from(key)[0] != length or key[4:5] != CTRL_1:
        return None
    return key[5 : 5 + length] if key[5 + length : 6 + length] == CTRL_1 else None
