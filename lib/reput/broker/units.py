"""The messages that a start walks over, and which of them their queues will not lead to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reput.derived.batch import BatchModel, Inner
from reput.derived.files import LAST_FILES
from reput.derived.plain import QueueModel
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.scan import output
from reput.scan.output import OutputArrays
from reput.scan.table import QueueTable


@dataclass(frozen=True, slots=True)
class Unreached:
    """Messages that are in the log and that a queue doesn't hold where they belong."""

    queue: Queue  # the queue
    count: int  # how many messages
    first: int  # first, last: the least and the greatest queueOffset among them
    last: int
    displaced: int  # how many of them stand in another place of the queue
    position: int  # physical offset of the first


class WalkedUnits:
    """Place and queueOffset of every message of a walk, and which of them have keys."""

    def __init__(self) -> None:
        self._parts: dict[Queue, list[NDArray[np.int64]]] = {}
        self._batches: dict[Queue, list[NDArray[np.int64]]] = {}
        self._keyed: list[NDArray[np.int64]] = []

    def add_keys(self, out: OutputArrays) -> None:
        """Take a scan's index rows alone; 8 bytes each are kept."""
        self._keyed.append(out.row_position[: out.counts[output.ROWS]].copy())

    def add(self, out: OutputArrays, table: QueueTable, left_out: frozenset[str] = frozenset()) -> None:
        """Take a scan's units and index rows; 16 and 8 bytes each are kept.

        Args:
            left_out: topics whose units aren't taken, for their queues are batch queues.
        """
        self.add_keys(out)
        count = int(out.counts[output.UNITS])
        for queue, rows in by_queue(out, table, np.arange(count)):
            if queue[0] not in left_out:
                pair = np.stack((out.unit_offset[rows], out.unit_position[rows]))
                self._parts.setdefault(queue, []).append(pair)

    def add_batches(self, queue: Queue, position: NDArray[np.int64], read: Inner) -> None:
        """Take messages of a batch queue: those that it has to have units of."""
        placed = read.placed
        parts = position[placed], read.first[placed], read.messages[placed]
        self._batches.setdefault(queue, []).append(np.stack(parts))

    def unreached_batches(self, queues: dict[Queue, BatchModel], end: int) -> list[Unreached]:
        """Which of them the batch queues lack; a message of many counts once."""
        found: list[Unreached] = []
        for queue, parts in sorted(self._batches.items()):
            position, first, count = np.concatenate(parts, axis=1)
            model = queues.get(queue)
            lost = position < end
            if model is not None:
                lost &= ~model.held(position)
            found += _unreached(queue, position[lost], first[lost], (first + count)[lost] - 1)
        return found

    def unreached(self, queues: dict[Queue, QueueModel], end: int) -> list[Unreached]:
        """Which of them the queues lack.

        Args:
            queues: the queues after the start.
            end: where the log ends then; messages past it are gone themselves.
        """
        found: list[Unreached] = []
        for queue, parts in self._parts.items():
            offset, position = np.concatenate(parts, axis=1)
            kept = position < end
            offset, position = offset[kept], position[kept]
            held = _held(queues.get(queue), offset)
            lost = held != position
            displaced = _displaced(queues.get(queue), position[lost])
            found += _unreached(queue, position[lost], offset[lost], offset[lost], displaced)
        return sorted(found, key=lambda one: one.queue)

    def behind(self, place: int) -> int:
        """How many messages with units begin at a physical offset or behind it."""
        parts = [part[1] for parts in self._parts.values() for part in parts]
        parts += [part[0] for parts in self._batches.values() for part in parts]
        return len(np.unique(np.concatenate([part[part >= place] for part in parts]))) if parts else 0

    def holds(self, queue: Queue, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[rows], whether a message of a plain or light queue begins at each physical offset."""
        held = np.zeros(len(position), bool)
        for part in self._parts.get(queue, ()):
            begins = part[1]  # in the log's order
            held |= begins.take(np.searchsorted(begins, position), mode="clip") == position
        return held

    def unindexed(self, files: Sequence[IndexHeader], end: int) -> NDArray[np.int64]:
        """Physical offsets of messages with keys that lie in the range of no index file.

        Args:
            files: headers of the index files that hold keys, in order.
            end: where the log ends.
        """
        keyed = np.concatenate(self._keyed) if self._keyed else np.empty(0, np.int64)
        covered = keyed >= end
        for header in files:
            covered |= (keyed >= header.begin_physical_offset) & (keyed <= header.end_physical_offset)
        return keyed[~covered]


def queue_of(table: QueueTable, number: int) -> Queue:
    """Topic and queue id of a number in the scan's table."""
    topic = table.topic_names[int(table.queues.topic[number])]
    return topic.decode("utf-8", "replace"), int(table.queues.queue_id[number])


def by_queue(
    out: OutputArrays, table: QueueTable, rows: NDArray[np.int64]
) -> Iterator[tuple[Queue, NDArray[np.int64]]]:
    """The rows of each queue, in log order."""
    numbers = out.unit_queue[rows]
    # A tenth of the time where numpy sorts by digits.
    sorted_by = numbers.astype(np.uint16) if len(table.queues.topic) <= 1 << 16 else numbers
    rows = rows[np.argsort(sorted_by, kind="stable")]
    for part in np.split(rows, np.flatnonzero(np.diff(out.unit_queue[rows])) + 1):
        if len(part):
            yield queue_of(table, int(out.unit_queue[part[0]])), part


def _unreached(
    queue: Queue,
    position: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    displaced: int = 0,
) -> list[Unreached]:
    """What is said of such messages: int64[messages], physical offsets and queueOffsets; nothing of none."""
    if not len(position):
        return []
    least, greatest = int(first.min()), int(last.max())
    return [Unreached(queue, len(position), least, greatest, displaced, int(position.min()))]


def _held(model: QueueModel | None, offset: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[rows], the physical offset of the unit at each queueOffset, -1 if missing."""
    held = np.full(len(offset), -1, np.int64)
    if model is None or not len(offset):
        return held
    for first, units in model.units(int(offset.min()) * UNIT_LENGTH):
        inside = (offset >= first) & (offset < first + len(units))
        held[inside] = units["position"][offset[inside] - first]
    return held


def _displaced(model: QueueModel | None, position: NDArray[np.int64]) -> int:
    """How many of these messages have a unit somewhere in the last files of their queue."""
    if model is None or not model.files or not len(position):
        return 0
    found = np.zeros(len(position), bool)
    for _, units in model.units(model.files[-LAST_FILES:][0].base):
        found |= np.isin(position, units["position"].astype(np.int64))
    return int(found.sum())
