"""Which units of a queue a database holds, where queueOffsets aren't consecutive.

A unit stands at its own queueOffset: nothing is shifted, and a later message takes an earlier one's place.
docs/formats/rocksdb.md says what a broker does, and what can't be told from the log.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks, Oddity, giving_way, is_broken, is_unproven
from reput.format.commitlog import MIN_RECORD_LENGTH


class Kept(NamedTuple):
    """What a database holds of a queue.

    Attributes:
        row: int64[units], whose unit it is.
        offset: int64[units], where it stands, ascending as unsigned numbers.
        last: the row of the queue's last message; -1 if none is left.
        oddities: what was odd.
        hidden: int64[rows], rows of unproven messages that gave way to proven ones.
    """

    row: NDArray[np.int64]
    offset: NDArray[np.int64]
    last: int
    oddities: list[Oddity]
    hidden: NDArray[np.int64]


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

    Args:
        offset, position: int64[rows], queueOffset and physicalOffset.
        size: int32[rows], bytes.
        breaks: where the log isn't whole.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
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
