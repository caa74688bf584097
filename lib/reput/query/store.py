"""Queries of a store's messages. Nothing is changed, and a broker may run on the store.

Queries are answered from the files as they are. A broker that starts on a damaged store first removes what
:mod:`reput.recovery` predicts; what a broker holds only in memory isn't seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.settings import StoreSettings
from reput.derived.index import MOST_OFFSETS, IndexNow
from reput.derived.queues import Queues, View
from reput.derived.times import Boundary
from reput.errors import SettingsError
from reput.format import javastring
from reput.format.consumequeue import UNIT_LENGTH
from reput.query.log import LogReader
from reput.query.message import Message, MessageId
from reput.store.reading import check_store

if TYPE_CHECKING:
    from reput.config.dialect import Queries
    from reput.derived.plain import Unit


# Source: ``DefaultMessageStore.getMessage``, ``isTheBatchFull``, ``nextOffsetCorrection`` of a master
# (rocketmq-all-4.9.7, 5.0.0, 5.1.0, 5.3.3; 5.5.0 by its bytecode). Whether a broker would read from memory or
# from disk isn't known here: the limits for memory are used.

# MessageStoreConfig: maxTransferBytesOnMessageInMemory, maxTransferCountOnMessageInMemory,
# maxFilterMessageSize.
_MOST_BYTES = 256 << 10
MOST_MESSAGES = 32
_SCAN_LIMIT = 16_000
_ALL = "*"
# What String.trim removes: every character up to the space.
_JAVA_WHITE = "".join(map(chr, range(0x21)))


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which messages a subscription wants: ``*``, or tags with ``||`` between them.

    Source: ``FilterAPI.buildSubscriptionData``, ``DefaultMessageFilter.isMatchedByConsumeQueue``,
    ``PullAPIWrapper.processPullResult`` (rocketmq-all-4.9.7, 5.3.3).
    """

    tags: frozenset[str] | None = None  # the tags; None for all messages
    codes: frozenset[int] = frozenset()  # their hashes

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter:
        """Parse an expression; None, an empty one and ``*`` mean all messages.

        SettingsError where it names no tag.
        """
        if not expression or expression == _ALL:
            return cls()
        words = {word.strip(_JAVA_WHITE) for word in expression.split("||")} - {""}
        if not words:
            raise SettingsError(
                "the tag expression names no tag", expected="'*', 'A' or 'A || B'", found=repr(expression)
            )
        hashes = (javastring.hash_code(word.encode("utf-8", "replace")) for word in words)
        return cls(frozenset(words), frozenset(hashes))

    def wants_code(self, tags_code: int | None) -> bool:
        """The broker's check of a unit: whether its hash fits. One that can't be read does."""
        if self.tags is None or tags_code is None:
            return True
        code = tags_code & 0xFFFF_FFFF
        return (code - (1 << 32) if code >> 31 else code) in self.codes

    def wants(self, tags: str | None) -> bool:
        """The client's check of a message from the broker: whether its tag is one of those."""
        return self.tags is None or (tags is not None and tags in self.tags)


class Status(Enum):
    """How a pull ended: ``GetMessageStatus``."""

    FOUND = "messages were found"
    NO_MATCHED_MESSAGE = "none of the messages that were read has one of these tags"
    MESSAGE_WAS_REMOVING = "the messages aren't in the log"
    OFFSET_FOUND_NULL = "the queue has no file there"
    OFFSET_OVERFLOW_BADLY = "the offset is past the queue's end"
    OFFSET_OVERFLOW_ONE = "the offset is the queue's end: that of the next message"
    OFFSET_TOO_SMALL = "the offset is before the queue's beginning"
    NO_MESSAGE_IN_QUEUE = "the queue is empty or doesn't exist"


@dataclass(frozen=True, slots=True)
class Found:
    """A unit that a pull took."""

    queue_offset: int  # its place in the queue; that of its first message, when it holds several
    messages: int  # how many it holds
    #: physical_offset, size, tags_code: its fields; the last may be an address in consumequeue_ext
    physical_offset: int
    size: int
    tags_code: int
    message: Message | None  # the message to which it points; None when no message begins there
    #: a client keeps it: its tag, or that of a message in it, is one of those wanted, not just the
    #: hash
    tag_fits: bool

    def has(self, queue_offset: int) -> bool:
        """Whether the message at a queue offset is in it."""
        return self.queue_offset <= queue_offset < self.queue_offset + self.messages


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to one pull."""

    status: Status  # how it ended
    next_begin_offset: int  # the queue offset for the next pull
    min_offset: int  # min_offset, max_offset: of the queue
    max_offset: int
    found: tuple[Found, ...] = ()  # the units taken, in order
    #: physical offset of the first message that isn't in the log, None when all are
    missing_at: int | None = None


def pull(
    log: LogReader,
    queue: View,
    rules: Queries,
    offset: int,
    wanted: int,
    tags: TagFilter,
) -> Pulled:
    """Ask for messages.

    ``offset``: queue offset of the first. ``wanted``: how many at most; a broker gives no more than 32, nor
    more than 256 KiB, but always one unit, with all messages in it. ``tags``: only messages with these tags.
    """
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return Pulled(Status.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return Pulled(Status.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return Pulled(Status.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        following = 0 if rules.overflow_begins_again and low == 0 else high
        return Pulled(Status.OFFSET_OVERFLOW_BADLY, following, low, high)
    units = queue.units_from(offset, _span(rules, wanted, queue.unit_length))
    if units is None:
        return Pulled(Status.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
    status, found, following, missing_at = _take(log, queue, units, rules, offset, wanted, tags)
    return Pulled(status, following, low, high, tuple(found), missing_at)


def _span(rules: Queries, wanted: int, unit_length: int) -> int:
    """How many queue offsets, from the first one on, a pull reads at most."""
    if rules.scans_units:
        return max(_SCAN_LIMIT, wanted * UNIT_LENGTH) + rules.scans_past_limit
    limit = max(_SCAN_LIMIT, wanted * unit_length)
    return limit // unit_length + 1 if rules.scans_past_limit else -(-limit // unit_length)


def _take(
    log: LogReader,
    queue: View,
    units: list[Unit],
    rules: Queries,
    offset: int,
    wanted: int,
    tags: TagFilter,
) -> tuple[Status, list[Found], int, int | None]:
    """The status, what was taken, the queue offset after what was read, and what isn't in the log."""
    status = Status.NO_MATCHED_MESSAGE
    found: list[Found] = []
    total = taken = 0  # bytes, messages
    following = offset
    missing_at: int | None = None
    resumes_at: int | None = None  # physical offset after a segment that is missing
    most = wanted - rules.stops_one_short
    for unit in units:
        if following >= queue.max_offset:
            break
        skipped = resumes_at is not None and unit.physical_offset < resumes_at
        if not (skipped and rules.skips_before_full) and _is_full(taken, total, unit, most):
            break
        following = unit.queue_offset + unit.messages
        if skipped:
            continue
        if tags.tags is not None and not tags.wants_code(queue.tags_code(unit.tags_code)):
            if not total:
                status = Status.NO_MATCHED_MESSAGE
            continue
        if not log.holds(unit.physical_offset, unit.size):
            if not total:
                status = Status.MESSAGE_WAS_REMOVING
            if missing_at is None:
                missing_at = unit.physical_offset
            resumes_at = log.roll_next_file(unit.physical_offset)
            continue
        message = log.message(unit.physical_offset)
        fits = message is not None and message.is_wanted(tags)
        found.append(Found(*unit, message, fits))
        total += unit.size
        taken += unit.messages
        status = Status.FOUND
        resumes_at = None
    return status, found, following, missing_at


def _is_full(taken: int, total: int, unit: Unit, wanted: int) -> bool:
    if not total or not taken:
        return False
    return taken + unit.messages > wanted or taken >= MOST_MESSAGES or total + unit.size > _MOST_BYTES


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

    StoreError where there is no store, or no log in it. SettingsError where broker.conf gives another segment
    size than the segments have.

    Attributes:
        log: its log.
        index: its index.
        all_queues: its queues, each as it was when it was first asked for.
    """

    def __init__(self, settings: StoreSettings) -> None:
        check_store(settings.root)
        self._settings = settings
        self.index = IndexNow(settings)
        self.all_queues = Queues(settings)
        self.log = LogReader(settings)

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self._settings.root

    def queue_ids(self, topic: str) -> tuple[int, ...]:
        """Queue ids of a topic that has queues, in order."""
        return self.all_queues.ids(topic)

    def queue(self, topic: str, queue_id: int) -> View:
        """A queue, which may have no files, of the kind that its topic has.

        SettingsError: no topic can have this name, or its queue files another size than broker.conf gives.
        StoreError where it can't be read.
        """
        return self.all_queues.view(topic, queue_id, self.log.start)

    def queues(self, topic: str) -> dict[int, View]:
        """All queues of a topic that are there, in order; its type is looked at once.

        SettingsError, StoreError: see :meth:`queue`.
        """
        return self.all_queues.views(topic, self.log.start)

    def message_at(self, physical_offset: int) -> Message | None:
        """The message that begins at a physical offset: ``DefaultMessageStore.lookMessageByOffset``."""
        return self.log.message(physical_offset)

    def pull(
        self, topic: str, queue_id: int, offset: int, wanted: int, tags: TagFilter | None = None
    ) -> Pulled:
        """Messages of a queue: ``DefaultMessageStore.getMessage``. See :func:`reput.query.store.pull`.

        SettingsError, StoreError: see :meth:`queue`.
        """
        rules = self._settings.dialect.queries
        return pull(self.log, self.queue(topic, queue_id), rules, offset, wanted, tags or TagFilter())

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary | None = None
    ) -> int:
        """The queue offset of a time in ms: ``DefaultMessageStore.getOffsetInQueueByTime``.

        ``timestamp``: ms. ``boundary``: LOWER when None. SettingsError, StoreError: see :meth:`queue`; or
        these releases have no boundaries.
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

        SettingsError where an index of this type doesn't exist. StoreError where a file can't be read.
        """
        reader = self.index.reader()
        offsets = reader.offsets(topic, key, begin, end, most, index_type=index_type, limit=limit)
        return look_up(self.log, offsets, topic, key, tags=index_type is not None)

    def by_id(self, text: str, topic: str | None = None) -> ById:
        """The message of an id: the broker's (offsetMsgId), or with its topic the client's (UNIQ_KEY).

        As in a client, the id is first read as the broker's, then looked up as a key
        (``DefaultMQProducerImpl.viewMessage`` and ``queryMessageByUniqKey``, rocketmq-all-5.3.3).

        SettingsError where it isn't a broker's id, and no topic was given. StoreError where a file can't be
        read.
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

    ``tags``: the key is a tag.
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
