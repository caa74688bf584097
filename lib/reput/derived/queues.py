"""The queues of a store, in whatever form each is."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.config.kept import TopicsNow
from reput.config.settings import StoreSettings
from reput.derived import batch, plain
from reput.derived.batch import BatchModel, BatchQueueView
from reput.derived.files import Listing, in_order, mapped, numbered_files
from reput.derived.plain import QueueModel, QueueView
from reput.derived.rocksdb import RocksQueues, RocksQueueView, queues_in_rocksdb
from reput.errors import SettingsError
from reput.format import names
from reput.format.dtypes import BATCH, PLAIN, Form, UnitKind, classify
from reput.format.names import Queue
from reput.store.listing import names_in
from reput.store.reading import unreadable

Unbatched = QueueView | RocksQueueView
#: A queue as a broker answers from it.
View = Unbatched | BatchQueueView


def recovered(
    form: Form, settings: StoreSettings, listing: Listing, log_start: int
) -> QueueModel | BatchModel:
    """A queue in files, as a broker has it once it has loaded them."""
    load = plain.recovered if form == PLAIN else batch.recovered
    return load(settings, listing, log_start)


class Queues:
    """The queues of a store: which form each has is known here. Each is seen as it was at first."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._views: dict[Queue, View] = {}
        self._listed: dict[str, dict[str, set[int]]] = {}
        self._topics = TopicsNow(settings.config)

    @cached_property
    def in_rocksdb(self) -> RocksQueues | None:
        """The queues in RocksDB; None where all are in files."""
        return queues_in_rocksdb(self._settings)

    def read_from_rocksdb(self) -> Iterator[Queue]:
        """The queues that are read from RocksDB, by key; they have a last message there."""
        return iter(()) if self.in_rocksdb is None else self.in_rocksdb.read()

    def unbatched_queues(self) -> set[Queue]:
        """All queues that are no batch queues."""
        found: set[Queue] = set()
        if self._settings.rocksdb.files:
            found |= {
                (topic.name, int(queue.name))
                for topic in in_order(self._settings.root / names.CONSUME_QUEUE)
                for queue in in_order(topic.place)
                if names.is_queue_id(queue.name)
            }
        return found | {queue for queue in self.read_from_rocksdb() if queue[0] not in self._batch_topics}

    def is_in_rocksdb(self, topic: str) -> bool:
        """Whether a topic's queues are read from RocksDB."""
        return self.in_rocksdb is not None and self.in_rocksdb.reads(topic)

    def ids(self, topic: str) -> tuple[int, ...]:
        """Ids of a topic's queues, in order."""
        found: set[int] = set()
        # Half of a surrogate pair, which JSON may hold, isn't a name either.
        if names.topic_problem(topic.encode("utf-8", "surrogatepass")) is None:
            for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE):
                if kind in self._listed:
                    found |= self._listed[kind].get(topic, set())
                    continue
                numbers = filter(names.is_queue_id, names_in(f"{self._settings.root}/{kind}/{topic}"))
                found |= set(map(int, numbers))
            if self.in_rocksdb is not None and self.in_rocksdb.reads(topic):
                found |= set(self.in_rocksdb.ids(topic))
        return tuple(sorted(number for number in found if number >= 0))

    def view(self, topic: str, queue_id: int, log_start: int) -> View:
        """A queue, which may have no files, of the kind that its topic has.

        SettingsError for an impossible name, and for files of another size than broker.conf gives.
        """
        view = self._views.get((topic, queue_id))
        if view is None:
            problem = names.topic_problem(topic.encode("utf-8", "surrogateescape"))
            if problem is not None:
                raise SettingsError("no topic can have this name", expected="a topic", found=problem)
            if self._holds_batches(topic, queue_id):
                self._settings.basis.refuse_hidden(self._settings.root / names.BATCH_CONSUME_QUEUE)
                view = BatchQueueView(self._settings, topic, queue_id, log_start)
            else:
                view = self.unbatched(topic, queue_id, log_start)
            self._views[topic, queue_id] = view
        return view

    def views(self, topic: str, log_start: int) -> dict[int, View]:
        """All queues of a topic that are there, in order; its type is looked at once."""
        ids = self.ids(topic)
        if ids and self._is_plain(topic):
            for queue_id in ids:
                if (topic, queue_id) not in self._views:
                    self._views[topic, queue_id] = self._in_files(topic, queue_id, log_start)
        return {queue_id: self.view(topic, queue_id, log_start) for queue_id in ids}

    def unbatched(self, topic: str, queue_id: int, log_start: int) -> Unbatched:
        """A queue that is no batch queue, as a broker has it where the log begins at ``log_start``."""
        if self.in_rocksdb is not None and self.in_rocksdb.reads(topic):
            return self.in_rocksdb.view(topic, queue_id, log_start)
        return self._in_files(topic, queue_id, log_start)

    def _in_files(self, topic: str, queue_id: int, log_start: int) -> QueueView:
        self._settings.basis.refuse_hidden(self._settings.root / names.CONSUME_QUEUE)
        return QueueView(self._settings, topic, queue_id, log_start)

    def on_disk(self, topic: str, queue_id: int) -> OnDisk:
        """A queue's units to be looked up, by what config says of its topic."""
        if names.topic_problem(topic.encode()) is not None:
            return OnDisk()  # no directory can have this name
        if self.in_rocksdb is not None and self.in_rocksdb.reads(topic):
            return _InKeys(self.in_rocksdb, topic, queue_id)
        form = BATCH if topic in self._batch_topics else PLAIN
        directory = form.place(self._settings.root, topic, queue_id)
        return OnDisk(numbered_files(directory) if directory.is_dir() else (), form)

    @cached_property
    def _batch_topics(self) -> frozenset[str]:
        return self._settings.batch_topics()

    def know_listed(self, directory: str, queues: Iterable[Queue]) -> None:
        """Take the queues in one of the store's directories of queues as somebody else has listed them."""
        found: dict[str, set[int]] = {}
        for topic, queue_id in queues:
            found.setdefault(topic, set()).add(queue_id)
        self._listed[directory] = found

    def know(self, topic: str, queue_id: int, log_start: int, model: QueueModel | BatchModel) -> None:
        """Take a queue as somebody else has just looked at it, where it is a plain one."""
        if isinstance(model, QueueModel):
            self._views[topic, queue_id] = QueueView(self._settings, topic, queue_id, log_start, model)

    def _is_plain(self, topic: str) -> bool:
        """Whether all queues of a topic that has queues are in files, and none is a batch queue."""
        if self.in_rocksdb is not None:
            return False
        if not self._settings.dialect.recovery.switches_queue_types:
            return True
        is_there = (self._settings.root / names.BATCH_CONSUME_QUEUE / topic).is_dir()
        return not is_there and topic not in self._topics.batch

    def _holds_batches(self, topic: str, queue_id: int) -> bool:
        """Whether the topic has batch queues; if its type isn't known, whether only such files are there."""
        settings = self._settings
        if self.is_in_rocksdb(topic) or not settings.dialect.recovery.switches_queue_types:
            return False
        if topic in self._topics.batch:
            return True
        if not names.batch_queue_directory(settings.root, topic, queue_id).is_dir():
            return False
        return not names.queue_directory(settings.root, topic, queue_id).is_dir()


class OnDisk:
    """A queue's units as they are on disk, to be looked up.

    ``files``: (path, byte offset of the first byte in the queue, bytes), in order.
    """

    def __init__(self, files: Iterable[tuple[Path, int, int]] = (), form: Form = PLAIN) -> None:
        self._form = form
        self._bases: list[int] = []
        self._units = []
        for path, base, length in files:
            whole = length - length % form.unit_length
            if not whole:
                continue
            try:
                units = mapped(path, whole)
            except (OSError, ValueError) as error:  # no permission; or it has become shorter meanwhile
                reason = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
                raise unreadable("this queue", path, reason) from error
            self._bases.append(base // form.unit_length)
            self._units.append(units.view(form.dtype))

    def leads_to(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a unit leads to each physical offset, bool[n]."""
        known = self._positions
        at = np.minimum(np.searchsorted(known, places), max(len(known) - 1, 0))
        return known[at] == places if len(known) else np.zeros(len(places), np.bool_)

    def holds(self, offset: int) -> bool:
        """Whether a unit stands at a queueOffset; never in a batch queue, where it has no place."""
        number = bisect_right(self._bases, offset) - 1
        if not self._form.by_place or number < 0 or offset < 0:
            return False
        units, at = self._units[number], offset - self._bases[number]
        return at < len(units) and bool(classify(units[at : at + 1])[0] == UnitKind.MESSAGE)

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        """Physical offsets that units lead to, int64[units], ascending; 8 bytes of memory each."""
        found = [one["position"][classify(one) == UnitKind.MESSAGE].astype(np.int64) for one in self._units]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))


class _InKeys(OnDisk):
    """Those of a queue in RocksDB: each stands at its queueOffset."""

    def __init__(self, queues: RocksQueues, topic: str, queue_id: int) -> None:
        super().__init__()
        rows = [*queues.values(topic, queue_id, 0, 1 << 63)]
        parts = (key[-8:] for key, _ in rows), (value[:8] for _, value in rows)
        self._offsets, positions = (np.frombuffer(b"".join(part), ">i8").astype(np.int64) for part in parts)
        self._positions = np.sort(positions)

    def holds(self, offset: int) -> bool:
        """Whether a key has this queueOffset."""
        at = int(np.searchsorted(self._offsets, offset))
        return at < len(self._offsets) and int(self._offsets[at]) == offset
