"""Index keys on their way from tasks that scan to those that write sorted files of a database.

As :mod:`reput.replay.unit_runs`, for keys of any length. A run holds, in native byte order: ``int64[5]``
(mark, keys, bytes of text, greatest storeTimestamp in ms, greatest physicalOffset), ``int64[keys]`` where
each key ends, ``int64[keys]`` their storeTimestamps, and the keys, ascending.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.build.rocksdb_index import IndexKeys, pack
from reput.errors import OutputError
from reput.format.rocksdbindex import VALUE_LENGTH
from reput.newer_python import Self
from reput.replay.runs import Keys, write_run
from reput.scan import output
from reput.store import files

_MARK = 0x6B657931
_HEAD = 5 * 8
#: Bytes of keys that are collected for one run.
_MOST_BYTES = 64 << 20
#: Of so many keys one is looked at to cut all keys into shares.
SAMPLED = 512


class KeyRunWriter:
    """Collects the index keys of one part and writes its runs.

    Args:
        directory: where; it is there.
        name: what the files' names begin with, unique among all that ever wrote there.
        base: physical offset of the segment's first byte.

    Attributes:
        paths: the runs that were written; on disk.
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
        found = pack(data, chunk.row_position[:rows] - self._base, self._base)
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
        head = np.array([_MARK, len(keys), int(ends[-1]), int(timestamp.max()), last], np.int64)
        path = self._directory / f"{self._name}-{len(self.paths)}.index"
        text = b"".join([keys[number] for number in order])
        write_run(path, (head.tobytes(), ends.tobytes(), timestamp[order].tobytes(), text))
        self.paths.append(str(path))


class KeyRun:
    """Reads one run. A context manager.

    Raises:
        OutputError: it isn't what was written.

    Attributes:
        last_timestamp, last_position: the greatest of its messages.
    """

    def __init__(self, path: str) -> None:
        place = Path(path)
        with files.reporting("index keys can't be read back", place), place.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        head = np.frombuffer(self._map[:_HEAD], np.int64).tolist() if len(self._map) >= _HEAD else [0] * 5
        mark, keys, size, last_timestamp, last_position = head
        self.last_timestamp: int = last_timestamp
        self.last_position: int = last_position
        text_at = _HEAD + 16 * keys
        if mark != _MARK or len(self._map) != text_at + size:
            raise OutputError(
                "index keys that a task has written can't be read back",
                path=place,
                expected=f"a run of {keys} keys, {text_at + size} bytes",
                found=f"{len(self._map)} bytes, which begin with {mark:x}",
                next_step="Check the disk, remove the output and run the same command again",
            )
        self._keys = Keys(self._map, text_at, np.frombuffer(self._map[_HEAD : _HEAD + 8 * keys], np.int64))
        self._timestamps = np.frombuffer(self._map[_HEAD + 8 * keys : text_at], np.int64)

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
