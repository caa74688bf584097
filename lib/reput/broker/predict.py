"""What a broker's start makes of a store: a pure function of what is on disk.

Source: ``DefaultMessageStore.load``, ``recover``, ``start``, ``CommitLog.recoverNormally`` and
``recoverAbnormally`` (rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode). tests/compat/test_recovery.py
compares the result with what the real stores do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.broker.begin import begin
from reput.broker.rocksdb_queues import RocksDBModel
from reput.broker.snapshot import Snapshot
from reput.broker.units import WalkedUnits, by_queue, queue_of
from reput.broker.walk import LogWalk, Walked, store_timestamp
from reput.broker.written import last_written
from reput.config.kept import known_topics
from reput.derived.batch import BatchModel, inner
from reput.derived.ext import ExtModel
from reput.derived.files import NO_FILE, STRAY, Listing, StoreFile
from reput.derived.index import IndexModel, IndexModelFile
from reput.derived.plain import QueueModel
from reput.derived.rocksdb import open_queues
from reput.errors import Problem, SettingsError, StartFailsError, StoreError, UnsupportedError
from reput.format.checkpoint import CONFIRM_FIELDS, LOGICS_FIELDS, StoreCheckpoint
from reput.format.commitlog import SCHEDULE_TOPIC
from reput.format.dtypes import BATCH, PLAIN, Form
from reput.format.names import Queue
from reput.rocksdb import Database
from reput.scan import output
from reput.scan.output import OutputArrays
from reput.scan.table import QueueTable

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.decode()
#: The queue of records that have none. Its file lies one level too high: ``consumequeue/0/`` and its name.
_NO_TOPIC = "", 0


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

    def form_of(self, queue: Queue) -> Form:
        """The form of a queue in files."""
        return BATCH if queue in self.batch_queues else PLAIN

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

    Args:
        snapshot: the store.
        most: bytes of log to read at most, and a segment more; None for all that the broker reads.

    Raises:
        UnsupportedError: the store or broker.conf has what this model doesn't know.
        StoreError: a file can't be read.
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
        self._batch_topics = snapshot.settings.batch_topics()
        self._rocksdb = None if snapshot.kept is None else RocksDBModel(snapshot.kept, self._batch_topics)
        self._database: Database | None = None
        result.rocksdb = self._rocksdb

    def run(self) -> None:
        with ExitStack() as stack:
            if self._rocksdb is not None and self._rocksdb.kept.exists and self._snapshot.clean:
                self._database = stack.enter_context(open_queues(self._rocksdb.kept.directory))
            self._run()

    def _run(self) -> None:
        result, snapshot = self._result, self._snapshot
        result.queues = {
            queue: self._new_queue(listing.files, snapshot.ext_queues.get(queue, Listing()).files)
            for queue, listing in snapshot.queues.items()
        }
        result.batch_queues = {
            queue: BatchModel(listing.files, self._batch_file_size)
            for queue, listing in snapshot.batch_queues.items()
        }
        self._load_index()
        try:
            for queue in self._all_queues():
                queue.recover()
        except StartFailsError as error:
            result.problems.append(error.problem)
            return
        result.queue_end = self._queue_end()
        if snapshot.log.files:
            self._recover_log()
        elif self._rules.destroys_after_clean or not snapshot.clean:
            for queue in self._all_queues():
                queue.destroy()
        if result.unread is None and self._correct_min() and self._dispatch():
            self._correct_min()
        if self._rocksdb is not None and result.unread is None and result.starts:
            self._rocksdb.finish(max(result.log_start, 0), result.log_end, self._left)
            result.units_added += self._rocksdb.added
        self._set_checkpoint()

    @property
    def _batch_file_size(self) -> int:
        return self._settings.recovery.batch_queue_file_size

    def _all_queues(self) -> Iterator[QueueModel | BatchModel]:
        yield from self._result.queues.values()
        yield from self._result.batch_queues.values()

    def _new_queue(self, files: Sequence[StoreFile] = (), ext: Sequence[StoreFile] = ()) -> QueueModel:
        recovery = self._settings.recovery
        model = ExtModel(ext, recovery.queue_ext_file_size) if recovery.queue_ext else None
        size, ends = self._settings.consume_queue_file_size, self._rules.knows_message_ends
        return QueueModel(files, size, model, knows_ends=ends)

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
        walked = walk.recover(number, self._take, self._give_bad if counts_bad else None)
        result.recovered = walked
        if self._rocksdb is not None:
            if self._rocksdb.added:
                self._rocksdb.dispatched_to(walked.end)
            self._rocksdb.truncate(snapshot.log.files[0].base, walked.end, self._known())
        end = self._queue_end() if self._rules.cuts_by_new_end else result.queue_end
        if end >= walked.end if self._rules.cuts_by_queue_end else not snapshot.clean:
            for queue in self._all_queues():
                queue.truncate(walked.end)
        self._cut_log(walked.end)

    def _walk(self, segments: Sequence[StoreFile]) -> LogWalk:
        settings = self._settings
        if self._rocksdb is not None:
            # RocksDBConsumeQueueStore.dispatchLMQ asks for enableLmq alone, and takes names with a slash.
            settings = replace(
                settings,
                enable_multi_dispatch=settings.rocksdb.lmq,
                enable_lmq=settings.rocksdb.lmq,
                dialect=replace(settings.dialect, lmq_rejects_slash=False),
            )
        return LogWalk(settings, segments, self._snapshot.segment_size)

    def _known(self) -> Callable[[Queue], bool]:
        """Whether the broker has a queue's topic in its settings; all where that isn't known."""
        try:
            topics = known_topics(self._settings.config)
        except SettingsError:
            topics = None
        known = None if topics is None else frozenset(topics)
        return lambda queue: known is None or queue[0] in known

    def _meet(self, out: OutputArrays, table: QueueTable, up_to: int | None) -> None:
        """Messages of queues in RocksDB that the walk goes through and doesn't dispatch."""
        model, database = self._rocksdb, self._database
        if model is None or model.unreadable is not None:
            return
        count = int(out.counts[output.UNITS])
        rows = np.arange(count)
        if up_to is not None:
            rows = np.flatnonzero(out.unit_position[:count] <= up_to)
        for queue, part in by_queue(out, table, rows):
            try:
                model.meet(database, queue, out.unit_offset[part], out.unit_position[part])
            except StoreError as error:
                model.unreadable = error
                return

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
        if self._rocksdb is not None:
            self._result.walked.add_keys(out)
            if self._snapshot.clean:
                self._meet(out, table, self._result.queue_end if self._rules.dispatches_after_clean else None)
                if self._rules.dispatches_after_clean:
                    self._give(out, table, self._result.queue_end)
            else:
                self._give(out, table)
            return
        self._result.walked.add(out, table, self._batch_topics)
        for queue, part in self._batch_rows(out, table, np.arange(int(out.counts[output.UNITS]))):
            position = out.unit_position[part]
            read = inner(self._snapshot.log.files, self._snapshot.segment_size, position)
            self._result.walked.add_batches(queue, position, read)
        if not self._snapshot.clean:
            self._give(out, table, hashes=not self._rules.knows_delay_levels)
        elif self._rules.dispatches_after_clean:
            self._give(out, table, self._result.queue_end)

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
            for queue in self._result.queues.values():
                queue.correct_min(
                    self._result.log_start,
                    searches=self._rules.searches_min_offset,
                    fails_on_empty=self._rules.fails_on_empty_queue_file,
                )
        except StartFailsError as error:
            self._result.problems.append(error.problem)
        for batch in self._result.batch_queues.values():
            batch.correct_min(self._result.log_start)
        return self._result.starts

    def _dispatch(self) -> bool:
        """What ``start`` does behind the recovery. Whether it did anything."""
        result = self._result
        if not (self._rules.begins_at_queue_end or self._settings.recovery.recheck_from_queues):
            return False
        start = max(result.log_start, self._queue_end(), 0)
        if self._is_too_much(start, result.log_end):
            result.unread = start, result.log_end
            return False
        walk = self._walk(result.segments)
        result.dispatched = walk.dispatch(start, result.log_end, self._give)
        if result.dispatched.stuck_at is not None:
            result.problems.append(_stuck(self._snapshot, result.dispatched.stuck_at))
        return result.starts

    def _queue_end(self) -> int:
        if self._rocksdb is not None:
            return self._rocksdb.checkpoint
        return max((queue.max_physical for queue in self._all_queues()), default=-1)

    def _give(
        self, out: OutputArrays, table: QueueTable, after: int = -(1 << 63), *, hashes: bool = False
    ) -> None:
        """Dispatch messages whose stored place is past ``after``.

        ``hashes`` says that units of the schedule topic hold the hash of the tags.
        """
        self._give_queues(out, table, after, hashes=hashes)
        if self._settings.message_index_enable and int(out.counts[output.LAST_POSITION]) > after:
            rows = int(out.counts[output.ROWS])
            wanted = out.row_position[:rows] > after
            self._result.index.put(
                out.row_position[:rows][wanted],
                out.row_timestamp[:rows][wanted],
                out.row_keys[:rows][wanted],
                int(out.counts[output.LAST_POSITION]),
            )

    def _give_queues(self, out: OutputArrays, table: QueueTable, after: int, *, hashes: bool) -> None:
        count = int(out.counts[output.UNITS])
        rows = np.flatnonzero(out.unit_position[:count] > after)
        if not len(rows):
            return
        if self._rocksdb is not None:
            for kept, part in by_queue(out, table, rows):
                self._rocksdb.give(kept, out.unit_offset[part], out.unit_position[part])
            self._last_unit = int(out.unit_position[rows[-1]])
            return
        last = -1
        for key, part in self._batch_rows(out, table, rows):
            last = max(last, self._give_batch_queue(key, out, part))
        # A message's own unit comes first, those of light queues follow.
        own = np.diff(out.unit_position[:count], prepend=-1) != 0
        for key, part in by_queue(out, table, rows):
            if key[0] in self._batch_topics:
                continue
            last = max(last, int(part[-1]))
            queue = self._result.queues.get(key)
            if queue is None:
                queue = self._new_queue()
                self._result.queues[key] = queue
            places = queue.put(
                out.unit_position[part],
                out.unit_size[part],
                out.unit_offset[part],
                out.unit_tags[part],
                own[part],
            )
            placed = int((places >= 0).sum())
            self._result.units_added += placed
            if hashes and key[0] == _SCHEDULE_TOPIC and placed:
                self._result.hashed[key] = self._result.hashed.get(key, 0) + placed
        if last >= 0:
            self._last_unit, self._last_was_bad = int(out.unit_position[last]), False

    def _give_bad(self, size: int) -> None:
        """Dispatch a record whose lengths don't add up: ``DispatchRequest(size, false)`` has no topic."""
        queue = self._result.queues.setdefault(_NO_TOPIC, self._new_queue())
        zero = np.zeros(1, np.int64)
        queue.put(zero, np.full(1, size, np.int32), zero, zero)
        if self._settings.message_index_enable:
            self._result.index.put(zero[:0], zero[:0], zero[:0].astype(np.int32), 0)
        self._last_was_bad = True

    def _batch_rows(
        self, out: OutputArrays, table: QueueTable, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Queue, NDArray[np.int64]]]:
        """Those of the rows that belong to batch queues, by queue."""
        if not self._batch_topics:
            return
        numbers = out.unit_queue[rows]
        for number in np.unique(numbers).tolist():
            key = queue_of(table, number)
            if key[0] in self._batch_topics:
                yield key, rows[numbers == number]

    def _give_batch_queue(self, key: Queue, out: OutputArrays, rows: NDArray[np.int64]) -> int:
        """Dispatch messages of a batch queue; the last row that it takes, or has, -1 if missing."""
        queue = self._result.batch_queues.get(key)
        if queue is None:
            queue = BatchModel((), self._batch_file_size)
            self._result.batch_queues[key] = queue
        position = out.unit_position[rows]
        read = inner(self._snapshot.log.files, self._snapshot.segment_size, position)
        self._result.units_added += queue.put(position, out.unit_size[rows], out.unit_tags[rows], read)
        placed = rows[read.placed]
        return int(placed[-1]) if len(placed) else -1

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


def _stuck(snapshot: Snapshot, offset: int) -> Problem:
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
    for problem in snapshot.problems:
        # One that hides the files behind it isn't loaded itself. A unit for its place has nowhere to go.
        unwritable = problem.hides and problem.kind == NO_FILE and not snapshot.clean
        unwritable = unwritable and not any(one.path == problem.path for one in snapshot.log.problems)
        if unwritable or (problem.kind == STRAY and not problem.unloads):
            raise problem.error(UnsupportedError, "it isn't known what a start makes of this file")
    for name, there in (
        ("forceVerifyPropCRC", settings.force_verify_prop_crc),
        ("enableAcceleratedRecovery", settings.recovery.accelerated),
        ("enableControllerMode", settings.recovery.controller_mode),
    ):
        if there:
            raise UnsupportedError(
                f"{name} changes how a broker recovers, and reput doesn't know how",
                path=settings.broker_conf,
                found=f"{name}=true",
                next_step=f"Run `{settings.command('check')}`, which doesn't need that.",
            )
