"""The queues of a store, in whatever form each is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.config.topics import TopicsNow
from reput.derived import batch, plain
from reput.derived.batch import BatchModel, BatchQueueView
from reput.derived.files import Listing
from reput.derived.plain import QueueModel, QueueView
from reput.derived.rocksdb import RocksQueues, RocksQueueView, queues_in_rocksdb
from reput.errors import SettingsError
from reput.format import names
from reput.format.dtypes import PLAIN, Form
from reput.format.names import Queue
from reput.store.listing import names_in

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

        SettingsError for an impossible name.
        """
        view = self._views.get((topic, queue_id))
        if view is None:
            problem = names.topic_problem(topic.encode("utf-8", "surrogateescape"))
            if problem is not None:
                raise SettingsError("no topic can have this name", expected="a topic", found=problem)
            if self._holds_batches(topic, queue_id):
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
                    self._views[topic, queue_id] = QueueView(self._settings, topic, queue_id, log_start)
        return {queue_id: self.view(topic, queue_id, log_start) for queue_id in ids}

    def unbatched(self, topic: str, queue_id: int, log_start: int) -> Unbatched:
        """A queue that is no batch queue, as a broker has it where the log begins at ``log_start``."""
        if self.in_rocksdb is not None and self.in_rocksdb.reads(topic):
            return self.in_rocksdb.view(topic, queue_id, log_start)
        return QueueView(self._settings, topic, queue_id, log_start)

    def positions_in_rocksdb(self, topic: str, queue_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """QueueOffset and physicalOffset of a queue's units in RocksDB, int64[units] each."""
        queues = self.in_rocksdb
        rows = [] if queues is None else [*queues.values(topic, queue_id, 0, 1 << 63)]
        parts = (key[-8:] for key, _ in rows), (value[:8] for _, value in rows)
        offsets, positions = (np.frombuffer(b"".join(part), ">i8").astype(np.int64) for part in parts)
        return offsets, positions

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
