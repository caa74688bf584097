"""The files of consumequeue_ext of one queue while a broker starts.

Source: ``ConsumeQueueExt`` and its calls in ``ConsumeQueue`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reput.broker.files import MappedFiles, ModelFile, StoreFile, mapped
from reput.broker.problem import Problem, StartFailsError
from reput.build.ext import lay_out
from reput.format.consumequeueext import END_BLANK, END_MARK, FIRST_ADDRESS, HEAD, HEAD_LENGTH, place_of


@dataclass(slots=True)
class ExtFile(ModelFile):
    """A file of these; bytes are counted as places of records."""

    old: int  # bytes from its start on that the broker doesn't write over


class ExtModel(MappedFiles[ExtFile]):
    """Those files, changed as a broker changes them; nothing on disk changes."""

    def __init__(self, files: Sequence[StoreFile], file_size: int) -> None:
        # A file that was loaded counts as full until it is looked into.
        loaded = [ExtFile(file.base, file.place, file_size, file_size) for file in files]
        super().__init__(loaded, file_size)

    def recover(self) -> None:
        """Find the end of the last file; those before it are looked through and stay as they are.

        Raises:
            StartFailsError: a record's size leads out of its file.
        """
        if not self.files:
            return
        end = 0
        from reput.broker import kernels

        for file in self.files:
            # ``CqExtUnit.readBySkip`` until a size isn't positive.
            whole, position = kernels.ext_records(self._bytes(file))
            if not whole:
                raise StartFailsError(
                    _broken(file, "sizes of records that end inside the file", f"{position}")
                )
            end = file.base + int(position)
        self.cut(end)

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
        self.cut(place + size)

    def _file_at(self, place: int) -> ExtFile | None:
        first = self.files[0] if self.files and place == 0 else None
        return next((one for one in self.files if one.base <= place < one.base + self.file_size), first)

    def cut(self, end: int) -> None:
        """As :meth:`MappedFiles.cut`; nothing was put yet, and what comes is written behind the end."""
        super().cut(end)
        for file in self.files:
            file.old = file.wrote

    def drop_before(self, address: int) -> None:
        """Delete the files that end before an address."""
        place = place_of(address)
        if place is None:
            return
        for file in list(self.files):
            if file.base + self.file_size < place:
                self.delete(file)

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
            if len(inside) and file.place is not None:
                data = self._bytes(file)
                positions = places[inside] - file.base
                high, low = data[positions], data[np.minimum(positions + 1, self.file_size - 1)]
                found[inside] = (high < 0x80) & ((high | low) > 0)
        return found

    def _bytes(self, file: ExtFile) -> NDArray[np.uint8]:
        if file.place is None:
            return np.zeros(self.file_size, np.uint8)
        return mapped(file.place, self.file_size)


def _broken(file: ExtFile, expected: str, found: str) -> Problem:
    return Problem(
        kind="broken-queue-ext",
        path=str(file.place),
        expected=expected,
        found=found,
        outcome="the broker fails while it recovers the queue, and doesn't start",
        next_step="Move the queue's files below consumequeue_ext elsewhere: its units then lead to no tags.",
        stops=True,
    )
