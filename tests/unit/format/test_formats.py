"""The formats, by hand: a line of bytes for each field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reput.format import commitlog, consumequeue, indexfile, properties
from reput.format.checkpoint import StoreCheckpoint
from reput.format.commitlog import Record
from reput.format.dtypes import ROCKSDB_UNIT_DTYPE, UNIT_DTYPE, UnitKind, classify
from reput.format.indexfile import IndexHeader
from tests.slow_build import time_diff

RECORD = Record(
    topic=b"T",
    body=b"hi",
    properties=b"KEYS\x01k\x02",
    queue_id=3,
    flag=4,
    queue_offset=5,
    physical_offset=6,
    sys_flag=8,
    born_timestamp=7,
    born_host=("1.2.3.4", 10),
    store_timestamp=9,
    store_host=("5.6.7.8", 11),
    reconsume_times=12,
    prepared_transaction_offset=13,
)
V1 = [
    "00000065",  # totalSize: 101
    "daa320a7",  # magic v1
    "58932aac",  # CRC-32 of "hi", d8932aac, without its highest bit
    "00000003",  # queueId
    "00000004",  # flag
    "0000000000000005",  # queueOffset
    "0000000000000006",  # physicalOffset
    "00000008",  # sysFlag: committed
    "0000000000000007",  # bornTimestamp
    "01020304 0000000a",  # bornHost
    "0000000000000009",  # storeTimestamp
    "05060708 0000000b",  # storeHost
    "0000000c",  # reconsumeTimes
    "000000000000000d",  # preparedTransactionOffset
    "00000002 6869",  # body
    "01 54",  # topic, its length in one byte
    "0007 4b455953 01 6b 02",  # properties
]


def test_a_record_of_version_1() -> None:
    data = bytes.fromhex(" ".join(V1))
    assert commitlog.encode(RECORD) == data
    assert commitlog.decode(data) == replace(RECORD, body_crc=0x58932AAC)
    assert commitlog.decode(b"xx" + data, 2).topic == b"T"


def test_a_record_of_version_2_with_hosts_of_version_6() -> None:
    record = replace(RECORD, version=2, born_host=("::1", 10), store_host=("2001:db8::2", 11))
    lines = list(V1)
    lines[0] = "0000007e"  # two hosts of 20 bytes, and a byte more for the topic's length
    lines[1] = "daa320ab"
    lines[7] = "00000038"  # both hosts have 16 bytes
    lines[9] = "00000000000000000000000000000001 0000000a"
    lines[11] = "20010db8000000000000000000000002 0000000b"
    lines[15] = "0001 54"
    data = bytes.fromhex(" ".join(lines))
    assert commitlog.encode(record) == data
    decoded = commitlog.decode(data)
    assert (decoded.born_host, decoded.store_host) == (("::1", 10), ("2001:db8::2", 11))
    assert (decoded.version, decoded.topic, decoded.sys_flag) == (2, b"T", 0x38)


def test_the_shortest_record() -> None:
    assert len(commitlog.encode(Record(b""))) == commitlog.MIN_RECORD_LENGTH
    assert commitlog.decode(commitlog.encode(Record(b""))).body_crc == 0


def test_a_blank_record() -> None:
    assert commitlog.encode_blank(8).hex() == "00000008cbd43194"
    assert commitlog.encode_blank(12).hex() == "0000000ccbd4319400000000"


def test_a_unit() -> None:
    data = consumequeue.unit(1 << 32, 101, -2)
    assert data.hex(" ", 4) == "00000001 00000000 00000065 ffffffff fffffffe"
    assert consumequeue.PRE_BLANK.hex() == "0000000000000000 7fffffff 0000000000000000".replace(" ", "")
    assert (consumequeue.MAX_QUEUE_OFFSET + 1) * consumequeue.UNIT_LENGTH <= 1 << 63
    assert (consumequeue.MAX_QUEUE_OFFSET + 2) * consumequeue.UNIT_LENGTH > 1 << 63


#: (position, size, tags) and what a broker makes of them: ``ConsumeQueue.fillPreBlank`` writes nothing but
#: (0, 2^31 - 1, 0), and ``recover`` counts any unit with a position of 0 or more and a size above 0.
UNITS = [
    ((0, 0, 0), UnitKind.EMPTY),
    ((0, 0x7FFFFFFF, 0), UnitKind.PRE_BLANK),
    ((0, 0x7FFFFFFF, 1), UnitKind.MESSAGE),
    ((5, 0x7FFFFFFF, 0), UnitKind.MESSAGE),
    ((0, 1, 0), UnitKind.MESSAGE),
    ((5, 1, -7), UnitKind.MESSAGE),
    ((0, 0, 1), UnitKind.BROKEN),
    ((5, 0, 0), UnitKind.BROKEN),
    ((5, -1, 0), UnitKind.BROKEN),
    ((-1, 5, 0), UnitKind.BROKEN),
    ((-1, 0x7FFFFFFF, 0), UnitKind.BROKEN),
]


@pytest.mark.parametrize("dtype", [UNIT_DTYPE, ROCKSDB_UNIT_DTYPE])
def test_what_stands_in_a_place_of_a_queue(dtype: np.dtype[np.void]) -> None:
    units = np.zeros(len(UNITS), dtype)
    for row, (fields, _) in enumerate(UNITS):
        units["position"][row], units["size"][row], units["tags"][row] = fields
    assert classify(units).tolist() == [kind for _, kind in UNITS]
    assert classify(units[:0]).dtype == np.uint8


def test_an_index_header() -> None:
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    data = b"".join(number.to_bytes(8, "big") for number in (1, 2, 3, 4))
    data += b"".join(number.to_bytes(4, "big") for number in (5, 6))
    assert header.encode() == data
    assert IndexHeader.decode(data + b"more") == header
    assert header.successor() == IndexHeader(2, 2, 4, 4, 0, 1)
    assert indexfile.file_length(5_000_000, 20_000_000) == 420_000_040


@pytest.mark.parametrize(
    ("store", "begin", "seconds"),
    [
        (5999, 1000, 4),
        (1999, 1000, 0),
        (500, 1000, 0),
        (5000, 0, 0),
        (5000, -1, 0),
        (1 << 50, 1, 0x7FFFFFFF),
        (-(1 << 63), 1, 0x7FFFFFFF),
        (-(1 << 63), (1 << 63) - 1, 0),
        (-(1 << 63), (1 << 63) - 5000, 5),
        (-(1 << 63) + 1000, 1000, 0),
        (-(1 << 63) + 999, 1000, 0x7FFFFFFF),
        ((1 << 63) - 1, 1, 0x7FFFFFFF),
    ],
)
def test_time_differences_are_clamped(store: int, begin: int, seconds: int) -> None:
    assert time_diff(store, begin) == seconds


@pytest.mark.parametrize(("hashed", "key"), [(5, 5), (-5, 5), (-0x8000_0000, 0), (0x7FFF_FFFF, 0x7FFF_FFFF)])
def test_key_hashes_are_not_negative(hashed: int, key: int) -> None:
    assert indexfile.key_hash(hashed) == key


def test_a_checkpoint() -> None:
    checkpoint = StoreCheckpoint(1, 2, 3, 4, 5, 6)
    data = checkpoint.encode()
    assert len(data) == 4096
    assert data[:48] == b"".join(number.to_bytes(8, "big") for number in range(1, 7))
    assert not any(data[48:])
    assert StoreCheckpoint.decode(data) == checkpoint
    assert StoreCheckpoint.decode(data[:24]) == StoreCheckpoint(1, 2, 3)


@pytest.mark.parametrize(
    ("data", "parsed"),
    [
        (b"", {}),
        (b"a\x01b", {b"a": b"b"}),
        (b"a\x01b\x02", {b"a": b"b"}),
        (b"a\x01b\x02a\x01c\x02", {b"a": b"c"}),
        (b"a\x01b\x01c\x02", {b"a": b"b\x01c"}),
        (b"\x01b\x02a\x01\x02c\x02\x02d\x01e", {b"d": b"e"}),
    ],
)
def test_properties(data: bytes, parsed: dict[bytes, bytes]) -> None:
    assert properties.parse(data) == parsed


def test_properties_are_written_with_and_without_their_last_separator() -> None:
    wanted = {b"KEYS": b"k", b"TAGS": b"t"}
    assert properties.encode(wanted) == b"KEYS\x01k\x02TAGS\x01t\x02"
    assert properties.encode(wanted, terminated=False) == b"KEYS\x01k\x02TAGS\x01t"
    assert properties.encode({}) == b""
