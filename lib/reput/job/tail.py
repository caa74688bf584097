"""The tail job: the rebuild's pipeline, kept running on a log that is being written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from reput.config.kept import TopicsNow
from reput.config.settings import StoreSettings
from reput.errors import LogWentBackError, SegmentGoneError, StoreError
from reput.format import names
from reput.job.options import TailOptions
from reput.job.plan import Plan, intended, output_root, prepare
from reput.job.rebuilding import as_hosts_allow
from reput.job.status import Watch, watching
from reput.job.summary import Summary, summarize
from reput.log.live import LiveLog
from reput.log.segments import CommitLog, discover
from reput.output.journal import Journal
from reput.output.ledger import LedgerUpkeep
from reput.output.log_changes import last_standing, roll_back, stands, step_back, too_far
from reput.output.writer import BatchWriter
from reput.replay.runner import load_kernels
from reput.replay.target import Target
from reput.spark.runner import SparkRunner
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.reading import check_store
from reput.stream import TailQuery, last_planned, set_aside

if TYPE_CHECKING:
    from reput.catalog.update import CatalogBeside

_LOG = logging.getLogger(__name__)


def follow(
    plan: Plan,
    spark: SparkSession,
    stopping: threading.Event,
    watch: Watch,
    listener: Callable[[BatchWriter], None],
    went_back: Callable[[int], None] | None = None,
    max_rate: int | None = None,
    announce: Callable[[str], None] = lambda _text: None,
) -> dict[str, float]:
    """Follow the log until a stop is requested; the output is then what the journal says.

    ``went_back`` gets the physical offset up to which the log still is as it was, when it went back; further
    than the journal remembers is an error. ``max_rate`` is in bytes of log a second. Returns the wall time of
    the stages of all batches, s.
    """
    runner = SparkRunner(spark.sparkContext)
    plan = plan.for_slots(runner.slots)
    runner.warm_up()
    load_kernels()  # this process does the small batches
    with runner.shared(plan.root, plan.owner, plan.settings.config_files):
        following = _Following(plan, spark, runner, stopping, watch, listener, went_back, max_rate)
        return as_hosts_allow(plan, runner, announce, following.follow)


@dataclass(slots=True)
class _Following:
    """What :func:`follow` was given."""

    plan: Plan
    spark: SparkSession
    runner: SparkRunner
    stopping: threading.Event
    watch: Watch
    listener: Callable[[BatchWriter], None]
    went_back: Callable[[int], None] | None
    max_rate: int | None

    def _by_now(self, live: LiveLog, writer: BatchWriter, planned: int) -> int:
        """The log's settled end, if a batch up to it isn't larger than one may be; else the planned end."""
        end = live.settled(planned)
        most = self.plan.options.max_bytes_per_trigger
        return end if end - writer.state.cursor <= most else planned

    def follow(self, target: Target) -> dict[str, float]:
        """Follow the log with tasks that write as ``target`` says."""
        plan, runner, watch, went_back = self.plan, self.runner, self.watch, self.went_back
        seconds: dict[str, float] = {}
        tried = -1

        def batch_done(writer: BatchWriter) -> None:
            watch.batch(writer.state, seconds)
            self.listener(writer)

        while True:
            log = discover(plan.settings)
            with OutputLock(plan.root, plan.owner).exclusive():
                roll_back(target, plan.journal.state)
                if _step_back(target, plan.journal, log) and went_back is not None:
                    went_back(plan.journal.state.cursor)
            writer = BatchWriter(
                target,
                plan.journal,
                log,
                runner,
                abort_present=plan.abort_present,
                look=lambda: discover(plan.settings),
            )
            writer.stages.seconds = seconds
            writer.begin()  # may move the cursor, past what expired unread
            checkpoint = plan.root / names.REPUT / names.SPARK_CHECKPOINT
            begins = _begins_at_cursor(plan, log, checkpoint)
            live = LiveLog(plan.settings, plan.journal.state.cursor, plan.last_timestamp)
            # With a limited rate nothing may be read ahead.
            settled = partial(self._by_now, live, writer) if self.max_rate is None else int
            try:
                # With a limited rate the first batch's size isn't known yet, and nothing may be read ahead.
                if begins and self.max_rate is None:
                    writer.begin_backlog(plan.options.max_bytes_per_trigger, plan.options.part_bytes)
                source = plan.source(
                    live="true",
                    stopFile=plan.root / names.REPUT / names.STOP,
                    maxBytesPerSecond=self.max_rate,
                )
                following = TailQuery(self.spark, writer, checkpoint, source, batch_done, settled)
                watch.follow(following.last_progress)
                with LedgerUpkeep(writer.ledger):
                    following.run(self.stopping)
            except (LogWentBackError, SegmentGoneError) as error:
                writer.stop_ahead()
                state = plan.journal.state
                if (
                    state.cursor == tried
                    and last_standing(plan.journal, discover(plan.settings)) == state.batches
                ):
                    raise  # a second time at this cursor, and nothing that was placed is gone
                _LOG.warning("%s", error)
                tried = state.cursor
                set_aside(checkpoint)  # Spark planned it from the log as it was
                writer.abandon()
                watch.restarted("log-went-back" if isinstance(error, LogWentBackError) else "expired-unread")
                continue
            except BaseException:
                runner.cancel()
                writer.stop_ahead()
                raise
            finally:
                live.close()
            writer.finish()
            writer.close()
            return seconds


def _step_back(target: Target, journal: Journal, log: CommitLog) -> bool:
    """Take back what the log no longer holds; returns whether there was anything.

    Raises OutputError where what to take back is no longer known.
    """
    number = last_standing(journal, log)
    # With nothing in common, not even the last message, it is more likely another log than one that went back
    # that far.
    if number is None or (
        number < journal.state.batches
        and journal.state_after(number).last_position < 0
        and not stands(log, journal.state)
    ):
        raise too_far(journal, log)
    if number < journal.state.batches:
        _LOG.warning("%s", step_back(target, journal, log, number))
        return True
    return False


def _begins_at_cursor(plan: Plan, log: CommitLog, checkpoint: Path) -> bool:
    """Whether the stream's first batch begins at the cursor.

    Spark's checkpoint is set aside unless a stream can resume from it.
    """
    if not checkpoint.exists():
        return True
    planned = last_planned(checkpoint)
    # What was planned up to the cursor is done, and costs nothing. What was planned past it may be gone by
    # now, and what is there may be left over from before the log was cut: the source has to look again.
    if planned is None or not log.start <= planned.end <= plan.journal.state.cursor:
        _LOG.warning("%s can't be resumed from, and is set aside", checkpoint)
        set_aside(checkpoint)
        return True
    return planned.end == plan.journal.state.cursor


#: Seconds between two checks for the first segment of a new broker.
_POLL_SECONDS = 0.1


def tail(
    options: TailOptions,
    start_spark: Callable[[], SparkSession],
    stopping: threading.Event,
    listener: Callable[[BatchWriter], None] = lambda _writer: None,
    announce: Callable[[str], None] = lambda _text: None,
    on_wait: Callable[[Path], None] = lambda _directory: None,
) -> Summary:
    """Follow a log until ``stopping`` is set or there is a stop file in the output.

    ``start_spark`` is only called once the run isn't refused. ``on_wait`` gets the directory where the log's
    first segment is expected, if the log has none yet. After an error the output is that of the last
    committed batch, or becomes so at the next start.
    """
    started = time.perf_counter()
    to_catalog = options.to_catalog()
    table: CatalogBeside | None = None
    if to_catalog is not None:
        from reput.catalog.update import CatalogBeside

        table = CatalogBeside(to_catalog)
    with ExitStack() as stack:
        watch = stack.enter_context(watching(options.metrics_port, options.metrics_address))
        log = stack.enter_context(first_segment(options, stopping.is_set, on_wait))
        if not log.is_there:
            return Summary(
                store=str(log.settings.root),
                output=str(options.out),
                in_place=False,
                rocketmq_version=log.settings.told_release,
                seconds=time.perf_counter() - started,
                followed=True,
                basis=log.settings.basis,
            )
        plan = stack.enter_context(prepare(intended(options, follows=True), log.lock))
        if table is not None:
            stack.enter_context(table).check(plan.journal.state.cursor)
        before = replace(plan.journal.state)
        stop_file = plan.root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        watch.begin(plan.settings, plan.root, plan.journal.state)
        if watch.url is not None:
            announce(f"metrics are at {watch.url}")
        spark = start_spark()
        if table is not None:
            runner, journal = SparkRunner(spark.sparkContext), plan.journal
            table.start(runner, lambda: journal.state.cursor, watch.table(table.path, table.reached))
        went_back = None if table is None else table.went_back
        stages = follow(plan, spark, stopping, watch, listener, went_back, options.max_rate, announce)
        cataloged = None if table is None else table.finish()
        files.remove_tree(stop_file)
        plan = replace(plan, known=TopicsNow(plan.settings.config).known)
        seconds = time.perf_counter() - started
        summary = summarize(plan, before, seconds, None, stages)
        return replace(summary, followed=True, catalog=cataloged)


@dataclass(frozen=True, slots=True)
class Awaited:
    """The result of waiting for a log's first segment."""

    settings: StoreSettings  # the store's
    is_there: bool  # there is a segment; otherwise the wait was ended by a request to stop
    lock: OutputLock | None = None  # the output's, held since the wait began; None if there was no wait


@contextmanager
def first_segment(
    options: TailOptions, is_over: Callable[[], bool], on_wait: Callable[[Path], None]
) -> Iterator[Awaited]:
    """Wait until the log has a segment, or ``is_over()``, or there is a stop file in the output.

    The lock stays held while the block runs, so that ``tail --stop`` finds one writer from first to last.
    ``on_wait`` is called once, before a wait, with the directory where segments are expected.
    """
    check_store(options.store)
    settings = StoreSettings.load(
        options.store,
        options.broker_conf,
        options.rocketmq_version,
        rocksdb=True,
        elsewhere=True,
        asked=options.asked,
    )
    if options.out is None or _has_segment(settings):
        yield Awaited(settings, is_there=True)
        return
    root = output_root(options.out, settings)
    files.make_dirs(root / names.REPUT)
    with OutputLock(root) as lock:
        stop_file = root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        on_wait(settings.commit_log_dirs[0])
        while not (is_there := _has_segment(settings)) and not (is_over() or stop_file.exists()):
            time.sleep(_POLL_SECONDS)
        if not is_there:
            files.remove_tree(stop_file)
        yield Awaited(settings, is_there, lock)


def _has_segment(settings: StoreSettings) -> bool:
    """Whether there is a log to read, or anything there but what a broker makes when it starts.

    That is the directory, and with 5.x a first file of no bytes.
    """
    try:
        discover(settings)
    except StoreError:
        return any(map(_has_bytes, settings.commit_log_dirs))
    return True


def _has_bytes(directory: Path) -> bool:
    try:
        return any(path.stat().st_size for path in directory.iterdir() if path.is_file())
    except FileNotFoundError:
        return False  # not made yet, or a file that has just gone
    except OSError:
        return True  # whoever reads it next reports what it is
