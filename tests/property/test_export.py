"""What is exported has every byte of a message, and comes back as it was."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from reput.export.records import line_of, message_of
from reput.format import commitlog, properties
from reput.format.commitlog import Record
from reput.query.message import Message
from tests.property.logs import records


def there_and_back(record: Record) -> Message:
    message = Message(record, len(commitlog.encode(record)))
    line = json.dumps(line_of(message))
    assert "\n" not in line
    return message_of(line.encode())


@given(records(any_time=True), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 1 << 62))
def test_a_record_comes_back_from_its_line(record: Record, flag: int, place: int) -> None:
    placed = replace(record, flag=flag, physical_offset=place)
    encoded = commitlog.encode(placed)
    stored = commitlog.decode(encoded)
    back = there_and_back(stored)
    assert back.record == stored
    assert commitlog.encode(back.record) == encoded
    assert back.size == len(encoded)


@given(st.binary(max_size=300), st.binary(max_size=200), st.integers(0, (1 << 32) - 1))
def test_hostile_properties_and_bodies_come_back(body: bytes, raw: bytes, crc: int) -> None:
    record = Record(topic=b"t\xff", body=body, properties=raw, body_crc=crc)
    assert there_and_back(record).record == record


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda text: not {"\x01", "\x02"} & set(text)),
        st.text(min_size=1, max_size=8).filter(lambda text: "\x02" not in text),
    ),
    st.booleans(),
)
def test_texts_need_no_base64(values: dict[str, str], terminated: bool) -> None:
    pairs = {name.encode(): value.encode() for name, value in values.items()}
    record = Record(topic=b"t", properties=properties.encode(pairs, terminated=terminated), body_crc=0)
    line = line_of(Message(record, 0))
    assert "properties_base64" not in line
    assert line["properties"] == values
    assert message_of(json.dumps(line)).record == record
