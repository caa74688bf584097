"""Planning: options, parts, the log's end; without Spark, and without what planning mustn't load."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from reput.config.settings import StoreSettings
from reput.errors import ReputError, SegmentGoneError, SettingsError, StoreError
from reput.format import commitlog, names
from reput.format.commitlog import Record
from reput.log.end import LogEnd
from reput.log.segments import CommitLog, discover
from reput.scan.rules import Part
from reput.source import CommitLogDataSource
from reput.source import options as options_module
from reput.source.columns import (
    INDEX_COLUMNS,
    INDEX_FILTERS,
    MESSAGE_COLUMNS,
    MESSAGE_FILTERS,
    PART_COLUMNS,
    QUEUE_COLUMNS,
    QUEUE_FILTERS,
)
from reput.source.commitlog import CommitLogStreamReader
from reput.source.options import Options
from tests.conftest import LIB
from tests.stores import LogWriter

ALL = ReadAllAvailable()


def source(root: Path, **options: object) -> CommitLogDataSource:
    texts = {name: str(value) for name, value in options.items()}
    return CommitLogDataSource(CaseInsensitiveDict({"path": str(root), **texts}))


def stream(root: Path, **options: object) -> CommitLogStreamReader:
    one = source(root, **options)
    reader = one.streamReader(one.schema())
    assert isinstance(reader, CommitLogStreamReader)
    return reader


def parts_of(partitions: object) -> list[Part]:
    assert isinstance(partitions, list)
    return [part for partition in partitions for part in partition.value]


def batch_parts(root: Path, **options: object) -> list[Part]:
    one = source(root, content="parts", **options)
    return parts_of(one.reader(one.schema()).partitions())


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "store", segment_size=1000)


def message(number: int, **fields: object) -> Record:
    return Record(topic=b"orders", body=b"%d" % number, queue_offset=number, **fields)  # type: ignore[arg-type]


def found(log: LogWriter) -> CommitLog:
    return discover(StoreSettings.load(log.root, None, None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"content": "units"},
            r"content isn't one that the source has; expected messages or parts, found 'units'",
        ),
        ({"startOffset": "-1"}, r"startOffset isn't a physical offset; expected .*, found '-1'"),
        ({"startOffset": ""}, r"startOffset isn't a physical offset"),
        ({"endOffset": "9223372036854775808"}, r"endOffset isn't a physical offset"),
        (
            {"startOffset": "2", "endOffset": "1"},
            r"startOffset lies behind endOffset; expected at most 1, found 2",
        ),
        ({"partBytes": "0"}, r"partBytes isn't a size"),
        ({"maxBytesPerTrigger": "5 apples"}, r"maxBytesPerTrigger isn't a size; .* found '5 apples'"),
        ({"maxBytesPerTrigger": "9999999t"}, r"maxBytesPerTrigger isn't a size"),
        ({"maxBytesPerSecond": "fast"}, r"maxBytesPerSecond isn't a size"),
        ({"storeColumn": "true", "content": "parts"}, r"parts have no column store: their path tells it"),
        (
            {"maxMessagesPerTrigger": "0"},
            r"maxMessagesPerTrigger isn't a number of messages; expected 1 or more",
        ),
        ({"startOffset": "1", "startingTimestamp": "1"}, r"a stream has one start; .* found startOffset 1, "),
        ({"startingTimestamp": "2026-01-31 08:00"}, r"startingTimestamp has a time that can't be told"),
        ({"startQueueOffsets": "{}"}, r"startQueueOffsets can't be read; expected {\"TOPIC\""),
        ({"startQueueOffsets": '{"a": {"0": -1}}'}, r"startQueueOffsets can't be read"),
        ({"startQueueOffsets": '{"a": {"0": 1}, "a": {"1": 1}}'}, r"startQueueOffsets can't be read"),
        ({"startQueueOffsets": '{"a": {"0": 1, "00": 1}}'}, r"startQueueOffsets can't be read"),
        ({"startQueueOffsets": "[" * 100_000}, r"startQueueOffsets can't be read"),
        ({"endQueueOffsets": '{"a": {"x": 1}}'}, r"endQueueOffsets can't be read"),
        ({"endQueueOffsets": '{"a": {"\u0661": 1}}'}, r"endQueueOffsets can't be read"),
        (
            {"startQueueOffsets": '{"a": {"0": 5}}', "endQueueOffsets": '{"a": {"0": 4}}'},
            r"startQueueOffsets lies behind endQueueOffsets; expected at most 4 for queue 0 of a, found 5",
        ),
        ({"endQueueOffsets": '{"a": [1]}'}, r"endQueueOffsets can't be read"),
        ({"endQueueOffsets": '{"a": {"0": 1}}', "content": "parts"}, r"parts hold messages of many queues"),
        ({"live": "yes"}, r"live isn't a switch; expected true or false, found 'yes'"),
        ({"live": "true", "endOffset": "7"}, r"live without endOffset, found endOffset 7"),
        ({"offset": "1"}, r"the source has no such option; .* found offset"),
        ({"rocketmqVersion": "3.2"}, r"this RocketMQ version isn't known"),
        ({"brokerConf": "/nowhere/broker.conf"}, r"/nowhere/broker.conf: this broker.conf can't be read"),
        ({"path": ""}, r"the source needs a path"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Options.parse({"path": "store", **options})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("3k", 3072),
        ("512m", 512 << 20),
        ("4G", 4 << 30),
        ("1 tb", 1 << 40),
        ("2MiB", 2 << 20),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert Options.parse({"path": "store", "MAXBYTESPERTRIGGER": text}).max_bytes_per_trigger == size


def test_parts_are_cut_at_multiples_from_each_segments_base(log: LogWriter) -> None:
    for base in (3000, 4000):
        log.preallocate(base)
    path = log.root / names.COMMIT_LOG
    first, second = str(path / names.offset_name(3000)), str(path / names.offset_name(4000))
    assert batch_parts(log.root, startOffset=3100, endOffset=4500, partBytes=400) == [
        Part(first, 3000, 1000, 1000, 3100, 3400, True, False),
        Part(first, 3000, 1000, 1000, 3400, 3800, False, False),
        Part(first, 3000, 1000, 1000, 3800, 4000, False, False),
        Part(second, 4000, 1000, 1000, 4000, 4400, True, True),
        Part(second, 4000, 1000, 1000, 4400, 4500, False, True),
    ]
    assert [(part.start, part.end) for part in batch_parts(log.root, endOffset=9999)] == [
        (3000, 4000),
        (4000, 5000),
    ]
    assert batch_parts(log.root, startOffset=5000, endOffset=5000) == []
    with pytest.raises(
        SettingsError, match="startOffset lies behind the commit log; expected at most 5000, found 5001"
    ):
        batch_parts(log.root, startOffset=5001)


def test_gaps_and_short_segments_have_no_parts(log: LogWriter) -> None:
    for base in (0, 1000, 3000):
        log.preallocate(base)
    with log.preallocate(1000).open("r+b") as file:
        file.truncate(300)
    assert [(part.start, part.end) for part in batch_parts(log.root, endOffset=4000)] == [
        (0, 1000),
        (1000, 1300),
        (3000, 4000),
    ]


def test_all_parts_of_a_batch_are_one_partition_and_messages_one_each(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(30)))
    one = source(log.root, content="parts", partBytes=100)
    assert len(one.reader(one.schema()).partitions()) == 1
    one = source(log.root, partBytes=500)
    partitions = one.reader(one.schema()).partitions()
    assert len(partitions) == len(parts_of(partitions)) == -(-log.end // 500)


def test_a_reader_can_be_pickled_after_it_has_looked_at_the_log(log: LogWriter) -> None:
    log.append(message(1))
    reader = stream(log.root)
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": log.end}
    again = pickle.loads(pickle.dumps(reader))
    assert again.latestOffset({"offset": 0}, ALL) == {"offset": log.end}


def test_columns_that_are_not_there_are_refused(log: LogWriter) -> None:
    one = source(log.root)
    with pytest.raises(SettingsError, match=r"the source has no such column; .* found topics string"):
        one.reader(StructType().add("topics", "string"))
    with pytest.raises(
        SettingsError, match=r"another type; expected queueId int, nullable, found queueId bigint"
    ):
        one.reader(StructType().add("queueId", "long"))
    with pytest.raises(SettingsError, match=r"found topic string not null"):
        one.reader(StructType().add("topic", "string", nullable=False))


def test_planning_parts_loads_neither_numba_nor_pandas(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(30)))
    script = f"""
import pickle, sys
from pyspark.sql.datasource import CaseInsensitiveDict
from reput.source import CommitLogDataSource
source = CommitLogDataSource(CaseInsensitiveDict(
    {{"path": {str(log.root)!r}, "content": "parts", "endOffset": "9999", "maxBytesPerTrigger": "100"}}))
reader = pickle.loads(pickle.dumps(source)).streamReader(source.schema())
reader.prepareForTriggerAvailableNow()
end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
assert end == {{"offset": 100}}, end
assert reader.reportLatestOffset() == {{"offset": 3000}}, reader.reportLatestOffset()
(partition,) = pickle.loads(pickle.dumps(reader.partitions({{"offset": 0}}, {{"offset": 9999}})))
(rows,) = reader.read(partition)
assert rows.num_rows == {len(found(log).segments)}, rows
print(sorted({{"numba", "pandas"}} & set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(LIB)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


# Where the log ends.


def end_of(log: LogWriter, end: LogEnd | None = None) -> int:
    return (end or LogEnd(StoreSettings.load(log.root, None, None))).find(found(log))


def test_the_end_grows_with_the_log_and_crosses_segments(log: LogWriter) -> None:
    log.preallocate(0)
    end = LogEnd(StoreSettings.load(log.root, None, None))
    assert end_of(log, end) == 0
    for number in range(40):
        log.append(message(number))
        assert end_of(log, end) == end_of(log) == log.end


def test_a_segment_made_ahead_of_time_is_no_successor(log: LogWriter) -> None:
    log.append(message(1))
    log.preallocate(1000)
    end = LogEnd(StoreSettings.load(log.root, None, None))
    assert end_of(log, end) == end_of(log, end) == log.end
    log.append(message(2))
    assert end_of(log, end) == end_of(log) == log.end


def test_after_a_blank_the_end_is_the_next_segment(log: LogWriter) -> None:
    log.append(message(1))
    log.overwrite(log.end, commitlog.encode_blank(1000 - log.end))
    assert end_of(log) == 1000
    log.preallocate(1000)
    assert end_of(log) == 1000


def test_a_half_written_record_waits_byte_by_byte(log: LogWriter) -> None:
    now = 1_700_000_000_000
    log.append(message(1))
    whole = commitlog.encode(
        message(2, physical_offset=log.end, properties=b"TAGS\x01paid\x02", store_timestamp=now)
    )
    end = LogEnd(StoreSettings.load(log.root, None, None), lambda: float(now + 50))
    for count in range(len(whole)):
        log.overwrite(log.end, whole[:count])
        assert end_of(log, end) == log.end, f"after {count} bytes"
    log.overwrite(log.end, whole)
    assert end_of(log, end) == log.end + len(whole)


def test_a_record_that_ends_in_a_zero_counts_once_it_is_old_or_followed(log: LogWriter) -> None:
    now = 1_700_000_000_000
    log.append(message(1, properties=b"a\x01\0", store_timestamp=now))
    settings = StoreSettings.load(log.root, None, None)
    assert end_of(log, LogEnd(settings, lambda: float(now + 1999))) == 0
    assert end_of(log, LogEnd(settings, lambda: float(now + 2001))) == log.end
    log.append(message(2, store_timestamp=now))
    assert end_of(log, LogEnd(settings, lambda: float(now))) == log.end


def test_damage_in_the_tail_is_passed_over(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(8)))
    log.overwrite(log.records[2].physical_offset, b"\xff" * 200)
    assert end_of(log) == log.end
    log.overwrite(log.records[2].physical_offset, bytes(200))
    assert end_of(log) == log.end
    end = LogEnd(StoreSettings.load(log.root, None, None))
    assert end_of(log, end) == log.end
    at = log.end
    log.append(message(8), message(9))
    log.overwrite(at, b"\xff" * 20)
    assert end_of(log, end) == log.end


def test_a_log_that_was_cut_and_written_again_is_walked_again(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(6)))
    end = LogEnd(StoreSettings.load(log.root, None, None))
    assert end_of(log, end) == log.end
    log.end = log.records[2].physical_offset
    log.append(Record(topic=b"another", body=b"x" * 30))
    log.overwrite(log.end, bytes(1000 - log.end))
    assert end_of(log, end) == log.end


# The stream's offsets.


def test_offsets_advance_by_at_most_the_limit_and_always_by_something(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(30)))
    reader = stream(log.root, maxBytesPerTrigger="700")
    caught_up = {"lagBytes": 0, "lagMessages": 0, "lagSeconds": 0}
    assert reader.getDefaultReadLimit() == ReadMaxBytes(700)
    assert stream(log.root).getDefaultReadLimit() == ALL
    offset = reader.initialOffset()
    assert offset == {"offset": 0}
    assert reader.reportLatestOffset() is None
    assert reader.latestOffset(offset, ReadMaxBytes(700)) == {"offset": 700}
    assert reader.latestOffset({"offset": 700}, ReadMaxBytes(1)) == {"offset": 701}
    assert reader.latestOffset({"offset": 700}, ALL) == {"offset": log.end}
    assert reader.latestOffset({"offset": log.end}, ALL) == {"offset": log.end}
    assert reader.reportLatestOffset() == {"offset": log.end, "storeTimestamp": 0, **caught_up}
    assert reader.partitions({"offset": log.end}, {"offset": log.end}) == []


def test_available_now_fixes_the_end(log: LogWriter) -> None:
    log.append(message(1))
    reader = stream(log.root)
    reader.prepareForTriggerAvailableNow()
    fixed = log.end
    log.append(*(message(number) for number in range(20)))
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": fixed}
    assert reader.latestOffset({"offset": fixed}, ALL) == {"offset": fixed}
    left = {"lagBytes": log.end - fixed, "lagMessages": 20, "lagSeconds": 0}
    assert reader.reportLatestOffset() == {"offset": log.end, "storeTimestamp": 0, **left}


def test_an_end_offset_is_taken_as_it_is_up_to_the_files_end(log: LogWriter) -> None:
    log.append(message(1))
    assert stream(log.root, endOffset=600).latestOffset({"offset": 0}, ALL) == {"offset": 600}
    assert stream(log.root, endOffset=6000).latestOffset({"offset": 0}, ALL) == {"offset": 1000}
    assert stream(log.root, endOffset=600).latestOffset({"offset": 700}, ALL) == {"offset": 700}


def test_an_expired_head_is_stepped_over_and_said(log: LogWriter, caplog: pytest.LogCaptureFixture) -> None:
    log.append(*(message(number) for number in range(30)))
    (log.root / names.COMMIT_LOG / names.offset_name(0)).unlink()
    (log.root / names.COMMIT_LOG / names.offset_name(1000)).unlink()
    reader = stream(log.root, content="parts", partBytes=500, failOnDataLoss=False)
    # The limit counts from where the log begins now, so that no batch is empty.
    end = reader.latestOffset({"offset": 100}, ReadMaxBytes(300))
    assert end == {"offset": 2300, "expiredBytes": 1900}
    assert reader.latestOffset(end, ReadMaxBytes(300)) == {"offset": 2600, "expiredBytes": 1900}
    assert [(part.start, part.end) for part in parts_of(reader.partitions({"offset": 100}, end))] == [
        (2000, 2300)
    ]
    assert "the commit log begins at offset 2000; messages from 100 on have expired" in caplog.text


def test_an_expired_head_ends_a_stream_unless_it_may_be_left_out(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(30)))
    reader = stream(log.root)
    (planned,) = reader.partitions({"offset": 100}, {"offset": 900})
    (log.root / names.COMMIT_LOG / names.offset_name(0)).unlink()
    with pytest.raises(SegmentGoneError, match=r"offset 100: .* found one that begins at 1000\. .*=false"):
        reader.partitions({"offset": 100}, reader.latestOffset({"offset": 100}, ALL))
    with pytest.raises(SegmentGoneError, match=r"offset 100: .* found one without 0{20}\. .*=false"):
        list(reader.read(planned))
    assert list(stream(log.root, failOnDataLoss=False).read(planned)) == []
    assert reader.partitions({"offset": 1000}, {"offset": 1100})


def test_a_missing_segment_ends_a_stream_unless_it_may_be_left_out(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(60)))
    (log.root / names.COMMIT_LOG / names.offset_name(1000)).unlink()
    reader = stream(log.root)
    assert reader.partitions({"offset": 100}, {"offset": 1000})
    assert reader.partitions({"offset": 2000}, {"offset": 2100})
    for start, end in ((100, 2100), (1200, 2100), (100, 1001)):
        with pytest.raises(
            SegmentGoneError, match=r"offset 1[02]00: .*found none between 0{20} and 0+2000\. "
        ):
            reader.partitions({"offset": start}, {"offset": end})
    left_out = stream(log.root, failOnDataLoss=False).partitions({"offset": 100}, {"offset": 2100})
    assert [(part.start, part.end) for part in parts_of(left_out)] == [(100, 1000), (2000, 2100)]


def test_proofs_and_reports_lie_where_they_can(log: LogWriter, tmp_path: Path) -> None:
    log.append(message(1))
    with pytest.raises(SettingsError, match="nowhere: there are no proofs; expected"):
        source(log.root, proofs=tmp_path / "nowhere")
    for place in (log.root, log.root / "commitlog" / "reads", log.root / ".." / log.root.name / "reads"):
        with pytest.raises(SettingsError, match="readReport lies in the store"):
            source(log.root, readReport=place)
    source(log.root, readReport=tmp_path / "reads")


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_a_batch_has_so_many_messages(log: LogWriter, most: int) -> None:
    log.append(*(message(number) for number in range(30)))
    log.overwrite(log.records[10].physical_offset, b"\xff" * 4)
    whole = [record.physical_offset for record in log.records if record.queue_offset != 10]
    reader = stream(log.root, maxMessagesPerTrigger=most, partBytes=500)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(most)
    found, offset = [], reader.initialOffset()
    while (end := reader.latestOffset(offset, limit)) != offset:
        rows = [
            place
            for partition in reader.partitions(offset, end)
            for batch in reader.read(partition)
            for place in batch.column("physicalOffset").to_pylist()
        ]
        left = reader.reportLatestOffset()
        assert left is not None
        assert left["lagMessages"] == len(whole) - len(found) - len(rows)
        assert len(rows) == min(most, len(whole) - len(found))
        found += rows
        offset = end
    assert sorted(found) == whole


def test_a_batch_keeps_both_limits(log: LogWriter) -> None:
    log.append(*(message(number) for number in range(30)))
    third, fifth = (log.records[number].physical_offset for number in (3, 5))
    reader = stream(log.root, maxMessagesPerTrigger=3, maxBytesPerTrigger=fifth)
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset({"offset": 0}, limit) == {"offset": third}
    reader = stream(log.root, maxMessagesPerTrigger=7, maxBytesPerTrigger=fifth)
    assert reader.latestOffset({"offset": 0}, limit := reader.getDefaultReadLimit()) == {"offset": fifth}
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": log.end}


def test_lag_in_seconds_is_that_of_the_oldest_message_not_read(log: LogWriter) -> None:
    log.append(*(message(number, store_timestamp=1_000_000 + 2_000 * number) for number in range(30)))
    reader = stream(log.root)
    reader.latestOffset({"offset": 0}, ReadMaxBytes(log.records[20].physical_offset - 1))
    assert reader.reportLatestOffset() == {
        "offset": log.end,
        "storeTimestamp": 1_058_000,
        "lagBytes": log.end - log.records[20].physical_offset + 1,
        "lagMessages": 10,
        "lagSeconds": 18,
    }


@pytest.mark.parametrize("live", [False, True])
def test_a_start_by_time_or_at_the_end(log: LogWriter, live: bool) -> None:
    log.append(*(message(number, store_timestamp=1_000 * number) for number in range(1, 31)))
    places = [record.physical_offset for record in log.records]

    def start(**options: object) -> int:
        return stream(log.root, live=live, **options).initialOffset()["offset"]

    assert start(startingTimestamp=0) == 0
    tried = (17,) if live else range(1, 31)  # each waits for the end of a live log
    assert [start(startingTimestamp=1_000 * at) for at in tried] == [places[at - 1] for at in tried]
    if not live:
        assert start(startingTimestamp=15_001, timeSlack="1ms") == places[15]
        assert start(startingTimestamp="1970-01-01T00:00:15.0009Z") == places[15]
        assert start(startingTimestamp="1970-01-01T01:00:15+01:00") == places[14]
    assert start(startingTimestamp=30_001) == start(startOffset="latest") == log.end


def test_a_clock_that_went_back_loses_nothing_within_its_slack(log: LogWriter) -> None:
    times = [1, 2, 9, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
    log.append(*(message(at, store_timestamp=1_000 * time) for at, time in enumerate(times)))
    reader = stream(log.root, startingTimestamp=9_000)
    assert reader.initialOffset() == {"offset": log.records[2].physical_offset}


def test_of_the_queues_that_are_named_what_is_asked_for(log: LogWriter) -> None:
    for number in range(40):
        log.append(Record(topic=b"ab"[number % 2 :][:1], queue_id=number % 4 // 2, queue_offset=number // 4))

    def rows(**options: object) -> list[tuple[str, int, int]]:
        one = source(log.root, partBytes=500, **options)
        reader = one.reader(one.schema())
        names_ = ("topic", "queueId", "queueOffset")
        return [
            row
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for row in zip(*(batch.column(name).to_pylist() for name in names_), strict=True)
        ]

    found = rows(
        startQueueOffsets='{"a": {"0": 7, "1": 99}}', endQueueOffsets='{"b": {"1": 2}, "a": {"0": 9}}'
    )
    assert sorted(found) == [("a", 0, 7), ("a", 0, 8), ("b", 1, 0), ("b", 1, 1)]
    where = '[["topic", "=", "b"]]'
    assert rows(startQueueOffsets='{"a": {"0": 0}}', where=where) == []
    assert rows(endQueueOffsets='{"a": {"0": 1}, "b": {"0": 1}}', where=where) == [("b", 0, 0)]


def test_a_log_that_shrank_is_an_error(log: LogWriter) -> None:
    log.append(message(1))
    with pytest.raises(
        StoreError, match=r"the commit log ends before the offset .* expected an end of at least 500"
    ):
        stream(log.root).latestOffset({"offset": 500}, ALL)


def test_an_empty_store_is_an_error(log: LogWriter) -> None:
    (log.root / names.COMMIT_LOG).mkdir(parents=True)
    with pytest.raises(ReputError, match="the commit log is empty"):
        stream(log.root).initialOffset()


def test_the_partition_that_spark_makes_up_has_no_rows(log: LogWriter) -> None:
    log.append(message(1))
    for content in ("messages", "parts"):
        one = source(log.root, content=content)
        assert list(one.reader(one.schema()).read(InputPartition(None))) == []


def named_in(section: str) -> list[tuple[str, str]]:
    """What the rows of a section's tables begin with, and their second cells."""
    page = (LIB.parent / "docs" / "data" / "columns.md").read_text(encoding="utf-8")
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
    return [(name, kind.strip()) for cell, kind, _ in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_page_names_every_option_and_column() -> None:
    names = [name for name, _ in named_in("Options of sources")]
    assert names == [*options_module.SHARED_NAMES, *options_module.NAMES, *options_module.QUEUE_NAMES]
    assert named_in("Messages") == [*MESSAGE_COLUMNS.items()]
    assert named_in("Parts") == [*PART_COLUMNS.items()]
    assert named_in("Consume queues") == [*QUEUE_COLUMNS.items()]
    assert named_in("Index") == [*INDEX_COLUMNS.items()]


def test_the_page_names_every_column_that_conditions_can_ask_for() -> None:
    text = (LIB.parent / "docs" / "sql.md").read_text(encoding="utf-8")
    section = text.partition("## Conditions")[2].partition("**Times.**")[0]
    rows = [line.split("|")[1:5] for line in re.findall(r"^\| [a-zA-Z, ]+ \|.*\|$", section, re.MULTILINE)]
    for place, filters in enumerate((MESSAGE_FILTERS, QUEUE_FILTERS, INDEX_FILTERS), 1):
        asked = [row[0].strip() for row in rows if row[0].strip() != "column" and row[place].strip()]
        assert sorted(name for cell in asked for name in cell.split(", ")) == sorted(filters)


def test_parts_that_lie_in_holes_of_a_segment_are_left_out(tmp_path: Path) -> None:
    size = 4 << 20
    log = LogWriter(tmp_path / "store", segment_size=size)
    log.append(Record(topic=b"orders", body=b"1"))
    log.overwrite(log.end, commitlog.encode_blank(size - log.end))
    log.end = size
    log.append(Record(topic=b"orders", body=b"2"))
    for path in sorted((log.root / names.COMMIT_LOG).iterdir()):
        path.write_bytes(path.read_bytes().rstrip(b"\0"))
        with path.open("r+b") as file:
            file.truncate(size)
    one = source(log.root, partBytes="1m")
    partitions = one.reader(one.schema()).partitions()
    assert [(part.start, part.end) for part in parts_of(partitions)] == [(0, 1 << 20), (size, log.end)]
    assert len(batch_parts(log.root, partBytes="1m")) == 5
