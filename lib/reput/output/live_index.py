"""Index keys of small batches, put by the process that runs a tail, at a cost proportional to their number.

The last index file stays open from batch to batch, with its slots in memory. A batch writes its entries at
once and flushes them, then shows them to readers: the header, then the slots that changed, through a map. A
reader may come at any moment; in this order no slot points past the entries that the header counts.

Slots and header of the last file aren't flushed while the tail runs. They follow from the entries and the
journal, and :mod:`reput.output.step_back` computes them again if the scratch directory is there, as it is
while a tail runs. A full file is flushed whole before the journal can name another one: docs/adr/0018.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows, Put, put_keys
from reput.errors import OutputError
from reput.format import names
from reput.format.indexfile import HEADER_LENGTH, SLOT_LENGTH, IndexHeader
from reput.output import index_files
from reput.output.index_files import BatchIndex, from_key
from reput.replay.target import Target
from reput.store import files


class LiveIndex:
    """Keeps the last index file open between the batches of a tail.

    Batches may be built by tasks in between (:class:`reput.output.index_files.IndexBuilder`), if
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
        self._unflushed = index_files.entry_offset(self._slot_num, header.index_count)
        length = index_files.full_length(settings)
        index_files.check_there(self._path, header)
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
                self._slots = index_files.load_slots(self._fd, self._slot_num, header.index_count)
            if not created and not np.array_equal(self._shown, self._slots):
                files.pwrite_all(self._fd, index_files.slot_bytes(self._slots), HEADER_LENGTH)
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
        at = index_files.entry_offset(self._slot_num, self.header.index_count)
        put = put_keys(self.header, self._slots, rows, skip, self._max_index_num)
        files.pwrite_all(self._fd, put.entries.data, at)
        self._hashes.append(rows.key_hash[skip : skip + put.keys])
        self.header = put.header
        return put

    def flush_entries(self) -> None:
        """Make the new entries durable, and show them to readers."""
        end = index_files.entry_offset(self._slot_num, self.header.index_count)
        files.flush_map(self._fd, self._map, self._unflushed, end - self._unflushed)
        self._unflushed = end
        self._show()

    def flush_all(self) -> None:
        """Show and make durable all that the file holds."""
        self._show()
        files.fsync_file(self._fd, data_only=True)
        self._unflushed = index_files.entry_offset(self._slot_num, self.header.index_count)

    def close(self) -> None:
        """Close the descriptor; the map goes with this object."""
        self._close()

    def check_in_place(self) -> None:
        """Check that the open file is still the one of its name."""
        ours = os.fstat(self._fd)
        with files.reporting("the index file that is being written is gone", self._path):
            named = self._path.stat()
        if (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino):
            raise OutputError("the index file that is being written was replaced", path=self._path)

    def _show(self) -> None:
        if not self._hashes:
            return
        files.pwrite_all(self._fd, self.header.encode(counts_keys=self._counts_keys), 0)
        hashes = np.concatenate(self._hashes).view(np.uint32)
        at = (hashes % np.uint32(self._slot_num)).astype(np.intp)
        files.store_in_map(self._shown, at, self._slots[at].astype(">i4"))
        self._hashes.clear()
