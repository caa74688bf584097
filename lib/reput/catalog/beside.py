"""Keeping a table of messages up to date beside a tail.

A file and a commit for each of a tail's batches would be too many to read. The table follows in a thread of
its own, up to where the tail has committed, with all that has come since in one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from reput.catalog.options import Cataloged, CatalogOptions
from reput.catalog.update import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: From the end of one run to the next, seconds.
EVERY_SECONDS = 60.0
#: Bytes of log in one step: a tail that is asked to end waits for the one that is under way.
MOST_BYTES = 1 << 30

_LOG = logging.getLogger(__name__)


class Watch(Protocol):
    """What reports the state of the table."""

    def succeeded(self) -> None:
        """After a step that brought the table up to date, and kept it up."""

    def failed(self, error: BaseException) -> None:
        """After a step that didn't."""


class CatalogBeside(Catalog):
    """A table that follows a tail."""

    def __init__(self, options: CatalogOptions) -> None:
        super().__init__(options, is_told=True)
        self.path = options.table
        self._committed: Callable[[], int] = lambda: 0
        self._start_spark: Callable[[], SparkSession] | None = None
        self._watch: Watch | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reput-catalog", daemon=True)
        self._done: Cataloged | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        super().__exit__(kind, error, trace)

    def start(self, spark: SparkSession, committed: Callable[[], int], watch: Watch) -> None:
        """Begin to follow; ``committed`` tells the physical offset up to which the tail has committed."""
        self._committed = committed
        self._watch = watch
        self._start_spark = lambda: spark
        self._thread.start()

    def finish(self) -> Cataloged:
        """Bring the table up to where the tail has ended, and tell what came of all runs.

        So that a tail ends soon, one more step is made, of :data:`MOST_BYTES` of log. What is left is for the
        next run. After an error the table is as of its last commit.
        """
        self._end()
        done = self._advance()
        left = self._committed() - done.end
        if left > 0:
            _LOG.warning("the table of messages is %d bytes of log behind; the next run continues", left)
        return done

    def _end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            try:
                self._catch_up()
            except Exception as error:  # noqa: BLE001 - whatever it is: the tail continues, and so must the thread
                _LOG.warning("the table of messages stays behind: %s", error)

    def _catch_up(self) -> None:
        reached = -1
        while not self._stop.is_set():
            end = self._advance().end
            if end <= reached or end >= self._committed():
                return  # a log that was cut ends before what was committed
            reached = end

    def _advance(self) -> Cataloged:
        if self._start_spark is None or self._watch is None:
            raise ValueError("it was not started")
        try:
            done = self.advance(self._start_spark, self._committed, MOST_BYTES)
        except Exception as error:
            self._watch.failed(error)
            raise
        self._watch.succeeded()
        self._done = done if self._done is None else self._done.then(done)
        return self._done
