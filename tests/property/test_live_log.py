"""A growing log read in batches at any moment gives the same messages as the log read when it is done."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from reput.format.commitlog import Record
from reput.log import live
from reput.log.live import LiveEnd, LiveLog
from reput.log.segments import map_segment
from reput.scan.output import output
from reput.scan.part import PartOutcome, scan_part
from reput.scan.rules import rules
from reput.scan.table import QueueTable
from reput.source import CommitLogDataSource
from reput.source import commitlog as source
from reput.source.columns import MESSAGE_COLUMNS, spark_schema
from reput.source.commitlog import CommitLogStreamReader
from tests.broker_memory import BrokerMemory
from tests.levels import examples

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True, scope="module")
def _no_waiting() -> Iterator[None]:
    before = source._WAIT_SECONDS, live._LIST_SECONDS
    source._WAIT_SECONDS, live._LIST_SECONDS = 0.0, 0.0
    yield
    source._WAIT_SECONDS, live._LIST_SECONDS = before


class Clock:
    """It stands still while the log is written."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def columns(reader: CommitLogStreamReader, start: int, end: int) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for partition in reader.partitions({"offset": start}, {"offset": end}):
        for batch in reader.read(partition):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


def scanned(reader: CommitLogStreamReader, start: int, end: int) -> list[tuple[int, int]]:
    """Where the pipeline's scan finds records in a range whose first byte is a record's or certain damage."""
    found = []
    for partition in reader.partitions({"offset": start}, {"offset": end}):
        for part in partition.value:
            arrays = output()
            store = reader._plan._settings
            whole = replace(part, exact=True) if part.start == start else part
            data = map_segment(part.path, part.segment_length)
            scan = scan_part(whole, data, rules(store, index=True), QueueTable(), arrays, PartOutcome())
            for chunk in scan:
                units = int(chunk.counts[0])
                found += list(
                    zip(chunk.unit_position[:units].tolist(), chunk.unit_size[:units].tolist(), strict=True)
                )
    return found


def stream(broker: BrokerMemory, clock: Clock) -> CommitLogStreamReader:
    one = CommitLogDataSource(
        CaseInsensitiveDict({"path": str(broker.root), "live": "true", "partBytes": "1k"})
    )
    wanted = {name: MESSAGE_COLUMNS[name] for name in ("physicalOffset", "size", "queueOffset", "topic")}
    reader = one.streamReader(spark_schema(wanted))
    assert isinstance(reader, CommitLogStreamReader)
    reader._plan._live = LiveLog(reader._plan._settings)
    reader._plan._live._end = LiveEnd(reader._plan._settings, clock=clock, nap=broker.nap)
    return reader


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    damage=st.booleans(),
    most=st.sampled_from([None, 100, 1000]),
    direct=st.sampled_from([0.0, 0.5]),
)
def test_the_batches_of_a_growing_log_are_the_log(
    seed: int, damage: bool, most: int | None, direct: float
) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as directory:
        broker = BrokerMemory(Path(directory), chance)
        broker.direct = direct
        if damage:
            broker.spoil = 0.1
        clock = Clock()
        reader = stream(broker, clock)
        limit = ReadAllAvailable() if most is None else ReadMaxBytes(most)
        at, found, seen = 0, [], []

        def read(fresh: bool) -> bool:
            nonlocal at, reader
            if fresh:
                reader = stream(broker, clock)
            end = reader.latestOffset({"offset": at}, limit)["offset"]
            assert broker.is_final(end)
            found.extend(columns(reader, at, end))
            if most is None:
                seen.extend(scanned(reader, at, end))
            moved, at = end > at, end
            return moved

        for number in range(chance.randint(1, 40)):
            broker.put(
                *(
                    Record(
                        topic=b"orders",
                        body=bytes(chance.randint(0, 200)),
                        properties=chance.choice([b"", b"KEYS\x01k", b"TAGS\x01\0a\x02"]),
                        queue_offset=number,
                        store_timestamp=NOW + number,
                    )
                    for number in range(number * 3, number * 3 + chance.choice([1, 1, 3]))
                )
            )
            for _ in range(chance.randint(0, 4)):
                broker.issue(chance.choice([1, 50, 91, 300, 5000]))
                read(fresh=chance.random() < 0.1)
        # The last thing written is sound, so that all damage is certain.
        broker.spoil = 0.0
        broker.put(Record(topic=b"orders", store_timestamp=NOW + 1000))
        broker.put(Record(topic=b"orders", store_timestamp=NOW + 1001))
        broker.issue(1 << 20)
        broker.nap()
        idle = 0
        while idle < 20:
            clock.now += 0.3
            idle = 0 if read(fresh=False) else idle + 1
        assert at == broker.end
        assert found == columns(stream(broker, clock), 0, broker.end)
        assert len(set(found)) == len(found)
        if most is None:
            assert seen == [row[:2] for row in found]
