"""The queues of a store while a broker starts: what its start does to them, in whatever form they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from reput.broker.snapshot import Snapshot
from reput.config.settings import StoreSettings
from reput.derived.batch import BatchModel, Inner, inner
from reput.derived.ext import ExtModel
from reput.derived.files import Listing, StoreFile
from reput.derived.plain import QueueModel
from reput.format.commitlog import SCHEDULE_TOPIC
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue, one_byte_apart
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
    #: the queue that leads to all of them, and that they would name but for one byte; None as a rule
    altered: Queue | None = None


#: Where queues lack more messages than this, it isn't asked whether a byte of theirs has changed.
_MOST_ALTERED = 64
#: Nor where so many pairs of queues would have to be compared by name.
_MOST_COMPARED = 1_000_000
_NO_PLACES = np.empty(0, np.int64)


class WalkedUnits:
    """Place and queueOffset of every message of a walk, and which of them have keys."""

    def __init__(self) -> None:
        self._parts: dict[Queue, list[NDArray[np.int64]]] = {}
        self._keyed: list[NDArray[np.int64]] = []

    def add_keys(self, out: OutputArrays) -> None:
        """Take a scan's index rows alone; 8 bytes each are kept."""
        self._keyed.append(out.row_position[: out.counts[output.ROWS]].copy())

    def add(self, queue: Queue, offset: NDArray[np.int64], position: NDArray[np.int64]) -> None:
        """Take messages of a queue, int64[messages], in log order; 16 bytes each are kept."""
        self._parts.setdefault(queue, []).append(np.stack((position, offset)))

    def add_batches(self, queue: Queue, position: NDArray[np.int64], read: Inner) -> None:
        """Take messages of a batch queue: those that it has to have units of."""
        first, last = read.first, read.first + read.messages - 1
        parts = (each[read.placed] for each in (position, first, last))
        self._parts.setdefault(queue, []).append(np.stack([*parts]))

    def unreached(self, queues: Mapping[Queue, QueueModel | BatchModel], end: int) -> list[Unreached]:
        """Which of them the queues lack; a message of many counts once.

        ``queues``: the queues after the start. ``end``: where the log ends then; messages past it are gone
        themselves.
        """
        every: list[tuple[Queue, NDArray[np.int64], NDArray[np.bool_]]] = []
        restarts: dict[str, int] = {}  # by topic, where a queue of it begins anew
        for queue, parts in sorted(self._parts.items()):
            lost = np.concatenate(parts, axis=1)
            lost = lost[:, lost[0] < end]
            model = queues.get(queue)
            if anew := _begun(lost[0], lost[1], lost[-1], model):
                restarts[queue[0]] = max(restarts.get(queue[0], 0), int(lost[0, anew]))
            lost = lost[:, anew:]
            displaced = np.zeros(lost.shape[1], bool)
            if model is not None:
                lost = lost[:, ~model.held(lost[0], lost[1])]
                displaced = model.displaced(lost[0])
            if lost.size:
                every.append((queue, lost, displaced))
        # One that was deleted, and not created again with its topic.
        every = [
            (queue, lost, displaced)
            for queue, lost, displaced in every
            if queue in queues or int(lost[0].max()) >= restarts.get(queue[0], 0)
        ]
        most = sum(int((~displaced).sum()) for _, _, displaced in every)
        asks = most <= _MOST_ALTERED and len(every) * len(queues) <= _MOST_COMPARED
        found: list[Unreached] = []
        lacking = {queue: lost[0] for queue, lost, _ in every}
        for queue, lost, displaced in every:
            if asks and not displaced.all():
                for other in (one for one in queues if one_byte_apart(one, queue)):
                    # One that names both by right, as those of light queues do, wasn't altered.
                    altered = queues[other].displaced(lost[0]) & ~displaced & ~self.holds(other, lost[0])
                    altered &= self._misses(other, lost, lacking.get(other, _NO_PLACES), most)
                    if altered.any():
                        found.append(_unreached(queue, lost[:, altered], 0, other))
                        lost, displaced = lost[:, ~altered], displaced[~altered]
            if lost.size:
                found.append(_unreached(queue, lost, int(displaced.sum())))
        return found

    def behind(self, place: int) -> int:
        """How many messages with units begin at a physical offset or behind it."""
        parts = [part[0] for parts in self._parts.values() for part in parts]
        return len(np.unique(np.concatenate([part[part >= place] for part in parts]))) if parts else 0

    def holds(self, queue: Queue, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[rows], whether a message of a plain or light queue begins at each physical offset."""
        held = np.zeros(len(position), bool)
        for part in self._parts.get(queue, ()):
            begins = part[0]  # in the log's order
            held |= begins.take(np.searchsorted(begins, position), mode="clip") == position
        return held

    def _misses(
        self, queue: Queue, lost: NDArray[np.int64], lacking: NDArray[np.int64], most: int
    ) -> NDArray[np.bool_]:
        """bool[rows], whether a queue has no message for the place of each, and its next one is near.

        ``lost``: physical offset and queueOffset of messages. ``lacking``: physical offsets of those that the
        queue lacks itself: another one's, or its own where it has another one's files.
        """
        there = np.concatenate(self._parts.get(queue, [np.empty((2, 0), np.int64)]), axis=1)
        none = ~np.isin(lost[1], there[1])
        there = there[:, ~np.isin(there[0], lacking)]
        left_out: NDArray[np.int64] = np.append(there[1], -1)[np.searchsorted(there[0], lost[0])] - lost[1]
        return none & (left_out > 0) & (left_out <= most)

    def unindexed(self, files: Sequence[IndexHeader], end: int) -> NDArray[np.int64]:
        """Physical offsets of messages with keys that lie in the range of no index file.

        ``files``: headers of the index files that hold keys, in order. ``end``: where the log ends.
        """
        keyed = np.concatenate(self._keyed) if self._keyed else np.empty(0, np.int64)
        covered = keyed >= end
        for header in files:
            covered |= (keyed >= header.begin_physical_offset) & (keyed <= header.end_physical_offset)
        return keyed[~covered]


def _begun(
    position: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    model: QueueModel | BatchModel | None,
) -> int:
    """Which of some messages a queue last began anew with: once a topic was deleted, the newest alone count.

    ``position``, ``first``, ``last``: their physical offsets and queueOffsets, int64[messages], in log order;
    of a batch the last one's, too. Of plain queues a 0 with nothing behind it counts where its unit is there.
    """
    is_there = isinstance(model, BatchModel)
    if isinstance(model, QueueModel) and len(first) > 1 and not first[-1]:
        is_there = bool(model.held(position[-1:], first[-1:])[0])
    goes_on = np.append((first[1:] == last[:-1] + 1) | (first[1:] == 0), is_there)
    anew = np.flatnonzero((first == 0) & goes_on)
    return int(anew[-1]) if len(anew) else 0


def _unreached(
    queue: Queue, lost: NDArray[np.int64], displaced: int, altered: Queue | None = None
) -> Unreached:
    """``lost``: physical offset and queueOffset of messages, a batch's first and last one."""
    position, first, last = (int(each) for each in (lost[0].min(), lost[1].min(), lost[-1].max()))
    return Unreached(queue, lost.shape[1], first, last, displaced, position, altered)


def by_queue(
    out: OutputArrays, table: QueueTable, rows: NDArray[np.int64]
) -> Iterator[tuple[Queue, NDArray[np.int64]]]:
    """Some of a scan's units by queue, the rows of each in log order."""
    numbers = out.unit_queue[rows]
    # A tenth of the time where numpy sorts by digits.
    sorted_by = numbers.astype(np.uint16) if len(table.queues.topic) <= 1 << 16 else numbers
    rows = rows[np.argsort(sorted_by, kind="stable")]
    for part in np.split(rows, np.flatnonzero(np.diff(out.unit_queue[rows])) + 1):
        if len(part):
            number = int(out.unit_queue[part[0]])
            topic = table.topic_names[int(table.queues.topic[number])]
            yield (topic.decode("utf-8", "replace"), int(table.queues.queue_id[number])), part


_SCHEDULE_TOPIC = SCHEDULE_TOPIC.decode()
#: The queue of records that have none. Its file lies one level too high: ``consumequeue/0/`` and its name.
_NO_TOPIC = "", 0


class StartedQueues(ABC):
    """The queues of one form of storage during a start. What a form has no need of does nothing."""

    added = 0  # units that the start placed

    @property
    @abstractmethod
    def end(self) -> int:
        """The greatest physical offset that they know of; below 1 where they know of none."""

    def settings_of_walk(self, settings: StoreSettings) -> StoreSettings:
        """What a walk scans by, where these queues are given other messages than the settings say."""
        return settings

    def recover(self) -> None:  # noqa: B027 - some check no unit
        """Find their ends; StartFailsError where the broker fails on one."""

    @abstractmethod
    def meet(self, out: OutputArrays, table: QueueTable, walked: WalkedUnits) -> None:
        """The recovery's walk goes through messages: ``walked`` gets what is to be known of them later."""

    @abstractmethod
    def give(self, out: OutputArrays, table: QueueTable, after: int, *, hashes: bool) -> int:
        """Dispatch messages whose stored place is past ``after``; the last one's that was given, -1 for none.

        ``hashes``: units of the schedule topic hold the hash of the tags.
        """

    def give_bad(self, size: int) -> None:  # noqa: B027 - no release with RocksDB does this
        """Dispatch a record whose lengths don't add up: ``DispatchRequest(size, false)`` has no topic."""

    @abstractmethod
    def truncate(self, log_start: int, end: int, known: int) -> None:
        """The walk has ended at a physical offset; ``known`` is :attr:`end` before it."""

    def destroy(self) -> None:  # noqa: B027 - those in RocksDB stay
        """The log is empty, and the broker deletes them."""

    def correct_min(self, log_start: int) -> None:  # noqa: B027 - in RocksDB it is looked for when it is asked
        """Find where they begin; StartFailsError where the broker fails on one."""

    def finish(self, log_start: int, log_end: int, most: int | None) -> None:  # noqa: B027 - files have models
        """The start has ended; so many bytes of units are read at most to say what they lead to."""


class FileQueues(StartedQueues):
    """Those in files.

    ``hashed``: by queue, units of delayed messages that were placed with a hash and no deliver time.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._settings = snapshot.settings
        self._rules = snapshot.settings.dialect.recovery
        self._batch_topics = snapshot.settings.batch_topics()
        self.hashed: dict[Queue, int] = {}
        self.plain = {
            queue: self._new_plain(listing.files, snapshot.ext_queues.get(queue, Listing()).files)
            for queue, listing in snapshot.queues.items()
        }
        self.batch = {
            queue: BatchModel(listing.files, self._settings.recovery.batch_queue_file_size)
            for queue, listing in snapshot.batch_queues.items()
        }

    def _new_plain(self, files: Sequence[StoreFile] = (), ext: Sequence[StoreFile] = ()) -> QueueModel:
        recovery = self._settings.recovery
        model = ExtModel(ext, recovery.queue_ext_file_size) if recovery.queue_ext else None
        size, ends = self._settings.consume_queue_file_size, self._rules.knows_message_ends
        return QueueModel(files, size, model, knows_ends=ends)

    def _all(self) -> Iterator[QueueModel | BatchModel]:
        return chain(self.plain.values(), self.batch.values())

    @property
    def end(self) -> int:
        """See :class:`StartedQueues`."""
        return max((queue.max_physical for queue in self._all()), default=-1)

    def recover(self) -> None:
        """See :class:`StartedQueues`."""
        for queue in self._all():
            queue.recover()

    def meet(self, out: OutputArrays, table: QueueTable, walked: WalkedUnits) -> None:
        """See :class:`StartedQueues`."""
        walked.add_keys(out)
        for queue, part in by_queue(out, table, np.arange(int(out.counts[output.UNITS]))):
            if queue[0] in self._batch_topics:
                position = out.unit_position[part]
                read = inner(self._snapshot.log.files, self._snapshot.segment_size, position)
                walked.add_batches(queue, position, read)
            else:
                walked.add(queue, out.unit_offset[part], out.unit_position[part])

    def give(self, out: OutputArrays, table: QueueTable, after: int, *, hashes: bool) -> int:
        """See :class:`StartedQueues`."""
        count, last = int(out.counts[output.UNITS]), -1
        # A message's own unit comes first, those of light queues follow.
        own = np.diff(out.unit_position[:count], prepend=-1) != 0
        for key, part in by_queue(out, table, np.flatnonzero(out.unit_position[:count] > after)):
            position, size, tags = out.unit_position[part], out.unit_size[part], out.unit_tags[part]
            if key[0] in self._batch_topics:
                if key not in self.batch:
                    self.batch[key] = BatchModel((), self._settings.recovery.batch_queue_file_size)
                read = inner(self._snapshot.log.files, self._snapshot.segment_size, position)
                self.added += self.batch[key].put(position, size, tags, read)
                last = max(last, *part[read.placed][-1:].tolist())
                continue
            if key not in self.plain:
                self.plain[key] = self._new_plain()
            places = self.plain[key].put(position, size, out.unit_offset[part], tags, own[part])
            placed = int((places >= 0).sum())
            self.added += placed
            if hashes and key[0] == _SCHEDULE_TOPIC and placed:
                self.hashed[key] = self.hashed.get(key, 0) + placed
            last = max(last, int(part[-1]))
        return -1 if last < 0 else int(out.unit_position[last])

    def give_bad(self, size: int) -> None:
        """See :class:`StartedQueues`."""
        if _NO_TOPIC not in self.plain:
            self.plain[_NO_TOPIC] = self._new_plain()
        zero = np.zeros(1, np.int64)
        self.plain[_NO_TOPIC].put(zero, np.full(1, size, np.int32), zero, zero)

    def truncate(self, log_start: int, end: int, known: int) -> None:  # noqa: ARG002
        """See :class:`StartedQueues`."""
        known = self.end if self._rules.cuts_by_new_end else known
        if known >= end if self._rules.cuts_by_queue_end else not self._snapshot.clean:
            for queue in self._all():
                queue.truncate(end)

    def destroy(self) -> None:
        """See :class:`StartedQueues`."""
        for queue in self._all():
            queue.destroy()

    def correct_min(self, log_start: int) -> None:
        """See :class:`StartedQueues`."""
        for batch in self.batch.values():
            batch.correct_min(log_start)
        searches, fails = self._rules.searches_min_offset, self._rules.fails_on_empty_queue_file
        for queue in self.plain.values():
            queue.correct_min(log_start, searches=searches, fails_on_empty=fails)
