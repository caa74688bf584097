"""Stopping a query, which Ctrl-C may do in the middle of a batch.

Spark gets a short error for that batch. It looks for the name of an interruption in the text of a batch's
error, by a regular expression that recurses for each character (StreamExecution.PROXY_ERROR in 4.2.0).
py4j's error for a cancelled job begins with that name, but continues with two stack traces, which at times
overflow the thread's stack. An operator who only pressed Ctrl-C would see a thousand lines of
StackOverflowError.
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
    """Wraps the function that Spark calls for a batch.

    Raises:
        InterruptedError: it failed after the query was stopped; the original error is left out.
    """
    try:
        yield
    except Exception:
        if is_stopped():
            raise InterruptedError("the query was stopped") from None
        raise


def until_it_ends(spark: SparkSession, query: StreamingQuery, stopped: threading.Event) -> None:
    """Wait for a query's end; Ctrl-C ends the waiting, but no call into the JVM halfway, and stops the query.

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


def ended(query: StreamingQuery) -> tuple[threading.Event, list[BaseException]]:
    """An event that a thread sets when the query has ended, and then what it failed with, if it did.

    Asking again and again would cost a call into the JVM each time.
    """
    over = threading.Event()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            query.awaitTermination()
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            failures.append(error)
        finally:
            over.set()

    threading.Thread(target=wait, name="reput-await", daemon=True).start()
    return over, failures


def stop(context: SparkContext, query: StreamingQuery) -> None:
    """Stop a query, also in the middle of a batch; does nothing if the session is gone.

    Spark and Delta Lake log each commit and fetch that is cut off as an error; here that is expected.
    """
    with suppress(PySparkException, Py4JError, ConnectionError), _without_logging(context):
        query.stop()


@contextmanager
def _without_logging(context: SparkContext) -> Iterator[None]:
    level = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().name()  # type: ignore[union-attr]
    context.setLogLevel("OFF")
    try:
        yield
    finally:
        context.setLogLevel(level)


def _await(query: StreamingQuery) -> None:
    over, failures = ended(query)
    over.wait()
    if failures:
        raise failures[0]
