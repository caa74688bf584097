"""Messages from a queue, pull by pull, as a broker gives them to a consumer.

Source: ``DefaultMessageStore.getMessage``, ``isTheBatchFull``, ``nextOffsetCorrection`` of a master
(rocketmq-all-4.9.7, 5.0.0, 5.1.0, 5.3.3; 5.5.0 by its bytecode). Whether a broker would read from memory or
from disk isn't known here: the limits for memory are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from reput.errors import SettingsError
from reput.format import javastring
from reput.format.consumequeue import UNIT_LENGTH

if TYPE_CHECKING:
    from reput.config.dialect import Queries
    from reput.derived.plain import Unit
    from reput.derived.queues import View
    from reput.query.log import LogReader
    from reput.query.message import Message

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

        Raises:
            SettingsError: it names no tag.
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

    Args:
        offset: queue offset of the first.
        wanted: how many at most; a broker gives no more than 32, nor more than 256 KiB, but always one unit,
            with all messages in it.
        tags: only messages with these tags.
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
