"""Index files: one on disk, those of a batch, and building them from spills, several at once.

Source: ``IndexService.getAndCreateLastIndexFile`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import os
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows, Put, put_keys, rebuild_slots
from reput.config.settings import StoreSettings
from reput.errors import OutputError
from reput.format import indexfile, names
from reput.format.indexfile import (
    ENTRY_LENGTH,
    FIRST_ORDINAL,
    HEADER_LENGTH,
    SLOT_LENGTH,
    IndexHeader,
)
from reput.replay.spills import Spill
from reput.replay.target import Target
from reput.store import files
from reput.store.files import opened
from reput.store.places import attempt_directory

_ENTRIES_AT_ONCE = 1 << 20


def full_length(settings: StoreSettings) -> int:
    """Bytes of each index file of a store."""
    return indexfile.file_length(settings.max_hash_slot_num, settings.max_index_num)


def entry_offset(max_hash_slot_num: int, ordinal: int) -> int:
    """Byte offset of an entry."""
    return HEADER_LENGTH + max_hash_slot_num * SLOT_LENGTH + ordinal * ENTRY_LENGTH


def empty_header(settings: StoreSettings, header: IndexHeader) -> IndexHeader:
    """The header of a file without entries as it is on disk: 4.9 counts from 0 until the first entry."""
    return replace(header, index_count=settings.dialect.empty_index_count)


def check_there(path: Path, header: IndexHeader) -> None:
    """Check that a file that had entries when it was committed is still there."""
    if header.index_count > FIRST_ORDINAL and not path.is_file():
        raise OutputError(
            "an index file that the journal names is missing",
            path=path,
            expected=f"{header.index_count - FIRST_ORDINAL} entries",
            next_step="Put it back, or remove the output and start again",
        )


def create_empty(target: Target, name: str, header: IndexHeader) -> None:
    """Make a file without entries, or start one of that name again; flushed if tasks of the target flush."""
    path = target.root / names.INDEX / name
    with opened(path, full_length(target.settings), target.owner) as fd:
        files.pwrite_all(fd, empty_header(target.settings, header).encode(), 0)
        if target.flush_in_tasks:
            files.fsync_file(fd)
            files.fsync_dir(path.parent)


def load_slots(fd: int, max_hash_slot_num: int, index_count: int) -> NDArray[np.int32]:
    """A file's slots, int32[slots] in native byte order, as of the time when it had ``index_count``.

    A writer that went further and then failed leaves slots that point to later entries. These can't be reset
    one by one, so all slots are computed again.
    """
    if index_count <= FIRST_ORDINAL:
        return np.zeros(max_hash_slot_num, np.int32)
    data = _read(fd, max_hash_slot_num * SLOT_LENGTH, HEADER_LENGTH)
    slots = np.frombuffer(data, ">i4").astype(np.int32)
    if int(slots.max()) >= index_count:
        return slots_of_entries(fd, max_hash_slot_num, index_count)
    return slots


def slots_of_entries(fd: int, max_hash_slot_num: int, index_count: int) -> NDArray[np.int32]:
    """The slots, int32[slots], that follow from the entries below ``index_count``."""
    slots = np.zeros(max_hash_slot_num, np.int32)
    for ordinal in range(FIRST_ORDINAL, index_count, _ENTRIES_AT_ONCE):
        count = min(_ENTRIES_AT_ONCE, index_count - ordinal)
        data = _read(fd, count * ENTRY_LENGTH, entry_offset(max_hash_slot_num, ordinal))
        hashes = np.frombuffer(data, ">i4").reshape(-1, ENTRY_LENGTH // 4)[:, 0]
        rebuild_slots(hashes.astype(np.int32), slots, ordinal)
    return slots


def slot_bytes(slots: NDArray[np.int32]) -> memoryview:
    """Slots as they are on disk."""
    return slots.astype(">i4").view(np.uint8).data


def _read(fd: int, length: int, offset: int) -> bytes:
    return files.pread_all(fd, length, offset, "the index file ends too early")


class BatchIndex(ABC):
    """Takes the index keys of one batch and puts them into index files.

    ``target`` says whether files are flushed here; ``known`` are the index files so far, in order. ``name``
    and ``header`` are the last file's, None without one; ``changed`` has the headers of the files that were
    written, by name.
    """

    def __init__(self, target: Target, known: list[tuple[str, IndexHeader]]) -> None:
        self.name: str | None = known[-1][0] if known else None
        self.header: IndexHeader | None = known[-1][1] if known else None
        self.changed: dict[str, IndexHeader] = {}
        self._target = target
        self._settings = target.settings
        self._waiting: deque[Spill] = deque()
        self._first_timestamp: int | None = None

    def offer(self, spill: Spill | None, first_timestamp: int) -> None:
        """Take the next part's keys, in log order; None where it has none.

        ``first_timestamp`` is the storeTimestamp, ms, of the part's first message; the first part's may name
        a file. Parts without messages are not offered.
        """
        if self._first_timestamp is None:
            self._first_timestamp = first_timestamp
        if spill is not None:
            self._waiting.append(spill)

    def finish(self, last_position: int) -> None:
        """Write what was taken, and the empty file that the broker makes for a message without keys.

        It makes one for the first message, and for the message after a full file. ``last_position`` is the
        physical offset of the last message dispatched so far, -1 if there was none.
        """
        self._put_waiting()
        header = self.header
        if last_position >= 0 and (
            header is None or (self.is_full(header) and last_position > header.end_physical_offset)
        ):
            empty = self.for_next_key()
            create_empty(self._target, *empty)
            self.moved(*empty)

    @abstractmethod
    def _put_waiting(self) -> None:
        """Write the keys that wait."""

    @abstractmethod
    def give_up(self) -> None:
        """Write no more, and return when nothing does: the batch has failed."""

    def moved(self, name: str, header: IndexHeader) -> None:
        """Record that a file is the last one now, with this header."""
        self.name, self.header = name, header
        self.changed[name] = header

    def is_full(self, header: IndexHeader) -> bool:
        """Whether a file takes no further key."""
        return header.index_count >= self._settings.max_index_num

    def for_next_key(self) -> tuple[str, IndexHeader]:
        """The file that the next key goes to, (name, header): the last one, or one that is to be made."""
        if self.name is None or self.header is None:
            return self.next_name(), IndexHeader()
        if self.is_full(self.header):
            return self.next_name(self.header.end_timestamp), self.header.successor()
        return self.name, self.header

    def next_name(self, end_timestamp: int | None = None, than: str | None = None) -> str:
        """The name of the file after the one ``than`` (by default the last) that ends at ``end_timestamp``.

        A broker names a file by its clock when the message after the full file comes, the first one when the
        log begins. Here the log's times stand for the clock, so that names don't depend on how the log was
        cut into parts: the first message's time, then the time at which the file before ends. A broker
        continues with the file of the greatest name, so none may be in its future, whatever the time in a
        damaged message.
        """
        timestamp = end_timestamp if end_timestamp is not None else self._first_timestamp or 0
        timestamp = min(max(timestamp, 0), int(time.time() * 1000))
        return names.later_index_name(timestamp, than or self.name)


# Order matters in an index file, so spills are taken in log order; but a file's entries can be built while
# later parts are still being scanned, and several files at once.

RunTasks = Callable[[list["IndexTask"], "KeptSlots"], list[Any]]


class IndexBuilder(BatchIndex):
    """Builds the index files of one batch beside its scan.

    ``run`` returns the results of tasks in order, and is called from another thread.
    """

    def __init__(self, target: Target, known: list[tuple[str, IndexHeader]], run: RunTasks) -> None:
        super().__init__(target, known)
        self._run = run
        self._running: deque[Future[None]] = deque()
        self._kept: KeptSlots = {}
        self._over = False  # a build has failed, or the batch
        self._pool = ThreadPoolExecutor(1, "reput-index")

    def offer(self, spill: Spill | None, first_timestamp: int) -> None:
        """Take the next part's keys, and have them built."""
        super().offer(spill, first_timestamp)
        while self._running and self._running[0].done():
            self._running.popleft().result()
        if spill is not None:
            self._running.append(self._pool.submit(self._build))

    def _put_waiting(self) -> None:
        try:
            while self._running:
                self._running.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)
        for path, slots in self._kept.items():
            with opened(path, full_length(self._settings), self._target.owner) as fd:
                complete(self._target, fd, path, slots, self.changed[path.name])

    def give_up(self) -> None:
        """Wait for what is under way."""
        self._over = True
        self._pool.shutdown(cancel_futures=True)

    def _build(self) -> None:
        spills: list[Spill] = []
        while self._waiting:  # what was offered while the last ones were built goes together
            spills.append(self._waiting.popleft())
        if self._over or not spills:
            return
        self._over = True  # until all of it is built
        tasks = self._plan(tuple(spills))
        for task, header in zip(tasks, self._run(tasks, self._kept), strict=True):
            self.moved(task.path.name, header)
        self._over = False

    def _plan(self, spills: tuple[Spill, ...]) -> list[IndexTask]:
        """One task for each file that the keys reach."""
        tasks: list[IndexTask] = []
        name, header = self.name, self.header
        first_key, end = 0, sum(spill.keys for spill in spills)
        while first_key < end:
            if tasks:
                header = None  # follows a file whose last entry only its own task will know
                _, before = message_of_key(spills, first_key - 1)
                name = self.next_name(before, name)
            else:
                name, header = self.for_next_key()
            room = self._settings.max_index_num - (FIRST_ORDINAL if header is None else header.index_count)
            keys = min(room, end - first_key)
            path = self._target.root / names.INDEX / str(name)
            tasks.append(IndexTask(path, header, first_key, keys, spills))
            first_key += keys
        return tasks


@dataclass(frozen=True, slots=True)
class IndexTask:
    """A stretch of keys for one index file."""

    path: Path  # the index file
    #: its header so far; None for a file that follows a full one, whose last entry is the key before
    #: ``first_key``
    header: IndexHeader | None
    first_key: int  # ordinal, among the keys of ``spills``, of the first key to put
    keys: int  # how many keys to put, at most what the file has room for
    #: in log order; they hold the keys, and the one before them where ``header`` is None
    spills: tuple[Spill, ...]

    def is_whole(self, settings: StoreSettings) -> bool:
        """Whether it puts all keys that the file will ever have."""
        return (self.header is None or self.header.index_count <= FIRST_ORDINAL) and (
            self.keys == settings.max_index_num - FIRST_ORDINAL
        )


def build_apart(target: Target, task: IndexTask) -> tuple[Path, IndexHeader]:
    """Write a whole file below the scratch directory; its path and header."""
    path = attempt_directory(target.scratch) / task.path.name
    return path, build(target, replace(task, path=path))


def named(target: Target, tasks: list[IndexTask], built: list[Any]) -> Iterator[IndexHeader]:
    """Give what :func:`build_apart` has written its name; yields what :func:`build` returns."""
    for task, (path, header) in zip(tasks, built, strict=True):
        files.make_dirs(task.path.parent, target.owner)
        files.rename(path, task.path)
        yield header


#: Of files that aren't full, and that the batch may go on with, the slots: int32[slots] by path.
KeptSlots = dict[Path, NDArray[np.int32]]


def build(target: Target, task: IndexTask, kept: KeptSlots | None = None) -> IndexHeader:
    """Put the task's keys into its file; the header afterwards.

    Running it again from the same header writes the same bytes. With ``kept`` the slots of a file that has
    room left stay there, for the next task or for :func:`complete`.
    """
    settings = target.settings
    with opened(task.path, full_length(settings), target.owner) as fd:
        header = task.header
        if header is None:
            position, timestamp = message_of_key(task.spills, task.first_key - 1)
            header = IndexHeader(
                begin_timestamp=timestamp,
                end_timestamp=timestamp,
                begin_physical_offset=position,
                end_physical_offset=position,
            )
        slots = None if kept is None else kept.pop(task.path, None)
        if slots is None:
            slots = load_slots(fd, settings.max_hash_slot_num, header.index_count)
        written_from = entry_offset(settings.max_hash_slot_num, header.index_count)
        at = written_from
        with ThreadPoolExecutor(1, "reput-index-write") as pool:
            # A chunk is written while the next one is put; the last part of a log has a core to spare.
            writing: Future[Any] = pool.submit(abs, 0)
            for rows, skip in _chunks(task):
                put = put_keys(header, slots, rows, skip, settings.max_index_num)
                writing.result()
                writing = pool.submit(files.pwrite_all, fd, put.entries.data, at)
                at += len(put.entries)
                header = put.header
            writing.result()
        files.start_writeback(fd, written_from, at - written_from)
        if kept is not None and header.index_count < settings.max_index_num:
            kept[task.path] = slots
        else:
            complete(target, fd, task.path, slots, header)
    return header


def complete(target: Target, fd: int, path: Path, slots: NDArray[np.int32], header: IndexHeader) -> None:
    """Write slots and header of a file that has its entries; flushed if tasks of the target flush."""
    files.pwrite_all(fd, slot_bytes(slots), HEADER_LENGTH)
    files.pwrite_all(fd, header.encode(counts_keys=target.settings.dialect.counts_keys), 0)
    if target.flush_in_tasks:
        files.fsync_file(fd)
        files.fsync_dir(path.parent)


def message_of_key(spills: tuple[Spill, ...], key: int) -> tuple[int, int]:
    """(physicalOffset, storeTimestamp) of the message that has the ``key``-th key of some spills."""
    left = key
    for spill in spills:
        if left >= spill.keys:
            left -= spill.keys
            continue
        for rows in spill.chunks():
            if left < len(rows.key_hash):
                row = int(np.searchsorted(np.cumsum(rows.keys), left, side="right"))
                return int(rows.position[row]), int(rows.timestamp[row])
            left -= len(rows.key_hash)
        break
    raise OutputError("index keys can't be read back", path=spills[-1].path, expected=f"{key + 1} keys")


def _chunks(task: IndexTask) -> Iterator[tuple[KeyRows, int]]:
    """The task's keys as rows, with how many keys of the first row to skip."""
    skip, wanted = task.first_key, task.keys
    for spill in task.spills:
        if skip >= spill.keys:
            skip -= spill.keys
            continue
        for rows in spill.chunks():
            if wanted == 0:
                return
            keys = len(rows.key_hash)
            if skip >= keys:
                skip -= keys
                continue
            piece, left = from_key(rows, skip)
            skip = 0
            piece = _cut(piece, left + wanted)
            wanted -= len(piece.key_hash) - left
            yield piece, left


def from_key(rows: KeyRows, key: int) -> tuple[KeyRows, int]:
    """The rows from the one that holds ``key`` on, and which of its keys that is."""
    if key == 0:
        return rows, 0
    ends = np.cumsum(rows.keys)
    row = int(np.searchsorted(ends, key, side="right"))
    before = int(ends[row - 1]) if row else 0
    return (
        KeyRows(rows.position[row:], rows.timestamp[row:], rows.keys[row:], rows.key_hash[before:]),
        key - before,
    )


def _cut(rows: KeyRows, keys: int) -> KeyRows:
    """At most the first ``keys`` keys; the last row may lose some of its own."""
    if keys >= len(rows.key_hash):
        return rows
    ends = np.cumsum(rows.keys)
    row = int(np.searchsorted(ends, keys, side="left"))
    counts = rows.keys[: row + 1].copy()
    counts[row] = keys - (int(ends[row - 1]) if row else 0)
    return KeyRows(rows.position[: row + 1], rows.timestamp[: row + 1], counts, rows.key_hash[:keys])


# The last index file stays open from batch to batch, with its slots in memory. A batch writes its entries at
# once and flushes them, then shows them to readers: the header, then the slots that changed, through a map. A
# reader may come at any moment; in this order no slot points past the entries that the header counts.
#
# Slots and header of the last file aren't flushed while the tail runs. They follow from the entries and the
# journal, and :mod:`reput.output.log_changes` computes them again if the scratch directory is there, as it is
# while a tail runs. A full file is flushed whole before the journal can name another one: docs/adr/0018.


class LiveIndex:
    """Keeps the last index file open between the batches of a tail.

    Batches may be built otherwise in between (:class:`reput.output.index_files.IndexBuilder`), if
    :meth:`release` is called before. Not for use by several threads.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._file: LiveFile | None = None
        self._failure: OutputError | None = None

    def batch(self, known: list[tuple[str, IndexHeader]]) -> LiveBatch:
        """Begin a batch behind the files that the journal has.

        Keys that an earlier batch put and never committed are discarded.
        """
        return LiveBatch(self, self._target, known)

    def release(self) -> None:
        """Flush all of the file that is open, and close it: before others write it, and at a clean end.

        Raises OutputError also where a write failed before, which a second try can't repair.
        """
        if self._failure is not None:
            raise self._failure
        if self._file is not None:
            try:
                self._file.flush_all()
            except OutputError as error:
                self._failure = error
                raise
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; the next start rolls it back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def file_for(self, batch: LiveBatch) -> LiveFile:
        """The file that the next key goes to, open."""
        name, header = batch.for_next_key()
        file = self._file
        if file is not None and (file.name, file.header) == (name, header):
            file.check_in_place()
            return file
        self.release()
        self._file = LiveFile(self._target, name, header)
        return self._file

    def put(self, batch: LiveBatch, pieces: Iterable[KeyRows]) -> None:
        """Put keys in log order, into a new file where one is full; flushes what has to be flushed.

        Once it has raised OutputError, so does every later use.
        """
        if self._failure is not None:
            raise self._failure
        try:
            for rows in pieces:
                skip, left = 0, len(rows.position)
                while left:
                    file = self.file_for(batch)
                    put = file.put(rows, skip)
                    batch.moved(file.name, file.header)
                    if batch.is_full(file.header):
                        self.release()
                    left -= put.rows
                    if left:
                        rows, skip = from_key(rows, skip + put.keys)
            if self._file is not None:
                self._file.flush_entries()
        except OutputError as error:
            self._failure = error
            raise


class LiveBatch(BatchIndex):
    """Puts one batch's keys into the file that a :class:`LiveIndex` keeps open, and flushes them."""

    def __init__(self, live: LiveIndex, target: Target, known: list[tuple[str, IndexHeader]]) -> None:
        super().__init__(replace(target, flush_in_tasks=True), known)
        self._live = live

    def _put_waiting(self) -> None:
        if self._waiting:
            self._live.put(self, (rows for spill in self._waiting for rows in spill.chunks()))

    def give_up(self) -> None:
        """Nothing is under way."""


class LiveFile:
    """One index file, open for small additions, and made if it holds no entries yet.

    What it holds beyond ``header``, as of the last commit, is discarded. ``name`` and ``header`` are kept up
    to date.
    """

    def __init__(self, target: Target, name: str, header: IndexHeader) -> None:
        settings = target.settings
        self.name = name
        self.header = header
        self._path = target.root / names.INDEX / name
        self._max_index_num = settings.max_index_num
        self._slot_num = settings.max_hash_slot_num
        self._counts_keys = settings.dialect.counts_keys
        self._hashes: list[NDArray[np.int32]] = []
        self._unflushed = entry_offset(self._slot_num, header.index_count)
        length = full_length(settings)
        check_there(self._path, header)
        files.make_dirs(self._path.parent, target.owner)
        self._fd, created = files.open_sized(self._path, length, target.owner)
        # A batch that fails may leave the file to the garbage collector, as it does the map.
        self._close = weakref.finalize(self, files.system.close, self._fd)
        self._close.atexit = False
        try:
            # Mapped whole, since it takes a map to flush a range, of the entries; only slots are written
            # through it, so that only their space has to be reserved.
            slots_end = HEADER_LENGTH + self._slot_num * SLOT_LENGTH
            self._map = files.map_for_writing(self._fd, length, reserve=slots_end)
            self._shown = np.frombuffer(self._map, ">i4", self._slot_num, HEADER_LENGTH)
            with files.reporting("the index can't be read back", self._path):
                self._slots = load_slots(self._fd, self._slot_num, header.index_count)
            if not created and not np.array_equal(self._shown, self._slots):
                files.pwrite_all(self._fd, slot_bytes(self._slots), HEADER_LENGTH)
            if created:
                files.fsync_file(self._fd)
                files.fsync_dir(self._path.parent)
        except BaseException:
            self.close()
            raise

    def put(self, rows: KeyRows, skip: int) -> Put:
        """Write entries behind the others, until the file is full or the rows end.

        The first ``skip`` keys of the first row are already in the file before.
        """
        at = entry_offset(self._slot_num, self.header.index_count)
        put = put_keys(self.header, self._slots, rows, skip, self._max_index_num)
        files.pwrite_all(self._fd, put.entries.data, at)
        self._hashes.append(rows.key_hash[skip : skip + put.keys])
        self.header = put.header
        return put

    def flush_entries(self) -> None:
        """Make the new entries durable, and show them to readers."""
        end = entry_offset(self._slot_num, self.header.index_count)
        files.flush_map(self._fd, self._map, self._unflushed, end - self._unflushed)
        self._unflushed = end
        self._show()

    def flush_all(self) -> None:
        """Show and make durable all that the file holds."""
        self._show()
        files.fsync_file(self._fd, data_only=True)
        self._unflushed = entry_offset(self._slot_num, self.header.index_count)

    def close(self) -> None:
        """Close the descriptor; the map goes with this object."""
        self._close()

    def check_in_place(self) -> None:
        """Check that the open file is still the one of its name."""
        ours = os.fstat(self._fd)
        with files.reporting("the index file that is being written is gone", self._path):
            named = self._path.stat()
        if (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino):
            raise OutputError(
                "the index file that is being written was replaced",
                path=self._path,
                expected="nobody but this command changes its output",
                next_step="Run the same command again, when nothing else does",
            )

    def _show(self) -> None:
        if not self._hashes:
            return
        files.pwrite_all(self._fd, self.header.encode(counts_keys=self._counts_keys), 0)
        hashes = np.concatenate(self._hashes).view(np.uint32)
        at = (hashes % np.uint32(self._slot_num)).astype(np.intp)
        files.store_in_map(self._shown, at, self._slots[at].astype(">i4"))
        self._hashes.clear()
