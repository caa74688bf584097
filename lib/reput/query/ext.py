"""What a unit's tagsCode stands for where ``enableConsumeQueueExt`` makes it an address.

Source: ``ConsumeQueueExt.get``, ``CqExtUnit.read``, ``MappedFileQueue.findMappedFileByOffset``
(rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from reput.broker.files import StoreFile, listed
from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import names
from reput.format.consumequeueext import HEAD, HEAD_LENGTH, place_of

#: Bytes of a record up to storeTimestamp, the first that isn't needed.
_TAGS_END = 10


class QueueExt:
    """The units of one queue in consumequeue_ext; the files are looked at when first asked for.

    Args:
        settings: the store's.
        topic, queue_id: which queue.
    """

    def __init__(self, settings: StoreSettings, topic: str, queue_id: int) -> None:
        self._settings = settings
        self._size = settings.recovery.queue_ext_file_size
        self._directory = names.queue_ext_directory(settings.root, topic, queue_id)

    def tags_code(self, stored: int) -> int | None:
        """The tagsCode of a unit that stores this; None where it is an address that leads to nothing.

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
            descriptor = os.open(path, os.O_RDONLY)
            try:
                data = os.pread(descriptor, HEAD_LENGTH, position)
            finally:
                os.close(descriptor)
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
        for problem in listing.problems:
            if problem.stops:
                raise problem.error(StoreError, "the queue's tags can't be read")
        return listing.files
