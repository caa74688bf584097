"""Index keys on their way from the tasks that scan to those that build index files.

A spill is scratch: written and read by processes of one run, deleted after the batch. If one process does
both, it stays in memory and there is no file; if they are on several hosts, it is flushed and has a checksum.
A file holds chunks of ``int64[2] (rows, keys)``, positions, timestamps, key counts and key hashes in native
byte order.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows
from reput.errors import OutputError
from reput.scan import output
from reput.scan.output import OutputArrays


@dataclass(frozen=True, slots=True)
class Spill:
    """A part's index keys.

    Attributes:
        path: the scratch file; empty when the keys are in memory.
        keys: how many keys it holds, at least 1.
        rows: the keys in memory.
        crc: CRC-32 of the scratch file; None if it has none.
    """

    path: str
    keys: int
    rows: tuple[KeyRows, ...] = ()
    crc: int | None = None

    def chunks(self) -> Iterable[KeyRows]:
        """The keys in log order, some rows at a time.

        Raises:
            OutputError: after the last row, that the file isn't what was written.
            OSError: it can't be read.
        """
        return self.rows if self.rows else read(self.path, self.crc)


class SpillWriter:
    """Writes one part's spill; the file is only made when there is a key.

    Args:
        path: the scratch file; None keeps the keys in memory.
        for_others: it is read on other hosts.
    """

    def __init__(self, path: Path | None, *, for_others: bool = False) -> None:
        self._path = path
        self._for_others = for_others
        self._crc = 0
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
        of_rows = (column[:rows] for column in (out.row_position, out.row_timestamp, out.row_keys))
        for column in (np.array([rows, keys], np.int64), *of_rows, out.key_hash[:keys]):
            self._file.write(column.data)
            if self._for_others:
                self._crc = zlib.crc32(column.data, self._crc)

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
        return Spill(str(self._path), self._keys, crc=self._crc if self._for_others else None)


def read(path: str | Path, crc: int | None = None) -> Iterator[KeyRows]:
    """A spill's chunks in log order.

    Args:
        crc: what the file has to have; None if that isn't known.

    Raises:
        OutputError: after the last chunk, that it has another one.
        OSError: it can't be read.
    """
    found = 0

    def column(kind: type[np.int64 | np.int32], count: int) -> NDArray[Any]:
        nonlocal found
        values = np.fromfile(file, kind, count)
        if crc is not None:
            found = zlib.crc32(values.data, found)
        return values

    with open(path, "rb") as file:
        while len(head := column(np.int64, 2)) == 2:
            rows, keys = head.tolist()
            yield KeyRows(
                column(np.int64, rows), column(np.int64, rows), column(np.int32, rows), column(np.int32, keys)
            )
    if crc is not None and crc != found:
        raise OutputError(
            "index keys that another task has written can't be read back",
            path=path,
            expected=f"CRC-32 {crc:08x}",
            found=f"{found:08x}",
            next_step="Check the file system that the hosts share, then run the same command again",
        )
