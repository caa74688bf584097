"""Queries of a store's messages. Nothing is changed, and a broker may run on the store.

Queries are answered from the files as they are. A broker that starts on a damaged store first removes what
:mod:`reput.recovery` predicts; what a broker holds only in memory isn't seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.derived.index import MOST_OFFSETS, IndexReader, RocksIndexReader
from reput.derived.queues import Queues, View
from reput.derived.times import Boundary
from reput.errors import SettingsError
from reput.query.log import LogReader
from reput.query.message import Message, MessageId
from reput.query.pull import Pulled, TagFilter, pull
from reput.store.reading import check_store

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

    Attributes:
        log: its log.
        all_queues: its queues, each as it was when it was first asked for.
    """

    def __init__(self, settings: StoreSettings) -> None:
        check_store(settings.root)
        self._settings = settings
        self._index: RocksIndexReader | None = None
        self.all_queues = Queues(settings)
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

    def queue_ids(self, topic: str) -> tuple[int, ...]:
        """Queue ids of a topic that has queues, in order."""
        return self.all_queues.ids(topic)

    def queue(self, topic: str, queue_id: int) -> View:
        """A queue, which may have no files, of the kind that its topic has.

        Raises:
            SettingsError: no topic can have this name; or broker.conf gives batch queues an impossible size.
            StoreError: it can't be read.
        """
        return self.all_queues.view(topic, queue_id, self.log.start)

    def queues(self, topic: str) -> dict[int, View]:
        """All queues of a topic that are there, in order; its type is looked at once.

        Raises:
            SettingsError, StoreError: see :meth:`queue`.
        """
        return self.all_queues.views(topic, self.log.start)

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
