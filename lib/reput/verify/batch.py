"""Batch queues: what the log says of them, and what their files hold; or those of two stores.

A unit's place says nothing of queueOffsets, so units are told apart by the record that they point to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.derived.files import SeriesReader, place_in
from reput.errors import Finding
from reput.format import names
from reput.format.batchconsumequeue import NOT_COMPACTED, UNIT_LENGTH
from reput.format.dtypes import BATCH_UNIT_DTYPE, are_written
from reput.format.names import Queue
from reput.newer_python import Self
from reput.replay.runner import Runner
from reput.replay.target import Selection
from reput.store.reading import reading
from reput.verify.explain import Explainer, of_range
from reput.verify.plan import Plan, queues_on_disk
from reput.verify.queue_files import series_files
from reput.verify.report import DIFFERS, ONLY_FIRST, ONLY_SECOND, Difference, Note, Report
from reput.verify.units import (
    BLANK,
    BLOCK,
    EXTRA,
    MISSING,
    MOST_RANGES,
    WRONG,
    Blocks,
    Range,
    add_ranges,
    pieces,
)
from reput.verify.waves import in_waves, of_each

if TYPE_CHECKING:
    from reput.verify.plan import Pair
    from reput.verify.run import LogRead
    from reput.verify.tasks import PartChecked

_LONG_MAX = (1 << 63) - 1
_QUEUES_AT_ONCE = 16
#: A unit that points before one that comes before it.
UNORDERED = "unordered-unit"
REPEATED = "repeated-unit"

_NAMES = {
    "size": "size",
    "tags": "tagsCode",
    "timestamp": "storeTimestamp",
    "base_offset": "msgBaseOffset",
    "batch_size": "batchSize",
    "compacted": "compactedOffset",
    "reserved": "reserved",
}


class BatchUnit(NamedTuple):
    """A unit's fields; see docs/formats/batchconsumequeue.md."""

    position: int
    size: int
    tags: int
    timestamp: int
    base_offset: int
    batch_size: int
    compacted: int
    reserved: int

    @property
    def end_offset(self) -> int:
        """The queueOffset after its last message, at least one after the first."""
        return self.base_offset + max(self.batch_size, 1)

    def __str__(self) -> str:
        text = f"{self.position}, {self.size} bytes, tagsCode {self.tags}, storeTimestamp {self.timestamp}"
        text += f", queueOffset {self.base_offset}, {self.batch_size} messages"
        if (self.compacted, self.reserved) != (NOT_COMPACTED, 0):
            text += f", compactedOffset {self.compacted}, reserved {self.reserved}"
        return text


class Found(NamedTuple):
    """Units that are there."""

    units: NDArray[Any]  # BATCH_UNIT_DTYPE[n], in the order of files and places
    place: NDArray[np.int64]  # int64[n], byte offsets in the queue

    @classmethod
    def of(cls, blocks: list[tuple[int, bytes]], start: int, end: int) -> Found:
        """Those that point into [start, end) of the log, of (byte offset in the queue, packed units)."""
        units, places = [np.zeros(0, BATCH_UNIT_DTYPE)], [np.zeros(0, np.int64)]
        for place, data in blocks:
            block = units_of(data)
            rows = np.flatnonzero(
                (block["position"] >= start) & (block["position"] < end) & are_written(block)
            )
            units.append(block[rows])
            places.append(place + UNIT_LENGTH * rows.astype(np.int64))
        return cls(np.concatenate(units), np.concatenate(places))


NOTHING = Found(np.zeros(0, BATCH_UNIT_DTYPE), np.zeros(0, np.int64))


def units_of(data: bytes) -> NDArray[Any]:
    """Packed units as a structured array, BATCH_UNIT_DTYPE[units]; what is left over at the end isn't one."""
    return np.frombuffer(data, BATCH_UNIT_DTYPE, len(data) // UNIT_LENGTH)


def compare_batch(expected: NDArray[Any], found: Found) -> list[Range]:
    """Compare the units that the log has for one queue in a range of it with those that point there."""
    order = np.argsort(found.units["position"], kind="stable")
    units, places = found.units[order], found.place[order]
    position = units["position"].astype(np.int64)
    wanted = expected["position"].astype(np.int64)
    again = np.zeros(len(units), bool)
    again[1:] = position[1:] == position[:-1]
    at = np.searchsorted(position, wanted)
    met = at < len(position)
    met[met] = position[at[met]] == wanted[met]
    # Where a missing one should be, the next one is.
    place = np.append(places, -1)[at]
    lost = np.flatnonzero(~met)
    # Those of a queue that was deleted and those of its successor are reported separately.
    incarnation = np.cumsum(begins_anew(expected))
    ranges = []
    for piece in pieces(lost, lost + incarnation[lost], MOST_RANGES):
        ranges.append(_range(MISSING, None, expected, piece, int(place[piece[0]])))
    ranges += _wrong(expected, units, places, np.flatnonzero(met), at)
    known = np.zeros(len(units), bool)
    known[at[met]] = True
    for what, rows in ((REPEATED, np.flatnonzero(again)), (None, np.flatnonzero(~known & ~again))):
        for piece in pieces(rows, places[rows] // UNIT_LENGTH, MOST_RANGES):
            ranges.append(_range(EXTRA, what, units, piece, int(places[piece[0]])))
    return ranges


def begins_anew(expected: NDArray[Any]) -> NDArray[np.bool_]:
    """bool[n]: whether a queue with units begins again with this one: its topic was deleted and created."""
    anew: NDArray[np.bool_] = expected["base_offset"] == 0
    return anew & (np.arange(len(expected)) > 0)


def _wrong(
    expected: NDArray[Any],
    units: NDArray[Any],
    places: NDArray[np.int64],
    met: NDArray[np.int64],
    at: NDArray[np.int64],
) -> Iterator[Range]:
    """Units of the right records whose fields aren't the records'."""
    ways = np.zeros(len(met), np.int64)
    for bit, name in enumerate(_NAMES):
        ways |= (expected[name][met] != units[name][at[met]]).astype(np.int64) << bit
    for way in np.unique(ways[ways > 0]).tolist():
        said = " and ".join(text for bit, text in enumerate(_NAMES.values()) if way >> bit & 1)
        rows = met[ways == way]
        for piece in pieces(rows, rows, MOST_RANGES):
            row = int(at[piece[0]])
            yield _range(WRONG, said, expected, piece, int(places[row]), _unit(units, row))


def _range(
    kind: str,
    field: str | None,
    units: NDArray[Any],
    rows: NDArray[np.int64],
    place: int,
    found: BatchUnit | None = None,
) -> Range:
    """A range of some units, told by their own queueOffsets: the log's, or those that are there."""
    first, last = _unit(units, rows[0]), _unit(units, rows[-1])
    span = first.base_offset, max(last.end_offset, first.base_offset), len(rows)
    if kind in (MISSING, WRONG):
        return Range(kind, field, *span, first, found, place=place, last=last.position)
    return Range(kind, field, *span, None, first, place=place)


def _unit(units: NDArray[Any], row: int | np.int64) -> BatchUnit:
    return BatchUnit(*units[int(row)].tolist())


def order_ranges(
    units: NDArray[Any], blank: NDArray[np.bool_], place: int, highest: int, log_end: int
) -> tuple[list[Range], int]:
    """Units of consecutive places that point before one that comes before them.

    A unit that points behind the log isn't in anybody's way.
    """
    position = units["position"].astype(np.int64)
    inside = ~blank & (position >= 0) & (position < log_end)
    highs = np.maximum.accumulate(np.append(highest, np.where(inside, position, -1)))
    rows = np.flatnonzero(inside & (position < highs[:-1]))
    ranges = [
        _range(UNORDERED, None, units, piece, place + UNIT_LENGTH * int(piece[0]))
        for piece in pieces(rows, rows, MOST_RANGES)
    ]
    return ranges, int(highs[-1])


class BatchRun(NamedTuple):
    """Blocks of a file of a queue, some of whose units may point into a range of the log."""

    queue: Queue
    base: int  # the file
    first: int  # first, end: blocks, half open
    end: int


@dataclass(slots=True)
class BatchFiles:
    """What came of one batch queue's files."""

    topic: str
    queue_id: int
    #: units that don't stand in log order, and zeros among units
    ranges: list[Range] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)  # files that are wrong
    count: int = 0  # units
    blanks: int = 0  # places of nothing before the last unit
    blocks: dict[int, Blocks] = field(default_factory=dict)  # where units point to, by file

    @property
    def has_any(self) -> bool:
        """Whether there is a file that counts as one of the queue's."""
        return bool(self.blocks or self.problems)

    @property
    def least(self) -> int:
        """The least physical offset that a unit points to; past all without one."""
        return min(
            (int(one.least.min()) for one in self.blocks.values() if len(one.least)), default=_LONG_MAX
        )

    @property
    def greatest(self) -> int:
        """The greatest one, -1 without one."""
        return max((int(one.greatest.max(initial=-1)) for one in self.blocks.values()), default=-1)

    def runs(self, start: int, end: int) -> Iterator[BatchRun]:
        """The blocks that may hold units which point into [start, end) of the log."""
        for base, blocks in self.blocks.items():
            for run in blocks.reaching(start, end):
                yield BatchRun((self.topic, self.queue_id), base, *run)


def look_at(root: Path, file_size: int, queue: Queue, log_end: int, *, running: bool = False) -> BatchFiles:
    """Read a batch queue's files once.

    Where a broker runs, units of messages from ``log_end`` on are let be, and so is what stands before them:
    it may have been written since it was read.
    """
    result = BatchFiles(*queue)
    files, result.problems = series_files(names.batch_queue_directory(root, *queue), queue, file_size)
    highest, blank_at, blanks = -1, -1, 0
    for base, path in files:
        bounds: list[tuple[int, int]] = []
        for first, data in _blocks(path, file_size):
            units = units_of(data)
            blank = ~are_written(units)
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
                    one = Range(BLANK, None, 0, 0, blanks + len(before), None, None, place=blank_at)
                    add_ranges(result.ranges, [one])
                    result.blanks += blanks + len(before)
                blanks, blank_at = 0, -1
            after = zeros[len(before) :]
            if len(after) and blank_at < 0:
                blank_at = place + int(after[0]) * UNIT_LENGTH
            blanks += len(after)
            used = position[~blank]
            bounds.append((int(used.min()), int(used.max())) if len(used) else (_LONG_MAX, -1))
            if len(used):
                ranges, highest = order_ranges(units, blank, place, highest, log_end)
                add_ranges(result.ranges, ranges)
                result.count += len(used)
        result.blocks[base] = Blocks(*np.array(bounds, np.int64).reshape(-1, 2).T)
    return result


def _blocks(path: Path, file_size: int) -> Iterator[tuple[int, bytes]]:
    """(number of its first unit, bytes) of each block of a file."""
    with reading(path) as fd:
        units = min(os.fstat(fd).st_size, file_size) // UNIT_LENGTH
        for first in range(0, units, BLOCK):
            count = min(BLOCK, units - first)
            data = os.pread(fd, count * UNIT_LENGTH, first * UNIT_LENGTH)
            yield first, data[: len(data) // UNIT_LENGTH * UNIT_LENGTH]


def read_runs(settings: StoreSettings, runs: Sequence[BatchRun], start: int, end: int) -> dict[Queue, Found]:
    """The units of some blocks, those of one file one after the other, that point into [start, end)."""
    file_size = settings.recovery.batch_queue_file_size
    blocks: dict[Queue, list[tuple[int, bytes]]] = {}
    with SeriesReader(settings.root, file_size, names.BATCH_CONSUME_QUEUE, 1) as reader:
        for run in runs:
            fd = reader.descriptor(*run.queue, run.base)
            if fd >= 0:
                first, stop = (min(one * BLOCK, file_size // UNIT_LENGTH) for one in run[2:])
                data = os.pread(fd, (stop - first) * UNIT_LENGTH, first * UNIT_LENGTH)
                whole = data[: len(data) // UNIT_LENGTH * UNIT_LENGTH]
                blocks.setdefault(run.queue, []).append((run.base + first * UNIT_LENGTH, whole))
    return {queue: Found.of(found, start, end) for queue, found in blocks.items()}


class InLog(NamedTuple):
    """What a range of the log has of a batch queue."""

    first: int  # queueOffset of its first message
    position: int  # physical offset of that message's record
    last: int  # that of the last record
    units: int  # how many records
    anew: int  # physical offset of the last record with which the queue begins again, -1

    @classmethod
    def of(cls, expected: NDArray[Any]) -> Self:
        """That of the units that a queue has to have, BATCH_UNIT_DTYPE[n], in log order; one at least."""
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
    """What came of batch queues over a range of the log."""

    ranges: dict[Queue, list[Range]] = field(default_factory=dict)  # units that differ, by queue
    queues: dict[Queue, InLog] = field(default_factory=dict)  # of the log, by queue
    bad: list[Finding] = field(default_factory=list)  # messages without a unit


def compare_runs(
    batch: Mapping[Queue, Sequence[NDArray[Any]]],
    settings: StoreSettings,
    runs: Sequence[BatchRun],
    start: int,
    end: int,
) -> BatchCompared:
    """Compare the units that batch queues have to have with those that point into [start, end) of the log."""
    done = BatchCompared()
    found = read_runs(settings, runs, start, end)
    for queue in sorted(batch.keys() | found.keys()):
        expected = np.concatenate([np.zeros(0, BATCH_UNIT_DTYPE), *batch.get(queue, ())])
        add_ranges(done.ranges.setdefault(queue, []), compare_batch(expected, found.get(queue, NOTHING)))
        if len(expected):
            done.queues[queue] = InLog.of(expected)
    return done


class BatchMap(dict[Queue, BatchFiles]):
    """The batch queues' files, and where their units point to, block by block."""

    @classmethod
    def of(
        cls, runner: Runner, settings: StoreSettings, selection: Selection, log_end: int, *, running: bool
    ) -> Self:
        """Read the files of a store once; see :func:`look_at`."""
        if not settings.dialect.recovery.switches_queue_types:
            return cls()  # a release before 5.0 reads none
        queues = queues_on_disk(settings.root / names.BATCH_CONSUME_QUEUE, selection)
        file_size = settings.recovery.batch_queue_file_size
        look = partial(look_at, settings.root, file_size, log_end=log_end, running=running)
        found = of_each(runner, look, queues, _QUEUES_AT_ONCE)
        return cls({(each.topic, each.queue_id): each for each in found})

    def runs(self, start: int, end: int) -> tuple[BatchRun, ...]:
        """The blocks that may hold units which point into [start, end) of the log."""
        return tuple(run for files in self.values() for run in files.runs(start, end))


class BatchCheck:
    """The batch queues' side of one run. Without queues until :meth:`find`.

    Attributes:
        queues: those of the log.
        bad: messages that got no unit.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self._plan = plan
        self._runner = runner
        self.map = BatchMap()
        self.queues: dict[Queue, InLog] = {}
        self.bad: list[Finding] = []
        self._ranges: dict[Queue, list[Range]] = {}

    def find(self, _proven: object, _held: ExitStack) -> None:
        """See :class:`reput.verify.run.Form`."""
        plan = self._plan
        if plan.settings.rocksdb.files:
            self.map = BatchMap.of(
                self._runner, plan.settings, plan.selection, plan.end, running=plan.running
            )
            self._ranges = {queue: list(found.ranges) for queue, found in self.map.items()}

    def add(self, checked: PartChecked) -> None:
        """See :class:`reput.verify.run.Form`."""
        self._add(checked.batch)

    def _add(self, compared: BatchCompared) -> None:
        for queue, ranges in compared.ranges.items():
            add_ranges(self._ranges.setdefault(queue, []), ranges)
        for queue, here in compared.queues.items():
            known = self.queues.get(queue)
            self.queues[queue] = here if known is None else known.then(here)
        for finding in compared.bad:
            queues = [(one.topic, one.queue_id) for one in self.bad]
            if (finding.topic, finding.queue_id) in queues:
                at = queues.index((finding.topic, finding.queue_id))
                self.bad[at] = replace(self.bad[at], count=self.bad[at].count + finding.count)
            else:
                self.bad.append(finding)

    def compare(self, log: LogRead, _proven: object) -> None:
        """Compare units that point to where no part was."""
        tasks = [
            partial(compare_runs, {}, self._plan.settings, runs, start, end)
            for start, end in log.uncovered()
            if (runs := self.map.runs(start, end))
        ]
        for compared in in_waves(self._runner, tasks):
            self._add(compared)

    def findings(self, explainer: Explainer) -> Iterator[Difference | Note]:
        """What is wrong, and what was deleted with its topic."""
        for queue, ranges in sorted(self._ranges.items()):
            files = self.map.get(queue) or BatchFiles(*queue)
            dropped = self._dropped(queue, files)
            deleted = 0
            for one in sorted(ranges, key=lambda each: (each.place, each.first)):
                if one.kind == MISSING and one.last < dropped:
                    deleted += one.count
                else:
                    yield _difference(explainer, queue, one, files)
            if deleted:
                kind = "queue-restarted" if files.has_any else "deleted-queue"
                text = f"{queue[0]}:{queue[1]} has no unit of {deleted:,} records: "
                text += "the topic was deleted and created again since"
                yield Note(kind, text, *queue, deleted)
            yield from files.problems

    def _dropped(self, queue: Queue, files: BatchFiles) -> int:
        """The physical offset before which a live broker has dropped the queue's units, -1 for none.

        A queue with an older unit is one that was rebuilt since: it has them all.
        """
        known = self.queues.get(queue)
        if known is None:
            return -1
        if not files.has_any:
            # The whole queue went with its topic, and got no message since.
            anew = max(each.anew for (topic, _), each in self.queues.items() if topic == queue[0])
            return anew if anew > known.last else known.anew
        return known.anew if files.least >= known.anew else -1

    @property
    def units(self) -> int:
        """Units that the log has."""
        return sum(each.units for each in self.queues.values())


def _difference(explainer: Explainer, queue: Queue, one: Range, files: BatchFiles) -> Difference:
    cause = "zeroed" if one.kind == BLANK else None
    expected, found = _said(one)
    unit = one.expected or one.found
    position = unit.position if isinstance(unit, BatchUnit) else -1
    if one.kind == EXTRA:
        cause, target = explainer.target(position)
        cause = REPEATED if one.field == REPEATED else cause
        found += f" ({target})"
    elif one.kind == UNORDERED:
        expected = "a unit of a later message than those before"
    elif one.kind == BLANK:
        expected = "a unit"
    elif one.kind == MISSING:
        if not files.count:
            cause = "queue-lost"
        elif position > files.greatest:
            cause = "queue-short"
        elif position < files.least:
            cause = "queue-begins-late"
        elif files.blanks:
            cause = "zeroed"
    return of_range(queue, one, _place(explainer.plan.settings, queue, one), (expected, found), cause)


def _said(one: Range) -> tuple[str, str]:
    """What is expected and found, in words."""
    return str(one.expected or "nothing"), str(one.found or "nothing")


def _place(settings: StoreSettings, queue: Queue, one: Range) -> tuple[Path, int]:
    """The file in which a range of a batch queue begins, and where there; the directory if none is known."""
    directory = names.batch_queue_directory(settings.root, *queue)
    file_size = settings.recovery.batch_queue_file_size
    return (directory, 0) if one.place < 0 else place_in(directory, file_size, one.place)


# --- two stores -------------------------------------------------------------------------------------------


def compare_batch_queues(pair: Pair, runner: Runner, selection: Selection, report: Report) -> None:
    """Compare the units of two stores' batch queues that point into what both logs have."""
    stores = pair.first, replace(pair.second, dialect=pair.first.dialect)
    left, right = (
        BatchMap.of(runner, settings, selection, pair.end, running=pair.running) for settings in stores
    )
    report.queues += len(left.keys() | right.keys())
    tasks = [
        partial(_compare_two, stores, start, end, *runs)
        for start, end in pair.parts()
        if any(runs := (left.runs(start, end), right.runs(start, end)))
    ]
    found: dict[Queue, list[Range]] = {}
    for compared in in_waves(runner, tasks):
        for queue, units, ranges in compared:
            report.units += units
            add_ranges(found.setdefault(queue, []), ranges)
    for queue, ranges in sorted(found.items()):
        for one in ranges:
            kind = {MISSING: ONLY_FIRST, EXTRA: ONLY_SECOND}.get(one.kind, DIFFERS)
            expected, its = _said(one)
            both = f"{expected} (first store)", f"{its} (second store)"
            place = _place(stores[1], queue, one)
            report.findings.append(of_range(queue, replace(one, kind=kind), place, both, None))
    # What stands out of order, or behind zeros, counts as it does for a check: expired messages' units, too.
    told = {(one.topic, one.queue_id) for one in report.findings}
    for at, (mine, others) in enumerate(((left, right), (right, left))):
        for queue in sorted((left.keys() & right.keys()) - told):
            known = {(one.kind, one.first, one.count) for one in others[queue].ranges}
            for one in mine[queue].ranges:
                if (one.kind, one.first, one.count) not in known:
                    odd = "zeros before units" if one.kind == BLANK else f"{_said(one)[1]} after a later one"
                    said = [odd, "units in another order"][:: -1 if at else 1]
                    both = f"{said[0]} (first store)", f"{said[1]} (second store)"
                    place = _place(stores[at], queue, one)
                    report.findings.append(of_range(queue, replace(one, kind=DIFFERS), place, both, None))


def _compare_two(
    stores: tuple[StoreSettings, StoreSettings],
    start: int,
    end: int,
    left_runs: Sequence[BatchRun],
    right_runs: Sequence[BatchRun],
) -> list[tuple[Queue, int, list[Range]]]:
    """(queue, units in the first store, what differs) of each with units that point into [start, end)."""
    left, right = read_runs(stores[0], left_runs, start, end), read_runs(stores[1], right_runs, start, end)
    done = []
    for queue in sorted(left.keys() | right.keys()):
        units = left.get(queue, NOTHING).units
        units = units[np.argsort(units["position"], kind="stable")]
        done.append((queue, len(units), compare_batch(units, right.get(queue, NOTHING))))
    return done
