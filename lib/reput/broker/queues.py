"""The queues of a store while a broker starts: what its start does to them, in whatever form they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from reput.broker.snapshot import Snapshot
from reput.broker.units import WalkedUnits, by_queue
from reput.config.settings import StoreSettings
from reput.derived.batch import BatchModel, inner
from reput.derived.ext import ExtModel
from reput.derived.files import Listing, StoreFile
from reput.derived.plain import QueueModel
from reput.format.commitlog import SCHEDULE_TOPIC
from reput.format.names import Queue
from reput.scan import output
from reput.scan.output import OutputArrays
from reput.scan.table import QueueTable

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.decode()
#: The queue of records that have none. Its file lies one level too high: ``consumequeue/0/`` and its name.
_NO_TOPIC = "", 0


class StartedQueues(Protocol):
    """The queues of one form of storage during a start."""

    added: int  # units that the start placed

    @property
    def end(self) -> int:
        """The greatest physical offset that they know of; below 1 where they know of none."""

    def settings_of_walk(self, settings: StoreSettings) -> StoreSettings:
        """What a walk scans by, where these queues are given other messages than the settings say."""

    def recover(self) -> None:
        """Find their ends; StartFailsError where the broker fails on one."""

    def meet(self, out: OutputArrays, table: QueueTable, walked: WalkedUnits) -> None:
        """The recovery's walk goes through messages: ``walked`` gets what is to be known of them later."""

    def give(self, out: OutputArrays, table: QueueTable, after: int, *, hashes: bool) -> int:
        """Dispatch messages whose stored place is past ``after``; the last one's that was given, -1 for none.

        ``hashes``: units of the schedule topic hold the hash of the tags.
        """

    def give_bad(self, size: int) -> None:
        """Dispatch a record whose lengths don't add up: ``DispatchRequest(size, false)`` has no topic."""

    def truncate(self, log_start: int, end: int, known: int) -> None:
        """The walk has ended at a physical offset; ``known`` is :attr:`end` before it."""

    def destroy(self) -> None:
        """The log is empty, and the broker deletes them."""

    def correct_min(self, log_start: int) -> None:
        """Find where they begin; StartFailsError where the broker fails on one."""

    def finish(self, log_start: int, log_end: int, most: int | None) -> None:
        """The start has ended; so many bytes of units are read at most to say what they lead to."""


class FileQueues:
    """Those in files.

    ``hashed``: by queue, units of delayed messages that were placed with a hash and no deliver time.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._settings = snapshot.settings
        self._rules = snapshot.settings.dialect.recovery
        self._batch_topics = snapshot.settings.batch_topics()
        self.added = 0
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

    def settings_of_walk(self, settings: StoreSettings) -> StoreSettings:
        """See :class:`StartedQueues`."""
        return settings

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

    def finish(self, log_start: int, log_end: int, most: int | None) -> None:
        """See :class:`StartedQueues`: what they lead to is in their models."""
