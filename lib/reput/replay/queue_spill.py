"""Packed units on their way from tasks that scan to the one task that writes a queue file.

Tasks on several hosts have no page cache in common: what two of them write into one page of a queue file may
get lost. So a scan task writes the units of its part, as they are in a queue file, into a file of its own,
and a queue file is put together from such files by one task (:mod:`reput.output.queues.whole_files`).
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Self

from reput.errors import OutputError
from reput.format.consumequeue import UNIT_LENGTH
from reput.store import files

if TYPE_CHECKING:
    from reput.replay.unit_spill import Queue


class UnitRun(NamedTuple):
    """Units of one queue with consecutive queueOffsets.

    Attributes:
        path: the file that holds them.
        at: byte offset of the first one there.
        queue_offset: of the first one.
        units: how many.
        crc: CRC-32 of their bytes.
    """

    path: str
    at: int
    queue_offset: int
    units: int
    crc: int

    @property
    def next(self) -> int:
        """The queueOffset after the last one."""
        return self.queue_offset + self.units


QueueSpill = dict["Queue", list[UnitRun]]


class QueueSpillWriter:
    """Takes the place of :class:`reput.output.queues.queue_files.QueueFiles` in a scan task.

    Args:
        path: the file, below a directory that is there; made when there is a unit.

    Attributes:
        runs: what was put, by queue, in log order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._at = 0
        self.runs: QueueSpill = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        if self._fd is not None:
            files.system.close(self._fd)
            self._fd = None

    def put(self, topic: str, queue_id: int, queue_offset: int, data: memoryview | bytes) -> None:
        """Append consecutive units.

        Raises:
            OutputError: no space, no permission, or the run is over and its directory gone.
        """
        if self._fd is None:
            self._fd = files.create_file(self._path, None)
        view = memoryview(data).cast("B")
        files.pwrite_all(self._fd, view, self._at)
        run = UnitRun(str(self._path), self._at, queue_offset, len(view) // UNIT_LENGTH, zlib.crc32(view))
        self.runs.setdefault((topic, queue_id), []).append(run)
        self._at += len(view)

    def flush(self) -> None:
        """Return when all of it is on disk, where other hosts find it.

        Raises:
            OutputError: some of it may be lost.
        """
        if self._fd is not None:
            files.fsync_file(self._fd)


class QueueSpillReader:
    """Reads runs; each file is opened once. A context manager, for several threads."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, run: UnitRun) -> bytes:
        """The bytes of a run.

        Raises:
            OutputError: they aren't what was written.
        """
        with self._lock:
            descriptor = self._open.get(run.path)
            if descriptor is None:
                with files.reporting("units can't be read back", Path(run.path)):
                    descriptor = os.open(run.path, os.O_RDONLY | os.O_CLOEXEC)
                self._open[run.path] = descriptor
        with files.reporting("units can't be read back", Path(run.path), run.at):
            data = os.pread(descriptor, run.units * UNIT_LENGTH, run.at)
        if zlib.crc32(data) != run.crc:
            raise OutputError(
                "units that another task has written can't be read back",
                path=run.path,
                offset=run.at,
                expected=f"{run.units * UNIT_LENGTH} bytes with CRC-32 {run.crc:08x}",
                found=f"{len(data)} bytes with CRC-32 {zlib.crc32(data):08x}",
                next_step="Check the file system that the hosts share, then run the same command again",
            )
        return data
