"""A store's messages as a Delta table: each once, whatever ends a run; found by day, topic and queueOffset.

A Structured Streaming query goes over the log from where the table ends, and every batch is one commit. Batch
ids are no identity, and Spark's checkpoint is thrown away: the commit carries the physical offset up to which
the table holds the log, as the version of the transaction ``reput-catalog`` (``txnAppId``, ``txnVersion``).
Rows and cursor come in one commit or not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import LogWentBackError, OutputError, SettingsError, StoreError
from reput.format import names
from reput.settings import StoreSettings
from reput.source.columns import MESSAGE_COLUMNS, spark_schema
from reput.store import files
from reput.store.lock import OutputLock, is_broker_running
from reput.store.segments import discover

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The transaction whose version is the cursor.
APPLICATION = "reput-catalog"
#: Messages of one day, UTC, lie together; within it, those of a queue.
DAY = "day"
ORDERED_BY = ("topic", "queueId", "queueOffset")
_BODY = "body"
_CHECKPOINT = "catalog-checkpoint"
_DAY = f"date_from_unix_date(CAST(floor(unix_millis(storeTimestamp) / 86400000) AS INT)) AS {DAY}"
#: By these the last message of the table is known again in the log.
_KNOWN_BY = ("physicalOffset", "size", "topic", "queueId", "queueOffset", "storeTimestamp", "bodyCRC")


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """What to catalog.

    Attributes:
        store: the store.
        table: the Delta table's directory, on a file system that all see; made when missing.
        broker_conf: the broker's file, None for RocketMQ's defaults.
        rocketmq_version: the release that wrote the store, None for the newest.
        bodies: the table has bodies, too.
        max_bytes_per_trigger: log bytes in one commit.
        optimize: compact and sort the files of the days that got messages.
        allow_gap: go on although the table's last message isn't in the log any more, because it has expired.
    """

    store: Path
    table: Path
    broker_conf: Path | None = None
    rocketmq_version: str | None = None
    bodies: bool = False
    max_bytes_per_trigger: int = 1 << 30
    optimize: bool = True
    allow_gap: bool = False


@dataclass(frozen=True, slots=True)
class Cataloged:
    """What a run did.

    Attributes:
        table: its directory.
        start, end: half-open range of physical offsets that this run went over.
        expired: bytes of log between the table's end and ``start`` that the broker has deleted unread.
        added: messages that it put into the table.
        messages: how many the table holds.
        commits: that it made, without that of the compaction.
        seconds: that it took.
    """

    table: str
    start: int
    end: int
    expired: int
    added: int
    messages: int
    commits: int
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self)


def catalog(options: CatalogOptions, start_spark: Callable[[], SparkSession]) -> Cataloged:
    """Bring a table up to the log's end.

    Args:
        options: what to catalog.
        start_spark: makes a session with Delta Lake (``reput.spark.session(..., delta=True)``); only called
            when nothing that can be seen without it speaks against the run.

    Raises:
        SettingsError: the table has bodies and they weren't asked for, or the other way round; broker.conf
            can't be used.
        LogWentBackError: the table's last message isn't where it was in the log, which was cut or is another.
        StoreInUseError: another run writes to the table.
        StoreError: the log can't be read, or begins behind the table's last message and no gap is allowed.
        OutputError: the table can't be written, or lies in the store.
        UnsupportedError: the store uses a feature that reput doesn't read.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from reput.spark import spark_error

    began = time.monotonic()
    settings = StoreSettings.load(options.store, options.broker_conf, options.rocketmq_version, dledger=True)
    _check_place(options.table, settings)
    log_start = discover(settings).start
    files.make_dirs(options.table)
    with OutputLock(options.table):
        cursor = _cursor(options.table)
        start = log_start if cursor is None else max(cursor, log_start)
        try:
            run = _Run(options, settings, start_spark(), cursor)
            before, last = run.check(log_start)
            run.append(start, start if last is None else last)
            after = run.tidy_and_count(start)
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise spark_error(error) from None
    return Cataloged(
        table=str(options.table),
        start=start,
        end=start if run.cursor is None else max(run.cursor, start),
        expired=start - cursor if cursor is not None else 0,
        added=after - before,
        messages=after,
        commits=run.commits,
        seconds=time.monotonic() - began,
    )


def columns(options: CatalogOptions) -> tuple[str, ...]:
    """The table's columns without :data:`DAY`."""
    return tuple(name for name in MESSAGE_COLUMNS if options.bodies or name != _BODY)


class _Run:
    """Commits batches, one after the other.

    Args:
        options: what to catalog.
        settings: the store's.
        spark: a session with Delta Lake.
        cursor: up to where the table holds the log, None when it is new.
    """

    def __init__(
        self, options: CatalogOptions, settings: StoreSettings, spark: SparkSession, cursor: int | None
    ) -> None:
        self.commits = 0
        self.cursor = cursor
        self._options = options
        self._settings = settings
        self._spark = spark
        self._checkpoint = options.table / names.REPUT / _CHECKPOINT
        self._failure: OutputError | None = None

    def _table(self) -> DataFrame:
        return self._spark.read.format("delta").load(str(self._options.table))

    def check(self, log_start: int) -> tuple[int, int | None]:
        """See that table and log belong together.

        Returns:
            How many messages the table holds, and the physical offset of the last one if it is still in
            the log, else None.
        """
        if self.cursor is None:
            return 0, None
        held = self._table()
        if (_BODY in held.columns) != self._options.bodies:
            raise SettingsError(
                "the table was begun otherwise",
                path=self._options.table,
                expected="bodies" if _BODY in held.columns else "no bodies",
                found="bodies" if self._options.bodies else "no bodies",
                next_step="Run it as it was begun, or take another directory",
            )
        return held.count(), self._check_log(held, log_start)

    def _check_log(self, held: DataFrame, log_start: int) -> int | None:
        """See that the table's last message still stands in the log; where, or None if a gap is allowed."""
        from reput.source import read

        last = held.agg({"physicalOffset": "max"}).first()
        place: int | None = None if last is None else last[0]
        if place is None or place < log_start:
            if self._options.allow_gap:
                return None
            raise StoreError(
                "the log begins behind the table's last message",
                path=self._settings.root,
                offset=log_start,
                expected=f"the message at {place}" if place is not None else "a table with a message",
                found="a log without it: it has expired, or this is another store",
                next_step="If it is the same store, give --allow-gap: the messages between are gone",
            )
        log = read(
            self._spark,
            self._settings.root,
            _KNOWN_BY,
            [("physicalOffset", "=", place)],
            **self._told(),
        )
        found = log.first()
        if found is None and place < (began := discover(self._settings).start):
            return self._check_log(held, began)  # it expired just now
        if found is None or found != held.where(f"physicalOffset = {place}").select(*_KNOWN_BY).first():
            raise LogWentBackError(
                "the table's last message isn't in the log any more: it was cut, or this is another one",
                path=self._settings.root,
                offset=place,
                expected=f"the log that the table holds up to {self.cursor}",
                found="no message there" if found is None else f"another one, of {found['topic']}",
                next_step="Begin a table of this log in another directory",
            )
        return place

    def _told(self) -> dict[str, str]:
        told = {
            "brokerConf": self._options.broker_conf,
            "rocketmqVersion": self._options.rocketmq_version,
        }
        return {name: str(value) for name, value in told.items() if value is not None}

    def append(self, start: int, begin: int) -> None:
        """Commit what the log holds from ``start`` on.

        Args:
            start: the first message that is missing begins there or later; it may lie inside a record.
            begin: where a record begins, at or before ``start``: a log that a broker writes is read from it.
        """
        from reput.source import NAME, register

        register(self._spark)
        # What an earlier run left says where its batches ended, and nothing of what was committed.
        files.remove_tree(self._checkpoint)
        schema = spark_schema({name: MESSAGE_COLUMNS[name] for name in columns(self._options)})
        live = self._settings.dledger is None and is_broker_running(self._settings.root)
        rows = (
            self._spark.readStream.format(NAME)
            .schema(schema)
            .options(**self._told())
            .option("startOffset", begin)
            .option("maxBytesPerTrigger", self._options.max_bytes_per_trigger)
            .option("live", str(live).lower())
            .load(str(self._options.store))
            .where(f"physicalOffset >= {start}")
            .selectExpr(*(f"`{name}`" for name in schema.fieldNames()), _DAY)
        )
        query = (
            rows.writeStream.foreachBatch(self._commit)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
            if self._failure is not None:
                raise self._failure
        files.remove_tree(self._checkpoint)

    def _commit(self, rows: DataFrame, batch: int) -> None:
        """Append a batch, and its end as the cursor."""
        found = _cursor(self._options.table)
        if found != self.cursor:
            self._failure = OutputError(
                "another run has written to the table meanwhile",
                path=self._options.table,
                expected=f"messages up to {self.cursor}",
                found=f"up to {found}",
                next_step="Run the same command again when no other runs",
            )
            raise self._failure
        end = self._end_of(batch)
        if found is not None and end <= found:
            return  # the record that the run began with
        writer = rows.write.format("delta").mode("append").partitionBy(DAY)
        writer.option("txnAppId", APPLICATION).option("txnVersion", end).save(str(self._options.table))
        self.cursor = end
        self.commits += 1

    def _end_of(self, batch: int) -> int:
        """The physical offset before which the batch's records begin: the last line of its offsets file."""
        *_, last = (self._checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        return int(json.loads(last)["offset"])

    def tidy_and_count(self, start: int) -> int:
        """Compact and sort the days that got messages from ``start`` on; returns how many the table holds."""
        from delta.tables import DeltaTable

        if self.cursor is None:
            return 0
        if self._options.optimize and self.commits:
            added = self._table().where(f"physicalOffset >= {start} AND {DAY} IS NOT NULL")
            days = [str(row[0]) for row in added.select(DAY).distinct().collect()]
            if days:
                table = DeltaTable.forPath(self._spark, str(self._options.table))
                these = ", ".join(f"'{day}'" for day in sorted(days))
                table.optimize().where(f"{DAY} IN ({these})").executeZOrderBy(*ORDERED_BY)
        return self._table().count()


def _check_place(table: Path, settings: StoreSettings) -> None:
    """Refuse a table in the store, where a broker would take its directories for topics and segments."""
    for directory in (settings.root, *settings.commit_log_dirs):
        if table.resolve().is_relative_to(directory.resolve()):
            raise OutputError(
                "a table isn't written into the store",
                path=table,
                expected=f"a place outside of {directory}",
                next_step="Name another directory with --table",
            )


def _cursor(table: Path) -> int | None:
    """Up to which physical offset the table holds the log; None when it isn't there yet.

    Raises:
        OutputError: there is a table, but this isn't one of messages.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        version = DeltaTable(str(table)).transaction_version(APPLICATION)
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise OutputError("the table can't be read", path=table, found=str(error)) from error
    if version is None:
        raise OutputError(
            "another table is in the way",
            path=table,
            expected=f"a table with the transaction {APPLICATION}, or none",
            found="a Delta table without it",
            next_step="Take another directory",
        )
    return int(version)
