"""Index keys on their way from the tasks that scan to those that build index files.

A spill is scratch: written and read by processes of one run, deleted after the batch. If one process does
both, it stays in memory and there is no file; if they are on several hosts, it is flushed, and each chunk has
a checksum, since who builds an index file may stop anywhere. A file holds chunks of ``int64[3] (rows, keys,
CRC-32)``, positions, timestamps, key counts and key hashes in native byte order; the CRC-32 is of all else.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows
from reput.errors import OutputError
from reput.scan import output
from reput.scan.output import OutputArrays

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
    with open(spill.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while left:
            at = file.tell()
            rows, keys, crc = [*np.fromfile(file, np.int64, 3).tolist(), 0, 0, 0][:3]
            if rows < 1 or not 0 <= keys <= left or rows * _ROW + keys * _KEY > size - at:
                raise _unreadable(spill, at, f"{left} more keys", f"{size - at} bytes that don't hold them")
            position, timestamp = (np.fromfile(file, np.int64, rows) for _ in range(2))
            counts, hashes = np.fromfile(file, np.int32, rows), np.fromfile(file, np.int32, keys)
            if spill.for_others:
                found = _crc(rows, keys, (position, timestamp, counts, hashes))
                if crc != found:
                    raise _unreadable(spill, at, f"CRC-32 {crc & 0xFFFFFFFF:08x}", f"{found:08x}")
            left -= keys
            yield KeyRows(position, timestamp, counts, hashes)


def _crc(rows: int, keys: int, columns: Sequence[NDArray[Any]]) -> int:
    crc = zlib.crc32(np.array([rows, keys], np.int64).data)
    for column in columns:
        crc = zlib.crc32(column.data, crc)
    return crc


def _unreadable(spill: Spill, at: int, expected: str, found: str) -> OutputError:
    return OutputError(
        "index keys that another task has written can't be read back",
        path=spill.path,
        offset=at,
        expected=expected,
        found=found,
        next_step="Check the file system that the hosts share, then run the same command again",
    )
