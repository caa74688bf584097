"""The database of a store's queues: planned here, written by tasks, made and named at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path

from reput.build.placement import Breaks
from reput.format import rocksdbqueue
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
    carried: Callable[[], Mapping[tuple[bytes, int], QueueEnd]],
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
    found = committed(target, state.cursor)
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


class Total:
    """What the runs have of one queue."""

    __slots__ = ("first", "is_regular", "next", "units")

    def __init__(self, first: int) -> None:
        self.first = self.next = first
        self.units = 0
        self.is_regular = True


def totals_of(runs: Sequence[str], breaks: Breaks) -> dict[bytes, Total]:
    """What runs, in log order, have of each queue, by the prefix of its keys.

    Raises:
        OutputError: a run can't be read.
    """
    totals: dict[bytes, Total] = {}
    for path in runs:
        with RunReader(path) as run:
            queues = run.queues()
        columns = (queues.stop - queues.first, queues.first_offset, queues.last_offset, queues.is_regular)
        lists = (column.tolist() for column in columns)
        for prefix, units, first, last, is_regular in zip(queues.prefixes, *lists, strict=True):
            total = totals.get(prefix)
            if total is None:
                total = totals[prefix] = Total(first)
            total.is_regular = total.is_regular and is_regular and first == total.next
            total.units += units
            total.next = last + 1
    if breaks.places or breaks.unproven:
        for total in totals.values():
            total.is_regular = False  # what fills a hole, and what is unproven, is told by the whole queue
    return totals


def shares_of(totals: Mapping[bytes, Total], slots: int) -> Iterator[Share]:
    """Cut the keys into shares of about the same number of units, ascending.

    A queue whose units are all consecutive may have several shares; another one is in one share, however many
    units it has.
    """
    every = sum(total.units for total in totals.values())
    most = max(min(_MOST_UNITS, -(-every // max(slots * _SHARES_A_SLOT, 1))), 1)
    prefixes = sorted(totals)
    number, at = 0, 0
    while at < len(prefixes):
        begin, units = at, 0
        while at < len(prefixes) and (at == begin or units + totals[prefixes[at]].units <= most):
            units += totals[prefixes[at]].units
            at += 1
        stop = prefixes[at] if at < len(prefixes) else None
        only = totals[prefixes[begin]]
        if at - begin == 1 and only.units > most and only.is_regular:
            pieces = -(-only.units // most)
            bounds = [only.first + only.units * piece // pieces for piece in range(pieces + 1)]
            for low, high in pairwise(bounds):
                yield Share(number, prefixes[begin], stop, (low, high))
                number += 1
        else:
            yield Share(number, prefixes[begin], stop)
            number += 1


def _ends(
    written: list[Written], carried: Mapping[tuple[bytes, int], QueueEnd]
) -> Iterator[tuple[bytes, bytes]]:
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
