"""Two stores' queues and index side by side: a master's and its slave's, or a store's and a rebuilt one's.

A slave has its master's log byte for byte, so that what is derived of what both have is the same, wherever
their logs begin and end, and whatever their index files are called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError
from reput.format import names
from reput.format.consumequeue import PRE_BLANK_SIZE, UNIT_LENGTH
from reput.format.consumequeueext import MAX_ADDRESS
from reput.log.segments import discover, without_unwritten_end
from reput.replay.processes import on_this_host
from reput.replay.runner import Runner
from reput.replay.selection import Selection
from reput.rocksdb.reader import is_installed
from reput.statistics.count import Listener
from reput.store.reading import extents, reading
from reput.store.witness import store_seen
from reput.verify.batch_check import find_batch_units
from reput.verify.batch_files import BatchRun, read_runs
from reput.verify.batch_units import BatchRange, compare_batch
from reput.verify.entries import KeyRange, compare_two
from reput.verify.explain import batch_place, of_range
from reput.verify.ext import WHOLE, Records
from reput.verify.index_check import find_entries
from reput.verify.index_file import IndexInfo, index_files, path_for
from reput.verify.outside import place_in
from reput.verify.plan import (
    VerifyOptions,
    files_of,
    may_be_running,
    no_such_queue,
    open_store,
    queues_on_disk,
)
from reput.verify.report import DIFFERS, INDEX, ONLY_FIRST, ONLY_SECOND, Difference, Note, Report
from reput.verify.rocksdb_against import compare_databases, compare_indexes
from reput.verify.tasks import NOTHING, Readers, in_waves, of_each
from reput.verify.units import (
    EXTRA,
    MISSING,
    MOST_RANGES,
    Unit,
    UnitRange,
    add_ranges,
    pieces,
    span,
    units_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNITS_AT_ONCE = 1 << 18
_QUEUES_AT_ONCE = 64


def verify_against(
    pair: Pair,
    start_spark: Callable[[], SparkSession] | None,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Report:
    """Compare a store's derived files with another's.

    Args:
        start_spark: gives the session; only called when nothing speaks against the run. None: on processes of
            this host, without Spark.
        listener: gets bytes of queue files that were compared, units, and 0, since their sum is not known.
    """
    if start_spark is None:
        elsewhere = pair.first.remote is not None or pair.second.remote is not None
        with on_this_host(pair.end - pair.start, elsewhere=elsewhere) as runner:
            return compare_pair(pair, runner, listener)
    from reput.spark.runner import SparkRunner
    from reput.spark.sessions import converting_spark_errors

    with converting_spark_errors():
        runner = SparkRunner(start_spark().sparkContext)
        if not runner.is_local:
            seen = (store_seen(settings.root, live=pair.running) for settings in (pair.first, pair.second))
            runner.demand(*seen)
        return compare_pair(pair, runner, listener)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two stores to compare.

    Attributes:
        first, second: their settings.
        start, end: physical offsets that both logs have, half open.
        running: somebody writes to one of them.
        queue_ext: a tagsCode may be an address in consumequeue_ext, which each broker gives by itself.
    """

    options: VerifyOptions
    first: StoreSettings
    second: StoreSettings
    start: int
    end: int
    running: bool
    queue_ext: bool


def prepare_pair(options: VerifyOptions) -> Pair:
    """Look at what there is; a second store without a commit log is taken to have the first one's.

    Raises:
        ReputError: they can't be compared.
    """
    from reput.log.end import LogEnd

    if options.against is None:
        raise SettingsError("there is nothing to compare with", expected="--against DIR")
    stores = [open_store(root, options) for root in (options.store, options.against)]
    bounds: list[tuple[int, int]] = []
    for settings in stores:
        try:
            log = without_unwritten_end(discover(settings))
        except StoreError:
            if not bounds:
                raise
            continue
        bounds.append((log.start, LogEnd(settings).find(log)))
    start, end = max(low for low, _ in bounds), min(high for _, high in bounds)
    if stores[0].rocksdb.files:
        _refuse_unknown(stores, Selection.parse(options.queues))
    return Pair(
        options=options,
        first=stores[0],
        second=stores[1],
        start=start,
        end=max(start, end),
        running=any(may_be_running(settings.root) for settings in stores),
        queue_ext=any((settings.root / names.CONSUME_QUEUE_EXT).is_dir() for settings in stores),
    )


def _refuse_unknown(stores: list[StoreSettings], selection: Selection) -> None:
    """See that one of the stores has what was asked for: two that don't have it are the same.

    Raises:
        SettingsError: neither has.
    """
    kinds = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
    for topic, queue_id in sorted(selection.queues, key=str):
        one = Selection(frozenset({(topic, queue_id)}))
        if not any(queues_on_disk(each.root / kind, one) for each in stores for kind in kinds):
            expected = "a queue that has files in one of the stores"
            raise no_such_queue(stores[0].root, (topic, queue_id), expected)


@dataclass(slots=True)
class QueuePair:
    """What came of one queue.

    Attributes:
        ranges: places that differ, of kind ONLY_FIRST, ONLY_SECOND or DIFFERS: ``expected`` and ``found`` are
            the first and the second store's.
        units: of messages that both logs have, in the first store.
        bytes: that were compared.
        ext: units whose tagsCode is an address in both: what that leads to was compared.
    """

    topic: str
    queue_id: int
    ranges: list[UnitRange] = field(default_factory=list)
    units: int = 0
    bytes: int = 0
    ext: int = 0


def _compare_queue(pair: Pair, queue: tuple[str, int]) -> QueuePair:
    """Compare a queue's units; OSError where a file can't be read."""
    result = QueuePair(*queue)
    size = pair.first.consume_queue_file_size
    roots = (pair.first.root, pair.second.root)
    bases = sorted({base for root in roots for base in files_of(root, *queue) if base % size == 0})
    with Readers(pair.first) as left, Readers(replace(pair.first, root=pair.second.root)) as right:
        for base in bases:
            end = max(_written_end(root, queue, base, size) for root in roots) // UNIT_LENGTH
            place = base // UNIT_LENGTH
            for first in range(place, place + end, _UNITS_AT_ONCE):
                count = min(_UNITS_AT_ONCE, place + end - first)
                _compare_places(pair, first, count, left, right, result)
    return result


def _compare_places(
    pair: Pair, first: int, count: int, left_store: Readers, right_store: Readers, result: QueuePair
) -> None:
    queue = result.topic, result.queue_id
    left = left_store.queue.read(*queue, first, count)
    right = right_store.queue.read(*queue, first, count)
    one, other = units_of(left), units_of(right)
    void, other_void = _void(pair, one), _void(pair, other)
    result.units += int((~void).sum())
    result.bytes += len(left)
    if left == right and not pair.queue_ext:
        return
    same = (one["position"] == other["position"]) & (one["size"] == other["size"])
    tags = one["tags"] == other["tags"]
    if pair.queue_ext:
        addresses, its_addresses = one["tags"].astype(np.int64), other["tags"].astype(np.int64)
        lead = (addresses <= MAX_ADDRESS) & (its_addresses <= MAX_ADDRESS)
        rows = np.flatnonzero(same & ~void & lead)
        result.ext += len(rows)
        if len(rows):
            tags[rows] = _same_records(
                left_store.ext.read(*queue, addresses[rows]),
                right_store.ext.read(*queue, its_addresses[rows]),
            )
    way = np.where(void, 2, np.where(other_void, 1, 3)).astype(np.int8)
    way[(same & tags) | (void & other_void)] = 0
    for number, kind in ((1, ONLY_FIRST), (2, ONLY_SECOND), (3, DIFFERS)):
        rows = np.flatnonzero(way == number)
        for piece in pieces(rows, rows, MOST_RANGES):
            mine, its = Unit(*one[piece[0]].tolist()), Unit(*other[piece[0]].tolist())
            result.ranges.append(UnitRange(kind, None, *span(first, piece), mine, its))


def _void(pair: Pair, units: NDArray[Any]) -> NDArray[np.bool_]:
    """Places that say nothing of the messages that both logs have."""
    position = units["position"].astype(np.int64)
    blank = (units["size"] == PRE_BLANK_SIZE) & (position == 0)
    void: NDArray[np.bool_] = (position < pair.start) | (position >= pair.end) | blank
    return void | (units["size"] <= 0)


def _same_records(left: Records, right: Records) -> NDArray[np.bool_]:
    """Whether records say the same of their messages; what leads to none in either is the same, too."""
    same: NDArray[np.bool_] = (left.state == WHOLE) == (right.state == WHOLE)
    both = (left.state == WHOLE) & (right.state == WHOLE)
    same &= ~both | ((left.tags == right.tags) & (left.timestamp == right.timestamp))
    return same


def _compare_batches(
    pair: Pair, start: int, end: int, left_runs: Sequence[BatchRun], right_runs: Sequence[BatchRun]
) -> list[tuple[tuple[str, int], int, list[BatchRange]]]:
    """Compare the units of batch queues that point into [start, end) of the log.

    Returns:
        (queue, units in the first store, what differs) of each.

    Raises:
        OSError: a file can't be read.
    """
    size = pair.first.recovery.batch_queue_file_size
    left = read_runs(pair.first.root, size, left_runs, start, end)
    right = read_runs(pair.second.root, size, right_runs, start, end)
    done = []
    for queue in sorted(left.keys() | right.keys()):
        units = left.get(queue, NOTHING).units
        units = units[np.argsort(units["position"], kind="stable")]
        done.append((queue, len(units), compare_batch(units, right.get(queue, NOTHING))))
    return done


def compare_pair(
    pair: Pair,
    runner: Runner,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Report:
    """Compare two stores, with tasks run by ``runner``."""
    options = pair.options
    selection = Selection.parse(options.queues)
    queues = sorted(
        {
            queue
            for settings in (pair.first, pair.second)
            for queue in queues_on_disk(settings.root / names.CONSUME_QUEUE, selection)
        }
    )
    report = Report(
        against=pair.second.place,
        start=pair.start,
        end=pair.end,
        broker_running=pair.running,
        queues=len(queues),
    )
    ext = done = 0
    for each in of_each(runner, partial(_compare_queue, pair), queues, _QUEUES_AT_ONCE):
        report.units += each.units
        ext += each.ext
        done += each.bytes
        report.findings += [_unit(pair, each, one) for one in _joined(each.ranges)]
        listener(done, report.units, 0)
    _compare_batch_queues(pair, runner, selection, report)
    if pair.first.rocksdb.queues is not None:
        bounds = pair.start, pair.end
        differing, count, units = compare_databases((pair.first, pair.second), bounds, runner, selection)
        report.findings += differing
        report.queues, report.units = max(report.queues, count), max(report.units, units)
    if selection.is_all and options.index:
        _compare_index(pair, runner, report)
        if pair.first.rocksdb.index or pair.second.rocksdb.index:
            _compare_index_in_rocksdb(pair, runner, report)
    else:
        report.not_checked.append(Note("index", "the index: queues were chosen, or --no-index"))
    if ext:
        text = (
            f"the bit maps of {ext:,} units in {names.CONSUME_QUEUE_EXT}, and where there their records stand"
        )
        report.not_checked.append(Note("queue-ext", text, count=ext))
    return report


def _compare_batch_queues(pair: Pair, runner: Runner, selection: Selection, report: Report) -> None:
    left, right = (
        find_batch_units(runner, settings, selection, pair.end, running=pair.running)
        for settings in (pair.first, replace(pair.first, root=pair.second.root))
    )
    report.queues += len(left.files.keys() | right.files.keys())
    tasks = [
        partial(_compare_batches, pair, start, end, *runs)
        for start, end in _parts(pair)
        if any(runs := (left.runs(start, end), right.runs(start, end)))
    ]
    found: dict[tuple[str, int], list[BatchRange]] = {}
    for compared in in_waves(runner, tasks):
        for queue, units, ranges in compared:
            report.units += units
            add_ranges(found.setdefault(queue, []), ranges)
    for queue, ranges in sorted(found.items()):
        report.findings += [_batch(pair, queue, one) for one in ranges]


def _batch(pair: Pair, queue: tuple[str, int], one: BatchRange) -> Difference:
    kind = {MISSING: ONLY_FIRST, EXTRA: ONLY_SECOND}.get(one.kind, DIFFERS)
    return of_range(
        queue,
        replace(one, kind=kind),
        batch_place(pair.second.root, pair.first.recovery.batch_queue_file_size, queue, one),
        f"{one.expected or 'nothing'} (first store)",
        f"{one.found or 'nothing'} (second store)",
    )


def _compare_index(pair: Pair, runner: Runner, report: Report) -> None:
    left, right = (
        find_entries(runner, index_files(settings.root, settings.max_hash_slot_num, settings.max_index_num))
        for settings in (pair.first, pair.second)
    )
    report.index_files = len(left.infos)
    report.index_entries = left.keys
    tasks = [
        partial(compare_two, left.runs(start, end), right.runs(start, end), start, end)
        for start, end in _parts(pair)
    ]
    duplicates = 0
    for compared in in_waves(runner, tasks):
        duplicates += compared.duplicates
        for kind, ranges, its in (
            (ONLY_FIRST, compared.only_first, left.infos),
            (ONLY_SECOND, compared.only_second, right.infos),
        ):
            report.findings += [_keys(pair, kind, one, its) for one in ranges]
    if duplicates:
        report.notes.append(
            Note(
                "indexed-twice",
                f"{duplicates:,} index entries stand more often in one store than in the other: "
                "a broker that is started indexes its last message again",
                count=duplicates,
            )
        )


def _parts(pair: Pair) -> Iterator[tuple[int, int]]:
    """What both logs have, in half-open ranges of physical offsets that a task takes."""
    step = pair.options.part_bytes
    for start in range(pair.start, pair.end, step):
        yield start, min(start + step, pair.end)


def _joined(ranges: list[UnitRange]) -> list[UnitRange]:
    found: list[UnitRange] = []
    for one in sorted(ranges, key=lambda each: each.first):
        if found and found[-1].kind == one.kind and found[-1].end == one.first:
            found[-1] = found[-1].with_all_between(one)
        else:
            found.append(one)
    return found


def _unit(pair: Pair, queue: QueuePair, one: UnitRange) -> Difference:
    root = pair.second.root if one.kind == ONLY_SECOND else pair.first.root
    directory = names.queue_directory(root, queue.topic, queue.queue_id)
    place = place_in(directory, pair.first.consume_queue_file_size, one.first * UNIT_LENGTH)
    expected, found = f"{_text(one.expected)} (first store)", f"{_text(one.found)} (second store)"
    return of_range((queue.topic, queue.queue_id), one, place, expected, found)


def _keys(pair: Pair, kind: str, one: KeyRange, infos: Sequence[IndexInfo]) -> Difference:
    root = pair.second.root if kind == ONLY_SECOND else pair.first.root
    path = path_for(infos, one.first, str(root / names.INDEX))
    there, missing = f"an entry of hash {one.hash} for the message at {one.first}", "none"
    return Difference(
        kind,
        path,
        INDEX,
        f"{there if kind == ONLY_FIRST else missing} (first store)",
        f"{missing if kind == ONLY_FIRST else there} (second store)",
        first=one.first,
        end=one.end,
        count=one.count,
    )


def _compare_index_in_rocksdb(pair: Pair, runner: Runner, report: Report) -> None:
    why = "" if is_installed() else "reput[rocksdb] isn't installed"
    if not runner.is_local:
        why = "tasks on other hosts don't see it as it was caught here"
    if why:
        report.not_checked.append(Note("index", f"the index in RocksDB: {why}"))
        return
    stores, bounds = (pair.first, pair.second), (pair.start, pair.end)
    differing, entries = compare_indexes(stores, bounds, runner, running=pair.running)
    report.findings += differing
    report.index_entries += entries
    if pair.running:
        text = "what the broker hasn't flushed into the index in RocksDB"
        report.not_checked.append(Note("not-flushed", text))


def _text(unit: Unit | None) -> str:
    is_blank = unit is not None and unit.position == 0 and unit.size == PRE_BLANK_SIZE
    return "a pre-blank unit" if is_blank else str(unit)


def _written_end(root: Path, queue: tuple[str, int], base: int, size: int) -> int:
    """Where the written bytes of a queue's file end, up to a unit's end; 0 without the file."""
    path = names.queue_file(root, *queue, base)
    try:
        with reading(path) as fd:
            length = min(os.fstat(fd).st_size, size)
            end = max((stop for _, stop in extents(fd, 0, length)), default=0)
    except FileNotFoundError:
        return 0
    return min(end + -end % UNIT_LENGTH, size)
