"""Running the query of a tail; it starts again from what the log still holds if the log went back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from reput.errors import LogWentBackError, SegmentGoneError
from reput.format import names
from reput.job.plan import Plan
from reput.job.run import as_hosts_allow
from reput.log.live import LiveLog
from reput.log.segments import CommitLog, discover
from reput.output.journal.journal import Journal
from reput.output.ledger.ledger_upkeep import LedgerUpkeep
from reput.output.step_back import last_standing, roll_back, stands, step_back, too_far
from reput.output.writer import BatchWriter
from reput.replay import kernels
from reput.replay.target import Target
from reput.spark.runner import SparkRunner
from reput.store.lock import OutputLock
from reput.stream.tail_query import TailQuery, last_planned, set_aside
from reput.watch.run import Watch

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

    Args:
        plan: the run's.
        spark: the session.
        stopping: set to request a stop.
        watch: gets batches and restarts.
        listener: is called after each batch.
        went_back: gets the physical offset up to which the log still is as it was, when it went back.
        max_rate: bytes of log a second that may be read, None for no limit.
        announce: gets what an operator should know, in a few words.

    Returns:
        Wall time of the stages of all batches, s.

    Raises:
        ReputError: a batch failed, or the log went back further than the journal remembers.
    """
    runner = SparkRunner(spark.sparkContext)
    plan.options = plan.options.for_slots(runner.slots, plan.log.end - plan.log.start)
    runner.warm_up()
    kernels.load()  # this process does the small batches
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
            live = LiveLog(plan.settings, plan.journal.state.cursor)
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

    Raises:
        OutputError: what to take back is no longer known.
    """
    number = last_standing(journal, log)
    # With nothing in common it is more likely another log than one that went back that far.
    if number is None or (number < journal.state.batches and journal.state_after(number).last_position < 0):
        if number is not None and stands(log, journal.state):
            return False  # only older messages behind newer ones, as after a clock that was set back
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
