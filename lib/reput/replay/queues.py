"""The state of a batch's queues while its parts are joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reput.build.placement import Breaks
from reput.format.consumequeue import UNIT_LENGTH
from reput.replay.part_result import PartResult
from reput.replay.placing import QueueOutcome
from reput.replay.state import QueueState


class BatchQueues:
    """The queues of a batch, updated part by part.

    Args:
        committed: the queues before the batch; not changed.
    """

    def __init__(self, committed: Mapping[tuple[str, int], QueueState]) -> None:
        self._committed = committed
        self._now: dict[tuple[str, int], QueueState] = {}
        self._irregular: set[tuple[str, int]] = set()
        self._ordered: set[tuple[str, int]] = set()
        self._restarted: set[tuple[str, int]] = set()
        self.last_unit_position = -1
        self.last_unit_timestamp = 0

    def add(self, result: PartResult) -> None:
        """Add a part's queues."""
        columns = result.queues
        self._ordered.update(result.waiting)
        for at, topic in enumerate(columns.topic):
            queue = (columns.topics[topic], columns.queue_id[at])
            before = self._now.get(queue) or self._committed.get(queue)
            if queue in self._ordered:
                pass  # written when all parts are known; until then the state is a guess
            elif columns.irregular[at] or (before is not None and columns.first[at] != before.next):
                self._irregular.add(queue)
            here = self._now.get(queue)
            self._now[queue] = QueueState(
                first=columns.first[at] if before is None else before.first,
                next=columns.next[at],
                end=columns.end[at],
                units=columns.units[at] + (here.units if here else 0),
                bytes=columns.bytes[at] + (here.bytes if here else 0),
            )
            if columns.last_position[at] > self.last_unit_position:
                self.last_unit_position = columns.last_position[at]
                self.last_unit_timestamp = columns.last_timestamp[at]

    def distrust(self, result: PartResult) -> None:
        """A part was rejected, but its units may be in files: place these queues again."""
        columns = result.queues
        self._irregular.update(
            queue
            for at, topic in enumerate(columns.topic)
            if (queue := (columns.topics[topic], columns.queue_id[at])) not in result.waiting
            and queue not in result.placed
        )

    def doubt_heads(self, breaks: Sequence[int]) -> None:
        """Place new queues again that lack messages before their first one, and may have lost them.

        Args:
            breaks: physical offsets where messages may be missing from a log that begins at 0, ascending.
        """
        for queue, state in self._now.items():
            is_new = state.first and queue not in self._committed and queue not in self._ordered
            if is_new and breaks and breaks[0] <= state.end:
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

    def regular(self) -> dict[tuple[str, int], QueueState | None]:
        """The other consume queues that the batch changed, with their states before it."""
        apart = self._irregular | self._ordered
        return {queue: self._committed.get(queue) for queue in self._now if queue not in apart}

    def irregular(self) -> dict[tuple[str, int], QueueState | None]:
        """The queues to place again, with their states before the batch."""
        return {queue: self._committed.get(queue) for queue in sorted(self._irregular)}

    def replace(self, outcome: QueueOutcome) -> None:
        """Take the result of placing a queue again."""
        queue = (outcome.topic, outcome.queue_id)
        if outcome.state is None or outcome.state == self._committed.get(queue):
            self._now.pop(queue, None)
        else:
            self._now[queue] = outcome.state
        if outcome.restarted:
            self._restarted.add(queue)

    def changed(self) -> dict[tuple[str, int], QueueState]:
        """The queues that the batch changed."""
        return self._now

    def new(self) -> Iterator[tuple[tuple[str, int], QueueState]]:
        """Consume queues that begin in the batch: new ones, and those that begin again."""
        for queue, state in self._now.items():
            if not state.is_batch and (queue not in self._committed or queue in self._restarted):
                yield queue, state

    def restarted(self) -> Iterator[tuple[tuple[str, int], QueueState | None, QueueState]]:
        """Queues that begin again, with their states before the batch and now."""
        for queue in sorted(self._restarted):
            if queue in self._now:
                yield queue, self._committed.get(queue), self._now[queue]

    def going_on(self) -> Iterator[tuple[str, int]]:
        """The queues that the batch adds to."""
        return (queue for queue in self._now if queue not in self._restarted)

    def ranges(self, file_size: int) -> Iterator[tuple[tuple[str, int], tuple[int, int]]]:
        """For each changed consume queue, the byte range, in whole files, that it may have written."""
        for queue, state in self._now.items():
            if state.is_batch:
                continue
            before = self._committed.get(queue)
            fresh = before is None or queue in self._restarted
            start = (state.first if fresh or before is None else before.next) * UNIT_LENGTH
            yield queue, (start - start % file_size, state.next * UNIT_LENGTH)
