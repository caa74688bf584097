"""The index files while a broker starts: which it drops, and how far dispatch fills the others.

Source: ``IndexService.load``, ``buildIndex``, ``getAndCreateLastIndexFile``, ``IndexFile.putKey``,
``IndexHeader.load`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.format.indexfile import IndexHeader


@dataclass(slots=True)
class IndexModelFile:
    """An index file."""

    path: Path | None  # where it is; None for one that the broker makes: its clock names it
    header: IndexHeader  # as the broker holds it; slot_count is that on disk and isn't kept up


class IndexModel:
    """The index files of a store, in order.

    Attributes:
        files: those that the broker holds.
        filled: endTimestamps of the files that filled up and got a successor. A thread for each writes its
            own to the checkpoint, so that any of several may stay there.
        added: keys that were put.
    """

    def __init__(self, files: Sequence[IndexModelFile], max_index_num: int) -> None:
        self.files = list(files)
        self.filled: list[int] = []
        self.added = 0
        self._max = max_index_num

    def put(
        self,
        position: NDArray[np.int64],
        timestamp: NDArray[np.int64],
        keys: NDArray[np.int32],
        last_message: int,
    ) -> None:
        """Dispatch messages, in log order.

        Args:
            position, timestamp, keys: [rows], physical offset, storeTimestamp (ms) and number of keys of the
                messages that have keys.
            last_message: physical offset of the last message, with keys or without; at least one there is.
        """
        from reput.derived import kernels

        self._open()
        row, done = 0, 0
        while row < len(position):
            header = self.files[-1].header
            row, done, count, begin, end, begun, ended, added = kernels.fill_index(
                position,
                timestamp,
                keys,
                row,
                done,
                self._max,
                header.index_count,
                header.begin_physical_offset,
                header.end_physical_offset,
                header.begin_timestamp,
                header.end_timestamp,
            )
            self.added += int(added)
            self.files[-1].header = replace(
                header,
                index_count=int(count),
                begin_physical_offset=int(begin),
                end_physical_offset=int(end),
                begin_timestamp=int(begun),
                end_timestamp=int(ended),
            )
            if row < len(position):
                self._open()
        if not len(position) or last_message > int(position[-1]):
            self._open()

    def _open(self) -> None:
        """Have a last file with room."""
        if not self.files:
            self.files.append(IndexModelFile(None, IndexHeader()))
            return
        last = self.files[-1].header
        if last.index_count >= self._max:
            self.files.append(IndexModelFile(None, last.successor()))
            if last.end_timestamp > 0:
                self.filled.append(last.end_timestamp)
