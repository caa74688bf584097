"""Keys and values of queues and index in RocksDB, by hand: a line of bytes for each field."""

from __future__ import annotations

import doctest

import pytest

from reput.format import rocksdbindex, rocksdbqueue
from tests import encoders

UNIT_KEY = [
    "00000007",  # bytes of the topic's name
    "01",
    "25 4c 4d 51 25 61 30",  # topic: %LMQ%a0
    "01",
    "00000000",  # queueId
    "01",
    "0000000000000000",  # queueOffset
]
UNIT = [
    "000000000001e8ae",  # physicalOffset
    "00000172",  # size
    "000000000027a811",  # tagsCode
    "000001a20360284c",  # storeTimestamp
]
CHECKPOINT_KEY = [
    "00000010",
    "01",
    "43 48 45 43 4b 50 4f 49 4e 54 5f 54 4f 50 49 43",  # CHECKPOINT_TOPIC
    "01",
    "6d 61 78",  # max
    "01",
    "00000000",
]
TAG_KEY = [
    "000001a20c23c300",  # the hour of storeTimestamp
    "40",  # @
    "74",  # topic: t
    "40 54 40",  # @T@
    "54 61 67 41",  # tag: TagA
    "40",
    "41 43 31 46",  # unique key: AC1F
    "40",
    "000000000001e8ae",  # physicalOffset
]


def data(lines: list[str]) -> bytes:
    return bytes.fromhex(" ".join(lines))


@pytest.mark.parametrize("module", [rocksdbqueue, rocksdbindex])
def test_the_docstrings_examples(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted
    assert not result.failed


def test_a_unit() -> None:
    key, value = data(UNIT_KEY), data(UNIT)
    assert rocksdbqueue.unit_key(b"%LMQ%a0", 0, 0) == key
    assert rocksdbqueue.parse_unit_key(key) == (b"%LMQ%a0", 0, 0)
    assert encoders.unit_value(0x1E8AE, 0x172, 0x27A811, 0x1A20360284C) == value
    assert rocksdbqueue.parse_unit(value) == (0x1E8AE, 0x172, 0x27A811, 0x1A20360284C)


def test_an_end_of_a_queue() -> None:
    for which in (rocksdbqueue.MAX, rocksdbqueue.MIN):
        key = rocksdbqueue.offset_key(b"orders", 7, which)
        assert rocksdbqueue.parse_offset_key(key) == (b"orders", 7, which)
    value = data(["000000000001e8ae", "0000000000000011"])
    assert rocksdbqueue.offset_value(0x1E8AE, 17) == value
    assert rocksdbqueue.parse_offset(value) == (0x1E8AE, 17)


def test_the_checkpoint() -> None:
    assert data(CHECKPOINT_KEY) == rocksdbqueue.CHECKPOINT_KEY
    assert rocksdbqueue.parse_checkpoint(rocksdbqueue.checkpoint_value(0x1EA20)) == 0x1EA20


def test_index_entries() -> None:
    key = rocksdbindex.key(b"t", rocksdbindex.TAG, b"TagA", b"AC1F", 1_795_500_000_123, 0x1E8AE)
    assert key == data(TAG_KEY)
    assert rocksdbindex.parse_key(key) == (0x1A20C23C300, b"@t@T@TagA@AC1F@", 0x1E8AE)
    assert [*rocksdbindex.ranges(0, "t", (rocksdbindex.TAG,), "TagA")] == [
        (bytes(8) + b"@t@T@TagA@", bytes(8) + b"@t@T@TagAA")
    ]
    assert rocksdbindex.parse_value(rocksdbindex.value(1_795_500_000_123)) == 1_795_500_000_123


def test_a_messages_index_keys() -> None:
    found = {b"KEYS": b"b  a b", b"TAGS": b"x y", b"UNIQ_KEY": b"u"}
    keys = [key[8:-8] for key in rocksdbindex.keys_of(b"t", found, 0, 1 << 41, 5)]
    assert keys == [b"@t@K@b@u@", b"@t@K@a@u@", b"@t@T@x y@u@", b"@t@U@u@"]
    assert not list(rocksdbindex.keys_of(b"t", found, 0x0C, 1 << 41, 5))  # rolled back
    assert not list(rocksdbindex.keys_of(b"t", {b"KEYS": b"a"}, 0, 1 << 41, 5))  # without a unique key
    assert not list(rocksdbindex.keys_of(b"t", found, 0, rocksdbindex.MS_AN_HOUR - 1, 5))
    assert len(list(rocksdbindex.keys_of(b"t", found, 0, rocksdbindex.MS_AN_HOUR, 5))) == 4


def test_foreign_keys_are_none() -> None:
    key = data(UNIT_KEY)
    wrong = [b"", key[:-1], key + b"\0", b"\0\0\0\x06" + key[4:], key.replace(b"0\x01", b"0\x02")]
    wrong += [key[:4] + b"\x02" + key[5:], key[:-9] + b"\x02" + key[-8:], rocksdbqueue.CHECKPOINT_KEY]
    assert [rocksdbqueue.parse_unit_key(each) for each in wrong] == [None] * len(wrong)
    end = data(CHECKPOINT_KEY)
    wrong = [b"", end[:-1], end.replace(b"max", b"mid"), end[:-5] + b"\x02" + end[-4:], key]
    assert [rocksdbqueue.parse_offset_key(each) for each in wrong] == [None] * len(wrong)
    assert rocksdbqueue.parse_unit(data(UNIT)[:-1]) is None
    assert rocksdbqueue.parse_offset(bytes(17)) is None
    assert rocksdbqueue.parse_checkpoint(bytes(7)) is None
    tag = data(TAG_KEY)
    wrong = [b"", tag[:-1], tag[:8] + tag[9:], b"lastOffsetPy", b"lastStoreTimeStamp", bytes(16)]
    assert [rocksdbindex.parse_key(each) for each in wrong] == [None] * len(wrong)
    assert rocksdbindex.parse_value(bytes(9)) is None


def test_the_longest_topic() -> None:
    longest = b"t" * rocksdbqueue.MAX_TOPIC_LENGTH
    assert rocksdbqueue.topic_problem(longest) is None
    assert len(rocksdbqueue.unit_key(longest, 0, 0)) == rocksdbqueue.MAX_KEY_LENGTH
    assert rocksdbqueue.topic_problem(longest + b"t") == "a name of 282 bytes"
    assert rocksdbqueue.topic_problem(b"") == "an empty name"
