"""What a verification has done by Spark: each task looks at a piece of the store, and returns ranges."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows
from reput.build.placement import Breaks, Placement
from reput.build.units import pack
from reput.config.settings import StoreSettings
from reput.errors import Finding, ReputError, StoreError
from reput.format.consumequeue import UNIT_LENGTH
from reput.log.segments import map_segment
from reput.newer_python import Self
from reput.remote import is_elsewhere, tally
from reput.remote.tally import Spent
from reput.replay import runner as runners
from reput.replay.altered import Altered
from reput.replay.key_runs import KeyRunWriter
from reput.replay.key_spill import SpillWriter
from reput.replay.part_result import PartResult, collect, pass_over
from reput.replay.placing import QueueOutcome, findings_of, pieces, placed_anew, unproven_of
from reput.replay.runner import Runner
from reput.replay.state import QueueState
from reput.replay.target import Target
from reput.replay.unit_runs import RunWriter
from reput.scan import output
from reput.scan.output import OutputArrays
from reput.scan.rules import Part
from reput.scan.table import QueueTable
from reput.verify.batch_files import BatchRun, read_runs
from reput.verify.batch_units import UNIT, BatchRange, Found, begins_anew, compare_batch
from reput.verify.entries import (
    BlockRun,
    EntriesCompared,
    TagsOtherwise,
    compare_entries,
    joined,
    joined_problems,
)
from reput.verify.ext import ExtReader, OfMessages, compare_records
from reput.verify.index_file import IndexInfo
from reput.verify.messages import ChunkFields, records_of
from reput.verify.queue_reader import QueueReader
from reput.verify.sums import unit_sum
from reput.verify.units import Compared, add_ranges, compare_units

_Queue = tuple[str, int]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: How far on both sides of a stretch units are looked for that aren't in their places.
_AROUND = 4096

NOTHING = Found.of([], 0, 0)


def done(runner: Runner, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """The results of some tasks, at once."""
    found: list[Any] = runner.map(_work, list(tasks)) if tasks else []
    results: list[Any] = []
    for one in found:
        if isinstance(one, ReputError):
            raise one
        result, spent = one
        tally.add(spent)
        results.append(result)
    return results


def in_waves(runner: Runner, tasks: Sequence[Callable[[], _Result]]) -> Generator[_Result]:
    """The results of many tasks in order; see :func:`reput.replay.runner.in_waves`."""
    return runners.in_waves(runner, lambda wave: done(runner, wave), tasks)


def of_each(
    runner: Runner, look: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int
) -> Iterator[_Result]:
    """What a function makes of each item, in order; a task takes ``at_once`` of them."""
    tasks = [partial(_each, look, items[at : at + at_once]) for at in range(0, len(items), at_once)]
    for found in in_waves(runner, tasks):
        yield from found


def _each(look: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    return [look(item) for item in items]


def _work(task: Callable[[], object]) -> tuple[object, dict[str, Spent]] | ReputError:
    """Do a task; what it returns, and what stores elsewhere were asked; or the error that it ended with."""
    try:
        return task(), tally.taken()
    except ReputError as error:
        return error
    except OSError as error:
        return StoreError(
            "the store can't be read",
            path=error.filename,
            found=error.strerror or str(error),
            next_step="Check the file and its permissions, then run the same command again",
        )


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
        queues: what came of each queue's units; of irregular queues the ranges mean nothing.
        batch: what came of batch queues' units that are of the part, or point into it.
        entries: what came of the index entries that point into the part.
        tags: where all that is wrong with the entries is whether tags are indexed.
        sha256: of the part's bytes, in hexadecimal digits; None where it wasn't asked for, or the part lies
            elsewhere.
    """

    result: PartResult
    queues: dict[_Queue, Compared]
    batch: BatchCompared
    entries: EntriesCompared | None = None
    tags: TagsOtherwise | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class PartTask:
    """Scan a part, and compare what it has with what is in the files.

    Attributes:
        runs: the blocks of index files that may hold entries which point into the part; None: the index isn't
            looked at.
        infos: all index files.
        batch_runs: the blocks of batch queues that may hold units which point into the part.
        queue_ext: a tagsCode may be an address in consumequeue_ext.
        bound: with what binds the result to the bytes that it is of: the digest of the log from this physical
            offset on, and sums; None: without.
        scratch: where units go that are compared with a database; None without one.
        keys: where index keys go that are.
    """

    target: Target
    part: Part
    runs: tuple[BlockRun, ...] | None
    infos: tuple[IndexInfo, ...]
    batch_runs: tuple[BatchRun, ...]
    queue_ext: bool
    bound: int | None = None
    scratch: Path | None = None
    keys: Path | None = None

    def __call__(self) -> PartChecked:
        """Scan and compare; OSError where a file can't be read."""
        spill = SpillWriter(None)
        queues: dict[_Queue, Compared] = {}
        batch: dict[_Queue, list[NDArray[Any]]] = {}
        bad: list[Finding] = []
        settings, target = self.target.settings, self.target
        name = f"{self.part.start:020d}-{os.getpid()}-{time.monotonic_ns()}"
        runs = None if self.scratch is None else RunWriter(self.scratch, name, self.part.base)
        keys = None if self.keys is None else KeyRunWriter(self.keys, name, self.part.base)
        with Readers(settings) as readers:

            def take(table: QueueTable, chunk: OutputArrays, data: NDArray[np.uint8]) -> None:
                if target.index:
                    spill.add(chunk)
                if keys is not None:
                    keys.add(chunk, data)
                if target.queue_files:
                    self._compare(table, chunk, data, readers, queues)
                    bad.extend(self._take_batch(table, chunk, data, batch))
                elif runs is not None:
                    runs.add(table, chunk, data)

            def finish(table: QueueTable) -> None:
                if runs is not None:
                    runs.finish(table)
                if keys is not None:
                    keys.finish()

            result = pass_over(target, self.part, take, finish)
            if runs is not None and target.queue_files:
                # Light queues go by other rules there.
                pass_over(target, self.part, runs.add, runs.finish, rocksdb=True)
        if runs is not None:
            result.runs = runs.paths
        if keys is not None:
            result.key_runs = keys.paths
        file_size = settings.recovery.batch_queue_file_size
        of_batches = compare_runs(
            batch, settings.root, file_size, self.batch_runs, self.part.start, self.part.end
        )
        of_batches.bad = bad
        done = PartChecked(result, queues, of_batches)
        if self.bound is not None and not is_elsewhere(self.part.path):
            done.sha256 = sha256_of(replace(self.part, start=self.bound))
        if self.runs is not None:
            done.entries = self._compare_entries(expected := _rows(spill), self.runs)
            if done.entries.wrong and self.runs:
                done.tags = self._tags(done.entries, expected, self.runs)
        return done

    def _compare(
        self,
        table: QueueTable,
        chunk: OutputArrays,
        data: NDArray[np.uint8],
        readers: Readers,
        found: dict[_Queue, Compared],
    ) -> None:
        queues, fields = table.queues, None
        for number, first, units in pack(chunk, int(table.queue_count[0])).runs():
            if queues.irregular[number]:
                continue  # compared in log order later, by one task for the whole batch
            queue = _name(table, number)
            if self.target.selection.is_batch(queue[0]) or not self.target.selection.wants_queue(*queue):
                continue
            messages = None
            if self.queue_ext:
                fields = fields or ChunkFields(self.part, table, chunk, data)
                messages = fields.records(number)
            compared = compare_places(readers, queue, first, units, messages, summed=self.bound is not None)
            found.setdefault(queue, Compared()).add(compared)

    def _take_batch(
        self,
        table: QueueTable,
        chunk: OutputArrays,
        data: NDArray[np.uint8],
        batch: dict[_Queue, list[NDArray[Any]]],
    ) -> Iterator[Finding]:
        """Keep what batch queues have to have; what gets no unit there."""
        selection, fields = self.target.selection, None
        if not selection.batch:
            return
        here = np.unique(chunk.unit_queue[: int(chunk.counts[output.UNITS])])
        for number in here.tolist():
            queue = _name(table, number)
            if selection.is_batch(queue[0]) and selection.wants_queue(*queue):
                fields = fields or ChunkFields(self.part, table, chunk, data)
                units, findings = fields.batch_units(number, queue)
                batch.setdefault(queue, []).append(units)
                yield from findings

    def _compare_entries(self, keys: Sequence[KeyRows], runs: Sequence[BlockRun]) -> EntriesCompared:
        start, end = self.part.start, self.part.end
        return compare_entries(keys, runs, start, end, self.infos, summed=self.bound is not None)

    def _tags(
        self, own: EntriesCompared, keys: Sequence[KeyRows], runs: Sequence[BlockRun]
    ) -> TagsOtherwise | None:
        """Whether entries are as releases write them that index tags, or don't, unlike this one."""
        settings = self.target.settings
        dialect = replace(settings.dialect, index_tags=not settings.dialect.index_tags)
        other = replace(self.target, settings=replace(settings, dialect=dialect))
        spill = SpillWriter(None)
        pass_over(other, self.part, lambda _table, chunk, _data: spill.add(chunk))
        other_keys = _rows(spill)
        found = self._compare_entries(other_keys, runs)
        if found.wrong * 4 < own.wrong:
            # One cause, and a key of nearly every message: told as one.
            own.missing, own.problems = joined(own.missing), joined_problems(own.problems)
        return TagsOtherwise.of(own, found, keys, other_keys)


def _rows(spill: SpillWriter) -> Sequence[KeyRows]:
    keys = spill.close()
    return keys.rows if keys else ()


def compare_runs(
    batch: Mapping[_Queue, Sequence[NDArray[Any]]],
    root: Path,
    file_size: int,
    runs: Sequence[BatchRun],
    start: int,
    end: int,
) -> BatchCompared:
    """Compare the units that batch queues have to have with those that point into [start, end) of the log.

    Args:
        batch: by queue, UNIT[n] each, in log order.
        file_size: ``mapperFileSizeBatchConsumeQueue``, bytes.
        runs: the blocks that may hold such units.

    Raises:
        OSError: a file can't be read.
    """
    done = BatchCompared()
    found = read_runs(root, file_size, runs, start, end)
    for queue in sorted(batch.keys() | found.keys()):
        expected = np.concatenate([np.zeros(0, UNIT), *batch.get(queue, ())])
        ranges = compare_batch(expected, found.get(queue, NOTHING))
        add_ranges(done.ranges.setdefault(queue, []), ranges)
        if len(expected):
            done.queues[queue] = InLog.of(expected)
    return done


@dataclass(slots=True)
class QueueChecked:
    """What came of a queue whose queueOffsets don't follow one by one.

    Attributes:
        outcome: the queue's state, and what is odd about it.
        compared: what came of its units.
        restarted_at: physical offset of the first message of the newest incarnation, -1.
    """

    outcome: QueueOutcome
    compared: Compared = field(default_factory=Compared)
    restarted_at: int = -1


@dataclass(frozen=True, slots=True)
class IrregularTask:
    """Place the units of some queues by the rules, and compare them.

    Attributes:
        parts: of the batch, in log order.
        committed: the queues, each with its state before the batch, None if it had none.
        breaks: where the log isn't whole.
        altered: messages that belong to other queues than they say.
        queue_ext: a tagsCode may be an address in consumequeue_ext.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
    """

    target: Target
    parts: tuple[Part, ...]
    committed: dict[_Queue, QueueState | None]
    breaks: Breaks
    altered: Altered
    queue_ext: bool
    from_zero: bool

    def __call__(self) -> list[QueueChecked]:
        """Place and compare; OSError where a file can't be read."""
        settings = self.target.settings
        rows = self.altered.put_right(collect(self.target, list(self.parts), set(self.committed)))
        done = []
        with Readers(settings) as readers:
            for queue, state in self.committed.items():
                mine = rows.get(queue)
                if mine is None:
                    done.append(QueueChecked(QueueOutcome(*queue, state, False, [])))
                    continue
                mine, placement, after, hidden = placed_anew(
                    mine, state, self.altered.breaks_of(queue, self.breaks), from_zero=self.from_zero
                )
                messages = records_of(self.parts, queue, mine) if self.queue_ext else None
                compared = Compared()
                for number, (first, data) in enumerate(pieces(mine, placement)):
                    # A unit that fills a hole lies in its own place, too.
                    fills = number >= len(placement.runs)
                    of_piece = (
                        None if messages is None else _of_piece(messages, placement, number, first, data)
                    )
                    compared.add(compare_places(readers, queue, first, data, of_piece, search=not fills))
                odd: list[Finding] = findings_of(list(self.parts), queue, mine, placement)
                odd += unproven_of(list(self.parts), queue, hidden)
                at = (
                    int(mine.position[placement.runs[0][1]]) if placement.restarted and placement.runs else -1
                )
                outcome = QueueOutcome(*queue, after, placement.restarted, odd, gaps=placement.gaps)
                done.append(QueueChecked(outcome, compared, at))
        return done


def _of_piece(messages: OfMessages, placement: Placement, number: int, first: int, data: bytes) -> OfMessages:
    """What the records of a piece of a placement have to hold."""
    if number < len(placement.runs):
        _, start, stop = placement.runs[number]
        return OfMessages(messages.own[start:stop], messages.timestamp[start:stop])
    row = next(row for start, end, row in placement.fills if start <= first < end)
    count = len(data) // UNIT_LENGTH
    return OfMessages(np.repeat(messages.own[row], count), np.repeat(messages.timestamp[row], count))


def _name(table: QueueTable, number: int) -> _Queue:
    queues = table.queues
    return table.topic_names[int(queues.topic[number])].decode(), int(queues.queue_id[number])


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
    summed: bool = False,
) -> Compared:
    """Compare consecutive units of a queue with what is in its files.

    Args:
        messages: what the records have to hold that the units' addresses lead to; None where a tagsCode is
            no address.
        search: units that aren't in their places are looked for in others.
        summed: with the sum of the units that are there.

    Raises:
        OSError: a file can't be read.
    """
    count, reader = len(expected) // UNIT_LENGTH, readers.queue
    found = reader.read(*queue, first, count)
    total = unit_sum(first, found) if summed else 0
    if found == bytes(expected):
        return Compared(plain=0 if messages is None else int(messages.own.sum()), sum=total)
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
    compared.sum = total
    return compared


def sha256_of(part: Part) -> str:
    """The SHA-256 of a part's bytes, in hexadecimal digits."""
    data = map_segment(part.path, part.segment_length)
    return hashlib.sha256(data[part.start - part.base : part.end - part.base].data).hexdigest()
