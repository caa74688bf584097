"""Index keys on their way from the tasks that scan to the task that builds index files.

A spill is scratch: never flushed, written and read by processes of one run, deleted after the batch. It holds
chunks of ``int64[2] (rows, keys)``, positions, timestamps, key counts and key hashes in native byte order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from reput.build.index import KeyRows
from reput.scan import output
from reput.scan.output import OutputArrays


@dataclass(frozen=True, slots=True)
class Spill:
    """A part's index keys.

    Attributes:
        path: the scratch file.
        keys: how many keys it holds, at least 1.
    """

    path: str
    keys: int


class SpillWriter:
    """Writes one part's spill; the file is only made when there is a key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._keys = 0

    def add(self, out: OutputArrays) -> None:
        """Append a scan's index rows and keys.

        Raises:
            OSError: the scratch file can't be written.
        """
        rows, keys = int(out.counts[output.ROWS]), int(out.counts[output.KEYS])
        if not rows:
            return
        if self._file is None:
            self._file = self._path.open("wb")
        self._keys += keys
        self._file.write(np.array([rows, keys], np.int64).data)
        for column in (out.row_position, out.row_timestamp, out.row_keys):
            self._file.write(column[:rows].data)
        self._file.write(out.key_hash[:keys].data)

    def close(self) -> Spill | None:
        """End the spill; None if it holds nothing."""
        if self._file is None:
            return None
        self._file.close()
        return Spill(str(self._path), self._keys)


def read(path: str | Path) -> Iterator[KeyRows]:
    """A spill's chunks in log order."""
    with open(path, "rb") as file:
        while len(head := file.read(16)) == 16:
            rows, keys = np.frombuffer(head, np.int64).tolist()
            yield KeyRows(
                np.fromfile(file, np.int64, rows),
                np.fromfile(file, np.int64, rows),
                np.fromfile(file, np.int32, rows),
                np.fromfile(file, np.int32, keys),
            )
