"""The files of batch queues by themselves: which there are, in what order their units stand. No Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format import names
from reput.format.batchconsumequeue import UNIT_LENGTH
from reput.store.reading import reading
from reput.verify.batch_units import (
    BLANK,
    BatchRange,
    Found,
    is_blank,
    order_ranges,
    units_of,
)
from reput.verify.outside import series_files
from reput.verify.queue_reader import SeriesReader
from reput.verify.report import Difference
from reput.verify.units import add_ranges

#: Units whose positions are given by their least and their greatest.
BLOCK = 4096
_LONG_MAX = (1 << 63) - 1


class BatchRun(NamedTuple):
    """Consecutive units of a file, some of which may point into a range of the log."""

    topic: str
    queue_id: int
    base: int
    first: int
    units: int


@dataclass(slots=True)
class BatchFiles:
    """What came of one batch queue's files.

    Attributes:
        ranges: units that don't stand in log order, and zeros among units.
        problems: files that are wrong.
        fitting: files of the right length.
        count: units.
        blanks: places of nothing before the last unit.
        base, first, lows, highs: int64[blocks], of each block its file, its first unit there, and the least
            and greatest position.
    """

    topic: str
    queue_id: int
    ranges: list[BatchRange] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)
    fitting: int = 0
    count: int = 0
    blanks: int = 0
    base: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    first: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    lows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    highs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def has_any(self) -> bool:
        """Whether there is a file that counts as one of the queue's."""
        return bool(self.fitting or self.problems or self.count)

    @property
    def least(self) -> int:
        """The least physical offset that a unit points to; past all without one."""
        return int(self.lows.min()) if len(self.lows) else _LONG_MAX

    @property
    def greatest(self) -> int:
        """The greatest one, -1 without one."""
        return int(self.highs.max()) if len(self.highs) else -1

    def runs(self, start: int, end: int) -> list[BatchRun]:
        """The blocks that may hold units which point into [start, end) of the log."""
        rows = np.flatnonzero((self.lows < end) & (self.highs >= start)).tolist()
        return [
            BatchRun(self.topic, self.queue_id, int(self.base[row]), int(self.first[row]), BLOCK)
            for row in rows
        ]


def look_at(
    root: Path, file_size: int, queue: tuple[str, int], log_end: int, *, running: bool = False
) -> BatchFiles:
    """Read a batch queue's files once.

    Args:
        file_size: ``mapperFileSizeBatchConsumeQueue``, bytes.
        log_end: physical offset up to which the log is looked at.
        running: a broker writes meanwhile. Units of messages from ``log_end`` on are let be, and so is what
            stands before them: it may have been written since it was read.

    Raises:
        OSError: a file can't be read.
    """
    result = BatchFiles(*queue)
    listed = series_files(names.batch_queue_directory(root, *queue), queue, file_size)
    result.problems, result.fitting = listed.problems, listed.fitting
    rows: list[tuple[int, int, int, int]] = []
    highest, blank_at, blanks = -1, -1, 0
    for base, path in listed.files:
        for first, data in _blocks(path, file_size):
            blank, units = is_blank(data), units_of(data)
            position = units["position"].astype(np.int64)
            settled = np.flatnonzero(~blank & (position < log_end) if running else ~blank)
            place = base + first * UNIT_LENGTH
            # Zeros count as such when a unit stands behind them.
            last = int(settled[-1]) if len(settled) else -1
            zeros = np.flatnonzero(blank)
            before = zeros[: int(np.searchsorted(zeros, last))]
            if len(before) and blank_at < 0:
                blank_at = place + int(before[0]) * UNIT_LENGTH
            if last >= 0:
                if blanks + len(before):
                    one = BatchRange(BLANK, None, 0, 0, blanks + len(before), blank_at, None, None)
                    add_ranges(result.ranges, [one])
                    result.blanks += blanks + len(before)
                blanks, blank_at = 0, -1
            after = zeros[len(before) :]
            if len(after) and blank_at < 0:
                blank_at = place + int(after[0]) * UNIT_LENGTH
            blanks += len(after)
            used = position[~blank]
            if not len(used):
                continue
            ranges, highest = order_ranges(units, blank, place, highest, log_end)
            add_ranges(result.ranges, ranges)
            rows.append((base, first, int(used.min()), int(used.max())))
            result.count += len(used)
    if rows:
        columns = np.array(rows, np.int64).T
        result.base, result.first, result.lows, result.highs = columns
    return result


def _blocks(path: Path, file_size: int) -> Iterator[tuple[int, bytes]]:
    """(number of its first unit, bytes) of each block of a file."""
    with reading(path) as fd:
        units = min(os.fstat(fd).st_size, file_size) // UNIT_LENGTH
        for first in range(0, units, BLOCK):
            count = min(BLOCK, units - first)
            data = os.pread(fd, count * UNIT_LENGTH, first * UNIT_LENGTH)
            yield first, data[: len(data) // UNIT_LENGTH * UNIT_LENGTH]


def read_runs(
    root: Path, file_size: int, runs: Sequence[BatchRun], start: int, end: int
) -> dict[tuple[str, int], Found]:
    """The units of some blocks, those of one file one after the other, that point into [start, end).

    Raises:
        OSError: a file can't be read.
    """
    blocks: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    with SeriesReader(root, file_size, names.batch_queue_directory, 1) as reader:
        for run in runs:
            fd = reader.descriptor(run.topic, run.queue_id, run.base)
            if fd >= 0:
                most = file_size // UNIT_LENGTH - run.first
                length = min(run.units, most) * UNIT_LENGTH
                data = os.pread(fd, length, run.first * UNIT_LENGTH)
                place = run.base + run.first * UNIT_LENGTH
                queue = run.topic, run.queue_id
                blocks.setdefault(queue, []).append((place, data[: len(data) // UNIT_LENGTH * UNIT_LENGTH]))
    return {queue: Found.of(found, start, end) for queue, found in blocks.items()}
