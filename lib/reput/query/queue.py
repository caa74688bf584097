"""One consume queue: where it begins and ends, and its units.

Source: ``ConsumeQueue``: load, recover, correctMinOffset, getIndexBuffer, getMinOffsetInQueue,
getMaxOffsetInQueue, rollNextFile (rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.broker.files import Listing, StoreFile, listed, records_of
from reput.broker.queue import QueueFile, QueueModel
from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import names
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.format.consumequeueext import HEAD, HEAD_LENGTH, place_of
from reput.format.dtypes import UNIT_DTYPE
from reput.store.reading import reading, unreadable

#: What can't be read, in errors.
WHAT = "the queue"
#: Bytes of a unit in consumequeue_ext up to storeTimestamp, the first field that isn't needed.
_TAGS_END = 10


class Unit(NamedTuple):
    """A queue's unit for one record of the log."""

    queue_offset: int  # of its message; of the first one, if it is a batch
    messages: int  # how many are in it
    physical_offset: int  # physical_offset, size: of the record, in bytes
    size: int
    tags_code: int  # as stored


class QueueView:
    """A queue as a broker has it once it has loaded these files.

    Args:
        topic, queue_id: which queue; it may have no files.
        log_start: physical offset where the log begins.
        model: what :func:`recovered` says of it; None where nobody has asked.

    Raises:
        StoreError: a file can't be read, or no broker could load it.

    Attributes:
        min_offset: queue offset of the first unit whose message is still in the log.
        max_offset: queue offset of the next message.
        min_logic: byte offset of the first unit that counts.
        files: the files in order, each with the number of its valid bytes.
        file_size: bytes of a file.
    """

    unit_length = UNIT_LENGTH
    holds_batches = False

    def __init__(
        self,
        settings: StoreSettings,
        topic: str,
        queue_id: int,
        log_start: int,
        model: QueueModel | None = None,
    ) -> None:
        self.file_size = settings.consume_queue_file_size
        self._of = settings, topic, queue_id
        if model is None:
            model = self._recovered(log_start)
        self.files = tuple(model.files)
        self.min_logic = model.min_logic
        self.min_offset = model.min_offset
        self.max_offset = model.max_offset

    def _recovered(self, log_start: int) -> QueueModel:
        settings, rules = self._of[0], self._of[0].dialect.recovery
        place = names.queue_place(os.fspath(settings.root), self._of[1], self._of[2])
        listing = listed([place], self.file_size, rules, "mappedFileSizeConsumeQueue")
        check_listing(listing)
        try:
            return recovered(settings, listing, log_start)
        except OSError as error:
            raise unreadable(WHAT, self._directory, error) from error

    @property
    def _directory(self) -> Path:
        settings, topic, queue_id = self._of
        return names.queue_directory(settings.root, topic, queue_id)

    @cached_property
    def tags_code(self) -> Callable[[int], int | None]:
        """See :meth:`QueueExt.tags_code`."""
        return QueueExt(*self._of).tags_code

    @property
    def exists(self) -> bool:
        """Whether the queue has a file."""
        return bool(self.files)

    def roll_next_file(self, queue_offset: int) -> int:
        """Queue offset of the first unit of the file after the one that spans ``queue_offset``."""
        units = self.file_size // UNIT_LENGTH
        return queue_offset + units - queue_offset % units

    def file_at(self, queue_offset: int) -> QueueFile | None:
        """The file with the unit at a queue offset; None before the first, after the last, or in a gap."""
        at = queue_offset * UNIT_LENGTH
        if at < self.min_logic:
            return None
        return next((file for file in self.files if file.base <= at < file.base + file.wrote), None)

    def units(self, file: QueueFile, position: int, count: int) -> NDArray[np.void]:
        """Units of a file.

        Args:
            file: one of :attr:`files`.
            position: byte position of the first in the file.
            count: how many; only valid ones are returned.

        Returns:
            UNIT_DTYPE[rows], rows <= count.
        """
        head = self._in_head(file, position, count)
        if head is not None:
            return np.frombuffer(head, UNIT_DTYPE)
        count = min(count, (file.wrote - position) // UNIT_LENGTH)
        if count <= 0 or file.place is None:
            return np.empty(0, UNIT_DTYPE)
        try:
            return records_of(file.place, UNIT_DTYPE, count, position)
        except OSError as error:
            raise unreadable(WHAT, self._directory, error) from error

    @staticmethod
    def _in_head(file: QueueFile, position: int, count: int) -> bytes | None:
        """The bytes of :meth:`units`, where all of them are known; else None."""
        stop = position + min(count, (file.wrote - position) // UNIT_LENGTH) * UNIT_LENGTH
        if file.head is None or not position < stop <= len(file.head):
            return None
        return file.head[position:stop]

    def unit(self, file: QueueFile, position: int) -> tuple[int, int, int]:
        """Physical offset, size and tagsCode of the unit at a byte position of a file, which counts it.

        Raises:
            StoreError: the file can't be read, or has become shorter.
        """
        found = self.units(file, position, 1)
        if not len(found):
            raise unreadable(WHAT, self._directory, FileNotFoundError("it was cut meanwhile"))
        offset, size, tags = found[0].tolist()
        return offset, size, tags

    def units_from(self, queue_offset: int, span: int) -> list[Unit] | None:
        """Units of one file, from the one at a queue offset on.

        Args:
            span: how many at most.

        Returns:
            None where :meth:`file_at` finds no file.
        """
        file = self.file_at(queue_offset)
        if file is None:
            return None
        at = queue_offset * UNIT_LENGTH - file.base
        head = self._in_head(file, at, span)  # numpy would take longer than the reading
        units = self.units(file, at, span).tolist() if head is None else UNIT.iter_unpack(head)
        return [Unit(queue_offset + number, 1, *fields) for number, fields in enumerate(units)]


def recovered(settings: StoreSettings, listing: Listing, log_start: int) -> QueueModel:
    """A queue as a broker has it once it has loaded its files.

    Args:
        log_start: physical offset where the log begins.

    Raises:
        OSError: a file can't be read.
    """
    model = QueueModel(listing.files, settings.consume_queue_file_size)
    model.recover()
    model.correct_min(log_start, searches=settings.dialect.recovery.searches_min_offset)
    return model


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
        self._directory = names.queue_ext_directory(settings.root, topic, queue_id)

    def tags_code(self, stored: int) -> int | None:
        """The tagsCode of a unit that stores this; None where it is an address without a unit.

        Raises:
            StoreError: a file can't be read, or no broker could load it.
        """
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
            raise StoreError("the queue's tags can't be read", path=path, found=error.strerror) from error
        if len(data) < _TAGS_END:
            return None
        size, code, _, _ = HEAD.unpack(data.ljust(HEAD_LENGTH, b"\0"))
        return code if size > 0 else None

    @cached_property
    def _files(self) -> tuple[StoreFile, ...]:
        rules = self._settings.dialect.recovery
        listing = listed([self._directory], self._size, rules, "mappedFileSizeConsumeQueueExt")
        check_listing(listing, "the queue's tags")
        return listing.files


def check_listing(listing: Listing, what: str = WHAT) -> None:
    """Refuse a queue's files that no broker could load, or not all of them.

    Raises:
        StoreError: the first problem.
    """
    for problem in listing.problems:
        if problem.unloads:
            raise problem.error(StoreError, f"{what} can't be read")
