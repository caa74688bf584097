"""Queue files that are written at once, from units that scan tasks have put aside.

So it is where a batch has more queues than files can be open: a file is opened once, and tasks make files of
different topics side by side.

So it is, too, where a batch's tasks run on several hosts. There a file that begins in this batch is written
whole by a task, below a directory of that attempt, flushed and closed; then this process, the driver, gives
it its name. To a file that is there already only the driver adds. So nobody reads or writes what another host
may hold a stale copy of, and a task that outlives its run has nothing to write to that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reput.format import names
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH
from reput.newer_python import Self
from reput.replay.spills import QueueSpillReader
from reput.store import file_system, files
from reput.store.file_system import FileCache, FileSystem
from reput.store.listing import names_in
from reput.store.ownership import Owner
from reput.store.places import attempt_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reput.format.names import Queue
    from reput.replay.part_result import PartResult
    from reput.replay.placing import Regular
    from reput.replay.target import Target

#: By default a process may have 1024 open.
MAX_OPEN = 512


def series(directory: Path) -> list[tuple[int, Path]]:
    """A queue's files, each with the byte offset at which it begins, in order; none without a directory."""
    found = ((names.parse_offset_name(name), directory / name) for name in names_in(directory))
    return [(base, path) for base, path in found if base is not None]


class SeriesFiles:
    """Files of ``file_size`` bytes that follow one another, in a directory for each queue.

    A file is created when its first byte is written. ``directory`` names a queue's below the root.
    """

    def __init__(
        self,
        root: Path,
        file_size: int,
        owner: Owner | None,
        directory: Callable[[Path, str, int], Path] = names.queue_directory,
        *,
        max_open: int = MAX_OPEN,
        whole: FileSystem | None = None,
    ) -> None:
        self._root = root
        self._file_size = file_size
        self._directory = directory
        self._cache = FileCache(owner, max_open, whole)

    def __exit__(self, *_: object) -> None:
        self._cache.close()

    def put_bytes(self, topic: str, queue_id: int, at: int, data: memoryview | bytes) -> None:
        """Write from a byte offset of the series on."""
        data = memoryview(data)
        done = 0
        while done < len(data):
            start = at - at % self._file_size
            length = min(start + self._file_size - at, len(data) - done)
            path = _path(self._directory, self._root, topic, queue_id, start)
            self._cache.write(path, data[done : done + length], at - start, self._file_size)
            at, done = at + length, done + length

    def flush(self) -> None:
        """Return when everything that was put is on disk."""
        self._cache.flush_all()

    def __enter__(self) -> Self:
        return self


@lru_cache(maxsize=1 << 17)
def _path(
    directory: Callable[[Path, str, int], Path], root: Path, topic: str, queue_id: int, start: int
) -> Path:
    """Putting it together takes longer than writing a chunk's units; a tail's next batch needs it again."""
    return directory(root, topic, queue_id) / names.offset_name(start)


class QueueFiles(SeriesFiles):
    """The consume queue files under one root; ``file_size`` is a multiple of 20."""

    def put(self, topic: str, queue_id: int, queue_offset: int, data: memoryview | bytes) -> None:
        """Write consecutive units from ``queue_offset`` on."""
        self.put_bytes(topic, queue_id, queue_offset * UNIT_LENGTH, data)

    def put_pre_blank(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Fill the places before a queue's first unit in its first file (``ConsumeQueue.fillPreBlank``)."""
        units = self._file_size // UNIT_LENGTH
        blanks = queue_offset % units
        if blanks:
            self.put(topic, queue_id, queue_offset - blanks, PRE_BLANK * blanks)


#: Files that a task writes at a time: most of what it does is to wait for the disk.
_AT_ONCE = 8
_DIRECTORIES_AT_ONCE = 16
#: To make a file takes as long as to write so many units.
_UNITS_A_FILE = 1000


@dataclass(frozen=True, slots=True)
class FileParts:
    """Units for queue files, by topic; each file has pieces, in order."""

    paths: list[str]  # the files that hold the units
    queues: list[Queue]  # of each queue file: topic and queue id
    begin: NDArray[np.int64]  # int64[files], byte offset in the queue at which the file begins
    is_new: NDArray[np.bool_]  # bool[files], the batch begins it
    pieces: NDArray[np.int64]  # int64[files + 1], file n has the pieces [pieces[n], pieces[n + 1])
    path: NDArray[np.int64]  # int64[pieces], which of the paths holds the run that the piece is of
    at: NDArray[np.int64]  # at, length, crc: int64[pieces], uint32: where the run is, and its bytes
    length: NDArray[np.int64]
    crc: NDArray[np.uint32]
    skip: NDArray[np.int64]  # skip, take: int64[pieces], the piece is the run's bytes [skip, skip + take)
    take: NDArray[np.int64]
    place: NDArray[np.int64]  # int64[pieces], the piece's byte offset in its file

    def __len__(self) -> int:
        return len(self.queues)

    def only(self, chosen: NDArray[np.bool_]) -> FileParts:
        """Some of the files, bool[files]."""
        counts = np.diff(self.pieces)
        of_pieces = np.repeat(chosen, counts)
        rest = [getattr(self, each.name)[of_pieces] for each in fields(self)[5:]]
        return FileParts(
            self.paths,
            [self.queues[number] for number in np.flatnonzero(chosen).tolist()],
            self.begin[chosen],
            self.is_new[chosen],
            np.concatenate([[0], np.cumsum(counts[chosen])]),
            *rest,
        )

    def units(self, spills: QueueSpillReader) -> Iterator[list[tuple[int, bytes]]]:
        """Of each file its units, as (byte offset in the file, bytes); what follows one another is joined."""
        columns = (self.path, self.at, self.length, self.crc, self.skip, self.take, self.place)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for count in np.diff(self.pieces).tolist():
            found: list[tuple[int, bytes]] = []
            end = -1
            for path, at, length, crc, skip, take, place in islice(rows, count):
                data = spills.read(self.paths[path], at, length, crc)
                if take < length:
                    data = data[skip : skip + take]
                if place == end:
                    first, before = found.pop()
                    found.append((first, before + data))
                else:
                    found.append((place, data))
                end = place + take
            yield found


def file_parts(accepted: Sequence[PartResult], regular: Regular, file_size: int) -> FileParts:
    """What the tasks of a batch have put aside, by queue file."""
    paths: list[str] = []
    found = []
    for result, numbers in zip(accepted, regular.of_parts, strict=True):
        runs = result.placed
        if runs is None:
            continue
        queue = numbers[np.searchsorted(result.queues.number, runs.queue)]
        path = np.full(len(queue), len(paths), np.int64)
        found.append(
            (queue, path, runs.at, runs.units * UNIT_LENGTH, runs.crc, runs.queue_offset, runs.units)
        )
        paths.append(runs.path)
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    chosen = regular.chosen[columns[0]]
    queue, path, at, length, crc, start, units = (column[chosen] for column in columns)
    # A run that goes over the end of a file has a piece in each.
    a_file = file_size // UNIT_LENGTH
    first = start // a_file
    count = (start + units - 1) // a_file - first + 1
    run = np.repeat(np.arange(len(queue)), count)
    behind = np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
    begin = (first[run] + behind) * a_file
    low = np.maximum(begin, start[run])
    high = np.minimum(begin + a_file, (start + units)[run])
    # By topic, so that files of one directory are made one after the other, and by one task.
    topics: dict[str, int] = {}
    topic = np.array([topics.setdefault(each, len(topics)) for each, _ in regular.queues], np.int64)
    order = np.lexsort((begin, queue[run], topic[queue[run]]))
    run, begin, low, high = run[order], begin[order], low[order], high[order]
    of = queue[run]
    is_first = np.ones(len(run), bool)
    is_first[1:] = (of[1:] != of[:-1]) | (begin[1:] != begin[:-1])
    begins = np.flatnonzero(is_first)
    return FileParts(
        paths=paths,
        queues=[regular.queues[number] for number in of[begins].tolist()],
        begin=begin[begins] * UNIT_LENGTH,
        is_new=regular.before[of[begins]] <= begin[begins],
        pieces=np.append(begins, len(run)),
        path=path[run],
        at=at[run],
        length=length[run],
        crc=crc[run],
        skip=(low - start[run]) * UNIT_LENGTH,
        take=(high - low) * UNIT_LENGTH,
        place=(low - begin) * UNIT_LENGTH,
    )


def shares(parts: FileParts, count: int) -> list[FileParts]:
    """Files for at most ``count`` tasks, with about as much to do each; those of a topic mostly together."""
    if not len(parts):
        return []
    units = np.add.reduceat(parts.take, parts.pieces[:-1]) // UNIT_LENGTH
    done = np.cumsum(units + _UNITS_A_FILE)
    share = (done - 1) * min(count, len(parts)) // done[-1]
    return [parts.only(share == number) for number in np.unique(share).tolist()]


def write_here(target: Target, parts: FileParts) -> None:
    """Write into files where they are: in a task, or the driver. Only ``flush_in_tasks`` flushes them."""
    file_size = target.settings.consume_queue_file_size
    with QueueSpillReader() as spills:
        if not target.flush_in_tasks:
            _write_unflushed(target, parts, file_size, spills)
            return
        with QueueFiles(target.root, file_size, target.owner, whole=target.file_system()) as queue_files:
            begins = parts.begin.tolist()
            for queue, begin, units in zip(parts.queues, begins, parts.units(spills), strict=True):
                for place, data in units:
                    queue_files.put_bytes(*queue, begin + place, data)
            queue_files.flush()


def _write_unflushed(target: Target, parts: FileParts, file_size: int, spills: QueueSpillReader) -> None:
    root, made = f"{target.root}/{names.CONSUME_QUEUE}", ""
    begins, of_topic = parts.begin.tolist(), ""
    for (topic, queue_id), begin, units in zip(parts.queues, begins, parts.units(spills), strict=True):
        if topic != of_topic:
            _make_directory(f"{root}/{topic}", target)
            of_topic = topic
        directory = f"{root}/{topic}/{queue_id}"
        if directory != made:
            _make_directory(directory, target)
            made = directory
        path = f"{directory}/{names.offset_name(begin)}"
        with files.reporting("can't open the file for writing", path):
            fd, _ = files.open_or_create(path, file_size, target.owner)
        try:
            for place, data in units:
                files.pwrite_all(fd, data, place)
        finally:
            files.system.close(fd)


def _make_directory(path: str, target: Target) -> None:
    """Look first, since mostly only this one is missing: ``files.make_dirs`` takes as long again."""
    try:
        files.make_directory(path, target.owner)
    except OSError:
        files.make_dirs(Path(path), target.owner, flush=False)


def write_apart(target: Target, parts: FileParts) -> Path:
    """Write new files into a directory of their own, which is returned; what a task does.

    The n-th part's are under the name n. On return they are on disk.
    """
    directory = attempt_directory(target.scratch)
    file_size = target.settings.consume_queue_file_size
    with FileSystem(target.root, target.settings.root) as whole, QueueSpillReader() as spills:
        together = len(parts) >= file_system.MANY and whole.why_not() is None

        def write_one(file: tuple[int, list[tuple[int, bytes]]]) -> None:
            number, units = file
            fd = files.create_file(directory / str(number), file_size, target.owner)
            try:
                for at, data in units:
                    files.pwrite_all(fd, data, at)
                if not together:
                    files.fsync_file(fd)
            finally:
                files.system.close(fd)

        files_and_units = enumerate(parts.units(spills))
        # Some at a time: together the units may be more than there is memory.
        while some := list(islice(files_and_units, _AT_ONCE)):
            files.in_threads(write_one, some, _AT_ONCE)
        if together:
            for path in whole.flush(directory / str(number) for number in range(len(parts))):
                files.fsync_path(path)
    files.fsync_dir(directory)
    return directory


def name_all(target: Target, written: Iterable[tuple[FileParts, Path]]) -> None:
    """Give files that tasks have written their names, durably; what the driver does."""
    changed: dict[Path, None] = {}
    with FileSystem(target.root, target.settings.root) as whole:
        for parts, directory in written:
            for number, (queue, begin) in enumerate(zip(parts.queues, parts.begin.tolist(), strict=True)):
                source, path = directory / str(number), names.queue_file(target.root, *queue, begin)
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
