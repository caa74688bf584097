"""What a verification has done by Spark: each task looks at a piece of the store, and returns ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks, Placement
from reput.build.units import pack
from reput.config.settings import StoreSettings
from reput.errors import Finding, ReputError, StoreError
from reput.format.consumequeue import UNIT_LENGTH
from reput.replay.key_spill import SpillWriter
from reput.replay.part_result import PartResult, collect, pass_over
from reput.replay.placing import QueueOutcome, findings_of, pieces, placed_anew, unproven_of
from reput.replay.state import QueueState
from reput.replay.target import Target
from reput.scan import output
from reput.scan.output import OutputArrays
from reput.scan.part import Part
from reput.scan.table import QueueTable
from reput.verify import index_file
from reput.verify.batch_files import BatchFiles, BatchRun, look_at, read_runs
from reput.verify.batch_units import UNIT, BatchRange, Found, add_ranges, begins_anew, compare_batch
from reput.verify.entries import (
    BlockRun,
    EntriesCompared,
    compare_entries,
    joined,
    joined_problems,
    read_entries,
)
from reput.verify.ext import ExtReader, OfMessages, compare_records
from reput.verify.index_file import ChainsChecked, IndexInfo
from reput.verify.messages import ChunkFields, records_of
from reput.verify.outside import Known, Outside, check_outside
from reput.verify.queue_reader import QueueReader
from reput.verify.units import Compared, UnitRange, compare_units

_Queue = tuple[str, int]
#: How far on both sides of a stretch units are looked for that aren't in their places.
_AROUND = 4096
#: Ranges of one queue in one task; more become the last one.


NOTHING = Found.of([], 0, 0)


class InLog(NamedTuple):
    """What a range of the log has of a batch queue.

    Attributes:
        first: queueOffset of its first message.
        position: physical offset of that message's record.
        last: that of the last record.
        units: how many records.
        anew: physical offset of the last record with which the queue begins again, -1.
    """

    first: int
    position: int
    last: int
    units: int
    anew: int

    @classmethod
    def of(cls, expected: NDArray[Any]) -> Self:
        """That of the units that a queue has to have, UNIT[n], in log order; one at least."""
        anew = np.flatnonzero(begins_anew(expected))
        position = expected["position"].astype(np.int64)
        at = int(position[anew[-1]]) if len(anew) else -1
        return cls(int(expected["base_offset"][0]), int(position[0]), int(position[-1]), len(expected), at)

    def then(self, after: InLog) -> InLog:
        """This, and what a later range has."""
        begins = after.position if after.first == 0 else -1
        return self._replace(
            last=after.last, units=self.units + after.units, anew=max(self.anew, begins, after.anew)
        )


@dataclass(slots=True)
class BatchCompared:
    """What came of batch queues over a range of the log.

    Attributes:
        ranges: units that differ, by queue.
        queues: of the log, by queue.
        bad: messages without a unit.
    """

    ranges: dict[_Queue, list[BatchRange]] = field(default_factory=dict)
    queues: dict[_Queue, InLog] = field(default_factory=dict)
    bad: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class PartChecked:
    """What came of a part.

    Attributes:
        result: of the scan.
        ranges: units that differ, by queue; of irregular queues they mean nothing.
        ext: units whose tagsCode is an address in consumequeue_ext.
        plain: units whose tagsCode could be one and isn't.
        batch: what came of batch queues' units that are of the part, or point into it.
        entries: what came of the index entries that point into the part.
        other_tags: whether all that is wrong with the entries is whether tags are indexed.
    """

    result: PartResult
    ranges: dict[_Queue, list[UnitRange]] = field(default_factory=dict)
    ext: int = 0
    plain: int = 0
    batch: BatchCompared = field(default_factory=BatchCompared)
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
        batch_runs: the blocks of batch queues that may hold units which point into the part.
        queue_ext: a tagsCode may be an address in consumequeue_ext.
    """

    target: Target
    part: Part
    entries_from: int
    entries_to: int
    runs: tuple[BlockRun, ...] | None
    infos: tuple[IndexInfo, ...]
    batch_runs: tuple[BatchRun, ...]
    queue_ext: bool

    def __call__(self) -> PartChecked:
        """Scan and compare; OSError where a file can't be read."""
        spill = SpillWriter(None)
        ranges: dict[_Queue, list[UnitRange]] = {}
        total = Compared([])
        batch: dict[_Queue, list[NDArray[Any]]] = {}
        bad: list[Finding] = []
        with Readers(self.target.settings) as readers:

            def take(table: QueueTable, chunk: OutputArrays) -> None:
                spill.add(chunk)
                self._compare(table, chunk, readers, ranges, total)
                bad.extend(self._take_batch(table, chunk, batch))

            result = pass_over(self.target, self.part, take)
        done = PartChecked(result, ranges, total.ext, total.plain)
        done.batch = self._compare_batch(batch)
        done.batch.bad = bad
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
        readers: Readers,
        ranges: dict[_Queue, list[UnitRange]],
        total: Compared,
    ) -> None:
        queues, fields = table.queues, None
        for number, first, data in pack(chunk, int(table.queue_count[0])).runs():
            if queues.irregular[number]:
                continue  # compared in log order later, by one task for the whole batch
            queue = _name(table, number)
            if self.target.selection.is_batch(queue[0]) or not self.target.selection.wants_queue(*queue):
                continue
            messages = None
            if self.queue_ext:
                fields = fields or ChunkFields(self.part, table, chunk)
                messages = fields.records(number)
            compared = compare_places(readers, queue, first, data, messages)
            add_ranges(ranges.setdefault(queue, []), compared.ranges)
            total.ext += compared.ext
            total.plain += compared.plain

    def _take_batch(
        self, table: QueueTable, chunk: OutputArrays, batch: dict[_Queue, list[NDArray[Any]]]
    ) -> Iterator[Finding]:
        """Keep what batch queues have to have; what gets no unit there."""
        selection, fields = self.target.selection, None
        if not selection.batch:
            return
        here = np.unique(chunk.unit_queue[: int(chunk.counts[output.UNITS])])
        for number in here.tolist():
            queue = _name(table, number)
            if selection.is_batch(queue[0]) and selection.wants_queue(*queue):
                fields = fields or ChunkFields(self.part, table, chunk)
                units, findings = fields.batch_units(number, queue)
                batch.setdefault(queue, []).append(units)
                yield from findings

    def _compare_batch(self, batch: dict[_Queue, list[NDArray[Any]]]) -> BatchCompared:
        settings, done = self.target.settings, BatchCompared()
        found = read_runs(
            settings.root,
            settings.recovery.batch_queue_file_size,
            self.batch_runs,
            self.part.start,
            self.part.end,
        )
        for queue in sorted(batch.keys() | found.keys()):
            expected = np.concatenate([np.zeros(0, UNIT), *batch.get(queue, ())])
            ranges = compare_batch(expected, found.get(queue, NOTHING))
            add_ranges(done.ranges.setdefault(queue, []), ranges)
            if len(expected):
                done.queues[queue] = InLog.of(expected)
        return done

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
        outcome: the queue's state, and what is odd about it.
        ranges: units that differ.
        ext, plain: as in :class:`PartChecked`.
        restarted_at: physical offset of the first message of the newest incarnation, -1.
    """

    outcome: QueueOutcome
    ranges: list[UnitRange]
    ext: int
    plain: int
    restarted_at: int


@dataclass(frozen=True, slots=True)
class IrregularTask:
    """Place the units of some queues by the rules, and compare them.

    Attributes:
        target: the store.
        parts: of the batch, in log order.
        committed: the queues, each with its state before the batch, None if it had none.
        breaks: where the log isn't whole.
        queue_ext: a tagsCode may be an address in consumequeue_ext.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
    """

    target: Target
    parts: tuple[Part, ...]
    committed: dict[_Queue, QueueState | None]
    breaks: Breaks
    queue_ext: bool
    from_zero: bool

    def __call__(self) -> list[QueueChecked]:
        """Place and compare; OSError where a file can't be read."""
        settings = self.target.settings
        rows = collect(self.target, list(self.parts), set(self.committed))
        done = []
        with Readers(settings) as readers:
            for queue, state in self.committed.items():
                mine = rows.get(queue)
                if mine is None:
                    done.append(QueueChecked(QueueOutcome(*queue, state, False, []), [], 0, 0, -1))
                    continue
                mine, placement, after, hidden = placed_anew(
                    mine, state, self.breaks, from_zero=self.from_zero
                )
                messages = records_of(self.parts, queue, mine) if self.queue_ext else None
                ranges: list[UnitRange] = []
                ext = plain = 0
                for number, (first, data) in enumerate(pieces(mine, placement)):
                    # A unit that fills a hole lies in its own place, too.
                    fills = number >= len(placement.runs)
                    of_piece = (
                        None if messages is None else _of_piece(messages, placement, number, first, data)
                    )
                    compared = compare_places(readers, queue, first, data, of_piece, search=not fills)
                    add_ranges(ranges, compared.ranges)
                    ext += compared.ext
                    plain += compared.plain
                odd: list[Finding] = findings_of(list(self.parts), queue, mine, placement)
                odd += unproven_of(list(self.parts), queue, hidden)
                at = (
                    int(mine.position[placement.runs[0][1]]) if placement.restarted and placement.runs else -1
                )
                outcome = QueueOutcome(*queue, after, placement.restarted, odd)
                done.append(QueueChecked(outcome, ranges, ext, plain, at))
        return done


def _of_piece(messages: OfMessages, placement: Placement, number: int, first: int, data: bytes) -> OfMessages:
    """What the records of a piece of a placement have to hold."""
    if number < len(placement.runs):
        _, start, stop = placement.runs[number]
        return OfMessages(messages.own[start:stop], messages.timestamp[start:stop])
    row = next(row for start, end, row in placement.fills if start <= first < end)
    count = len(data) // UNIT_LENGTH
    return OfMessages(np.repeat(messages.own[row], count), np.repeat(messages.timestamp[row], count))


@dataclass(frozen=True, slots=True)
class OutsideTask:
    """Look at the files of some queues, and at the places that the log says nothing of."""

    root: Path
    file_size: int
    queues: tuple[Known, ...]
    log_start: int
    live_end: int | None
    ext_file_size: int | None

    def __call__(self) -> list[Outside]:
        """See :func:`reput.verify.outside.check_outside`."""
        return [
            check_outside(self.root, self.file_size, known, self.log_start, self.live_end, self.ext_file_size)
            for known in self.queues
        ]


@dataclass(frozen=True, slots=True)
class BatchFilesTask:
    """Look at the files of some batch queues."""

    root: Path
    file_size: int
    queues: tuple[_Queue, ...]
    log_end: int
    running: bool

    def __call__(self) -> list[BatchFiles]:
        """See :func:`reput.verify.batch_files.look_at`."""
        return [
            look_at(self.root, self.file_size, queue, self.log_end, running=self.running)
            for queue in self.queues
        ]


@dataclass(frozen=True, slots=True)
class BatchUnitsTask:
    """Look at units of batch queues that point to where the log has no message."""

    root: Path
    file_size: int
    start: int
    end: int
    runs: tuple[BatchRun, ...]

    def __call__(self) -> BatchCompared:
        """Compare; OSError where a file can't be read."""
        done = BatchCompared()
        found = read_runs(self.root, self.file_size, self.runs, self.start, self.end)
        for queue, there in found.items():
            add_ranges(done.ranges.setdefault(queue, []), compare_batch(np.zeros(0, UNIT), there))
        return done


def _name(table: QueueTable, number: int) -> _Queue:
    queues = table.queues
    return table.topic_names[int(queues.topic[number])].decode(), int(queues.queue_id[number])


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


class Readers:
    """Reads what a store's queues hold. A context manager.

    Attributes:
        queue: reads units.
        ext: reads records in consumequeue_ext.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.queue = QueueReader(settings.root, settings.consume_queue_file_size)
        self.ext = ExtReader(settings.root, settings.recovery.queue_ext_file_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self.queue.__exit__(*of)
        self.ext.__exit__(*of)


def compare_places(
    readers: Readers,
    queue: _Queue,
    first: int,
    expected: bytes | memoryview,
    messages: OfMessages | None,
    *,
    search: bool = True,
) -> Compared:
    """Compare consecutive units of a queue with what is in its files.

    Args:
        messages: what the records have to hold that the units' addresses lead to; None where a tagsCode is
            no address.
        search: units that aren't in their places are looked for in others.

    Raises:
        OSError: a file can't be read.
    """
    count, reader = len(expected) // UNIT_LENGTH, readers.queue
    found = reader.read(*queue, first, count)
    if found == bytes(expected):
        return Compared([], plain=0 if messages is None else int(messages.own.sum()))
    own = None if messages is None else messages.own
    if search:
        start = max(first - _AROUND, 0)
        around = reader.read(*queue, start, first + count + _AROUND - start)
        compared = compare_units(
            first, expected, found, around=around, around_first=start, may_be_address=own
        )
    else:
        compared = compare_units(first, expected, found, may_be_address=own)
    if messages is not None:
        before = reader.read(*queue, first - 1, 1) if first else bytes(UNIT_LENGTH)
        differing, plain = compare_records(readers.ext, queue, first, expected, found, before, messages)
        compared.ranges = sorted([*compared.ranges, *differing], key=lambda one: one.first)
        compared.plain = plain
    return compared
