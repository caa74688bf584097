"""Fields that queues in log order need and a scan doesn't yield, from records that it found whole.

Source: ``CommitLog.checkMessageAndReturnSize``, ``setBatchSizeIfNeeded`` (rocketmq-all-5.3.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format import commitlog, javastring, properties
from reput.format.commitlog import (
    MAGIC_V1,
    PROPERTY_SEPARATOR,
    QUEUE_ID,
    SYS_FLAG,
    body_at,
    store_timestamp_at,
)
from reput.scan.kernel import _integer, _topic
from reput.scan.load import i32, i64, u8, u32
from reput.scan.table import QueueTable

_INNER_BASE = np.frombuffer(properties.INNER_BASE + b"\x01", np.uint8)
_INNER_NUM = np.frombuffer(properties.INNER_NUM + b"\x01", np.uint8)
#: What Java reads where bytes aren't UTF-8; a topic with it may be spelled otherwise in a record.
_REPLACED = "\ufffd".encode()


class RecordFields(NamedTuple):
    """Fields of the messages of some units.

    Attributes:
        timestamp: int64[units], storeTimestamp in ms.
        base_offset: int64[units], INNER_BASE where there is INNER_NUM as well, else the unit's queueOffset.
        batch_size: int16[units], INNER_NUM where there is INNER_BASE as well, else 1.
        own: bool[units], the unit is of the queue that the message was sent to, not of a light one.
        properties: int64[units], where the message's properties begin in the data.
        properties_length: int32[units], bytes.
    """

    timestamp: NDArray[np.int64]
    base_offset: NDArray[np.int64]
    batch_size: NDArray[np.int16]
    own: NDArray[np.bool_]
    properties: NDArray[np.int64]
    properties_length: NDArray[np.int32]


def record_fields(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    unit_queues: NDArray[np.int32],
    table: QueueTable,
) -> RecordFields:
    """The fields of the messages of some units; those of one queue are consecutive, in log order.

    Args:
        data: uint8[bytes], the segment.
        positions: int64[units], where whole records begin in it.
        queue_offsets: int64[units], the units'.
        unit_queues: int32[units], numbers of their queues.
        table: knows the queues.
    """
    queues, topics = table.queues, table.topics
    fields = _fields(
        data, positions, queue_offsets, unit_queues, queues.topic, queues.queue_id, topics,
        _INNER_BASE, _INNER_NUM,
    )  # fmt: skip
    return RecordFields(*fields)


def fields_of_queue(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    topic: bytes,
    queue_id: int,
) -> RecordFields:
    """What :func:`record_fields` does for units of one queue, without a table; the topic is in UTF-8."""
    table = QueueTable(capacity=1)
    queue = table.intern_queue(table.intern_topic(topic), queue_id)
    if _REPLACED in topic:
        for position in positions.tolist():
            table.intern_topic(commitlog.decode(data.data, position).topic)
    return record_fields(data, positions, queue_offsets, np.full(len(positions), queue, np.int32), table)


def record_fields_slowly(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    unit_queues: NDArray[np.int32],
    table: QueueTable,
) -> RecordFields:
    """What :func:`record_fields` does, one record at a time."""
    rows = []
    before = (-1, -1)
    units = zip(positions.tolist(), queue_offsets.tolist(), unit_queues.tolist(), strict=True)
    for position, queue_offset, queue in units:
        record = commitlog.decode(data.data, position)
        values = properties.parse(record.properties)
        base, count = values.get(properties.INNER_BASE), values.get(properties.INNER_NUM)
        is_own = (
            javastring.utf8(record.topic) == table.topic_names[table.queues.topic[queue]]
            and record.queue_id == table.queues.queue_id[queue]
            and (queue, position) != before
        )
        rows.append(
            (
                record.store_timestamp,
                queue_offset if base is None or count is None else javastring.parse_integer(base, 64),
                1 if base is None or count is None else javastring.parse_integer(count, 16),
                is_own,
                position + _size(data, position) - len(record.properties),
                len(record.properties),
            )
        )
        before = (queue, position)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(RecordFields._fields)
    kinds = (np.int64, np.int64, np.int16, np.bool_, np.int64, np.int32)
    return RecordFields(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def _size(data: NDArray[np.uint8], position: int) -> int:
    return int.from_bytes(data[position : position + 4].tobytes(), "big")


@njit(cache=CACHED, nogil=True)
def _fields(  # type: ignore[no-untyped-def]
    data, positions, queue_offsets, unit_queues, queue_topic, queue_id, topics, inner_base, inner_num,
):  # fmt: skip
    units = len(positions)
    timestamp = np.empty(units, np.int64)
    base = np.empty(units, np.int64)
    count = np.empty(units, np.int16)
    own = np.empty(units, np.bool_)
    start = np.empty(units, np.int64)
    length = np.empty(units, np.int32)
    for unit in range(units):
        position = positions[unit]
        sys_flag = i32(data, position + SYS_FLAG)
        timestamp[unit] = i64(data, position + store_timestamp_at(sys_flag))
        at = position + body_at(sys_flag)
        at += max(np.int64(i32(data, at - 4)), 0)
        name_length = np.int64(u8(data, at))
        at += 1
        if np.int64(u32(data, position + 4)) != MAGIC_V1:
            name_length = name_length << 8 | np.int64(u8(data, at))
            at += 1
        queue = unit_queues[unit]
        own[unit] = (
            i32(data, position + QUEUE_ID) == queue_id[queue]
            and (unit == 0 or positions[unit - 1] != position or unit_queues[unit - 1] != queue)
            and _topic(data, at, name_length, topics) == queue_topic[queue]
        )
        at += name_length + 2
        end = position + np.int64(i32(data, position))
        start[unit] = at
        length[unit] = end - at
        base[unit] = queue_offsets[unit]
        count[unit] = 1
        base_at, base_end = _value(data, at, end, inner_base)
        num_at, num_end = _value(data, at, end, inner_num)
        if base_end > base_at and num_end > num_at:
            base[unit] = _integer(data, base_at, base_end, 64)[1]
            count[unit] = _integer(data, num_at, num_end, 16)[1]
    return timestamp, base, count, own, start, length


@njit(inline="always")
def begins(data, at, text):  # type: ignore[no-untyped-def]
    """Whether ``text`` stands at a place, all of which is in the data."""
    for byte in range(len(text)):  # noqa: SIM110 - what numba can't compile
        if u8(data, at + byte) != text[byte]:
            return False
    return True


@njit
def _value(data, start, end, name):  # type: ignore[no-untyped-def]
    """Where the last value of a property is that isn't empty; ``name`` ends in 0x01."""
    found = found_end = np.int64(0)
    at = start
    while at < end:
        entry_end = at
        while entry_end < end and u8(data, entry_end) != PROPERTY_SEPARATOR:
            entry_end += 1
        if entry_end - at > len(name) and begins(data, at, name):
            found, found_end = at + len(name), entry_end
        at = entry_end + 1
    return found, found_end
