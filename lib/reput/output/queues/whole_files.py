"""Queue files of a batch whose tasks run on several hosts: each is written by one process.

A file that begins in this batch is written whole by a task, below a directory of that attempt, flushed and
closed; then this process, the driver, gives it its name. To a file that is there already only the driver
adds. So nobody reads or writes what another host may hold a stale copy of, and a task that outlives its run
has nothing to write to that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.output.attempt import attempt_directory
from reput.output.queues.queue_files import QueueFiles
from reput.replay.queue_spill import QueueSpillReader, UnitRun
from reput.store import file_system, files
from reput.store.file_system import FileSystem

if TYPE_CHECKING:
    from reput.replay.part_result import PartResult
    from reput.replay.state import QueueState
    from reput.replay.target import Target
    from reput.replay.unit_spill import Queue

#: Files that a task writes at a time: most of what it does is to wait for the disk.
_AT_ONCE = 8
_DIRECTORIES_AT_ONCE = 16


class Piece(NamedTuple):
    """Units of a run that go to one file: [first, stop)."""

    run: UnitRun
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """Units for one queue file.

    Attributes:
        queue: topic and queue id.
        begin: byte offset in the queue at which the file begins.
        pieces: the units, in order and without a hole.
        is_new: the batch begins the file.
    """

    queue: Queue
    begin: int
    pieces: tuple[Piece, ...]
    is_new: bool

    @property
    def units(self) -> int:
        """How many."""
        return sum(piece.stop - piece.first for piece in self.pieces)

    def read(self, spills: QueueSpillReader) -> Iterator[tuple[int, memoryview]]:
        """The units as (byte offset in the file, bytes).

        Raises:
            OutputError: they can't be read back.
        """
        for run, first, stop in self.pieces:
            data = memoryview(spills.read(run))[first * UNIT_LENGTH : stop * UNIT_LENGTH]
            yield (run.queue_offset + first) * UNIT_LENGTH - self.begin, data


def file_parts(
    accepted: Iterable[PartResult], regular: Mapping[Queue, QueueState | None], file_size: int
) -> Iterator[FilePart]:
    """What the tasks of a batch have put aside, by queue file.

    Args:
        accepted: results in log order.
        regular: queues whose queueOffsets go on without a hole, with their states before the batch.
        file_size: bytes of a queue file.
    """
    runs: dict[Queue, list[UnitRun]] = {}
    for result in accepted:
        for queue, found in result.placed.items():
            if queue in regular:
                runs.setdefault(queue, []).extend(found)
    units = file_size // UNIT_LENGTH
    for queue, found in runs.items():
        before, pieces = regular[queue], dict[int, list[Piece]]()
        for run in found:
            at = run.queue_offset
            while at < run.next:
                begin = at - at % units
                stop = min(begin + units, run.next)
                pieces.setdefault(begin, []).append(
                    Piece(run, at - run.queue_offset, stop - run.queue_offset)
                )
                at = stop
        for begin, of_file in pieces.items():
            is_new = before is None or before.next <= begin
            yield FilePart(queue, begin * UNIT_LENGTH, tuple(of_file), is_new)


def shares(parts: list[FilePart], count: int) -> list[list[FilePart]]:
    """Files for at most ``count`` tasks, with about as many units each."""
    heap = [(0, number) for number in range(min(count, len(parts)))]
    found: list[list[FilePart]] = [[] for _ in heap]
    for part in sorted(parts, key=lambda part: part.units, reverse=True):
        load, number = heappop(heap)
        found[number].append(part)
        heappush(heap, (load + part.units, number))
    return found


def write(target: Target, parts: list[FilePart]) -> Path:
    """Write new files; what a task does.

    Returns:
        The directory that holds them, the n-th part's under the name n. On return they are on disk.

    Raises:
        OutputError: units can't be read back, or a file can't be written.
    """
    directory = attempt_directory(target.scratch)
    file_size = target.settings.consume_queue_file_size
    with FileSystem(target.root, target.settings.root) as whole, QueueSpillReader() as spills:
        together = len(parts) >= file_system.MANY and whole.why_not() is None

        def write_one(number: int) -> None:
            fd = files.create_file(directory / str(number), file_size, target.owner)
            try:
                for at, data in parts[number].read(spills):
                    files.pwrite_all(fd, data, at)
                if not together:
                    files.fsync_file(fd)
            finally:
                files.system.close(fd)

        files.in_threads(write_one, range(len(parts)), _AT_ONCE)
        if together:
            for path in whole.flush(directory / str(number) for number in range(len(parts))):
                files.fsync_path(path)
    files.fsync_dir(directory)
    return directory


def name_all(target: Target, written: Iterable[tuple[list[FilePart], Path]]) -> None:
    """Give files that tasks have written their names, durably; what the driver does.

    Args:
        written: parts, each with what :func:`write` returned for them.

    Raises:
        OutputError: a file isn't there, or can't get its name.
    """
    changed: dict[Path, None] = {}
    with FileSystem(target.root, target.settings.root) as whole:
        for parts, directory in written:
            for number, part in enumerate(parts):
                source, path = directory / str(number), names.queue_file(target.root, *part.queue, part.begin)
                if path.parent not in changed:
                    for above in files.make_dirs(path.parent, target.owner, flush=False):
                        changed[above] = None
                    changed[path.parent] = None
                with files.reporting(f"a file that a task has written can't become {path}", source):
                    files.system.rename(source, path)
        left = list(changed)
        if len(left) >= file_system.MANY and whole.why_not() is None:
            left = whole.flush(left)
    files.in_threads(files.fsync_dir, left, _DIRECTORIES_AT_ONCE)


def add(target: Target, parts: Iterable[FilePart]) -> None:
    """Add units to files that are there; what the driver does.

    Raises:
        OutputError: units can't be read back, or a file can't be written.
    """
    file_size = target.settings.consume_queue_file_size
    with (
        QueueSpillReader() as spills,
        QueueFiles(target.root, file_size, target.owner, whole=target.file_system()) as queue_files,
    ):
        for part in parts:
            for at, data in part.read(spills):
                queue_files.put_bytes(*part.queue, part.begin + at, data)
        queue_files.flush()
