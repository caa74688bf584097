"""The work of a batch before its commit, by Spark's tasks or in this process.

Parts are scanned, units are placed, index keys are put.
"""

from __future__ import annotations

import os
import pickle
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks
from reput.build.units import Collected, PackedUnits, by_queue, pack
from reput.errors import OutputError, ReputError
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.output import appended_queues, index_files, whole_queues
from reput.output.index_files import BatchIndex
from reput.output.whole_queues import QueueFiles
from reput.replay.altered import Altered
from reput.replay.part_result import Chain, PartResult, pass_over, witnessed
from reput.replay.placing import BatchQueues, QueueOutcome, Regular
from reput.replay.runner import InlineRunner, Runner, in_waves
from reput.replay.runs import KeyRunWriter, RunWriter
from reput.replay.spills import ROW, QueueSpillWriter, RowSpillWriter, SpillWriter
from reput.replay.state import QueueState, State
from reput.replay.target import Selection, Target
from reput.scan import output
from reput.scan.fields import RecordFields, record_fields
from reput.scan.rules import Part
from reput.scan.table import QUEUE_REPEAT, QueueTable
from reput.store import files
from reput.store.file_system import FileSystem
from reput.store.lock import OutputLock
from reput.store.places import attempt_directory
from reput.store.system import unwritten

# A unit's place is queueOffset x 20, so tasks write in any order and need no shuffle. Index keys are spilled.
# Only counts, ranges and findings go back.

#: With more queues in a part than this, units are collected and then put aside: files for so many are made
#: faster when all units of a file are known.
_FEW_QUEUES = 2048


class StateFloors:
    """The floors of a state, without copying all queues."""

    def __init__(self, queues: Mapping[Queue, QueueState]) -> None:
        self._queues = queues

    def get(self, queue: Queue, default: int, /) -> int:
        """A queue's committed next queueOffset, or the default."""
        state = self._queues.get(queue)
        return default if state is None else state.next

    def __len__(self) -> int:
        return len(self._queues)


#: Each queue's committed next queueOffset.
Floors = StateFloors | dict[Queue, int]


def scan_and_place(target: Target, part: Part, floors: Floors) -> PartResult:
    """Scan ``part``, place its units, spill its keys.

    ``floors`` are each queue's next queueOffset as of the last commit. No task writes below that: those
    places are committed, and a record that names one may be a repeat, or not a message at all.
    """
    # Unique among all processes that may be writing spills of this run.
    attempt = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}"
    name = f"{part.start:020d}-{attempt}"
    path = target.scratch / f"{name}.keys"
    if target.several_hosts:
        path = attempt_directory(target.scratch) / "keys"
    spill = SpillWriter(None if target.keys_in_memory else path, for_others=target.several_hosts)
    waiting = RowSpillWriter(
        None if target.keys_in_memory else path.with_suffix(".units"), for_others=target.several_hosts
    )
    file_size = target.settings.consume_queue_file_size
    with (
        QueueSpillWriter(path.with_suffix(".queues")) as aside,
        QueueFiles(target.root, file_size, target.owner, whole=target.file_system()) as queue_files,
    ):
        few = 0 if target.several_hosts else _FEW_QUEUES
        placing = _Placing(target.selection, queue_files, aside, floors, few)
        setting_aside = _SettingAside(target, part, waiting)
        runs = RunWriter(target.runs, name, part.base)
        key_runs = KeyRunWriter(target.runs, name, part.base)

        def take(table: QueueTable, chunk: output.OutputArrays, data: NDArray[np.uint8]) -> None:
            if target.queue_files:
                ordered = setting_aside.add(table, chunk, data)
                if not target.queue_ext:
                    placing.add(table, chunk, ordered)
            elif target.queues_in_rocksdb:
                runs.add(table, chunk, data)
            if target.index:
                spill.add(chunk)
            if target.index_in_rocksdb:
                key_runs.add(chunk, data)

        def finish(table: QueueTable) -> None:
            placing.finish(table)
            runs.finish(table)
            key_runs.finish()

        result = pass_over(target, part, take, finish)
        if target.queue_files and target.queues_in_rocksdb:
            # Light queues go by other rules there.
            pass_over(target, part, runs.add, runs.finish, rocksdb=True)
        result.runs, result.key_runs = runs.paths, key_runs.paths
        if target.flush_in_tasks:
            queue_files.flush()
        if target.several_hosts:
            aside.flush()
        result.placed, result.in_files = aside.runs, placing.in_files
    result.spill = spill.close()
    result.waiting = waiting.close()
    return result


class _SettingAside:
    """Puts aside the units of one part that belong to queues which are written in log order."""

    def __init__(self, target: Target, part: Part, waiting: RowSpillWriter) -> None:
        self._target = target
        self._part = part
        self._waiting = waiting
        self._topics: list[bool] = []  # by the table's numbers: whether a topic's queues are such

    def add(self, table: QueueTable, chunk: output.OutputArrays, data: NDArray[np.uint8]) -> set[int]:
        """Take a chunk, which is used before this returns; returns the numbers of such queues."""
        target, part = self._target, self._part
        for name in table.topic_names[len(self._topics) :]:
            self._topics.append(target.is_ordered(name.decode("utf-8", "replace")))
        if not any(self._topics):
            return set()
        count = int(table.queue_count[0])
        is_ordered = np.array(self._topics, bool)[table.queues.topic[:count]]
        order, starts = by_queue(chunk, count)
        units = np.diff(starts)
        order = order[np.repeat(is_ordered, units)]
        position, offset = chunk.unit_position[order], chunk.unit_offset[order]
        fields = record_fields(data, position - part.base, offset, chunk.unit_queue[order], table)
        rows = np.zeros(len(order), ROW)
        rows["offset"], rows["position"] = offset, position
        rows["size"], rows["tags"] = chunk.unit_size[order], chunk.unit_tags[order]
        rows["timestamp"], rows["own"] = fields.timestamp, fields.own
        rows["base_offset"], rows["batch_size"] = fields.base_offset, fields.batch_size
        ordered = np.flatnonzero(is_ordered)
        ends = np.cumsum(units[ordered])
        queues: list[tuple[Queue, int, int]] = []
        for number, end, here in zip(ordered.tolist(), ends.tolist(), units[ordered].tolist(), strict=True):
            topic = table.topic_names[int(table.queues.topic[number])].decode()
            queue_id = int(table.queues.queue_id[number])
            if here and target.selection.wants_queue(topic, queue_id):
                queues.append(((topic, queue_id), end - here, end))
        self._waiting.add(rows, queues, _bit_maps(target, data, rows, fields, queues))
        return set(ordered.tolist())


def _bit_maps(
    target: Target,
    data: NDArray[np.uint8],
    rows: NDArray[np.void],
    fields: RecordFields,
    queues: list[tuple[Queue, int, int]],
) -> dict[Queue, NDArray[np.uint8]]:
    """The bit maps of the queues of topics with filters; marks in ``rows`` which of them have one."""
    if target.filters is None:
        return {}
    filters, found = target.filters.by_topic(), {}
    for queue, first, stop in queues:
        of_topic = filters.get(queue[0])
        if of_topic is not None:
            lengths = fields.properties_length[first:stop].astype(np.int64)
            maps = of_topic.of_records(data, fields.properties[first:stop], lengths)
            rows["mapped"][first:stop] = maps.stored
            found[queue] = maps.bits
    return found


class _Placing:
    """Writes the units of one part into their places.

    With more than ``few`` queues, more than files can be open, a chunk has a unit or two of each, and opening
    files would take longer than all the rest. Then chunks are collected and put aside; and always for those
    who put files together.
    """

    def __init__(
        self,
        selection: Selection,
        queue_files: QueueFiles,
        aside: QueueSpillWriter,
        floors: Floors,
        few: int,
    ) -> None:
        self._few = few
        self._selection = selection
        self._queue_files = queue_files
        self._aside = aside
        self._floors = floors
        self._collected = Collected()
        self._ordered: set[int] = set()
        self.in_files = False

    def add(self, table: QueueTable, chunk: output.OutputArrays, ordered: set[int]) -> None:
        """Take a chunk, which is used before this returns.

        The queues numbered in ``ordered`` are written in log order, and not here.
        """
        self._ordered = ordered
        count = int(table.queue_count[0])
        if count <= self._few:
            self._place(table, pack(chunk, count))
            return
        self._collected.add(chunk)
        if self._collected.is_full:
            self.finish(table)

    def finish(self, table: QueueTable) -> None:
        packed = self._collected.packed(int(table.queue_count[0]))
        if packed is not None:
            self._aside.put(packed, self._wanted(table, packed))

    def _place(self, table: QueueTable, packed: PackedUnits) -> None:
        names, starts = table.topic_names, packed.starts * UNIT_LENGTH
        for number in self._wanted(table, packed).tolist():
            self.in_files = True
            self._queue_files.put(
                names[int(table.queues.topic[number])].decode(),
                int(table.queues.queue_id[number]),
                int(packed.first[number]),
                packed.data.data[starts[number] : starts[number + 1]],
            )

    def _wanted(self, table: QueueTable, packed: PackedUnits) -> NDArray[np.int64]:
        """The queues whose units are placed now; the others later, in log order, when the batch is known."""
        queues = table.queues
        found: NDArray[np.int64] = np.flatnonzero(np.diff(packed.starts))
        found = found[queues.irregular[found] == 0]
        if self._ordered:
            found = found[~np.isin(found, list(self._ordered))]
        if self._selection.is_all and not self._floors:
            return found
        chosen = []
        for number in found.tolist():
            topic = table.topic_names[int(queues.topic[number])].decode()
            queue_id = int(queues.queue_id[number])
            if packed.first[number] < self._floors.get((topic, queue_id), 0):
                queues.irregular[number] |= QUEUE_REPEAT
            elif self._selection.wants_queue(topic, queue_id):
                chosen.append(number)
        return np.array(chosen, np.int64)


# Spark's JVM has each result several times, and keeps the heap that they needed. A part of a log with a
# million queues is 150 MB.

#: Bytes of a result that goes through Spark.
_LARGEST_SENT = 1 << 20
_READ_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Sent:
    """A result as it goes through Spark."""

    data: bytes  # it, pickled; empty where it is in the file
    path: str = ""  # the file, which is there until :meth:`taken`
    length: int = 0  # length, crc: of the file: bytes, and their CRC-32
    crc: int = 0

    def taken(self) -> object:
        """The result; to be called once. Raises OutputError where the file isn't what was written."""
        if not self.path:
            return pickle.loads(self.data)
        path, length, crc = Path(self.path), 0, 0
        with files.reporting("a task's result can't be read back", path), path.open("rb") as file:
            while data := file.read(_READ_AT_ONCE):
                length, crc = length + len(data), zlib.crc32(data, crc)
            if (length, crc) != (self.length, self.crc):
                raise OutputError(
                    "a task's result can't be read back",
                    path=path,
                    expected=f"{self.length} bytes with CRC-32 {self.crc:08x}",
                    found=f"{length} bytes with CRC-32 {crc:08x}",
                    next_step="Check the disk, then run the same command again",
                )
            file.seek(0)
            result: object = pickle.load(file)
            path.unlink()
        return result


def sent(result: object, scratch: Path) -> Sent:
    """Have a task's result sent by a file in ``scratch``.

    The process that takes it sees that directory as it is here. This fails where there is no room, or the run
    is over.
    """
    pieces = _Pieces(scratch)
    try:
        pickle.Pickler(pieces, pickle.HIGHEST_PROTOCOL).dump(result)
        return pieces.sent()
    finally:
        pieces.close()


class _Pieces:
    """What pickle writes: in memory, or once it is large in a file of its own."""

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / f"{os.getpid()}-{secrets.token_hex(8)}.result"
        self._pieces: list[bytes] = []
        self._fd: int | None = None
        self._length = self._crc = 0

    def write(self, data: bytes) -> int:
        """Take some bytes, which may change when this has returned."""
        view = memoryview(data)
        if self._fd is None and self._length + view.nbytes <= _LARGEST_SENT:
            self._pieces.append(view.tobytes())
        else:
            if self._fd is None:
                self._fd = files.create_file(self._path, None)
                files.pwrite_all(self._fd, b"".join(self._pieces), 0)
            files.pwrite_all(self._fd, view, self._length)
        self._length += view.nbytes
        self._crc = zlib.crc32(view, self._crc)
        return view.nbytes

    def sent(self) -> Sent:
        if self._fd is None:
            return Sent(b"".join(self._pieces))
        return Sent(b"", str(self._path), self._length, self._crc)

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._fd is not None:
            files.system.close(self._fd)


#: Queues differ in size; a task that is done early leaves room for another one.
_SHARES_A_SLOT = 2


@dataclass(frozen=True, slots=True)
class BatchTasks:
    """Runs a batch's work."""

    runner: Runner  # runs the batch's functions
    target: Target  # where they write, and whether they flush
    floors: Floors  # each queue's committed next queueOffset, at least where it isn't 0

    @classmethod
    def for_databases(cls, runner: Runner, target: Target) -> BatchTasks:
        """What makes databases of the runs: without scratch, which would say that a batch is under way."""
        return cls(runner, replace(target, scratch=target.runs), {})

    @property
    def is_here(self) -> bool:
        """Whether this process does it all."""
        return isinstance(self.runner, InlineRunner)

    def scan(self, parts: list[Part]) -> list[PartResult]:
        """Scan parts and place their units; see :func:`reput.output.batch.scan`."""
        items: list[object] = [witnessed(self.runner, part) for part in parts]
        return self.run(partial(scan_and_place, floors=self.floors), items)

    def place_again(
        self,
        parts: list[Part],
        committed: dict[Queue, QueueState | None],
        breaks: Breaks,
        altered: Altered,
        *,
        from_zero: bool,
    ) -> list[QueueOutcome]:
        """Place some queues' units again, in log order; see :mod:`reput.output.appended_queues`."""
        task = partial(
            appended_queues.place_again,
            committed=committed,
            breaks=breaks,
            altered=altered,
            from_zero=from_zero,
        )
        done: list[QueueOutcome] = self._where_files_change.run(task, [parts])[0]
        return done

    def append(
        self, queues: list[appended_queues.Waiting], parts: list[Part], breaks: Breaks, *, from_zero: bool
    ) -> list[QueueOutcome]:
        """Write the queues that are written in log order; see :mod:`reput.output.appended_queues`."""
        task = partial(appended_queues.write, parts=parts, breaks=breaks, from_zero=from_zero)
        here = self._where_files_change
        shares = appended_queues.shares(queues, 1 if here.is_here else _SHARES_A_SLOT * self.runner.slots)
        return [outcome for done in here.run(task, list(shares)) for outcome in done] if shares else []

    def write_files(self, accepted: list[PartResult], regular: Regular) -> None:
        """Write the units that tasks have put aside; see :mod:`reput.output.whole_queues`."""
        parts = whole_queues.file_parts(accepted, regular, self.target.settings.consume_queue_file_size)
        if not self.target.several_hosts:
            # Some tasks more than slots: one that has the disk's slower files doesn't leave the others idle.
            count = 1 if self.is_here else _SHARES_A_SLOT * self.runner.slots
            self.run(whole_queues.write_here, list(whole_queues.shares(parts, count)))
            return
        whole = whole_queues.shares(parts.only(parts.is_new), self.runner.slots)
        written: list[Path] = self.run(whole_queues.write_apart, list(whole)) if whole else []
        whole_queues.name_all(self.target, zip(whole, written, strict=True))
        whole_queues.write_here(self.target, parts.only(~parts.is_new))

    def build_index(self, tasks: list[index_files.IndexTask], kept: index_files.KeptSlots) -> list[Any]:
        """Build index files; see :func:`reput.output.index_files.build`."""
        here = replace(self, runner=InlineRunner(self.runner.slots))
        build = partial(index_files.build, kept=kept)
        if not self.target.several_hosts:
            # Not by tasks: these would wait for slots, and read and write a file's slots each time.
            return here.run(build, list(tasks))
        # A file of which tasks write all is theirs; the others change from batch to batch.
        is_whole = [task.is_whole(self.target.settings) for task in tasks]
        whole = list(compress(tasks, is_whole))
        with ThreadPoolExecutor(1, "reput-index-files") as pool:
            under_way = pool.submit(self.run, index_files.build_apart, list(whole)) if whole else None
            rest = [task for task, apart in zip(tasks, is_whole, strict=True) if not apart]
            built = iter(here.run(build, list(rest)))
        results = index_files.named(self.target, whole, [] if under_way is None else under_way.result())
        return [next(results if apart else built) for apart in is_whole]

    @property
    def _where_files_change(self) -> BatchTasks:
        """What changes files that have their names: tasks, unless they may be on several hosts."""
        return replace(self, runner=InlineRunner()) if self.target.several_hosts else self

    def run(self, function: Callable[..., object], items: list[object]) -> list[Any]:
        """A function's results, of the target and each item, in the items' order."""
        # On several hosts a file that a task has just written may not be there yet.
        is_sent = not (self.is_here or self.target.several_hosts)
        results = self.runner.map(_Task(self.target, function, is_sent), items)
        for result in results:
            if isinstance(result, ReputError):
                raise result
        return [result.taken() if isinstance(result, Sent) else result for result in results]


@dataclass(frozen=True, slots=True)
class _Task:
    """Calls a function with the target and an item, under the output's lock; returns an error it raised."""

    target: Target
    function: Callable[..., object]
    is_sent: bool  # the result goes to another process of this host

    def __call__(self, item: object) -> object:
        try:
            if self.target.several_hosts:  # whose locks may not meet; see reput.output.whole_queues
                return self.function(self.target, item)
            with OutputLock(self.target.root).shared():
                result = self.function(self.target, item)
                return sent(result, self.target.scratch) if self.is_sent else result
        except ReputError as error:
            return error
        except OSError as error:
            return unwritten(error, self.target.scratch)


class BatchScan:
    """The work of one batch before its commit, done by the caller of :meth:`finish`, or beside it.

    ``parts`` begin at the cursor; ``listener`` gets each that is accepted, in log order, from the thread that
    works. Once all are, ``write_files`` does what is to be done with queues.
    """

    def __init__(
        self,
        tasks: BatchTasks,
        parts: list[Part],
        state: State,
        index: BatchIndex | None,
        listener: Callable[[PartResult], None],
        write_files: Callable[[BatchScan], None] = lambda _scan: None,
    ) -> None:
        self.tasks = tasks
        self.parts = parts
        self.batches = state.batches  # it builds on these
        self.accepted: list[PartResult] = []
        self.chain = Chain(parts[0].start, state.last_timestamp)
        self.queues = BatchQueues(state.queues)
        self.index = index
        self.last_position = state.last_position  # of the last record so far, -1 if there was none
        self.end = parts[0].start  # that the batch reaches
        self.scanned = 0.0  # time.perf_counter when the last part was scanned
        self.written = 0.0  # and when what tasks had put aside was in files; 0 if nothing was
        self.audited = False  # the files that the batch wrote have been checked
        self._write_files = write_files
        self._listener = listener
        self._scanning: _PartScans | None = None
        self._ahead: Future[None] | None = None
        # Opened before anything is written.
        self.whole = FileSystem(tasks.target.root, tasks.target.settings.root)

    @property
    def changed_index(self) -> dict[str, IndexHeader]:
        """The index files that the batch wrote to, by name."""
        return {} if self.index is None else self.index.changed

    def begin(self) -> None:
        """Work beside the caller, who calls :meth:`finish` or :meth:`stop` later."""
        # Not created by the thread: stop() may come at once, and needs it.
        self._scanning = _PartScans(self.tasks, self.parts)
        pool = ThreadPoolExecutor(1, "reput-batch")
        self._ahead = pool.submit(self._work)
        pool.shutdown(wait=False)

    def finish(self) -> None:
        """Wait for what was begun, or do all of it now."""
        if self._ahead is None:
            self._work()
        else:
            self._ahead.result()

    def stop(self) -> None:
        """Give up what was begun; no task writes any more when this returns."""
        if self._scanning is not None:
            self._scanning.close()
        if self._ahead is not None:
            self._ahead.exception()
        self.close()

    def close(self) -> None:
        """Close what was opened for the batch."""
        self.whole.close()

    def _work(self) -> None:
        try:
            for result in self._scan():
                for fitting in self._fit(result):
                    self.accepted.append(fitting)
                    self.queues.add(fitting)
                    if not self.tasks.target.queue_files:
                        fitting.forget_queues()
                    if self.index is not None and fitting.messages:
                        self.index.offer(fitting.spill, fitting.outcome.first_timestamp)
                    if fitting.messages:
                        self.last_position = fitting.last_position
                    self._listener(fitting)
            self.end = self.chain.finish()
            self.scanned = time.perf_counter()
            with ThreadPoolExecutor(1, "reput-queue-files") as pool:
                writing = pool.submit(self._write_files, self)
                if self.index is not None:
                    self.index.finish(self.last_position)
                writing.result()
        except BaseException:
            if self.index is not None:
                self.index.give_up()
            raise

    def _scan(self) -> Iterator[PartResult]:
        if self.tasks.is_here:
            yield from self.tasks.scan(self.parts)
            return
        scanning = self._scanning or _PartScans(self.tasks, self.parts)
        try:
            yield from scanning.results()
        finally:
            scanning.close()

    def _fit(self, result: PartResult) -> Iterator[PartResult]:
        verdict = self.chain.judge(result)
        if verdict.accepted:
            yield result
            return
        self.queues.distrust(result)
        if verdict.again is not None:
            (again,) = self.tasks.scan([verdict.again])
            yield from self._fit(again)


class _PartScans:
    """Scans parts in waves, each as large as what runs at once; starts when it is created."""

    def __init__(self, tasks: BatchTasks, parts: list[Part]) -> None:
        self.tasks = tasks
        self.parts = parts
        self._results: SimpleQueue[PartResult | BaseException | None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reput-scan", daemon=True)
        self._thread.start()

    def results(self) -> Iterator[PartResult]:
        """The results of the parts, in their order, each as soon as it is known; to be called once.

        Raises CancelledError where :meth:`close` came first.
        """
        while (found := self._results.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    def close(self) -> None:
        """Begin no further task, and wait for those that run: none may write after its batch."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with closing(in_waves(self.tasks.runner, self.tasks.scan, self.parts)) as results:
                for result in results:
                    self._results.put(result)
                    if self._closing.is_set():
                        raise CancelledError
        except BaseException as error:  # noqa: BLE001 - raised by results(), in the thread that wants them
            self._results.put(error)
        else:
            self._results.put(None)
