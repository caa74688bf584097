"""Scanning one part of the log and placing its consume-queue units: what a scan task does.

A unit's place is queueOffset x 20, so tasks write in any order and need no shuffle. Index keys are spilled.
Only counts, ranges and findings go back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reput.build.units import UnitColumns, by_queue, joined, pack_columns
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.log.segments import map_segment
from reput.scan import output
from reput.scan.fields import RecordFields, record_fields
from reput.scan.part import Part, PartOutcome, scan_part
from reput.scan.rules import Rules, rules
from reput.scan.table import QUEUE_REPEAT, QueueTable
from reput.sink.filters import FiltersNow
from reput.sink.queue_files import QueueFiles
from reput.sink.row_spill import ROW, Queue, RowSpill, RowSpillWriter
from reput.sink.runner import Runner
from reput.sink.selection import Selection
from reput.sink.spill import Spill, SpillWriter
from reput.store import witness
from reput.store.lock import OutputLock
from reput.store.ownership import Owner
from reput.store.system_errors import unwritten

#: More queues in a part than this have their units collected: 36 bytes each, up to so many.
_FEW_QUEUES = 2048
_MOST_COLLECTED = 1 << 22


class Floors(Protocol):
    """Each queue's committed next queueOffset."""

    def get(self, queue: tuple[str, int], default: int, /) -> int:
        """A queue's, or the default."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run writes, and what; the same for all its tasks.

    Attributes:
        settings: the store's.
        root: gets the store's layout.
        scratch: for spills.
        selection: the queues that are wanted.
        index: index keys are wanted.
        owner: of new files; None for the process's own.
        flush_in_tasks: tasks fsync what they wrote, because the driver is on another host.
        keys_in_memory: index keys aren't spilled, because tasks run in the process that puts them.
        filters: of consumers; None where units have no bit maps.
    """

    settings: StoreSettings
    root: Path
    scratch: Path
    selection: Selection
    index: bool
    owner: Owner | None
    flush_in_tasks: bool
    keys_in_memory: bool = False
    filters: FiltersNow | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the output stands for the whole store: every queue, and the index if the broker has one."""
        return self.selection.is_all and (self.index or not self.settings.message_index_enable)

    @property
    def queue_ext(self) -> bool:
        """Whether units have others in consumequeue_ext."""
        return self.settings.recovery.queue_ext

    def is_ordered(self, topic: str) -> bool:
        """Whether a topic's queues are written in log order; see reput.sink.ordered."""
        return self.queue_ext or self.selection.is_batch(topic)

    def _excludes_lmq(self, topic: str) -> bool:
        # Only ConsumeQueue dispatches to light queues (ConsumeQueue.putMessagePositionInfoWrapper).
        return self.settings.dialect.lmq_excludes(topic) or self.selection.is_batch(topic)

    def rules(self) -> Rules:
        """The scan's switches."""
        return rules(self.settings, index=self.index)

    def table(self) -> QueueTable:
        """A table that knows which topics are wanted."""
        return QueueTable(
            excludes_lmq=lambda topic: self._excludes_lmq(topic.decode("utf-8", "replace")),
            wants_units=self.selection.wants_topic,
        )


@dataclass(slots=True)
class QueueColumns:
    """What a part holds of each of its queues; see :class:`reput.scan.table.QueueArrays`."""

    topics: list[str] = field(default_factory=list)
    topic: list[int] = field(default_factory=list)
    queue_id: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    next: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    first_position: list[int] = field(default_factory=list)
    last_position: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    first_timestamp: list[int] = field(default_factory=list)
    last_timestamp: list[int] = field(default_factory=list)
    irregular: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PartResult:
    """What came of a part.

    Attributes:
        part: the part.
        outcome: where it began and ended, and the findings.
        messages, message_bytes: of all its records.
        last_timestamp: storeTimestamp of its last record, ms; the part's ``after_timestamp`` without records.
        last_position: physical offset of its last record; undefined without records.
        queues: per queue.
        without_unit: (topic, messages, physical offset of the first) where a topic got no units.
        spill: its index keys, None if it has none.
        waiting: its units of queues that are written in log order, by queue.
        seconds: wall time of the task.
    """

    part: Part
    outcome: PartOutcome
    messages: int
    message_bytes: int
    last_timestamp: int
    last_position: int
    queues: QueueColumns
    without_unit: list[tuple[bytes, int, int]]
    spill: Spill | None
    waiting: RowSpill
    seconds: float


def scan(target: Target, part: Part, attempt: str, floors: Floors) -> PartResult | ReputError:
    """Scan ``part``, place its units, spill its keys.

    Args:
        attempt: makes the spill's name unique.
        floors: next queueOffset of each queue as of the last commit. No task writes below: what lies there
            is committed, and what asks for such a place may be a repeat, or no message at all.
    """
    try:
        with OutputLock(target.root).shared():
            return _scan(target, part, attempt, floors)
    except ReputError as error:
        return error
    except OSError as error:
        return unwritten(error, target.scratch)


def _scan(target: Target, part: Part, attempt: str, floors: Floors) -> PartResult:
    path = target.scratch / f"{part.start:020d}-{attempt}.keys"
    spill = SpillWriter(None if target.keys_in_memory else path)
    waiting = RowSpillWriter(None if target.keys_in_memory else path.with_suffix(".units"))
    with QueueFiles(target.root, target.settings.consume_queue_file_size, target.owner) as queue_files:
        placing = _Placing(target.selection, queue_files, floors)
        setting_aside = _SettingAside(target, part, waiting)

        def take(table: QueueTable, chunk: output.OutputArrays) -> None:
            ordered = setting_aside.add(table, chunk)
            if not target.queue_ext:
                placing.add(table, chunk, ordered)
            spill.add(chunk)

        result = pass_over(target, part, take, placing.finish)
        if target.flush_in_tasks:
            queue_files.flush()
    result.spill = spill.close()
    result.waiting = waiting.close()
    return result


def witnessed(runner: Runner, part: Part) -> Part:
    """The part as ``runner``'s functions get it: on other hosts they compare what they read.

    Raises:
        StoreError: the segment can't be read.
    """
    if runner.is_local:
        return part
    data = map_segment(part.path, part.segment_length)
    seen = witness.witness(part.path, data, part.start - part.base, part.end - part.base)
    return replace(part, witness=seen)


def _mapped(part: Part) -> NDArray[np.uint8]:
    """The part's segment, whose driver sees the same there.

    Raises:
        StoreError: it can't be read, or is another one.
    """
    data = map_segment(part.path, part.segment_length)
    if part.witness is not None:
        witness.check(part.witness, part.path, data, part.base)
    return data


def pass_over(
    target: Target,
    part: Part,
    take: Callable[[QueueTable, output.OutputArrays], None],
    finish: Callable[[QueueTable], None] = lambda _table: None,
) -> PartResult:
    """Scan ``part`` and hand over what is found in it, chunk by chunk; nothing is written.

    Args:
        take: gets the table and a chunk, both to be used before it returns.
        finish: gets the table after the last chunk.

    Returns:
        What came of the part, without a spill.

    Raises:
        StoreError: the segment can't be read.
    """
    started = time.perf_counter()
    data = _mapped(part)
    table = target.table()
    out = _output()
    outcome = PartOutcome()
    for chunk in scan_part(part, data, target.rules(), table, out, outcome):
        take(table, chunk)
    finish(table)
    counts = out.counts
    return PartResult(
        part=part,
        outcome=outcome,
        messages=int(counts[output.MESSAGES]),
        message_bytes=int(counts[output.BYTES]),
        last_timestamp=int(counts[output.LAST_TIMESTAMP]),
        last_position=int(counts[output.LAST_POSITION]),
        queues=_columns(table, target.selection),
        without_unit=[
            (name, int(table.topics.without_unit[number]), int(table.topics.first_position[number]))
            for number, name in enumerate(table.topic_names)
            if table.topics.without_unit[number]
        ],
        spill=None,
        waiting={},
        seconds=time.perf_counter() - started,
    )


@dataclass(slots=True)
class QueueRows:
    """One queue's units in log order.

    Attributes:
        offset, position, tags: int64[rows], queueOffset, physicalOffset, tagsCode.
        size: int32[rows], bytes.
    """

    offset: NDArray[np.int64]
    position: NDArray[np.int64]
    size: NDArray[np.int32]
    tags: NDArray[np.int64]

    def only(self, chosen: NDArray[np.bool_]) -> QueueRows:
        """Some of the rows, bool[rows]."""
        if chosen.all():
            return self
        return QueueRows(self.offset[chosen], self.position[chosen], self.size[chosen], self.tags[chosen])


def collect(
    target: Target, parts: list[Part], wanted: set[tuple[str, int]]
) -> dict[tuple[str, int], QueueRows]:
    """The units of some queues over several parts, in log order; nothing is written.

    Raises:
        StoreError: a segment can't be read.
    """
    pieces: dict[tuple[str, int], list[QueueRows]] = {queue: [] for queue in wanted}
    scan_rules = target.rules()._replace(index_keys=False, index_tags=False)
    for part in parts:
        data = _mapped(part)
        table = target.table()
        for chunk in scan_part(part, data, scan_rules, table, _output(), PartOutcome()):
            used = int(chunk.counts[output.UNITS])
            unit_queue = chunk.unit_queue[:used]
            for number in np.unique(unit_queue).tolist():
                name = table.topic_names[int(table.queues.topic[number])].decode()
                queue = (name, int(table.queues.queue_id[number]))
                if queue not in wanted:
                    continue
                rows = np.flatnonzero(unit_queue == number)
                pieces[queue].append(
                    QueueRows(
                        chunk.unit_offset[rows],
                        chunk.unit_position[rows],
                        chunk.unit_size[rows],
                        chunk.unit_tags[rows],
                    )
                )
    return {
        queue: QueueRows(
            np.concatenate([piece.offset for piece in found]),
            np.concatenate([piece.position for piece in found]),
            np.concatenate([piece.size for piece in found]),
            np.concatenate([piece.tags for piece in found]),
        )
        for queue, found in pieces.items()
        if found
    }


_reused = threading.local()


def _output() -> output.OutputArrays:
    """The thread's scan output: workers are reused, and so are their arrays."""
    if not hasattr(_reused, "output"):
        _reused.output = output.output()
    arrays: output.OutputArrays = _reused.output
    return arrays


class _SettingAside:
    """Lets the units of one part wait whose queues are written in log order."""

    def __init__(self, target: Target, part: Part, waiting: RowSpillWriter) -> None:
        self._target = target
        self._part = part
        self._waiting = waiting
        self._topics: list[bool] = []  # by the table's numbers: whether a topic's queues are such

    def add(self, table: QueueTable, chunk: output.OutputArrays) -> set[int]:
        """Take a chunk, to be used before this returns; the numbers of these queues."""
        target, part = self._target, self._part
        for name in table.topic_names[len(self._topics) :]:
            self._topics.append(target.is_ordered(name.decode("utf-8", "replace")))
        if not any(self._topics):
            return set()
        count = int(table.queue_count[0])
        is_ordered = np.array(self._topics, bool)[table.queues.topic[:count]]
        order, starts = by_queue(chunk, count)
        units = np.diff(starts)
        order = order[np.repeat(is_ordered, units)]
        position, offset = chunk.unit_position[order], chunk.unit_offset[order]
        data = map_segment(part.path, part.segment_length)
        fields = record_fields(data, position - part.base, offset, chunk.unit_queue[order], table)
        rows = np.zeros(len(order), ROW)
        rows["offset"], rows["position"] = offset, position
        rows["size"], rows["tags"] = chunk.unit_size[order], chunk.unit_tags[order]
        rows["timestamp"], rows["own"] = fields.timestamp, fields.own
        rows["base_offset"], rows["batch_size"] = fields.base_offset, fields.batch_size
        ordered = np.flatnonzero(is_ordered)
        ends = np.cumsum(units[ordered])
        queues: list[tuple[Queue, int, int]] = []
        for number, end, here in zip(ordered.tolist(), ends.tolist(), units[ordered].tolist(), strict=True):
            topic = table.topic_names[int(table.queues.topic[number])].decode()
            queue_id = int(table.queues.queue_id[number])
            if here and target.selection.wants_queue(topic, queue_id):
                queues.append(((topic, queue_id), end - here, end))
        self._waiting.add(rows, queues, _bit_maps(target, data, rows, fields, queues))
        return set(ordered.tolist())


def _bit_maps(
    target: Target,
    data: NDArray[np.uint8],
    rows: NDArray[np.void],
    fields: RecordFields,
    queues: list[tuple[Queue, int, int]],
) -> dict[Queue, NDArray[np.uint8]]:
    """The bit maps of those queues whose topics have filters; ``rows`` are told which of them have one."""
    if target.filters is None:
        return {}
    filters, found = target.filters.by_topic(), {}
    for queue, first, stop in queues:
        of_topic = filters.get(queue[0])
        if of_topic is not None:
            lengths = fields.properties_length[first:stop].astype(np.int64)
            maps = of_topic.of_records(data, fields.properties[first:stop], lengths)
            rows["mapped"][first:stop] = maps.stored
            found[queue] = maps.bits
    return found


class _Placing:
    """Writes the units of one part into their places.

    With more queues than files can be open, a chunk has a unit or two of each, and opening files takes longer
    than all the rest. Then chunks are collected.
    """

    def __init__(self, selection: Selection, queue_files: QueueFiles, floors: Floors) -> None:
        self._selection = selection
        self._queue_files = queue_files
        self._floors = floors
        self._collected: list[UnitColumns] = []
        self._count = 0
        self._ordered: set[int] = set()

    def add(self, table: QueueTable, chunk: output.OutputArrays, ordered: set[int]) -> None:
        """Take a chunk, to be used before this returns.

        Args:
            ordered: numbers of the queues that are written in log order, and not here.
        """
        self._ordered = ordered
        if int(table.queue_count[0]) <= _FEW_QUEUES:
            self._place(table, UnitColumns.of(chunk))
            return
        self._collected.append(UnitColumns.of(chunk).copy())
        self._count += int(chunk.counts[output.UNITS])
        if self._count > _MOST_COLLECTED:
            self.finish(table)

    def finish(self, table: QueueTable) -> None:
        """Place what is collected."""
        if self._collected:
            self._place(table, joined(self._collected))
        self._collected, self._count = [], 0

    def _place(self, table: QueueTable, units: UnitColumns) -> None:
        queues = table.queues
        for number, queue_offset, data in pack_columns(units, int(table.queue_count[0])).runs():
            if number in self._ordered or queues.irregular[number]:
                continue  # placed in log order later, when the whole batch is known
            topic = table.topic_names[int(queues.topic[number])].decode()
            queue_id = int(queues.queue_id[number])
            if queue_offset < self._floors.get((topic, queue_id), 0):
                queues.irregular[number] |= QUEUE_REPEAT
            elif self._selection.wants_queue(topic, queue_id):
                self._queue_files.put(topic, queue_id, queue_offset, data)


def _columns(table: QueueTable, selection: Selection) -> QueueColumns:
    queues = table.queues
    seen = np.flatnonzero(queues.units[: int(table.queue_count[0])])
    names = [name.decode("utf-8", "replace") for name in table.topic_names]
    if not selection.is_all:
        seen = np.array(
            [
                number
                for number in seen.tolist()
                if selection.wants_queue(names[queues.topic[number]], int(queues.queue_id[number]))
            ],
            np.int64,
        )
    columns = {
        name: getattr(queues, name)[seen].tolist() for name in QueueColumns.__slots__ if name != "topics"
    }
    return QueueColumns(topics=names, **columns)


def attempt_id() -> str:
    """Unique among all processes that may be writing spills of this run."""
    return f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}"
