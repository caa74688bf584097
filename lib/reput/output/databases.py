"""The databases of an output: queues and index in RocksDB.

Tasks put units and index keys into runs (:mod:`reput.replay.runs`). A file for each batch, written before its
commit, names those of committed batches. What names a batch that the journal doesn't have, and runs that no
such file names, was left by a crash or by a task that failed, and is removed when a run of reput begins.

When all of the log was read, tasks write a range of keys each, and the database is made of these files and
named. A broker takes a directory with a file CURRENT for a database. That name comes last, when all else is
on disk, and is the commit: without it, whatever lies there is made anew.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import merge
from itertools import chain, groupby, pairwise, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks, Oddity, keep
from reput.build.rocksdb import UnitRows, pack_units, pairs
from reput.errors import Finding, OutputError
from reput.format import names, rocksdbindex, rocksdbqueue
from reput.format.names import QueueBytes
from reput.format.rocksdbqueue import OFFSETS, UNITS, QueueEnd, Unit, parse_unit_key
from reput.output.journal import Journal
from reput.replay.part_result import QueueRows
from reput.replay.placing import CREATED_AGAIN, QUEUE_RESTARTED, hidden_of, unproven_of
from reput.replay.runs import ROW, SAMPLED, KeyRun, Rows, RunReader
from reput.replay.state import FILLED, Salvaged
from reput.replay.target import Target
from reput.rocksdb import CURRENT
from reput.rocksdb.reader import assemble, write_sorted
from reput.store import files
from reput.store.listing import names_in
from reput.store.places import attempt_directory
from reput.store.reading import read_file

if TYPE_CHECKING:
    from reput.output.batch import BatchScan, BatchTasks


def is_whole(directory: Path) -> bool:
    """Whether a database is there."""
    return (directory / CURRENT).is_file()


def name_files(made: Path, directory: Path, target: Target) -> None:
    """Move a database's files into their directory, in which queues' files may lie; CURRENT is the last."""
    files.make_dirs(directory, target.owner)
    for name in names_in(directory):
        if not (directory / name).is_dir():
            files.remove_tree(directory / name)  # of a try that got no further
    for name in names_in(made):
        if name != CURRENT:
            with files.reporting("can't rename it", made / name):
                files.system.rename(made / name, directory / name)
    files.fsync_dir(directory)
    files.rename(made / CURRENT, directory / CURRENT)


_SUFFIX = ".batch"


@dataclass(frozen=True, slots=True)
class Committed:
    """What the committed batches have for a database."""

    runs: list[str]  # paths of runs of units, in log order
    keys: list[str]  # paths of runs of index keys
    breaks: Breaks  # where the log isn't whole


def keep_runs(target: Target, start: int, scan: BatchScan, breaks: Breaks) -> None:
    """Name the runs of a batch that is about to be committed, and where the log isn't whole; on disk then."""
    found = {
        "end": scan.end,
        "runs": [Path(run).name for result in scan.accepted for run in result.runs],
        "keys": [Path(run).name for result in scan.accepted for run in result.key_runs],
        "breaks": breaks.places,
        "unproven": breaks.unproven,
        "parts": [(result.part.path, result.part.base, result.part.segment_size) for result in scan.accepted],
    }
    files.make_dirs(target.runs, target.owner)
    files.fsync_dir(target.runs)
    files.write_atomically(target.runs / f"{start:020d}{_SUFFIX}", json.dumps(found).encode())


def committed(target: Target, start: int, cursor: int) -> Committed:
    """The runs of all batches of [start, cursor), physical offsets.

    Raises OutputError where they aren't all there.
    """
    runs: list[str] = []
    keys: list[str] = []
    places: set[int] = set()
    unproven: set[tuple[int, int]] = set()
    reached = start
    for path in _batches(target, cursor):
        found = _read(path)
        if int(path.stem) != reached:
            break
        reached = found.get("end", start)
        runs += [str(target.runs / name) for name in found["runs"]]
        keys += [str(target.runs / name) for name in found["keys"]]
        places.update(found["breaks"])
        unproven.update((start, end) for start, end in found["unproven"])
    if reached != cursor:
        raise OutputError(
            "what was put aside for a database isn't all there",
            path=target.runs,
            expected=f"batches from {start} to {cursor}",
            found=f"up to {reached}",
            next_step="Remove the output and run the same command again",
        )
    return Committed(runs, keys, Breaks(sorted(places), sorted(unproven)))


def segment_of(target: Target, cursor: int, position: int) -> str:
    """The path of the segment that holds a physical offset, as a task that scanned it had it."""
    for path in _batches(target, cursor):
        for segment, base, size in _read(path)["parts"]:
            if base <= position < base + size:
                return str(segment)
    return ""


def tidy_runs(target: Target, start: int, cursor: int) -> None:
    """Make the directory of runs, and remove from it what no committed batch names."""
    files.make_dirs(target.runs, target.owner)
    found = committed(target, start, cursor)
    known = {Path(run).name for run in (*found.runs, *found.keys)}
    known.update(path.name for path in _batches(target, cursor))
    for name in names_in(target.runs):
        if name not in known:
            files.remove_tree(target.runs / name)


def _batches(target: Target, cursor: int) -> list[Path]:
    names = sorted(name for name in names_in(target.runs) if name.endswith(_SUFFIX))
    return [target.runs / name for name in names if int(name.removesuffix(_SUFFIX)) < cursor]


def _read(path: Path) -> dict[str, Any]:
    with files.reporting("the list of a batch's units can't be read back", path):
        data = read_file(path)
    try:
        return dict(json.loads(data))
    except ValueError as error:
        raise OutputError(
            "the list of a batch's units is not what was written",
            path=path,
            found=str(error),
            next_step="Remove the output and run the same command again",
        ) from error


Families = dict[str, tuple[bool, list[Path]]]


def _queues_at(target: Target) -> Path:
    return target.root / str(target.settings.rocksdb.queues)


def directories(target: Target) -> list[Path]:
    """Where the databases go that are wanted."""
    wanted = [_queues_at(target)] if target.queues_in_rocksdb else []
    return wanted + [target.root / names.ROCKSDB_STORE] * target.index_in_rocksdb


def are_made(target: Target) -> bool:
    """Whether all of them are there and whole."""
    return all(map(is_whole, directories(target)))


def make(
    target: Target,
    journal: Journal,
    tasks: BatchTasks,
    slots: int,
    carried: Callable[[], Mapping[QueueBytes, QueueEnd]],
    ended: Callable[[str], None] = lambda _stage: None,
) -> None:
    """Make those that aren't there, of all that the journal has committed.

    ``slots`` tasks run at once. ``carried`` gives the last message of queues that the log has no message of,
    by topic and queueId. After an error the same command makes it anew.
    """
    if target.queues_in_rocksdb:
        _make_queues(target, journal, tasks, slots, carried)
        ended("queue database")
    if target.index_in_rocksdb:
        _make_index(target, journal, tasks, slots)
        ended("index database")
    files.remove_tree(target.runs)


def _make(target: Target, directory: Path, written: Callable[[Path], Families]) -> None:
    """Make a database unless it is there, of what ``written`` makes in a directory of its own."""
    if is_whole(directory):
        return
    scratch, made = target.runs / "sorted", target.runs / "made"
    for left in (scratch, made):
        files.remove_tree(left)
    files.make_dirs(scratch, target.owner)
    assemble(made, written(scratch), target.owner)
    name_files(made, directory, target)
    shutil.rmtree(scratch, ignore_errors=True)


#: Keys of a share: a task holds some 300 bytes for each.
_MOST_KEYS = 1 << 19


@dataclass(frozen=True, slots=True)
class KeyShare:
    """A range of keys: from ``first`` on, before ``stop``; None for the end."""

    first: bytes
    stop: bytes | None


def _make_index(target: Target, journal: Journal, tasks: BatchTasks, slots: int) -> None:
    """Make the database of the index of all that the journal has committed."""

    def written(scratch: Path) -> Families:
        runs = committed(target, journal.opening.start, journal.state.cursor).keys
        samples: list[bytes] = []
        last_timestamp = last_position = -1
        for path in runs:
            with KeyRun(path) as run:
                samples += run.samples()
                last_timestamp = max(last_timestamp, run.last_timestamp)
                last_position = max(last_position, run.last_position)
        shares = tasks.run(
            partial(write_keys, runs=runs, scratch=scratch), list(key_shares_of(samples, slots))
        )
        paths = [path for path in shares if path is not None]
        if runs:
            paths.append(scratch / "marks.sst")
            marks = (
                (rocksdbindex.LAST_POSITION, rocksdbindex.value(last_position)),
                (rocksdbindex.LAST_TIMESTAMP, rocksdbindex.value(last_timestamp)),
            )
            write_sorted(paths[-1], marks, compressed=True)
        return {
            rocksdbindex.ENTRIES: (True, paths),
            rocksdbindex.TIMER: (True, []),
            rocksdbindex.TRANS: (True, []),
        }

    _make(target, target.root / names.ROCKSDB_STORE, written)


def key_shares_of(samples: Sequence[bytes], slots: int) -> list[KeyShare]:
    """Cut the keys into shares of about the same number, by a sample of them."""
    ordered = sorted(samples)
    most = min(_MOST_KEYS, -(-len(ordered) * SAMPLED // max(slots * _SHARES_A_SLOT, 1)))
    bounds = sorted(set(ordered[:: max(most // SAMPLED, 1)]))
    firsts = [b"", *bounds[1:]] if bounds else []
    return [KeyShare(first, stop) for first, stop in zip_longest(firsts, firsts[1:])]


def write_keys(_target: Target, share: KeyShare, runs: Sequence[str], scratch: Path) -> Path | None:
    """Write one share into a new file below ``scratch``; None where it has no key."""
    entries: dict[bytes, bytes] = {}
    for path in runs:
        with KeyRun(path) as run:
            entries |= run.entries(share.first, share.stop)
    if not entries:
        return None
    target = attempt_directory(scratch) / "index.sst"
    write_sorted(target, ((key, entries[key]) for key in sorted(entries)), compressed=True)
    return target


_BLOCK = 1 << 17  # units that are packed at once

_OUTCOMES = {
    "repeated-queue-offset": "the last one has the unit; the others can only be read by physical offset",
    QUEUE_RESTARTED: CREATED_AGAIN,
    "missing-queue-offsets": "the hole was filled with the unit after it, so that consumers lose no message",
    "queue-offset-jump": "it stands at its own queueOffset; the places before have no unit, as in a broker's "
    "database",
}


@dataclass(frozen=True, slots=True)
class Share:
    """A range of keys."""

    number: int  # shares are numbered as their keys ascend
    first: bytes  # the prefix of its first queue's keys
    stop: bytes | None  # the prefix of the first queue behind it; None for the end
    #: half-open range of queueOffsets, where a queue has several shares: its units are all
    #: consecutive; None for all
    offsets: tuple[int, int] | None = None


class Ends(NamedTuple):
    """The ends of queues, or of a part of one."""

    prefixes: list[bytes]  # of their keys
    #: int64[queues, 2], physicalOffset and queueOffset of the first message that has a unit
    first: NDArray[np.int64]
    last: NDArray[np.int64]  # int64[queues, 2], the same of the last message


@dataclass(frozen=True, slots=True)
class Written:
    """What a task wrote."""

    path: Path | None  # the file; None where there was nothing to write
    units: int  # how many
    ends: Ends  # the queues' ends
    end: int  # physical offset after the last message, -1 without one
    findings: list[Finding] = field(default_factory=list)  # what was odd; ``path`` of each is empty
    #: holes that were filled, and messages without a unit
    salvaged: list[Salvaged] = field(default_factory=list)


def write(
    target: Target, share: Share, runs: Sequence[str], breaks: Breaks, *, from_zero: bool, scratch: Path
) -> Written:
    """Write one share into a new file below ``scratch``, from runs in log order.

    ``from_zero``: nothing of the log has expired.
    """
    found = placed(target, share, runs, breaks, from_zero=from_zero)
    if found is None:
        return Written(None, 0, Ends([], np.empty((0, 2), np.int64), np.empty((0, 2), np.int64)), -1)
    path = attempt_directory(scratch) / "queues.sst"
    write_sorted(path, _pairs(found), compressed=True)
    return Written(path, len(found.row), found.ends(), found.end, found.findings, found.salvaged)


def placed(
    target: Target, share: Share, runs: Sequence[str], breaks: Breaks, *, from_zero: bool
) -> Placed | None:
    """Where the units of a share stand; None without any."""
    prefixes, rank, rows = _gathered(runs, share)
    if not len(rows):
        return None
    order = np.argsort(rank, kind="stable")
    return Placed(target, prefixes, rank[order], rows[order], breaks, from_zero=from_zero)


def _gathered(runs: Sequence[str], share: Share) -> tuple[list[bytes], NDArray[np.int64], Rows]:
    """The queues of a share, and of each of its units in log order, which queue's it is, and the unit."""
    found: list[tuple[list[bytes], NDArray[np.int64], Rows]] = []
    for path in runs:
        with RunReader(path) as run:
            queues = run.queues()
            begin = bisect_left(queues.prefixes, share.first)
            end = len(queues.prefixes) if share.stop is None else bisect_left(queues.prefixes, share.stop)
            if begin >= end:
                continue
            first, stop = int(queues.first[begin]), int(queues.stop[end - 1])
            if share.offsets is not None:
                base = int(queues.first_offset[begin])
                low, high = (min(max(offset - base, 0), stop - first) for offset in share.offsets)
                first, stop = first + low, first + high
            rows = run.rows(first, stop)
            counts = (
                (queues.stop - queues.first)[begin:end] if share.offsets is None else np.array([len(rows)])
            )
            found.append((queues.prefixes[begin:end], counts, rows))
    prefixes = sorted({prefix for here, _, _ in found for prefix in here})
    ranks = {prefix: number for number, prefix in enumerate(prefixes)}
    rank = [np.repeat([ranks[prefix] for prefix in here], counts) for here, counts, _ in found]
    if not found:
        return [], np.empty(0, np.int64), np.empty(0, ROW)
    return prefixes, np.concatenate(rank), np.concatenate([rows for _, _, rows in found])


class Placed:
    """Where the units of a share stand, whose queues have the keys ``prefixes``.

    ``rank``, int64[rows] and ascending, says which queue's a row is; ``rows`` are in log order within a
    queue. ``queue``, ``row`` and ``offset``, int64[units] in the order of keys, say whose a unit is, from
    which row, and where. ``salvaged`` has the holes that were filled, and messages without a unit.
    """

    def __init__(
        self,
        target: Target,
        prefixes: list[bytes],
        rank: NDArray[np.int64],
        rows: Rows,
        breaks: Breaks,
        *,
        from_zero: bool,
    ) -> None:
        self._target = target
        self.findings: list[Finding] = []
        self.salvaged: list[Salvaged] = []
        self.prefixes = prefixes
        self._rows = rows
        starts = self._starts = np.searchsorted(rank, np.arange(len(prefixes) + 1))
        self._last = starts[1:] - 1  # row of each queue's last message
        jumps = np.diff(rows["offset"]) != 1
        jumps[starts[1:-1] - 1] = False
        odd = np.zeros(len(prefixes), np.bool_)
        odd[rank[1:][jumps]] = True
        if breaks.unproven:
            for begin, end in breaks.unproven:
                odd[np.unique(rank[(rows["position"] >= begin) & (rows["position"] < end)])] = True
        if from_zero and breaks.places:
            odd |= (rows["offset"][starts[:-1]] > 0) & (rows["position"][starts[:-1]] >= breaks.places[0])
        pieces: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        done = 0
        for number in np.flatnonzero(odd).tolist():
            first, stop = int(starts[number]), int(starts[number + 1])
            kept = keep(
                rows["offset"][first:stop],
                rows["position"][first:stop],
                rows["size"][first:stop],
                breaks,
                from_zero=from_zero,
            )
            pieces.append((rank[done:first], np.arange(done, first), rows["offset"][done:first]))
            pieces.append((np.full(len(kept.row), number, np.int64), kept.row + first, kept.offset))
            self._last[number] = first + kept.last if kept.last >= 0 else -1
            self._report(number, rows[first:stop], kept.oddities, kept.hidden)
            done = stop
        pieces.append((rank[done:], np.arange(done, len(rows)), rows["offset"][done:]))
        self.queue, self.row, self.offset = (np.concatenate(each) for each in zip(*pieces, strict=True))

    @property
    def end(self) -> int:
        """Physical offset after the last message."""
        return int((self._rows["position"] + self._rows["size"]).max())

    def ends(self) -> Ends:
        """The queues' ends."""
        numbers, first = np.unique(self.queue, return_index=True)
        last = self._last[numbers]
        rows = self._rows
        return Ends(
            [self.prefixes[number] for number in numbers.tolist()],
            np.stack([rows["position"][self.row[first]], self.offset[first]], axis=1),
            np.stack([rows["position"][last], rows["offset"][last]], axis=1),
        )

    def block(self, begin: int, stop: int) -> NDArray[np.uint8]:
        """The keys and values of units [begin, stop), of queues whose prefixes are equally long."""
        queue, rows = self.queue[begin:stop], self._rows[self.row[begin:stop]]
        first = int(queue[0])
        return pack_units(
            self.prefixes[first : int(queue[-1]) + 1],
            UnitRows(
                queue - first,
                self.offset[begin:stop],
                rows["position"],
                rows["size"],
                rows["tags"],
                rows["timestamp"],
            ),
        )

    def blocks(self, most: int) -> Iterator[NDArray[np.uint8]]:
        """The keys and values of all units, ascending, at most so many at once: of one length each."""
        widths = np.array([len(prefix) for prefix in self.prefixes])[self.queue]
        changes = (np.flatnonzero(np.diff(widths)) + 1).tolist()
        for begin, stop in zip([0, *changes], [*changes, len(widths)], strict=True):
            for at in range(begin, stop, most):
                yield self.block(at, min(at + most, stop))

    def others(self, number: int, queue_offset: int) -> Iterator[Unit]:
        """The units of all messages of a queue, by its number, that have a queueOffset."""
        rows = self._rows[self._starts[number] : self._starts[number + 1]]
        for row in rows[rows["offset"] == queue_offset]:
            yield Unit(*(int(row[name]) for name in ("position", "size", "tags", "timestamp")))

    def _report(self, number: int, rows: Rows, oddities: list[Oddity], hidden: NDArray[np.int64]) -> None:
        key = parse_unit_key(self.prefixes[number] + bytes(8))
        if key is None:
            return
        topic, queue_id = key.topic.decode("utf-8", "replace"), key.queue_id
        summed: dict[str, Finding] = {}
        for oddity in oddities:
            row = rows[oddity.row]
            position, size = int(row["position"]), int(row["size"])
            if oddity.kind == "queue-offset-jump" and self._target.selection.is_batch(topic):
                continue  # a record of many messages takes as many queueOffsets
            if oddity.kind == "missing-queue-offsets":
                self.salvaged.append(
                    Salvaged(
                        FILLED, oddity.after, position, topic, queue_id, oddity.queue_offset, oddity.count
                    )
                )
            elif oddity.kind in summed:
                first = summed[oddity.kind]
                summed[oddity.kind] = replace(first, count=first.count + oddity.count)
                continue
            is_hole = oddity.kind == "missing-queue-offsets"
            summed[f"{oddity.kind} {oddity.queue_offset}" if is_hole else oddity.kind] = Finding(
                kind=oddity.kind,
                path="",
                offset=position,
                end=position + size,
                expected=f"the queueOffset that is due, {oddity.expected}",
                found=str(int(row["offset"])),
                outcome=_OUTCOMES[oddity.kind],
                topic=topic,
                queue_id=queue_id,
                queue_offset=oddity.queue_offset,
                count=oddity.count,
            )
        self.findings += summed.values()
        of_hidden = QueueRows(*(rows[name][hidden] for name in QueueRows._fields))
        self.salvaged += hidden_of((topic, queue_id), of_hidden)
        self.findings += unproven_of([], (topic, queue_id), of_hidden)


def _pairs(placed: Placed) -> Iterator[tuple[Any, ...]]:
    """The keys and values of all units, ascending."""
    for block in placed.blocks(_BLOCK):
        yield from pairs(block)


#: Units of a share: a task holds 120 bytes for each.
_MOST_UNITS = 1 << 21
_SHARES_A_SLOT = 3
_KNOWN = np.dtype([("first", np.int64), ("next", np.int64), ("units", np.int64), ("is_regular", np.bool_)])


def _make_queues(
    target: Target,
    journal: Journal,
    tasks: BatchTasks,
    slots: int,
    carried: Callable[[], Mapping[QueueBytes, QueueEnd]],
) -> None:
    """Make the database of the queues of all that the journal has committed."""

    def written(scratch: Path) -> Families:
        state = journal.state
        found = committed(target, journal.opening.start, state.cursor)
        shares = shares_of(totals_of(found.runs, found.breaks), slots)
        from_zero = state.log_start == 0
        task = partial(write, runs=found.runs, breaks=found.breaks, from_zero=from_zero, scratch=scratch)
        done: list[Written] = tasks.run(task, list(shares))
        offsets = scratch / "offset.sst"
        write_sorted(offsets, _ends(done, carried()), compressed=False)
        _note(target, journal, done)
        units = [each.path for each in done if each.path is not None]
        return {UNITS: (True, units), OFFSETS: (False, [offsets])}

    _make(target, _queues_at(target), written)


class Totals(NamedTuple):
    """What runs have of queues: of a million, columns take a third of what objects do."""

    prefixes: list[bytes]  # of the queues' keys, ascending
    first: NDArray[np.int64]  # int64[queues], queueOffset of the first unit, in log order
    units: NDArray[np.int64]  # int64[queues], how many
    is_regular: NDArray[np.bool_]  # bool[queues], whether all are consecutive

    def between(self, low: bytes, high: bytes | None) -> Totals:
        """Those whose prefixes are from ``low`` on and before ``high``; None for the end."""
        begin = bisect_left(self.prefixes, low)
        end = len(self.prefixes) if high is None else max(bisect_left(self.prefixes, high), begin)
        here = slice(begin, end)
        return Totals(self.prefixes[here], self.first[here], self.units[here], self.is_regular[here])


def totals_of(runs: Sequence[str], breaks: Breaks) -> Totals:
    """What runs, in log order, have of each queue."""
    numbers: dict[bytes, int] = {}
    known = np.empty(0, _KNOWN)
    for path in runs:
        with RunReader(path) as run:
            queues = run.queues()
        before = len(numbers)
        rows = np.array([numbers.setdefault(each, len(numbers)) for each in queues.prefixes[:]], np.int64)
        fresh = np.zeros(len(numbers) - before, _KNOWN)
        fresh["is_regular"] = True
        known = np.concatenate([known, fresh])
        is_new = rows >= before
        known["first"][rows[is_new]] = queues.first_offset[is_new]
        goes_on = is_new | (queues.first_offset == known["next"][rows])
        known["is_regular"][rows] &= queues.is_regular & goes_on
        known["units"][rows] += queues.stop - queues.first
        known["next"][rows] = queues.last_offset + 1
    prefixes = sorted(numbers)
    known = known[np.array([numbers[each] for each in prefixes], np.int64)]
    if breaks.places or breaks.unproven:
        known["is_regular"] = False  # what fills a hole, and what is unproven, is told by the whole queue
    return Totals(prefixes, known["first"], known["units"], known["is_regular"])


def shares_of(totals: Totals, slots: int) -> Iterator[Share]:
    """Cut the keys into shares of about the same number of units, ascending.

    A queue whose units are all consecutive may have several shares; another one is in one share, however many
    units it has.
    """
    prefixes, before = totals.prefixes, np.concatenate([[0], np.cumsum(totals.units)])
    most = max(min(_MOST_UNITS, -(-int(before[-1]) // max(slots * _SHARES_A_SLOT, 1))), 1)
    number, at = 0, 0
    while at < len(prefixes):
        begin = at
        at = max(int(np.searchsorted(before, before[begin] + most, "right")) - 1, begin + 1)
        stop = prefixes[at] if at < len(prefixes) else None
        units, first = int(totals.units[begin]), int(totals.first[begin])
        if at - begin == 1 and units > most and totals.is_regular[begin]:
            pieces = -(-units // most)
            bounds = [first + units * piece // pieces for piece in range(pieces + 1)]
            for low, high in pairwise(bounds):
                yield Share(number, prefixes[begin], stop, (low, high))
                number += 1
        else:
            yield Share(number, prefixes[begin], stop)
            number += 1


def _ends(written: list[Written], carried: Mapping[QueueBytes, QueueEnd]) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of all queues' ends, and the checkpoint, ascending."""
    others = {
        rocksdbqueue.offset_key(topic, queue_id, rocksdbqueue.MAX): rocksdbqueue.offset_value(*end)
        for (topic, queue_id), end in carried.items()
    } | {rocksdbqueue.CHECKPOINT_KEY: rocksdbqueue.checkpoint_value(_end(written))}
    before = b""
    for key, value in merge(_ends_of_queues(written), sorted(others.items()), key=itemgetter(0)):
        if key != before:  # of two, the first is the queue's own
            yield key, value
        before = key


def _ends_of_queues(written: list[Written]) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of all queues' ends, ascending, of a topic at a time: there may be millions."""
    for topic, queues in groupby(_queues(written), key=itemgetter(0)):
        here = list(queues)
        for _, queue_id, _, (position, queue_offset) in here:
            key = rocksdbqueue.offset_key(topic, queue_id, rocksdbqueue.MAX)
            yield key, rocksdbqueue.offset_value(position, queue_offset)
        for _, queue_id, (position, queue_offset), _ in here:
            key = rocksdbqueue.offset_key(topic, queue_id, rocksdbqueue.MIN)
            yield key, rocksdbqueue.offset_value(position, queue_offset)


def _queues(written: list[Written]) -> Iterator[tuple[bytes, int, list[int], list[int]]]:
    """Topic, queueId, and (physicalOffset, queueOffset) of the first and the last message, ascending."""
    ends = (each.ends for each in written)
    rows = chain.from_iterable(
        zip(each.prefixes, each.first.tolist(), each.last.tolist(), strict=True) for each in ends
    )
    for prefix, parts in groupby(rows, key=itemgetter(0)):
        key = rocksdbqueue.parse_unit_key(prefix + bytes(8))
        of_shares = list(parts)  # of a long queue there are several, one behind the other
        if key is not None:
            yield key.topic, key.queue_id, of_shares[0][1], of_shares[-1][2]


def _end(written: list[Written]) -> int:
    return max((each.end for each in written), default=-1) if any(each.end >= 0 for each in written) else 0


def _note(target: Target, journal: Journal, written: list[Written]) -> None:
    """Put into the journal what was odd about queues in a database alone: files have their own findings."""
    if target.queue_files:
        return
    state = journal.state
    reported = {(finding.kind, finding.offset, finding.topic) for finding in state.findings}
    findings = [
        replace(finding, path=segment_of(target, state.cursor, finding.offset))
        for each in written
        for finding in each.findings
        if (finding.kind, finding.offset, finding.topic) not in reported
    ]
    if findings:
        salvaged = [row for each in written for row in each.salvaged]
        journal.append(replace(state.without_messages(), findings=findings, salvaged=salvaged))
