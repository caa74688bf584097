"""Reading places of queues' files. Nothing is mapped, for a broker may cut a file meanwhile."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.newer_python import Self
from reput.remote.left_out import have, may_lack
from reput.store.reading import open_file

_MOST_OPEN = 256


class SeriesReader:
    """Keeps files of a store's queues open. A context manager.

    Args:
        file_size: bytes of a file.
        directory: of a queue below the root: a function of :mod:`reput.format.names`.
        most_open: bound of open descriptors.

    Attributes:
        opened: how many files were opened.
    """

    def __init__(
        self, root: Path, file_size: int, directory: Callable[[Path, str, int], Path], most_open: int
    ) -> None:
        self._root = root
        self._file_size = file_size
        self._directory = directory
        self._most_open = most_open
        self._may_lack = may_lack(root)
        self._open: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self.opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            _close(self._open.popitem()[1])

    def path(self, topic: str, queue_id: int, base: int) -> str:
        """Of the file whose first byte is ``base``."""
        return f"{self._directory(self._root, topic, queue_id)}/{names.offset_name(base)}"

    def descriptor(self, topic: str, queue_id: int, base: int) -> int:
        """A file's descriptor, -1 where there is no such file; closed when more are open than may be."""
        key = (topic, queue_id, base)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        try:
            path = self.path(topic, queue_id, base)
            fd = open_file(path)
            self.opened += 1
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            fd = -1
        self._open[key] = fd
        if len(self._open) > self._most_open:
            _close(self._open.popitem(last=False)[1])
        return fd


class QueueReader(SeriesReader):
    """Reads the units at any places of a store's queues.

    Args:
        file_size: ``mappedFileSizeConsumeQueue`` as the broker rounds it, bytes.
    """

    def __init__(self, root: Path, file_size: int) -> None:
        super().__init__(root, file_size, names.queue_directory, _MOST_OPEN)

    def read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """The 20 bytes each of ``count`` places from ``first`` on; zeros where no file has them.

        Raises:
            OSError: a file can't be read.
        """
        at, stop = first * UNIT_LENGTH, (first + count) * UNIT_LENGTH
        pieces = []
        while at < stop:
            base = at - at % self._file_size
            length = min(stop, base + self._file_size) - at
            fd = self.descriptor(topic, queue_id, base)
            if fd >= 0 and self._may_lack:
                have(self.path(topic, queue_id, base), at - base, at - base + length)
            data = os.pread(fd, length, at - base) if fd >= 0 else b""
            pieces.append(data.ljust(length, b"\0"))
            at += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
