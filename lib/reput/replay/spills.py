"""Units and index keys on their way from tasks that scan to what writes queues and index files.

A unit's place in an ordinary queue follows from its queueOffset. In a batch queue and in consumequeue_ext it
depends on what was appended before, which a task that scans one part of the log doesn't know. Such units wait
here until the parts before are known: in a scratch file, as index keys do, or in memory if one process does
it all.

A scan task with more queues than files can be open writes the units of its part, as they are in queue files
and queue by queue, into a file of its own, and each queue file is then written at once
(:mod:`reput.output.whole_queues`). On several hosts a scan task always does so: they have no page cache
in common, and what two of them write into one page of a queue file may get lost.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.build.index import KeyRows
from reput.build.units import PackedUnits
from reput.caches import CACHED
from reput.errors import OutputError
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.names import Queue
from reput.newer_python import Self
from reput.scan import output
from reput.scan.crc32 import crc32
from reput.scan.output import OutputArrays
from reput.store import files
from reput.store.system import output_error

# Index keys: a spill is scratch, written and read by processes of one run, deleted after the batch. If one
# process does both, it stays in memory and there is no file; if they are on several hosts, it is flushed, and
# each chunk has a checksum, since who builds an index file may stop anywhere. A file holds chunks of
# ``int64[3] (rows, keys, CRC-32)``, positions, timestamps, key counts and key hashes in native byte order;
# the CRC-32 is of all else.

#: In a chunk's place for one, where it has none.
_NO_CRC = -1
#: Bytes of a row, and of a key.
_ROW, _KEY = 8 + 8 + 4, 4


@dataclass(frozen=True, slots=True)
class Spill:
    """A part's index keys."""

    path: str  # the scratch file; empty when the keys are in memory
    keys: int  # how many keys it holds, at least 1
    rows: tuple[KeyRows, ...] = ()  # the keys in memory
    for_others: bool = False  # its chunks have a CRC-32

    def chunks(self) -> Iterable[KeyRows]:
        """The keys in log order, some rows at a time.

        Raises OutputError where the file isn't what was written, before anything of a chunk that isn't.
        """
        return self.rows if self.rows else _read(self)


class SpillWriter:
    """Writes one part's spill; the file is only made when there is a key.

    Without ``path``, keys stay in memory. ``for_others``: it is read on other hosts.
    """

    def __init__(self, path: Path | None, *, for_others: bool = False) -> None:
        self._path = path
        self._for_others = for_others
        self._rows: list[KeyRows] = []
        self._file: BinaryIO | None = None
        self._keys = 0

    def add(self, out: OutputArrays) -> None:
        """Append a scan's index rows and keys."""
        rows, keys = int(out.counts[output.ROWS]), int(out.counts[output.KEYS])
        if not rows:
            return
        self._keys += keys
        if self._path is None:
            self._rows.append(
                KeyRows(
                    out.row_position[:rows].copy(),
                    out.row_timestamp[:rows].copy(),
                    out.row_keys[:rows].copy(),
                    out.key_hash[:keys].copy(),
                )
            )
            return
        if self._file is None:
            self._file = self._path.open("wb")
        of_rows = (column[:rows] for column in (out.row_position, out.row_timestamp, out.row_keys))
        columns = [*of_rows, out.key_hash[:keys]]
        crc = _crc(rows, keys, columns) if self._for_others else _NO_CRC
        for column in (np.array([rows, keys, crc], np.int64), *columns):
            self._file.write(column.data)

    def close(self) -> Spill | None:
        """End the spill; None if it holds nothing."""
        if self._rows:
            return Spill("", self._keys, tuple(self._rows))
        if self._file is None:
            return None
        if self._for_others:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        return Spill(str(self._path), self._keys, for_others=self._for_others)


def _read(spill: Spill) -> Iterator[KeyRows]:
    """A spill's chunks in log order; see :meth:`Spill.chunks`."""
    left = spill.keys
    path = Path(spill.path)
    with files.reporting("index keys can't be read back", path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while left:
            at = file.tell()
            rows, keys, crc = [*np.fromfile(file, np.int64, 3).tolist(), 0, 0, 0][:3]
            if rows < 1 or not 0 <= keys <= left or rows * _ROW + keys * _KEY > size - at:
                rest = f"{size - at} bytes that don't hold them"
                raise not_as_written("index keys", path, at, f"{left} more keys", rest)
            position, timestamp = (np.fromfile(file, np.int64, rows) for _ in range(2))
            counts, hashes = np.fromfile(file, np.int32, rows), np.fromfile(file, np.int32, keys)
            if spill.for_others:
                found = _crc(rows, keys, (position, timestamp, counts, hashes))
                if crc != found:
                    expected = f"CRC-32 {crc & 0xFFFFFFFF:08x}"
                    raise not_as_written("index keys", path, at, expected, f"{found:08x}")
            left -= keys
            yield KeyRows(position, timestamp, counts, hashes)


def _crc(rows: int, keys: int, columns: Sequence[NDArray[Any]]) -> int:
    crc = zlib.crc32(np.array([rows, keys], np.int64).data)
    for column in columns:
        crc = zlib.crc32(column.data, crc)
    return crc


def not_as_written(
    what: str, path: str | Path, at: int, expected: str, found: str, *, stays: bool = False
) -> OutputError:
    """The error where a scratch file of ``what`` holds something else; ``stays``: until the output goes."""
    return OutputError(
        f"{what} that another task has written can't be read back",
        path=path,
        offset=at,
        expected=expected,
        found=found,
        next_step="Check the disk, remove the output and run the same command again"
        if stays
        else "Check the file system that the hosts share, then run the same command again",
    )


@dataclass(frozen=True, slots=True)
class QueueRuns:
    """Where the units of a part are: a run has those of one queue, with consecutive queueOffsets."""

    path: str  # the file that holds them
    queue: NDArray[np.int64]  # int64[runs], number of the queue in the part's table
    queue_offset: NDArray[np.int64]  # int64[runs], of a run's first unit
    units: NDArray[np.int64]  # int64[runs], how many
    at: NDArray[np.int64]  # int64[runs], byte offset of the first one in the file
    crc: NDArray[np.uint32]  # uint32[runs], CRC-32 of a run's bytes


class QueueSpillWriter:
    """Writes the units of one part to a file that is made when there is a unit. A context manager."""

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
        """Append the units of some queues, given by their numbers, of ``packed``, which holds those of all.

        The queueOffsets of these are consecutive. Raises OutputError also where the run is over and its
        directory gone.
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
        """Return when all of it is on disk, where other hosts find it."""
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
        """The bytes of a run."""
        data = self.pread(path, at, length)
        if zlib.crc32(data) != crc:
            raise not_as_written(
                "units",
                path,
                at,
                f"{length} bytes with CRC-32 {crc:08x}",
                f"{len(data)} bytes with CRC-32 {zlib.crc32(data):08x}",
            )
        return data


#: One unit: queueOffset, physicalOffset, tagsCode, storeTimestamp (ms), base offset and size of a batch, size
#: in bytes; whether the message was sent to this queue, so that it has a unit in consumequeue_ext, and
#: whether that one has a bit map.
ROW = np.dtype(
    [
        ("offset", np.int64),
        ("position", np.int64),
        ("tags", np.int64),
        ("timestamp", np.int64),
        ("base_offset", np.int64),
        ("size", np.int32),
        ("batch_size", np.int16),
        ("own", np.bool_),
        ("mapped", np.bool_),
    ]
)

#: With more queues in a chunk than this, units are collected, up to the second number.
_FEW_QUEUES = 1024
_MOST_COLLECTED = 1 << 20

Rows = NDArray[np.void]
BitMaps = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Units of one queue that follow one another in the log."""

    path: str  # the scratch file; empty when they are in memory
    data: bytes  # what the file would hold, when they are in memory
    rows_at: int  # rows_at, maps_at: byte offsets of the rows and of their bit maps
    maps_at: int
    count: int  # how many rows
    width: int  # bytes of each bit map
    crc: int | None = None  # CRC-32 of the rows and then the bit maps; None if no other host reads them


class SpillFiles(OpenedOnce):
    """Reads what waits."""

    def blocks(self, stretches: Sequence[Stretch]) -> list[tuple[Rows, BitMaps]]:
        """The rows of one queue, and their bit maps as uint8[rows, width]: a block for each width in turn."""
        found = []
        for width, group in groupby(stretches, lambda each: each.width):
            read = [self._checked(each) for each in group]
            rows = np.frombuffer(b"".join(data for data, _ in read), ROW)
            maps = np.frombuffer(b"".join(maps for _, maps in read), np.uint8)
            found.append((rows, maps.reshape(len(rows), width)))
        return found

    def _checked(self, stretch: Stretch) -> tuple[bytes, bytes]:
        """The rows' bytes, and those of their bit maps."""
        rows = self._read(stretch, stretch.rows_at, stretch.count * ROW.itemsize)
        maps = self._read(stretch, stretch.maps_at, stretch.count * stretch.width)
        if stretch.crc is not None and stretch.crc != (found := zlib.crc32(maps, zlib.crc32(rows))):
            expected = f"CRC-32 {stretch.crc:08x}"
            raise not_as_written("units", stretch.path, stretch.rows_at, expected, f"{found:08x}")
        return rows, maps

    def _read(self, stretch: Stretch, at: int, length: int) -> bytes:
        if not stretch.path or not length:
            return stretch.data[at : at + length]
        data = self.pread(stretch.path, at, length)
        if len(data) < length:
            raise not_as_written("units", stretch.path, at, f"{length} bytes", f"{len(data)}")
        return data


RowSpill = dict[Queue, list[Stretch]]


class RowSpillWriter:
    """Writes the units of one part that wait; the file is only made when there is one.

    With many queues a chunk has a unit or two of each. Then chunks are collected, so that a queue's units are
    together: describing each chunk's units takes longer, and more memory, than the units themselves. Without
    ``path``, units stay in memory. ``for_others``: the file is read on other hosts, and flushed before.
    """

    def __init__(self, path: Path | None, *, for_others: bool = False) -> None:
        self._path = path
        self._for_others = for_others
        self._spill: RowSpill = {}
        self._file: BinaryIO | None = None
        self._at = 0
        self._collected: list[_Chunk] = []
        self._count = 0

    def add(self, rows: Rows, queues: list[tuple[Queue, int, int]], bit_maps: dict[Queue, BitMaps]) -> None:
        """Append a chunk, whose arrays are this writer's from now on.

        Rows [first, stop) of :data:`ROW` are their queue's, in log order. Bit maps are uint8[the queue's
        rows, bytes], of queues that have any.
        """
        chunk = _Chunk(rows, queues, bit_maps)
        if len(queues) <= _FEW_QUEUES and not self._collected:
            self._write(rows, chunk.pieces())
            return
        self._collected.append(chunk)
        self._count += len(rows)
        if self._count >= _MOST_COLLECTED:
            self._flush()

    def close(self) -> RowSpill:
        """End it; what waits, by queue."""
        self._flush()
        if self._file is not None:
            if self._for_others:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
        return self._spill

    def _flush(self) -> None:
        if self._collected:
            self._write(*joined(self._collected))
        self._collected, self._count = [], 0

    def _write(self, rows: Rows, pieces: Sequence[_Piece]) -> None:
        """Write some rows; of each piece a stretch is kept."""
        blocks = [rows.tobytes(), *(piece.bit_map.tobytes() for piece in pieces if piece.bit_map is not None)]
        data, path, begin = b"", "", 0
        if self._path is None:
            data = b"".join(blocks)
        else:
            path, begin = str(self._path), self._at
            if self._file is None:
                self._file = self._path.open("wb")
            for block in blocks:
                self._file.write(block)
        maps_at = begin + len(blocks[0])
        self._at = begin + sum(map(len, blocks))
        for queue, first, stop, bit_map in pieces:
            at, width = (0, 0) if bit_map is None else (maps_at, bit_map.shape[1])
            maps_at += 0 if bit_map is None else bit_map.nbytes
            crc = None
            if path and self._for_others:
                crc = zlib.crc32(memoryview(blocks[0])[first * ROW.itemsize : stop * ROW.itemsize])
                crc = crc if bit_map is None else zlib.crc32(bit_map.tobytes(), crc)
            stretch = Stretch(path, data, begin + first * ROW.itemsize, at, stop - first, width, crc)
            self._spill.setdefault(queue, []).append(stretch)


class _Piece(NamedTuple):
    """Rows [first, stop) of a queue, and their bit maps, None without."""

    queue: Queue
    first: int
    stop: int
    bit_map: BitMaps | None


class _Chunk(NamedTuple):
    """What :meth:`RowSpillWriter.add` is given."""

    rows: Rows
    queues: list[tuple[Queue, int, int]]
    bit_maps: dict[Queue, BitMaps]

    def pieces(self) -> list[_Piece]:
        """The queues with their bit maps."""
        return [_Piece(*queue, self.bit_maps.get(queue[0])) for queue in self.queues]


def joined(chunks: Sequence[_Chunk]) -> tuple[Rows, list[_Piece]]:
    """Several chunks as one, each queue's rows together and in log order."""
    numbers: dict[Queue, int] = {}
    key, index, begin = [], [], 0
    mapped: dict[Queue, list[tuple[int, BitMaps | None]]] = {
        queue: [] for chunk in chunks for queue in chunk.bit_maps
    }
    for chunk in chunks:
        first, count = np.array([(at, stop - at) for _, at, stop in chunk.queues], np.int64).reshape(-1, 2).T
        of_queue = [numbers.setdefault(queue, len(numbers)) for queue, _, _ in chunk.queues]
        key.append(np.repeat(np.array(of_queue, np.int64), count))
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        index.append(begin + np.repeat(first, count) + within)
        begin += len(chunk.rows)
        for queue, at, stop in chunk.queues:
            if queue in mapped:
                mapped[queue].append((stop - at, chunk.bit_maps.get(queue)))
    keys = np.concatenate(key)
    rows = np.concatenate([chunk.rows for chunk in chunks])
    rows = rows[np.concatenate(index)[np.argsort(keys, kind="stable")]]
    pieces: list[_Piece] = []
    at = 0
    for queue, count in zip(numbers, np.bincount(keys, minlength=len(numbers)).tolist(), strict=True):
        if queue in mapped:
            pieces += _with_maps(queue, at, mapped[queue])
        else:
            pieces.append(_Piece(queue, at, at + count, None))
        at += count
    return rows, pieces


def _with_maps(queue: Queue, at: int, of_chunks: list[tuple[int, BitMaps | None]]) -> Iterator[_Piece]:
    """A queue's pieces, each with bit maps of one length."""
    for width, group in groupby(of_chunks, lambda one: -1 if one[1] is None else one[1].shape[1]):
        alike = list(group)
        count = sum(rows for rows, _ in alike)
        maps = [bit_map for _, bit_map in alike if bit_map is not None]
        yield _Piece(queue, at, at + count, None if width < 0 else np.concatenate(maps))
        at += count
