"""What damage in the log leaves of queues: holes that were filled, and messages that no queue can show."""

from __future__ import annotations

from collections.abc import Iterator

from reput.build.placement import Oddity, Placement
from reput.replay.part_result import QueueRows
from reput.replay.state import FILLED, HIDDEN, Salvaged

#: Messages of one queue and batch that are listed one by one; one more row stands for the rest.
MOST_HIDDEN = 4096


def salvaged_of(queue: tuple[str, int], rows: QueueRows, placement: Placement) -> Iterator[Salvaged]:
    """The holes of a queue that were filled, and the messages that it can't show."""
    topic, queue_id = queue
    left = MOST_HIDDEN
    rest: list[Oddity] = []
    for oddity in placement.oddities:
        if oddity.kind == "missing-queue-offsets":
            begin, end = oddity.after, int(rows.position[oddity.row])
            yield Salvaged(FILLED, begin, end, topic, queue_id, oddity.queue_offset, oddity.count)
        elif oddity.kind == "repeated-queue-offset":
            listed = min(oddity.count, left)
            left -= listed
            for row in range(oddity.row, oddity.row + listed):
                begin = int(rows.position[row])
                end, queue_offset = begin + int(rows.size[row]), int(rows.offset[row])
                yield Salvaged(HIDDEN, begin, end, topic, queue_id, queue_offset)
            if listed < oddity.count:
                rest.append(Oddity(oddity.kind, oddity.row + listed, 0, 0, oddity.count - listed))
    if rest:
        first, last = rest[0].row, rest[-1].row + rest[-1].count - 1
        yield Salvaged(
            HIDDEN,
            int(rows.position[first]),
            int(rows.position[last] + rows.size[last]),
            topic,
            queue_id,
            int(rows.offset[first]),
            sum(oddity.count for oddity in rest),
        )


def hidden_of(queue: tuple[str, int], rows: QueueRows) -> Iterator[Salvaged]:
    """Unproven messages that gave way to proven ones, the first :data:`MOST_HIDDEN` one by one."""
    for row in range(min(len(rows.offset), MOST_HIDDEN)):
        begin = int(rows.position[row])
        yield Salvaged(HIDDEN, begin, begin + int(rows.size[row]), *queue, int(rows.offset[row]))
