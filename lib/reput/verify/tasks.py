"""What a verification has done by tasks: each looks at a piece of the log, and returns ranges."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.build.index import KeyRows
from reput.build.placement import Breaks, Placement
from reput.build.units import Collected, by_queue
from reput.derived.files import MOST_OPEN
from reput.errors import Finding
from reput.format.batchconsumequeue import NOT_COMPACTED
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.dtypes import BATCH_UNIT_DTYPE, get_batch_units
from reput.format.names import Queue
from reput.log.segments import map_segment, open_segment
from reput.remote import is_elsewhere
from reput.replay.altered import Altered
from reput.replay.part_result import PartResult, QueueRows, collect, pass_over
from reput.replay.placing import QueueOutcome, findings_of, pieces, placed_anew, unproven_of
from reput.replay.runs import KeyRunWriter, RunWriter
from reput.replay.spills import SpillWriter
from reput.replay.state import QueueState
from reput.replay.target import Target
from reput.scan import output
from reput.scan.fields import RecordFields, fields_of_queue, record_fields
from reput.scan.output import OutputArrays
from reput.scan.rules import Part
from reput.scan.table import QueueTable
from reput.verify.batch import BatchCompared, BatchRun, compare_runs
from reput.verify.index import (
    BlockRun,
    EntriesCompared,
    TagsOtherwise,
    compare_entries,
    joined,
    joined_problems,
    read_entries,
)
from reput.verify.index_file import IndexInfo
from reput.verify.queue_files import OfMessages, Readers, compare_places
from reput.verify.units import Compared


@dataclass(slots=True)
class PartChecked:
    """What came of a part."""

    result: PartResult  # of the scan
    #: what came of each queue's units; of irregular queues the ranges mean nothing
    queues: dict[Queue, Compared]
    batch: BatchCompared  # what came of batch queues' units that are of the part, or point into it
    entries: EntriesCompared | None = None  # what came of the index entries that point into the part
    tags: TagsOtherwise | None = None  # messages whose tags are indexed otherwise; nothing is wrong with that
    #: of the part's bytes, in hexadecimal digits; None where it wasn't asked for, or the part lies
    #: elsewhere
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class PartTask:
    """Scan a part, and compare what it has with what is in the files."""

    target: Target
    part: Part
    #: the blocks of index files that may hold entries which point into the part; None: the index isn't
    #: looked at
    runs: tuple[BlockRun, ...] | None
    infos: tuple[IndexInfo, ...]  # all index files
    #: the blocks of batch queues that may hold units which point into the part
    batch_runs: tuple[BatchRun, ...]
    queue_ext: bool  # a tagsCode may be an address in consumequeue_ext
    #: with what binds the result to the bytes that it is of: the digest of the log from this physical
    #: offset on, and sums; None: without
    bound: int | None = None
    scratch: Path | None = None  # where units go that are compared with a database; None without one
    keys: Path | None = None  # where index keys go that are

    def __call__(self) -> PartChecked:
        """Scan and compare; OSError where a file can't be read."""
        spill = SpillWriter(None)
        queues: dict[Queue, Compared] = {}
        # With more queues than files can be open, each is opened once for the part, not for each chunk.
        collected = Collected()
        batch: dict[Queue, list[NDArray[Any]]] = {}
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
                    collected.add(chunk)
                    if self.queue_ext:
                        fields = ChunkFields(self.part, table, chunk, data)
                        self._compare(table, collected, readers, queues, fields)
                    elif collected.is_full or int(table.queue_count[0]) <= MOST_OPEN:
                        self._compare(table, collected, readers, queues)
                    bad.extend(self._take_batch(table, chunk, data, batch))
                elif runs is not None:
                    runs.add(table, chunk, data)

            def finish(table: QueueTable) -> None:
                self._compare(table, collected, readers, queues)
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
        of_batches = compare_runs(batch, settings, self.batch_runs, self.part.start, self.part.end)
        of_batches.bad = bad
        done = PartChecked(result, queues, of_batches)
        if self.bound is not None and not is_elsewhere(self.part.path):
            done.sha256 = sha256_of(replace(self.part, start=self.bound))
        if self.runs is not None:
            done.entries = self._compare_entries(expected := _rows(spill), self.runs)
            if done.entries.wrong and self.runs:
                done.entries, done.tags = self._tags(done.entries, expected, self.runs)
        return done

    def _compare(
        self,
        table: QueueTable,
        collected: Collected,
        readers: Readers,
        found: dict[Queue, Compared],
        fields: ChunkFields | None = None,
    ) -> None:
        queues, packed = table.queues, collected.packed(int(table.queue_count[0]))
        for number, first, units in () if packed is None else packed.runs():
            if queues.irregular[number]:
                continue  # compared in log order later, by one task for the whole batch
            queue = _name(table, number)
            if self.target.selection.is_batch(queue[0]) or not self.target.selection.wants_queue(*queue):
                continue
            messages = None if fields is None else fields.records(number)
            compared = compare_places(readers, queue, first, units, messages, summed=self.bound is not None)
            found.setdefault(queue, Compared()).add(compared)

    def _take_batch(
        self,
        table: QueueTable,
        chunk: OutputArrays,
        data: NDArray[np.uint8],
        batch: dict[Queue, list[NDArray[Any]]],
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
    ) -> tuple[EntriesCompared, TagsOtherwise | None]:
        """What came of the entries where some are as releases write them that index tags, or don't."""
        settings = self.target.settings
        dialect = replace(settings.dialect, index_tags=not settings.dialect.index_tags)
        other = replace(self.target, settings=replace(settings, dialect=dialect))
        spill = SpillWriter(None)
        pass_over(other, self.part, lambda _table, chunk, _data: spill.add(chunk))
        other_keys = _rows(spill)
        entries = read_entries(runs, self.part.start, self.part.end)
        otherwise = TagsOtherwise.of(keys, other_keys, entries, self.infos)
        if otherwise is not None:
            tags, rows = otherwise
            return self._compare_entries([rows], runs), tags
        found = self._compare_entries(other_keys, runs)
        if found.wrong * 4 < own.wrong:
            # One cause, and a key of nearly every message: told as one.
            own.missing, own.problems = joined(own.missing), joined_problems(own.problems)
        return own, None


def _rows(spill: SpillWriter) -> Sequence[KeyRows]:
    keys = spill.close()
    return keys.rows if keys else ()


class ChunkFields:
    """The records of a chunk's units, by queue, read while the chunk is in the processor's cache."""

    def __init__(self, part: Part, table: QueueTable, chunk: OutputArrays, data: NDArray[np.uint8]) -> None:
        self._part = part
        self._chunk = chunk
        self._order, self._starts = by_queue(chunk, int(table.queue_count[0]))
        self._fields: RecordFields = record_fields(
            data,
            chunk.unit_position[self._order] - part.base,
            chunk.unit_offset[self._order],
            chunk.unit_queue[self._order],
            table,
        )

    def records(self, number: int) -> OfMessages:
        """What the records in consumequeue_ext of a queue's units have to hold."""
        rows = slice(int(self._starts[number]), int(self._starts[number + 1]))
        return OfMessages(self._fields.own[rows], self._fields.timestamp[rows])

    def batch_units(self, number: int, queue: Queue) -> tuple[NDArray[Any], list[Finding]]:
        """The units that a batch queue has to have, BATCH_UNIT_DTYPE[n]; messages that get none."""
        rows = slice(int(self._starts[number]), int(self._starts[number + 1]))
        order, fields = self._order[rows], self._fields
        units = np.zeros(len(order), BATCH_UNIT_DTYPE)
        units["position"], units["size"] = self._chunk.unit_position[order], self._chunk.unit_size[order]
        units["tags"], units["timestamp"] = self._chunk.unit_tags[order], fields.timestamp[rows]
        units["base_offset"], units["batch_size"] = fields.base_offset[rows], fields.batch_size[rows]
        units["compacted"] = NOT_COMPACTED
        bad = ~get_batch_units(units["base_offset"], units["batch_size"])
        if not bad.any():
            return units, []
        return units[~bad], [self._passed_over(queue, units[bad])]

    def _passed_over(self, queue: Queue, units: NDArray[Any]) -> Finding:
        first = units[0]
        return Finding(
            kind="bad-inner-batch",
            path=self._part.path,
            offset=int(first["position"]),
            end=int(first["position"]) + int(first["size"]),
            expected="INNER_BASE and INNER_NUM of 0 or more",
            found=f"{int(first['base_offset'])} and {int(first['batch_size'])}",
            outcome="it has no unit, as by the broker",
            topic=queue[0],
            queue_id=queue[1],
            count=len(units),
        )


def records_of(parts: Sequence[Part], queue: Queue, rows: QueueRows) -> OfMessages:
    """What the records of a queue's units have to hold, the units being in log order over several parts."""
    own, timestamp = np.ones(len(rows.position), bool), np.full(len(rows.position), -1, np.int64)
    for part in parts:
        chosen = slice(*np.searchsorted(rows.position, [part.start, part.end]).tolist())
        if chosen.start < chosen.stop:
            segment = open_segment(part.path, part.segment_length)
            positions = rows.position[chosen] - part.base
            segment.fetch(int(positions[0]), int(positions[-1]))
            segment.fetch_frame(int(positions[-1]))
            fields = fields_of_queue(
                segment.data, positions, rows.offset[chosen], queue[0].encode(), queue[1]
            )
            own[chosen], timestamp[chosen] = fields.own, fields.timestamp
    return OfMessages(own, timestamp)


@dataclass(slots=True)
class QueueChecked:
    """What came of a queue whose queueOffsets don't follow one by one."""

    outcome: QueueOutcome  # the queue's state, and what is odd about it
    compared: Compared = field(default_factory=Compared)  # what came of its units
    restarted_at: int = -1  # physical offset of the first message of the newest incarnation, -1


@dataclass(frozen=True, slots=True)
class IrregularTask:
    """Place the units of some queues by the rules, and compare them."""

    target: Target
    parts: tuple[Part, ...]  # of the batch, in log order
    #: the queues, each with its state before the batch, None if it had none
    committed: dict[Queue, QueueState | None]
    breaks: Breaks  # where the log isn't whole
    altered: Altered  # messages that belong to other queues than they say
    queue_ext: bool  # a tagsCode may be an address in consumequeue_ext
    from_zero: bool  # the log begins at physical offset 0: nothing of it has expired

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
                breaks = self.altered.breaks_of(queue, self.breaks)
                mine, placement, after, hidden = placed_anew(
                    settings, queue, mine, state, breaks, from_zero=self.from_zero
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


def _name(table: QueueTable, number: int) -> Queue:
    queues = table.queues
    return table.topic_names[int(queues.topic[number])].decode(), int(queues.queue_id[number])


def sha256_of(part: Part) -> str:
    """The SHA-256 of a part's bytes, in hexadecimal digits."""
    data = map_segment(part.path, part.segment_length)
    return hashlib.sha256(data[part.start - part.base : part.end - part.base].data).hexdigest()
