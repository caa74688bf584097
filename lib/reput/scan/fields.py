"""Fields that queues in log order need and a scan doesn't yield, from records that it found whole.

Source: ``CommitLog.checkMessageAndReturnSize``, ``setBatchSizeIfNeeded`` (rocketmq-all-5.3.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format import commitlog, properties
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

#: The names with the separator behind them, as :func:`property_value` takes them.
INNER_BASE = np.frombuffer(properties.INNER_BASE + b"\x01", np.uint8)
INNER_NUM = np.frombuffer(properties.INNER_NUM + b"\x01", np.uint8)
#: What Java reads where bytes aren't UTF-8; a topic with it may be spelled otherwise in a record.
_REPLACED = "\ufffd".encode()


class RecordFields(NamedTuple):
    """Fields of the messages of some units."""

    timestamp: NDArray[np.int64]  # int64[units], storeTimestamp in ms
    #: int64[units], INNER_BASE where there is INNER_NUM as well, else the unit's queueOffset
    base_offset: NDArray[np.int64]
    batch_size: NDArray[np.int16]  # int16[units], INNER_NUM where there is INNER_BASE as well, else 1
    #: bool[units], the unit is of the queue that the message was sent to, not of a light one
    own: NDArray[np.bool_]
    properties: NDArray[np.int64]  # int64[units], where the message's properties begin in the data
    properties_length: NDArray[np.int32]  # int32[units], bytes


def record_fields(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    unit_queues: NDArray[np.int32],
    table: QueueTable,
) -> RecordFields:
    """The fields of the messages of some units; those of one queue are consecutive, in log order.

    ``positions``, ``queue_offsets`` and ``unit_queues`` have one item a unit; positions are of whole records
    in the segment ``data``.
    """
    queues, topics = table.queues, table.topics
    fields = _fields(
        data, positions, queue_offsets, unit_queues, queues.topic, queues.queue_id, topics,
        INNER_BASE, INNER_NUM,
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


@njit(inline="always")
def topic_of(data, position, sys_flag):  # type: ignore[no-untyped-def]
    """Where the topic of a whole record begins and ends; its properties begin two bytes behind that."""
    at = position + body_at(sys_flag)
    at += max(np.int64(i32(data, at - 4)), 0)
    length = np.int64(u8(data, at))
    at += 1
    if np.int64(u32(data, position + 4)) != MAGIC_V1:
        length = length << 8 | np.int64(u8(data, at))
        at += 1
    return at, at + length


@njit(cache=CACHED, nogil=True)
def store_timestamps(data, positions):  # type: ignore[no-untyped-def]
    """The storeTimestamps, int64[records] in ms, of whole records; see :func:`record_fields`."""
    timestamp = np.empty(len(positions), np.int64)
    for record in range(len(positions)):
        position = positions[record]
        timestamp[record] = i64(data, position + store_timestamp_at(i32(data, position + SYS_FLAG)))
    return timestamp


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
        topic, topic_end = topic_of(data, position, sys_flag)
        queue = unit_queues[unit]
        own[unit] = (
            i32(data, position + QUEUE_ID) == queue_id[queue]
            and (unit == 0 or positions[unit - 1] != position or unit_queues[unit - 1] != queue)
            and _topic(data, topic, topic_end - topic, topics) == queue_topic[queue]
        )
        at = topic_end + 2
        end = position + np.int64(i32(data, position))
        start[unit] = at
        length[unit] = end - at
        base[unit] = queue_offsets[unit]
        count[unit] = 1
        base_at, base_end = property_value(data, at, end, inner_base)
        num_at, num_end = property_value(data, at, end, inner_num)
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
def property_value(data, start, end, name):  # type: ignore[no-untyped-def]
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
