"""Packed units on their way from tasks that scan to those that write queue files.

A scan task with more queues than files can be open writes the units of its part, as they are in queue files
and queue by queue, into a file of its own, and each queue file is then written at once
(:mod:`reput.output.whole_queues`). On several hosts a scan task always does so: they have no page cache
in common, and what two of them write into one page of a queue file may get lost.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.build.units import PackedUnits
from reput.caches import CACHED
from reput.errors import OutputError
from reput.format.consumequeue import UNIT_LENGTH
from reput.newer_python import Self
from reput.scan.crc32 import crc32
from reput.store import files
from reput.store.system import output_error


@dataclass(frozen=True, slots=True)
class QueueRuns:
    """Where the units of a part are: a run has those of one queue, with consecutive queueOffsets.

    Attributes:
        path: the file that holds them.
        queue: int64[runs], number of the queue in the part's table.
        queue_offset: int64[runs], of a run's first unit.
        units: int64[runs], how many.
        at: int64[runs], byte offset of the first one in the file.
        crc: uint32[runs], CRC-32 of a run's bytes.
    """

    path: str
    queue: NDArray[np.int64]
    queue_offset: NDArray[np.int64]
    units: NDArray[np.int64]
    at: NDArray[np.int64]
    crc: NDArray[np.uint32]


class QueueSpillWriter:
    """Writes the units of one part. A context manager.

    Args:
        path: the file, below a directory that is there; made when there is a unit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._at = 0
        self._runs: list[tuple[NDArray[Any], ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        if self._fd is not None:
            files.system.close(self._fd)
            self._fd = None

    def put(self, packed: PackedUnits, queues: NDArray[np.int64]) -> None:
        """Append the units of some queues.

        Args:
            packed: those of all; the queueOffsets of these are consecutive.
            queues: int64[runs], their numbers.

        Raises:
            OutputError: no space, no permission, or the run is over and its directory gone.
        """
        if not len(queues):
            return
        if self._fd is None:
            self._fd = files.create_file(self._path, None)
        starts, stops = packed.starts[queues], packed.starts[queues + 1]
        # What isn't wanted lies between, and is seldom: it is written, too, and not read.
        first, last = int(starts[0]) * UNIT_LENGTH, int(stops[-1]) * UNIT_LENGTH
        data = packed.data.data[first:last]
        files.pwrite_all(self._fd, data, self._at)
        crc = crc32_of_each(packed.data, starts * UNIT_LENGTH, stops * UNIT_LENGTH)
        at = starts * UNIT_LENGTH - first + self._at
        self._runs.append((queues, packed.first[queues], stops - starts, at, crc))
        self._at += len(data)

    @property
    def runs(self) -> QueueRuns | None:
        """What was put, in log order; None if that is nothing."""
        if not self._runs:
            return None
        return QueueRuns(str(self._path), *map(np.concatenate, zip(*self._runs, strict=True)))

    def flush(self) -> None:
        """Return when all of it is on disk, where other hosts find it.

        Raises:
            OutputError: some of it may be lost.
        """
        if self._fd is not None:
            files.fsync_file(self._fd)


@njit(cache=CACHED, nogil=True)
def crc32_of_each(data, starts, stops):  # type: ignore[no-untyped-def]
    """uint32[runs]: the CRC-32 of each of some byte ranges, half open."""
    found = np.empty(len(starts), np.uint32)
    for row in range(len(starts)):
        found[row] = crc32(data, starts[row], stops[row])
    return found


class OpenedOnce:
    """Scratch files, each opened once. A context manager, for several threads."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def pread(self, path: str, at: int, length: int) -> bytes:
        """What a file has there, which may be less."""
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._opened(path)
        try:
            return os.pread(descriptor, length, at)
        except OSError as error:
            raise output_error("units can't be read back", Path(path), error, at) from error

    def _opened(self, path: str) -> int:
        with self._lock:
            descriptor = self._open.get(path)
            if descriptor is None:
                with files.reporting("units can't be read back", Path(path)):
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._open[path] = descriptor
            return descriptor


class QueueSpillReader(OpenedOnce):
    """Reads runs."""

    def read(self, path: str, at: int, length: int, crc: int) -> bytes:
        """The bytes of a run.

        Raises:
            OutputError: they aren't what was written.
        """
        data = self.pread(path, at, length)
        if zlib.crc32(data) != crc:
            raise OutputError(
                "units that another task has written can't be read back",
                path=path,
                offset=at,
                expected=f"{length} bytes with CRC-32 {crc:08x}",
                found=f"{len(data)} bytes with CRC-32 {zlib.crc32(data):08x}",
                next_step="Check the file system that the hosts share, then run the same command again",
            )
        return data
