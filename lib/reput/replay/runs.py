"""What runs of units and of index keys have in common: sorted keys in a file that one task wrote.

A scan task puts the units of its part, sorted by queue as a database sorts them, into a file of its own: a
run. Who writes a range of queues takes from each run what lies in the range, so that no task holds more than
its share, however long the log is. Runs stay until the database is made.

A run of units holds, in native byte order: ``int64[4]`` (mark, queues, bytes of prefixes, CRC-32 of what
follows up to the units), for each queue ``int64[6]`` (see :class:`RunQueues`), the prefixes, and the units as
:data:`ROW`. One of index keys, which have any length: ``int64[5]`` (mark, keys, bytes of text, greatest
storeTimestamp in ms, greatest physicalOffset), ``int64[keys]`` where each key ends, ``int64[keys]`` their
storeTimestamps, and the keys, ascending.
"""

from __future__ import annotations

import mmap
import os
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from reput.build.rocksdb import IndexKeys, pack_keys
from reput.format.rocksdbindex import VALUE_LENGTH
from reput.format.rocksdbqueue import prefix
from reput.newer_python import Self
from reput.replay.spills import not_as_written
from reput.scan import output
from reput.scan.fields import store_timestamps
from reput.scan.table import QueueTable
from reput.store import files


class Keys(Sequence[bytes]):
    """Keys, ascending, of which each is made when it is asked for: of a million, a task needs its share.

    ``text`` has them one after the other, from ``begin`` on, and ``ends``, int64[keys], count from there.
    """

    def __init__(self, text: bytes | mmap.mmap, begin: int, ends: NDArray[np.int64]) -> None:
        self._text = text
        self._begin = begin
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...

    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        if isinstance(number, slice):
            begin, stop, step = number.indices(len(self))
            if step != 1 or begin >= stop:
                return [self[at] for at in range(begin, stop, step)]
            first = self._at(begin)
            ends = (self._ends[begin:stop] + (self._begin - first)).tolist()
            text = self._text[first : first + ends[-1]]
            return [text[low:high] for low, high in pairwise([0, *ends])]
        if not 0 <= number < len(self):
            raise IndexError(number)  # which is how going over all of them ends
        return self._text[self._at(number) : self._at(number + 1)]

    def _at(self, number: int) -> int:
        return self._begin + (int(self._ends[number - 1]) if number else 0)


def write_run(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a new file; on disk when this returns."""
    fd = files.create_file(path, None)
    try:
        at = 0
        for block in blocks:
            files.pwrite_all(fd, block, at)
            at += len(block)
        files.fsync_file(fd)
    finally:
        os.close(fd)


_KEY_MARK = 0x6B657931
_KEY_HEAD = 5 * 8
#: Bytes of keys that are collected for one run.
_MOST_BYTES = 64 << 20
#: Of so many keys one is looked at to cut all keys into shares.
SAMPLED = 512


class KeyRunWriter:
    """Collects the index keys of one part and writes its runs, whose ``paths`` are on disk.

    ``name``, which the files' names begin with, is unique among all that ever wrote to the directory.
    """

    def __init__(self, directory: Path, name: str, base: int) -> None:
        self._directory = directory
        self._name = name
        self._base = base
        self._found: list[IndexKeys] = []
        self._bytes = 0
        self.paths: list[str] = []

    def add(self, chunk: output.OutputArrays, data: NDArray[np.uint8]) -> None:
        """Take a chunk, which is used before this returns; ``data`` is the segment."""
        rows = int(chunk.counts[output.ROWS])
        found = pack_keys(data, chunk.row_position[:rows] - self._base, self._base)
        if len(found.ends):
            self._found.append(found)
            self._bytes += len(found.text)
        if self._bytes >= _MOST_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write what is collected."""
        if not self._found:
            return
        keys = [key for found in self._found for key in found.texts()]
        timestamp = np.concatenate([found.timestamp for found in self._found])
        self._found, self._bytes = [], 0
        order = sorted(range(len(keys)), key=keys.__getitem__)
        ends = np.cumsum([len(keys[at]) for at in order], dtype=np.int64)
        last = max(int.from_bytes(key[-8:], "big") for key in keys)
        head = np.array([_KEY_MARK, len(keys), int(ends[-1]), int(timestamp.max()), last], np.int64)
        path = self._directory / f"{self._name}-{len(self.paths)}.index"
        text = b"".join([keys[number] for number in order])
        write_run(path, (head.tobytes(), ends.tobytes(), timestamp[order].tobytes(), text))
        self.paths.append(str(path))


class KeyRun:
    """Reads one run. A context manager; OutputError where it isn't what was written.

    ``last_timestamp`` and ``last_position`` are the greatest of its messages.
    """

    def __init__(self, path: str) -> None:
        place = Path(path)
        with files.reporting("index keys can't be read back", place), place.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        head = (
            np.frombuffer(self._map[:_KEY_HEAD], np.int64).tolist()
            if len(self._map) >= _KEY_HEAD
            else [0] * 5
        )
        mark, keys, size, last_timestamp, last_position = head
        self.last_timestamp: int = last_timestamp
        self.last_position: int = last_position
        text_at = _KEY_HEAD + 16 * keys
        if mark != _KEY_MARK or len(self._map) != text_at + size:
            expected = f"a run of {keys} keys, {text_at + size} bytes"
            found = f"{len(self._map)} bytes, which begin with {mark:x}"
            raise not_as_written("index keys", place, 0, expected, found, stays=True)
        self._keys = Keys(
            self._map, text_at, np.frombuffer(self._map[_KEY_HEAD : _KEY_HEAD + 8 * keys], np.int64)
        )
        self._timestamps = np.frombuffer(self._map[_KEY_HEAD + 8 * keys : text_at], np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self._map.close()

    def samples(self) -> list[bytes]:
        """Each :data:`SAMPLED`-th key, the first among them."""
        return self._keys[::SAMPLED]

    def entries(self, first: bytes, stop: bytes | None) -> dict[bytes, bytes]:
        """The keys from ``first`` on and before ``stop``, with their values."""
        begin = bisect_left(self._keys, first)
        end = len(self._keys) if stop is None else bisect_left(self._keys, stop)
        if begin >= end:
            return {}
        values = self._timestamps[begin:end].astype(">i8").tobytes()
        return dict(
            zip(
                self._keys[begin:end],
                (values[low : low + VALUE_LENGTH] for low in range(0, len(values), VALUE_LENGTH)),
                strict=True,
            )
        )


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

_UNIT_MARK = 0x72756E31
_UNIT_HEAD = 4 * 8
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
    """Collects the units of one part and writes its runs, whose ``paths`` are on disk, in log order.

    ``name``, which the files' names begin with, is unique among all that ever wrote to the directory.
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
        head = np.array([_UNIT_MARK, len(prefixes), len(text), crc], np.int64)
        path = self._directory / f"{self._name}-{len(self.paths)}.units"
        write_run(path, (head.tobytes(), facts.tobytes(), text, rows.tobytes()))
        self.paths.append(str(path))


class RunReader:
    """Reads one run. A context manager; OutputError where it isn't what was written."""

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
        """The run's queues."""
        mark, queues, text_length, crc = self._array(0, 4)
        if mark != _UNIT_MARK:
            raise not_as_written(
                "units", self._path, 0, f"a run, which begins with {_UNIT_MARK:x}", f"{mark:x}", stays=True
            )
        facts = self._array(_UNIT_HEAD, queues * _FACTS).reshape(queues, _FACTS)
        text = self._read(_UNIT_HEAD + facts.nbytes, text_length)
        found = zlib.crc32(text, zlib.crc32(facts.tobytes()))
        if found != crc:
            raise not_as_written(
                "units", self._path, _UNIT_HEAD, f"CRC-32 {crc:08x}", f"{found:08x}", stays=True
            )
        self._rows_at = _UNIT_HEAD + facts.nbytes + text_length
        first, stop, first_offset, last_offset = facts[:, :4].T
        keys = Keys(text, 0, facts[:, 5])
        return RunQueues(keys, first, stop, first_offset, last_offset, facts[:, 4] == 0)

    def rows(self, first: int, stop: int) -> Rows:
        """Units [first, stop) of the run, of :data:`ROW`; after :meth:`queues`."""
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
            raise not_as_written(
                "units", self._path, at, f"{length} more bytes", "the file's end", stays=True
            )
        return b"".join(pieces)
