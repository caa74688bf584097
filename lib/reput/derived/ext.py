"""The files of consumequeue_ext of one queue while a broker starts.

Source: ``ConsumeQueueExt`` and its calls in ``ConsumeQueue`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.ext import lay_out
from reput.config.settings import StoreSettings
from reput.derived.files import (
    MOST_OPEN,
    WHAT,
    MappedFiles,
    ModelFile,
    SeriesReader,
    StoreFile,
    loaded,
    mapped,
    numbered_files,
    read_bytes,
)
from reput.errors import Problem, SegmentGoneError, StartFailsError
from reput.format import names
from reput.format.consumequeueext import (
    END_BLANK,
    END_MARK,
    FIRST_ADDRESS,
    HEAD,
    HEAD_LENGTH,
    MAX_UNIT_LENGTH,
    place_of,
)
from reput.format.dtypes import EXT_HEAD_DTYPE
from reput.store.reading import reading, unreadable

#: Bytes of a unit in consumequeue_ext up to storeTimestamp, the first field that isn't needed.
_TAGS_END = 10


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

        StartFailsError where a record's size leads out of its file.
        """
        if not self.files:
            return
        end = 0
        from reput.derived import kernels

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

        StartFailsError where the record is too short.
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

        Returns int64[count], their addresses; 0 for those that the last file can't be closed for.
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


@dataclass(frozen=True, slots=True)
class ExtRecord:
    """A unit's record of consumequeue_ext."""

    tags_code: int  # the tagsCode itself
    store_timestamp: int  # ms
    bit_map: bytes  # for which consumers the message may be

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts: dict[str, object] = {"tags_code": self.tags_code, "store_timestamp": self.store_timestamp}
        return {**facts, "bit_map_base64": base64.b64encode(self.bit_map).decode()}


class ExtFiles:
    """A queue's files of consumequeue_ext; looked at when a unit first leads there."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: list[tuple[Path, int, int]] | None = None

    def record(self, tags_code: int) -> ExtRecord | None:
        """What an address leads to; None where nothing is there."""
        place = place_of(tags_code)
        if place is None or self._directory is None:
            return None
        if self._files is None:
            self._files = numbered_files(self._directory)
        for path, base, length in self._files:
            if base <= place < base + length:
                return self._read(path, place - base)
        return None

    def _read(self, path: Path, position: int) -> ExtRecord | None:
        try:
            data = read_bytes(WHAT, path, position, MAX_UNIT_LENGTH)
        except SegmentGoneError:
            return None  # expired just now
        if len(data) < HEAD_LENGTH:
            return None
        size, tags_code, timestamp, width = HEAD.unpack_from(data)
        if not HEAD_LENGTH <= size <= len(data) or width != size - HEAD_LENGTH:
            return None
        return ExtRecord(tags_code, timestamp, data[HEAD_LENGTH:size])


class QueueExt:
    """The units of one queue in consumequeue_ext, which units in its consume queue point to.

    Where ``enableConsumeQueueExt`` is on, a unit's tagsCode is an address there. The files are listed when
    they are first needed.

    Source: ``ConsumeQueueExt.get``, ``CqExtUnit.read``, ``MappedFileQueue.findMappedFileByOffset``
    (rocketmq-all-4.9.7, 5.3.3).
    """

    def __init__(self, settings: StoreSettings, topic: str, queue_id: int) -> None:
        self._settings = settings
        self._size = settings.recovery.queue_ext_file_size
        self._of = settings, names.CONSUME_QUEUE_EXT, topic, queue_id

    def tags_code(self, stored: int) -> int | None:
        """The tagsCode of a unit that stores this; None where it is an address without a unit."""
        place = place_of(stored)
        if place is None:
            return stored
        if not self._settings.recovery.queue_ext:
            return None  # the broker doesn't look
        path = self._path(place)
        return None if path is None else self._read(path, place % self._size)

    def _path(self, place: int) -> Path | None:
        for file in self._files:
            if file.base <= place < file.base + self._size:
                return file.path
        return self._files[0].path if self._files and place == 0 else None

    def _read(self, path: Path, position: int) -> int | None:
        try:
            with reading(path) as descriptor:
                data = os.pread(descriptor, HEAD_LENGTH, position)
        except FileNotFoundError:
            return None  # expired just now
        except OSError as error:
            raise unreadable("the queue's tags", path, error) from error
        if len(data) < _TAGS_END:
            return None
        size, code, _, _ = HEAD.unpack(data.ljust(HEAD_LENGTH, b"\0"))
        return code if size > 0 else None

    @cached_property
    def _files(self) -> tuple[StoreFile, ...]:
        return loaded(*self._of, "the queue's tags").files


WHOLE, NO_FILE, NO_RECORD = range(3)
#: Records further apart are read one by one, so that addresses that lead anywhere cost no long reads.
_APART = 1 << 16
_AT_ONCE = 1 << 24


class Records(NamedTuple):
    """What addresses lead to."""

    state: NDArray[np.int8]  # int8[n], WHOLE, NO_FILE or NO_RECORD: bytes that are none
    tags: NDArray[np.int64]  # tags, timestamp: int64[n], tagsCode and storeTimestamp in ms; where WHOLE
    timestamp: NDArray[np.int64]


class ExtReader(SeriesReader):
    """Reads records of a store's queues."""

    def __init__(self, root: Path, file_size: int) -> None:
        super().__init__(root, file_size, names.CONSUME_QUEUE_EXT, MOST_OPEN)

    def read(self, topic: str, queue_id: int, addresses: NDArray[np.int64]) -> Records:
        """What some addresses lead to."""
        count = len(addresses)
        found = Records(
            np.full(count, NO_FILE, np.int8), np.zeros(count, np.int64), np.zeros(count, np.int64)
        )
        places = addresses ^ np.int64(FIRST_ADDRESS)
        order = np.argsort(places, kind="stable")
        places = places[order]
        near = (np.diff(places) > _APART) | (np.diff(places // self._file_size) != 0)
        near |= np.diff(places // _AT_ONCE) != 0
        cuts = [0, *(np.flatnonzero(near) + 1).tolist(), count]
        for first, stop in pairwise(cuts):
            if first < stop:
                self._read(topic, queue_id, places[first:stop], order[first:stop], found)
        return found

    def _read(
        self,
        topic: str,
        queue_id: int,
        places: NDArray[np.int64],
        rows: NDArray[np.int64],
        found: Records,
    ) -> None:
        """Records in one file that are near one another, their places ascending."""
        low, high = int(places[0]), int(places[-1])
        base = low - low % self._file_size
        fd = self.descriptor(topic, queue_id, base)
        if fd < 0:
            return
        length = min(high + HEAD_LENGTH, base + self._file_size) - low
        data = os.pread(fd, length, low - base)
        # A record that isn't all there is none; behind the end there are zeros, which are none either.
        buffer = np.frombuffer(data.ljust(high - low + HEAD_LENGTH, b"\0"), np.uint8)
        heads = buffer[(places - low)[:, None] + np.arange(HEAD_LENGTH)].reshape(-1).view(EXT_HEAD_DTYPE)
        size = heads["size"].astype(np.int64)
        whole = (heads["width"] >= 0) & (size == HEAD_LENGTH + heads["width"].astype(np.int64))
        whole &= places - base + size <= self._file_size
        found.state[rows] = np.where(whole, WHOLE, NO_RECORD)
        found.tags[rows] = heads["tags"]
        found.timestamp[rows] = heads["timestamp"]
