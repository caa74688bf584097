"""What a verification has done by Spark: each task looks at a piece of the store, and returns ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.build.units import pack
from reput.errors import Finding, ReputError, StoreError
from reput.format.consumequeue import UNIT_LENGTH
from reput.scan.output import OutputArrays
from reput.scan.part import Part
from reput.scan.table import QueueTable
from reput.sink.journal import QueueState
from reput.sink.redo import Redone, findings_of, pieces, placed_anew
from reput.sink.scan_task import PartResult, Target, collect, pass_over
from reput.sink.spill import SpillWriter
from reput.verify import index_file
from reput.verify.entries import (
    BlockRun,
    EntriesCompared,
    compare_entries,
    joined,
    joined_problems,
    read_entries,
)
from reput.verify.index_file import ChainsChecked, IndexInfo
from reput.verify.outside import Known, Outside, check_outside
from reput.verify.queue_reader import QueueReader
from reput.verify.units import Compared, UnitRange, compare_units

_Queue = tuple[str, int]
#: How far on both sides of a stretch units are looked for that aren't in their places.
_AROUND = 4096
#: Ranges of one queue in one task; more become the last one.
_MOST_PER_QUEUE = 512


@dataclass(slots=True)
class PartChecked:
    """What came of a part.

    Attributes:
        result: of the scan.
        ranges: units that differ, by queue; of irregular queues they mean nothing.
        ext: units whose tagsCode wasn't looked at.
        entries: what came of the index entries that point into the part.
        other_tags: whether all that is wrong with the entries is whether tags are indexed.
    """

    result: PartResult
    ranges: dict[_Queue, list[UnitRange]] = field(default_factory=dict)
    ext: int = 0
    entries: EntriesCompared | None = None
    other_tags: bool = False


@dataclass(frozen=True, slots=True)
class PartTask:
    """Scan a part, and compare what it has with what is in the files.

    Attributes:
        target: the store.
        part: the part.
        entries_from, entries_to: entries that point into this range of the log are looked at.
        runs: the blocks of index files that may hold such entries; None: the index isn't looked at.
        infos: all index files.
        queue_ext: a tagsCode may be an address in consumequeue_ext.
    """

    target: Target
    part: Part
    entries_from: int
    entries_to: int
    runs: tuple[BlockRun, ...] | None
    infos: tuple[IndexInfo, ...]
    queue_ext: bool

    def __call__(self) -> PartChecked:
        """Scan and compare; OSError where a file can't be read."""
        settings = self.target.settings
        spill = SpillWriter(None)
        ranges: dict[_Queue, list[UnitRange]] = {}
        ext = 0
        with QueueReader(settings.root, settings.consume_queue_file_size) as reader:

            def take(table: QueueTable, chunk: OutputArrays) -> None:
                nonlocal ext
                spill.add(chunk)
                ext += self._compare(table, chunk, reader, ranges)

            result = pass_over(self.target, self.part, take)
        done = PartChecked(result, ranges, ext)
        if self.runs is not None:
            entries = read_entries(self.runs, self.entries_from, self.entries_to)
            keys = spill.close()
            done.entries = compare_entries(keys.rows if keys else (), entries, self.infos)
            if done.entries.wrong:
                done.other_tags = self._is_other_tags(done.entries)
                if done.other_tags:
                    # One cause, and a key of nearly every message: told as one.
                    done.entries.missing = joined(done.entries.missing)
                    done.entries.problems = joined_problems(done.entries.problems, "dangling-entry")
        return done

    def _compare(
        self,
        table: QueueTable,
        chunk: OutputArrays,
        reader: QueueReader,
        ranges: dict[_Queue, list[UnitRange]],
    ) -> int:
        queues, ext = table.queues, 0
        for number, first, data in pack(chunk, int(table.queue_count[0])).runs():
            if queues.irregular[number]:
                continue  # compared in log order later, by one task for the whole batch
            queue = table.topic_names[int(queues.topic[number])].decode(), int(queues.queue_id[number])
            if self.target.selection.wants_queue(*queue):
                compared = compare_places(reader, queue, first, data, queue_ext=self.queue_ext)
                add_ranges(ranges.setdefault(queue, []), compared.ranges)
                ext += compared.ext
        return ext

    def _is_other_tags(self, compared: EntriesCompared) -> bool:
        """Whether the entries are right for releases that do index tags, or don't, unlike this one."""
        settings = self.target.settings
        dialect = replace(settings.dialect, index_tags=not settings.dialect.index_tags)
        other = replace(self.target, settings=replace(settings, dialect=dialect))
        spill = SpillWriter(None)
        pass_over(other, self.part, lambda _table, chunk: spill.add(chunk))
        keys = spill.close()
        entries = read_entries(self.runs or (), self.entries_from, self.entries_to)
        again = compare_entries(keys.rows if keys else (), entries, self.infos)
        return again.wrong * 4 < compared.wrong


@dataclass(frozen=True, slots=True)
class EntriesTask:
    """Look at index entries that point to where the log has no message: into a gap, or past its end."""

    start: int
    end: int
    runs: tuple[BlockRun, ...]
    infos: tuple[IndexInfo, ...]

    def __call__(self) -> EntriesCompared:
        """Compare; OSError where a file can't be read."""
        return compare_entries((), read_entries(self.runs, self.start, self.end), self.infos)


@dataclass(frozen=True, slots=True)
class BlocksTask:
    """Where the entries of 256 blocks of an index file point."""

    info: IndexInfo
    first: int

    def __call__(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See :func:`reput.verify.index_file.blocks`."""
        return index_file.blocks(self.info, self.first)


@dataclass(frozen=True, slots=True)
class ChainsTask:
    """Follow the chains of an index file."""

    info: IndexInfo

    def __call__(self) -> ChainsChecked:
        """See :func:`reput.verify.index_file.check_chains`."""
        return index_file.check_chains(self.info)


@dataclass(slots=True)
class QueueChecked:
    """What came of a queue whose queueOffsets don't simply go on.

    Attributes:
        redone: the queue's state, and what is odd about it.
        ranges: units that differ.
        ext: units whose tagsCode wasn't looked at.
        restarted_at: physical offset of the first message of the newest incarnation, -1.
    """

    redone: Redone
    ranges: list[UnitRange]
    ext: int
    restarted_at: int


@dataclass(frozen=True, slots=True)
class IrregularTask:
    """Place the units of some queues by the rules, and compare them.

    Attributes:
        target: the store.
        parts: of the batch, in log order.
        committed: the queues, each with its state before the batch, None if it had none.
        breaks: physical offsets where messages may be missing from the log, ascending.
        queue_ext: a tagsCode may be an address in consumequeue_ext.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
    """

    target: Target
    parts: tuple[Part, ...]
    committed: dict[_Queue, QueueState | None]
    breaks: tuple[int, ...]
    queue_ext: bool
    from_zero: bool

    def __call__(self) -> list[QueueChecked]:
        """Place and compare; OSError where a file can't be read."""
        settings = self.target.settings
        rows = collect(self.target, list(self.parts), set(self.committed))
        done = []
        with QueueReader(settings.root, settings.consume_queue_file_size) as reader:
            for queue, state in self.committed.items():
                mine = rows.get(queue)
                if mine is None:
                    done.append(QueueChecked(Redone(*queue, state, False, []), [], 0, -1))
                    continue
                mine, placement, after = placed_anew(mine, state, list(self.breaks), from_zero=self.from_zero)
                ranges: list[UnitRange] = []
                ext = 0
                for number, (first, data) in enumerate(pieces(mine, placement)):
                    # A unit that fills a hole lies in its own place, too.
                    fills = number >= len(placement.runs)
                    compared = compare_places(
                        reader, queue, first, data, queue_ext=self.queue_ext, search=not fills
                    )
                    add_ranges(ranges, compared.ranges)
                    ext += compared.ext
                odd: list[Finding] = findings_of(list(self.parts), queue, mine, placement)
                at = (
                    int(mine.position[placement.runs[0][1]]) if placement.restarted and placement.runs else -1
                )
                redone = Redone(*queue, after, placement.restarted, odd)
                done.append(QueueChecked(redone, ranges, ext, at))
        return done


@dataclass(frozen=True, slots=True)
class OutsideTask:
    """Look at the files of some queues, and at the places that the log says nothing of."""

    root: Path
    file_size: int
    queues: tuple[Known, ...]
    log_start: int
    live_end: int | None

    def __call__(self) -> list[Outside]:
        """See :func:`reput.verify.outside.check_outside`."""
        return [
            check_outside(self.root, self.file_size, known, self.log_start, self.live_end)
            for known in self.queues
        ]


def work(task: Callable[[], object]) -> object:
    """Do a task; what it returns, or the error that it ended with."""
    try:
        return task()
    except ReputError as error:
        return error
    except OSError as error:
        return StoreError(
            "the store can't be read",
            path=error.filename,
            found=error.strerror or str(error),
            next_step="Check the file and its permissions, then run the same command again",
        )


def compare_places(
    reader: QueueReader,
    queue: _Queue,
    first: int,
    expected: bytes | memoryview,
    *,
    queue_ext: bool,
    search: bool = True,
) -> Compared:
    """Compare consecutive units of a queue with what is in its files.

    Args:
        search: units that aren't in their places are looked for in others.

    Raises:
        OSError: a file can't be read.
    """
    count = len(expected) // UNIT_LENGTH
    found = reader.read(*queue, first, count)
    if found == bytes(expected) and not queue_ext:
        return Compared([])
    if not search:
        return compare_units(first, expected, found, queue_ext=queue_ext)
    start = max(first - _AROUND, 0)
    around = reader.read(*queue, start, first + count + _AROUND - start)
    return compare_units(first, expected, found, around=around, around_first=start, queue_ext=queue_ext)


def add_ranges(known: list[UnitRange], more: Sequence[UnitRange]) -> None:
    """Append ranges; one that goes on behind the last becomes part of it, and so does what is too much."""
    for one in more:
        joined = known[-1].joined(one) if known else None
        if joined is not None:
            known[-1] = joined
            continue
        if len(known) >= _MOST_PER_QUEUE:
            for at in range(len(known) - 1, -1, -1):
                if known[at].kind == one.kind:
                    first, end = min(known[at].first, one.first), max(known[at].end, one.end)
                    known[at] = replace(known[at], first=first, end=end, count=known[at].count + one.count)
                    break
            else:
                known.append(one)
            continue
        known.append(one)
