"""Filters against a slow look at each value, and what they spare: files opened, bytes read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from reput.errors import SettingsError
from reput.format import consumequeue, names
from reput.format.commitlog import Record
from reput.newer_python import UTC
from reput.source import CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource
from reput.source.filters import Wanted, text_of
from reput.source.ranges import ReadStatistics
from tests.golden.store import unpack
from tests.sources import total
from tests.stores import LogWriter
from tests.unit.source.test_tables import EPOCH, reader_of, rows_of

START_MS = 1_700_000_000_000
COLUMNS = {"n": "bigint", "i": "int", "t": "timestamp", "s": "string"}

# What a filter means.

NUMBERS = st.one_of(
    st.none(), st.integers(-5, 5), st.sampled_from([-(2**63), 2**63 - 1, 2**31, -(2**31) - 1, 2**70])
)
TIMES = st.one_of(
    st.none(), st.integers(-4000, 4000).map(lambda us: EPOCH + timedelta(microseconds=us)), st.just(EPOCH)
)
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é"]))
OF_COLUMN = {"n": NUMBERS, "i": NUMBERS, "t": TIMES, "s": TEXTS}


@st.composite
def a_filter(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(list(COLUMNS)))
    values = OF_COLUMN[column]
    kinds = [EqualTo, EqualNullSafe]
    if column != "s":
        kinds += [LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual]
    made = st.one_of(
        st.sampled_from(kinds).flatmap(lambda kind: values.map(lambda value: kind((column,), value))),
        st.lists(values, max_size=4).map(lambda found: In((column,), tuple(found))),
        st.just(IsNotNull((column,))),
    )
    return draw(made)


def is_true(found: Any, value: Any) -> bool:
    """Whether SQL takes it for true; no value here is null."""
    match found:
        case IsNotNull():
            return True
        case In():
            return value in [one for one in found.value if one is not None]
        case _ if found.value is None:
            return False
        case EqualTo() | EqualNullSafe():
            return bool(value == found.value)
        case LessThan():
            return bool(value < found.value)
        case LessThanOrEqual():
            return bool(value <= found.value)
        case GreaterThan():
            return bool(value > found.value)
        case GreaterThanOrEqual():
            return bool(value >= found.value)
    raise AssertionError(found)


@given(st.lists(a_filter(), max_size=4))
def test_filters_are_what_they_say(filters: list[Filter]) -> None:
    wanted = Wanted()
    for one in filters:
        taken = wanted.and_(one, COLUMNS)
        if isinstance(one, EqualNullSafe) and one.value is None:
            assert taken is None
            return
        assert taken is not None
        wanted = taken
    for column, kind, values in (
        ("n", np.int64, [*range(-6, 7), -(2**63), 2**63 - 1, 2**31]),
        ("i", np.int32, [*range(-6, 7), -(2**31), 2**31 - 1]),
        ("t", np.int64, list(range(-6, 7))),
    ):
        own = [one for one in filters if one.attribute == (column,)]  # type: ignore[attr-defined]
        shown = [EPOCH + timedelta(milliseconds=ms) for ms in values] if column == "t" else values
        expected = [all(is_true(one, value) for one in own) for value in shown]
        which = wanted.range_of(column)
        assert which.holds(np.array(values, kind)).tolist() == expected
        if column == "t":
            for first, last in ((-3, 2), (4, 6), (0, 0)):
                held = [ms for ms, fits in zip(values, expected, strict=True) if fits and first <= ms <= last]
                assert which.clip(first, last) == ((held[0], held[-1]) if held else None)
    own = [one for one in filters if one.attribute == ("s",)]  # type: ignore[attr-defined]
    for text in ("", "a", "b", "é"):
        assert wanted.wants_text("s", text) == all(is_true(one, text) for one in own)


@pytest.mark.parametrize(
    "found",
    [
        Not(EqualTo(("n",), 1)),
        IsNull(("n",)),
        StringStartsWith(("s",), "a"),
        EqualTo(("n", "inner"), 1),
        EqualTo(("other",), 1),
        EqualTo(("n",), 1.0),
        EqualTo(("n",), True),
        EqualTo(("s",), 1),
        GreaterThan(("s",), "a"),
        EqualTo(("t",), 5),
        LessThan(("t",), datetime(2026, 1, 1)),  # noqa: DTZ001 - what Spark has for TIMESTAMP_NTZ
        In(("n",), (1, "x")),
    ],
)
def test_others_are_left_to_spark(found: Filter) -> None:
    assert Wanted().and_(found, COLUMNS) is None


def test_nothing_can_be_wanted() -> None:
    for filters in (
        [EqualTo(("n",), 1), GreaterThan(("n",), 1)],
        [EqualTo(("s",), "a"), EqualTo(("s",), "b")],
        [In(("n",), ())],
        [EqualTo(("t",), EPOCH + timedelta(microseconds=1))],
    ):
        wanted = Wanted()
        for one in filters:
            taken = wanted.and_(one, COLUMNS)
            assert taken is not None
            wanted = taken
        assert wanted.is_nothing
    assert not Wanted().is_nothing


def test_a_reader_can_do_without_filters(tmp_path: Path) -> None:
    """PySpark refuses to read from one that overrides pushFilters while the setting is off."""
    (tmp_path / names.INDEX).mkdir()
    for kind in (CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource):
        offered = reader_of(kind, tmp_path).pushFilters
        assert getattr(offered, "__func__", None) is DataSourceReader.pushFilters


# The same as text, for the option.


def test_conditions_are_the_same_filters(tmp_path: Path) -> None:
    store = unpack("5.5.0-batch-queue", tmp_path / "store")
    conf = store.write_broker_conf()
    told: dict[str, object] = {"brokerConf": conf}
    messages = rows_of(reader_of(CommitLogDataSource, store.root, **told))
    middle = messages[len(messages) // 2]["storeTimestamp"]
    for conditions, filters in (
        ([("topic", "=", messages[5]["topic"])], [EqualTo(("topic",), messages[5]["topic"])]),
        ([("storeTimestamp", ">=", middle)], [GreaterThanOrEqual(("storeTimestamp",), middle)]),
        (
            [("storeTimestamp", "is not null"), ("storeTimestamp", "<", middle)],
            [IsNotNull(("storeTimestamp",)), LessThan(("storeTimestamp",), middle)],
        ),
        (
            [("physicalOffset", "in", {0, 7, messages[3]["physicalOffset"]}), ("physicalOffset", ">", 5)],
            [In(("physicalOffset",), (messages[3]["physicalOffset"],))],
        ),
        (
            [("physicalOffset", "<=", 9000), ("physicalOffset", "==", messages[2]["physicalOffset"])],
            [EqualTo(("physicalOffset",), messages[2]["physicalOffset"])],
        ),
    ):
        for kind in (CommitLogDataSource, ConsumeQueueDataSource):
            asked = rows_of(reader_of(kind, store.root, where=text_of(conditions), **told))
            assert asked == rows_of(reader_of(kind, store.root, **told), *filters)
    # Both count.
    both = reader_of(CommitLogDataSource, store.root, where=text_of([("queueId", "=", 0)]), **told)
    assert rows_of(both, EqualTo(("queueId",), 1)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topic = 'a'", "where can't be read"),
        ("[" * 100_000, "where can't be read"),
        ('{"topic": "a"}', "where is no list"),
        ('["topic", "=", "a"]', "where has no such condition"),
        ('[["topic", "like", "a"]]', "where has no such condition"),
        ('[["topic", "="]]', "where has no such condition"),
        ('[["topic", "in", "a"]]', "where has no such condition"),
        ('[["topic", "=", ["a"]]]', "where has no such condition"),
        (
            '[["tags", "=", "a"]]',
            r"where can't ask for this column; expected one of store, topic, .* \.where",
        ),
        ('[["queueId", "=", "1"]]', "where compares with something of another type"),
        ('[["storeTimestamp", ">", 5]]', "where has a time that can't be told"),
        ('[["storeTimestamp", ">", "2026-01-31 08:00:00"]]', "where has a time that can't be told"),
    ],
)
def test_conditions_that_cannot_be_put(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        CommitLogDataSource({"path": "store", "where": text})


def test_parts_have_no_conditions() -> None:
    with pytest.raises(SettingsError, match="where can't ask for this column; expected no where"):
        CommitLogDataSource({"path": "store", "content": "parts", "where": '[["topic", "=", "a"]]'})
    with pytest.raises(SettingsError, match=r"where compares with something of another type; .* found 1\.5"):
        text_of([("queueId", "=", 1.5)])


def test_a_stream_takes_conditions_and_spares_no_segment(log: LogWriter) -> None:
    where = text_of([("topic", "=", "payments"), ("queueOffset", "<", 10)])
    source = CommitLogDataSource({"path": str(log.root), "where": where})
    reader = source.streamReader(source.schema())
    partitions = reader.partitions({"offset": 0}, {"offset": log.end})
    assert len(partitions) == 20
    found = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
    assert [row["queueOffset"] for row in found] == [0, 3, 6, 9]


def test_filters_that_nobody_asked_to_take_are_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / names.INDEX).mkdir()
    for kind in (CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource):
        filters = [EqualTo(("physicalOffset",), 1)]
        reader = reader_of(kind, tmp_path, pushFilters="false")
        assert list(reader.pushFilters(filters)) == filters
        assert reader.wanted == Wanted()


# What filters spare. Counted by the source itself, and by Python's own audit of what it opens and maps.

_OPENED: list[str] | None = None


def _audit(event: str, found: tuple[Any, ...]) -> None:
    if _OPENED is not None and event == "open" and isinstance(found[0], str) and not _looks_at_settings():
        _OPENED.append(found[0])


def _looks_at_settings() -> bool:
    """Whether what a store shows of its settings is asked: before any scan, and not counted."""
    frame = sys._getframe()
    while frame is not None and not frame.f_globals["__name__"].startswith("reput.config.basis"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


@contextmanager
def audited(root: Path) -> Iterator[list[str]]:
    """The files below ``root`` that the block opens."""
    global _OPENED
    if not getattr(sys, "_reput_audits", False):
        sys.addaudithook(_audit)
        sys._reput_audits = True  # type: ignore[attr-defined]
    found: list[str] = []
    _OPENED = []
    try:
        yield found
    finally:
        below = f"{root}{os.sep}"
        found += [path for path in _OPENED if path.startswith(below) and not path.endswith(".conf")]
        _OPENED = None


def read_with_report(
    kind: type[DataSource], root: Path, report: Path, *filters: Filter, **options: object
) -> tuple[list[dict[str, Any]], ReadStatistics, list[str]]:
    """The rows, what the source says that it read, and the files that were opened."""
    with audited(root) as files:
        rows = rows_of(reader_of(kind, root, readReport=report, **options), *filters)
    reads = total(report)
    assert reads.files == len(files)
    assert reads.rows == len(rows)
    return rows, reads, files


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    """Twenty segments of 10 kB; a message a second."""
    log = LogWriter(tmp_path / "store", segment_size=10_000)
    while log.end < 195_000:
        number = len(log.records)
        log.append(
            Record(
                topic=b"orders" if number % 3 else b"payments",
                queue_id=number % 4,
                queue_offset=number,
                body=b"%d" % number * 50,
                store_timestamp=START_MS + number * 1000,
            )
        )
    return log


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(seconds=seconds)


def test_an_offset_opens_one_segment_and_reads_one_record(log: LogWriter, tmp_path: Path) -> None:
    middle = log.records[len(log.records) // 2]
    rows, reads, files = read_with_report(
        CommitLogDataSource,
        log.root,
        tmp_path / "report",
        EqualTo(("physicalOffset",), middle.physical_offset),
    )
    assert [row["queueOffset"] for row in rows] == [middle.queue_offset]
    base = middle.physical_offset - middle.physical_offset % 10_000
    # The next segment's first record tells that the log goes on there.
    assert {Path(path).name for path in files} == {
        names.offset_name(base),
        names.offset_name(base + 10_000),
    }
    assert reads.read == rows[0]["size"]
    assert reads.read + reads.passed < 10_000 + 200
    every, all_touched, _ = read_with_report(CommitLogDataSource, log.root, tmp_path / "all")
    assert len(every) == len(log.records)
    # All of the log but what BLANKs leave of each segment, and the last segment twice, for the log's end.
    assert 0.9 * log.end < all_touched.read <= log.end
    assert all_touched.tasks == 20


def test_a_time_opens_the_segments_that_can_hold_it(log: LogWriter, tmp_path: Path) -> None:
    first, last = 300, 330
    rows, reads, _ = read_with_report(
        CommitLogDataSource,
        log.root,
        tmp_path / "report",
        GreaterThanOrEqual(("storeTimestamp",), at(first)),
        LessThan(("storeTimestamp",), at(last)),
        timeSlack="0ms",
    )
    assert [row["queueOffset"] for row in rows] == list(range(first, last))
    within = {record.physical_offset // 10_000 for record in log.records[first:last]}
    assert reads.tasks == len(within) < 4
    assert reads.read <= len(within) * 10_000
    # One look at each segment's first record, and one at the next one's again.
    assert reads.passed <= 21 * 200
    rows, slack, _ = read_with_report(
        CommitLogDataSource,
        log.root,
        tmp_path / "with slack",
        EqualTo(("storeTimestamp",), at(first)),
        timeSlack="60s",
    )
    assert [row["queueOffset"] for row in rows] == [first]
    assert reads.tasks < slack.tasks < 20


@pytest.mark.slow
def test_a_clock_that_went_back_loses_no_message(log: LogWriter, tmp_path: Path) -> None:
    back = LogWriter(tmp_path / "back", segment_size=10_000)
    for record in log.records:
        late = 600_000 if 200 <= record.queue_offset < 400 else 0
        back.append(replace(record, store_timestamp=record.store_timestamp + late))
    every = rows_of(reader_of(CommitLogDataSource, back.root))
    for slack, is_pruned in (("500s", False), ("600s", True)):
        for seconds in range(0, 1200, 97):
            report = tmp_path / f"{slack} {seconds}"
            reader = reader_of(CommitLogDataSource, back.root, timeSlack=slack, readReport=report)
            found = rows_of(reader, GreaterThan(("storeTimestamp",), at(seconds)))
            assert found == [row for row in every if row["storeTimestamp"] > at(seconds)]
            assert total(report).tasks == 20 or is_pruned


def test_first_records_that_tell_no_time_prune_nothing_wrongly(log: LogWriter, tmp_path: Path) -> None:
    for base in (50_000, 100_000):
        log.overwrite(base, b"\xff" * 60)
    log.overwrite(150_000, b"\xff" * 4)  # half a record: its time is there, and tells nothing
    every = rows_of(reader_of(CommitLogDataSource, log.root))
    for seconds in range(0, len(log.records), 37):
        found, reads, _ = read_with_report(
            CommitLogDataSource,
            log.root,
            tmp_path / str(seconds),
            LessThanOrEqual(("storeTimestamp",), at(seconds)),
            timeSlack="0ms",
        )
        assert found == [row for row in every if row["storeTimestamp"] <= at(seconds)]
        assert reads.tasks <= seconds // 20 + 4


def test_nothing_wanted_reads_nothing(log: LogWriter, tmp_path: Path) -> None:
    for number, filters in enumerate(
        (
            [EqualTo(("queueId",), 1), EqualTo(("queueId",), 2)],
            [GreaterThan(("physicalOffset",), 10**9)],
            [EqualTo(("store",), "/elsewhere")],
        )
    ):
        report = tmp_path / str(number)
        rows, reads, _ = read_with_report(CommitLogDataSource, log.root, report, *filters)
        assert (rows, reads) == ([], ReadStatistics())


def test_an_end_that_is_not_wanted_is_not_looked_for(log: LogWriter, tmp_path: Path) -> None:
    last = log.root / names.COMMIT_LOG / names.offset_name(190_000)
    _, reads, files = read_with_report(
        CommitLogDataSource, log.root, tmp_path / "report", LessThan(("physicalOffset",), 15_000)
    )
    assert str(last) not in files
    assert reads.tasks == 2
    assert reads.read < 15_500  # the last record goes on behind it
    for base in (30_000, 40_000):
        # No record begins there: then it can't be known that the log goes on, and its end is looked for.
        log.overwrite(base, bytes(60))
        (*_, files) = read_with_report(
            CommitLogDataSource,
            log.root,
            tmp_path / str(base),
            LessThan(("physicalOffset",), base),
        )
        assert str(last) in files


def test_topics_and_queues_are_chosen_before_anything_is_copied(log: LogWriter, tmp_path: Path) -> None:
    wanted = [EqualTo(("topic",), "payments"), EqualTo(("queueId",), 2), LessThan(("queueOffset",), 100)]
    rows, reads, _ = read_with_report(CommitLogDataSource, log.root, tmp_path / "report", *wanted)
    chosen = [record for record in log.records if record.topic == b"payments" and record.queue_id == 2]
    chosen = [record for record in chosen if record.queue_offset < 100]
    assert [row["queueOffset"] for row in rows] == [record.queue_offset for record in chosen]
    assert 0 < len(rows) < 10
    _, every, _ = read_with_report(CommitLogDataSource, log.root, tmp_path / "every")
    # Topics are copied to be compared, where the numbers fit; all else of the chosen messages alone.
    assert reads.copied < every.copied / 40


@pytest.fixture
def small_pages() -> Iterator[Path]:
    """A directory in memory: of what lies on disks, up to 2 MiB are cached as one and mapped at one touch."""
    with TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def test_a_body_that_is_not_asked_for_is_not_touched(small_pages: Path) -> None:
    """By the pages of the file that the process has mapped: some for each header, whatever lies between."""
    log = LogWriter(small_pages / "store", segment_size=12 << 20)
    body = bytes(range(256)) * (2 << 10)
    log.append(*(Record(topic=b"big", body=body, queue_offset=number) for number in range(20)))
    segment = log.root / names.COMMIT_LOG / names.offset_name(0)
    reads, resident = {}, {}
    for column, kind in (("topic", StringType()), ("body", BinaryType())):
        report = small_pages / column
        source = CommitLogDataSource({"path": str(log.root), "readReport": str(report)})
        reader = source.reader(StructType().add(column, kind))
        (partition,) = reader.partitions()
        resident[column] = 0
        for batch in reader.read(partition):
            resident[column] = max(resident[column], _resident(segment))
            assert isinstance(batch, pa.RecordBatch)
            assert batch.num_rows
        reads[column] = total(report)
    assert reads["topic"].copied == 20 * len("big")
    assert reads["body"].copied == 20 * len(body)
    assert resident["body"] > 18 * len(body)
    # The last record's CRC is looked at: nothing whole follows it.
    assert resident["topic"] < 8 * len(body)


def _resident(path: Path) -> int:
    """Bytes of a file's pages that this process has mapped: ``Rss`` of /proc/self/smaps."""
    resident, is_it = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_it = line.endswith(str(path))
        elif is_it and line.startswith("Rss:"):
            resident += int(line.split()[1]) << 10
    return resident


# Consume queues and index files.


def test_a_queue_offset_reads_only_its_units(tmp_path: Path) -> None:
    store = unpack("5.5.0-mixed", tmp_path / "store")
    conf = store.write_broker_conf()
    every = rows_of(reader_of(ConsumeQueueDataSource, store.root, brokerConf=conf))
    picked = max(every, key=lambda row: row["queueOffset"])
    wanted = [EqualTo((column,), picked[column]) for column in ("topic", "queueId")]
    rows, reads, files = read_with_report(
        ConsumeQueueDataSource, store.root, tmp_path / "queue", *wanted, brokerConf=conf
    )
    queue = store.root / names.CONSUME_QUEUE / picked["topic"] / str(picked["queueId"])
    # The ends of a partition's ranges are read by the planner and by the task, which compares them.
    assert sorted(set(files)) == sorted(map(str, queue.iterdir()))
    assert len(rows) == picked["queueOffset"] + 1 - rows[0]["queueOffset"]
    low = picked["queueOffset"] - 9
    wanted += [GreaterThanOrEqual(("queueOffset",), low)]
    rows, reads, _ = read_with_report(
        ConsumeQueueDataSource, store.root, tmp_path / "offsets", *wanted, brokerConf=conf
    )
    assert [row["queueOffset"] for row in rows] == list(range(low, low + 10))
    length = max(queue.iterdir()).stat().st_size
    assert 10 * consumequeue.UNIT_LENGTH <= reads.read <= length
    # A plain queue knows no time.
    (*_, reads, files) = read_with_report(
        ConsumeQueueDataSource,
        store.root,
        tmp_path / "time",
        IsNotNull(("storeTimestamp",)),
        brokerConf=conf,
    )
    assert reads == ReadStatistics()


def test_index_files_are_chosen_by_their_headers(tmp_path: Path) -> None:
    store = unpack("5.5.0-mixed", tmp_path / "store")
    conf = store.write_broker_conf()
    every, all_touched, _ = read_with_report(IndexDataSource, store.root, tmp_path / "all", brokerConf=conf)
    files = sorted({row["file"] for row in every})
    assert len(files) > 2
    assert all_touched.read == len(every) * 20
    third = [row for row in every if row["file"] == files[2]]
    picked = third[len(third) // 2]
    for number, wanted in enumerate(
        (EqualTo(("physicalOffset",), picked["physicalOffset"]), EqualTo(("file",), picked["file"]))
    ):
        rows, reads, _ = read_with_report(
            IndexDataSource, store.root, tmp_path / str(number), wanted, brokerConf=conf
        )
        column = wanted.attribute[0]
        assert rows == [row for row in every if row[column] == picked[column]]
        assert len(third) * 20 <= reads.read < (len(third) + 400) * 20
    first, last = every[0]["storeTimestamp"], every[-1]["storeTimestamp"]
    for number, moment in enumerate((first, first + (last - first) / 2, last)):
        rows, reads, _ = read_with_report(
            IndexDataSource,
            store.root,
            tmp_path / f"time {number}",
            GreaterThanOrEqual(("storeTimestamp",), moment),
            brokerConf=conf,
            timeSlack="0ms",
        )
        assert rows == [row for row in every if row["storeTimestamp"] >= moment]
    assert reads.read < all_touched.read
