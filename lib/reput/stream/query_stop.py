"""A query over what a log holds, which Ctrl-C may end in the middle of a batch.

Spark is told little of that batch. It looks for the name of an interruption in the text of what a batch
failed with, by a regular expression that calls itself for each character (StreamExecution.PROXY_ERROR in
4.2.0). What py4j says of a job that was cancelled begins as it should for that, and goes on for two stack
traces: at times more than a thread's stack has room for. A thousand lines of StackOverflowError are then what
somebody sees who only pressed Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@contextmanager
def in_few_words(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Around what Spark calls for a batch.

    Raises:
        InterruptedError: it failed, and the query had been stopped before. It tells nothing else.
    """
    try:
        yield
    except Exception:
        if is_stopped():
            raise InterruptedError("the query was stopped") from None
        raise


def until_it_ends(spark: SparkSession, query: StreamingQuery, stopped: threading.Event) -> None:
    """Wait for a query's end; Ctrl-C ends the waiting, not a call into the JVM halfway, and stops the query.

    Args:
        stopped: set before the query is stopped, for :func:`in_few_words`.

    Raises:
        PySparkException: the query failed.
    """
    try:
        _await(query)
    except BaseException:
        stopped.set()
        stop(spark.sparkContext, query)
        raise


def stop(context: SparkContext, query: StreamingQuery) -> None:
    """Stop a query, be it in the middle of a batch; a session that is gone has none.

    Spark and Delta Lake log what they break off, each commit and each fetch, as an error; here it is no news.
    """
    with suppress(PySparkException, Py4JError, ConnectionError), _hushed(context):
        query.stop()


@contextmanager
def _hushed(context: SparkContext) -> Iterator[None]:
    level = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().name()  # type: ignore[union-attr]
    context.setLogLevel("OFF")
    try:
        yield
    finally:
        context.setLogLevel(level)


def _await(query: StreamingQuery) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            query.awaitTermination()
        except BaseException as error:  # noqa: BLE001 - raised below, by the thread that asked
            failures.append(error)
        finally:
            ended.set()

    threading.Thread(target=wait, name="reput-await", daemon=True).start()
    ended.wait()
    if failures:
        raise failures[0]
