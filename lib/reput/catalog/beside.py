"""Keeping a table of messages up to date beside a tail.

A commit of Delta Lake through Spark takes most of a second, too long for each of a tail's batches. The table
follows in a thread of its own, up to where the tail has committed, with all that has come since in one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from reput.catalog.options import Cataloged, CatalogOptions
from reput.catalog.run import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: From the end of one run to the next, seconds.
EVERY_SECONDS = 60.0


class CatalogBeside:
    """A table that follows a tail. A context manager: nobody else writes to the table meanwhile.

    Args:
        options: what to catalog.

    Raises:
        ReputError: as for :class:`reput.catalog.run.Catalog`.
    """

    def __init__(self, options: CatalogOptions) -> None:
        self._catalog = Catalog(options)
        self._committed: Callable[[], int] = lambda: 0
        self._start_spark: Callable[[], SparkSession] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reput-catalog", daemon=True)
        self._lock = threading.Lock()
        self._gone_from: int | None = None
        self._done: Cataloged | None = None

    def __enter__(self) -> Self:
        self._catalog.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._catalog.__exit__(kind, error, trace)

    def check(self) -> None:
        """See that table and log belong together; see :meth:`reput.catalog.run.Catalog.check`."""
        self._catalog.check()

    def start(self, spark: SparkSession, committed: Callable[[], int]) -> None:
        """Begin to follow.

        Args:
            spark: a session with Delta Lake.
            committed: tells the physical offset up to which the tail has committed.
        """
        self._committed = committed
        self._start_spark = lambda: spark
        self._thread.start()

    def went_back(self, offset: int) -> None:
        """Take out, before anything else comes, what the table holds of the log from an offset on.

        Args:
            offset: physical offset at which the log went on otherwise; a record begins there.
        """
        with self._lock:
            self._gone_from = offset if self._gone_from is None else min(offset, self._gone_from)

    def finish(self) -> Cataloged:
        """Bring the table up to where the tail has ended, and tell what came of all runs.

        Raises:
            ReputError: as :meth:`reput.catalog.run.Catalog.advance` says; the table is as of its last commit.
        """
        self._end()
        return self._advance()

    def _end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            try:
                self._advance()
            except Exception as error:  # noqa: BLE001 - whatever it is: the tail goes on, and so must the thread
                logging.getLogger(__name__).warning("the table of messages stays behind: %s", error)

    def _advance(self) -> Cataloged:
        if self._start_spark is None:
            raise ValueError("it was not started")
        with self._lock:
            # In this order: what is committed after the log went back is no less than where it went to.
            gone_from, self._gone_from = self._gone_from, None
        try:
            done = self._catalog.advance(self._start_spark, self._committed(), gone_from)
        except BaseException:
            if gone_from is not None:
                self.went_back(gone_from)
            raise
        self._done = done if self._done is None else self._done.then(done)
        return self._done
