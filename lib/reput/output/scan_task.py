"""Scanning one part of the log and placing its consume-queue units: what a scan task does.

A unit's place is queueOffset x 20, so tasks write in any order and need no shuffle. Index keys are spilled.
Only counts, ranges and findings go back.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reput.build.units import PackedUnits, UnitColumns, by_queue, joined, pack_columns
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.names import Queue
from reput.output.whole_queues import QueueFiles
from reput.replay.key_spill import SpillWriter
from reput.replay.part_result import PartResult, pass_over
from reput.replay.runs import KeyRunWriter, RunWriter
from reput.replay.selection import Selection
from reput.replay.target import Target
from reput.replay.unit_spill import ROW, QueueSpillWriter, RowSpillWriter
from reput.scan import output
from reput.scan.fields import RecordFields, record_fields
from reput.scan.rules import Part
from reput.scan.table import QUEUE_REPEAT, QueueTable
from reput.store.temporary import attempt_directory

#: With more queues in a part than this, units are collected, 36 bytes each, up to the second number, and then
#: put aside: files for so many are made faster when all units of a file are known.
_FEW_QUEUES = 2048
_MOST_COLLECTED = 1 << 22


class Floors(Protocol):
    """Each queue's committed next queueOffset."""

    def get(self, queue: Queue, default: int, /) -> int:
        """A queue's, or the default."""
        ...

    def __len__(self) -> int: ...


def scan(target: Target, part: Part, floors: Floors) -> PartResult:
    """Scan ``part``, place its units, spill its keys.

    ``floors`` are each queue's next queueOffset as of the last commit. No task writes below that: those
    places are committed, and a record that names one may be a repeat, or not a message at all.
    """
    # Unique among all processes that may be writing spills of this run.
    attempt = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}"
    name = f"{part.start:020d}-{attempt}"
    path = target.scratch / f"{name}.keys"
    if target.several_hosts:
        path = attempt_directory(target.scratch) / "keys"
    spill = SpillWriter(None if target.keys_in_memory else path, for_others=target.several_hosts)
    waiting = RowSpillWriter(
        None if target.keys_in_memory else path.with_suffix(".units"), for_others=target.several_hosts
    )
    file_size = target.settings.consume_queue_file_size
    with (
        QueueSpillWriter(path.with_suffix(".queues")) as aside,
        QueueFiles(target.root, file_size, target.owner, whole=target.file_system()) as queue_files,
    ):
        few = 0 if target.several_hosts else _FEW_QUEUES
        placing = _Placing(target.selection, queue_files, aside, floors, few)
        setting_aside = _SettingAside(target, part, waiting)
        runs = RunWriter(target.runs, name, part.base)
        key_runs = KeyRunWriter(target.runs, name, part.base)

        def take(table: QueueTable, chunk: output.OutputArrays, data: NDArray[np.uint8]) -> None:
            if target.queue_files:
                ordered = setting_aside.add(table, chunk, data)
                if not target.queue_ext:
                    placing.add(table, chunk, ordered)
            elif target.queues_in_rocksdb:
                runs.add(table, chunk, data)
            if target.index:
                spill.add(chunk)
            if target.index_in_rocksdb:
                key_runs.add(chunk, data)

        def finish(table: QueueTable) -> None:
            placing.finish(table)
            runs.finish(table)
            key_runs.finish()

        result = pass_over(target, part, take, finish)
        if target.queue_files and target.queues_in_rocksdb:
            # Light queues go by other rules there.
            pass_over(target, part, runs.add, runs.finish, rocksdb=True)
        result.runs, result.key_runs = runs.paths, key_runs.paths
        if target.flush_in_tasks:
            queue_files.flush()
        if target.several_hosts:
            aside.flush()
        result.placed, result.in_files = aside.runs, placing.in_files
    result.spill = spill.close()
    result.waiting = waiting.close()
    return result


class _SettingAside:
    """Puts aside the units of one part that belong to queues which are written in log order."""

    def __init__(self, target: Target, part: Part, waiting: RowSpillWriter) -> None:
        self._target = target
        self._part = part
        self._waiting = waiting
        self._topics: list[bool] = []  # by the table's numbers: whether a topic's queues are such

    def add(self, table: QueueTable, chunk: output.OutputArrays, data: NDArray[np.uint8]) -> set[int]:
        """Take a chunk, which is used before this returns; returns the numbers of such queues."""
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
    """The bit maps of the queues of topics with filters; marks in ``rows`` which of them have one."""
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

    With more than ``few`` queues, more than files can be open, a chunk has a unit or two of each, and opening
    files would take longer than all the rest. Then chunks are collected and put aside; and always for those
    who put files together.
    """

    def __init__(
        self,
        selection: Selection,
        queue_files: QueueFiles,
        aside: QueueSpillWriter,
        floors: Floors,
        few: int,
    ) -> None:
        self._few = few
        self._selection = selection
        self._queue_files = queue_files
        self._aside = aside
        self._floors = floors
        self._collected: list[UnitColumns] = []
        self._count = 0
        self._ordered: set[int] = set()
        self.in_files = False

    def add(self, table: QueueTable, chunk: output.OutputArrays, ordered: set[int]) -> None:
        """Take a chunk, which is used before this returns.

        The queues numbered in ``ordered`` are written in log order, and not here.
        """
        self._ordered = ordered
        count = int(table.queue_count[0])
        if count <= self._few:
            self._place(table, pack_columns(UnitColumns.of(chunk), count))
            return
        self._collected.append(UnitColumns.of(chunk).copy())
        self._count += int(chunk.counts[output.UNITS])
        if self._count > _MOST_COLLECTED:
            self.finish(table)

    def finish(self, table: QueueTable) -> None:
        if self._collected:
            packed = pack_columns(joined(self._collected), int(table.queue_count[0]))
            self._aside.put(packed, self._wanted(table, packed))
        self._collected, self._count = [], 0

    def _place(self, table: QueueTable, packed: PackedUnits) -> None:
        names, starts = table.topic_names, packed.starts * UNIT_LENGTH
        for number in self._wanted(table, packed).tolist():
            self.in_files = True
            self._queue_files.put(
                names[int(table.queues.topic[number])].decode(),
                int(table.queues.queue_id[number]),
                int(packed.first[number]),
                packed.data.data[starts[number] : starts[number + 1]],
            )

    def _wanted(self, table: QueueTable, packed: PackedUnits) -> NDArray[np.int64]:
        """The queues whose units are placed now; the others later, in log order, when the batch is known."""
        queues = table.queues
        found: NDArray[np.int64] = np.flatnonzero(np.diff(packed.starts))
        found = found[queues.irregular[found] == 0]
        if self._ordered:
            found = found[~np.isin(found, list(self._ordered))]
        if self._selection.is_all and not self._floors:
            return found
        chosen = []
        for number in found.tolist():
            topic = table.topic_names[int(queues.topic[number])].decode()
            queue_id = int(queues.queue_id[number])
            if packed.first[number] < self._floors.get((topic, queue_id), 0):
                queues.irregular[number] |= QUEUE_REPEAT
            elif self._selection.wants_queue(topic, queue_id):
                chosen.append(number)
        return np.array(chosen, np.int64)
