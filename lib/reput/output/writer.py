"""The foreachBatch writer: one micro-batch from parts of the log to a committed state.

Order of a batch, each step on disk before the next: consume queues and index files, journal (the commit
point), ledger, store checkpoint; then Spark commits its offset. docs/internals/protocol.md says what a crash
leaves at each step.
"""

from __future__ import annotations

import shutil
import time
from collections import ChainMap
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from reput.build.placement import Breaks
from reput.errors import Finding, SegmentGoneError
from reput.format import names
from reput.format.checkpoint import LOGICS_FIELDS, StoreCheckpoint
from reput.format.indexfile import file_length
from reput.format.names import Queue
from reput.log.live import went_back
from reput.log.segments import CommitLog, batch_end, cut, without_unwritten_end
from reput.output import appended_queues, log_changes
from reput.output.audit import audit_batch, bounded, check_all, check_queues, keep_ranges
from reput.output.batch import BatchScan, BatchTasks, StateFloors
from reput.output.databases import are_made, keep_runs, tidy_runs
from reput.output.index_files import BatchIndex, IndexBuilder, LiveIndex
from reput.output.journal import Journal, ledger_is_kept
from reput.output.log_changes import record_mark, roll_back, stands
from reput.output.whole_queues import QueueFiles
from reput.remote import with_urls
from reput.replay.altered import Altered, in_rounds
from reput.replay.part_result import PartResult
from reput.replay.placing import QueueOutcome
from reput.replay.runner import InlineRunner, Runner
from reput.replay.state import Batch, QueueState, State, collector_paused
from reput.replay.target import Target
from reput.scan.rules import Part
from reput.store import file_system, files
from reput.store.file_system import FileCache
from reput.store.lock import OutputLock
from reput.store.places import attempt_directory

if TYPE_CHECKING:
    from reput.output.ledger import Ledger

PART_COLUMNS = (
    "path",
    "base",
    "segmentLength",
    "segmentSize",
    "start",
    "end",
    "exact",
    "last",
)


#: A batch of a tail up to this size is scanned in 20 ms, less than Spark needs to run a task.
_INLINE_BYTES = 32 << 20


class Row(Protocol):
    """A row of the source's parts."""

    def __getitem__(self, name: str) -> object: ...


@dataclass(slots=True)
class Progress:
    """How far a run is; passed to the listener after every part."""

    bytes_done: int = 0
    messages: int = 0


@dataclass(slots=True)
class Stages:
    """Wall time of a run's stages in seconds, for the benchmark."""

    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = 0.0

    def begin(self) -> None:
        """The next stage begins now."""
        self._since = time.perf_counter()

    def end(self, stage: str, at: float | None = None) -> None:
        """A stage ended, now or ``at`` a moment of time.perf_counter; the next one begins then."""
        now = time.perf_counter() if at is None else max(at, self._since)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now


def part_of(row: Row) -> Part:
    """A source row as a part."""
    return Part(*(row[name] for name in PART_COLUMNS))  # type: ignore[arg-type]


class BatchWriter:
    """Commits micro-batches to one output.

    ``abort_present``: its broker will start with crash recovery. ``look`` lists the segments of a log that
    grows again; scratch then stays from the first batch to :meth:`close`, and small batches are done in this
    process.
    """

    def __init__(
        self,
        target: Target,
        journal: Journal,
        log: CommitLog,
        runner: Runner,
        listener: Callable[[Progress], None] = lambda _progress: None,
        *,
        abort_present: bool = False,
        look: Callable[[], CommitLog] | None = None,
        announce: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._target = target
        self._journal = journal
        self._ledger: Ledger | None = None
        self._log = log
        self._runner = runner
        self._listener = listener
        self._abort_present = abort_present
        self._look = look
        self._announce = announce
        self._live = LiveIndex(target)
        self._ahead: BatchScan | None = None
        self._checkpointing: Future[None] | None = None
        self.progress = Progress()
        self.stages = Stages()

    @property
    def ledger(self) -> Ledger:
        """The output's ledger, where :func:`reput.output.journal.ledger_is_kept`."""
        if self._ledger is None:
            from reput.output.ledger import Ledger

            self._ledger = Ledger(self._target.root)
        return self._ledger

    @property
    def state(self) -> State:
        """What is committed; not to be changed."""
        return self._journal.state

    def is_small(self, end: int) -> bool:
        """Whether a batch of a tail up to ``end`` is done in this process."""
        return self._look is not None and end - self._journal.state.cursor <= _INLINE_BYTES

    def write_to(self, end: int, batch_id: int) -> None:
        """Commit the parts from the cursor to a physical offset of a log that grows."""
        if self._look is not None and (end > self._log.end or not self._knows([])):
            self._log = self._look()
        # Segments that the broker has made ahead of time don't follow the one that it writes yet.
        begun = tuple(segment for segment in self._log.segments if segment.base < end)
        cursor = self._journal.state.cursor
        parts = cut(replace(self._log, segments=begun), cursor, end, self._log.segment_size, cursor)
        self.write(list(parts), batch_id)

    def begin_backlog(self, max_bytes: int, part_bytes: int) -> None:
        """Do :meth:`begin_ahead` with the first batch of a tail, if it is certain what that will be.

        It is if there is a full batch in segments before the last one: these don't change any more.
        """
        log = without_unwritten_end(self._log)
        cursor = self._journal.state.cursor
        end = batch_end(log, cursor, log.end, max_bytes)
        if end <= log.segments[-1].base and not self.is_small(end):
            self.begin_ahead(list(cut(log, cursor, end, part_bytes, cursor)))

    def begin_ahead(self, parts: list[Part]) -> None:
        """Begin the first batch's work while Spark still starts the query that will deliver it.

        Nothing is committed before Spark delivers that batch. If it turns out to be another one, as when a
        segment expired in between, what was written is rolled back, as after a crash.
        """
        parts = self._from_cursor(parts)
        if parts:
            self._empty_scratch()
            self._ahead = self._scan(parts)
            self._ahead.begin()

    def stop_ahead(self) -> None:
        """Make sure that nothing begun by :meth:`begin_ahead` still writes; the next start rolls it back."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def undo_ahead(self) -> None:
        """Roll back what was begun by :meth:`begin_ahead` and not needed."""
        if self._ahead is None:
            return
        self.stop_ahead()
        with OutputLock(self._target.root, self._target.owner).exclusive():
            roll_back(self._target, self._journal.state)
        self.progress = Progress()

    def write(self, parts: list[Part], batch_id: int) -> None:
        """Commit the part of the batch that is past the cursor; docs/internals/protocol.md has the steps.

        After an error the committed state is as it was.
        """
        with collector_paused():
            scan = self._gather(parts)
            if scan is None:
                return
            try:
                batch = self._settle(scan, batch_id)
            finally:
                scan.close()
            if batch.end > batch.start or self._has_news(batch):
                self._commit(scan, batch)
            else:
                self._leave_scratch()

    def _gather(self, parts: list[Part]) -> BatchScan | None:
        """Steps 1 to 6: the log is read, units are placed and keys put. None if there is nothing to do."""
        self.stages.begin()
        self._add_to_ledger()
        if self._look is not None and not self._knows(parts):
            self._log = self._look()
        self._retain()
        parts = self._from_cursor(parts)
        if not parts:
            return None
        scan = self._begun(parts)
        if scan is None:
            self._empty_scratch()
            scan = self._scan(parts)
        self.stages.end("prepare")
        try:
            scan.finish()
        except BaseException:
            scan.close()
            raise
        self.stages.end("scan", scan.scanned)
        if scan.written:
            self.stages.end("queue files", scan.written)
        self.stages.end("index")
        return scan

    def _settle(self, scan: BatchScan, batch_id: int) -> Batch:
        """Steps 7 and 8: units without a place yet get one, and everything is flushed."""
        state, chain, queues = self._journal.state, scan.chain, scan.queues
        breaks = self._breaks(scan)
        outcomes: list[QueueOutcome] = []
        if self._target.queue_files:
            outcomes = [*self._place_again(scan, breaks), *self._append(scan, breaks)]
        salvaged = keep_ranges(self._target, self._log, chain.findings, chain.breaks)
        salvaged += bounded(outcome.salvaged for outcome in outcomes)
        self.stages.end("irregular queues")
        if self._target.queue_files:
            self._pre_blank(scan)
        if self._target.in_rocksdb:
            keep_runs(self._target, self._journal.state.cursor, scan, breaks)
        if not scan.tasks.target.flush_in_tasks:
            scan.audited = self._flush(scan)
        self.stages.end("flush")
        without_unit, unplaceable = _without_unit(scan.accepted, self._target.topic_problem)
        batch = Batch(
            start=state.cursor,
            end=scan.end,
            batch_id=batch_id,
            messages=sum(result.messages for result in scan.accepted),
            bytes=sum(result.message_bytes for result in scan.accepted),
            last_position=scan.last_position,
            last_timestamp=chain.last_timestamp,
            last_unit_timestamp=(
                queues.last_unit_timestamp if queues.last_unit_position >= 0 else state.last_unit_timestamp
            ),
            queues=queues.changed(),
            index=list(scan.changed_index.items()),
            findings=[
                replace(finding, path=with_urls(finding.path))  # the run's own directory goes, the URL stays
                for finding in (
                    # A last segment that is cut short behind its last record ends where the parts do.
                    *self._log_findings(state.cursor, max(scan.end, scan.parts[-1].end)),
                    *chain.findings,
                    *(finding for outcome in outcomes for finding in outcome.findings),
                    *unplaceable,
                )
            ],
            without_unit=without_unit,
            breaks=chain.breaks,
            last_unit_position=max(queues.last_unit_position, state.last_unit_position),
            last_record=record_mark(self._log, scan.last_position, scan.end),
            salvaged=salvaged,
            unproven_until=max((until for _, until in breaks.unproven), default=0),
        )
        # Only a tail compares later, and its log is here: a rebuild needn't read its records again.
        return batch if self._look is None else log_changes.with_older(self._log, state, batch)

    def _commit(self, scan: BatchScan, batch: Batch) -> None:
        """The end of step 8, and steps 9 to 12: check the files, commit to the journal, and the rest."""
        check_queues(self._target, self._journal.state.queues, scan.queues.going_on())
        if not (scan.audited or scan.tasks.is_here):  # else this process wrote all of it itself
            self._audit(scan, list(scan.queues.ranges(self._target.settings.consume_queue_file_size)))
        dropped = list(scan.queues.restarted())
        self._check_same_log()
        self._await_checkpoint()
        self._journal.append(batch)
        self._target.selection.remember(batch.queues)
        for queue, before, now in dropped:
            appended_queues.drop_rest(self._target, queue, before, now)
        self.stages.end("journal")
        checkpoint = self._new_checkpoint()
        flushed = None if checkpoint is None else files.flush_beside(checkpoint.flushed)
        try:
            self._add_to_ledger()
        except BaseException:
            if checkpoint is not None and flushed is not None:
                wait([flushed])
                checkpoint.give_up()
            raise
        self.stages.end("ledger")
        if flushed is not None:
            # Its name is what moves it. Until that is on disk, it is an older batch's, which is as good.
            self._checkpointing = flushed.result().put_in_place_beside()
            if self._look is None:
                self._await_checkpoint()
        self._leave_scratch()
        self.stages.end("checkpoint")

    def begin(self) -> None:
        """At the start of a run: check that all files are there, follow the log's start, finish a removal."""
        log_changes.begin(self._target, self._journal.state)
        if self._target.in_rocksdb and not are_made(self._target):
            tidy_runs(self._target, self._journal.opening.start, self._journal.state.cursor)
        check_all(self._target, self._journal.state)
        self._retain(at_start=True)

    def _retain(self, *, at_start: bool = False) -> None:
        log_changes.follow(
            self._target,
            self._journal,
            self._log,
            self._add_to_ledger,
            at_start=at_start,
        )

    def close(self) -> None:
        """End a tail cleanly: the files hold only what the journal says.

        If the index can't be flushed, the next start has to roll back.
        """
        self.undo_ahead()
        self._live.release()
        shutil.rmtree(self._target.scratch, ignore_errors=True)

    def abandon(self) -> None:
        """Close what is open; scratch stays, so that the next start rolls back."""
        self._live.abandon()
        self._await_checkpoint()

    def finish(self) -> None:
        """Make ledger and checkpoint agree with the journal, for a run that had nothing to do."""
        self._await_checkpoint()
        self._add_to_ledger()
        checkpoint = self._new_checkpoint()
        if checkpoint is not None:
            checkpoint.flushed().put_in_place()

    def _add_to_ledger(self) -> None:
        nothing = not self._journal.state.batches and not (self._target.root / names.LEDGER).exists()
        if not nothing and ledger_is_kept():
            self.ledger.catch_up(self._journal)

    def _knows(self, parts: list[Part]) -> bool:
        if not self._log.segments[0].path.exists():
            return False  # the log's head has expired
        bases = {segment.base for segment in self._log.segments}
        return all(part.base in bases for part in parts)

    def _empty_scratch(self) -> None:
        """Mark a batch as under way, and remove what an earlier try spilled."""
        scratch = self._target.scratch
        if self._look is None or not scratch.is_dir():
            shutil.rmtree(scratch, ignore_errors=True)
            files.make_dirs(scratch)
            return
        for spill in scratch.iterdir():
            if spill.is_dir():
                shutil.rmtree(spill, ignore_errors=True)  # a task that outlived its batch may write there
            else:
                spill.unlink(missing_ok=True)

    def _leave_scratch(self) -> None:
        if self._look is None:
            shutil.rmtree(self._target.scratch, ignore_errors=True)

    def _tasks(self, parts: list[Part]) -> BatchTasks:
        queues = self._journal.state.queues
        if self._look is not None and sum(part.end - part.start for part in parts) <= _INLINE_BYTES:
            target = replace(self._target, flush_in_tasks=True, several_hosts=False, keys_in_memory=True)
            return BatchTasks(InlineRunner(), target, StateFloors(queues))
        floors = {queue: state.next for queue, state in queues.items()}
        target = self._target
        if target.several_hosts:
            target = replace(target, flush_in_tasks=True, scratch=attempt_directory(target.scratch))
        return BatchTasks(self._runner, target, floors)

    def _index(self, tasks: BatchTasks) -> BatchIndex:
        known = self._journal.state.index
        if tasks.is_here:
            return self._live.batch(known)
        self._live.release()
        return IndexBuilder(tasks.target, known, tasks.build_index)

    def _from_cursor(self, parts: list[Part]) -> list[Part]:
        """The parts past the cursor, preceded by parts for what is between cursor and batch."""
        cursor = self._journal.state.cursor
        parts = sorted((part for part in parts if part.end > cursor), key=lambda part: part.start)
        if not parts:
            return []
        first = parts[0].start
        missed = cut(self._log, cursor, first, self._log.segment_size, cursor)
        parts = [*missed, *parts]
        if parts[0].start < cursor:
            parts[0] = replace(parts[0], start=cursor, exact=True)
        elif parts[0].start == cursor:
            parts[0] = replace(parts[0], exact=True)
        parts[0] = replace(parts[0], after_timestamp=self._journal.state.last_timestamp)
        return parts

    def _begun(self, parts: list[Part]) -> BatchScan | None:
        """What was begun ahead, if it is this batch's work; otherwise that is rolled back."""
        if self._ahead is None:
            return None
        # Retention commits, too: it raises first queueOffsets, and the work was begun with the old ones.
        if self._ahead.parts == parts and self._ahead.batches == self._journal.state.batches:
            ahead, self._ahead = self._ahead, None
            return ahead
        self.undo_ahead()
        return None

    def _scan(self, parts: list[Part]) -> BatchScan:
        tasks = self._tasks(parts)
        index = self._index(tasks) if self._target.index else None
        return BatchScan(tasks, parts, self._journal.state, index, self._count, self._write_files)

    def _write_files(self, scan: BatchScan) -> None:
        """Decide which queues are irregular, and write what tasks have put aside of the others."""
        if not self._target.queue_files:
            return
        breaks = self._breaks(scan)
        if self._from_zero:
            scan.queues.doubt_heads()
        elif self._target.settings.remote is None:  # a request for each queue
            scan.queues.anchor(self._target.settings)
        scan.queues.doubt(breaks, self._target.settings.largest_record)
        if any(result.placed is not None for result in scan.accepted):
            scan.tasks.write_files(scan.accepted, scan.queues.regular())
            scan.written = time.perf_counter()
        elif scan.tasks.target.several_hosts:
            scan.written = time.perf_counter()

    def _count(self, result: PartResult) -> None:
        self.progress.bytes_done += max(result.outcome.end - result.part.start, 0)
        self.progress.messages += result.messages
        self._listener(self.progress)

    def _breaks(self, scan: BatchScan) -> Breaks:
        state = self._journal.state
        of_log = (gap.offset for gap in self._log.gaps)
        unproven = [(state.cursor, state.unproven_until)] if state.unproven_until > state.cursor else []
        return Breaks(
            sorted([*state.breaks, *scan.chain.breaks, *of_log]), sorted([*unproven, *scan.chain.unproven])
        )

    def _place_again(self, scan: BatchScan, breaks: Breaks) -> list[QueueOutcome]:
        """Place irregular queues by the rules."""
        if not scan.queues.irregular():
            return []
        parts = [result.part for result in scan.accepted]

        def place(queues: dict[Queue, QueueState | None], altered: Altered) -> list[QueueOutcome]:
            return scan.tasks.place_again(parts, queues, breaks, altered, from_zero=self._from_zero)

        return in_rounds(self._target, self._log, parts, scan.queues, place)

    def _append(self, scan: BatchScan, breaks: Breaks) -> list[QueueOutcome]:
        """Write queues in log order from their spills."""
        committed = ChainMap(self._journal.state.queues, scan.queues.anchored)
        waiting = appended_queues.waiting(scan.tasks.target, scan.accepted, committed)
        outcomes = scan.tasks.append(
            waiting, [result.part for result in scan.accepted], breaks, from_zero=self._from_zero
        )
        for outcome in outcomes:
            scan.queues.replace(outcome)
        return outcomes

    @property
    def _from_zero(self) -> bool:
        return self._journal.state.log_start == 0

    def _pre_blank(self, scan: BatchScan) -> None:
        """Put pre-blank units before the first unit of each new queue."""
        file_size = self._target.settings.consume_queue_file_size
        target = scan.tasks.target
        with QueueFiles(target.root, file_size, target.owner, whole=target.file_system()) as queue_files:
            for (topic, queue_id), state in scan.queues.new():
                if state.first:
                    queue_files.put_pre_blank(topic, queue_id, state.first)
            if target.flush_in_tasks:
                queue_files.flush()

    def _flush(self, scan: BatchScan) -> bool:
        """Flush what tasks wrote; returns whether the files were checked as well, which takes no longer."""
        root, file_size = self._target.root, self._target.settings.consume_queue_file_size
        ranges = list(scan.queues.ranges(file_size)) if self._target.queue_files else []
        count = sum(-(-(stop - start) // file_size) for _, (start, stop) in ranges)
        count += len(scan.changed_index)
        why = scan.whole.why_not() if count >= file_system.MANY else ""
        if why:
            self._announce(f"{count:,} files are flushed one by one: {why}")
        index_size = file_length(self._target.settings.max_hash_slot_num, self._target.settings.max_index_num)
        written = {root / names.INDEX / name: index_size for name in scan.changed_index}
        if why is None:
            with scan.whole.flushing():
                elsewhere = self._audit(scan, ranges, scan.whole.device)
            if not elsewhere:
                return True
            written = {path: written.get(path, file_size) for path in elsewhere}
        else:
            written |= {
                names.queue_file(root, topic, queue_id, at): file_size
                for (topic, queue_id), (start, stop) in ranges
                for at in range(start, stop, file_size)
            }
        with FileCache(self._target.owner) as cache:
            for path, size in written.items():
                cache.descriptor(path, size)
            cache.flush_all()
        for directory in (root / name for name in (*names.QUEUES, names.INDEX)):
            if directory.is_dir():
                files.fsync_dirs(directory)
        files.fsync_dir(root)
        return why is None

    def _audit(
        self, scan: BatchScan, ranges: list[tuple[Queue, tuple[int, int]]], device: int | None = None
    ) -> list[Path]:
        index = list(scan.changed_index.items())
        return audit_batch(self._target, scan.queues.changed(), ranges, index, device)

    def _has_news(self, batch: Batch) -> bool:
        """Whether a batch that moves no offset has a finding that was not reported before."""
        reported = self._reported()
        return any((finding.kind, finding.offset) not in reported for finding in batch.findings)

    def _log_findings(self, start: int, end: int) -> list[Finding]:
        """The gaps and wrong lengths of segments that this batch is the first to pass."""
        begins = start == self._journal.opening.start
        reported = self._reported() if self._log.findings else set()
        return [
            finding
            for finding in self._log.findings
            if (start < finding.offset <= end or (begins and finding.offset == start))
            and (finding.kind, finding.offset) not in reported
        ]

    def _reported(self) -> set[Queue]:
        return {(finding.kind, finding.offset) for finding in self._journal.state.findings}

    def _check_same_log(self) -> None:
        """Check that the log which was scanned is the one that was committed, up to the cursor.

        Whoever follows the log sees most cuts before a batch is begun, but may look again only after the cut
        log has grown past the cursor. A log is written front to back: while the record before the cursor is
        what it was, so is what was scanned behind it. Else this raises LogWentBackError, and nothing is
        committed.
        """
        state, log = self._journal.state, self._log
        if self._look is None or not state.last_record:
            return
        try:
            same = stands(log, state, grows=True)
        except SegmentGoneError:
            return  # expired meanwhile
        if not same:
            segment = log.segment_at(state.last_position) or log.segments[-1]
            raise went_back(segment, state.last_position, state.cursor)

    def _await_checkpoint(self) -> None:
        """Wait until the last checkpoint's name is on disk."""
        under_way, self._checkpointing = self._checkpointing, None
        if under_way is not None:
            under_way.result()

    def _new_checkpoint(self) -> files.Replacement | None:
        """The checkpoint of what is committed, under a temporary name; None where none is written."""
        if not self._target.is_whole:
            return None
        path = self._target.root / names.CHECKPOINT
        return files.Replacement(path, self._checkpoint().encode(), self._target.owner)

    def _checkpoint(self) -> StoreCheckpoint:
        """The checkpoint of a broker of this version; after a crash, one that spares the index recovery."""
        state = self._journal.state
        full = [header for _, header in state.index[:-1]]
        if self._abort_present:
            full = [header for _, header in state.index]
        has_logics_offset = self._target.settings.dialect.checkpoint_fields >= LOGICS_FIELDS
        return StoreCheckpoint(
            physic_msg_timestamp=state.last_timestamp,
            logics_msg_timestamp=state.last_unit_timestamp,
            index_msg_timestamp=full[-1].end_timestamp if full else state.dropped_index_timestamp,
            logics_physical_offset=max(state.last_unit_position, 0) if has_logics_offset else 0,
        )


def _without_unit(
    results: list[PartResult], problem_of: Callable[[bytes], str | None]
) -> tuple[dict[str, int], list[Finding]]:
    """Messages without a unit by topic, and a finding for each topic that no directory can have."""
    counts: dict[str, int] = {}
    findings: dict[bytes, Finding] = {}
    for result in results:
        for topic, messages, position in result.without_unit:
            name = topic.decode()
            counts[name] = counts.get(name, 0) + messages
            problem = problem_of(topic)
            if problem is None:
                continue
            known = findings.get(topic)
            findings[topic] = (
                replace(known, count=known.count + messages)
                if known
                else Finding(
                    kind="unsafe-topic",
                    path=result.part.path,
                    offset=position,
                    end=position,
                    expected="a topic that can be a directory of its own",
                    found=f"{problem}: {name!r}",
                    outcome="its messages got no units",
                    topic=name,
                    count=messages,
                )
            )
    return counts, list(findings.values())
