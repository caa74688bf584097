"""The scan, slow and obvious: one record at a time, as the broker's dispatch reads it.

Source: ``ConsumeQueue.putMessagePositionInfoWrapper`` and its multi-dispatch, ``IndexService.buildIndex``
(rocketmq-all-4.9.7, 5.3.3). What a record is, :mod:`reput.log.walk` says.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reput.format import commitlog, consumequeue, dledger, indexfile, javastring, properties
from reput.format.javastring import WHITE_SPACE, utf16_units
from reput.log.walk import Frame, body_crc_is_wrong, frame, property_crc_is_wrong
from reput.scan import output
from reput.scan.output import OutputArrays, Remark, Status, Stop
from reput.scan.rules import Rules
from reput.scan.table import (
    QUEUE_JUMP,
    QUEUE_REPEAT,
    TOPIC_NO_MULTI_DISPATCH,
    TOPIC_NO_UNITS,
    TOPIC_SCHEDULE,
    QueueTable,
)


@dataclass(frozen=True, slots=True)
class _Message:
    """What dispatch needs to know of a message."""

    position: int  # physical offset
    size: int
    queue_id: int
    queue_offset: int
    timestamp: int
    tags_code: int
    properties: dict[bytes, bytes]


def has_room(out: OutputArrays) -> bool:
    """Whether the largest possible record still fits."""
    counts = out.counts
    return bool(
        counts[output.UNITS] + output.MOST_PER_RECORD < len(out.unit_queue)
        and counts[output.ROWS] < len(out.row_position)
        and counts[output.KEYS] + output.MOST_PER_RECORD < len(out.key_hash)
        and counts[output.REMARKS] + 8 < len(out.remark_kind)
    )


def is_blank(data: bytes) -> bool:
    """``StringUtils.isBlank`` of the decoded bytes."""
    return all(any(start <= unit < end for start, end in WHITE_SPACE) for unit in utf16_units(data))


def scan(
    data: NDArray[np.uint8],
    base: int,
    start: int,
    end: int,
    rules: Rules,
    table: QueueTable,
    out: OutputArrays,
    *,
    accept: int = -1,
) -> Stop:
    """Scan the records that begin in ``data[start:end)``.

    Args:
        data: uint8[bytes], a segment or its first part; records are not read beyond its end.
        base: physical offset of ``data[0]``.
        start, end: half-open range of record starts, relative to ``data``.
        rules: switches.
        table: topics and queues; what is seen of each queue is added up in it.
        out: takes units, index rows, keys, remarks. It must have room for one record.
        accept: position of a record whose wrong CRC is let pass, -1 for none.

    Returns:
        Why the scan stopped and at which position: for a bad status the bad record's first byte.
    """
    view = np.ascontiguousarray(data).data
    position = start
    while position < end:
        if not has_room(out):
            return Stop(Status.FULL, position)
        record = frame(view, base, position, rules.topic_length_v2, bool(rules.entries))
        if isinstance(record, Status):
            return Stop(record, position)
        problem = _take(view, base, record, rules, table, out, accept)
        if problem is not None:
            return Stop(problem, position)
        position += record.size
    return Stop(Status.END, position)


def walk(
    data: NDArray[np.uint8], base: int, start: int, end: int, topic_length_v2: bool, entries: bool = False
) -> Stop:
    """Go over the frames of the records that begin in ``data[start:end)``."""
    view = np.ascontiguousarray(data).data
    position = start
    while position < end:
        record = frame(view, base, position, topic_length_v2, entries)
        if isinstance(record, Status):
            return Stop(record, position)
        position += record.size
    return Stop(Status.END, position)


def find_record(
    data: NDArray[np.uint8], base: int, start: int, end: int, topic_length_v2: bool, entries: bool = False
) -> int:
    """The first position in [start, end) where a whole frame of its own place begins, or -1.

    A record within an entry is no frame of its own, unless its entry's header is damaged.
    """
    view = np.ascontiguousarray(data).data
    for position in range(start, end):
        record = frame(view, base, position, topic_length_v2, entries)
        if not isinstance(record, Frame) or body_crc_is_wrong(view, record):
            continue
        before = position - dledger.HEADER_LENGTH
        if entries and not record.header and before >= 0:
            around = frame(view, base, before, topic_length_v2, entries)
            if isinstance(around, Frame) and around.header:
                continue
        return position
    return -1


def _take(
    view: memoryview,
    base: int,
    record: Frame,
    rules: Rules,
    table: QueueTable,
    out: OutputArrays,
    accept: int,
) -> Status | None:
    """Dispatch one record: all of it, or nothing and the reason."""
    position = record.record
    lenient = record.position == accept
    if rules.check_crc and not rules.property_crc_only and not lenient and body_crc_is_wrong(view, record):
        return Status.BAD_CRC
    topic_name = bytes(view[slice(*record.topic)])
    raw = bytes(view[slice(*record.properties)])
    values = properties.parse(raw)
    if rules.check_crc and not lenient and property_crc_is_wrong(view, record, raw, values):
        return Status.BAD_PROPERTY_CRC
    queue_id, _flag, queue_offset, _physical, sys_flag = struct.unpack_from(
        ">iiqqi", view, position + commitlog.QUEUE_ID
    )
    at = position + commitlog.BORN_HOST + commitlog.host_length(sys_flag, commitlog.SYS_FLAG_BORN_HOST_V6)
    (timestamp,) = struct.unpack_from(">q", view, at)
    topic = table.intern_topic(topic_name)
    flags = int(table.topics.flags[topic])

    tags_code = javastring.hash_code(values.get(properties.TAGS, b""))
    if flags & TOPIC_SCHEDULE and properties.DELAY in values:
        level = javastring.parse_integer(values[properties.DELAY], 32)
        if level is None:
            return Status.BAD_DELAY
        if level > 0:
            tags_code = _long(timestamp + int(rules.delay_levels[min(level, len(rules.delay_levels)) - 1]))
    if rules.inner_batch and properties.INNER_NUM in values and properties.INNER_BASE in values:
        base_offset = javastring.parse_integer(values[properties.INNER_BASE], 64)
        number = javastring.parse_integer(values[properties.INNER_NUM], 16)
        if base_offset is None or number is None:
            return Status.BAD_INNER_BATCH

    message = _Message(
        base + position, record.size - record.header, queue_id, queue_offset, timestamp, tags_code, values
    )
    transaction = sys_flag & commitlog.TRANSACTION_MASK
    if transaction in (commitlog.TRANSACTION_NONE, commitlog.TRANSACTION_COMMIT):
        _put_unit(message, topic, queue_id, queue_offset, table, out, Remark.QUEUE_OFFSET_RANGE)
        if rules.multi_dispatch and not flags & TOPIC_NO_MULTI_DISPATCH:
            _multi_dispatch(message, rules, table, out)
    if rules.index_keys and transaction != commitlog.TRANSACTION_ROLLBACK:
        _put_keys(message, topic_name, rules, out)
    counts = out.counts
    counts[output.MESSAGES] += 1
    counts[output.BYTES] += record.size - record.header
    counts[output.LAST_TIMESTAMP] = timestamp
    counts[output.LAST_POSITION] = message.position
    return None


def _put_unit(
    message: _Message,
    topic: int,
    queue_id: int,
    queue_offset: int,
    table: QueueTable,
    out: OutputArrays,
    remark: Remark,
) -> bool:
    """A unit for ``message`` in a queue. False when the queueOffset has no place."""
    if table.topics.flags[topic] & TOPIC_NO_UNITS:
        table.topics.without_unit[topic] += 1
        if table.topics.first_position[topic] < 0:
            table.topics.first_position[topic] = message.position
        return True
    if not 0 <= queue_offset <= consumequeue.MAX_QUEUE_OFFSET:
        _remark(out, remark, message.position, queue_offset)
        if remark is Remark.QUEUE_OFFSET_RANGE:
            table.intern_queue(topic, queue_id)
        return False
    queue = table.intern_queue(topic, queue_id)
    queues = table.queues
    at = out.counts[output.UNITS]
    out.unit_queue[at] = queue
    out.unit_offset[at] = queue_offset
    out.unit_position[at] = message.position
    out.unit_size[at] = message.size
    out.unit_tags[at] = message.tags_code
    out.counts[output.UNITS] += 1
    expected = int(queues.next[queue])
    if expected < 0:
        queues.first[queue] = queue_offset
        queues.first_position[queue] = message.position
        queues.first_timestamp[queue] = message.timestamp
        queues.irregular[queue] = 0
    elif queue_offset != expected or message.position + message.size <= queues.end[queue]:
        if not queues.irregular[queue]:
            queues.odd_position[queue] = message.position
            queues.odd_offset[queue] = queue_offset
            queues.odd_expected[queue] = expected
        queues.irregular[queue] |= QUEUE_JUMP if queue_offset > expected else QUEUE_REPEAT
    queues.next[queue] = queue_offset + 1
    queues.units[queue] += 1
    queues.bytes[queue] += message.size
    queues.end[queue] = message.position + message.size
    queues.last_timestamp[queue] = message.timestamp
    queues.last_position[queue] = message.position
    return True


def _multi_dispatch(message: _Message, rules: Rules, table: QueueTable, out: OutputArrays) -> None:
    names_text = message.properties.get(properties.INNER_MULTI_DISPATCH, b"")
    offsets_text = message.properties.get(properties.INNER_MULTI_QUEUE_OFFSET, b"")
    if is_blank(names_text) or is_blank(offsets_text):
        return
    queue_names, offsets = _split(names_text), _split(offsets_text)
    if len(queue_names) != len(offsets):
        _remark(out, Remark.LMQ_COUNTS, message.position, 0)
        return
    for name, text in zip(queue_names, offsets, strict=True):
        if rules.lmq_rejects_slash and b"/" in name:
            continue
        queue_offset = javastring.parse_integer(text, 64)
        if queue_offset is None or not 0 <= queue_offset <= consumequeue.MAX_QUEUE_OFFSET:
            _remark(out, Remark.LMQ_OFFSET, message.position, queue_offset or 0)
            return
        is_lmq = name.startswith(commitlog.LMQ_PREFIX)
        queue_id = 0 if rules.lmq_queue_zero and is_lmq else message.queue_id
        _put_unit(message, table.intern_topic(name), queue_id, queue_offset, table, out, Remark.LMQ_OFFSET)


def _put_keys(message: _Message, topic_name: bytes, rules: Rules, out: OutputArrays) -> None:
    values = message.properties
    keys = []
    if properties.UNIQ_KEY in values:
        keys.append(topic_name + b"#" + values[properties.UNIQ_KEY])
    keys += [topic_name + b"#" + word for word in values.get(properties.KEYS, b"").split(b" ") if word]
    if rules.index_tags and properties.TAGS in values:
        keys.append(topic_name + b"#T#" + values[properties.TAGS])
    if not keys:
        return
    row = out.counts[output.ROWS]
    out.row_position[row] = message.position
    out.row_timestamp[row] = message.timestamp
    out.row_keys[row] = len(keys)
    out.counts[output.ROWS] += 1
    for key in keys:
        out.key_hash[out.counts[output.KEYS]] = indexfile.key_hash(javastring.hash_code(key))
        out.counts[output.KEYS] += 1


def _remark(out: OutputArrays, kind: Remark, position: int, value: int) -> None:
    at = out.counts[output.REMARKS]
    out.remark_kind[at] = kind
    out.remark_position[at] = position
    out.remark_value[at] = value
    out.counts[output.REMARKS] += 1


def _long(value: int) -> int:
    """What a sum comes to in a Java long, which overflows."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _split(text: bytes) -> list[bytes]:
    """Java's ``split(",")``: trailing empty parts are dropped."""
    parts = text.split(b",")
    while parts and not parts[-1]:
        parts.pop()
    return parts
