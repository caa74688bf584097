"""A stream over a live log, without Spark: what it plans, what it reports, how fast it goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper, _streamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from reput.config.settings import StoreSettings
from reput.errors import LogWentBackError, SegmentGoneError, StoreError
from reput.format import names
from reput.format.commitlog import Record
from reput.log import live
from reput.log.segments import CommitLog, map_segment
from reput.source import CommitLogDataSource
from reput.source import commitlog as source
from reput.source.commitlog import CommitLogStreamReader, PartsReader, Rate
from tests.stores import LogWriter

ALL = ReadAllAvailable()
NOW = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "store", segment_size=1000)


@pytest.fixture(autouse=True)
def _little_waiting() -> Iterator[None]:
    before, source._WAIT_SECONDS = source._WAIT_SECONDS, 0.01
    yield
    source._WAIT_SECONDS = before


def stream(log: LogWriter, **options: object) -> CommitLogStreamReader:
    texts = {name: str(value) for name, value in options.items()}
    one = CommitLogDataSource(CaseInsensitiveDict({"path": str(log.root), "live": "true", **texts}))
    reader = one.streamReader(one.schema())
    assert isinstance(reader, CommitLogStreamReader)
    return reader


def parts_stream(log: LogWriter, **options: object) -> PartsReader:
    texts = {name: str(value) for name, value in options.items()}
    one = CommitLogDataSource(
        CaseInsensitiveDict({"path": str(log.root), "live": "true", "content": "parts", **texts})
    )
    # As Spark does: the one that sends rows along with the plan.
    wrapper = _streamReader(one, one.schema())
    assert isinstance(wrapper, _SimpleStreamReaderWrapper)
    assert isinstance(wrapper.simple_reader, PartsReader)
    return wrapper.simple_reader


def messages(*numbers: int) -> list[Record]:
    return [
        Record(topic=b"t", body=b"%d" % number, queue_offset=number, store_timestamp=NOW + number)
        for number in numbers
    ]


def left(size: int, messages: int) -> dict[str, int]:
    return {"lagBytes": size, "lagMessages": messages, "lagSeconds": 0}


def test_what_is_reported_is_the_logs_end_whatever_the_limit(log: LogWriter) -> None:
    log.preallocate(0)
    reader = stream(log)
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": 0}
    assert reader.reportLatestOffset() == {"offset": 0, "storeTimestamp": 0, **left(0, 0)}
    log.append(*messages(1, 2, 3))
    assert reader.latestOffset({"offset": 0}, ReadMaxBytes(10)) == {"offset": 10}
    assert reader.reportLatestOffset() == {
        "offset": log.end,
        "storeTimestamp": NOW + 3,
        **left(log.end - 10, 2),
    }


def test_a_segment_made_ahead_of_time_is_no_successor_for_the_scan_either(log: LogWriter) -> None:
    log.preallocate(0)
    log.preallocate(1000)
    reader = stream(log)
    reader.latestOffset({"offset": 0}, ALL)
    log.append(*messages(1, 2, 3))
    end = reader.latestOffset({"offset": 0}, ALL)
    (partition,) = reader.partitions({"offset": 0}, end)
    assert [part.last for part in partition.value] == [True]


def test_the_messages_of_parts_are_counted(log: LogWriter) -> None:
    log.append(*messages(*range(1, 21)))
    reader = parts_stream(log)

    def counted(start: int, end: int) -> list[tuple[int | None, int | None]]:
        (rows,) = reader.readBetweenOffsets({"offset": start}, {"offset": end})
        return [(row["messages"], row["firstTimestamp"]) for row in rows.to_pylist()]

    whole = counted(0, log.end)
    assert len(whole) == 2
    assert sum(count or 0 for count, _ in whole) == 20
    assert whole[0][1] == NOW + 1
    second, third = (log.records[number].physical_offset for number in (1, 2))
    assert counted(second, third) == [(1, NOW + 2)]
    assert counted(second, third + 1) == [(None, None)]
    assert counted(second + 1, third) == [(None, None)]


def test_parts_come_with_the_end_that_they_are_planned_to(log: LogWriter) -> None:
    log.preallocate(0)
    reader, first = parts_stream(log), parts_stream(log, maxBytesPerTrigger=10)
    for one in (reader, first):
        rows, end = one.read(one.initialOffset())
        assert (list(rows), end) == ([], {"offset": 0})
    log.append(*messages(1, 2, 3))
    rows, end = reader.read(end)
    assert end == {"offset": log.end}
    assert [(row["end"], row["messages"]) for batch in rows for row in batch.to_pylist()] == [(log.end, 3)]
    rows, end = reader.read(end)
    assert (list(rows), end) == ([], {"offset": log.end})
    with pytest.raises(LogWentBackError):
        reader.read({"offset": 900})

    (batch,), end = first.read({"offset": 0})
    (row,) = batch.to_pylist()
    assert end == {"offset": 10}
    assert (row["start"], row["end"], row["last"]) == (0, 10, True)
    assert (row["logEnd"], row["logTimestamp"]) == (log.end, NOW + 3)


def test_the_settled_end_by_now_is_never_before_what_is_asked_for(log: LogWriter) -> None:
    log.preallocate(0)
    followed = stream(log)._plan.live
    assert followed.settled(0) == 0
    log.append(*messages(1, 2, 3))
    assert followed.settled(93) == log.end
    assert followed.settled(950) == 950  # which isn't there: whoever takes it says so
    followed.close()


def test_a_directory_that_fills_up_while_a_broker_starts(log: LogWriter) -> None:
    directory = log.root / names.COMMIT_LOG
    with pytest.raises(StoreError, match="the commit log can't be read"):
        stream(log).initialOffset()
    directory.mkdir(parents=True)
    reader = stream(log)
    assert reader.initialOffset() == {"offset": 0}
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": 0}
    (directory / names.offset_name(0)).touch()
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": 0}
    (directory / names.offset_name(0)).unlink()
    log.append(*messages(1, 2))
    reader._plan.live.segments()
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": log.records[1].physical_offset}
    assert reader.latestOffset({"offset": log.end}, ALL) == {"offset": log.end}


def test_a_first_segment_that_appears_between_two_looks_at_the_directory(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log.root / names.COMMIT_LOG).mkdir(parents=True)
    listed = live.discover

    def too_early(settings: StoreSettings) -> CommitLog:
        try:
            return listed(settings)
        finally:
            log.preallocate(0)

    monkeypatch.setattr(live, "discover", too_early)
    assert stream(log).latestOffset({"offset": 0}, ALL) == {"offset": 0}


@pytest.mark.slow
def test_a_run_to_the_end_waits_for_it_to_settle(log: LogWriter) -> None:
    log.append(*messages(1, 2))
    reader = stream(log)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": log.end}


def test_an_expired_segment_is_left_out_and_said(log: LogWriter, caplog: pytest.LogCaptureFixture) -> None:
    log.append(*messages(*range(30)))
    reader = stream(log, failOnDataLoss=False)
    partitions = reader.partitions({"offset": 0}, {"offset": log.records[-1].physical_offset})
    path = log.root / names.COMMIT_LOG / names.offset_name(0)
    path.unlink()
    rows = sum(batch.num_rows for partition in partitions for batch in reader.read(partition))
    assert rows == sum(1000 <= record.physical_offset for record in log.records[:-1])
    assert f"{path} has expired; messages from 0 to 1000 are left out" in caplog.text
    with pytest.raises(SegmentGoneError, match="no such file: it has expired"):
        map_segment(path, 1000)


def test_a_log_that_went_back_is_told_in_another_processes_words(log: LogWriter) -> None:
    log.append(*messages(1, 2))
    reader = stream(log)
    with pytest.raises(LogWentBackError) as raised:
        reader.latestOffset({"offset": 900}, ALL)
    text = (
        f"pyspark.errors: Traceback\n  File x\nreput.errors.LogWentBackError: {raised.value}\n\tat org.apache"
    )
    assert LogWentBackError.in_text(text) == raised.value.offset is not None
    assert LogWentBackError.in_text(f"reput.errors.StoreError: {raised.value}") is None


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_holds_a_seconds_worth_at_most() -> None:
    clock = Clock()
    rate = Rate(1000, clock)
    assert rate.available() == 1000
    rate.take(900)
    assert rate.seconds_until(300) == pytest.approx(0.2)
    clock.now += 0.25
    assert (rate.available(), rate.seconds_until(300)) == (350, 0)
    clock.now += 60
    assert rate.available() == 1000
    assert rate.seconds_until(5000) == 0


def test_batches_keep_to_the_rate(log: LogWriter) -> None:
    log.append(*messages(*range(60)))
    reader = stream(log, maxBytesPerSecond=2000)
    rate = reader._rate = Rate(2000, clock := Clock())
    assert reader.latestOffset({"offset": 0}, ALL) == {"offset": 2000}
    assert rate.available() == 0
    clock.now += 0.5
    assert reader.latestOffset({"offset": 2000}, ALL) == {"offset": 3000}
    assert reader.reportLatestOffset() == {
        "offset": log.records[-1].physical_offset,
        "storeTimestamp": NOW + 58,
        **left(log.records[-1].physical_offset - 3000, 29),
    }
