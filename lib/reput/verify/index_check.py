"""The index of a verification: what its files hold, which keys they lack, what is wrong in themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from reput.format.indexfile import FIRST_ORDINAL
from reput.replay.runner import Runner
from reput.verify.entries import BlockRun, EntriesCompared, compare_entries, joined
from reput.verify.explain import Explainer
from reput.verify.index_file import (
    COUNTED_OTHERWISE,
    IndexInfo,
    block_starts,
    blocks,
    check_chains,
    gap_of,
    index_files,
    stray_directories,
)
from reput.verify.plan import Plan
from reput.verify.proofs import Blocks, Remembering
from reput.verify.report import Difference, Note
from reput.verify.tasks import PartChecked, in_waves
from reput.verify.units import pieces

_LONG_MAX = (1 << 63) - 1


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

    @property
    def keys(self) -> int:
        """Entries that the files hold."""
        return sum(info.end - FIRST_ORDINAL for info in self.infos)

    def runs(self, start: int, end: int) -> tuple[BlockRun, ...]:
        """The blocks that may hold entries which point into [start, end) of the log."""
        found = []
        for info, least, greatest in zip(self.infos, self.least, self.greatest, strict=True):
            rows = np.flatnonzero((least < end) & (greatest >= start))
            for piece in pieces(rows, rows, len(rows)):
                found.append(BlockRun(info, int(piece[0]), int(piece[-1]) + 1))
        return tuple(found)


def find_entries(
    runner: Runner,
    infos: Sequence[IndexInfo],
    known: Callable[[IndexInfo], Blocks | None] = lambda _info: None,
) -> IndexMap:
    """Read all index files once, so that each part of the log finds the entries that point into it.

    Args:
        known: what it would find in a file, if that is known already.
    """
    nothing = np.zeros(0, np.int64)
    least, greatest = [nothing] * len(infos), [nothing] * len(infos)
    starts = []
    for info in infos:
        found = known(info)
        if found is None:
            starts += [(info, first) for first in block_starts(info)]
        else:
            least[info.number], greatest[info.number] = found
    tasks = [partial(blocks, info, first) for info, first in starts]
    for (info, _), (low, high) in zip(starts, in_waves(runner, tasks), strict=True):
        least[info.number] = np.append(least[info.number], low)
        greatest[info.number] = np.append(greatest[info.number], high)
    return IndexMap(tuple(infos), least, greatest)


class IndexCheck:
    """The index side of one run. Without files until :meth:`find`, and for good where none is looked at.

    Attributes:
        map: the files, and where in the log their entries point to.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self._plan = plan
        self._runner = runner
        self.map = IndexMap()
        self._entries = EntriesCompared()
        self._strays: list[Difference] = []
        self._sound: set[str] = set()
        self._counted_otherwise = 0
        self._other_tags, self._other_tags_end, self._own_tags = 0, 0, False

    def find(self, proven: Remembering | None = None) -> None:
        """Look at which files there are, and where their entries point to."""
        settings = self._plan.settings
        infos: list[IndexInfo] = []
        if self._plan.index:
            known = (lambda _path: None) if proven is None else proven.header_of
            slots, entries = settings.max_hash_slot_num, settings.max_index_num
            infos = index_files(settings.root, slots, entries, known)
            self._strays = stray_directories(settings.root)
        if proven is None:
            self.map = find_entries(self._runner, infos)
            return
        proven.compare(self._runner, infos)
        self.map = find_entries(self._runner, infos, proven.blocks_of)
        self._sound = {info.path for info in infos if proven.is_sound(info)}

    def follow_chains(self, ended: threading.Event) -> list[Difference]:
        """What is wrong with the chains of all index files; cut short once the run has ended without it."""
        problems: list[Difference] = []
        counts_keys = self._plan.settings.dialect.counts_keys
        tasks = [
            partial(check_chains, info, counts_keys=counts_keys)
            for info in self.map.infos
            if info.path not in self._sound
        ]
        with closing(in_waves(self._runner, tasks)) as results:
            for found in results:
                problems += found
                if ended.is_set():
                    break
        return problems

    def add(self, checked: PartChecked) -> None:
        """Take what came of a part of the log; parts come in its order."""
        entries, tags = checked.entries, checked.tags
        if entries is None:
            return
        if tags is None or self._own_tags:
            self._own_tags |= checked.result.messages > 0
        else:
            self._other_tags += tags.count
            self._other_tags_end, self._own_tags = tags.end, not tags.to_end
            entries.missing, entries.problems = [], []
        self._add_entries(entries)

    def check_leftovers(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Entries that point to where no part was: into one of these ranges."""
        infos = self.map.infos
        tasks = [
            partial(compare_entries, (), runs, start, end, infos)
            for start, end in ranges
            if (runs := self.map.runs(start, end))
        ]
        for compared in in_waves(self._runner, tasks):
            self._add_entries(compared)

    def _add_entries(self, compared: EntriesCompared) -> None:
        known = self._entries
        missing = compared.missing
        if known.missing and missing and known.missing[-1].at_end and missing[0].at_start:
            known.missing[-1] = joined([known.missing[-1], missing[0]])[0]
            missing = missing[1:]
        known.missing += missing
        known.problems += compared.problems
        if compared.duplicates and known.first_duplicate < 0:
            known.first_duplicate = compared.first_duplicate
        known.duplicates += compared.duplicates

    def findings(self, explainer: Explainer, chains: list[Difference]) -> Iterator[Difference]:
        """What is wrong, ``chains`` being what :meth:`follow_chains` found."""
        broken = [one for one in chains if one.kind != COUNTED_OTHERWISE]
        self._counted_otherwise = len(chains) - len(broken)
        dangling, missing = self._entries.problems, self._entries.missing
        gaps = (gap_of(self.map.infos, one.first, one.end) for one in missing)
        behind = {gap[1].path for gap in gaps if gap is not None}
        # The time of a file's first entry counts from the end of the file before.
        alone = "index-time", FIRST_ORDINAL, 1
        dangling = [
            one for one in dangling if one.path not in behind or (one.kind, one.first, one.count) != alone
        ]
        yield from [*self._strays, *broken, *dangling]
        yield from (explainer.missing_keys(one) for one in missing)

    def notes(self) -> Iterator[Note]:
        """What is odd and legal."""
        if self._entries.duplicates:
            yield Note(
                "indexed-twice",
                f"{self._entries.duplicates:,} index entries stand twice in a row, first of the message at "
                f"{self._entries.first_duplicate}: a broker that is started indexes its last message again",
                count=self._entries.duplicates,
            )
        if self._counted_otherwise:
            yield Note(
                COUNTED_OTHERWISE,
                f"hashSlotCount of {self._counted_otherwise:,} index files is that of a store that was "
                "upgraded: up to 4.7.0 it counts keys, from 4.7.1 on slots; no release reads it",
                count=self._counted_otherwise,
            )
        if self._other_tags:
            of = f"{self._other_tags:,} messages before {self._other_tags_end}"
            tags = self._plan.settings.dialect.index_tags
            yield Note(
                "tags-not-indexed" if tags else "tags-indexed",
                f"{of} have no index entry of their tags, as before 5.4: a query by tag doesn't find them"
                if tags
                else f"{of} have index entries of their tags, as from 5.4 on: earlier ones don't use them",
                count=self._other_tags,
            )

    @property
    def end_timestamp(self) -> int:
        """The greatest endTimestamp of a file, ms; an index that isn't looked at is taken at its word."""
        headers = [info.header for info in self.map.infos]
        nothing = 0 if self._plan.index else _LONG_MAX
        return max((header.end_timestamp for header in headers), default=nothing)
