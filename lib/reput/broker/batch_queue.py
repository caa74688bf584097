"""One batch consume queue (``queue.type=BatchCQ``) while a broker starts: what it holds, takes, and loses.

Source: ``BatchConsumeQueue`` (rocketmq-all-5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.broker.files import LAST_FILES, MappedFiles, ModelFile, StoreFile, mapped
from reput.format.batchconsumequeue import NOT_COMPACTED, UNIT_LENGTH
from reput.format.dtypes import BATCH_UNIT_DTYPE
from reput.log.segments import map_segment


class Inner(NamedTuple):
    """What records say of the messages in them."""

    #: int64[n], INNER_BASE, the first queueOffset; without it and INNER_NUM a record's own
    first: NDArray[np.int64]
    messages: NDArray[np.int64]  # int64[n], INNER_NUM, how many; then 1
    time: NDArray[np.int64]  # int64[n], storeTimestamp, ms

    @property
    def placed(self) -> NDArray[np.bool_]:
        """bool[n]: whether a batch queue takes them."""
        return (self.first >= 0) & (self.messages >= 0)


def inner(segments: Sequence[StoreFile], size: int, positions: NDArray[np.int64]) -> Inner:
    """Read the records at physical offsets, which rise."""
    from reput.broker import kernels

    first = np.full(len(positions), -1, np.int64)
    count = np.ones(len(positions), np.int64)
    time = np.zeros(len(positions), np.int64)
    for segment in segments:
        inside = np.flatnonzero((positions >= segment.base) & (positions < segment.base + size))
        if len(inside):
            data = map_segment(segment.path, size)
            first[inside], count[inside], time[inside] = kernels.inner(data, positions[inside] - segment.base)
    return Inner(first, count, time)


@dataclass(slots=True)
class BatchFile(ModelFile):
    """A file of the queue."""

    units: NDArray[np.void]  # all its units; those on disk until the broker writes to it

    @property
    def counting(self) -> NDArray[np.void]:
        """Those that count."""
        return self.units[: self.wrote // UNIT_LENGTH]


class BatchModel(MappedFiles[BatchFile]):
    """A batch queue, changed as a broker changes it; the files stay as they are.

    Attributes:
        max_physical: physical offset of the last message that it knows of, -1 at first.
        min_offset, max_offset: the first queueOffset that consumers get, -1 if missing; the next one.
        recovered_max: ``max_offset`` after the recovery.
    """

    def __init__(self, files: Sequence[StoreFile], file_size: int) -> None:
        loaded = [
            BatchFile(file.base, file.place, file_size, mapped(file.place, file_size).view(BATCH_UNIT_DTYPE))
            for file in files
        ]
        super().__init__(loaded, file_size)
        self.max_physical = -1
        self.min_offset, self.max_offset = -1, 0
        self.recovered_max = 0

    def recover(self) -> None:
        """Find the end, in the last three files."""
        if not self.files:
            return
        end = 0
        for file in self.files[-LAST_FILES:]:
            count = _prefix(file.units, 0)
            if count:
                self.max_physical = int(file.units[count - 1]["position"])
            end = file.base + count * UNIT_LENGTH
            if count * UNIT_LENGTH != self.file_size:
                break
        self.cut(end)
        self._revise()
        self.recovered_max = self.max_offset

    def _revise(self) -> None:
        """``reviseMaxAndMinOffsetInQueue``."""
        self._revise_min()
        self.max_offset = 0
        for file in self.files[:-3:-1]:
            if len(file.counting):
                last = file.counting[-1]
                self.max_offset = int(last["base_offset"]) + int(last["batch_size"])
                return

    def _revise_min(self) -> None:
        self.min_offset = -1
        if not self.files:
            self.max_offset = 0
        elif len(self.files[0].counting):
            self.min_offset = int(self.files[0].units[0]["base_offset"])

    def truncate(self, physical: int) -> None:
        """Cut the units of messages at or past a physical offset."""
        self.max_physical = physical - 1
        while self.files:
            last = self.files[-1]
            if int(last.units[0]["position"]) >= physical:
                self.delete(last)
                continue
            # The first unit is taken as it is, zeros too.
            count = _prefix(last.units, 1, physical)
            self.max_physical = int(last.units[count - 1]["position"])
            last.wrote = count * UNIT_LENGTH
            break
        self._revise()

    def correct_min(self, physical: int) -> None:
        """Find the first message in the first file that is still in the log, which begins at ``physical``."""
        self._revise_min()
        if not self.files:
            return
        units = self.files[0].counting
        kept = np.flatnonzero(units["position"] >= physical)
        gone = int(kept[0]) if len(kept) else len(units)
        if gone:
            self.min_offset = int(units[gone - 1]["base_offset"]) + int(units[gone - 1]["batch_size"])

    def put(
        self, position: NDArray[np.int64], size: NDArray[np.int32], tags: NDArray[np.int64], read: Inner
    ) -> int:
        """Append units, in log order; how many were.

        Args:
            position, size, tags: [rows], physical offset, bytes and tagsCode.
            read: the same records' own.
        """
        rows = np.flatnonzero(read.placed)
        # The greatest of what was there before each row counts, for a stored place may be a wrong one.
        before = np.maximum.accumulate(np.concatenate(([self.max_physical], position[rows])))[:-1]
        rows = rows[position[rows] > before]
        if not len(rows):
            return 0
        units = np.zeros(len(rows), BATCH_UNIT_DTYPE)
        units["position"], units["size"], units["tags"] = position[rows], size[rows], tags[rows]
        units["timestamp"], units["base_offset"], units["batch_size"] = (
            read.time[rows],
            read.first[rows],
            read.messages[rows],
        )
        units["compacted"] = NOT_COMPACTED
        done, begins = 0, not self.files
        while done < len(units):
            last = self.files[-1] if self.files else None
            if last is None or last.wrote == self.file_size:
                base = 0 if last is None else last.base + self.file_size
                last = BatchFile(base, None, 0, np.zeros(self.file_size // UNIT_LENGTH, BATCH_UNIT_DTYPE))
                self.files.append(last)
            if not last.units.flags.writeable:
                last.units = last.units.copy()
            at = last.wrote // UNIT_LENGTH
            fit = min(len(last.units) - at, len(units) - done)
            last.units[at : at + fit] = units[done : done + fit]
            last.wrote += fit * UNIT_LENGTH
            done += fit
        self.max_physical = int(units[-1]["position"])
        self.max_offset = int(units[-1]["base_offset"]) + int(units[-1]["batch_size"])
        if begins and self.min_offset == -1:
            self._revise_min()
        return len(units)

    def destroy(self) -> None:
        """Delete the queue's files."""
        super().destroy()
        self.max_physical = -1
        self.min_offset, self.max_offset = -1, 0

    def held(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n]: whether a unit leads to each physical offset."""
        found = np.zeros(len(position), bool)
        least = int(position.min()) if len(position) else 0
        for file in reversed(self.files):
            units = file.counting["position"].astype(np.int64)
            found |= np.isin(position, units)
            if len(units) and units[0] < least:
                break
        return found


def _prefix(units: NDArray[np.void], start: int, before: int | None = None) -> int:
    """Up to which unit, from ``start`` on, they are valid and lie before a physical offset."""
    good = (
        (units["position"] >= 0)
        & (units["size"] > 0)
        & (units["base_offset"] >= 0)
        & (units["batch_size"] > 0)
    )
    if before is not None:
        good &= units["position"] < before
    bad = np.flatnonzero(~good[start:])
    return start + int(bad[0]) if len(bad) else len(units)
