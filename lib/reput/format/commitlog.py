"""CommitLog records. Grammar, field table and a worked example: docs/formats/commitlog.md.

Source: ``CommitLog.checkMessageAndReturnSize`` and ``MessageExtEncoder`` (rocketmq-all-5.3.3),
``CommitLog.calMsgLength`` (rocketmq-all-4.9.7). All integers are big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from ipaddress import ip_address
from zlib import crc32

MAGIC_V1 = 0xDAA320A7  # topic length in 1 byte
MAGIC_V2 = 0xDAA320AB  # topic length in 2 bytes; written for topics of more than 127 bytes
MAGIC_BLANK = 0xCBD43194  # closes a segment

# Offsets of the fixed fields from the record's first byte.
TOTAL_SIZE = 0  # int32
MAGIC = 4  # uint32
BODY_CRC = 8  # int32, CRC-32 of the body & 0x7FFFFFFF
QUEUE_ID = 12  # int32
FLAG = 16  # int32
QUEUE_OFFSET = 20  # int64
PHYSICAL_OFFSET = 28  # int64
SYS_FLAG = 36  # int32
BORN_TIMESTAMP = 40  # int64, ms
BORN_HOST = 48  # address and 4-byte port: 8 bytes, or 20 with SYS_FLAG_BORN_HOST_V6

# Offsets from the end of the born host.
STORE_TIMESTAMP_AFTER_BORN_HOST = 0  # int64, ms
STORE_HOST_AFTER_BORN_HOST = 8  # 8 or 20 bytes

# Offsets from the end of the store host.
RECONSUME_TIMES_AFTER_STORE_HOST = 0  # int32
PREPARED_OFFSET_AFTER_STORE_HOST = 4  # int64
BODY_LENGTH_AFTER_STORE_HOST = 12  # int32
BODY_AFTER_STORE_HOST = 16

HOST_V4_LENGTH = 8
HOST_V6_LENGTH = 20
BLANK_LENGTH = 8  # size and magic; whatever follows up to the segment's end is not looked at
MIN_RECORD_LENGTH = 91  # v1, IPv4 hosts, nothing in body, topic and properties
#: What a record has at most beyond ``maxMessageSize`` (MessageExtEncoder, rocketmq-all-5.3.3; none in 4.9.7).
MOST_BEYOND_BODY = 64 << 10
MAX_MESSAGE_SIZE = 4 << 20  # ``maxMessageSize``, the default
LARGEST_RECORD = MAX_MESSAGE_SIZE + MOST_BEYOND_BODY

SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20
SYS_FLAG_INNER_BATCH = 0x80
SYS_FLAG_NEED_UNWRAP = 0x40
TRANSACTION_MASK = 0x0C
TRANSACTION_NONE = 0x00
TRANSACTION_PREPARED = 0x04
TRANSACTION_COMMIT = 0x08
TRANSACTION_ROLLBACK = 0x0C

CRC_MASK = 0x7FFFFFFF
PROPERTY_CRC_RESERVED = 20  # bytes of "__CRC32#" 0x01, ten digits, 0x02 at the record's end

NAME_VALUE_SEPARATOR = 0x01
PROPERTY_SEPARATOR = 0x02

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"  # TopicValidator.RMQ_SYS_SCHEDULE_TOPIC
TIMER_TOPIC = b"rmq_sys_wheel_timer"  # TimerMessageStore.TIMER_TOPIC
LMQ_PREFIX = b"%LMQ%"

_HEAD = struct.Struct(">IIIiiqqiq")
_TAIL = struct.Struct(">iqi")


@dataclass(slots=True)
class Record:
    """One message as it lies in the commit log.

    Attributes:
        topic: the topic's bytes (UTF-8 as a rule).
        queue_id, flag, sys_flag, reconsume_times: int32 as stored.
        queue_offset, physical_offset, prepared_transaction_offset: int64 as stored.
        born_timestamp, store_timestamp: ms since the epoch.
        born_host, store_host: (address, port).
        body: the body's bytes, compressed as the producer sent them.
        properties: the raw bytes of ``name 0x01 value 0x02 …``.
        version: 1 or 2, by the magic.
        body_crc: as stored; None lets :func:`encode` compute it.
    """

    topic: bytes
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: tuple[str, int] = field(default=("127.0.0.1", 0))
    store_timestamp: int = 0
    store_host: tuple[str, int] = field(default=("127.0.0.1", 0))
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    version: int = 1
    body_crc: int | None = None


def host_text(host: tuple[str, int]) -> str:
    """``ADDRESS:PORT`` of a host, ``[ADDRESS]:PORT`` of IPv6."""
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def host_length(sys_flag: int, v6_flag: int) -> int:
    """Bytes of a host field under this sysFlag."""
    return HOST_V6_LENGTH if sys_flag & v6_flag else HOST_V4_LENGTH


def store_timestamp_at(sys_flag: int) -> int:
    """Bytes from a record's start to its storeTimestamp."""
    return BORN_HOST + host_length(sys_flag, SYS_FLAG_BORN_HOST_V6) + STORE_TIMESTAMP_AFTER_BORN_HOST


def body_at(sys_flag: int) -> int:
    """Bytes from a record's start to its body."""
    store_host = BORN_HOST + host_length(sys_flag, SYS_FLAG_BORN_HOST_V6) + STORE_HOST_AFTER_BORN_HOST
    return store_host + host_length(sys_flag, SYS_FLAG_STORE_HOST_V6) + BODY_AFTER_STORE_HOST


def store_timestamp(view: memoryview, position: int) -> int:
    """The storeTimestamp, ms, of the whole record at ``position``."""
    sys_flag = int.from_bytes(view[position + SYS_FLAG : position + SYS_FLAG + 4], "big")
    at = position + store_timestamp_at(sys_flag)
    return int.from_bytes(view[at : at + 8], "big", signed=True)


def body_crc(body: bytes | memoryview) -> int:
    """The bodyCRC field for a body. Source: ``UtilAll.crc32``; a record without a body stores 0."""
    return crc32(body) & CRC_MASK


def property_crc(data: bytes | bytearray) -> bytes | None:
    """The ten digits that belong into a whole record's ``__CRC32#``, the least significant first.

    None for one that ends otherwise. Source: ``MessageDecoder.createCrc32`` (rocketmq-all-5.3.3).
    """
    start = len(data) - PROPERTY_CRC_RESERVED
    if not (data[start:].startswith(b"__CRC32#\x01") and data.endswith(b"\x02")):
        return None
    return f"{body_crc(memoryview(data)[:start]):010d}"[::-1].encode()


def encode(record: Record) -> bytes:
    """The record's bytes. IPv6 flags are set from the hosts; the CRC property is the caller's affair."""
    sys_flag = record.sys_flag & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
    born = _encode_host(record.born_host)
    store = _encode_host(record.store_host)
    if len(born) == HOST_V6_LENGTH:
        sys_flag |= SYS_FLAG_BORN_HOST_V6
    if len(store) == HOST_V6_LENGTH:
        sys_flag |= SYS_FLAG_STORE_HOST_V6
    topic_length = struct.pack(">B" if record.version == 1 else ">H", len(record.topic))
    crc = body_crc(record.body) if record.body_crc is None else record.body_crc
    tail = b"".join(
        (
            born,
            struct.pack(">q", record.store_timestamp),
            store,
            _TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body)),
            record.body,
            topic_length,
            record.topic,
            struct.pack(">H", len(record.properties)),
            record.properties,
        )
    )
    head = _HEAD.pack(
        BORN_HOST + len(tail),
        MAGIC_V1 if record.version == 1 else MAGIC_V2,
        crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        sys_flag,
        record.born_timestamp,
    )
    return head + tail


def encode_blank(length: int) -> bytes:
    """The BLANK record that closes a segment with ``length`` bytes left (at least 8), zero-filled."""
    return struct.pack(">II", length, MAGIC_BLANK) + bytes(length - BLANK_LENGTH)


def decode(data: bytes | memoryview, position: int = 0) -> Record:
    """The record at ``position``, which a scan has found to be whole and valid.

    Raises:
        struct.error, IndexError: the bytes are no whole record.
    """
    (_size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born) = _HEAD.unpack_from(
        data, position
    )
    at = position + BORN_HOST
    length = host_length(sys_flag, SYS_FLAG_BORN_HOST_V6)
    born_host = _decode_host(bytes(data[at : at + length]))
    at += length
    (store_timestamp,) = struct.unpack_from(">q", data, at)
    at += 8
    length = host_length(sys_flag, SYS_FLAG_STORE_HOST_V6)
    store_host = _decode_host(bytes(data[at : at + length]))
    at += length
    reconsume_times, prepared_offset, body_length = _TAIL.unpack_from(data, at)
    at += BODY_AFTER_STORE_HOST
    body_length = max(body_length, 0)
    body = bytes(data[at : at + body_length])
    at += body_length
    version = 1 if magic == MAGIC_V1 else 2
    if version == 1:
        topic_length = data[at]
        at += 1
    else:
        (topic_length,) = struct.unpack_from(">H", data, at)
        at += 2
    topic = bytes(data[at : at + topic_length])
    at += topic_length
    (properties_length,) = struct.unpack_from(">h", data, at)
    at += 2
    properties = bytes(data[at : at + max(properties_length, 0)])
    return Record(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        version=version,
        body_crc=crc,
    )


def _encode_host(host: tuple[str, int]) -> bytes:
    address, port = host
    return ip_address(address).packed + struct.pack(">i", port)


def _decode_host(data: bytes) -> tuple[str, int]:
    if len(data) not in (HOST_V4_LENGTH, HOST_V6_LENGTH):
        raise struct.error("the bytes end inside a host")
    return str(ip_address(data[:-4])), int.from_bytes(data[-4:], "big", signed=True)
