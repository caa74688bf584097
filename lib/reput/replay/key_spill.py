"""Index keys on their way from the tasks that scan to those that build index files.

A spill is scratch: never flushed, written and read by processes of one run, deleted after the batch. If one
process does both, it stays in memory and there is no file. A file holds chunks of ``int64[2] (rows, keys)``,
positions, timestamps, key counts and key hashes in native byte order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
        path: the scratch file; empty when the keys are in memory.
        keys: how many keys it holds, at least 1.
        rows: the keys in memory.
    """

    path: str
    keys: int
    rows: tuple[KeyRows, ...] = ()

    def chunks(self) -> Iterable[KeyRows]:
        """The keys in log order, some rows at a time."""
        return self.rows if self.rows else read(self.path)


class SpillWriter:
    """Writes one part's spill; the file is only made when there is a key.

    Args:
        path: the scratch file; None keeps the keys in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: list[KeyRows] = []
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
        self._file.write(np.array([rows, keys], np.int64).data)
        for column in (out.row_position, out.row_timestamp, out.row_keys):
            self._file.write(column[:rows].data)
        self._file.write(out.key_hash[:keys].data)

    def close(self) -> Spill | None:
        """End the spill; None if it holds nothing."""
        if self._rows:
            return Spill("", self._keys, tuple(self._rows))
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
