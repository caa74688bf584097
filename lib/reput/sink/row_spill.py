"""Units on their way from tasks that scan to what writes queues in log order.

A unit's place in an ordinary queue is its queueOffset. In a batch queue and in consumequeue_ext it is what
was appended before, which a task that scans one part of the log doesn't know. Such units wait here until the
parts before are known: in a scratch file, as index keys do (:mod:`reput.sink.spill`), or in memory where one
process does it all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from reput.errors import OutputError

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

Queue = tuple[str, int]
Rows = NDArray[np.void]
BitMaps = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Units of one queue that follow one another in the log.

    Attributes:
        path: the scratch file; empty when they are in memory.
        data: what the file would hold, when they are in memory.
        rows_at, maps_at: byte offsets of the rows and of their bit maps.
        count: how many rows.
        width: bytes of each bit map.
    """

    path: str
    data: bytes
    rows_at: int
    maps_at: int
    count: int
    width: int

    def read(self) -> tuple[Rows, BitMaps]:
        """The rows, and their bit maps as uint8[rows, width].

        Raises:
            OutputError: the scratch file is shorter than it was written.
        """
        rows = np.frombuffer(self._bytes(self.rows_at, self.count * ROW.itemsize), ROW)
        bit_maps = np.frombuffer(self._bytes(self.maps_at, self.count * self.width), np.uint8)
        return rows, bit_maps.reshape(self.count, self.width)

    def _bytes(self, at: int, length: int) -> bytes:
        if not self.path or not length:
            return self.data[at : at + length]
        with open(self.path, "rb") as file:
            file.seek(at)
            data = file.read(length)
        if len(data) < length:
            raise OutputError(
                "units can't be read back", path=self.path, expected=f"{length} bytes", found=len(data)
            )
        return data


RowSpill = dict[Queue, list[Stretch]]


class RowSpillWriter:
    """Writes the units of one part that wait; the file is only made when there is one.

    Args:
        path: the scratch file; None keeps the units in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._spill: RowSpill = {}
        self._file: BinaryIO | None = None
        self._at = 0

    def add(self, rows: Rows, queues: list[tuple[Queue, int, int]], bit_maps: dict[Queue, BitMaps]) -> None:
        """Append a chunk.

        Args:
            rows: of :data:`ROW`.
            queues: (queue, first, stop): rows [first, stop) are this queue's, in log order.
            bit_maps: uint8[the queue's rows, bytes] of those that have any.

        Raises:
            OSError: the scratch file can't be written.
        """
        blocks = [rows.tobytes(), *(bit_map.tobytes() for bit_map in bit_maps.values())]
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
        places = {}
        for queue, bit_map in bit_maps.items():
            places[queue] = maps_at, bit_map.shape[1]
            maps_at += bit_map.nbytes
        for queue, first, stop in queues:
            rows_at = begin + first * ROW.itemsize
            at, width = places.get(queue, (0, 0))
            stretch = Stretch(path, data, rows_at, at, stop - first, width)
            self._spill.setdefault(queue, []).append(stretch)

    def close(self) -> RowSpill:
        """End it; what waits, by queue."""
        if self._file is not None:
            self._file.close()
        return self._spill
