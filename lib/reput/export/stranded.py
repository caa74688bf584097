"""The messages of a finding: those that no unit of their queue leads to, or that a start cuts off."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import numpy as np
from numpy.typing import NDArray

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.derived.queues import OnDisk, Queues
from reput.dump.commitlog import Block
from reput.errors import SettingsError, UnsupportedError
from reput.format import commitlog, javastring
from reput.format.names import QueueBytes
from reput.recovery.plan import MOST_READ, brings_back, plan
from reput.replay.placing import ANOTHER, BY_RANGE, BY_UNIT, ITSELF, KINDS, NOTHING
from reput.store.listing import nearest

#: Findings without messages to save, and why.
_WITHOUT = {
    "past-log-end": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "index-ahead": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "checkpoint-ahead": "the log doesn't hold these messages: look for its end on a replica or in a backup",
    "missing-segments": "the log doesn't hold these messages: look for the segments on a replica",
    "queue-cut": "units go with the messages that they lead to: export --finding log-cut saves these",
    "misplaced-unit": "consumers get these messages, in another place of the queue: `reput mend`",
    "no-index": "consumers get these messages: `reput mend` makes the index anew",
    "missing-entry": "consumers get these messages: `reput mend` makes the index anew",
}


class Stranded:
    """Chooses the messages of one kind of finding; SettingsError says why a name is none with messages.

    ``uncertain`` says, in words, whether messages among them were cut off on purpose.
    """

    def __init__(self, settings: StoreSettings, kind: str) -> None:
        self._settings = settings
        self._kind = check_kind(kind)
        self._ranges: list[tuple[int, int]] = []
        self._queues: dict[QueueBytes, OnDisk] = {}
        self.uncertain: list[str] = []
        by_range = kind in BY_RANGE
        if not by_range:
            self._all = Queues(settings)
        elif settings.dledger is not None:
            raise UnsupportedError("what a start cuts off a DLedger log isn't known", path=settings.root)
        with nullcontext() if by_range else suppress(UnsupportedError):
            snapshot = take(settings)
            if by_range or snapshot.holder is None:
                start = plan(snapshot, None if by_range else MOST_READ)
                self.uncertain += brings_back(start.prediction)
                self._ranges = [(loss.offset, loss.end) for loss in start.losses if loss.kind == kind]

    def of(self, block: Block) -> NDArray[np.int64]:
        """Which rows of a block they are: int64[n], ascending."""
        rows, found = block.rows, block.frames
        places = found.position[rows] + block.base
        if self._kind in BY_RANGE:
            mask = np.zeros(len(rows), np.bool_)
            for start, end in self._ranges:
                mask |= (places >= start) & (places < end)
            return rows[mask]
        state = found.sys_flag[rows] & commitlog.TRANSACTION_MASK
        has_unit = (state == commitlog.TRANSACTION_NONE) | (state == commitlog.TRANSACTION_COMMIT)
        of_queue: dict[QueueBytes, list[int]] = {}
        columns = found.topic[rows], found.topic_length[rows], found.queue_id[rows]
        for number, (at, length, queue_id) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
            of_queue.setdefault((block.data[at : at + length].tobytes(), queue_id), []).append(number)
        wanted = np.zeros(len(rows), np.bool_)
        for queue, numbers in of_queue.items():
            chosen = np.array(numbers)
            states = _states(self._queue(queue), found.queue_offset[rows[chosen]], places[chosen])
            wanted[chosen] = np.isin(states, list(BY_UNIT[self._kind]))
        chosen_rows: NDArray[np.int64] = rows[wanted & has_unit]
        return chosen_rows

    def _queue(self, queue: QueueBytes) -> OnDisk:
        if queue not in self._queues:
            self._queues[queue] = self._all.on_disk(javastring.decode(queue[0]), queue[1])
        return self._queues[queue]


def check_kind(kind: str) -> str:
    """The name of a finding with messages to save.

    SettingsError says why it is none, or which may have been meant.
    """
    if kind in KINDS:
        return kind
    meant = nearest(kind, [*KINDS, *_WITHOUT])
    raise SettingsError(
        f"finding {kind} has no messages to save" if kind in _WITHOUT else "--finding can't be understood",
        expected=f"one of {', '.join(KINDS)}",
        found=kind,
        next_step=_WITHOUT.get(kind) or (None if meant is None else f"Did you mean {meant}?"),
    )


def _states(queue: OnDisk, offsets: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """What stands in the places of messages, by their queueOffsets and physical offsets, int64[messages].

    One that stands elsewhere in the queue counts as itself: consumers get it.
    """
    found = np.full(len(offsets), ITSELF)
    for number in np.flatnonzero(~queue.leads_to(places)).tolist():
        found[number] = ANOTHER if queue.holds(int(offsets[number])) else NOTHING
    return found
