"""Queries of a store's messages. Nothing is changed, and a broker may run on the store.

Queries are answered from the files as they are. A broker that starts on a damaged store first removes what
:mod:`reput.recovery` predicts; what a broker holds only in memory isn't seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.config.topics import TopicsNow
from reput.derived.batch import BatchQueueView
from reput.derived.index import MOST_OFFSETS, IndexReader, RocksIndexReader
from reput.derived.plain import QueueModel, QueueView
from reput.derived.rocksdb import (
    RocksQueues,
    RocksQueueView,
    is_read_from,
    queues_in_rocksdb,
)
from reput.derived.times import Boundary
from reput.errors import SettingsError
from reput.format import names
from reput.format.names import Queue
from reput.query.log import LogReader
from reput.query.message import Message, MessageId
from reput.query.pull import Pulled, TagFilter, pull
from reput.store.listing import names_in
from reput.store.reading import check_store

#: A queue in files or in RocksDB.
View = QueueView | BatchQueueView | RocksQueueView
#: Every time that a broker takes.
ALWAYS = (0, (1 << 63) - 1)


class Verdict(Enum):
    """Whether a message that the index gave really has the key."""

    MATCH = "the message has this key"
    COLLISION = "another key with the same hash"
    GONE = "no message begins there any more"


@dataclass(frozen=True, slots=True)
class KeyHit:
    """An offset that the index gave."""

    physical_offset: int
    verdict: Verdict
    message: Message | None  # the message there; None when it is gone


@dataclass(frozen=True, slots=True)
class ById:
    """The message of an id."""

    message: Message | None  # None if missing
    by_key: bool = False  # the id is the client's, and the message was found by the index
    #: the message was stored by the broker that the id names; a broker doesn't check this
    host_fits: bool = True


class QueryStore:
    """A store's messages; not for use by several threads.

    Of a live store the log and the index are seen as they are at each query, a queue as it was at the first
    query of it.

    Raises:
        StoreError: there is no store, or no log in it.
        SettingsError: broker.conf gives another segment size than the segments have.
    """

    def __init__(self, settings: StoreSettings) -> None:
        check_store(settings.root)
        self._settings = settings
        self._queues: dict[Queue, View] = {}
        self._listed: dict[str, dict[str, set[int]]] = {}
        self._index: RocksIndexReader | None = None
        self._topics = TopicsNow(settings.config)
        self.log = LogReader(settings)

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self._settings.root

    @property
    def index(self) -> IndexReader | RocksIndexReader:
        """The index files as they are now; the index in RocksDB as it was at the first query."""
        if not self._settings.rocksdb.index:
            return IndexReader(self._settings)
        if self._index is None:
            self._index = RocksIndexReader(self._settings)
        return self._index

    @cached_property
    def in_rocksdb(self) -> RocksQueues | None:
        """The queues in RocksDB; None where all are in files."""
        return queues_in_rocksdb(self._settings)

    def queue_ids(self, topic: str) -> tuple[int, ...]:
        """Queue ids of a topic that has queues, in order."""
        found: set[int] = set()
        # Half of a surrogate pair, which JSON may hold, isn't a name either.
        if names.topic_problem(topic.encode("utf-8", "surrogatepass")) is None:
            for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE):
                if kind in self._listed:
                    found |= self._listed[kind].get(topic, set())
                    continue
                numbers = filter(names.is_queue_id, names_in(f"{self.root}/{kind}/{topic}"))
                found |= {int(name) for name in numbers if not name.startswith("-")}
            if self.in_rocksdb is not None and is_read_from(self._settings, topic):
                found |= {number for number in self.in_rocksdb.ids(topic) if number >= 0}
        return tuple(sorted(found))

    def queue(self, topic: str, queue_id: int) -> View:
        """A queue, which may have no files, of the kind that its topic has.

        Raises:
            SettingsError: no topic can have this name; or broker.conf gives batch queues an impossible size.
            StoreError: it can't be read.
        """
        view = self._queues.get((topic, queue_id))
        if view is None and self.in_rocksdb is not None and is_read_from(self._settings, topic):
            self._check_name(topic)
            view = self.in_rocksdb.view(topic, queue_id, self.log.start)
            self._queues[topic, queue_id] = view
        if view is None:
            kind = BatchQueueView if self._holds_batches(topic, queue_id) else QueueView
            view = kind(self._settings, topic, queue_id, self.log.start)
            self._queues[topic, queue_id] = view
        return view

    def queues(self, topic: str) -> dict[int, View]:
        """All queues of a topic that are there, in order; its type is looked at once.

        Raises:
            SettingsError, StoreError: see :meth:`queue`.
        """
        ids = self.queue_ids(topic)
        if not ids or not self._is_plain(topic):
            return {queue_id: self.queue(topic, queue_id) for queue_id in ids}
        start = self.log.start
        for queue_id in ids:
            if (topic, queue_id) not in self._queues:
                self._queues[topic, queue_id] = QueueView(self._settings, topic, queue_id, start)
        return {queue_id: self._queues[topic, queue_id] for queue_id in ids}

    def know_listed(self, directory: str, queues: Iterable[Queue]) -> None:
        """Take the queues in one of the store's directories of queues as somebody else has listed them."""
        found: dict[str, set[int]] = {}
        for topic, queue_id in queues:
            if queue_id >= 0:
                found.setdefault(topic, set()).add(queue_id)
        self._listed[directory] = found

    def know(self, topic: str, queue_id: int, model: QueueModel) -> None:
        """Take a plain queue as somebody else has just looked at it."""
        self._queues[topic, queue_id] = QueueView(self._settings, topic, queue_id, self.log.start, model)

    def _is_plain(self, topic: str) -> bool:
        """Whether all queues of a topic that has queues are in files, and none is a batch queue."""
        if self.in_rocksdb is not None:
            return False
        if not self._settings.dialect.recovery.switches_queue_types:
            return True
        is_there = (self.root / names.BATCH_CONSUME_QUEUE / topic).is_dir()
        return not is_there and topic not in self._topics.batch

    def message_at(self, physical_offset: int) -> Message | None:
        """The message that begins at a physical offset: ``DefaultMessageStore.lookMessageByOffset``."""
        return self.log.message(physical_offset)

    def pull(
        self, topic: str, queue_id: int, offset: int, wanted: int, tags: TagFilter | None = None
    ) -> Pulled:
        """Messages of a queue: ``DefaultMessageStore.getMessage``. See :func:`reput.query.pull.pull`.

        Raises:
            SettingsError, StoreError: see :meth:`queue`.
        """
        rules = self._settings.dialect.queries
        return pull(self.log, self.queue(topic, queue_id), rules, offset, wanted, tags or TagFilter())

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary | None = None
    ) -> int:
        """The queue offset of a time in ms: ``DefaultMessageStore.getOffsetInQueueByTime``.

        Args:
            timestamp: ms.
            boundary: LOWER when None.

        Raises:
            SettingsError, StoreError: see :meth:`queue`; or these releases have no boundaries.
        """
        dialect = self._settings.dialect
        if boundary is not None and not dialect.queries.time_boundaries:
            raise SettingsError(
                "this release has no boundaries",
                expected="5.1.1 or later, or no boundary: the nearest message's offset",
                found=dialect.name,
            )
        queue = self.queue(topic, queue_id)
        return queue.offset_by_time(self.log, dialect.queries, timestamp, boundary or Boundary.LOWER)

    def by_key(
        self,
        topic: str,
        key: str,
        begin: int = ALWAYS[0],
        end: int = ALWAYS[1],
        most: int = MOST_OFFSETS,
        *,
        index_type: str | None = None,
        limit: int = MOST_OFFSETS,
    ) -> list[KeyHit]:
        """Messages by key in a time range, in log order: ``DefaultMessageStore.queryMessage``.

        A broker searches the index up to three times until it has bytes; the second and third time it gets
        what it got the first time, or less, so once is enough. Parameters: see
        :meth:`reput.derived.index.IndexReader.offsets`.

        Raises:
            SettingsError: an index of this type doesn't exist.
            StoreError: a file can't be read.
        """
        offsets = self.index.offsets(topic, key, begin, end, most, index_type=index_type, limit=limit)
        return look_up(self.log, offsets, topic, key, tags=index_type is not None)

    def by_id(self, text: str, topic: str | None = None) -> ById:
        """The message of an id: the broker's (offsetMsgId), or with its topic the client's (UNIQ_KEY).

        As in a client, the id is first read as the broker's, then looked up as a key
        (``DefaultMQProducerImpl.viewMessage`` and ``queryMessageByUniqKey``, rocketmq-all-5.3.3).

        Raises:
            SettingsError: it isn't a broker's id, and no topic was given.
            StoreError: a file can't be read.
        """
        try:
            wanted = MessageId.decode(text)
        except SettingsError:
            if topic is None:
                raise
        else:
            message = self.log.message(wanted.physical_offset)
            if message is not None and topic in (None, message.topic):
                host = message.record.store_host
                return ById(message, host_fits=host == (wanted.address, wanted.port))
        if topic is None:
            return ById(None)
        hits = self.by_key(topic, text)
        found = (hit.message for hit in hits if hit.message is not None)
        own = (one for one in found if (one.topic, one.uniq_key) == (topic, text))
        return ById(next(own, None), by_key=True)

    def _check_name(self, topic: str) -> None:
        problem = names.topic_problem(topic.encode("utf-8", "surrogateescape"))
        if problem is not None:
            raise SettingsError("no topic can have this name", expected="a topic", found=problem)

    def _holds_batches(self, topic: str, queue_id: int) -> bool:
        """Whether the topic has batch queues; if its type isn't known, whether only such files are there."""
        settings = self._settings
        self._check_name(topic)
        if not settings.dialect.recovery.switches_queue_types:
            return False
        if topic in self._topics.batch:
            return True
        if not names.batch_queue_directory(settings.root, topic, queue_id).is_dir():
            return False
        return not names.queue_directory(settings.root, topic, queue_id).is_dir()


def look_up(log: LogReader, offsets: list[int], topic: str, key: str, *, tags: bool = False) -> list[KeyHit]:
    """The messages that the index gave, in log order, each with whether the key really is its own.

    Args:
        tags: the key is a tag.
    """
    hits = []
    for offset in sorted(offsets):
        message = log.message(offset)
        if message is None:
            verdict = Verdict.GONE
        elif (message.topic == topic and message.tags == key) if tags else message.has_key(topic, key):
            verdict = Verdict.MATCH
        else:
            verdict = Verdict.COLLISION
        hits.append(KeyHit(offset, verdict, message))
    return hits
