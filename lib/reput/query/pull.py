"""Messages from a queue, pull by pull, as a broker gives them to a consumer.

Source: ``DefaultMessageStore.getMessage``, ``isTheBatchFull``, ``nextOffsetCorrection`` of a master
(rocketmq-all-4.9.7, 5.0.0, 5.1.0, 5.3.3; 5.5.0 by its bytecode). Whether bytes come from memory or from disk
can't be told here: the limits for memory count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from reput.format.consumequeue import UNIT_LENGTH
from reput.query.tags import TagFilter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from reput.dialect import Queries
    from reput.query.log import LogReader
    from reput.query.message import Message
    from reput.query.queue import QueueView
    from reput.recovery.queue import QueueFile

# MessageStoreConfig: maxTransferBytesOnMessageInMemory, maxTransferCountOnMessageInMemory,
# maxFilterMessageSize.
_MOST_BYTES = 256 << 10
MOST_MESSAGES = 32
_SCAN_LIMIT = 16_000

_EVERYTHING = TagFilter()


class Status(Enum):
    """How a pull ended: ``GetMessageStatus``."""

    FOUND = "messages were found"
    NO_MATCHED_MESSAGE = "no message that was looked at has one of these tags"
    MESSAGE_WAS_REMOVING = "the messages have expired"
    OFFSET_FOUND_NULL = "the queue has no file there"
    OFFSET_OVERFLOW_BADLY = "the offset lies past the queue's end"
    OFFSET_OVERFLOW_ONE = "the offset is the queue's end: that of the next message"
    OFFSET_TOO_SMALL = "the offset lies before the queue's beginning"
    NO_MESSAGE_IN_QUEUE = "the queue is empty, or there is none"


@dataclass(frozen=True, slots=True)
class Found:
    """A unit that a pull took.

    Attributes:
        queue_offset: its place in the queue.
        physical_offset, size, tags_code: what it says; the last may be an address in consumequeue_ext.
        message: the message that it points at; None when no message begins there.
        tag_fits: a client keeps it: its tag is one of those asked for, and not only its hash.
    """

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    message: Message | None
    tag_fits: bool


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to one pull.

    Attributes:
        status: how it ended.
        next_begin_offset: the queue offset that the next pull asks for.
        min_offset, max_offset: of the queue.
        found: the units taken, in order.
    """

    status: Status
    next_begin_offset: int
    min_offset: int
    max_offset: int
    found: tuple[Found, ...] = ()


def pull(
    log: LogReader,
    queue: QueueView,
    rules: Queries,
    offset: int,
    wanted: int,
    tags: TagFilter = _EVERYTHING,
) -> Pulled:
    """Ask for messages.

    Args:
        log: the log.
        queue: the queue.
        rules: the release's.
        offset: queue offset of the first.
        wanted: how many at most; a broker gives no more than 32, nor more than 256 KiB, but always one.
        tags: of which tags.

    Raises:
        StoreError: a file can't be read.
    """
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return Pulled(Status.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return Pulled(Status.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return Pulled(Status.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return Pulled(Status.OFFSET_OVERFLOW_BADLY, high, low, high)
    file = queue.file_at(offset)
    if file is None:
        return Pulled(Status.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
    units = _units(queue, file, rules, offset, wanted)
    status, found, looked_at = _take(log, queue, units, rules, offset, wanted, tags)
    return Pulled(status, offset + looked_at, low, high, tuple(found))


def _units(queue: QueueView, file: QueueFile, rules: Queries, offset: int, wanted: int) -> NDArray[np.void]:
    """The units that one pull looks at, at most: no more than the file has."""
    limit = max(_SCAN_LIMIT, wanted * UNIT_LENGTH)
    most = limit if rules.scans_units else limit // UNIT_LENGTH
    return queue.units(file, offset * UNIT_LENGTH - file.base, most + rules.scans_past_limit)


def _take(
    log: LogReader,
    queue: QueueView,
    units: NDArray[np.void],
    rules: Queries,
    offset: int,
    wanted: int,
    tags: TagFilter,
) -> tuple[Status, list[Found], int]:
    """The status, what was taken, and how many units were looked at."""
    status = Status.NO_MATCHED_MESSAGE
    found: list[Found] = []
    total = 0
    resumes_at: int | None = None  # physical offset after a segment that is missing
    for number, (physical, size, code) in enumerate(units.tolist()):
        skipped = resumes_at is not None and physical < resumes_at
        if not (skipped and rules.skips_before_full) and _is_full(found, total, size, wanted):
            return status, found, number
        if skipped:
            continue
        if tags.tags is not None and not tags.wants_code(queue.ext.tags_code(code)):
            if not total:
                status = Status.NO_MATCHED_MESSAGE
            continue
        if not log.holds(physical, size):
            if not total:
                status = Status.MESSAGE_WAS_REMOVING
            resumes_at = log.roll_next_file(physical)
            continue
        message = log.message(physical)
        fits = message is not None and tags.wants(message.tags)
        found.append(Found(offset + number, physical, size, code, message, fits))
        total += size
        status = Status.FOUND
        resumes_at = None
    return status, found, len(units)


def _is_full(found: list[Found], total: int, size: int, wanted: int) -> bool:
    if not total or not found:
        return False
    return len(found) >= min(wanted, MOST_MESSAGES) or total + size > _MOST_BYTES
