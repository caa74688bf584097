"""Messages of a part: every field as a slow decoder sees it, every boundary exact, damage passed over."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import commitlog, javastring, properties
from reput.format.commitlog import Record
from reput.newer_python import UTC
from reput.scan import output
from reput.scan.part import PartOutcome, scan_part
from reput.scan.rules import Part, rules
from reput.scan.table import QueueTable
from reput.source import messages
from reput.source.columns import MESSAGE_COLUMNS, arrow_schema
from tests.golden.store import unpack
from tests.levels import examples
from tests.property.logs import lay_out, segments

SETTINGS = StoreSettings.load(Path("store"), None, None)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def part(path: Path, base: int, length: int, start: int, end: int, *, last: bool = False) -> Part:
    return Part(str(path), base, length, length, start, end, start == base, last)


def rows(parts: Sequence[Part], names: tuple[str, ...] = tuple(MESSAGE_COLUMNS)) -> list[dict[str, Any]]:
    found = []
    for one in parts:
        for batch in messages.read(one, SETTINGS, names):
            batch.validate(full=True)
            assert batch.schema == arrow_schema(names, MESSAGE_COLUMNS)
            found += batch.to_pylist()
    return found


def rows_of(base: int, data: bytes, *, last: bool = False, cuts: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The messages of a segment that is read in parts, cut at ``cuts`` (physical offsets)."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "segment")
        path.write_bytes(data)
        ends = [*sorted(cuts), base + len(data)]
        starts = [base, *ends[:-1]]
        return rows(
            [
                part(path, base, len(data), start, end, last=last)
                for start, end in zip(starts, ends, strict=True)
                if start < end
            ]
        )


def expected(record: Record) -> dict[str, Any]:
    """The row of a record, the slow way."""
    values: dict[str, str] = {}
    raw = properties.parse(record.properties)
    for name, value in properties.pairs(record.properties):
        values[javastring.decode(name)] = javastring.decode(value)

    def text(name: bytes) -> str | None:
        return javastring.decode(raw[name]) if name in raw else None

    return {
        "topic": javastring.decode(record.topic),
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "size": len(commitlog.encode(record)),
        "storeTimestamp": EPOCH + timedelta(milliseconds=record.store_timestamp),
        "bornTimestamp": EPOCH + timedelta(milliseconds=record.born_timestamp),
        "bornHost": host(record.born_host),
        "storeHost": host(record.store_host),
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "tags": text(properties.TAGS),
        "keys": text(properties.KEYS),
        "uniqKey": text(properties.UNIQ_KEY),
        "properties": values,
        "body": record.body,
    }


def host(address: tuple[str, int]) -> str:
    name, port = address
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def sound_records(base: int, data: bytes) -> list[Record]:
    found = []
    position = 0
    while position + 8 <= len(data) and data[position + 4 : position + 8] not in (
        bytes(4),
        commitlog.MAGIC_BLANK.to_bytes(4, "big"),
    ):
        found.append(commitlog.decode(data, position))
        position += int.from_bytes(data[position : position + 4], "big")
    return found


def normal(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "properties": dict(row["properties"])}


@pytest.mark.slow
@settings(deadline=None)
@given(segments())
def test_every_field_is_what_a_slow_decoder_sees(segment: tuple[int, np.ndarray]) -> None:
    base, array = segment
    data = array.tobytes()
    found = rows_of(base, data)
    assert [len(row["properties"]) for row in found] == [len(dict(row["properties"])) for row in found]
    assert [normal(row) for row in found] == [expected(record) for record in sound_records(base, data)]


@settings(deadline=None, max_examples=examples(300))
@given(segments(damaged=True), st.lists(st.integers(0, 1500), max_size=4), st.booleans())
@pytest.mark.slow
def test_parts_together_hold_each_message_once(
    segment: tuple[int, np.ndarray], cuts: list[int], last: bool
) -> None:
    base, array = segment
    data = array.tobytes()
    whole = rows_of(base, data, last=last)
    assert rows_of(base, data, last=last, cuts=[base + min(cut, len(data)) for cut in cuts]) == whole


def scanned(base: int, data: bytes) -> int:
    """How many messages the scan for consume queues takes from the same bytes."""
    array = np.frombuffer(data, np.uint8)
    out, outcome = output.output(), PartOutcome()
    whole = Part("segment", base, len(data), len(data), base, base + len(data))
    for _ in scan_part(whole, array, rules(SETTINGS), QueueTable(), out, outcome):
        pass
    # These are in the log and get no unit; a table of messages shows them.
    unplaced = sum(finding.kind in ("bad-delay", "bad-inner-batch") for finding in outcome.findings)
    return int(out.counts[output.MESSAGES]) + unplaced


@settings(deadline=None, max_examples=examples(300))
@given(segments(damaged=True))
@pytest.mark.slow
def test_the_scan_takes_as_many_messages(segment: tuple[int, np.ndarray]) -> None:
    base, array = segment
    data = array.tobytes()
    assert len(rows_of(base, data)) == scanned(base, data)


def log(count: int, **fields: Any) -> list[Record]:
    return [
        Record(topic=b"orders", body=b"%d" % number, queue_offset=number, **fields) for number in range(count)
    ]


def test_a_wrong_crc_in_the_middle_is_taken_and_at_the_end_is_not() -> None:
    middle = Record(topic=b"orders", body=b"x", queue_offset=7, body_crc=1)
    assert len(rows_of(0, lay_out([*log(2), middle, *log(1)], zeros=20))) == 4
    assert len(rows_of(0, lay_out([*log(2), middle], zeros=20))) == 2
    assert len(rows_of(0, lay_out([*log(2), middle], blank=True))) == 3


def test_a_wrong_property_crc_is_seen_at_the_end_only() -> None:
    def sealed(at: int) -> bytes:
        empty = Record(topic=b"t", properties=b"k\x01v\x02" + b"__CRC32#\x01" + b"0" * 10 + b"\x02")
        data = bytearray(lay_out([empty], at))
        crc = commitlog.body_crc(bytes(data[: -commitlog.PROPERTY_CRC_RESERVED]))
        data[-11:-1] = "".join(reversed(f"{crc:010d}")).encode()
        return bytes(data)

    good = sealed(0)
    assert len(rows_of(0, good + bytes(20))) == 1
    bad = good.replace(b"k\x01v", b"k\x01w")
    assert len(rows_of(0, bad + bytes(20))) == 0
    assert len(rows_of(0, bad + sealed(len(bad)) + bytes(20))) == 2


def test_what_a_truncation_left_behind_is_older_and_passed_over_in_the_last_segment() -> None:
    stale = lay_out(log(2, store_timestamp=5), 1000)
    data = lay_out(log(3, store_timestamp=10)).ljust(1000, b"\xff") + stale
    assert len(rows_of(0, data, last=True)) == 3
    assert len(rows_of(0, data, last=False)) == 5


def test_what_lies_behind_a_blank_is_passed_over_before_the_last_segment() -> None:
    """Also when the BLANK is known by its size alone, as in a rebuild."""
    data = lay_out(log(2))
    stale = lay_out(log(2), len(data) + 8)
    for magic in (0xCBD43194, 0xCBD43195, 0):
        blank = struct.pack(">II", 8 + len(stale), magic)
        assert len(rows_of(0, data + blank + stale)) == 2


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BATCH_BYTES", 1000)
    monkeypatch.setattr(messages, "BATCH_ROWS", 7)
    body = [b"x" * (10 if number % 20 else 2000) for number in range(100)]
    data = lay_out([Record(topic=b"t", body=text, queue_offset=at) for at, text in enumerate(body)])
    path = tmp_path / "segment"
    path.write_bytes(data)
    batches = list(messages.read(part(path, 0, len(data), 0, len(data)), SETTINGS))
    assert [row for batch in batches for row in batch["queueOffset"].to_pylist()] == list(range(100))
    assert max(batch.num_rows for batch in batches) == 7
    assert all(batch.num_rows == 1 or sum(batch["size"].to_pylist()) <= 1000 for batch in batches)


def test_thousands_of_properties_in_each_message_fill_a_batch_early(tmp_path: Path) -> None:
    crowded = b"".join(b"%c%c\x01v\x02" % (65 + i // 60, 65 + i % 60) for i in range(3600))
    data = lay_out([Record(topic=b"t", properties=crowded, queue_offset=at) for at in range(40)])
    path = tmp_path / "segment"
    path.write_bytes(data)
    whole = part(path, 0, len(data), 0, len(data))
    batches = list(messages.read(whole, SETTINGS, ("queueOffset", "properties")))
    assert len(batches) > 1
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["queueOffset"] for row in found] == list(range(40))
    assert {len(dict(row["properties"])) for row in found} == {3600}


def test_pieces_that_are_utf8_only_together_are_decoded_one_by_one() -> None:
    found = rows_of(0, lay_out([Record(topic=b"a\xc3"), Record(topic=b"\xa9b"), Record(topic="é".encode())]))
    assert [row["topic"] for row in found] == ["a\ufffd", "\ufffdb", "é"]


def test_property_names_that_java_takes_for_one_are_one() -> None:
    (row,) = rows_of(0, lay_out([Record(topic=b"t", properties=b"\xff\x011\x02a\x012\x02\xfe\x013\x02")]))
    assert row["properties"] == [("\ufffd", "3"), ("a", "2")]


def test_times_that_no_timestamp_can_hold_are_null(tmp_path: Path) -> None:
    year_1, year_10000 = -62_135_596_800_000, 253_402_300_800_000
    times = [-(2**63), year_1 - 1, year_1, -1, 0, year_10000 - 1, year_10000, 2**63 - 1]
    data = lay_out([Record(topic=b"t", store_timestamp=time) for time in times])
    path = tmp_path / "segment"
    path.write_bytes(data)
    (batch,) = messages.read(part(path, 0, len(data), 0, len(data)), SETTINGS, ("storeTimestamp",))
    found = batch["storeTimestamp"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    assert found == [None, None, year_1 * 1000, -1000, 0, year_10000 * 1000 - 1000, None, None]


def test_some_columns_only_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    data = lay_out(log(2))
    path.write_bytes(data)
    assert rows([part(path, 0, len(data), 0, len(data))], ("queueOffset", "topic")) == [
        {"queueOffset": 0, "topic": "orders"},
        {"queueOffset": 1, "topic": "orders"},
    ]


def test_a_segment_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the segment can't be read"):
        list(messages.read(part(tmp_path / "gone", 0, 100, 0, 100), SETTINGS))


@pytest.mark.parametrize("name", ["4.9.7-mixed", "5.3.3-long-topics", "5.3.3-property-crc", "5.5.0-mixed"])
def test_the_queues_of_a_real_store_point_at_the_messages(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path / "store")
    settings = StoreSettings.load(store.root, store.write_broker_conf(), store.version)
    found = {}
    for path in sorted((store.root / "commitlog").iterdir()):
        base, length = int(path.name), path.stat().st_size
        for batch in messages.read(part(path, base, length, base, base + length), settings):
            for row in batch.to_pylist():
                found[row["physicalOffset"]] = row
    units = 0
    for path in sorted((store.root / "consumequeue").glob("*/*/*")):
        topic, queue_id = path.parts[-3], int(path.parts[-2])
        data = path.read_bytes()
        for at in range(0, len(data), 20):
            offset, size = (
                int.from_bytes(data[at : at + 8], "big"),
                int.from_bytes(data[at + 8 : at + 12], "big"),
            )
            if size in (0, 0x7FFFFFFF):
                continue
            row = found[offset]
            assert row["size"] == size
            if not topic.startswith("%LMQ%") and "INNER_MULTI_DISPATCH" not in dict(row["properties"]):
                assert (row["topic"], row["queueId"]) == (topic, queue_id)
                assert row["queueOffset"] == (int(path.name) + at) // 20
            units += 1
    assert units > 20
