"""The files of a table of messages against their slow twin: rows decoded one by one, and sorted by Python."""

from __future__ import annotations

from datetime import datetime
from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.catalog import rows
from reput.catalog.rows import Added, Adding, Merging, Writer, columns
from reput.catalog.table import File, Written
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.newer_python import UTC
from reput.scan.rules import Part
from reput.source import messages
from reput.source.columns import MESSAGE_COLUMNS, arrow_schema
from tests.levels import examples
from tests.property.logs import segments

SETTINGS = StoreSettings.load(Path("store"), None, None)


def slow(part: Part, after: int, bodies: bool) -> dict[str | None, list[dict[str, Any]]]:
    """The messages behind an offset by their day, in order of their queues."""
    found: dict[str | None, list[dict[str, Any]]] = {}
    for batch in messages.read(part, SETTINGS, columns(bodies=bodies)):
        for row in batch.to_pylist():
            if row["physicalOffset"] > after:
                time = row["storeTimestamp"]
                found.setdefault(None if time is None else time.date().isoformat(), []).append(row)
    return {day: sorted(each, key=place) for day, each in found.items()}


def place(row: dict[str, Any]) -> tuple[bytes, int, int, int]:
    return row["topic"].encode(), row["queueId"], row["queueOffset"], row["physicalOffset"]


def written(result: Added | list[Written] | ReputError) -> list[Written]:
    assert not isinstance(result, ReputError)
    return result.files if isinstance(result, Added) else result


def held(table: Path, file: Written) -> list[dict[str, Any]]:
    path = table / file.path
    assert path.stat().st_size == file.size
    found: list[dict[str, Any]] = pq.read_table(path, partitioning=None).to_pylist()
    check_statistics(loads(file.statistics), found)
    return found


def check_statistics(statistics: dict[str, Any], found: list[dict[str, Any]]) -> None:
    assert statistics["numRecords"] == len(found)
    assert {"topic", "queueId", "queueOffset", "physicalOffset"} <= statistics["minValues"].keys()
    for name, choose in (("minValues", min), ("maxValues", max)):
        for column, value in statistics[name].items():
            there = [row[column] for row in found if row[column] is not None]
            if isinstance(there[0], datetime):
                value = datetime.fromisoformat(value).astimezone(UTC)
            assert choose(there) == value
    for column, count in statistics["nullCount"].items():
        assert count == sum(row[column] is None for row in found)


@settings(max_examples=examples(200), deadline=None)
@given(segments(damaged=True, any_time=True), st.integers(-1, 600), st.booleans(), st.integers(1, 9))
def test_files_hold_what_a_slow_reader_finds(
    segment: tuple[int, np.ndarray], after: int, bodies: bool, most: int
) -> None:
    base, data = segment
    with TemporaryDirectory() as directory, patch.object(rows, "MOST_ROWS", most):
        path, table = Path(directory, "segment"), Path(directory, "table")
        path.write_bytes(data.tobytes())
        part = Part(str(path), base, len(data), len(data), base, base + len(data), last=True)
        writer = Writer(table, "token", bodies, locks=table)
        files = written(Adding(writer, SETTINGS, base + after)(part))
        expected = slow(part, base + after, bodies)
        by_day: dict[str | None, list[list[dict[str, Any]]]] = {}
        for file in files:
            by_day.setdefault(file.day, []).append(held(table, file))
        # Each file is in order; together they have each message once.
        assert all(each == sorted(each, key=place) for some in by_day.values() for each in some)
        together = {
            day: sorted((row for each in some for row in each), key=place) for day, some in by_day.items()
        }
        assert together == expected
        # What is merged has the same rows, in order.
        for day in by_day:
            of_day = [File(file.path, None, file.size, 1, 1) for file in files if file.day == day]
            (merged,) = written(Merging(writer)(of_day))
            assert merged.day == day
            assert held(table, merged) == expected[day]


def test_files_have_the_tables_columns_alone() -> None:
    """As Spark wrote them: what reads one reads the other."""
    assert arrow_schema(columns(bodies=True), MESSAGE_COLUMNS).names == list(MESSAGE_COLUMNS)
    assert rows.schema(bodies=False).names == [*columns(bodies=False), "day"]
