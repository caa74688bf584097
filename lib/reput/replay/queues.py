"""The state of a batch's queues while its parts are joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.build.placement import Breaks
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.names import Queue
from reput.replay.part_result import PartResult
from reput.replay.placing import QueueOutcome
from reput.replay.state import QueueState

_KNOWN = np.dtype(
    [(name, np.int64) for name in ("first", "next", "end", "units", "bytes")] + [("going_on", np.bool_)]
)


class Regular(NamedTuple):
    """Queues of a batch with queueOffsets that go on without a hole."""

    queues: list[Queue]  # all of the batch's
    chosen: NDArray[np.bool_]  # bool[queues], these among them
    #: int64[queues], the next queueOffset before the batch, -1 where there was no such queue
    before: NDArray[np.int64]
    #: of each part, in log order, int64[its queues]: which of the batch's they are
    of_parts: list[NDArray[np.int64]]


class BatchQueues:
    """The queues of a batch, updated part by part; all parts are added before anything is asked.

    Args:
        committed: the queues before the batch; not changed.
    """

    def __init__(self, committed: Mapping[Queue, QueueState]) -> None:
        self._committed = committed
        # Numbers of the batch's queues, and what is known of each: a batch may have a million.
        self._numbers: dict[Queue, int] = {}
        self._known = np.empty(0, _KNOWN)
        self._of_parts: list[NDArray[np.int64]] = []
        self._irregular: set[Queue] = set()
        self._ordered: set[Queue] = set()
        self._restarted: set[Queue] = set()
        self.last_unit_position = -1
        self.last_unit_timestamp = 0

    def add(self, result: PartResult) -> None:
        """Add a part's queues."""
        columns = result.queues
        queues, numbers = columns.queues(), self._numbers
        count = len(numbers)
        rows = np.array([numbers.setdefault(queue, len(numbers)) for queue in queues], np.int64)
        self._of_parts.append(rows)
        self._ordered.update(result.waiting)
        if not queues:
            return
        self._make_room(count)
        known = self._known
        going_on = known["going_on"][rows]
        wrong = (columns.irregular != 0) | (going_on & (columns.first != known["next"][rows]))
        # A queue in log order is written when all parts are known; until then its state is a guess.
        self._irregular.update(
            queue
            for queue in map(queues.__getitem__, np.flatnonzero(wrong).tolist())
            if queue not in self._ordered
        )
        known["first"][rows] = np.where(going_on, known["first"][rows], columns.first)
        known["going_on"][rows] = True
        known["next"][rows], known["end"][rows] = columns.next, columns.end
        known["units"][rows] += columns.units
        known["bytes"][rows] += columns.bytes
        last = int(np.argmax(columns.last_position))
        if columns.last_position[last] > self.last_unit_position:
            self.last_unit_position = int(columns.last_position[last])
            self.last_unit_timestamp = int(columns.last_timestamp[last])

    def _make_room(self, count: int) -> None:
        """Make room for the queues from the number ``count`` on, and note what is committed of them."""
        missing = len(self._numbers) - len(self._known)
        if missing > 0:
            self._known = np.concatenate([self._known, np.zeros(max(missing, count), _KNOWN)])
        if not self._committed:
            return
        for queue, number in islice(self._numbers.items(), count, None):
            state = self._committed.get(queue)
            if state is not None:
                self._known["first"][number], self._known["next"][number] = state.first, state.next
                self._known["going_on"][number] = True

    @cached_property
    def _now(self) -> dict[Queue, QueueState]:
        columns = (self._known[name].tolist() for name in ("first", "next", "end", "units", "bytes"))
        return dict(zip(self._numbers, map(QueueState, *columns), strict=False))

    def distrust(self, result: PartResult) -> None:
        """A part was rejected, but its units may be in files: place these queues again."""
        if result.in_files:
            self._irregular.update(queue for queue in result.queues.queues() if queue not in result.waiting)

    def doubt_heads(self) -> None:
        """Place new queues again that lack messages before their first one, of a log that begins at 0."""
        for queue, state in self._now.items():
            if state.first and queue not in self._committed and queue not in self._ordered:
                self._irregular.add(queue)

    def doubt(self, breaks: Breaks, largest_record: int) -> None:
        """Place queues again if their last messages are unproven: later ones may contradict them.

        Args:
            breaks: with the byte ranges in which an unproven record begins.
            largest_record: bytes that no record exceeds.
        """
        for start, end in breaks.unproven:
            for queue, state in self._now.items():
                if start < state.end <= end + largest_record and queue not in self._ordered:
                    self._irregular.add(queue)

    def regular(self) -> Regular:
        """The other consume queues that the batch changed."""
        apart = self._irregular | self._ordered
        queues = list(self._numbers)
        chosen = np.ones(len(queues), bool)
        chosen[[self._numbers[queue] for queue in apart if queue in self._numbers]] = False
        before = np.full(len(queues), -1, np.int64)
        for number, queue in enumerate(queues) if self._committed else ():
            state = self._committed.get(queue)
            if state is not None:
                before[number] = state.next
        return Regular(queues, chosen, before, self._of_parts)

    def irregular(self) -> dict[Queue, QueueState | None]:
        """The queues to place again, with their states before the batch."""
        return self.before(self._irregular)

    def before(self, queues: Iterable[Queue]) -> dict[Queue, QueueState | None]:
        """These queues, with their states before the batch."""
        return {queue: self._committed.get(queue) for queue in sorted(queues)}

    def replace(self, outcome: QueueOutcome) -> None:
        """Take the result of placing a queue again."""
        queue = (outcome.topic, outcome.queue_id)
        if outcome.state is None or outcome.state == self._committed.get(queue):
            self._now.pop(queue, None)
        else:
            self._now[queue] = outcome.state
        if outcome.restarted:
            self._restarted.add(queue)

    def changed(self) -> dict[Queue, QueueState]:
        """The queues that the batch changed."""
        return self._now

    def new(self) -> Iterator[tuple[Queue, QueueState]]:
        """Consume queues that begin in the batch: new ones, and those that begin again."""
        for queue, state in self._now.items():
            if not state.is_batch and (queue not in self._committed or queue in self._restarted):
                yield queue, state

    def restarted(self) -> Iterator[tuple[Queue, QueueState | None, QueueState]]:
        """Queues that begin again, with their states before the batch and now."""
        for queue in sorted(self._restarted):
            if queue in self._now:
                yield queue, self._committed.get(queue), self._now[queue]

    def going_on(self) -> Iterator[Queue]:
        """The queues that the batch adds to."""
        return (queue for queue in self._now if queue not in self._restarted)

    def ranges(self, file_size: int) -> Iterator[tuple[Queue, tuple[int, int]]]:
        """For each changed consume queue, the byte range, in whole files, that it may have written."""
        for queue, state in self._now.items():
            if state.is_batch:
                continue
            before = self._committed.get(queue)
            fresh = before is None or queue in self._restarted
            start = (state.first if fresh or before is None else before.next) * UNIT_LENGTH
            yield queue, (start - start % file_size, state.next * UNIT_LENGTH)
