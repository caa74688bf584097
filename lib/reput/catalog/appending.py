"""Commits what a log has gained to a table of messages.

A Structured Streaming query goes over the log from where the table ends, and every batch is one commit. Batch
ids are no identity, and Spark's checkpoint is thrown away: the commit carries the physical offset up to which
the table holds the log, see :mod:`reput.catalog.table`.
"""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from reput.catalog.options import CatalogOptions
from reput.catalog.standing import Standing
from reput.catalog.table import APPLICATION, BODY, DAY, Table
from reput.config.settings import StoreSettings
from reput.errors import OutputError
from reput.format import names
from reput.log.segments import discover
from reput.source.columns import MESSAGE_COLUMNS, spark_schema
from reput.store import files
from reput.store.lock import is_broker_running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from reput.spark.shared_output import SharedOutput

_CHECKPOINT = "catalog-checkpoint"
_DAY = f"date_from_unix_date(CAST(floor(unix_millis(storeTimestamp) / 86400000) AS INT)) AS {DAY}"


def columns(options: CatalogOptions) -> tuple[str, ...]:
    """The table's columns without the day."""
    return tuple(name for name in MESSAGE_COLUMNS if options.bodies or name != BODY)


class Appending:
    """Commits batches, one after the other.

    Args:
        table: as it is before the first batch.

    Attributes:
        commits: that were made.
        expired: bytes of log that were deleted before they were read.
    """

    def __init__(self, options: CatalogOptions, settings: StoreSettings, table: Table) -> None:
        self.commits = 0
        self.expired = 0
        self._options = options
        self._settings = settings
        self._table = table
        self._checkpoint = options.table / names.REPUT / _CHECKPOINT
        self._at = 0
        self._failure: OutputError | None = None
        self._shared: SharedOutput | None = None

    def append(self, spark: SparkSession, standing: Standing, end: int | None) -> None:
        """Commit what the log holds behind ``standing``, up to ``end`` or its own end."""
        from reput.spark.runner import is_local
        from reput.spark.shared_output import shared_output

        # Executors write the files themselves, and Delta commits what they say that they have written.
        local = is_local(spark.sparkContext)
        with nullcontext() if local else shared_output(self._options.table, None) as self._shared:
            self._append(spark, standing, end)

    def _append(self, spark: SparkSession, standing: Standing, end: int | None) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from reput.source import NAME, register
        from reput.stream.query_stop import in_few_words, until_it_ends

        register(spark)
        # What an earlier run left says where its batches ended, and nothing of what was committed.
        files.remove_tree(self._checkpoint)
        self._at = standing.begin
        schema = spark_schema({name: MESSAGE_COLUMNS[name] for name in columns(self._options)})
        rows = (
            spark.readStream.format(NAME)
            .schema(schema)
            .options(**self._source(standing.begin, end))
            .load(str(self._options.store))
            .where(f"physicalOffset > {standing.after}")
            .selectExpr(*(f"`{name}`" for name in schema.fieldNames()), _DAY)
        )
        stopped = threading.Event()
        query = (
            rows.writeStream.foreachBatch(in_few_words(stopped.is_set)(self._commit))
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            until_it_ends(spark, query, stopped)
        except (PySparkException, Py4JError, ConnectionError):
            if self._failure is not None:
                raise self._failure from None
            raise
        files.remove_tree(self._checkpoint)

    def _source(self, begin: int, end: int | None) -> dict[str, str]:
        options: dict[str, object] = {
            "brokerConf": self._options.broker_conf,
            "rocketmqVersion": self._settings.dialect.versions[-1],
            "startOffset": begin,
            "maxBytesPerTrigger": self._options.max_bytes_per_trigger,
        }
        if end is not None:
            options["endOffset"] = end
        elif self._settings.dledger is None and is_broker_running(self._settings.root):
            options["live"] = "true"
        return {name: str(value) for name, value in options.items() if value is not None}

    def _commit(self, rows: DataFrame, batch: int) -> None:
        """Append a batch, and its end as the cursor."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from reput.spark.sessions import spark_error

        expected = self._table.cursor
        self._table.refresh()
        found = self._table.cursor
        if found != expected:
            self._failure = OutputError(
                "another run has written to the table meanwhile",
                path=self._options.table,
                expected=f"messages up to {expected}",
                found=f"up to {found}",
                next_step="Run the same command again when no other runs",
            )
            raise self._failure
        end = self._end_of(batch)
        self.expired += max(min(discover(self._settings).start, end) - self._at, 0)
        self._at = end
        if found is not None and end <= found:
            # The record that the run began with, as a rule; or a log that was cut in what held no message.
            first = rows.agg({"physicalOffset": "min"}).first()
            if first is None or first[0] is None:
                return
            self._table.step_back(int(first[0]))
        if self._shared is not None:
            rows = rows.mapInArrow(self._shared.show_first, rows.schema)
        writer = rows.write.format("delta").mode("append").partitionBy(DAY)
        writer = writer.option("txnAppId", APPLICATION).option("txnVersion", end)
        try:
            writer.save(str(self._options.table))
        except (PySparkException, Py4JError) as error:
            failed = spark_error(error, self._options.table)
            self._failure = OutputError(
                "messages can't be added to the table",
                path=failed.path or self._options.table,
                found=failed.found,
                next_step=failed.next_step,
            )
            raise self._failure from error
        self._table.refresh()
        self.commits += 1

    def _end_of(self, batch: int) -> int:
        """The physical offset before which the batch's records begin: the last line of its offsets file."""
        *_, last = (self._checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        return int(json.loads(last)["offset"])
