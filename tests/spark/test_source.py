"""The source as Spark sees it: by its name, in batch and as a stream that survives restarts."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException, StreamingQueryException
from pyspark.sql.functions import udf

from reput.format import names, properties
from reput.format.commitlog import Record
from reput.newer_python import UTC
from reput.source import INDEX, NAME, QUEUES, register
from reput.source.columns import MESSAGE_COLUMNS, PART_COLUMNS
from reput.spark.stack import LIMITS_READS
from tests.stores import LogWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CHECKPOINT = Path(__file__).parents[1] / "earlier" / "checkpoint-of-messages-1.0.0.tar.xz"

Read = Callable[..., "DataFrame"]


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "store", segment_size=1000)


@pytest.fixture
def read(spark: SparkSession, log: LogWriter) -> Read:
    register(spark)

    def load(**options: object) -> DataFrame:
        return spark.read.format(NAME).options(**options).load(str(log.root))

    return load


@pytest.fixture
def run(spark: SparkSession, log: LogWriter, tmp_path: Path) -> Callable[..., list[list[Any]]]:
    """Run a query to the log's end, always with the same checkpoint; returns each batch's rows."""
    register(spark)

    def run_available(**options: object) -> list[list[Any]]:
        batches: list[list[Any]] = []
        stream = spark.readStream.format(NAME).options(**options).load(str(log.root))
        query = (
            stream.writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return batches

    return run_available


def message(number: int, **fields: object) -> Record:
    return Record(topic=b"orders", body=b"%d" % number, queue_offset=number, **fields)  # type: ignore[arg-type]


def offsets(rows: list[Any]) -> list[int]:
    return sorted(row["queueOffset"] for row in rows)


def test_every_field_of_a_message(spark: SparkSession, log: LogWriter, read: Read) -> None:
    long_topic = "t" * 130 + "-überfällig"
    log.append(
        Record(
            topic=b"orders",
            body=b"\x00\xff",
            properties=properties.encode(
                {
                    b"KEYS": b"a b",
                    b"TAGS": "bezahlt-é".encode(),
                    b"UNIQ_KEY": b"7F00",
                    "größe".encode(): b"\xff",
                }
            ),
            queue_id=3,
            flag=-5,
            queue_offset=41,
            sys_flag=8,
            born_timestamp=1_700_000_000_123,
            born_host=("2001:db8::1", 80),
            store_timestamp=1_700_000_000_456,
            store_host=("10.0.0.7", 10911),
            reconsume_times=2,
            prepared_transaction_offset=1 << 40,
        ),
        Record(topic=long_topic.encode(), version=2, store_host=("::1", 1)),
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        frame = read().orderBy("physicalOffset")
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == list(
            MESSAGE_COLUMNS.items()
        )
        one, two = frame.collect()
        times = frame.selectExpr(
            "unix_millis(storeTimestamp) ms", "cast(storeTimestamp as string) text"
        ).first()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert (times["ms"], times["text"]) == (1_700_000_000_456, "2023-11-15 03:43:20.456")
    found = one.asDict()
    assert found.pop("storeTimestamp").astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 456000, UTC)
    assert found.pop("bornTimestamp").astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert found == {
        "topic": "orders",
        "queueId": 3,
        "queueOffset": 41,
        "physicalOffset": 0,
        "size": log.records[1].physical_offset,
        "bornHost": "[2001:db8::1]:80",
        "storeHost": "10.0.0.7:10911",
        "sysFlag": 8 | 0x10,
        "flag": -5,
        "reconsumeTimes": 2,
        "preparedTransactionOffset": 1 << 40,
        "bodyCRC": log.records[0].body_crc,
        "tags": "bezahlt-é",
        "keys": "a b",
        "uniqKey": "7F00",
        "properties": {"KEYS": "a b", "TAGS": "bezahlt-é", "UNIQ_KEY": "7F00", "größe": "\ufffd"},
        "body": b"\x00\xff",
    }
    assert (two["topic"], two["storeHost"], two["properties"]) == (long_topic, "[::1]:1", {})
    assert (two["tags"], two["keys"], two["uniqKey"], two["body"]) == (None, None, None, b"")


def test_a_batch_over_several_segments_and_parts(log: LogWriter, read: Read) -> None:
    log.append(*(message(number) for number in range(40)))
    assert offsets(read(partBytes=300).collect()) == list(range(40))
    middle = [record for record in log.records if 900 <= record.physical_offset < 2500]
    found = read(partBytes=300, startOffset=900, endOffset=2500).collect()
    assert offsets(found) == [record.queue_offset for record in middle]


def test_some_columns_only(spark: SparkSession, log: LogWriter, read: Read) -> None:
    log.append(*(message(number) for number in range(5)))
    found = spark.read.format(NAME).schema("queueOffset bigint, topic string").load(str(log.root))
    assert sorted(map(tuple, found.collect())) == [(number, "orders") for number in range(5)]
    with pytest.raises(PySparkException, match="the source has no such column; expected one of topic"):
        spark.read.format(NAME).schema("queue bigint").load(str(log.root)).collect()


def test_parts_are_rows_too(log: LogWriter, read: Read) -> None:
    log.append(*(message(number) for number in range(12)))
    frame = read(content="parts", partBytes=600, endOffset=1300)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == list(
        PART_COLUMNS.items()
    )
    assert frame.rdd.getNumPartitions() == 1
    first, second = (str(log.root / names.COMMIT_LOG / names.offset_name(base)) for base in (0, 1000))
    assert [tuple(row) for row in frame.collect()] == [
        (first, 0, 1000, 1000, 0, 600, True, False, None, None, None, None),
        (first, 0, 1000, 1000, 600, 1000, False, False, None, None, None, None),
        (second, 1000, 1000, 1000, 1000, 1300, True, True, None, None, None, None),
    ]


def test_an_empty_log_has_no_rows(log: LogWriter, read: Read) -> None:
    log.preallocate(0)
    assert read().collect() == []
    assert read(content="parts").collect() == []


def test_a_restart_reads_only_what_is_new(log: LogWriter, run: Callable[..., list[list[Any]]]) -> None:
    log.append(*(message(number) for number in range(25)))
    first = run(partBytes=400, **({"maxBytesPerTrigger": 700} if LIMITS_READS else {}))
    assert len(first) == (-(-log.end // 700) if LIMITS_READS else 1)
    assert offsets([row for batch in first for row in batch]) == list(range(25))
    assert [row for batch in run(partBytes=400) for row in batch] == []
    log.append(*(message(number) for number in range(25, 60)))
    second = run(partBytes=400, **({"maxBytesPerTrigger": "1k"} if LIMITS_READS else {}))
    assert offsets([row for batch in second for row in batch]) == list(range(25, 60))


def test_a_checkpoint_of_1_0_is_taken_on(
    log: LogWriter, run: Callable[..., list[list[Any]]], tmp_path: Path
) -> None:
    log.append(*(message(number) for number in range(25)))
    with tarfile.open(CHECKPOINT) as kept:
        kept.extractall(tmp_path, filter="data")
    for name in ("2", ".2.crc"):  # as if it had been killed in its last batch
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    log.append(*(message(number) for number in range(25, 30)))
    batches = run() if LIMITS_READS else [*run(), *run()]  # before 4.2 what had begun is all of a run
    assert [offsets(rows) for rows in batches] == [list(range(19, 25)), list(range(25, 30))]


@pytest.mark.skipif(not LIMITS_READS, reason="this Spark asks for all that is there")
def test_a_stream_has_its_start_its_queues_and_its_messages_a_batch(
    log: LogWriter, run: Callable[..., list[list[Any]]]
) -> None:
    log.append(
        *(message(number, queue_id=number % 2, store_timestamp=1_000 * number) for number in range(30))
    )
    batches = run(startingTimestamp=9_000, maxMessagesPerTrigger=8, startQueueOffsets='{"orders": {"1": 13}}')
    assert [offsets(rows) for rows in batches] == [[13, 15], [17, 19, 21, 23], [25, 27, 29]]


def test_what_has_expired_ends_a_stream_unless_it_may_be_left_out(
    spark: SparkSession, log: LogWriter, run: Callable[..., list[list[Any]]], tmp_path: Path
) -> None:
    log.append(*(message(number) for number in range(25)))
    run(endOffset=500)
    (log.root / names.COMMIT_LOG / names.offset_name(0)).unlink()
    with pytest.raises(StreamingQueryException, match=r"messages are gone .*failOnDataLoss=false"):
        run()
    left = [record.queue_offset for record in log.records if record.physical_offset >= 1000]
    assert [offsets(rows) for rows in run(failOnDataLoss=False)] == [left]
    last = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))[-1]
    text = last.read_text(encoding="utf-8").splitlines()[-1].replace("'", '"')
    assert json.loads(text) == {"offset": log.end, "expiredBytes": 500}


@pytest.mark.skipif(LIMITS_READS, reason="this Spark limits a stream's batches")
@pytest.mark.parametrize("option", ["maxBytesPerTrigger", "maxMessagesPerTrigger", "maxBytesPerSecond"])
def test_limits_that_cant_be_kept_are_refused(
    option: str, log: LogWriter, run: Callable[..., list[list[Any]]]
) -> None:
    log.append(message(0))
    with pytest.raises(StreamingQueryException, match=r"Spark before 4\.2 asks a stream for all"):
        run(**{option: 1000})


@pytest.mark.skipif(not LIMITS_READS, reason="this Spark asks for all that is there")
def test_a_limit_smaller_than_a_record_still_reaches_the_end(
    log: LogWriter, run: Callable[..., list[list[Any]]]
) -> None:
    log.append(*(message(number) for number in range(3)))
    batches = run(maxBytesPerTrigger=60)
    assert len(batches) == -(-log.end // 60)
    assert offsets([row for batch in batches for row in batch]) == [0, 1, 2]


@pytest.mark.skipif(not LIMITS_READS, reason="a run over what is available ends after one batch")
def test_a_stream_of_parts_covers_the_log(log: LogWriter, run: Callable[..., list[list[Any]]]) -> None:
    log.append(*(message(number) for number in range(25)))
    batches = run(content="parts", startOffset=100, endOffset=2500, partBytes=400, maxBytesPerTrigger=900)
    parts = [row for batch in batches for row in batch]
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert (parts[0]["start"], parts[-1]["end"]) == (100, 2500)
    assert all(one["end"] == other["start"] for one, other in pairwise(parts))
    assert [part["start"] for part in parts if part["exact"]] == [100, 1000, 2000]


def test_a_running_stream_sees_new_messages_and_new_segments(
    spark: SparkSession, log: LogWriter, tmp_path: Path
) -> None:
    register(spark)
    log.append(message(0))
    rows: list[Any] = []
    query = (
        spark.readStream.format(NAME)
        .load(str(log.root))
        .writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert offsets(rows) == [0]
        log.append(*(message(number) for number in range(1, 30)))
        query.processAllAvailable()
        assert offsets(rows) == list(range(30))
        log.preallocate(log.end - log.end % 1000 + 1000)
        log.append(message(30))
        query.processAllAvailable()
        assert offsets(rows) == list(range(31))
        progress = query.lastProgress
        assert progress is not None
        latest = progress["sources"][0]["latestOffset"].replace("'", '"')  # 4.0 has Python's own form
        seen = {"offset": log.end}
        if LIMITS_READS:
            seen |= {"storeTimestamp": 0, "lagBytes": 0, "lagMessages": 0, "lagSeconds": 0}
        assert json.loads(latest) == seen
    finally:
        query.stop()


def test_errors_say_what_is_wrong(
    spark: SparkSession, log: LogWriter, read: Read, run: Callable[..., list[list[Any]]]
) -> None:
    with pytest.raises(AnalysisException, match=r"partBytes isn't a size; expected .* found 'many'"):
        read(partBytes="many")
    (log.root / names.COMMIT_LOG).mkdir(parents=True)
    with pytest.raises(
        PySparkException, match="the commit log is empty; expected segments named by 20 digits"
    ):
        read().collect()
    with pytest.raises(StreamingQueryException, match="the commit log is empty"):
        run()
    log.append(*(message(number) for number in range(12)))
    run()
    (log.root / names.COMMIT_LOG / names.offset_name(1000)).unlink()
    with pytest.raises(StreamingQueryException, match="the commit log ends before the offset"):
        run()


def test_spark_finds_it_by_its_name(spark: SparkSession, log: LogWriter) -> None:
    log.append(message(1), message(2))
    unregistered = spark.newSession()
    found = {name: unregistered.read.format(name).load(str(log.root)) for name in (NAME, QUEUES, INDEX)}
    assert [found[name].count() for name in found] == [2, 0, 0]


@pytest.mark.parametrize("option", ["noSuch", "path"])
@pytest.mark.parametrize("source", [NAME, QUEUES, INDEX])
def test_a_refusal_is_a_sentence(spark: SparkSession, tmp_path: Path, option: str, source: str) -> None:
    """PySpark puts its error class and what it was doing before it, in the same line, and no stack."""

    def load(**given: str) -> DataFrame:
        return spark.read.format(source).options(**given).load(str(tmp_path / "gone"))

    with pytest.raises(AnalysisException) as refused:
        load(**({option: "x"} if option == "noSuch" else {})).count()
    told, *rest = str(refused.value).splitlines()
    said = "the source has no such option;" if option == "noSuch" else str(tmp_path / "gone")
    assert re.fullmatch(
        rf"\[PYTHON_DATA_SOURCE_ERROR\] [\w ]+: reput\.errors\.\w+Error: .*{said}.*, found .*", told
    )
    assert rest == [" SQLSTATE: 38000"]


def test_a_users_own_error_keeps_its_stack(spark: SparkSession, read: Read) -> None:
    with pytest.raises(AnalysisException, match="no such option"):
        read(noSuch="x")
    with pytest.raises(PythonException, match=r"Traceback[\s\S]*ZeroDivisionError"):
        spark.range(1).select(udf(lambda _: 1 // 0)("id")).collect()


def test_registering_again_is_harmless(spark: SparkSession, log: LogWriter, read: Read) -> None:
    register(spark)
    log.append(message(1))
    assert read().count() == 1
