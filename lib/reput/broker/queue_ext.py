"""The files of consumequeue_ext of one queue while a broker starts.

Source: ``ConsumeQueueExt`` and its calls in ``ConsumeQueue`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.broker.files import StoreFile, mapped
from reput.broker.problem import Problem, StartFailsError
from reput.build.ext import lay_out
from reput.caches import CACHED
from reput.format.consumequeueext import END_BLANK, END_MARK, FIRST_ADDRESS, HEAD, HEAD_LENGTH, place_of


@dataclass(slots=True)
class ExtFile:
    """A file of these.

    Attributes:
        base: the place of its first byte.
        path: where it is; None when the broker makes it.
        wrote: bytes from its start on that count.
        old: bytes from its start on that the broker doesn't write over.
    """

    base: int
    path: Path | None
    wrote: int
    old: int


class ExtModel:
    """Those files, changed as a broker changes them; nothing on disk changes.

    Attributes:
        files: in the order of their names.
        deleted: files that the broker deletes.
    """

    def __init__(self, files: Sequence[StoreFile], file_size: int) -> None:
        self.file_size = file_size
        # A file that was loaded counts as full until it is looked into.
        self.files = [ExtFile(file.base, file.path, file_size, file_size) for file in files]
        self.deleted: list[Path] = []

    @property
    def start(self) -> int:
        """The place of the first byte; 0 without files."""
        return self.files[0].base if self.files else 0

    @property
    def end(self) -> int:
        """The place of the next record; 0 without files."""
        return self.files[-1].base + self.files[-1].wrote if self.files else 0

    def recover(self) -> None:
        """Find the end of the last file; those before it are looked through and stay as they are.

        Raises:
            StartFailsError: a record's size leads out of its file.
        """
        if not self.files:
            return
        end = 0
        for file in self.files:
            end = file.base + self._records_end(file)
        self._cut(end)

    def _records_end(self, file: ExtFile) -> int:
        """Position after the last record of a file: ``CqExtUnit.readBySkip`` until a size isn't positive."""
        whole, position = _records(self._bytes(file))
        if not whole:
            raise StartFailsError(_broken(file, "sizes of records that end inside the file", f"{position}"))
        return int(position)

    def truncate(self, address: int) -> None:
        """Cut what lies behind the record at an address; nothing when none is there.

        Raises:
            StartFailsError: the record is too short.
        """
        place = place_of(address)
        if place is None:
            return
        file = self._file_at(place)
        if file is None:
            return
        position = place % self.file_size
        record = self._bytes(file)[position : file.wrote].tobytes()
        size, _, _, width = HEAD.unpack(record[:HEAD_LENGTH].ljust(HEAD_LENGTH, b"\0"))
        if len(record) < len(END_MARK) or size < 1:
            return
        if len(record) < HEAD_LENGTH + max(width, 0):
            raise StartFailsError(_broken(file, f"a whole record at {position}", f"{len(record)} bytes"))
        self._cut(place + size)

    def _file_at(self, place: int) -> ExtFile | None:
        for file in self.files:
            if file.base <= place < file.base + self.file_size:
                return file
        return self.files[0] if self.files and place == 0 else None

    def _cut(self, end: int) -> None:
        """``MappedFileQueue.truncateDirtyFiles``."""
        for file in list(self.files):
            if file.base + self.file_size > end:
                if end >= file.base:
                    file.wrote = file.old = end % self.file_size
                else:
                    self._delete(file)

    def drop_before(self, address: int) -> None:
        """Delete the files that end before an address."""
        place = place_of(address)
        if place is None:
            return
        for file in list(self.files):
            if file.base + self.file_size < place:
                self._delete(file)

    def put(self, count: int) -> NDArray[np.int64]:
        """Append records without bit maps.

        Returns:
            int64[count], their addresses; 0 for those that the last file can't be closed for.
        """
        if self.file_size < HEAD_LENGTH + END_BLANK:
            return np.zeros(count, np.int64)
        layout = lay_out(self.end, count, HEAD_LENGTH, self.file_size)
        while self.end < layout.end:
            last = self.files[-1] if self.files else None
            if last is None or last.wrote == self.file_size:
                last = ExtFile(0 if last is None else last.base + self.file_size, None, 0, 0)
                self.files.append(last)
            last.wrote = min(layout.end - last.base, self.file_size)
        return layout.addresses(np.zeros(count, np.int64))

    def held(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n]: whether a record stood at each address before the start, and still does."""
        places = addresses.astype(np.int64) ^ np.int64(FIRST_ADDRESS)
        found = np.zeros(len(places), bool)
        for file in self.files:
            inside = np.flatnonzero((places >= file.base) & (places < file.base + file.old))
            if len(inside) and file.path is not None:
                data = self._bytes(file)
                positions = places[inside] - file.base
                high, low = data[positions], data[np.minimum(positions + 1, self.file_size - 1)]
                found[inside] = (high < 0x80) & ((high | low) > 0)
        return found

    def destroy(self) -> None:
        """Delete all files."""
        for file in list(self.files):
            self._delete(file)

    def _delete(self, file: ExtFile) -> None:
        self.files.remove(file)
        if file.path is not None:
            self.deleted.append(file.path)

    def _bytes(self, file: ExtFile) -> NDArray[np.uint8]:
        if file.path is None:
            return np.zeros(self.file_size, np.uint8)
        return mapped(file.path, self.file_size)


@njit(cache=CACHED)
def _records(data):  # type: ignore[no-untyped-def]
    """Whether a size that isn't positive ends the records before the file's end, and where."""
    position = np.int64(0)
    while position + 2 <= len(data):
        size = (np.int64(data[position]) << 8) | np.int64(data[position + 1])
        if size == 0 or size >= 0x8000:
            return True, position
        position += size
    return False, position


def _broken(file: ExtFile, expected: str, found: str) -> Problem:
    return Problem(
        kind="broken-queue-ext",
        path=str(file.path),
        expected=expected,
        found=found,
        outcome="the broker fails while it recovers the queue, and doesn't start",
        next_step="Move the queue's files below consumequeue_ext elsewhere: its units then lead to no tags.",
        stops=True,
    )
