"""What a broker's start makes of a store: a pure function of what is on disk.

Source: ``DefaultMessageStore.load``, ``recover``, ``start``, ``CommitLog.recoverNormally`` and
``recoverAbnormally`` (rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode). tests/compat/test_recovery.py
compares the result with what the real stores do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from reput.broker.queues import FileQueues, StartedQueues, WalkedUnits
from reput.broker.rocksdb_queues import RocksDBModel
from reput.broker.snapshot import NO_ROOM, Snapshot
from reput.broker.walk import LogWalk, Walked, begin, last_written, store_timestamp
from reput.config.dialect import CleanStart, CrashStart
from reput.derived.batch import BatchModel
from reput.derived.files import NO_FILE, STRAY, StoreFile, segment_at
from reput.derived.index import IndexModel, IndexModelFile
from reput.derived.plain import QueueModel
from reput.errors import Problem, StartFailsError, UnsupportedError
from reput.format import names
from reput.format.checkpoint import CONFIRM_FIELDS, LOGICS_FIELDS, StoreCheckpoint
from reput.format.dtypes import BATCH, PLAIN
from reput.format.names import Queue
from reput.scan import output
from reput.scan.output import OutputArrays
from reput.scan.table import QueueTable


@dataclass(frozen=True, slots=True)
class LogCut:
    """A part of the log that a start takes away."""

    path: Path  # the segment
    start: int  # start, end: physical offsets; a segment that goes as a whole has its base as ``start``
    end: int
    deleted: bool  # the file goes; else its bytes stay, and the next messages are written over them


@dataclass(slots=True)
class Prediction:
    """A store after a broker has started on it."""

    snapshot: Snapshot  # the store before, as far as the broker loads it
    #: what keeps the broker from starting, in the order met; empty when it starts
    problems: list[Problem] = field(default_factory=list)
    began_at: StoreFile | None = None  # the segment where the walk begins; None without segments
    #: the greatest physical offset that a queue knew of before the walk, -1 if none did; up to 4.4.0
    #: where that message begins, later where it ends; the checkpoint key of queues in RocksDB, 0
    #: without one
    queue_end: int = -1
    #: physical offsets, half open, of a part of the log that the start walks or dispatches and that
    #: wasn't read, for it is too long; None as a rule. Else ``queues``, ``batch_queues``, ``index``
    #: and ``checkpoint`` are empty, and ``log_end`` is the greatest offset that the log can end at
    unread: tuple[int, int] | None = None
    tail: Walked | None = None  # a walk of the last segment alone, when the walk itself wasn't read
    recovered: Walked | None = None  # the walk
    #: the dispatch from the end of the queues; None where the release doesn't do it
    dispatched: Walked | None = None
    log_start: int = -1  # log_start, log_end: physical offsets; -1 and 0 without segments
    log_end: int = 0
    segments: list[StoreFile] = field(default_factory=list)  # those that are left
    cuts: list[LogCut] = field(default_factory=list)  # what the log loses
    queues: dict[Queue, QueueModel] = field(default_factory=dict)  # every plain queue
    batch_queues: dict[Queue, BatchModel] = field(default_factory=dict)  # every batch queue
    rocksdb: RocksDBModel | None = None  # the queues in RocksDB, where they are there alone; else None
    index: IndexModel = field(default_factory=lambda: IndexModel((), 2))  # the index
    index_dropped: list[Path] = field(default_factory=list)  # index files that a start after a crash deletes
    #: what the broker holds in it once it runs
    checkpoint: StoreCheckpoint = field(default_factory=StoreCheckpoint)
    units_added: int = 0  # units that the start placed
    #: by queue, units of delayed messages among them that hold a hash and no deliver time
    hashed: dict[Queue, int] = field(default_factory=dict)
    walked: WalkedUnits = field(default_factory=WalkedUnits)  # the messages of the walk, by queue

    def place_of(self, queue: Queue) -> Path:
        """The directory of a queue's files, or the database."""
        if self.rocksdb is not None:
            return self.rocksdb.kept.directory
        form = BATCH if queue in self.batch_queues else PLAIN
        return form.place(self.snapshot.settings.root, *queue)

    @property
    def starts(self) -> bool:
        """Whether the broker starts."""
        return not self.problems

    @property
    def queue_count(self) -> int:
        """How many queues there are, in whatever form."""
        kept = 0 if self.rocksdb is None else len(self.rocksdb.queues)
        return len(self.queues) + len(self.batch_queues) + kept

    @property
    def all_queues(self) -> dict[Queue, QueueModel | BatchModel]:
        """Plain and batch queues; no topic has both."""
        return {**self.queues, **self.batch_queues}


def predict(snapshot: Snapshot, most: int | None = None) -> Prediction:
    """What the start of the broker of this release does.

    ``most``: bytes of log to read at most, and a segment more; None for all that the broker reads.
    UnsupportedError where the store or broker.conf has what this model doesn't know. StoreError where a file
    can't be read.
    """
    _refuse_unknown(snapshot)
    snapshot = snapshot.loaded
    result = Prediction(snapshot, [problem for problem in snapshot.problems if problem.stops])
    if result.starts:
        _Start(snapshot, result, most).run()
    if result.unread is not None:
        result.queues, result.batch_queues = {}, {}
        result.index, result.checkpoint = IndexModel((), 2), StoreCheckpoint()
        result.walked = WalkedUnits()
    return result


class _Start:
    """One start, step by step, in the broker's order."""

    def __init__(self, snapshot: Snapshot, result: Prediction, most: int | None) -> None:
        self._left = most
        self._snapshot = snapshot
        self._settings = snapshot.settings
        self._rules = snapshot.settings.dialect.recovery
        self._result = result
        self._last_unit = -1  # physical offset of the last message that was given to a queue
        self._last_was_bad = False  # it was none: its lengths don't add up
        self._queues: StartedQueues
        if snapshot.kept is not None:
            self._queues = result.rocksdb = RocksDBModel(
                snapshot.settings, snapshot.kept, clean=snapshot.clean
            )
        else:
            self._queues = queues = FileQueues(snapshot)
            result.queues, result.batch_queues, result.hashed = queues.plain, queues.batch, queues.hashed

    def run(self) -> None:
        result, snapshot, queues = self._result, self._snapshot, self._queues
        self._load_index()
        try:
            queues.recover()
        except StartFailsError as error:
            if self._settings.recovery.concurrently:  # ConsumeQueueStore.recoverConcurrently (5.3.3)
                raise error.problem.error(
                    UnsupportedError,
                    "with recoverConcurrently a start goes on behind this, reput doesn't know how",
                ) from error
            result.problems.append(error.problem)
            return
        result.queue_end = queues.end
        if snapshot.log.files:
            self._recover_log()
        elif self._rules.destroys_after_clean or not snapshot.clean:
            queues.destroy()
        if result.unread is None and self._correct_min() and self._dispatch():
            self._correct_min()
        if result.unread is None and result.starts:
            queues.finish(max(result.log_start, 0), result.log_end, self._left)
        result.units_added = queues.added
        self._set_checkpoint()

    def _load_index(self) -> None:
        result = self._result
        kept = []
        for entry in self._snapshot.index:
            late = entry.header.end_timestamp > self._snapshot.checkpoint.index_msg_timestamp
            if late and not self._snapshot.clean:
                result.index_dropped.append(entry.path)
            else:
                kept.append(IndexModelFile(entry.path, entry.header))
        result.index = IndexModel(kept, self._settings.max_index_num)

    def _recover_log(self) -> None:
        result, snapshot = self._result, self._snapshot
        number = begin(snapshot, result.queue_end)
        result.began_at = snapshot.log.files[number]
        walk = self._walk(snapshot.log.files)
        last, end = last_written(snapshot)
        if self._is_too_much(result.began_at.base, end):
            result.unread = result.began_at.base, end
            result.tail = walk.recover(max(snapshot.log.files.index(last), number), lambda _out, _table: None)
            self._cut_log(result.tail.end)
            return
        counts_bad = self._rules.counts_bad_lengths and not snapshot.clean
        checks = not snapshot.clean and self._settings.recovery.check_offsets
        bad = self._give_bad if counts_bad else None
        walked = walk.recover(number, self._take, bad, check_offsets=checks)
        result.recovered = walked
        self._queues.truncate(snapshot.log.files[0].base, walked.end, result.queue_end)
        self._cut_log(walked.end)

    def _walk(self, segments: Sequence[StoreFile]) -> LogWalk:
        settings = self._queues.settings_of_walk(self._settings)
        return LogWalk(settings, segments, self._snapshot.segment_size)

    def _is_too_much(self, start: int, end: int) -> bool:
        """Whether reading on would pass what may be read; else it is taken off that."""
        if self._left is None:
            return False
        if end - start > self._left:
            return True
        self._left -= max(end - start, 0)
        return False

    def _take(self, out: OutputArrays, table: QueueTable) -> None:
        """What the recovery does with the records of its walk."""
        self._queues.meet(out, table, self._result.walked)
        if not self._snapshot.clean:
            self._give(out, table, hashes=not self._rules.knows_delay_levels)
        elif self._rules.dispatches_after_clean:
            self._give(out, table, self._dispatched_up_to())

    def _dispatched_up_to(self) -> int:
        """Physical offset behind which a start after a clean stop dispatches: where queues or index end.

        Source: ``DefaultMessageStore.recover``, ``getDispatchFromPhyOffset`` of ``IndexRocksDBStore`` (5.5.0)
        and ``CombineConsumeQueueStore`` (5.4.0, 5.5.0).
        """
        end, beside, mark = self._result.queue_end, self._snapshot.beside, self._snapshot.index_mark
        if beside is not None:
            end = min(end, beside)
        asks_index = self._rules.crash_start is CrashStart.PHYSICAL_OFFSET  # 5.5 on
        return min(end, mark) if asks_index and mark is not None and mark > 0 else end

    def _cut_log(self, end: int) -> None:
        result, size = self._result, self._snapshot.segment_size
        for segment in self._snapshot.log.files:
            if segment.base > end:
                result.cuts.append(LogCut(segment.path, segment.base, segment.base + size, deleted=True))
                continue
            result.segments.append(segment)
            result.log_end = segment.base + size
            if segment.base + size > end:
                result.log_end = end
                result.cuts.append(LogCut(segment.path, end, segment.base + size, deleted=False))
        result.log_start = result.segments[0].base

    def _correct_min(self) -> bool:
        try:
            self._queues.correct_min(self._result.log_start)
        except StartFailsError as error:
            self._result.problems.append(error.problem)
        return self._result.starts

    def _dispatch(self) -> bool:
        """What ``start`` does behind the recovery. Whether it did anything."""
        result = self._result
        if not (self._rules.begins_at_queue_end or self._settings.recovery.recheck_from_queues):
            return False
        # The queue table that it is taken from has no queue in RocksDB (RocksDBConsumeQueueStore, 5.3.3).
        start = max(result.log_start, 0 if self._snapshot.kept is not None else self._queues.end, 0)
        if self._is_too_much(start, result.log_end):
            result.unread = start, result.log_end
            return False
        walk = self._walk(result.segments)
        result.dispatched = walk.dispatch(start, result.log_end, self._give)
        if result.dispatched.stuck_at is not None:
            result.problems.append(_stuck(self._snapshot, result.segments, result.dispatched))
        return result.starts

    def _give(
        self, out: OutputArrays, table: QueueTable, after: int = -(1 << 63), *, hashes: bool = False
    ) -> None:
        """Dispatch messages whose stored place is past ``after``.

        ``hashes`` says that units of the schedule topic hold the hash of the tags.
        """
        last = self._queues.give(out, table, after, hashes=hashes)
        if last >= 0:
            self._last_unit, self._last_was_bad = last, False
        if self._settings.message_index_enable and int(out.counts[output.LAST_POSITION]) > after:
            rows = int(out.counts[output.ROWS])
            wanted = out.row_position[:rows] > after
            self._result.index.put(
                out.row_position[:rows][wanted],
                out.row_timestamp[:rows][wanted],
                out.row_keys[:rows][wanted],
                int(out.counts[output.LAST_POSITION]),
            )

    def _give_bad(self, size: int) -> None:
        self._queues.give_bad(size)
        if self._settings.message_index_enable:
            zero = np.zeros(0, np.int64)
            self._result.index.put(zero, zero, zero.astype(np.int32), 0)
        self._last_was_bad = True

    def _set_checkpoint(self) -> None:
        result, snapshot = self._result, self._snapshot
        fields = self._settings.dialect.checkpoint_fields
        values = snapshot.checkpoint
        if self._last_was_bad:
            values = replace(values, logics_msg_timestamp=0)
        elif self._last_unit >= 0:
            timestamp = store_timestamp(snapshot.log.files, snapshot.segment_size, self._last_unit)
            if timestamp > 0 or not self._rules.flushes_logics_later:
                values = replace(values, logics_msg_timestamp=timestamp)
            if fields >= LOGICS_FIELDS and self._last_unit > 0:
                values = replace(values, logics_physical_offset=self._last_unit)
        if result.index.filled:
            values = replace(values, index_msg_timestamp=result.index.filled[-1])
        if fields >= CONFIRM_FIELDS and result.recovered is not None and result.began_at is not None:
            confirmed = result.recovered.last_valid
            if confirmed < 0 and snapshot.clean:
                confirmed = snapshot.log.files[-1].base + snapshot.segment_size
            elif confirmed < 0:
                confirmed = result.began_at.base
            values = replace(values, confirm_physical_offset=confirmed)
        result.checkpoint = values


def _stuck(snapshot: Snapshot, segments: Sequence[StoreFile], walked: Walked) -> Problem:
    offset = walked.stuck_at or 0
    if segment_at(segments, snapshot.segment_size, offset) is not None:
        return Problem(
            kind="dispatch-never-ends",
            path=str(snapshot.settings.commit_log_dirs[0]),
            expected=f"a record at {offset} that a slave can read (brokerId isn't 0)",
            found=walked.why,
            outcome="the broker waits for ever for its dispatch, which goes around such a place only on a "
            "master, and doesn't finish its start",
            next_step="Bring the segment back from a copy or from the master.",
            stops=True,
        )
    return Problem(
        kind="dispatch-never-ends",
        path=str(snapshot.settings.commit_log_dirs[0]),
        expected=f"a segment that spans {offset}",
        found="none, and others after it",
        outcome="the broker waits for ever for its dispatch, and doesn't finish its start",
        next_step="Bring the missing segments back from a copy, or take those before them away.",
        stops=True,
    )


def _refuse_unknown(snapshot: Snapshot) -> None:
    settings = snapshot.settings
    if snapshot.index_mark == NO_ROOM:
        raise UnsupportedError(
            "how far the index in RocksDB goes decides where a start begins, and that can't be read",
            path=settings.root / names.ROCKSDB_STORE,
            expected="room for links to its files, or copies",
            found="none",
            next_step="Make room in the directory for temporary files, or give another one in TMPDIR.",
        )
    for problem in snapshot.problems:
        # One that hides the files behind it isn't loaded itself. A unit for its place has nowhere to go.
        unwritable = problem.hides and problem.kind == NO_FILE and not snapshot.clean
        unwritable = unwritable and not any(one.path == problem.path for one in snapshot.log.problems)
        if unwritable or (problem.kind == STRAY and not problem.unloads):
            raise problem.error(UnsupportedError, "it isn't known what a start makes of this file")
    if settings.recovery.rocksdb_first and settings.dialect.recovery.clean_start is CleanStart.FIRST_RECORD:
        raise UnsupportedError(
            "which queues decide, those in files or in RocksDB, isn't known with these settings",
            path=settings.broker_conf,
            expected="combineAssignOffsetCQType, combineCQPreferCQType and combineCQLoadingCQTypes left out",
            found="another type than default in one of them",
            next_step=f"Run `{settings.command('check')}`, which doesn't need that.",
        )
    for name, there in (
        ("forceVerifyPropCRC", settings.force_verify_prop_crc),
        ("enableAcceleratedRecovery", settings.recovery.accelerated),
        ("enableControllerMode", settings.recovery.controller_mode),
        ("transRocksDBEnable", settings.recovery.half_in_rocksdb),
    ):
        if there:
            raise UnsupportedError(
                f"{name} changes how a broker recovers, and reput doesn't know how",
                path=settings.broker_conf,
                found=f"{name}=true",
                next_step=f"Run `{settings.command('check')}`, which doesn't need that.",
            )
