"""How long after its storeTimestamp a message's unit can be read in its consume queue.

``python -m bench.probe STORE OUT QUEUE_FILE_SIZE``; runs until its stdin ends, then prints one JSON object.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.format import names
from reput.format.commitlog import BORN_HOST
from reput.format.consumequeue import UNIT_LENGTH

_POLL_SECONDS = 0.002
_LOOK_FOR_QUEUES_SECONDS = 0.25
_LONGEST_MS = 10_000
_STORE_TIMESTAMP = BORN_HOST + 8
#: In two milliseconds come some dozens; to read much more each time takes most of a core.
_UNITS_AT_ONCE = 1 << 9
_UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])


class Queue:
    """One queue as a reader sees it.

    Args:
        directory: holds its files.
        file_size: bytes of one.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory, self._file_size = directory, file_size
        self._fd = -1
        self.offset = min(int(path.name) for path in directory.iterdir())

    def new(self) -> NDArray[np.int64]:
        """Physical offsets of the units that can be read since the last call."""
        if self._fd < 0:
            path = self._directory / names.offset_name(self.offset - self.offset % self._file_size)
            try:
                self._fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return np.empty(0, np.int64)
        at = self.offset % self._file_size
        length = min(_UNITS_AT_ONCE * UNIT_LENGTH, self._file_size - at)
        data = os.pread(self._fd, length, at)
        units = np.frombuffer(data, _UNIT, len(data) // UNIT_LENGTH)
        written = units["size"] > 0
        count = len(units) if written.all() else int(np.argmin(written))
        self.offset += count * UNIT_LENGTH
        if self.offset % self._file_size == 0 and count:
            os.close(self._fd)
            self._fd = -1
        return units["position"][:count].astype(np.int64)


class Log:
    """The storeTimestamps of the commit log's records (IPv4 hosts).

    Args:
        directory: the segments.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[int, NDArray[np.uint8]] = {}
        self._size = max(path.stat().st_size for path in directory.iterdir())

    def timestamps(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """storeTimestamp, ms, of the records at these physical offsets."""
        found = np.empty(len(positions), np.int64)
        bases = positions - positions % self._size
        for base in np.unique(bases).tolist():
            here = bases == base
            at = positions[here] - base + _STORE_TIMESTAMP
            data = self._segment(base)
            found[here] = data[at[:, None] + np.arange(8)].copy().view(">i8")[:, 0]
        return found

    def _segment(self, base: int) -> NDArray[np.uint8]:
        if base not in self._maps:
            with (self._directory / names.offset_name(base)).open("rb") as file:
                self._maps[base] = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        return self._maps[base]


def watch(store: Path, out: Path, file_size: int, ended: threading.Event) -> dict[str, list[list[int]]]:
    """Watch until ``ended``; {second: [[latency in ms, messages], …]}, by the time of storing."""
    histogram: dict[int, NDArray[np.int64]] = {}
    queues: dict[Path, Queue] = {}
    log = Log(store / names.COMMIT_LOG)
    looked = 0.0
    while not ended.wait(_POLL_SECONDS):
        if time.monotonic() - looked > _LOOK_FOR_QUEUES_SECONDS:
            looked = time.monotonic()
            for directory in (out / names.CONSUME_QUEUE).glob("*/*"):
                if directory not in queues and any(directory.iterdir()):
                    queues[directory] = Queue(directory, file_size)
        for queue in queues.values():
            positions = queue.new()
            if not len(positions):
                continue
            stored = log.timestamps(positions)
            late = np.clip(int(time.time() * 1000) - stored, 0, _LONGEST_MS - 1)
            for second in np.unique(stored // 1000).tolist():
                counts = np.bincount(late[stored // 1000 == second], minlength=_LONGEST_MS)
                histogram[second] = histogram.get(second, 0) + counts
    return {
        str(second): [[ms, int(counts[ms])] for ms in np.flatnonzero(counts).tolist()]
        for second, counts in sorted(histogram.items())
    }


def main(store: str, out: str, file_size: str) -> None:
    """Watch until stdin ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    print(json.dumps(watch(Path(store), Path(out), int(file_size), ended)))


if __name__ == "__main__":
    main(*sys.argv[1:])
