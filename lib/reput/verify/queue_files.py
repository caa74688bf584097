"""The files of plain queues against the log, or another store's: units, and records in consumequeue_ext.

Before a queue's first message in the log there may be pre-blank units, then units of messages that have
expired with the log's head (``ConsumeQueue.fillPreBlank``, ``ConsumeQueue.correctMinOffset``,
rocketmq-all-4.9.7, 5.3.3). Behind its last message there is nothing. Records: ``ConsumeQueueExt.get``,
``CqExtUnit.read``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.derived.ext import NO_FILE, NO_RECORD, WHOLE, ExtReader, Records
from reput.derived.files import place_in
from reput.derived.plain import QueueReader
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.consumequeueext import MAX_ADDRESS
from reput.format.dtypes import UnitKind, classify
from reput.format.names import Queue
from reput.newer_python import Self
from reput.remote.store import have
from reput.replay.runner import Runner
from reput.replay.target import Selection
from reput.statistics import Listener
from reput.store.listing import entries_in, names_seen
from reput.store.reading import extents, looked_at, pread, reading, what_is
from reput.verify.explain import of_range
from reput.verify.plan import queues_on_disk
from reput.verify.report import DIFFERS, ONLY_FIRST, ONLY_SECOND, QUEUE, Difference, Report
from reput.verify.units import (
    DANGLING,
    MOST_RANGES,
    UNORDERED,
    WRONG_EXT,
    Compared,
    Range,
    Record,
    Unit,
    compare_units,
    extra_ranges,
    missing_ranges,
    pieces,
    span,
    unit_sum,
    units_of,
)
from reput.verify.waves import of_each

if TYPE_CHECKING:
    from reput.verify.plan import Pair

_QUEUES_AT_ONCE = 64
_UNITS_AT_ONCE = 1 << 18
#: Less than any position: no unit but pre-blank ones so far. One more: units, but none of an expired message.
_UNUSED = -2
#: How far on both sides of a stretch units are looked for that aren't in their places.
_AROUND = 4096

_KINDS = {
    1: (DANGLING, "file"),
    2: (DANGLING, "record"),
    3: (WRONG_EXT, "tagsCode"),
    4: (WRONG_EXT, "storeTimestamp"),
    5: (WRONG_EXT, "tagsCode and storeTimestamp"),
    6: (UNORDERED, None),
}


def files_of(root: Path, topic: str, queue_id: int) -> set[int]:
    """The first bytes of a plain queue's files, by their names."""
    found = map(names.parse_offset_name, names_seen(names.queue_directory(root, topic, queue_id)))
    return {base for base in found if base is not None}


def series_files(
    directory: Path, queue: Queue, file_size: int, unit_length: int | None = None
) -> tuple[list[tuple[int, Path]], list[Difference]]:
    """The files of one size that follow one another in a queue's directory, and what is wrong with any.

    Those that have places, in order, each with the byte offset of its first byte.
    """
    files: list[tuple[int, Path]] = []
    problems: list[Difference] = []

    def wrong(kind: str, path: str, expected: str, found: str, first: int = 0, end: int = 0) -> None:
        problems.append(Difference(kind, path, QUEUE, expected, found, first, end, 1, 0, *queue))

    for entry in entries_in(directory):
        facts = looked_at(entry)
        if facts is None:
            continue
        if not stat.S_ISREG(facts.st_mode):
            wrong("queue-stray-directory", entry.path, "files only", what_is(facts.st_mode))
            continue
        base = names.parse_offset_name(entry.name)
        if base is None or base % file_size:
            expected = f"20 digits, a multiple of {file_size}"
            wrong("queue-file-name", entry.path, expected, entry.name)
            continue
        per_file = 0 if unit_length is None else file_size // unit_length
        first = base // file_size * per_file
        if facts.st_size != file_size:
            whole = 0 if unit_length is None else min(facts.st_size // unit_length, per_file)
            wrong(
                "queue-file-length",
                entry.path,
                f"{file_size} bytes",
                f"{facts.st_size} bytes",
                first + whole,
                first + per_file,
            )
        if files and base > files[-1][0] + file_size:
            missing = files[-1][0] + file_size
            wrong(
                "queue-file-missing",
                str(directory / names.offset_name(missing)),
                f"file {names.offset_name(missing)}",
                f"{entry.name} after {names.offset_name(files[-1][0])}",
                missing // file_size * per_file,
                first,
            )
        files.append((base, Path(entry.path)))
    return files, problems


class OfMessages(NamedTuple):
    """What the records of some units have to hold."""

    own: NDArray[np.bool_]  # bool[units], whether a unit has a record: those of light queues have none
    timestamp: NDArray[np.int64]  # int64[units], storeTimestamp of the message in ms, -1 where it isn't known


def compare_records(
    reader: ExtReader,
    queue: Queue,
    first: int,
    expected: bytes | memoryview,
    found: bytes,
    before: bytes,
    messages: OfMessages,
) -> tuple[list[Range], int]:
    """Compare what the addresses of units lead to with what the messages say.

    Looked at are units that are sound but for the address that stands for their tagsCode.
    """
    right, there = units_of(expected), units_of(found)
    same = (right["position"] == there["position"]) & (right["size"] == there["size"]) & messages.own
    tags = there["tags"].astype(np.int64)
    plain = int((same & (tags == right["tags"])).sum())
    rows = np.flatnonzero(same & (tags <= MAX_ADDRESS))
    if not len(rows):
        return [], plain
    records = reader.read(*queue, tags[rows])
    wanted = right["tags"][rows].astype(np.int64)
    whole = records.state == WHOLE
    wrong_tags = whole & (records.tags != wanted)
    timestamp = messages.timestamp[rows]
    wrong_time = whole & (records.timestamp != timestamp) & (timestamp >= 0)
    earlier = units_of(before + found)[:-1][rows]
    below = (earlier["tags"] <= MAX_ADDRESS) & (earlier["tags"].astype(np.int64) >= tags[rows])
    # What fills a hole is the unit of the next message, address and all.
    below &= (earlier["size"] > 0) & (earlier["position"] != there["position"][rows])
    ways = np.zeros(len(rows), np.int8)
    ways[below] = 6
    ways[wrong_tags] = 3
    ways[wrong_time] = 4
    ways[wrong_tags & wrong_time] = 5
    ways[records.state == NO_FILE] = 1
    ways[records.state == NO_RECORD] = 2
    ranges = []
    for way in np.unique(ways[ways > 0]).tolist():
        kind, field = _KINDS[way]
        chosen = np.flatnonzero(ways == way)
        for piece in pieces(chosen, rows[chosen], MOST_RANGES):
            at = int(piece[0])
            row = int(rows[at])
            record = None
            if kind == WRONG_EXT:
                record = (
                    Record(int(wanted[at]), int(timestamp[at])),
                    Record(int(records.tags[at]), int(records.timestamp[at])),
                )
            units = Unit(*right[row].tolist()), Unit(*there[row].tolist())
            ranges.append(Range(kind, field, *span(first, rows[piece]), *units, record=record))
    return ranges, plain


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
    queue: Queue,
    first: int,
    expected: bytes | memoryview,
    messages: OfMessages | None,
    *,
    search: bool = True,
    summed: bool = False,
) -> Compared:
    """Compare consecutive units of a queue with what is in its files; ``summed``: with the sum of these.

    ``messages`` is what the records have to hold that addresses lead to, None where a tagsCode is no address.
    With ``search`` units that aren't in their places are looked for in others.
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


class Seen(NamedTuple):
    """What needn't be read again of a file that stays as it is."""

    log_start: int  # physical offset where the log began
    #: came_with, left_with: the highest position before the file's first place, and before ``first``
    came_with: int
    left_with: int
    first: int  # queueOffset up to which its places are as they should be before a queue's first message
    after: int  # queueOffset from which on they are empty; -1 where that isn't so, or wasn't looked at


@dataclass(slots=True)
class Outside:
    """What came of looking at one queue's directory."""

    topic: str
    queue_id: int
    ranges: list[Range] = field(default_factory=list)  # places that differ
    problems: list[Difference] = field(default_factory=list)  # files that are wrong
    used: int = 0  # queueOffset after the last place that isn't zero, of those before the first message
    #: files that are as they should be, by their first byte
    seen: dict[int, Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """What the log says of a queue."""

    topic: str
    queue_id: int
    #: first, next: queueOffset of its first message in the log and after its last one; None where the
    #: log has no message of it
    first: int | None = None
    next: int | None = None
    #: what an earlier run found of files that are as they were, by their first byte
    seen: dict[int, Seen] = field(default_factory=dict)


def check_outside(
    root: Path,
    file_size: int,
    log_start: int,
    live_end: int | None,
    ext_file_size: int | None,
    stands: bytes,
    known: Known,
) -> Outside:
    """Look at a queue's files, and at the places outside of what the log has.

    Where a broker writes meanwhile, the log was looked at up to ``live_end``: units of messages from there on
    are let be. With ``ext_file_size`` the queue's files in consumequeue_ext are looked at as well. ``stands``
    is the unit that stands for lost messages (:func:`reput.derived.last_file.nowhere`).
    """
    result = Outside(known.topic, known.queue_id)
    queue = known.topic, known.queue_id
    directory = names.queue_directory(root, *queue)
    files, result.problems = series_files(directory, queue, file_size, UNIT_LENGTH)
    if ext_file_size is not None:
        result.problems += series_files(names.queue_ext_directory(root, *queue), queue, ext_file_size)[1]
    last_position = _UNUSED
    for base, path in files:
        with reading(path, by_ranges=True) as fd:
            length = min(os.fstat(fd).st_size, file_size) // UNIT_LENGTH * UNIT_LENGTH
            file = _File(path, fd, base // UNIT_LENGTH)
            stop = file.start + length // UNIT_LENGTH
            before = stop if known.first is None else min(max(known.first, file.start), stop)
            seen = known.seen.get(base)
            if seen is None or not _still_holds(seen, last_position, log_start, before, live_end):
                seen = Seen(log_start, last_position, last_position, file.start, -1)
            count, used = len(result.ranges), result.used
            result.used = seen.first if seen.first > file.start else 0
            left_with = _before(file, seen.first, before, log_start, seen.left_with, live_end, stands, result)
            odd = result.ranges[count:]
            first = before if known.first is not None else max(result.used, file.start)
            is_right = all(one.first >= first for one in odd) if known.first is None else not odd
            after = first if known.first is None else -1
            if known.next is not None:
                after, count = max(known.next, file.start), len(result.ranges)
                if after < stop and not 0 <= seen.after <= after:
                    _behind(file, after, stop, live_end, result)
                after = after if len(result.ranges) == count else -1
            if is_right and live_end is None:
                result.seen[base] = Seen(log_start, last_position, left_with, first, after)
            last_position, result.used = left_with, result.used or used
    if known.first is None:
        # Where the log has nothing of a queue, what is behind its last unit is no loss.
        result.ranges = [one for one in result.ranges if one.first < result.used]
    return result


class _File(NamedTuple):
    """A file of a queue that is open, and the queueOffset of its first place."""

    path: Path
    fd: int
    start: int

    def read(self, at: int, length: int) -> bytes:
        return pread(self.path, self.fd, length, at)


def _still_holds(seen: Seen, last_position: int, log_start: int, before: int, live_end: int | None) -> bool:
    """Whether what was found of a file says as much of it now: more may have expired since, and no less."""
    return (
        live_end is None
        and seen.came_with == last_position
        and seen.log_start <= log_start
        and seen.first <= before
    )


def _before(
    file: _File,
    start: int,
    stop: int,
    log_start: int,
    last_position: int,
    live_end: int | None,
    stands: bytes,
    result: Outside,
) -> int:
    """Look at a file's places [start, stop) before the queue's first message; their highest position."""
    for first in range(start, stop, _UNITS_AT_ONCE):
        count = min(_UNITS_AT_ONCE, stop - first)
        data = file.read((first - file.start) * UNIT_LENGTH, count * UNIT_LENGTH)
        units = units_of(data[: len(data) // UNIT_LENGTH * UNIT_LENGTH])
        position = units["position"].astype(np.int64)
        kinds = classify(units)
        nothing, is_message = kinds == UnitKind.EMPTY, kinds == UnitKind.MESSAGE
        # A broker makes pre-blank units before it writes any other.
        used = np.append(last_position > _UNUSED, kinds > UnitKind.PRE_BLANK)
        late_blank = (kinds == UnitKind.PRE_BLANK) & np.logical_or.accumulate(used)[:-1]
        expired = is_message & ((position < log_start) | (units == units_of(stands)[0]))
        highest = np.maximum.accumulate(np.append(last_position, np.where(expired, position, _UNUSED)))
        descending = expired & (position < highest[:-1])
        beyond = np.zeros(len(units), bool)
        if live_end is not None:
            beyond = is_message & (position >= live_end)
        extra = ((kinds > UnitKind.PRE_BLANK) & ~expired & ~beyond) | descending
        result.ranges += extra_ranges(first, np.flatnonzero(extra), units)
        result.ranges += missing_ranges(first, np.flatnonzero(nothing), units)
        result.ranges += missing_ranges(first, np.flatnonzero(late_blank), units)
        written = np.flatnonzero(~nothing)
        if len(written):
            result.used = first + int(written[-1]) + 1
        last_position = int(highest[-1])
        if last_position == _UNUSED and used.any():
            last_position = _UNUSED + 1
    return last_position


def _behind(file: _File, after: int, stop: int, live_end: int | None, result: Outside) -> None:
    """Look at the places [after, stop) of a file behind the queue's last message; holes aren't read."""
    start, end_at = (after - file.start) * UNIT_LENGTH, (stop - file.start) * UNIT_LENGTH
    have(file.path, start, end_at)  # of a file that was left out, no hole is known yet
    for at, end in _written(file.fd, start, end_at):
        units = units_of(file.read(at, end - at))
        first = file.start + at // UNIT_LENGTH
        kinds = classify(units)
        used, beyond = kinds != UnitKind.EMPTY, np.zeros(len(units), bool)
        if live_end is not None:
            beyond = (kinds == UnitKind.MESSAGE) & (units["position"] >= live_end)
        result.ranges += extra_ranges(first, np.flatnonzero(used & ~beyond), units)


def _written(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The stretches of whole units in [start, end) that may hold bytes, some at a time."""
    done = start
    for at, stop in extents(fd, start, end):
        at = max(at - (at - start) % UNIT_LENGTH, done)
        stop = min(stop + -(stop - start) % UNIT_LENGTH, end)
        while at < stop:
            done = min(at + _UNITS_AT_ONCE * UNIT_LENGTH, stop)
            yield at, done
            at = done


# --- two stores -------------------------------------------------------------------------------------------


def compare_queues(
    pair: Pair, runner: Runner, selection: Selection, report: Report, listener: Listener
) -> int:
    """Compare two stores' queues; how many addresses lead in both to something that was compared."""
    queues = {
        queue
        for settings in pair.stores
        for queue in queues_on_disk(settings.root / names.CONSUME_QUEUE, selection)
    }
    report.queues = len(queues)
    ext = done = 0
    for queue, ranges, *counts in of_each(
        runner, partial(_compare_two, pair), sorted(queues), _QUEUES_AT_ONCE
    ):
        report.units += counts[0]
        done += counts[1]
        ext += counts[2]
        for one in ranges:
            store = pair.second if one.kind == ONLY_SECOND else pair.first
            directory = names.queue_directory(store.root, *queue)
            place = place_in(directory, store.consume_queue_file_size, one.first * UNIT_LENGTH)
            said = f"{one.expected} (first store)", f"{one.stored} (second store)"
            report.findings.append(of_range(queue, one, place, said, None))
        listener(done, report.units, 0)
    return ext


def _compare_two(pair: Pair, queue: Queue) -> tuple[Queue, list[Range], int, int, int]:
    """A queue's places that differ, ``expected`` being the first store's.

    Then how many units the first one has of messages that both logs have; how many bytes were compared; and
    how many units are addresses in both.
    """
    ranges: list[Range] = []
    units = compared = ext = 0
    with Readers(pair.first) as left, Readers(pair.second) as right:
        for start, end in _written_places(pair, queue):
            for first in range(start, end, _UNITS_AT_ONCE):
                count = min(_UNITS_AT_ONCE, end - first)
                found, more, leading = _compare_both(pair, queue, first, count, left, right)
                ranges += found
                units += more
                compared += count * UNIT_LENGTH
                ext += leading
    joined: list[Range] = []
    for one in sorted(ranges, key=lambda each: each.first):
        if joined and joined[-1].kind == one.kind and joined[-1].end == one.first:
            joined[-1] = joined[-1].with_all_between(one)
        else:
            joined.append(one)
    return queue, joined, units, compared, ext


def _compare_both(
    pair: Pair, queue: Queue, first: int, count: int, left_store: Readers, right_store: Readers
) -> tuple[list[Range], int, int]:
    left = left_store.queue.read(*queue, first, count)
    right = right_store.queue.read(*queue, first, count)
    one, other = units_of(left), units_of(right)
    void, other_void = _void(pair, one), _void(pair, other)
    units, ext = int((~void).sum()), 0
    if left == right and not pair.queue_ext:
        return [], units, ext
    same = (one["position"] == other["position"]) & (one["size"] == other["size"])
    tags = one["tags"] == other["tags"]
    if pair.queue_ext:
        addresses, its_addresses = one["tags"].astype(np.int64), other["tags"].astype(np.int64)
        lead = (addresses <= MAX_ADDRESS) & (its_addresses <= MAX_ADDRESS)
        rows = np.flatnonzero(same & ~void & lead)
        if ext := len(rows):
            tags[rows] = _same_records(
                left_store.ext.read(*queue, addresses[rows]),
                right_store.ext.read(*queue, its_addresses[rows]),
            )
    way = np.where(void, 2, np.where(other_void, 1, 3)).astype(np.int8)
    way[(same & tags) | (void & other_void)] = 0
    ranges = []
    for number, kind in ((1, ONLY_FIRST), (2, ONLY_SECOND), (3, DIFFERS)):
        rows = np.flatnonzero(way == number)
        for piece in pieces(rows, rows, MOST_RANGES):
            both = Unit(*one[piece[0]].tolist()), Unit(*other[piece[0]].tolist())
            ranges.append(Range(kind, None, *span(first, piece), *both))
    return ranges, units, ext


def _void(pair: Pair, units: NDArray[Any]) -> NDArray[np.bool_]:
    """Places that say nothing of the messages that both logs have."""
    position = units["position"].astype(np.int64)
    void: NDArray[np.bool_] = classify(units) != UnitKind.MESSAGE
    return void | (position < pair.start) | (position >= pair.end)


def _same_records(left: Records, right: Records) -> NDArray[np.bool_]:
    """Whether records say the same of their messages; what leads to none in either is the same, too."""
    same: NDArray[np.bool_] = (left.state == WHOLE) == (right.state == WHOLE)
    both = (left.state == WHOLE) & (right.state == WHOLE)
    same &= ~both | ((left.tags == right.tags) & (left.timestamp == right.timestamp))
    return same


def _written_places(pair: Pair, queue: Queue) -> Iterator[tuple[int, int]]:
    """Half-open ranges of queueOffsets, each place once, that hold all which either store has written."""
    found = []
    for store in pair.stores:  # their files may be of different lengths
        size = store.consume_queue_file_size
        bases = [base for base in files_of(store.root, *queue) if base % size == 0]
        found += [(base, base + _written_end(store.root, queue, base, size)) for base in bases]
    done = 0
    for start, end in sorted(found):
        if end > max(start, done):
            yield max(start, done) // UNIT_LENGTH, end // UNIT_LENGTH
            done = end


def _written_end(root: Path, queue: Queue, base: int, size: int) -> int:
    """Where the written bytes of a queue's file end, up to a unit's end; 0 without the file."""
    path = names.queue_file(root, *queue, base)
    try:
        with reading(path) as fd:
            length = min(os.fstat(fd).st_size, size)
            end = max((stop for _, stop in extents(fd, 0, length)), default=0)
    except FileNotFoundError:
        return 0
    return min(end + -end % UNIT_LENGTH, size)
