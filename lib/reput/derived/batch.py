"""One batch consume queue (``queue.type=BatchCQ``) while a broker starts: what it holds, takes, and loses.

Source: ``BatchConsumeQueue`` (rocketmq-all-5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.config.dialect import Queries
from reput.config.settings import StoreSettings
from reput.derived.files import (
    LAST_FILES,
    WHAT,
    Listing,
    MappedFiles,
    ModelFile,
    StoreFile,
    loaded,
    mapped,
)
from reput.derived.plain import Unit
from reput.derived.times import Boundary, Messages
from reput.errors import SettingsError
from reput.format import names
from reput.format.batchconsumequeue import NOT_COMPACTED, UNIT_LENGTH
from reput.format.consumequeueext import place_of
from reput.format.dtypes import BATCH, BATCH_UNIT_DTYPE, get_batch_units
from reput.log.segments import map_segment
from reput.store.reading import unreadable


class Inner(NamedTuple):
    """What records say of the messages in them."""

    #: int64[n], INNER_BASE, the first queueOffset; without it and INNER_NUM a record's own
    first: NDArray[np.int64]
    messages: NDArray[np.int64]  # int64[n], INNER_NUM, how many; then 1
    time: NDArray[np.int64]  # int64[n], storeTimestamp, ms

    @property
    def placed(self) -> NDArray[np.bool_]:
        """bool[n]: whether a batch queue takes them."""
        return get_batch_units(self.first, self.messages)


def inner(segments: Sequence[StoreFile], size: int, positions: NDArray[np.int64]) -> Inner:
    """Read the records at physical offsets, which rise."""
    from reput.derived import kernels

    first = np.full(len(positions), -1, np.int64)
    count = np.ones(len(positions), np.int64)
    time = np.zeros(len(positions), np.int64)
    for segment in segments:
        inside = np.flatnonzero((positions >= segment.base) & (positions < segment.base + size))
        if len(inside):
            data = map_segment(segment.path, size)
            first[inside], count[inside], time[inside] = kernels.inner(data, positions[inside] - segment.base)
    return Inner(first, count, time)


@dataclass(slots=True)
class BatchFile(ModelFile):
    """A file of the queue."""

    units: NDArray[np.void]  # all its units; those on disk until the broker writes to it

    @property
    def counting(self) -> NDArray[np.void]:
        """Those that count."""
        return self.units[: self.wrote // UNIT_LENGTH]


class BatchModel(MappedFiles[BatchFile]):
    """A batch queue, changed as a broker changes it; the files stay as they are.

    Attributes:
        max_physical: physical offset of the last message that it knows of, -1 at first.
        min_offset, max_offset: the first queueOffset that consumers get, -1 if missing; the next one.
        recovered_max: ``max_offset`` after the recovery.
    """

    def __init__(self, files: Sequence[StoreFile], file_size: int) -> None:
        loaded = [
            BatchFile(file.base, file.place, file_size, mapped(file.place, file_size).view(BATCH_UNIT_DTYPE))
            for file in files
        ]
        super().__init__(loaded, file_size)
        self.max_physical = -1
        self.min_offset, self.max_offset = -1, 0
        self.recovered_max = 0

    @property
    def is_changed(self) -> bool:
        """Whether the start has put units, or taken some away."""
        return self.recovered_max != self.max_offset

    @property
    def cut_off(self) -> int:
        """How many queueOffsets its end was moved back."""
        return self.recovered_max - self.max_offset

    def recover(self) -> None:
        """Find the end, in the last three files."""
        if not self.files:
            return
        end = 0
        for file in self.files[-LAST_FILES:]:
            count = _prefix(file.units, 0)
            if count:
                self.max_physical = int(file.units[count - 1]["position"])
            end = file.base + count * UNIT_LENGTH
            if count * UNIT_LENGTH != self.file_size:
                break
        self.cut(end)
        self._revise()
        self.recovered_max = self.max_offset

    def _revise(self) -> None:
        """``reviseMaxAndMinOffsetInQueue``."""
        self._revise_min()
        self.max_offset = 0
        for file in self.files[:-3:-1]:
            if len(file.counting):
                last = file.counting[-1]
                self.max_offset = int(last["base_offset"]) + int(last["batch_size"])
                return

    def _revise_min(self) -> None:
        self.min_offset = -1
        if not self.files:
            self.max_offset = 0
        elif len(self.files[0].counting):
            self.min_offset = int(self.files[0].units[0]["base_offset"])

    def truncate(self, physical: int) -> None:
        """Cut the units of messages at or past a physical offset."""
        self.max_physical = physical - 1
        while self.files:
            last = self.files[-1]
            if int(last.units[0]["position"]) >= physical:
                self.delete(last)
                continue
            # The first unit is taken as it is, zeros too.
            count = _prefix(last.units, 1, physical)
            self.max_physical = int(last.units[count - 1]["position"])
            last.wrote = count * UNIT_LENGTH
            break
        self._revise()

    def correct_min(self, physical: int) -> None:
        """Find the first message in the first file that is still in the log, which begins at ``physical``."""
        self._revise_min()
        if not self.files:
            return
        units = self.files[0].counting
        kept = np.flatnonzero(units["position"] >= physical)
        gone = int(kept[0]) if len(kept) else len(units)
        if gone:
            self.min_offset = int(units[gone - 1]["base_offset"]) + int(units[gone - 1]["batch_size"])

    def put(
        self, position: NDArray[np.int64], size: NDArray[np.int32], tags: NDArray[np.int64], read: Inner
    ) -> int:
        """Append units, in log order; how many were.

        ``position``, ``size``, ``tags``: [rows], physical offset, bytes and tagsCode. ``read``: the same
        records' own.
        """
        rows = np.flatnonzero(read.placed)
        # The greatest of what was there before each row counts, for a stored place may be a wrong one.
        before = np.maximum.accumulate(np.concatenate(([self.max_physical], position[rows])))[:-1]
        rows = rows[position[rows] > before]
        if not len(rows):
            return 0
        units = np.zeros(len(rows), BATCH_UNIT_DTYPE)
        units["position"], units["size"], units["tags"] = position[rows], size[rows], tags[rows]
        units["timestamp"], units["base_offset"], units["batch_size"] = (
            read.time[rows],
            read.first[rows],
            read.messages[rows],
        )
        units["compacted"] = NOT_COMPACTED
        done, begins = 0, not self.files
        while done < len(units):
            last = self.files[-1] if self.files else None
            if last is None or last.wrote == self.file_size:
                base = 0 if last is None else last.base + self.file_size
                last = BatchFile(base, None, 0, np.zeros(self.file_size // UNIT_LENGTH, BATCH_UNIT_DTYPE))
                self.files.append(last)
            if not last.units.flags.writeable:
                last.units = last.units.copy()
            at = last.wrote // UNIT_LENGTH
            fit = min(len(last.units) - at, len(units) - done)
            last.units[at : at + fit] = units[done : done + fit]
            last.wrote += fit * UNIT_LENGTH
            done += fit
        self.max_physical = int(units[-1]["position"])
        self.max_offset = int(units[-1]["base_offset"]) + int(units[-1]["batch_size"])
        if begins and self.min_offset == -1:
            self._revise_min()
        return len(units)

    def destroy(self) -> None:
        """Delete the queue's files."""
        super().destroy()
        self.max_physical = -1
        self.min_offset, self.max_offset = -1, 0

    def last_time(self, _log: object) -> int | None:
        """StoreTimestamp of its last unit, ms; None without one."""
        full = next((file for file in reversed(self.files) if len(file.counting)), None)
        return None if full is None else int(full.counting[-1]["timestamp"])

    def held(self, position: NDArray[np.int64], _offset: object) -> NDArray[np.bool_]:
        """bool[n]: whether a unit leads to each physical offset."""
        found = np.zeros(len(position), bool)
        least = int(position.min()) if len(position) else 0
        for file in reversed(self.files):
            units = file.counting["position"].astype(np.int64)
            found |= np.isin(position, units)
            if len(units) and units[0] < least:
                break
        return found

    def displaced(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n], all False: where a unit stands says nothing."""
        return np.zeros(len(position), bool)


def _prefix(units: NDArray[np.void], start: int, before: int | None = None) -> int:
    """Up to which unit, from ``start`` on, they are valid and lie before a physical offset."""
    good = BATCH.counts(units)
    if before is not None:
        good &= units["position"] < before
    bad = np.flatnonzero(~good[start:])
    return start + int(bad[0]) if len(bad) else len(units)


_TIME, _BASE = "timestamp", "base_offset"


class BatchQueueView:
    """A batch queue as a broker has it once it has loaded these files.

    ``topic``, ``queue_id``: which queue; it may have no files. ``log_start``: physical offset where the log
    begins. SettingsError where files of this size hold no whole number of units. StoreError where a file
    can't be read, or no broker could load it.

    Attributes:
        min_offset: queue offset of the first message whose record is still in the log; -1 without a unit.
        max_offset: queue offset of the next message.
    """

    unit_length = UNIT_LENGTH
    holds_batches = True

    def __init__(self, settings: StoreSettings, topic: str, queue_id: int, log_start: int) -> None:
        setting, file_size = settings.queue_file_sizes[names.BATCH_CONSUME_QUEUE]
        if file_size % UNIT_LENGTH:
            raise SettingsError(
                "files of batch queues can't have this size",
                expected=f"a multiple of {UNIT_LENGTH}",
                found=f"{setting}={file_size}",
            )
        self._directory = names.batch_queue_directory(settings.root, topic, queue_id)
        listing = loaded(settings, names.BATCH_CONSUME_QUEUE, topic, queue_id)
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
        """Units of one file, from the one with the message at a queue offset, or the one before it, on.

        They end before the first whose first message is ``span`` queue offsets behind it; None at or past
        ``max_offset`` and before the first unit.
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

    def offset_by_time(self, _log: Messages, rules: Queries, timestamp: int, boundary: Boundary) -> int:
        """The queue offset of the first message of the unit that a broker gives for a time in ms.

        In one file that is the last unit, when none is later than that time; otherwise for LOWER the
        first unit of that time or later, or else one of exactly that time; without one, where a search ends.
        """
        found = self._at_time(timestamp, lower=boundary is not Boundary.UPPER)
        return min(max(found, self.min_offset), self.max_offset) if rules.clamps_time else found

    def _at_time(self, timestamp: int, *, lower: bool) -> int:
        """Where a broker's search for a time ends, which may be outside the queue; -1 where it finds none."""
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
    """A batch queue after a start's recovery; see :func:`reput.derived.plain.recovered`."""
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
