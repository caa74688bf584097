"""Reading places of consume queues. Nothing is mapped, for a broker may cut a file meanwhile."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Self

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH

_MOST_OPEN = 256


class QueueReader:
    """Reads the units at any places of a store's queues. A context manager.

    Args:
        root: the store.
        file_size: ``mappedFileSizeConsumeQueue`` as the broker rounds it, bytes.
    """

    def __init__(self, root: Path, file_size: int) -> None:
        self._root = root
        self._file_size = file_size
        self._open: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            _close(self._open.popitem()[1])

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
            fd = self._descriptor(topic, queue_id, base)
            data = os.pread(fd, length, at - base) if fd >= 0 else b""
            pieces.append(data.ljust(length, b"\0"))
            at += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _descriptor(self, topic: str, queue_id: int, base: int) -> int:
        """-1 where there is no such file."""
        key = (topic, queue_id, base)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        path = names.queue_file(self._root, topic, queue_id, base)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            fd = -1
        self._open[key] = fd
        if len(self._open) > _MOST_OPEN:
            _close(self._open.popitem(last=False)[1])
        return fd


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
