"""Where the entries of a store's index point, block by block: so that each part of the log finds its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reput.replay.runner import Runner
from reput.verify.entries import BlockRun
from reput.verify.index_file import IndexInfo, block_starts
from reput.verify.tasks import BlocksTask
from reput.verify.waves import in_waves


@dataclass(slots=True)
class IndexMap:
    """The index files, and the least and greatest position in each block of 4,096 entries.

    Attributes:
        infos: by number.
        least, greatest: of each file, int64[blocks].
    """

    infos: tuple[IndexInfo, ...] = ()
    least: list[NDArray[np.int64]] = field(default_factory=list)
    greatest: list[NDArray[np.int64]] = field(default_factory=list)

    def runs(self, start: int, end: int) -> tuple[BlockRun, ...]:
        """The blocks that may hold entries which point into [start, end) of the log."""
        found = []
        for info, least, greatest in zip(self.infos, self.least, self.greatest, strict=True):
            rows = np.flatnonzero((least < end) & (greatest >= start))
            if len(rows):
                cuts = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
                for first, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
                    found.append(BlockRun(info, int(rows[first]), int(rows[stop - 1]) + 1))
        return tuple(found)


def find_entries(runner: Runner, infos: Sequence[IndexInfo]) -> IndexMap:
    """Read all index files once.

    Raises:
        ReputError: one can't be read.
    """
    tasks = [BlocksTask(info, first) for info in infos for first in block_starts(info)]
    least: list[list[NDArray[np.int64]]] = [[] for _ in infos]
    greatest: list[list[NDArray[np.int64]]] = [[] for _ in infos]
    for task, (low, high) in zip(tasks, in_waves(runner, tasks), strict=True):
        least[task.info.number].append(low)
        greatest[task.info.number].append(high)
    nothing = np.zeros(0, np.int64)
    return IndexMap(
        tuple(infos),
        [np.concatenate(each) if each else nothing for each in least],
        [np.concatenate(each) if each else nothing for each in greatest],
    )
