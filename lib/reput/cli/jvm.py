"""Spark's JVM as commands meet it: its start, Ctrl-C while it is called, and spark-submit's own.

A Spark session sets its own handler (SparkContext._do_init in PySpark 4.2.0), which calls the JVM to have
jobs cancelled. Mostly Ctrl-C comes while the main thread waits for an answer from there: then the second call
fails in the middle of the first, and py4j logs fifty lines of traceback ahead of what the command has to say.
Python's own handler leaves the first call at once; what was begun in Spark ends with its JVM.

In client mode spark-submit starts Python with stderr joined to stdout (``PythonRunner`` in
``org.apache.spark.deploy``, Spark 4.2), so that ``--json`` would print a document among other lines. What was
meant for stderr therefore goes to the stderr of spark-submit's own JVM.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

from reput.cli.output import ProgressDisplay
from reput.spark import ahead
from reput.spark.java import check_spark, is_submitted, refuse_connect
from reput.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def as_before() -> Iterator[None]:
    """For the start of a session: Ctrl-C goes on to mean what it means, and py4j doesn't log it."""
    from pyspark.core import context

    logging.getLogger().addFilter(_is_news)
    # What py4j logs by the root logger gives that a handler, by which its own loggers would be heard, too.
    logging.getLogger("py4j").propagate = False
    # Not set, rather than set back: a session calls the JVM a hundred times more until it is there.
    context.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)  # type: ignore[attr-defined,assignment]
    try:
        yield
    finally:
        context.signal = signal  # type: ignore[attr-defined]


def prepare_spark() -> None:
    """Check that a session can start here; and let its Python processes be forked from this one, as it is.

    To be called while this process has one thread and holds no lock.

    Raises:
        ReputError: Spark can't run here.
    """
    check_spark()
    begun = ahead.begun()
    if begun is not None:
        # What the source, the tasks and this command need later is loaded once, before the fork.
        import reput.output.writer
        import reput.source.commitlog
        import reput.stream  # noqa: F401

        begun.serve_forks()


def spark_wanted(
    application: str, master: str | None, display: ProgressDisplay | None = None
) -> Callable[[], SparkSession] | None:
    """What starts a session where a master was named, or by spark-submit; None: the command needs none.

    Raises:
        ReputError: Spark is wanted, and can't run here.
    """
    if master is None and not is_submitted():
        return None
    prepare_spark()
    return lambda: start_spark(application, master, display)


def start_spark(application: str, master: str | None, display: ProgressDisplay | None = None) -> SparkSession:
    """The session of a command.

    Raises:
        ReputError: Spark can't run here.
    """
    refuse_connect()
    if display is not None:
        display.say("starting Spark")
    with as_before():
        return session(application, master)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether it isn't what py4j says of an interrupted call (GatewayClient.send_command in 0.10.9.9)."""
    return record.msg != "KeyboardInterrupt while sending command."


def part_stderr() -> None:
    """Give this process a ``sys.stderr`` apart from stdout, where spark-submit has joined them."""
    if "PYSPARK_GATEWAY_PORT" in os.environ and os.path.sameopenfile(1, 2):
        sys.stderr = _JvmStderr(sys.stderr)


class _JvmStderr(io.TextIOBase):
    """Writes to ``System.err`` of the JVM that started this process.

    ``otherwise``: written to when the JVM is gone.
    """

    def __init__(self, otherwise: TextIO) -> None:
        self._otherwise = otherwise
        self._stream: Any = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._otherwise.encoding

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        from py4j.protocol import Py4JError

        try:
            if self._stream is None:
                from pyspark import SparkContext

                SparkContext._ensure_initialized()
                self._stream = getattr(SparkContext._jvm, "System").err  # noqa: B009
            # "print" is a method of PrintStream; a string keeps its line ends.
            self._stream.print(text)
        except (Py4JError, OSError, AttributeError):
            self._otherwise.write(text)
        return len(text)
