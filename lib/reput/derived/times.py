"""The queue offset of a time.

Source: ``ConsumeQueue.getOffsetInQueueByTime``, ``binarySearchInQueueByTime``,
``MappedFileQueue.getMappedFileByTime``, ``getConsumeQueueMappedFileByTime``,
``ConsumeQueueStore.getOffsetInQueueByTime`` (rocketmq-all-4.9.7, 5.0.0, 5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from reput.format.consumequeue import UNIT_LENGTH
from reput.store.reading import stat_of

if TYPE_CHECKING:
    from reput.config.dialect import Queries
    from reput.derived.plain import QueueFile, QueueView


class Boundary(Enum):
    """Which of several offsets of a time: ``BoundaryType``."""

    LOWER = "lower"
    UPPER = "upper"


class Messages(Protocol):
    """The log, as far as times need it."""

    @property
    def start(self) -> int:
        """Physical offset where it begins."""

    def store_timestamp(self, offset: int, size: int) -> int:
        """The storeTimestamp of a message, ms; -1 when it isn't there."""


def in_files(log: Messages, queue: QueueView, rules: Queries, timestamp: int, boundary: Boundary) -> int:
    """The queue offset that a broker finds in the files of a plain queue.

    From 5.1.1 on: the first message of that time or later (LOWER), or the last of that time or earlier
    (UPPER), within the file that fits. Before: the nearest message of the file that was changed at that time
    or later.
    """
    if rules.time_boundaries:
        return _by_messages(log, queue, timestamp, boundary)
    return _by_file_times(log, queue, timestamp)


class _Units:
    """The units of one file, by their byte positions."""

    def __init__(self, log: Messages, queue: QueueView, file: QueueFile) -> None:
        self._log, self._queue, self._file = log, queue, file
        self.low = max(queue.min_logic - file.base, 0)
        self.high = file.wrote - UNIT_LENGTH

    def expired(self, position: int) -> bool:
        return self._queue.unit(self._file, position)[0] < self._log.start

    def time(self, position: int) -> int:
        """The storeTimestamp of the message to which the unit points, ms; -1 when it isn't there."""
        offset, size, _tags = self._queue.unit(self._file, position)
        return self._log.store_timestamp(offset, size) if offset >= self._log.start else -1

    def offset(self, position: int) -> int:
        # Java's division rounds towards zero: 0 for the -1 of a search that found nothing.
        return max(self._file.base + position, 0) // UNIT_LENGTH


def _by_file_times(log: Messages, queue: QueueView, timestamp: int) -> int:
    file = _changed_at(queue, timestamp)
    if file is None or not file.wrote:
        return 0
    units = _Units(log, queue, file)
    near = _search(units, timestamp)
    if near is None:
        return 0
    if near.exact is not None:
        return units.offset(near.exact)
    if near.left_time == -1:
        return units.offset(near.right)
    if near.right_time == -1:
        return units.offset(near.left)
    later_is_nearer = timestamp - near.left_time > near.right_time - timestamp
    return units.offset(near.right if later_is_nearer else near.left)


@dataclass(slots=True)
class _Near:
    """The units around a time: byte positions in their file, -1 without one, and times in ms."""

    exact: int | None = None  # a unit of that time; None without one
    left: int = -1  # the last unit before it; left_time is -1 where its message has expired
    left_time: int = -1
    right: int = -1  # the first unit after it
    right_time: int = -1


def _search(units: _Units, timestamp: int) -> _Near | None:
    """Search a file for a time; None when a message on the way isn't there."""
    near = _Near()
    low, high = units.low, units.high
    while high >= low:
        middle = (low + high) // (2 * UNIT_LENGTH) * UNIT_LENGTH
        if units.expired(middle):
            low, near.left = middle + UNIT_LENGTH, middle
            continue
        time = units.time(middle)
        if time < 0:
            return None
        if time == timestamp:
            near.exact = middle
            break
        if time > timestamp:
            high, near.right, near.right_time = middle - UNIT_LENGTH, middle, time
        else:
            low, near.left, near.left_time = middle + UNIT_LENGTH, middle, time
    return near


def _changed_at(queue: QueueView, timestamp: int) -> QueueFile | None:
    for file in queue.files:
        changed = -1 if file.path is None else stat_of("the queue", file.path).st_mtime_ns // 1_000_000
        if changed >= timestamp:
            return file
    return queue.files[-1] if queue.files else None


def _by_messages(log: Messages, queue: QueueView, timestamp: int, boundary: Boundary) -> int:
    lower = boundary is Boundary.LOWER
    file = _first_file(log, queue, timestamp) if lower else _last_file(log, queue, timestamp)
    if file is None or not file.wrote:
        return 0
    units = _Units(log, queue, file)
    floor, ceiling = units.low, units.high
    if units.time(ceiling) < timestamp:
        return units.offset(ceiling + UNIT_LENGTH if lower else ceiling)
    if floor > ceiling:
        return queue.min_offset  # a time before 1970 in a file that has expired: the broker throws
    if units.time(floor) > timestamp:
        return units.offset(0) if lower else 0
    near = _search(units, timestamp)
    if near is None:
        return 0
    if near.exact is not None:
        return units.offset(_last_equal(units, near.exact, timestamp, floor, ceiling, lower=lower))
    return units.offset(near.right if lower else near.left)


def _last_equal(
    units: _Units, position: int, timestamp: int, floor: int, ceiling: int, *, lower: bool
) -> int:
    """From a message of this time, the first or last of those beside it."""
    step = -UNIT_LENGTH if lower else UNIT_LENGTH
    while floor <= position + step <= ceiling and units.time(position + step) == timestamp:
        position += step
    return position


def _first_file(log: Messages, queue: QueueView, timestamp: int) -> QueueFile | None:
    """The first file whose last message is of that time or later, else the last file."""
    for file in queue.files[:-1]:
        if _file_time(log, queue, file, queue.file_size - UNIT_LENGTH) >= timestamp:
            return file
    return queue.files[-1] if queue.files else None


def _last_file(log: Messages, queue: QueueView, timestamp: int) -> QueueFile | None:
    """The last file whose first message is of that time or earlier."""
    for file in reversed(queue.files):
        if _file_time(log, queue, file, 0) <= timestamp:
            return file
    return None


def _file_time(log: Messages, queue: QueueView, file: QueueFile, position: int) -> int:
    """The time of a file's first or last message, ms; -1 when it isn't there or isn't positive."""
    if file.wrote < position + UNIT_LENGTH:
        return -1
    time = _Units(log, queue, file).time(position)
    return time if time > 0 else -1
