"""Keys and values of settings in RocksDB, in the form v2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.format import rocksdbconfig as config
from reput.format.rocksdbconfig import DataVersion, QueueOf, Table
from tests import encoders

NAMES = st.binary(max_size=300)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


def test_bytes_are_those_of_the_source() -> None:
    assert encoders.encode_name(Table.TOPICS, b"TopicA") == bytes.fromhex(
        "01"  # TablePrefix.TABLE
        "0003"  # TableId.TOPIC
        "02"  # RecordPrefix.DATA
        "0006 546f70696341"
    )
    assert encoders.encode_queue(Table.OFFSETS, QueueOf(b"g", b"TopicA", 3)) == bytes.fromhex(
        "01 0001 02"
        "0001 67"  # the group
        "01"  # CTRL_1
        "0006 546f70696341"
        "01"
        "00000003"
    )
    assert encoders.encode_offset(17) == bytes.fromhex("0000000000000011")
    assert config.version_key(Table.GROUPS) == bytes.fromhex("01 0004 01") + b"data_version"
    assert encoders.encode_version(DataVersion(5, timestamp=2, state_version=1)) == bytes.fromhex(
        "0000000000000001 0000000000000002 0000000000000005"
    )
    assert encoders.encode_json(b"{}") == b"\x01{}"
    assert config.table_range(Table.TOPICS) == (b"\x01\x00\x03\x02", b"\x01\x00\x03\x03")


def test_the_page_shows_these_bytes() -> None:
    page = Path(__file__).parents[3] / "docs" / "formats" / "rocksdb.md"
    block = page.read_text(encoding="utf-8").partition("wants queueOffset 17 next")[2].split("```")[1]
    key, _, value = block.partition("→")
    shown = re.findall(r"^((?:[0-9a-f]{2,}(?: |$))+)", key, re.MULTILINE)
    assert bytes.fromhex("".join(shown)) == encoders.encode_queue(Table.OFFSETS, QueueOf(b"g", b"TopicA", 3))
    assert bytes.fromhex(value.strip()) == encoders.encode_offset(17)


@given(st.sampled_from(Table), NAMES, NAMES, st.integers(-(1 << 31), (1 << 31) - 1), LONGS, LONGS, LONGS)
def test_what_is_encoded_is_parsed(
    table: Table, group: bytes, topic: bytes, queue: int, one: int, two: int, three: int
) -> None:
    of = QueueOf(group, topic, queue)
    start, stop = config.table_range(table)
    assert config.parse_queue(encoders.encode_queue(table, of)) == of
    assert config.parse_name(encoders.encode_name(table, topic)) == topic
    assert start < encoders.encode_queue(table, of) < stop
    assert not start <= config.version_key(table) < stop
    assert config.parse_offset(encoders.encode_offset(one)) == one
    version = DataVersion(one, two, three)
    assert config.parse_version(encoders.encode_version(version)) == version
    assert config.parse_json(encoders.encode_json(group)) == group


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (config.parse_name, b""),
        (config.parse_name, b"\x01\x00\x03\x01data_version"),
        (config.parse_name, b"\x01\x00\x03\x02\x00\x05abc"),
        (config.parse_name, b"\x01\x00\x03\x02\x00\x01abc"),
        (config.parse_name, b"\x01\x00\x03\x02\x80\x00" + bytes(0x8000)),
        (config.parse_queue, b"\x01\x00\x01\x02\x00\x01g\x02\x00\x01t\x01" + bytes(4)),
        (config.parse_queue, b"\x01\x00\x01\x02\x00\x01g\x01\x00\x01t\x01" + bytes(3)),
        (config.parse_queue, b"\x01\x00\x01\x02\x00\x01g\x01\x00"),
        (config.parse_offset, bytes(7)),
        (config.parse_version, bytes(23)),
        (config.parse_json, b""),
        (config.parse_json, b"\x02{}"),
    ],
)
def test_other_bytes_are_refused(parse: object, data: bytes) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match=r"."):
        parse(data)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 32767"):
        encoders.encode_name(Table.TOPICS, bytes(0x8000))
