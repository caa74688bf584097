"""Writes what a log has gained to a table of messages: tasks write files, this process commits them.

Each batch is one commit, with the physical offset up to which the table then holds the log; see
:mod:`reput.catalog.table`. A run's files have a mark in their names, by which those are found that no commit
came to name, and removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from reput.catalog.hold import Hold, hold_of
from reput.catalog.options import CatalogOptions
from reput.catalog.rows import Adding, Merging, Writer, schema
from reput.catalog.standing import Standing
from reput.catalog.table import File, Table, Written
from reput.config.settings import StoreSettings
from reput.errors import OutputError, RemoteStoreError, ReputError, SegmentGoneError, StoreInUseError
from reput.log.parts import batch_end, cut, next_place
from reput.log.segments import CommitLog, discover
from reput.replay.part_result import witnessed
from reput.replay.runner import in_waves
from reput.scan.rules import Part
from reput.store.lock import is_broker_running

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from reput.spark.runner import SparkRunner

_LOG = logging.getLogger(__name__)
#: How long the end of a live log is given to settle.
_SETTLE_SECONDS = 2.5
#: Bytes of log that are worth a task. A larger part needs less of its segment before it passed over.
_LEAST_PART = 64 << 20
#: How long tasks that were cancelled may take to end.
_LATE_SECONDS = 2.0


class Appending:
    """Adds to a table, and merges its files.

    Args:
        table: as it is before the first commit.
        listener: gets the bytes of log that were read, the messages that were found, and the bytes in all.
        hold: the right to write this store's messages; None for one that is held without it.

    Attributes:
        commits: that added to it.
        expired: bytes of log that were deleted before they were read.
    """

    def __init__(
        self,
        options: CatalogOptions,
        settings: StoreSettings,
        table: Table,
        listener: Callable[[int, int, int], None] = lambda *_: None,
        hold: Hold | None = None,
    ) -> None:
        self.commits = 0
        self.expired = 0
        self._options = options
        self._settings = settings
        self._table = table
        self._listener = listener
        self._hold = hold_of(table) if hold is None else hold
        self._read = self._messages = 0

    def append(self, start_spark: Callable[[], SparkSession], standing: Standing, end: int | None) -> None:
        """Commit what the log holds behind ``standing``, up to ``end`` or its own end."""
        with ThreadPoolExecutor(1, "reput-log-end") as pool:  # beside Spark's start
            looked = pool.submit(self._log, standing.begin, end)
            spark = start_spark()
            log, end = looked.result()
        self.expired += max(min(log.start, end) - standing.begin, 0)
        with self._writing(spark) as (runner, writer):
            work = Adding(writer, self._settings, standing.after)
            batches = list(self._batches(log, standing.begin, end, runner.slots))
            every = [part for _, parts in batches for part in parts]
            total = sum(part.end - part.start for part in every)
            with _results(runner, work, every) as results:
                for stop, parts in batches:
                    written: list[Written] = []
                    for part in parts:
                        written += self._of(part, next(results), total)
                    self._commit(written, stop)

    def merge(self, spark: SparkSession, groups: list[list[File]]) -> Iterator[list[File]]:
        """Put one file in the place of each group of files; yields the groups of which that was done."""
        with self._writing(spark) as (runner, writer), _results(runner, Merging(writer), groups) as results:
            for group in groups:
                result = next(results)
                if isinstance(result, ReputError):
                    raise result
                self._check_alone()
                # Else somebody has deleted rows meanwhile, which would come back.
                if self._table.is_plain and self._table.has(group):
                    self._table.replace(group, result, self._hold.check)
                    yield group

    def _log(self, begin: int, end: int | None) -> tuple[CommitLog, int]:
        """The log, and up to where it is to be read."""
        if end is None and self._settings.dledger is None and is_broker_running(self._settings.root):
            from reput.log.live import LiveLog

            live = LiveLog(self._settings, begin)
            end = live.settle(_SETTLE_SECONDS)
            # Segments that a broker has made ahead of time are no successors of the one that it writes.
            return live.written(end) or discover(self._settings), end
        log = discover(self._settings)
        if end is None:
            from reput.log.end import LogEnd

            end = LogEnd(self._settings).find(log)
        return log, min(end, log.end)

    def _batches(self, log: CommitLog, at: int, end: int, slots: int) -> Iterator[tuple[int, list[Part]]]:
        """The ends of batches, and their parts. A small rest needs no batch of its own."""
        most = self._options.max_bytes_per_trigger
        while at < end:
            at = max(at, min(next_place(log, at), end))
            stop = end if end - at <= most + most // 16 else batch_end(log, at, end, most)
            yield stop, list(cut(log, at, stop, max(-(-(stop - at) // slots), _LEAST_PART), None))
            at = stop

    def _of(self, part: Part, result: Any, total: int) -> list[Written]:
        """A part's files; none if it has expired meanwhile."""
        if isinstance(result, SegmentGoneError) and discover(self._settings).start > part.base:
            _LOG.warning(
                "%s has expired; messages from %d to %d are left out", part.path, part.start, part.end
            )
            self.expired += part.end - part.start
            return []
        if isinstance(result, ReputError):
            raise result
        written: list[Written] = result
        self._read += part.end - part.start
        self._messages += sum(file.rows for file in written)
        self._listener(self._read, self._messages, total)
        self._hold.beat()
        return written

    def _commit(self, written: list[Written], end: int) -> None:
        """Add a batch's files, and its end as the cursor."""
        self._check_alone()
        cursor = self._table.cursor
        if not written and cursor is not None and end <= cursor:
            return  # only the record that the run began with
        many = self._table.broker is not None
        self._table.append(written, end, schema(bodies=self._options.bodies, many=many), self._hold.check)
        self.commits += 1

    def _check_alone(self) -> None:
        expected = self._table.cursor
        self._table.refresh()
        # After the look at the table: see reput.catalog.hold.
        self._hold.check()
        found = self._table.cursor
        if found != expected:
            raise OutputError(
                "another run has written to the table meanwhile",
                path=self._table.url,
                expected=f"messages up to {expected}",
                found=f"up to {found}",
                next_step="Run the same command again when no other runs",
            )

    @contextmanager
    def _writing(self, spark: SparkSession) -> Iterator[tuple[SparkRunner, Writer]]:
        """A runner for tasks, and what they write with; then remove the files that no commit names."""
        from reput.spark.runner import SparkRunner

        table = self._table
        runner = SparkRunner(spark.sparkContext)
        token = self._hold.begin()
        try:
            with nullcontext() if table.is_remote else runner.shared(table.path, None, ()):
                yield (
                    runner,
                    Writer(
                        table.path,
                        token,
                        self._options.bodies,
                        locks=self._hold.locks if runner.is_local else None,
                        directory="" if table.broker is None else table.broker.directory,
                        url=table.url if table.is_remote else None,
                    ),
                )
        finally:
            with suppress(OutputError, RemoteStoreError, StoreInUseError):  # else the next run does it
                table.refresh()
                self._hold.clean(_LATE_SECONDS)


def _results(
    runner: SparkRunner, work: Callable[[Any], object], items: Sequence[Any]
) -> closing[Generator[Any]]:
    """What tasks make of the items, in order."""

    def seen(item: Any) -> Any:
        if isinstance(item, Part):
            with suppress(SegmentGoneError):  # the task finds that, too
                return witnessed(runner, item)
        return item

    def do(wave: list[Any]) -> list[object]:
        return runner.map(work, [seen(item) for item in wave])

    return closing(in_waves(runner, do, items, runner.cancel))
