"""The streaming query of a rebuild, which ends when all available parts are committed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from reput.errors import ReputError
from reput.log.segments import CommitLog
from reput.output.writer import BatchWriter, part_of
from reput.source import CommitLogDataSource, register
from reput.spark.sessions import scratch_places, spark_error
from reput.spark.stack import LIMITS_READS
from reput.store.system import unwritten
from reput.stream.tail_query import in_few_words, until_it_ends

#: Each query needs a source that was registered for it: one that starts changes the environment in its source
#: (StreamingPythonRunner in Spark 4.2.0), of which a task of another could then get half.
_own_source = threading.Lock()


def run_available(
    spark: SparkSession, writer: BatchWriter, checkpoint: Path, log: CommitLog, options: dict[str, str]
) -> int:
    """Run a query over the parts of the log until everything available is committed.

    Args:
        checkpoint: absolute, on a file system that the driver has mounted.
        log: the commit log as the run sees it; it may leave out segments that the source still lists.

    Returns:
        The physical offset up to which Spark delivered parts, -1 if it delivered none.

    Raises:
        ReputError: the writer's, when it failed.
        SparkError: Spark's own failure.
    """
    failures: list[ReputError] = []
    asked = -1
    last = log.segments[-1].base
    stopped = threading.Event()

    @in_few_words(stopped.is_set)
    def write(rows: DataFrame, batch_id: int) -> None:
        nonlocal asked
        try:
            parts = [part_of(row) for row in rows.collect()]
            asked = max([asked, *(part.end for part in parts)])
            writer.write([replace(part, last=part.base == last) for part in parts], batch_id)
        except ReputError as error:
            failures.append(error)
            raise
        except ConnectionError:  # an OSError that says nothing of files: the session is gone
            raise
        except OSError as error:
            failures.append(unwritten(error, checkpoint.parent, *scratch_places()))
            raise

    try:
        while True:
            before = asked
            with _own_source:
                register(spark)
                stream = spark.readStream.format(CommitLogDataSource.name()).options(**options).load()
            query = (
                stream.writeStream.foreachBatch(write)
                # With its scheme: otherwise the path would be on Hadoop's default file system.
                .option("checkpointLocation", f"file://{checkpoint}")
                .trigger(availableNow=True)
                .start()
            )
            until_it_ends(spark, query, stopped)
            # Before 4.2, Spark takes one batch of a limited stream for all that is available.
            if LIMITS_READS or asked == before:
                break
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise failures[0] if failures else spark_error(error, checkpoint, checkpoint.parent) from None
    return asked
