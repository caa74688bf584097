"""The scan in numba: the same as ``tests/slow_scan.py``, some hundred times as fast.

Source: as the reference. Positions are relative to ``data``; ``base`` is the physical offset of ``data[0]``.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format import commitlog, consumequeue, dledger
from reput.format.commitlog import (
    BODY_CRC,
    BORN_HOST,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_LENGTH,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET,
    PROPERTY_CRC_RESERVED,
    PROPERTY_SEPARATOR,
    QUEUE_ID,
    QUEUE_OFFSET,
    SYS_FLAG,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from reput.format.javastring import WHITE_SPACE, ZEROS
from reput.scan.crc32 import crc32
from reput.scan.load import come, given, i32, i64, trailing_zeros, u8, u32, u64, u64_little
from reput.scan.output import (
    BYTES,
    KEYS,
    LAST_POSITION,
    LAST_TIMESTAMP,
    MESSAGES,
    MOST_PER_RECORD,
    NAME_LENGTH,
    NAME_START,
    REMARKS,
    ROWS,
    UNITS,
    OutputArrays,
    Remark,
    Status,
    Stop,
)
from reput.scan.rules import Rules
from reput.scan.table import (
    QUEUE_JUMP,
    QUEUE_REPEAT,
    TOPIC_NO_MULTI_DISPATCH,
    TOPIC_NO_UNITS,
    TOPIC_SCHEDULE,
    QueueArrays,
    QueueTable,
    TopicArrays,
)

# Enum members and struct sizes as plain integers: numba freezes those into the code.
_END, _FULL, _BLANK, _UNWRITTEN = (
    int(Status.END),
    int(Status.FULL),
    int(Status.BLANK),
    int(Status.UNWRITTEN),
)
_NEW_TOPIC, _NEW_QUEUE = int(Status.NEW_TOPIC), int(Status.NEW_QUEUE)
_BAD_SIZE, _BAD_MAGIC = int(Status.BAD_SIZE), int(Status.BAD_MAGIC)
_BAD_PHYSICAL_OFFSET, _BAD_LENGTHS = int(Status.BAD_PHYSICAL_OFFSET), int(Status.BAD_LENGTHS)
_BAD_CRC, _BAD_PROPERTY_CRC = int(Status.BAD_CRC), int(Status.BAD_PROPERTY_CRC)
_BAD_DELAY, _BAD_INNER_BATCH = int(Status.BAD_DELAY), int(Status.BAD_INNER_BATCH)
_GOOD = -1
_REMARK_QUEUE_OFFSET, _REMARK_LMQ_COUNTS, _REMARK_LMQ_OFFSET = (
    int(Remark.QUEUE_OFFSET_RANGE),
    int(Remark.LMQ_COUNTS),
    int(Remark.LMQ_OFFSET),
)
_MAX_QUEUE_OFFSET = consumequeue.MAX_QUEUE_OFFSET
_CRC_MASK = commitlog.CRC_MASK
_ENTRY_MAGIC, _ENTRY_BLANK = dledger.ENTRY_MAGIC, dledger.BLANK_MAGIC
_ENTRY_POSITION, _ENTRY_BODY_LENGTH = dledger.POSITION, dledger.BODY_LENGTH
_ENTRY_HEADER = dledger.HEADER_LENGTH

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_LOWS = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_SEPARATORS_1 = np.uint64(_LOWS * np.uint64(NAME_VALUE_SEPARATOR))
_SEPARATORS_2 = np.uint64(_LOWS * np.uint64(PROPERTY_SEPARATOR))


# Nothing here allocates, so that numba need not count references; its atomic counting of every array in the
# argument tuples took more than half of the scan's time.
_kernel = njit(cache=CACHED, nogil=True, _nrt=False)


def _word(text: bytes) -> int:
    return int.from_bytes(text, "big")


_NAME_KEYS, _NAME_TAGS = _word(b"KEYS"), _word(b"TAGS")
_NAME_DELA = _word(b"DELA")
_NAME_UNIQ_KEY, _NAME_CRC32 = np.uint64(_word(b"UNIQ_KEY")), np.uint64(_word(b"__CRC32#"))
_NAME_INNER_NU, _NAME_INNER_BA = np.uint64(_word(b"INNER_NU")), np.uint64(_word(b"INNER_BA"))
_NAME_INNER_MU = np.uint64(_word(b"INNER_MU"))
_NAME_LTI_DISP, _NAME_LTI_QUEU = np.uint64(_word(b"LTI_DISP")), np.uint64(_word(b"LTI_QUEU"))
_NAME_ATCH, _NAME_E_OFFSET = _word(b"ATCH"), np.uint64(_word(b"E_OFFSET"))

_P = [np.uint64(31**power % (1 << 64)) for power in range(9)]
_P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = _P[1:]
_BYTE = np.uint64(0xFF)


@njit(inline="always")
def _mix(value):  # type: ignore[no-untyped-def]
    value = np.uint64(value * _MULTIPLIER)
    return np.uint64(value ^ (value >> np.uint64(29)))


@njit(inline="always")
def _frame(data, base, position, end, topic_length_v2, entries):  # type: ignore[no-untyped-def]
    """Check a frame; ``end`` is where its segment ends.

    Returns (status, size, header, body, body length, topic, topic length, properties, properties length).
    The size is the whole frame's, the header the bytes before its record. ``entries`` is None for a plain
    log: what it asks for is then no part of the code.
    """
    left = end - position
    if left < 8:
        return _BAD_SIZE, 0, 0, 0, 0, 0, 0, 0, 0
    header = np.int64(0)
    if given(entries):
        second = np.int64(u32(data, position + 4))
        if second != MAGIC_V1 and second != MAGIC_BLANK and not (second == MAGIC_V2 and topic_length_v2):
            first = np.int64(i32(data, position))
            second = np.int64(i32(data, position + 4))
            if first == _ENTRY_BLANK:
                return _BLANK, 0, 0, 0, 0, 0, 0, 0, 0
            if first == 0 and second == 0:
                return _UNWRITTEN, 0, 0, 0, 0, 0, 0, 0, 0
            if first != _ENTRY_MAGIC:
                return _BAD_MAGIC, 0, 0, 0, 0, 0, 0, 0, 0
            if second < _ENTRY_HEADER + MIN_RECORD_LENGTH or second > left:
                return _BAD_SIZE, 0, 0, 0, 0, 0, 0, 0, 0
            if i64(data, position + _ENTRY_POSITION) != base + position:
                return _BAD_PHYSICAL_OFFSET, 0, 0, 0, 0, 0, 0, 0, 0
            left = second - _ENTRY_HEADER
            if np.int64(i32(data, position + _ENTRY_BODY_LENGTH)) != left:
                return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
            header = np.int64(_ENTRY_HEADER)
            position += _ENTRY_HEADER
    size = np.int64(i32(data, position))
    magic = np.int64(u32(data, position + 4))
    if magic == MAGIC_BLANK:
        return (_BAD_MAGIC if header else _BLANK), 0, 0, 0, 0, 0, 0, 0, 0
    if magic == 0 and size == 0:
        return (_BAD_MAGIC if header else _UNWRITTEN), 0, 0, 0, 0, 0, 0, 0, 0
    if magic != MAGIC_V1 and not (magic == MAGIC_V2 and topic_length_v2):
        return _BAD_MAGIC, 0, 0, 0, 0, 0, 0, 0, 0
    if size < MIN_RECORD_LENGTH or size > left:
        return _BAD_SIZE, 0, 0, 0, 0, 0, 0, 0, 0
    if i64(data, position + PHYSICAL_OFFSET) != base + position:
        return _BAD_PHYSICAL_OFFSET, 0, 0, 0, 0, 0, 0, 0, 0
    sys_flag = i32(data, position + SYS_FLAG)
    limit = position + size
    at = position + BORN_HOST + (20 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 8) + 8
    at += (20 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 8) + 16
    if at + 3 > limit:
        return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
    body = at
    body_length = np.int64(i32(data, at - 4))
    if body_length < 0:
        body_length = np.int64(0)
    at += body_length
    if at + 3 > limit:
        return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
    if magic == MAGIC_V1:
        topic_length = np.int64(u8(data, at))
        topic = at + 1
        if topic_length > 127:
            return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
    else:
        topic_length = np.int64(u8(data, at)) << 8 | np.int64(u8(data, at + 1))
        topic = at + 2
        if topic_length > 32767:
            return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
    at = topic + topic_length
    if at + 2 > limit:
        return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
    properties_length = np.int64(u8(data, at)) << 8 | np.int64(u8(data, at + 1))
    if properties_length > 32767:
        properties_length = np.int64(0)
    if at + 2 + properties_length != limit:
        return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
    if header and size != left:
        return _BAD_LENGTHS, 0, 0, 0, 0, 0, 0, 0, 0
    return _GOOD, header + size, header, body, body_length, topic, topic_length, at + 2, properties_length


@njit(inline="always")
def _body_crc_is_wrong(data, record, body, body_length):  # type: ignore[no-untyped-def]
    if body_length == 0:
        return False
    return np.int64(crc32(data, body, body + body_length)) & _CRC_MASK != np.int64(
        u32(data, record + BODY_CRC)
    )


@njit(inline="always")
def _find(data, start, end, separators, byte):  # type: ignore[no-untyped-def]
    """Position of ``byte`` in [start, end), or end; ``separators`` is the byte eight times."""
    at = start
    while at + 8 <= end:
        word = u64_little(data, at) ^ separators
        zeros = np.uint64((word - _LOWS) & ~word & _HIGHS)
        if zeros != np.uint64(0):
            return at + (trailing_zeros(zeros) >> 3)
        at += 8
    while at < end:
        if u8(data, at) == byte:
            return at
        at += 1
    return end


@_kernel
def _hash_units(data, start, end, value):  # type: ignore[no-untyped-def]
    """String.hashCode of [start, end) decoded as Java decodes UTF-8, malformed bytes included."""
    at = start
    h = np.uint32(value)
    while at < end:
        b1 = np.int64(u8(data, at))
        at += 1
        unit = np.int64(0xFFFD)
        low = np.int64(-1)
        last = False
        if b1 < 0x80:
            unit = b1
        elif 0xC2 <= b1 <= 0xDF:
            if at < end and u8(data, at) & 0xC0 == 0x80:
                unit = (b1 & 0x1F) << 6 | np.int64(u8(data, at)) & 0x3F
                at += 1
        elif 0xE0 <= b1 <= 0xEF:
            b2 = np.int64(u8(data, at)) if at < end else np.int64(-1)
            bad = b2 < 0 or (b1 == 0xE0 and b2 & 0xE0 == 0x80) or b2 & 0xC0 != 0x80
            if at + 1 < end:
                if not bad:
                    b3 = np.int64(u8(data, at + 1))
                    if b3 & 0xC0 != 0x80:
                        at += 1
                    else:
                        unit = (b1 & 0x0F) << 12 | (b2 & 0x3F) << 6 | b3 & 0x3F
                        if 0xD800 <= unit <= 0xDFFF:
                            unit = np.int64(0xFFFD)
                        at += 2
            elif b2 >= 0 and not bad:
                last = True
        elif 0xF0 <= b1 <= 0xF7:
            b2 = np.int64(u8(data, at)) if at < end else np.int64(-1)
            bad = (
                b1 > 0xF4
                or (b1 == 0xF0 and (b2 < 0x90 or b2 > 0xBF))
                or (b1 == 0xF4 and b2 & 0xF0 != 0x80)
                or b2 & 0xC0 != 0x80
            )
            if at + 2 < end:
                if not bad:
                    b3 = np.int64(u8(data, at + 1))
                    b4 = np.int64(u8(data, at + 2))
                    if b3 & 0xC0 != 0x80:
                        at += 1
                    elif b4 & 0xC0 != 0x80:
                        at += 2
                    else:
                        code = (b1 & 0x07) << 18 | (b2 & 0x3F) << 12 | (b3 & 0x3F) << 6 | b4 & 0x3F
                        unit = 0xD7C0 + (code >> 10)
                        low = 0xDC00 + (code & 0x3FF)
                        at += 3
            elif b2 < 0:
                last = True
            elif not bad:
                at += 1
                if at >= end or u8(data, at) & 0xC0 == 0x80:
                    last = True
        h = np.uint32(h * np.uint32(31) + np.uint32(unit))
        if low >= 0:
            h = np.uint32(h * np.uint32(31) + np.uint32(low))
        if last:
            break
    return h


@njit(inline="always")
def _hash(data, start, end, value):  # type: ignore[no-untyped-def]
    """String.hashCode of [start, end), continuing from ``value`` (uint32)."""
    at = start
    h = np.uint64(value)
    while at + 8 <= end:
        w = u64_little(data, at)
        if w & _HIGHS != np.uint64(0):
            return _hash_units(data, at, end, np.uint32(h))
        h = np.uint64(
            h * _P8
            + (w & _BYTE) * _P7
            + (w >> np.uint64(8) & _BYTE) * _P6
            + (w >> np.uint64(16) & _BYTE) * _P5
            + (w >> np.uint64(24) & _BYTE) * _P4
            + (w >> np.uint64(32) & _BYTE) * _P3
            + (w >> np.uint64(40) & _BYTE) * _P2
            + (w >> np.uint64(48) & _BYTE) * _P1
            + (w >> np.uint64(56))
        )
        at += 8
    while at < end:
        byte = u8(data, at)
        if byte >= 0x80:
            return _hash_units(data, at, end, np.uint32(h))
        h = np.uint64(h * _P1 + np.uint64(byte))
        at += 1
    return np.uint32(h)


@njit(inline="always")
def _signed(value):  # type: ignore[no-untyped-def]
    return np.int64(np.int32(value))


@njit(inline="always")
def _key_hash(value):  # type: ignore[no-untyped-def]
    """IndexFile.indexKeyHashMethod."""
    value = _signed(value)
    if value < 0:
        value = -value
    return np.int32(0) if value == 0x80000000 else np.int32(value)


@njit(inline="always")
def _code_unit(data, at, end):  # type: ignore[no-untyped-def]
    """(the code unit, its bytes) of a character of two or three bytes in UTF-8; (-1, 1) if there is none.

    Half of a surrogate pair is taken for a character, since it is neither a digit nor white space.
    """
    first = np.int64(u8(data, at))
    length = 2 if first < 0xE0 else 3
    if first < 0xC2 or first > 0xEF or at + length > end:
        return np.int64(-1), 1
    unit = first & (0x1F if length == 2 else 0x0F)
    for place in range(at + 1, at + length):
        byte = np.int64(u8(data, place))
        if byte & 0xC0 != 0x80:
            return np.int64(-1), 1
        unit = unit << 6 | byte & 0x3F
    return (unit, length) if length == 2 or unit >= 0x800 else (np.int64(-1), 1)


@njit(inline="always")
def _digit(unit):  # type: ignore[no-untyped-def]
    for zero in ZEROS:
        if zero <= unit < zero + 10:
            return unit - zero
    return np.int64(-1)


@_kernel
def _integer(data, start, end, bits):  # type: ignore[no-untyped-def]
    """(whether it is a number that fits, the number): see reput.format.javastring.parse_integer."""
    at = start
    negative = False
    if at < end and (u8(data, at) == 0x2B or u8(data, at) == 0x2D):
        negative = u8(data, at) == 0x2D
        at += 1
    if at >= end:
        return False, np.int64(0)
    # Counted downwards, as Java does, for the smallest number has no positive twin.
    least = -(np.int64(1) << np.int64(bits - 1)) if bits < 64 else np.int64(-0x8000000000000000)
    least_before_digit = -((-(least + 1)) // 10)
    value = np.int64(0)
    while at < end:
        digit = np.int64(u8(data, at)) - 0x30
        if digit >= 0x50:
            unit, length = _code_unit(data, at, end)
            digit = _digit(unit)
            at += length - 1
        if digit < 0 or digit > 9 or value < least_before_digit:
            return False, np.int64(0)
        value *= 10
        if value < least + digit:
            return False, np.int64(0)
        value -= digit
        at += 1
    if negative:
        return True, value
    if value == least:
        return False, np.int64(0)
    return True, -value


@njit(inline="always")
def _topic(data, start, length, topics):  # type: ignore[no-untyped-def]
    """The number of a topic, -1 if it isn't interned."""
    value = np.uint64(length)
    at = start
    end = start + length
    while at + 8 <= end:
        value = _mix(value ^ u64(data, at))
        at += 8
    while at < end:
        value = _mix(value ^ np.uint64(u8(data, at)))
        at += 1
    mask = np.int64(len(topics.slots) - 1)
    slot = np.int64(value & np.uint64(mask))
    while True:
        spelling = np.int64(topics.slots[slot]) - 1
        if spelling < 0:
            return np.int64(-1)
        if topics.length[spelling] == length:
            known = topics.start[spelling]
            same = True
            for i in range(length):
                if topics.text[known + i] != u8(data, start + i):
                    same = False
                    break
            if same:
                return np.int64(topics.topic[spelling])
        slot = (slot + 1) & mask


@njit(inline="always")
def _queue(topic, queue_id, queues, queue_count):  # type: ignore[no-untyped-def]
    """The number of a queue, interned if there is room, else -1."""
    value = _mix(np.uint64(topic) << np.uint64(32) ^ np.uint64(np.uint32(queue_id)))
    mask = np.int64(len(queues.slots) - 1)
    slot = np.int64(value & np.uint64(mask))
    while True:
        number = np.int64(queues.slots[slot]) - 1
        if number < 0:
            number = queue_count[0]
            if number >= len(queues.topic):
                return np.int64(-1)
            queues.slots[slot] = np.int32(number + 1)
            queues.topic[number] = np.int32(topic)
            queues.queue_id[number] = np.int32(queue_id)
            queues.next[number] = -1
            queue_count[0] = number + 1
            return np.int64(number)
        if queues.topic[number] == topic and queues.queue_id[number] == queue_id:
            return number
        slot = (slot + 1) & mask


@njit(inline="always")
def _unit(out, queues, queue, queue_offset, position, size, tags_code, timestamp):  # type: ignore[no-untyped-def]
    """Add a unit, and what it tells of its queue."""
    at = out.counts[UNITS]
    out.unit_queue[at] = np.int32(queue)
    out.unit_offset[at] = queue_offset
    out.unit_position[at] = position
    out.unit_size[at] = np.int32(size)
    out.unit_tags[at] = tags_code
    out.counts[UNITS] = at + 1
    expected = queues.next[queue]
    if expected < 0:
        queues.first[queue] = queue_offset
        queues.first_position[queue] = position
        queues.first_timestamp[queue] = timestamp
        queues.irregular[queue] = 0
    elif queue_offset != expected or position + size <= queues.end[queue]:
        if queues.irregular[queue] == 0:
            queues.odd_position[queue] = position
            queues.odd_offset[queue] = queue_offset
            queues.odd_expected[queue] = expected
        queues.irregular[queue] |= QUEUE_JUMP if queue_offset > expected else QUEUE_REPEAT
    queues.next[queue] = queue_offset + 1
    queues.units[queue] += 1
    queues.bytes[queue] += size
    queues.end[queue] = position + size
    queues.last_timestamp[queue] = timestamp
    queues.last_position[queue] = position


@njit(inline="always")
def _remark(out, kind, position, value):  # type: ignore[no-untyped-def]
    at = out.counts[REMARKS]
    out.remark_kind[at] = kind
    out.remark_position[at] = position
    out.remark_value[at] = value
    out.counts[REMARKS] = at + 1


@_kernel
def _count_parts(data, start, end):  # type: ignore[no-untyped-def]
    """How many parts ``split(",")`` gives: trailing empty ones don't count, an empty text has one."""
    if start == end:
        return 1
    while end > start and u8(data, end - 1) == 0x2C:
        end -= 1
    if start == end:
        return 0
    count = 1
    for at in range(start, end):
        if u8(data, at) == 0x2C:
            count += 1
    return count


@njit(inline="always")
def _is_lmq(data, start, length):  # type: ignore[no-untyped-def]
    return length >= 5 and u32(data, start) == 0x254C4D51 and u8(data, start + 4) == 0x25


@_kernel
def _multi_dispatch(  # type: ignore[no-untyped-def]
    data, base, rules, topics, queues, queue_count, out, names, names_end, offsets, offsets_end, record
):
    """Units of the other queues that a message names. Returns a status: good, or a table to grow.

    Called twice for a message: first to find every queue (nothing is written), then to write.
    """
    position, queue_id, size, tags_code, timestamp, write = record
    if _count_parts(data, names, names_end) != _count_parts(data, offsets, offsets_end):
        if write:
            _remark(out, _REMARK_LMQ_COUNTS, base + position, 0)
        return _GOOD
    count = _count_parts(data, names, names_end)
    for _ in range(count):
        comma = names
        slash = False
        while comma < names_end and u8(data, comma) != 0x2C:
            slash = slash or u8(data, comma) == 0x2F
            comma += 1
        offset_comma = offsets
        while offset_comma < offsets_end and u8(data, offset_comma) != 0x2C:
            offset_comma += 1
        name, length = names, comma - names
        number, queue_offset = _integer(data, offsets, offset_comma, 64)
        names, offsets = comma + 1, offset_comma + 1
        if slash and rules.lmq_rejects_slash:
            continue
        if not number or queue_offset < 0 or queue_offset > _MAX_QUEUE_OFFSET:
            if write:
                _remark(out, _REMARK_LMQ_OFFSET, base + position, queue_offset)
            return _GOOD
        topic = _topic(data, name, length, topics)
        if topic < 0:
            out.counts[NAME_START] = name
            out.counts[NAME_LENGTH] = length
            return _NEW_TOPIC
        if topics.flags[topic] & TOPIC_NO_UNITS:
            if write:
                topics.without_unit[topic] += 1
                if topics.first_position[topic] < 0:
                    topics.first_position[topic] = base + position
            continue
        own = 0 if rules.lmq_queue_zero and _is_lmq(data, name, length) else queue_id
        queue = _queue(topic, own, queues, queue_count)
        if queue < 0:
            return _NEW_QUEUE
        if write:
            _unit(out, queues, queue, queue_offset, base + position, size, tags_code, timestamp)
    return _GOOD


@njit(inline="always")
def _is_white(unit):  # type: ignore[no-untyped-def]
    for first, behind in WHITE_SPACE:
        if first <= unit < behind:
            return True
    return False


@_kernel
def _is_blank_text(data, start, end):  # type: ignore[no-untyped-def]
    """``StringUtils.isBlank`` of the decoded bytes."""
    at = start
    while at < end:
        unit, length = np.int64(u8(data, at)), 1
        if unit >= 0x80:
            unit, length = _code_unit(data, at, end)
        if not _is_white(unit):
            return False
        at += length
    return True


@_kernel
def _scan(data, base, start, end, accept, rules, topics, queues, queue_count, out):  # type: ignore[no-untyped-def]
    """See :func:`scan`. ``accept``: position of a frame whose record's bad CRC is let pass, or -1."""
    position = ahead = np.int64(start)
    segment_end = np.int64(len(data))
    unit_limit = len(out.unit_queue) - MOST_PER_RECORD
    row_limit = len(out.row_position)
    key_limit = len(out.key_hash) - MOST_PER_RECORD
    remark_limit = len(out.remark_kind) - 8
    counts = out.counts
    while position < end:
        if (
            counts[UNITS] >= unit_limit
            or counts[ROWS] >= row_limit
            or counts[KEYS] >= key_limit
            or counts[REMARKS] >= remark_limit
        ):
            return _FULL, position
        status, frame_size, header, body, body_length, topic_at, topic_length, at, properties_length = _frame(
            data, base, position, segment_end, rules.topic_length_v2, rules.entries
        )
        if status != _GOOD:
            return status, position
        ahead = come(data, position + frame_size, ahead)
        record = position + header
        size = frame_size - header
        if rules.check_crc and not rules.property_crc_only and position != accept:
            if _body_crc_is_wrong(data, record, body, body_length):
                return _BAD_CRC, position
        topic = _topic(data, topic_at, topic_length, topics)
        if topic < 0:
            counts[NAME_START] = topic_at
            counts[NAME_LENGTH] = topic_length
            return _NEW_TOPIC, position

        # Properties: where the values lie that dispatch looks at; length 0 is absent.
        keys = keys_end = tags = tags_end = unique = unique_end = delay = delay_end = np.int64(0)
        inner_num = inner_num_end = inner_base = inner_base_end = np.int64(0)
        lmq = lmq_end = lmq_offsets = lmq_offsets_end = np.int64(0)
        crc = crc_end = np.int64(0)
        limit = at + properties_length
        while at < limit:
            name_end = _find(data, at, limit, _SEPARATORS_1, NAME_VALUE_SEPARATOR)
            # The entry ends at the first 0x02, which may stand before the first 0x01.
            name_length = name_end - at
            if name_length > 24:
                entry_end = _find(data, at, limit, _SEPARATORS_2, PROPERTY_SEPARATOR)
                at = entry_end + 1
                continue
            early = _find(data, at, name_end, _SEPARATORS_2, PROPERTY_SEPARATOR)
            if early < name_end:
                at = early + 1
                continue
            value = name_end + 1
            if value >= limit:
                break
            entry_end = _find(data, value, limit, _SEPARATORS_2, PROPERTY_SEPARATOR)
            if entry_end > value:
                if name_length == 4:
                    name = np.int64(u32(data, at))
                    if name == _NAME_KEYS:
                        keys, keys_end = value, entry_end
                    elif name == _NAME_TAGS:
                        tags, tags_end = value, entry_end
                elif name_length == 8:
                    word = u64(data, at)
                    if word == _NAME_UNIQ_KEY:
                        unique, unique_end = value, entry_end
                    elif word == _NAME_CRC32:
                        crc, crc_end = value, entry_end
                elif name_length == 5:
                    if np.int64(u32(data, at)) == _NAME_DELA and u8(data, at + 4) == 0x59:
                        delay, delay_end = value, entry_end
                elif name_length == 9:
                    if u64(data, at) == _NAME_INNER_NU and u8(data, at + 8) == 0x4D:
                        inner_num, inner_num_end = value, entry_end
                elif name_length == 10:
                    if (
                        u64(data, at) == _NAME_INNER_BA
                        and u8(data, at + 8) == 0x53
                        and u8(data, at + 9) == 0x45
                    ):
                        inner_base, inner_base_end = value, entry_end
                elif name_length == 20:
                    if (
                        u64(data, at) == _NAME_INNER_MU
                        and u64(data, at + 8) == _NAME_LTI_DISP
                        and np.int64(u32(data, at + 16)) == _NAME_ATCH
                    ):
                        lmq, lmq_end = value, entry_end
                elif name_length == 24:
                    if (
                        u64(data, at) == _NAME_INNER_MU
                        and u64(data, at + 8) == _NAME_LTI_QUEU
                        and u64(data, at + 16) == _NAME_E_OFFSET
                    ):
                        lmq_offsets, lmq_offsets_end = value, entry_end
            at = entry_end + 1

        if rules.check_crc and crc_end - crc == 10 and crc_end + 1 == limit and position != accept:
            expected = np.int64(0)
            for digit in range(9, -1, -1):
                expected = expected * 10 + np.int64(u8(data, crc + digit)) - 0x30
            found = np.int64(crc32(data, record, limit - PROPERTY_CRC_RESERVED)) & _CRC_MASK
            if found != expected:
                return _BAD_PROPERTY_CRC, position

        sys_flag = i32(data, record + SYS_FLAG)
        store_at = record + BORN_HOST + (20 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 8)
        timestamp = i64(data, store_at)
        flags = topics.flags[topic]
        tags_code = np.int64(0)
        if tags_end > tags:
            tags_code = _signed(_hash(data, tags, tags_end, np.uint32(0)))
        if flags & TOPIC_SCHEDULE and delay_end > delay:
            number, level = _integer(data, delay, delay_end, 32)
            if not number:
                return _BAD_DELAY, position
            if level > len(rules.delay_levels):
                level = np.int64(len(rules.delay_levels))
            if level > 0:
                tags_code = timestamp + rules.delay_levels[level - 1]
        if rules.inner_batch and inner_num_end > inner_num and inner_base_end > inner_base:
            number, _value = _integer(data, inner_base, inner_base_end, 64)
            small, _value = _integer(data, inner_num, inner_num_end, 16)
            if not (number and small):
                return _BAD_INNER_BATCH, position

        transaction = sys_flag & TRANSACTION_MASK
        queue_id = np.int64(i32(data, record + QUEUE_ID))
        if transaction == TRANSACTION_NONE or transaction == TRANSACTION_COMMIT:
            multi = (
                rules.multi_dispatch
                and lmq_end > lmq
                and lmq_offsets_end > lmq_offsets
                and not flags & TOPIC_NO_MULTI_DISPATCH
                and not _is_blank_text(data, lmq, lmq_end)
                and not _is_blank_text(data, lmq_offsets, lmq_offsets_end)
            )
            queue = np.int64(0)
            if not flags & TOPIC_NO_UNITS:
                queue = _queue(topic, queue_id, queues, queue_count)
                if queue < 0:
                    return _NEW_QUEUE, position
            if multi:
                status = _multi_dispatch(
                    data, base, rules, topics, queues, queue_count, out, lmq, lmq_end, lmq_offsets,
                    lmq_offsets_end, (record, queue_id, size, tags_code, timestamp, False),
                )  # fmt: skip
                if status != _GOOD:
                    return status, position
            if flags & TOPIC_NO_UNITS:
                topics.without_unit[topic] += 1
                if topics.first_position[topic] < 0:
                    topics.first_position[topic] = base + record
            else:
                queue_offset = i64(data, record + QUEUE_OFFSET)
                if queue_offset < 0 or queue_offset > _MAX_QUEUE_OFFSET:
                    _remark(out, _REMARK_QUEUE_OFFSET, base + record, queue_offset)
                else:
                    _unit(out, queues, queue, queue_offset, base + record, size, tags_code, timestamp)
            if multi:
                _multi_dispatch(
                    data, base, rules, topics, queues, queue_count, out, lmq, lmq_end, lmq_offsets,
                    lmq_offsets_end, (record, queue_id, size, tags_code, timestamp, True),
                )  # fmt: skip

        if rules.index_keys and transaction != TRANSACTION_ROLLBACK:
            first = counts[KEYS]
            key = first
            prefix = np.uint32(topics.key_hash[topic])
            if unique_end > unique:
                out.key_hash[key] = _key_hash(_hash(data, unique, unique_end, prefix))
                key += 1
            word = keys
            while word < keys_end:
                space = word
                while space < keys_end and u8(data, space) != 0x20:
                    space += 1
                if space > word:
                    out.key_hash[key] = _key_hash(_hash(data, word, space, prefix))
                    key += 1
                word = space + 1
            if rules.index_tags and tags_end > tags:
                out.key_hash[key] = _key_hash(_hash(data, tags, tags_end, np.uint32(topics.tag_hash[topic])))
                key += 1
            if key > first:
                row = counts[ROWS]
                out.row_position[row] = base + record
                out.row_timestamp[row] = timestamp
                out.row_keys[row] = np.int32(key - first)
                counts[ROWS] = row + 1
                counts[KEYS] = key

        counts[MESSAGES] += 1
        counts[BYTES] += size
        counts[LAST_TIMESTAMP] = timestamp
        counts[LAST_POSITION] = base + record
        position += frame_size
    return _END, position


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
    """Scan the records that begin in ``data[start:end)``; the arguments are those of its slow twin."""
    while True:
        topics: TopicArrays = table.topics
        queues: QueueArrays = table.queues
        status, position = _scan(
            data, base, start, end, accept, rules, topics, queues, table.queue_count, out
        )
        if status == _NEW_TOPIC:
            name = int(out.counts[NAME_START])
            table.intern_topic(data[name : name + int(out.counts[NAME_LENGTH])].tobytes())
        elif status == _NEW_QUEUE:
            table.grow_queues()
        else:
            return Stop(Status(status), int(position))
        start = int(position)


@_kernel
def _chain(data, base, start, end, topic_length_v2, entries):  # type: ignore[no-untyped-def]
    position = ahead = np.int64(start)
    segment_end = np.int64(len(data))
    last = np.int64(-1)
    count = np.int64(0)
    while position < end:
        status, size, _h, _b, _bl, _t, _tl, _p, _pl = _frame(
            data, base, position, segment_end, topic_length_v2, entries
        )
        if status != _GOOD:
            return status, position, last, count
        ahead = come(data, position + size, ahead)
        last = position
        count += 1
        position += size
    return _END, position, last, count


def chain(
    data: NDArray[np.uint8], base: int, start: int, end: int, topic_length_v2: bool, entries: bool = False
) -> tuple[Stop, int, int]:
    """Go over the frames of the records that begin in ``data[start:end)``, reading only their headers.

    Returns why and where it stopped; the position of the last whole frame, -1 without one; how many there
    were.
    """
    status, position, last, count = _chain(data, base, start, end, topic_length_v2, entries or None)
    return Stop(Status(status), int(position)), int(last), int(count)


def walk(
    data: NDArray[np.uint8], base: int, start: int, end: int, topic_length_v2: bool, entries: bool = False
) -> Stop:
    """What :func:`chain` does; why and where it stopped."""
    return chain(data, base, start, end, topic_length_v2, entries)[0]


@_kernel
def _find_record(data, base, start, end, topic_length_v2, entries):  # type: ignore[no-untyped-def]
    segment_end = np.int64(len(data))
    last = min(np.int64(end), segment_end - MIN_RECORD_LENGTH + 1)
    position = np.int64(start)
    while position < last:
        # Eight zeros at a record's magic and after it: neither its magic nor an entry's, whose last byte is
        # 1, begins in any of them.
        if u64(data, position + 4) == np.uint64(0):
            position += 8
            continue
        magic = np.int64(u32(data, position + 4))
        if (
            magic == MAGIC_V1
            or magic == MAGIC_V2
            or (given(entries) and np.int64(i32(data, position)) == _ENTRY_MAGIC)
        ):
            status, _s, header, body, body_length, _t, _tl, _p, _pl = _frame(
                data, base, position, segment_end, topic_length_v2, entries
            )
            if (
                status == _GOOD
                and not _body_crc_is_wrong(data, position + header, body, body_length)
                and not (
                    given(entries)
                    and header == 0
                    and _is_in_entry(data, base, position, segment_end, topic_length_v2, entries)
                )
            ):
                return position
        position += 1
    return np.int64(-1)


@_kernel
def _is_in_entry(  # type: ignore[no-untyped-def]
    data, base, position, segment_end, topic_length_v2, entries
):
    """Whether the record at ``position`` stands in an entry whose header is whole."""
    before = position - _ENTRY_HEADER
    if before < 0:
        return False
    status, _s, header, _b, _bl, _t, _tl, _p, _pl = _frame(
        data, base, before, segment_end, topic_length_v2, entries
    )
    return status == _GOOD and header > 0


def find_record(
    data: NDArray[np.uint8], base: int, start: int, end: int, topic_length_v2: bool, entries: bool = False
) -> int:
    """The first position in [start, end) where a whole frame of its own place begins, or -1.

    It is sound, its record's physicalOffset is ``base`` + the record's position, and the body has the stored
    CRC. A record within an entry is no frame of its own, unless its entry's header is damaged.
    """
    return int(_find_record(data, base, start, end, topic_length_v2, entries or None))


@_kernel
def _first_written(data, start, end):  # type: ignore[no-untyped-def]
    position = np.int64(start)
    while position + 8 <= end and u64(data, position) == np.uint64(0):
        position += 8
    while position < end and u8(data, position) == 0:
        position += 1
    return position


def first_written(data: NDArray[np.uint8], start: int, end: int) -> int:
    """Position of the first byte in [start, end) that isn't zero, or ``end``."""
    return int(_first_written(data, start, end))
