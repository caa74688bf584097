"""What a broker makes of the bytes at one place of the log, where the scan would not take them for a record.

The scan is stricter than a broker: it compares a record's stored place with its own. Where it stops, this
module says what the broker does. Source: ``CommitLog.checkMessageAndReturnSize`` (rocketmq-all-4.9.7, 5.3.2,
5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from reput.config.dialect import Dialect
from reput.format import commitlog


class Kind(Enum):
    """What stands there."""

    MESSAGE = "a message"
    BLANK = "the segment's closing record"
    BAD = "no record"


@dataclass(frozen=True, slots=True)
class Judged:
    """The broker's view of one place."""

    kind: Kind  # what it takes it for
    #: bytes of the record, as it says; 0 unless it is a message, or one whose lengths don't add up
    size: int = 0
    physical_offset: int = 0  # physical_offset, store_timestamp: as stored; 0 unless it is a message
    store_timestamp: int = 0
    consumed: int = 0  # bytes that it reads, for a record whose lengths don't add up to its size; else 0


_BAD = Judged(Kind.BAD)


def judge(data: NDArray[np.uint8], position: int, dialect: Dialect, *, check_crc: bool) -> Judged:
    """Read the bytes at ``position`` as a broker does.

    Properties aren't looked into: the scan does that for records that it takes.

    Args:
        data: uint8[bytes], the segment as far as the broker reads it.
        position: where.
        dialect: the release's rules.
        check_crc: compare the body with its CRC.
    """
    view = np.ascontiguousarray(data).data
    try:
        return _judge(view, position, dialect, check_crc)
    except (struct.error, IndexError):
        return _BAD  # the buffer ends here: BufferUnderflowException


def _judge(view: memoryview, position: int, dialect: Dialect, check_crc: bool) -> Judged:
    total, magic = struct.unpack_from(">iI", view, position)
    if dialect.recovery.checks_room and len(view) - position < total:
        return _BAD
    if dialect.recovery.refuses_negative_size and total < 0:
        return _BAD
    if magic == commitlog.MAGIC_BLANK:
        return Judged(Kind.BLANK)
    if magic != commitlog.MAGIC_V1 and not (magic == commitlog.MAGIC_V2 and dialect.topic_length_v2):
        return _BAD
    stored_crc, _id, _flag, _offset, physical, sys_flag = struct.unpack_from(
        ">IiiqqI", view, position + commitlog.BODY_CRC
    )
    born = commitlog.host_length(sys_flag, commitlog.SYS_FLAG_BORN_HOST_V6)
    host = commitlog.host_length(sys_flag, commitlog.SYS_FLAG_STORE_HOST_V6)
    (timestamp,) = struct.unpack_from(">q", view, position + commitlog.store_timestamp_at(sys_flag))
    at = position + commitlog.body_at(sys_flag)
    (body,) = struct.unpack_from(">i", view, at - 4)
    body = max(body, 0)
    # Every field goes through a buffer of the record's size.
    if total < max(born, host, body) or at + body > len(view):
        return _BAD
    if check_crc and body and commitlog.body_crc(view[at : at + body]) != stored_crc:
        return _BAD
    at += body
    if magic == commitlog.MAGIC_V1:
        (topic,) = struct.unpack_from(">b", view, at)
        at += 1
    else:
        (topic,) = struct.unpack_from(">h", view, at)
        at += 2
    if not 0 <= topic <= total:
        return _BAD
    at += topic
    (length,) = struct.unpack_from(">h", view, at)
    at += 2
    length = max(length, 0)
    if length > total or at + length > len(view):
        return _BAD
    at += length
    if at - position != total:
        return Judged(Kind.BAD, total, consumed=at - position)
    return Judged(Kind.MESSAGE, total, physical, timestamp)
