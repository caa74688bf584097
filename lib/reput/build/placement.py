"""Placing the units of a queue with queueOffsets that aren't consecutive.

Where the log is whole, a broker has dispatched its messages, and they are placed as the broker did, oddities
included. Where something is missing from the log, a broker that rebuilds shifts every later unit of a queue;
reput keeps each unit in its own place. docs/findings.md says why.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format.commitlog import MIN_RECORD_LENGTH

# A unit stands at its own queueOffset: nothing is shifted, and a later message takes an earlier one's place.
# docs/formats/rocksdb.md says what a broker does, and what can't be told from the log.


class Kept(NamedTuple):
    """What a database holds of a queue."""

    row: NDArray[np.int64]  # int64[units], whose unit it is
    offset: NDArray[np.int64]  # int64[units], where it stands, ascending as unsigned numbers
    last: int  # the row of the queue's last message; -1 if none is left
    oddities: list[Oddity]  # what was odd
    hidden: NDArray[np.int64]  # int64[rows], rows of unproven messages that gave way to proven ones


def keep(
    offset: NDArray[np.int64],
    position: NDArray[np.int64],
    size: NDArray[np.int32],
    breaks: Breaks,
    *,
    from_zero: bool,
) -> Kept:
    """Which units of a queue, given in log order, stand where.

    * Of messages with one queueOffset the last one has the unit.
    * queueOffset 0 where a later one was due, and 1 after it: the topic was deleted and created again. The
      newest incarnation is kept, as in a live broker.
    * Where something is missing from the log between two messages, the places between them get the unit of
      the later one, so that consumers lose no message; and so do those before a queue's first message, in a
      log that begins at physical offset 0. Not more places than messages can be missing.
    * Other places stay without a unit, as a broker leaves them.

    ``from_zero``: the log begins at physical offset 0, so that nothing of it has expired.
    """
    gives_way = giving_way(offset, is_unproven(position, breaks))
    rows = np.flatnonzero(~gives_way)
    hidden = np.flatnonzero(gives_way)
    oddities: list[Oddity] = []
    begin = _restarted(offset[rows])
    if begin:
        row = int(rows[begin])
        due = int(offset[rows[begin - 1]]) + 1
        oddities.append(Oddity("queue-restarted", row, 0, due, due))
        rows = rows[begin:]
    if not len(rows):
        return Kept(rows, rows, -1, oddities, hidden)
    last = int(rows[-1])
    # The last of equal queueOffsets: the first in the order from the end.
    backwards = rows[::-1]
    _, chosen = np.unique(offset[backwards].view(np.uint64), return_index=True)
    kept = backwards[chosen]
    if len(kept) < len(rows):
        lost = np.setdiff1d(rows, kept)
        row = int(lost[0])
        oddities.append(Oddity("repeated-queue-offset", row, int(offset[row]), int(offset[row]), len(lost)))
    places = offset[kept]
    pieces: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    done = 0
    gaps = (np.flatnonzero(np.diff(places) != 1) + 1).tolist()
    if from_zero and int(places[0]) > 0 and not begin:
        gaps = [0, *gaps]
    for at in gaps:
        row, place = int(kept[at]), int(places[at])
        due = int(places[at - 1]) + 1 if at else 0
        before = int(kept[at - 1]) if at else -1
        end = int(position[before]) + int(size[before]) if at else 0
        here = int(position[row])
        if 0 < place - due <= (here - end) // MIN_RECORD_LENGTH and is_broken(breaks.places, end, here):
            oddities.append(Oddity("missing-queue-offsets", row, due, due, place - due, end))
            pieces.append((kept[done:at], places[done:at]))
            pieces.append((np.full(place - due, row, np.int64), np.arange(due, place)))
            done = at
        elif at:
            oddities.append(Oddity("queue-offset-jump", row, place, due, 1))
    pieces.append((kept[done:], places[done:]))
    row_of, offset_of = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    return Kept(row_of, offset_of, last, oddities, hidden)


def _restarted(offset: NDArray[np.int64]) -> int:
    """The row with which the newest incarnation of a queue begins; 0 for the first."""
    begins = np.flatnonzero((offset[1:-1] == 0) & (offset[2:] == 1) & (offset[:-2] >= 0)) + 1
    return int(begins[-1]) if len(begins) else 0


class Breaks(NamedTuple):
    """Where the log isn't whole; physical offsets, ascending."""

    places: list[int]  # messages may be missing there
    #: (start, end): what begins there may be part of a message's body; see :mod:`reput.scan.extent`
    unproven: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Oddity:
    """One thing that was odd about a queue."""

    kind: str  # the finding's kind
    row: int  # the row where it was found
    queue_offset: int  # the first queueOffset concerned
    expected: int  # the queueOffset that was due
    count: int  # units concerned. Repeats are that many rows from ``row`` on
    after: int = 0  # physical offset after the queue's message before a hole, 0 if missing


class Gap(NamedTuple):
    """QueueOffsets that a queue misses, though nothing is missing from the log."""

    first: int  # first, stop: the queueOffsets, half open
    stop: int
    after: int  # after, before: physical offsets: after the message before them, and of the one behind
    before: int
    due: int  # where the first of them would stand in the queue


@dataclass(slots=True)
class Placement:
    """Where a queue's units go."""

    #: (queueOffset, first row, end row): rows [first, end) go to consecutive places from queueOffset
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    #: (queueOffset, end, row): places [queueOffset, end) are filled with the unit of ``row``
    fills: list[tuple[int, int, int]] = field(default_factory=list)
    first: int | None = None  # the queue's first queueOffset after this, None if it has no units
    next: int = 0  # the queue's next queueOffset after this
    restarted: bool = False  # the queue was created again: whatever it held before these rows is dropped
    #: how far the queueOffset of the last row with a place is above that place; not below 0 once a row
    #: that repeats another came after it. See :func:`last_is_lone_zero`
    shift: int = 0
    oddities: list[Oddity] = field(default_factory=list)  # what was odd
    gaps: list[Gap] = field(default_factory=list)  # queueOffsets that are missing, and no damage tells why


def is_unproven(position: NDArray[np.int64], breaks: Breaks) -> NDArray[np.bool_]:
    """Which of the messages at these physical offsets, int64[rows], may be part of another one's body."""
    found = np.zeros(len(position), np.bool_)
    for start, end in breaks.unproven:
        found |= (position >= start) & (position < end)
    return found


def giving_way(
    offset: NDArray[np.int64], unproven: NDArray[np.bool_], proven_next: int = 0
) -> NDArray[np.bool_]:
    """Which unproven rows of a queue, in log order, are dropped in favour of others: bool[rows].

    A row stays only if it is above all proven queueOffsets before it and below all later ones, so that no
    proven message loses its place to it. Of unproven rows the later one stays: a damaged record's body is
    before the log that continues behind it. ``proven_next`` comes after the last proven queueOffset before
    the rows.
    """
    if not unproven.any():
        return np.zeros(len(offset), np.bool_)
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    before = np.maximum.accumulate(np.where(unproven, least, offset))
    before = np.maximum(np.concatenate([[least], before[:-1]]), proven_next - 1)
    later = np.minimum.accumulate(offset[::-1])[::-1]
    later = np.concatenate([later[1:], [most]])
    hidden: NDArray[np.bool_] = unproven & ((offset <= before) | (offset >= later))
    return hidden


def last_is_lone_zero(next_offset: int, shift: int) -> bool:
    """Whether a queue's last message has queueOffset 0 and was appended in another place.

    If the next one is 1, the queue was created again; then it has to be among the rows again.
    """
    return shift < 0 and next_offset + shift == 1


def place(
    offset: NDArray[np.int64],
    position: NDArray[np.int64],
    size: NDArray[np.int32],
    committed_first: int | None = None,
    committed_next: int = 0,
    committed_end: int = -1,
    committed_shift: int = 0,
    breaks: Sequence[int] = (),
    *,
    from_zero: bool = False,
    begin: int = -1,
) -> Placement:
    """Place a queue's units, given in log order.

    * The first of a repeated queueOffset keeps its place; the later ones get none.
    * A message that is dispatched twice to one queue counts once.
    * queueOffset 0 where a later one was due, and 1 after it, means that the topic was deleted and created
      again: the newest incarnation is kept, as in a live broker. So does a lone 0 that the queue's own file
      begins with; any other is appended, as brokers do.
    * A queueOffset above the due one, with the log whole since the queue's last message, is appended at the
      due place: that is what the broker did when it wrote the message.
    * A queueOffset above the due one after a break in the log keeps its own place; the hole is filled
      with the same unit, because a real broker's consumers then lose no message (measured; see
      docs/findings.md). A hole of more messages than fit into the bytes since the queue's last one isn't
      treated so.
    * In the same way places before a new queue's first message are filled, if there is a break before it in a
      log that begins at 0. Otherwise there would be pre-blank units, which a broker treats as expired by the
      log's start: with 0 it would skip to the next segment, past good messages (measured).
    * A queue without any message left in the log begins again where its next one comes after a break: the
      messages of a hole could no longer be read, and its consumers continue at the first one that can.

    Args:
        offset, position: int64[rows], queueOffset and physicalOffset.
        size: int32[rows], bytes.
        committed_first: the queue's first queueOffset so far, None for a new queue.
        committed_next: its next queueOffset.
        committed_end: physical offset after its last message.
        committed_shift: what :attr:`Placement.shift` was. After a lone queueOffset 0 the first row is that
            message again.
        breaks: physical offsets where messages may be missing from the log, ascending.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
        begin: physical offset to which the queue's own file leads from queueOffset 0, -1 if it doesn't.
    """
    result = Placement(first=committed_first, next=committed_next, shift=committed_shift)
    if not len(offset):
        return result
    if committed_first == committed_next and not last_is_lone_zero(committed_next, committed_shift):
        ahead = int(offset[0]) - committed_next
        if ahead and ahead != committed_shift and is_broken(breaks, committed_end, int(position[0])):
            result = place(offset, position, size, breaks=breaks, begin=begin)
            result.restarted = True
            return result
    ends = position + size
    consecutive = (np.diff(offset) == 1) & (ends[1:] > ends[:-1])
    bounds = [0, *(np.flatnonzero(~consecutive) + 1).tolist(), len(offset)]
    carried = last_is_lone_zero(committed_next, committed_shift)
    placed_end, own = committed_end, committed_next + committed_shift
    known_end = int(position[0]) if carried else committed_end
    for start, stop in pairwise(bounds):
        row = start
        queue_offset, due = int(offset[row]), result.next
        if ends[row] <= known_end:
            result.oddities.append(Oddity("repeated-message", row, queue_offset, due, 1))
            row, queue_offset = row + 1, queue_offset + 1
            if row == stop:
                continue
        known_end = int(ends[stop - 1])
        if result.first is None:
            here = int(position[row])
            result.first = queue_offset
            if from_zero and 0 < queue_offset <= here // MIN_RECORD_LENGTH and is_broken(breaks, 0, here):
                result.first = 0
                result.oddities.append(Oddity("missing-queue-offsets", row, 0, 0, queue_offset))
                result.fills.append((0, queue_offset, row))
            elif from_zero and queue_offset:
                result.gaps.append(Gap(0, queue_offset, 0, here, 0))
        elif queue_offset == 0 and due > 0 and stop - row == 1 and carried and row == 0:
            continue  # it has its place
        elif queue_offset == 0 and due > 0 and stop - row == 1 and int(position[row]) != begin:
            result.oddities.append(Oddity("queue-offset-jump", row, 0, due, 1))
            queue_offset = due
        elif queue_offset == 0 and due > 0:
            met = carried and row == 0
            result.oddities.append(Oddity("queue-restarted", row + met, 0, due - met, due - met))
            result.runs.clear()
            result.fills.clear()
            result.first = 0
            result.restarted = True
        elif queue_offset < due:
            repeated = min(due - queue_offset, stop - row)
            result.oddities.append(Oddity("repeated-queue-offset", row, queue_offset, due, repeated))
            row, queue_offset = row + repeated, queue_offset + repeated
            if row == stop:
                own = max(own, due)
                continue
        elif queue_offset > due:
            here = int(position[row])
            broken = is_broken(breaks, placed_end, here)
            if (
                broken
                and queue_offset != own
                and queue_offset - due <= (here - placed_end) // MIN_RECORD_LENGTH
            ):
                missing = queue_offset - due
                result.oddities.append(
                    Oddity("missing-queue-offsets", row, due, due, missing, max(placed_end, 0))
                )
                result.fills.append((due, queue_offset, row))
            else:
                result.oddities.append(Oddity("queue-offset-jump", row, queue_offset, due, stop - row))
                if own < queue_offset:
                    result.gaps.append(Gap(own, queue_offset, max(placed_end, 0), here, due))
                queue_offset = due
        result.runs.append((queue_offset, row, stop))
        result.next = queue_offset + stop - row
        placed_end, own = known_end, int(offset[stop - 1]) + 1
    result.shift = own - result.next
    return result


def is_broken(breaks: Sequence[int], end: int, position: int) -> bool:
    """Whether messages may be missing between the end of one and the place of the next."""
    return bisect_left(breaks, end) < bisect_right(breaks, position)
