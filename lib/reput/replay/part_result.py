"""The results of scanning one part of the log: its queues and index keys; nothing is written.

Parts in the middle of a segment begin at a guess (the first whole record that names its own place). It is
right unless a message's body, or the bytes behind a BLANK, hold a record that names that same place. A part
that doesn't fit is scanned again from where the log really continues; what it placed is placed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.errors import Finding
from reput.format.names import Queue
from reput.log.segments import SegmentBytes, open_segment
from reput.remote import is_elsewhere
from reput.remote.store import await_copy
from reput.replay.runner import Runner
from reput.replay.spills import QueueRuns, RowSpill, Spill
from reput.replay.target import Selection, Target
from reput.scan import output
from reput.scan.output import Status
from reput.scan.part import _MAGIC_END, PartOutcome, scan_part, wrong_end
from reput.scan.rules import Part
from reput.scan.table import QueueTable
from reput.store import witness
from reput.store.reading import written


@dataclass(slots=True)
class ScannedPart:
    """A part, and what the scan says of its records."""

    part: Part  # the part
    outcome: PartOutcome  # where it began and ended, and the findings
    messages: int  # how many records it has
    last_timestamp: int  # storeTimestamp of the last one, ms; the part's ``after_timestamp`` without records


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a part's result."""

    accepted: bool  # the result counts
    again: Part | None = None  # the part to scan instead, None if nothing is missing


class Chain:
    """The log as far as its parts have been joined.

    ``cursor`` is the physical offset up to which they have, ``last_timestamp`` the storeTimestamp, ms, of the
    last record that was taken, and ``newest`` that of the last whole one, dispatchable or not.
    """

    def __init__(self, cursor: int, last_timestamp: int) -> None:
        self.cursor = cursor
        self.last_timestamp = self.newest = last_timestamp
        self.findings: list[Finding] = []
        self.breaks: list[int] = []
        self.unproven: list[tuple[int, int]] = []
        self._part: Part | None = None
        self._status = Status.END
        self._rest_is_zero = False
        self._entries = False

    def judge(self, result: ScannedPart) -> Verdict:
        """Whether ``result`` fits; an accepted one advances the chain."""
        part, outcome = result.part, result.outcome
        if self._part is None or part.base != self._part.base:
            if part.last and outcome.breaks and part.after_timestamp != self.newest:
                # What a truncation left over is recognized by the time of the record before the damage.
                return Verdict(False, replace(part, after_timestamp=self.newest))
            self._close()
            self.cursor = part.start
            self._take(result)
            return Verdict(True)
        if self._status is Status.BLANK:
            # Bytes after a BLANK mean nothing, even where they look like records.
            return Verdict(False)
        nothing = outcome.first < 0
        if self._status is Status.END:
            if outcome.first == self.cursor and (not part.exact or part.start == self.cursor):
                self._take(result)
                return Verdict(True)
            if nothing and self.cursor >= part.end:
                return Verdict(True)
        elif self._status is Status.UNWRITTEN and self._rest_is_zero and nothing and outcome.rest_is_zero:
            self._part = part
            return Verdict(True)
        if part.exact and part.start == self.cursor:
            self._take(result)
            return Verdict(True)
        again = replace(part, start=self.cursor, exact=True, after_timestamp=self.newest)
        return Verdict(False, again if again.start < again.end else None)

    def finish(self) -> int:
        """End the batch; returns the physical offset that it reaches."""
        self._close()
        return self.cursor

    def _take(self, result: ScannedPart) -> None:
        outcome = result.outcome
        self._part = result.part
        self._status = outcome.status
        self._rest_is_zero = outcome.rest_is_zero
        self._entries = outcome.entries
        self.cursor = outcome.end
        if result.messages:
            self.last_timestamp = result.last_timestamp
        if outcome.newest is not None:
            self.newest = outcome.newest
        self.findings += outcome.findings
        self.breaks += outcome.breaks
        self.unproven += outcome.unproven

    def _close(self) -> None:
        """Leave a segment. Its end is only checked if the batch reaches it."""
        part = self._part
        if part is None or part.end < part.base + part.segment_length:
            return
        end = part.base + part.segment_size
        if self._status is Status.BLANK or self.cursor >= end:
            self.cursor = end
            return
        segment = open_segment(part.path, part.segment_length)
        # All of what is wrong is told by what stands at the cursor.
        segment.fetch_frame(self.cursor - part.base)
        data = segment.data
        finding = wrong_end(
            part, data, self.cursor, self._status, rest_is_zero=self._rest_is_zero, entries=self._entries
        )
        if finding is not None:
            self.findings.append(finding)
        if not part.last:
            self.breaks.append(self.cursor)
            self.cursor = end


@dataclass(frozen=True, slots=True)
class QueueColumns:
    """The queues of a part, column by column; see :class:`reput.scan.table.QueueArrays`."""

    topics: list[str]  # the names of the part's topics, by number
    number: NDArray[np.int64]  # int64[queues], each queue's number in the part's table, ascending
    topic: NDArray[np.int32]
    queue_id: NDArray[np.int32]
    first: NDArray[np.int64]
    next: NDArray[np.int64]
    units: NDArray[np.int64]
    bytes: NDArray[np.int64]
    first_position: NDArray[np.int64]
    last_position: NDArray[np.int64]
    end: NDArray[np.int64]
    last_timestamp: NDArray[np.int64]
    irregular: NDArray[np.uint8]

    def queues(self) -> list[Queue]:
        """Topic and queue id of each."""
        topics = map(self.topics.__getitem__, self.topic.tolist())
        return list(zip(topics, self.queue_id.tolist(), strict=True))


@dataclass(slots=True)
class PartResult(ScannedPart):
    """What a part holds."""

    message_bytes: int  # of all its records
    last_position: int  # physical offset of its last record; undefined without records
    queues: QueueColumns  # per queue
    #: (topic, messages, physical offset of the first) where a topic got no units
    without_unit: list[tuple[bytes, int, int]]
    spill: Spill | None  # its index keys, None if it has none
    waiting: RowSpill  # its units of queues that are written in log order, by queue
    seconds: float  # wall time of the task
    #: its units of other queues that the task has put aside, None if there are none
    placed: QueueRuns | None = None
    in_files: bool = True  # the task may have written units of other queues into their files
    #: runs, key_runs: the files that hold its units and index keys for databases, in log order
    runs: list[str] = field(default_factory=list)
    key_runs: list[str] = field(default_factory=list)

    def forget_queues(self) -> None:
        """Have no queues any more: of a part with a million, they take 150 MB."""
        none = {name: getattr(self.queues, name)[:0].copy() for name in QueueColumns.__slots__}
        self.queues = QueueColumns(**none)


def witnessed(runner: Runner, part: Part) -> Part:
    """The part for ``runner``'s functions, which on other hosts compare what they read."""
    if runner.is_local or is_elsewhere(part.path):
        return part  # what lies elsewhere is pinned
    return replace(part, witness=witness.witness(part.path, part.start - part.base, part.end - part.base))


def _opened(part: Part) -> SegmentBytes:
    """The part's segment, checked to be what the driver sees."""
    await_copy(part.path)
    segment = open_segment(part.path, part.segment_length, keeps=False)
    if part.witness is not None:
        part.witness.check_mapped(segment.data, part.base)
    return segment


def pass_over(
    target: Target,
    part: Part,
    take: Callable[[QueueTable, output.OutputArrays, NDArray[np.uint8]], None],
    finish: Callable[[QueueTable], None] = lambda _table: None,
    *,
    rocksdb: bool = False,
) -> PartResult:
    """Scan ``part`` and pass on what is found in it, chunk by chunk; nothing is written, also no spill.

    ``take`` gets the table, a chunk and the segment, uint8[segment_length], all to be used before it returns.
    Of a segment elsewhere the chunk's records are there. ``rocksdb``: by the rules of queues in RocksDB,
    without index keys, where queues are in files as well.
    """
    started = time.perf_counter()
    segment = _opened(part)
    table = target.rocksdb_table() if rocksdb else target.table()
    rules = target.rules()
    if rocksdb:
        rules = target.rocksdb_rules()._replace(index_keys=False, index_tags=False)
    out = _output()
    outcome = PartOutcome()
    passed_over = target.settings.passed_over
    scanned = replace(part, end=part.start) if _is_hole(part) else part
    for chunk in scan_part(scanned, segment.data, rules, table, out, outcome, segment.arriving, passed_over):
        take(table, chunk, segment.data)
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


def _is_hole(part: Part) -> bool:
    """Whether nothing was ever written to a part: its pages needn't be read to see that it is zeros."""
    if part.exact or is_elsewhere(part.path):
        return False
    start, end = part.start - part.base, part.end - part.base
    return not written("the segment", part.path, start, min(end + _MAGIC_END, part.segment_length))


class QueueRows(NamedTuple):
    """One queue's units in log order."""

    offset: NDArray[np.int64]  # offset, position, tags: int64[rows], queueOffset, physicalOffset, tagsCode
    position: NDArray[np.int64]
    size: NDArray[np.int32]  # int32[rows], bytes
    tags: NDArray[np.int64]

    def only(self, chosen: NDArray[np.bool_]) -> QueueRows:
        """Some of the rows, bool[rows]."""
        return self if chosen.all() else self.only_at(np.flatnonzero(chosen))

    def only_at(self, rows: NDArray[np.int64]) -> QueueRows:
        """These rows, int64[rows], in this order."""
        return QueueRows(*(column[rows] for column in self))  # type: ignore[arg-type]


def collect(target: Target, parts: list[Part], wanted: set[Queue]) -> dict[Queue, QueueRows]:
    """The units of some queues over several parts, in log order; nothing is written."""
    pieces: dict[Queue, list[QueueRows]] = {queue: [] for queue in wanted}
    scan_rules = target.rules()._replace(index_keys=False, index_tags=False)
    passed_over = target.settings.passed_over
    for part in parts:
        segment = _opened(part)
        table = target.table()
        data, out, outcome = segment.data, _output(), PartOutcome()
        for chunk in scan_part(part, data, scan_rules, table, out, outcome, segment.arriving, passed_over):
            used = int(chunk.counts[output.UNITS])
            unit_queue = chunk.unit_queue[:used]
            for number in np.unique(unit_queue).tolist():
                name = table.topic_names[int(table.queues.topic[number])].decode()
                queue = (name, int(table.queues.queue_id[number]))
                if queue not in wanted:
                    continue
                rows = np.flatnonzero(unit_queue == number)
                columns = (chunk.unit_offset, chunk.unit_position, chunk.unit_size, chunk.unit_tags)
                pieces[queue].append(QueueRows(*(column[rows] for column in columns)))  # type: ignore[arg-type]
    return {
        queue: QueueRows(*map(np.concatenate, zip(*found, strict=True)))
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
    apart = ("topics", "number")
    columns = {name: getattr(queues, name)[seen] for name in QueueColumns.__slots__ if name not in apart}
    return QueueColumns(topics=names, number=seen, **columns)
