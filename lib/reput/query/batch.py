"""One batch consume queue: where it begins and ends, and its units, found by the messages in them.

Source: ``BatchConsumeQueue``: recover, correctMinOffset, refreshCache, getBatchMsgIndexBuffer, binarySearch,
getOffsetInQueueByTime, binarySearchRight, rollNextFile (rocketmq-all-5.0.0, 5.3.3; 5.5.0 by its bytecode).
``searchBcqByCacheEnable`` is assumed to be on, its default.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from reput.broker.batch_queue import BatchModel
from reput.broker.files import Listing, listed
from reput.config.settings import StoreSettings
from reput.errors import SettingsError
from reput.format import names
from reput.format.batchconsumequeue import UNIT_LENGTH
from reput.format.consumequeueext import place_of
from reput.query.queue import WHAT, Unit, check_listing
from reput.store.reading import unreadable

_SETTING = "mapperFileSizeBatchConsumeQueue"
_TIME, _BASE = "timestamp", "base_offset"


class BatchQueueView:
    """A batch queue as a broker has it once it has loaded these files.

    Args:
        topic, queue_id: which queue; it may have no files.
        log_start: physical offset where the log begins.

    Raises:
        SettingsError: files of this size hold no whole number of units.
        StoreError: a file can't be read, or no broker could load it.

    Attributes:
        min_offset: queue offset of the first message whose record is still in the log; -1 without a unit.
        max_offset: queue offset of the next message.
    """

    unit_length = UNIT_LENGTH
    holds_batches = True

    def __init__(self, settings: StoreSettings, topic: str, queue_id: int, log_start: int) -> None:
        file_size = settings.recovery.batch_queue_file_size
        if file_size % UNIT_LENGTH:
            raise SettingsError(
                "files of batch queues can't have this size",
                expected=f"a multiple of {UNIT_LENGTH}",
                found=f"{_SETTING}={file_size}",
            )
        self._directory = names.batch_queue_directory(settings.root, topic, queue_id)
        listing = listed([self._directory], file_size, settings.dialect.recovery, _SETTING)
        check_listing(listing)
        try:
            model = recovered(settings, listing, log_start)
        except OSError as error:
            raise unreadable(WHAT, self._directory, error) from error
        self._files = [file.counting for file in model.files]
        self.min_offset, self.max_offset = model.min_offset, model.max_offset

    @property
    def exists(self) -> bool:
        """Whether the queue has a file."""
        return bool(self._files)

    def roll_next_file(self, queue_offset: int) -> int:  # noqa: ARG002
        """0: a broker stays at a place without a unit."""
        return 0

    def tags_code(self, stored: int) -> int | None:
        """The tagsCode of a unit that stores this: batch queues have no consumequeue_ext."""
        return None if place_of(stored) is not None else stored

    def units_from(self, queue_offset: int, span: int) -> list[Unit] | None:
        """Units of one file, from the one with the message at a queue offset on.

        Args:
            queue_offset: the message's; if no unit has it, the unit before counts.
            span: ends before the first unit whose first message is this many queue offsets behind it.

        Returns:
            At least one; None at or past ``max_offset`` and before the first unit.
        """
        if queue_offset >= self.max_offset or not self._files:
            return None
        file = self._file(_BASE, queue_offset)
        if file is None or not len(file):
            return None
        at = _floor(file[_BASE], queue_offset)
        if at < 0:
            return None
        stored = (unit.tolist() for unit in file[at:])
        units = (
            Unit(base, messages, position, size, tags)
            for position, size, tags, _time, base, messages, *_ in stored
        )
        return list(takewhile(lambda unit: unit.queue_offset - queue_offset < span, units))

    def offset_by_time(self, timestamp: int, *, lower: bool) -> int:
        """The queue offset of the first message of the unit that a broker gives for a time.

        In one file that is the last unit, when none is later than that time; otherwise for ``lower`` the
        first unit of that time or later, or else one of exactly that time; without one, where a search ends.

        Args:
            timestamp: ms.
            lower: of several of that time the first.

        Returns:
            -1 where a broker finds none.
        """
        file = self._file(_TIME, timestamp)
        if file is None or not len(file):
            file = self._files[0] if self._files else None
        if file is None or not len(file):
            return -1
        times, bases = file[_TIME], file[_BASE]
        if timestamp >= times[-1]:
            return int(bases[-1])
        at = _first_of(times, timestamp, lower=lower)
        return -1 if at < 0 else int(bases[at])

    def _file(self, column: str, value: int) -> NDArray[np.void] | None:
        """The file that begins at a value or nearest before it; the last file is checked first."""
        last = self._files[-1] if self._files else None
        if last is not None and len(last) and last[column][0] <= value:
            return last
        # Of two files that begin with equal values the cache holds the later one.
        starts = {int(file[column][0]): file for file in self._files if len(file)}
        return starts.get(max((start for start in starts if start <= value), default=value))


def recovered(settings: StoreSettings, listing: Listing, log_start: int) -> BatchModel:
    """As :func:`reput.query.queue.recovered`, of a batch queue."""
    model = BatchModel(listing.files, settings.recovery.batch_queue_file_size)
    model.recover()
    model.correct_min(log_start)
    return model


def _floor(values: NDArray[np.int64], target: int) -> int:
    """``binarySearch``: the number of the last unit with this value or a lesser one; -1 without one."""
    left, right = 0, len(values) - 1
    while left <= right:
        middle = (left + right) // 2
        found = values[middle]
        if found == target:
            return middle
        if found > target:
            right = middle - 1
        elif middle == left:
            goes_on = middle + 1 < len(values) and values[middle + 1] <= target
            return middle + 1 if goes_on else middle
        else:
            left = middle
    return -1


def _first_of(values: NDArray[np.int64], target: int, *, lower: bool) -> int:
    """``binarySearchRight``, as in the broker: ``lower`` finds the first unit of at least this value."""
    left, right = 0, len(values) - 1
    while left <= right:
        middle = (left + right) // 2
        found = values[middle]
        if middle == right:
            return middle if found >= target else -1
        if middle == left:
            if found >= target:
                return middle
            left = middle + 1
        elif lower:
            left, right = (middle + 1, right) if found < target else (left, middle)
        else:
            left, right = (middle, right) if found <= target else (left, middle - 1)
    return -1
