"""What runs a batch's work: Spark's tasks, or this process."""

from __future__ import annotations

import os
import pickle
import secrets
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from reput.build.placement import Breaks
from reput.errors import OutputError, ReputError
from reput.format.names import Queue
from reput.output import scan_task
from reput.output.index import index_task
from reput.output.queues import appended_queues, irregular_queues, whole_files
from reput.output.scan_task import Floors
from reput.replay.altered import Altered
from reput.replay.part_result import PartResult, witnessed
from reput.replay.placing import QueueOutcome
from reput.replay.queues import Regular
from reput.replay.runner import InlineRunner, Runner
from reput.replay.state import QueueState
from reput.replay.target import Target
from reput.scan.rules import Part
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.system_errors import unwritten

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
        """The result; to be called once.

        Raises:
            OutputError: the file isn't what was written.
        """
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
    """Have a task's result sent.

    Args:
        scratch: a directory that the process which takes it sees as it is here; it gets the file.

    Raises:
        OutputError: there is no room for the file, or the run is over and ``scratch`` gone.
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
        """What was written."""
        if self._fd is None:
            return Sent(b"".join(self._pieces))
        return Sent(b"", str(self._path), self._length, self._crc)

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._fd is not None:
            files.system.close(self._fd)


#: Queues differ in size; a task that is done early leaves room for another one.
_SHARES_A_SLOT = 2


class StateFloors:
    """The floors of a state, without copying all queues."""

    def __init__(self, queues: Mapping[Queue, QueueState]) -> None:
        self._queues = queues

    def get(self, queue: Queue, default: int, /) -> int:
        """A queue's committed next queueOffset, or the default."""
        state = self._queues.get(queue)
        return default if state is None else state.next

    def __len__(self) -> int:
        """How many queues have one."""
        return len(self._queues)


@dataclass(frozen=True, slots=True)
class BatchTasks:
    """Runs a batch's work."""

    runner: Runner  # runs the batch's functions
    target: Target  # where they write, and whether they flush
    floors: Floors  # each queue's committed next queueOffset, at least where it isn't 0

    @classmethod
    def for_databases(cls, runner: Runner, target: Target) -> BatchTasks:
        """What makes databases of the runs: without scratch, which would say that a batch is under way."""
        return cls(runner, replace(target, scratch=target.runs), StateFloors({}))

    @property
    def is_here(self) -> bool:
        """Whether this process does it all."""
        return isinstance(self.runner, InlineRunner)

    def scan(self, parts: list[Part]) -> list[PartResult]:
        """Scan parts and place their units; see :func:`reput.output.scan_task.scan`.

        Raises:
            ReputError: a part's.
        """
        items: list[object] = [witnessed(self.runner, part) for part in parts]
        return self._run(partial(scan_task.scan, floors=self.floors), items)

    def place_again(
        self,
        parts: list[Part],
        committed: dict[Queue, QueueState | None],
        breaks: Breaks,
        altered: Altered,
        *,
        from_zero: bool,
    ) -> list[QueueOutcome]:
        """Place some queues' units again, in log order; see :mod:`reput.output.queues.irregular_queues`."""
        task = partial(
            irregular_queues.place_again,
            committed=committed,
            breaks=breaks,
            altered=altered,
            from_zero=from_zero,
        )
        done: list[QueueOutcome] = self._where_files_change._run(task, [parts])[0]
        return done

    def append(
        self, queues: list[appended_queues.Waiting], parts: list[Part], breaks: Breaks, *, from_zero: bool
    ) -> list[QueueOutcome]:
        """Write the queues that are written in log order; see :mod:`reput.output.queues.appended_queues`."""
        task = partial(appended_queues.write, parts=parts, breaks=breaks, from_zero=from_zero)
        here = self._where_files_change
        shares = appended_queues.shares(queues, 1 if here.is_here else _SHARES_A_SLOT * self.runner.slots)
        return [outcome for done in here._run(task, list(shares)) for outcome in done] if shares else []

    def write_files(self, accepted: list[PartResult], regular: Regular) -> None:
        """Write the units that tasks have put aside; see :mod:`reput.output.queues.whole_files`.

        Args:
            accepted: the batch's parts in log order.
            regular: the queues that are written.
        """
        parts = whole_files.file_parts(accepted, regular, self.target.settings.consume_queue_file_size)
        if not self.target.several_hosts:
            # Some tasks more than slots: one that has the disk's slower files doesn't leave the others idle.
            count = 1 if self.is_here else _SHARES_A_SLOT * self.runner.slots
            self._run(whole_files.write_here, list(whole_files.shares(parts, count)))
            return
        whole = whole_files.shares(parts.only(parts.is_new), self.runner.slots)
        written: list[Path] = self._run(whole_files.write_apart, list(whole)) if whole else []
        whole_files.name_all(self.target, zip(whole, written, strict=True))
        whole_files.write_here(self.target, parts.only(~parts.is_new))

    def build_index(self, tasks: list[index_task.IndexTask]) -> list[Any]:
        """Build index files; see :func:`reput.output.index.index_task.build`."""
        if not self.target.several_hosts:
            return self.runner.map(index_task.build, list(tasks))
        # A file of which tasks write all is theirs; the others change from batch to batch.
        whole = [task for task in tasks if task.is_whole]
        build_apart = partial(index_task.build_apart, scratch=self.target.scratch)
        with ThreadPoolExecutor(1, "reput-index-files") as pool:
            under_way = pool.submit(self.runner.map, build_apart, list(whole)) if whole else None
            built = iter([index_task.build(task) for task in tasks if not task.is_whole])
        results = iter(index_task.named(whole, [] if under_way is None else under_way.result()))
        return [next(results if task.is_whole else built) for task in tasks]

    def run(self, function: Callable[..., object], items: list[object]) -> list[Any]:
        """A function's results, of the target and each item, in the items' order.

        Raises:
            ReputError: it raised one.
        """
        return self._run(function, items)

    @property
    def _where_files_change(self) -> BatchTasks:
        """What changes files that have their names: tasks, unless they may be on several hosts."""
        return replace(self, runner=InlineRunner()) if self.target.several_hosts else self

    def _run(self, function: Callable[..., object], items: list[object]) -> list[Any]:
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
            if self.target.several_hosts:  # whose locks may not meet; see reput.output.queues.whole_files
                return self.function(self.target, item)
            with OutputLock(self.target.root).shared():
                result = self.function(self.target, item)
                return sent(result, self.target.scratch) if self.is_sent else result
        except ReputError as error:
            return error
        except OSError as error:
            return unwritten(error, self.target.scratch)
