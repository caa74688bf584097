"""Units on their way from tasks that scan to those that write sorted files of a database.

A scan task puts the units of its part, sorted by queue as a database sorts them, into a file of its own: a
run. Who writes a range of queues takes from each run what lies in the range, so that no task holds more than
its share, however long the log is. Runs stay until the database is made.

A run holds, in native byte order: ``int64[4]`` (mark, queues, bytes of prefixes, CRC-32 of what follows up to
the units), for each queue ``int64[6]`` (see :class:`RunQueues`), the prefixes, and the units as :data:`ROW`.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.errors import OutputError
from reput.format.rocksdbqueue import prefix
from reput.newer_python import Self
from reput.replay.runs import Keys, write_run
from reput.scan import output
from reput.scan.fields import store_timestamps
from reput.scan.table import QueueTable
from reput.store import files

#: One unit: queueOffset, physicalOffset, tagsCode, storeTimestamp (ms), size in bytes.
ROW = np.dtype(
    [
        ("offset", np.int64),
        ("position", np.int64),
        ("tags", np.int64),
        ("timestamp", np.int64),
        ("size", np.int32),
    ]
)
Rows = NDArray[np.void]

_MARK = 0x72756E31
_HEAD = 4 * 8
_FACTS = 6
#: Units that are collected for one run: 40 bytes each.
_MOST_UNITS = 1 << 21


@dataclass(frozen=True, slots=True)
class RunQueues:
    """The queues of a run."""

    prefixes: Keys  # what their keys begin with, ascending
    first: NDArray[np.int64]  # first, stop: int64[queues], which of the run's units are theirs
    stop: NDArray[np.int64]
    #: first_offset, last_offset: int64[queues], queueOffset of their first and last unit, in log order
    first_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    is_regular: NDArray[np.bool_]  # bool[queues], whether all are consecutive


class RunWriter:
    """Collects the units of one part and writes its runs.

    Args:
        directory: where; it is there.
        name: what the files' names begin with, unique among all that ever wrote there.
        base: physical offset of the segment's first byte.

    Attributes:
        paths: the runs that were written, in log order; on disk.
    """

    def __init__(self, directory: Path, name: str, base: int) -> None:
        self._directory = directory
        self._name = name
        self._base = base
        self._queues: list[NDArray[np.int32]] = []
        self._rows: list[Rows] = []
        self._count = 0
        self.paths: list[str] = []

    def add(self, table: QueueTable, chunk: output.OutputArrays, data: NDArray[np.uint8]) -> None:
        """Take a chunk, which is used before this returns; ``data`` is the segment."""
        used = int(chunk.counts[output.UNITS])
        if not used:
            return
        rows = np.empty(used, ROW)
        rows["offset"], rows["position"] = chunk.unit_offset[:used], chunk.unit_position[:used]
        rows["size"], rows["tags"] = chunk.unit_size[:used], chunk.unit_tags[:used]
        rows["timestamp"] = store_timestamps(data, chunk.unit_position[:used] - self._base)
        self._queues.append(chunk.unit_queue[:used].copy())
        self._rows.append(rows)
        self._count += used
        if self._count >= _MOST_UNITS:
            self.finish(table)

    def finish(self, table: QueueTable) -> None:
        """Write what is collected."""
        if not self._count:
            return
        queue = np.concatenate(self._queues)
        rows = np.concatenate(self._rows)
        self._queues, self._rows, self._count = [], [], 0
        numbers = np.unique(queue)
        prefixes = [
            prefix(table.topic_names[int(table.queues.topic[number])], int(table.queues.queue_id[number]))
            for number in numbers.tolist()
        ]
        order = sorted(range(len(prefixes)), key=prefixes.__getitem__)
        rank = np.empty(int(numbers[-1]) + 1, np.int64)
        rank[numbers[order]] = np.arange(len(order))
        ranks = rank[queue]
        by_queue = np.argsort(ranks, kind="stable")
        rows, counts = rows[by_queue], np.bincount(ranks, minlength=len(order))
        self._write([prefixes[at] for at in order], np.cumsum(counts), rows)

    def _write(self, prefixes: list[bytes], stop: NDArray[np.int64], rows: Rows) -> None:
        first = np.concatenate([[0], stop[:-1]])
        jumps = np.diff(rows["offset"], prepend=rows["offset"][0] - 1) != 1
        jumps[first] = False
        facts = np.empty((len(prefixes), _FACTS), np.int64)
        facts[:, 0], facts[:, 1] = first, stop
        facts[:, 2], facts[:, 3] = rows["offset"][first], rows["offset"][stop - 1]
        facts[:, 4] = np.add.reduceat(jumps, first)
        facts[:, 5] = np.cumsum([len(each) for each in prefixes])
        text = b"".join(prefixes)
        crc = zlib.crc32(text, zlib.crc32(facts.tobytes()))
        head = np.array([_MARK, len(prefixes), len(text), crc], np.int64)
        path = self._directory / f"{self._name}-{len(self.paths)}.units"
        write_run(path, (head.tobytes(), facts.tobytes(), text, rows.tobytes()))
        self.paths.append(str(path))


class RunReader:
    """Reads one run. A context manager.

    Raises:
        OutputError: it isn't what was written.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._fd = -1

    def __enter__(self) -> Self:
        with files.reporting("units can't be read back", self._path):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(self, *of: object) -> None:
        os.close(self._fd)

    def queues(self) -> RunQueues:
        """The run's queues.

        Raises:
            OutputError: the file isn't what was written.
        """
        mark, queues, text_length, crc = self._array(0, 4)
        if mark != _MARK:
            raise self._torn(0, f"a run, which begins with {_MARK:x}", f"{mark:x}")
        facts = self._array(_HEAD, queues * _FACTS).reshape(queues, _FACTS)
        text = self._read(_HEAD + facts.nbytes, text_length)
        found = zlib.crc32(text, zlib.crc32(facts.tobytes()))
        if found != crc:
            raise self._torn(_HEAD, f"CRC-32 {crc:08x}", f"{found:08x}")
        self._rows_at = _HEAD + facts.nbytes + text_length
        first, stop, first_offset, last_offset = facts[:, :4].T
        keys = Keys(text, 0, facts[:, 5])
        return RunQueues(keys, first, stop, first_offset, last_offset, facts[:, 4] == 0)

    def rows(self, first: int, stop: int) -> Rows:
        """Units [first, stop) of the run, of :data:`ROW`; after :meth:`queues`.

        Raises:
            OutputError: the file isn't what was written.
        """
        length = (stop - first) * ROW.itemsize
        return np.frombuffer(self._read(self._rows_at + first * ROW.itemsize, length), ROW)

    def _array(self, at: int, count: int) -> Any:
        return np.frombuffer(self._read(at, count * 8), np.int64)

    def _read(self, at: int, length: int) -> bytes:
        pieces: list[bytes] = []
        with files.reporting("units can't be read back", self._path, at):
            while length > 0 and (piece := os.pread(self._fd, min(length, 1 << 30), at)):
                pieces.append(piece)
                at, length = at + len(piece), length - len(piece)
        if length:
            raise self._torn(at, f"{length} more bytes", "the file's end")
        return b"".join(pieces)

    def _torn(self, at: int, expected: str, found: str) -> OutputError:
        return OutputError(
            "units that a task has written can't be read back",
            path=self._path,
            offset=at,
            expected=expected,
            found=found,
            next_step="Check the disk, remove the output and run the same command again",
        )
