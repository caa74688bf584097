"""The database of a store's queues: planned here, written by tasks, made and named at the end."""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks
from reput.format import rocksdbqueue
from reput.format.names import QueueBytes
from reput.format.rocksdbqueue import OFFSETS, UNITS, QueueEnd
from reput.output.journal.journal import Journal
from reput.output.rocksdb.manifest import committed, segment_of
from reput.output.rocksdb.naming import Tasks, is_whole, name_files
from reput.output.rocksdb.queue_task import Share, Written, write
from reput.replay.target import Target
from reput.replay.unit_runs import RunReader
from reput.rocksdb.writing import assemble, write_sorted
from reput.store import files

#: Units of a share: a task holds 120 bytes for each.
_MOST_UNITS = 1 << 21
_SHARES_A_SLOT = 3
_KNOWN = np.dtype([("first", np.int64), ("next", np.int64), ("units", np.int64), ("is_regular", np.bool_)])
_SORTED = "sorted"  # directory below the runs'
_MADE = "made"


def directory_of(target: Target) -> Path:
    """Where the database goes."""
    return target.root / str(target.settings.rocksdb.queues)


def is_made(target: Target) -> bool:
    """Whether the database is there and whole."""
    return is_whole(directory_of(target))


def make(
    target: Target,
    journal: Journal,
    tasks: Tasks,
    slots: int,
    carried: Callable[[], Mapping[QueueBytes, QueueEnd]],
) -> None:
    """Make the database of all that the journal has committed, unless it is there.

    Args:
        slots: how many tasks run at once.
        carried: gives the last message of queues that the log has no message of, by topic and queueId.

    Raises:
        ReputError: it could not be made; the same command makes it anew.
    """
    if is_made(target):
        return
    state = journal.state
    scratch, made = target.runs / _SORTED, target.runs / _MADE
    for left in (scratch, made):
        files.remove_tree(left)
    files.make_dirs(scratch, target.owner)
    found = committed(target, journal.opening.start, state.cursor)
    shares = shares_of(totals_of(found.runs, found.breaks), slots)
    written: list[Written] = tasks.run(
        partial(write, runs=found.runs, breaks=found.breaks, from_zero=state.log_start == 0, scratch=scratch),
        list(shares),
    )
    offsets = scratch / "offset.sst"
    write_sorted(offsets, _ends(written, carried()), compressed=False)
    units = [each.path for each in written if each.path is not None]
    assemble(made, {UNITS: (True, units), OFFSETS: (False, [offsets])}, target.owner)
    _note(target, journal, written)
    name_files(made, directory_of(target), target)
    shutil.rmtree(scratch, ignore_errors=True)


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
