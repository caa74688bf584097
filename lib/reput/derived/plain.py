"""One consume queue while a broker starts: what it holds, takes, and loses.

Source: ``ConsumeQueue``: recover, putMessagePositionInfo, truncateDirtyLogicFiles, correctMinOffset;
``MappedFileQueue``: truncateDirtyFiles, getLastMappedFile (rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.config.dialect import Queries
from reput.config.settings import StoreSettings
from reput.derived.ext import ExtModel, QueueExt
from reput.derived.files import (
    LAST_FILES,
    MOST_OPEN,
    WHAT,
    Listing,
    MappedFiles,
    ModelFile,
    SeriesReader,
    StoreFile,
    loaded,
    mapped,
    records_of,
)
from reput.derived.times import Boundary, Messages, in_files
from reput.errors import Problem, StartFailsError
from reput.format import names
from reput.format.consumequeue import PRE_BLANK, UNIT, UNIT_LENGTH
from reput.format.consumequeueext import MAX_ADDRESS
from reput.format.dtypes import UNIT_DTYPE, UnitKind, classify
from reput.remote.store import have
from reput.store.reading import pread, reading, unreadable

_BLANK = np.frombuffer(PRE_BLANK, UNIT_DTYPE)
_CHUNK = 8192  # units
#: Bytes of a file that are read at once: all that most queues have, where there are very many.
HEAD = 204 * UNIT_LENGTH


@dataclass(slots=True)
class QueueFile(ModelFile):
    """A file of the queue."""

    #: (byte position, units) that the broker writes over what is there
    patches: list[tuple[int, NDArray[np.void]]] = field(default_factory=list)
    head: bytes | None = None  # the first bytes on disk; None until they are needed
    #: the greatest physical offset after a message of the units that a recovery has counted; -1
    #: without one, None where it read more than the head
    furthest: int | None = None


class QueueModel(MappedFiles[QueueFile]):
    """A consume queue, changed as a broker changes it; the files stay as they are.

    Attributes:
        max_physical: physical offset after the last message that it knows of, -1 at first; where that begins,
            if it knows no ends.
        min_logic: byte offset of the first unit that counts.
        recovered_end: byte offset after the last unit that the recovery found.
        puts_in_place: each unit that the start put stands at its message's queueOffset.
        put_from: byte offset of the first unit that the start put; None where it put none.
        ext: its files of consumequeue_ext; None when broker.conf doesn't switch them on.
    """

    def __init__(
        self,
        files: Sequence[StoreFile],
        file_size: int,
        ext: ExtModel | None = None,
        *,
        knows_ends: bool = True,
    ) -> None:
        super().__init__([QueueFile(file.base, file.place, file_size) for file in files], file_size)
        self.ext = ext
        self._knows_ends = knows_ends
        self.max_physical = -1
        self.min_logic = 0
        self.recovered_end = 0
        self.puts_in_place = True
        self.put_from: int | None = None
        self._fresh = False  # MappedFile.firstCreateInQueue of the last file

    @property
    def min_offset(self) -> int:
        """The first queue offset that consumers get."""
        return self.min_logic // UNIT_LENGTH

    @property
    def max_offset(self) -> int:
        """The queue offset of the next message."""
        return self.end // UNIT_LENGTH

    @property
    def is_changed(self) -> bool:
        """Whether the start has put units, or taken some away."""
        return self.put_from is not None or self.end != self.recovered_end or bool(self.deleted)

    @property
    def cut_off(self) -> int:
        """How many queueOffsets its end was moved back."""
        return (self.recovered_end - self.end) // UNIT_LENGTH

    def ends_before(self, physical: int) -> bool:
        """Whether it is known that no message of its units ends behind a physical offset."""
        return all(
            file.furthest is not None and file.furthest <= physical and not file.patches
            for file in self.files
        )

    def recover(self) -> None:
        """Find the end, in the last three files, and that of the files of consumequeue_ext.

        StartFailsError where the broker fails on one of the latter.
        """
        if not self.files:
            return
        end = 0
        for file in self.files[-LAST_FILES:]:
            count, last = self._valid_prefix(file, 0)
            if last is not None:
                self.max_physical = self._known(file, count, last)
            end = file.base + count * UNIT_LENGTH
            if count * UNIT_LENGTH != self.file_size:
                break
        self.cut(end)
        for file in self.files:
            if file.head is not None:
                file.head = file.head[: file.wrote]  # of 100,000 queues the rest would be 400 MB
        self.recovered_end = self.end
        if self.ext is not None:
            self.ext.recover()
            self.ext.truncate(self._last_address())

    def _known(self, file: QueueFile, count: int, end: int) -> int:
        """What the queue knows of the last of so many units of a file, whose message ends there."""
        return end if self._knows_ends else self._position(file, count - 1)

    def _last_address(self) -> int:
        """The last address in consumequeue_ext that a unit of the last three files has; 1 without one."""
        for file in reversed(self.files[-LAST_FILES:]):
            for at in range((file.wrote // UNIT_LENGTH - 1) // _CHUNK * _CHUNK, -1, -_CHUNK):
                tags = self._units(file, at, min(_CHUNK, file.wrote // UNIT_LENGTH - at))["tags"]
                found = np.flatnonzero(tags <= MAX_ADDRESS)
                if len(found):
                    return int(tags[found[-1]])
        return 1

    def put(
        self,
        position: NDArray[np.int64],
        size: NDArray[np.int32],
        offset: NDArray[np.int64],
        tags: NDArray[np.int64],
        own: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Append units, in log order.

        ``position``, ``size``, ``offset``, ``tags``: [rows], physical offset, bytes, queueOffset and
        tagsCode. ``own``: bool[rows], the message is of this topic, and no light queue's; all are without it.
        Returns int64[rows], the queue offset where each one went, -1 for those that were skipped.
        """
        if self.ext is not None:
            tags = _addresses(self.ext, tags, own)
        last = self.files[-1] if self.files else None
        from reput.derived import kernels

        places, state = kernels.place(
            position,
            size if self._knows_ends else np.zeros_like(size),
            offset,
            self.file_size,
            last is not None,
            0 if last is None else last.base,
            0 if last is None else last.wrote,
            self._fresh,
            self.max_physical,
            self.min_logic,
        )
        _has_files, last_base, wrote, fresh, self.max_physical, self.min_logic, first_base, blanks = state
        if first_base >= 0:
            self.files.append(QueueFile(first_base, None, 0))
            if blanks:
                self.files[0].patches.append((0, np.repeat(_BLANK, blanks)))
        self._fresh = bool(fresh)
        while self.files and self.files[-1].base < last_base:
            self.files[-1].wrote = self.file_size
            self.files.append(QueueFile(self.files[-1].base + self.file_size, None, 0))
        if self.files:
            self.files[-1].wrote = int(wrote)
        taken = np.flatnonzero(places >= 0)
        if len(taken):
            if self.put_from is None:
                self.put_from = int(places[taken[0]])
            if not np.array_equal(places[taken], offset[taken] * UNIT_LENGTH):
                self.puts_in_place = False
            units = np.empty(len(taken), UNIT_DTYPE)
            units["position"], units["size"], units["tags"] = position[taken], size[taken], tags[taken]
            self._write(places[taken], units)
        return np.where(places >= 0, places // UNIT_LENGTH, -1)

    def _write(self, places: NDArray[np.int64], units: NDArray[np.void]) -> None:
        # Places of one call are consecutive: the broker only appends.
        for file in self.files:
            low, high = np.searchsorted(places, [file.base, file.base + self.file_size])
            if high > low:
                file.patches.append((int(places[low]) - file.base, units[low:high]))

    def truncate(self, physical: int) -> None:
        """Cut the units of messages at or past a physical offset."""
        if self.files and self.files[-1].wrote and self.ends_before(physical):
            return  # nothing is cut, and the last unit is the one that the recovery has found
        self.max_physical = physical if self._knows_ends else physical - 1
        while self.files:
            last = self.files[-1]
            first = self._units(last, 0, 1)[0]
            if int(first["position"]) >= physical:
                self.delete(last)
                continue
            # The first unit is taken as it is, zeros too.
            self.max_physical = self._known(last, 1, int(first["position"]) + int(first["size"]))
            count, end = self._valid_prefix(last, 1, physical)
            if end is not None:
                self.max_physical = self._known(last, count, end)
            last.wrote = count * UNIT_LENGTH
            return

    def correct_min(self, physical: int, *, searches: bool, fails_on_empty: bool = False) -> None:
        """Find the first unit of a message that is still in the log, which begins at ``physical``.

        ``searches``: by halving, as 5.x does. ``fails_on_empty``: StartFailsError on an empty last file.
        """
        if searches:
            self._search_min(physical, fails_on_empty)
            return
        if not self.files:
            return
        first = self.files[0]
        for at, units in self._chunks(first, 0, first.wrote // UNIT_LENGTH):
            found = np.flatnonzero(units["position"] >= physical)
            if len(found):
                self._set_min(first, at + int(found[0]))
                return

    def _set_min(self, file: QueueFile, number: int) -> None:
        self.min_logic = file.base + number * UNIT_LENGTH
        if self.ext is not None:
            self.ext.drop_before(int(self._units(file, number, 1)[0]["tags"]))

    def _search_min(self, physical: int, fails_on_empty: bool) -> None:
        if self.min_logic >= self.end or not self.files:
            return
        last, first = self.files[-1], self.files[0]
        if not last.wrote and fails_on_empty:
            raise StartFailsError(_empty(last))
        if last.wrote >= UNIT_LENGTH and self._position(last, last.wrote // UNIT_LENGTH - 1) < physical:
            self.min_logic = last.base + last.wrote
            return
        start = self.min_logic - first.base
        intact = start >= 0
        start = max(start, 0)
        if start >= first.wrote:
            return
        begin = start // UNIT_LENGTH
        count = first.wrote // UNIT_LENGTH - begin
        if intact and count and self._position(first, begin) >= physical:
            return
        offsets = self._units(first, begin, count)["position"]
        if intact and int(offsets[0]) >= physical:
            return
        low, high = 0, count - 1
        while high - low > 1:
            mid = (low + high) // 2
            value = int(offsets[mid])
            if value > physical:
                high = mid
            elif value == physical:
                low = high = mid
            else:
                low = mid
        for at in range(low, high + 1):
            if int(offsets[at]) >= physical:
                self._set_min(first, begin + at)
                return

    def destroy(self) -> None:
        """Delete the queue's files."""
        super().destroy()
        self.max_physical = -1
        self.min_logic = 0
        if self.ext is not None:
            self.ext.destroy()

    def units(self, start: int = 0) -> Iterator[tuple[int, NDArray[np.void]]]:
        """(queue offset of the first, units) for all that count from byte offset ``start`` on, in chunks."""
        for file in self.files:
            if file.base + file.wrote > start:
                begin = max(start - file.base, 0) // UNIT_LENGTH
                for at, units in self._chunks(file, begin, file.wrote // UNIT_LENGTH):
                    yield file.base // UNIT_LENGTH + at, units

    def last_unit(self) -> tuple[int, int, int] | None:
        """Physical offset, bytes and tagsCode of its last unit; None without one."""
        for file in reversed(self.files):
            if file.wrote:
                at = file.wrote - UNIT_LENGTH
                if not file.patches and file.head is not None and at + UNIT_LENGTH <= len(file.head):
                    position, size, tags = UNIT.unpack_from(file.head, at)
                    return position, size, tags
                position, size, tags = self._units(file, at // UNIT_LENGTH, 1)[0].tolist()
                return position, size, tags
        return None

    def last_time(self, log: Messages | None) -> int | None:
        """StoreTimestamp of the message of its last unit, ms; None where that can't be told."""
        last = None if log is None else self.last_unit()
        time = -1 if log is None or last is None else log.store_timestamp(*last[:2])
        return time if time > 0 else None

    def units_from(self, physical: int) -> int:
        """How many units at its end lead to a physical offset or behind it; only blanks don't."""
        if self.ends_before(physical):
            return 0
        count = 0
        for _, units in self.units(self.files[-LAST_FILES:][0].base if self.files else 0):
            other = np.flatnonzero((units["position"] < physical) | (classify(units) == UnitKind.PRE_BLANK))
            count = len(units) - 1 - int(other[-1]) if len(other) else count + len(units)
        return count

    def held(self, position: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n]: whether the unit at each queueOffset leads to the physical offset."""
        found = np.full(len(offset), -1, np.int64)
        for first, units in self.units(int(offset.min()) * UNIT_LENGTH) if len(offset) else ():
            inside = (offset >= first) & (offset < first + len(units))
            found[inside] = units["position"][offset[inside] - first]
        held: NDArray[np.bool_] = found == position
        return held

    def displaced(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n]: whether a unit somewhere in the last three files leads to each physical offset."""
        found = np.zeros(len(position), bool)
        if not self.files or not len(position):
            return found
        for _, units in self.units(self.files[-LAST_FILES:][0].base):
            found |= np.isin(position, units["position"].astype(np.int64))
        return found

    def without_ext(self, log_start: int) -> tuple[int, int, int]:
        """Units in the last three files, older than the start, whose record in consumequeue_ext is gone.

        The least and the greatest queueOffset among them, and how many they are; 0 without any. What lies
        before ``log_start``, a physical offset, has expired, and its records may have, too.
        """
        first = last = count = 0
        if self.ext is None or not self.files:
            return first, last, count
        start = max(self.files[-LAST_FILES:][0].base, self.min_logic)
        for at, units in self.units(start):
            old = len(units) if self.put_from is None else max(self.put_from // UNIT_LENGTH - at, 0)
            tags = units["tags"][:old].astype(np.int64)
            wrong = np.flatnonzero((tags <= MAX_ADDRESS) & (units["position"][:old] >= log_start))
            wrong = wrong[~self.ext.held(tags[wrong])]
            if len(wrong):
                first, last = (first if count else at + int(wrong[0])), at + int(wrong[-1])
                count += len(wrong)
        return first, last, count

    def _valid_prefix(self, file: QueueFile, start: int, before: int | None = None) -> tuple[int, int | None]:
        """Up to which unit, from ``start`` on, a file holds valid ones, and the last one's message end.

        ``before`` ends it at the first unit at or past a physical offset, too.
        """
        stop = self.file_size // UNIT_LENGTH
        if file.place is not None and not file.patches:
            limit = -1 if before is None else before
            head = _head(file, stop)
            count, last, furthest = _prefix(head, start, limit)
            if len(head) > count * UNIT_LENGTH or count >= stop:
                file.furthest = furthest if not start else None
            else:
                from reput.derived import kernels

                count, further = kernels.prefix(mapped(file.place, self.file_size), count, stop, limit)
                last = last if further < 0 else further
            return int(count), None if last < 0 else int(last)
        return self._valid_prefix_of_chunks(file, start, stop, before)

    def _valid_prefix_of_chunks(
        self, file: QueueFile, start: int, stop: int, before: int | None
    ) -> tuple[int, int | None]:
        """The same for a file that the broker has written over."""
        end: int | None = None
        count = start
        for at, units in self._chunks(file, start, stop):
            good = (units["position"] >= 0) & (units["size"] > 0)
            if before is not None:
                good &= units["position"] < before
            bad = np.flatnonzero(~good)
            taken = int(bad[0]) if len(bad) else len(units)
            if taken:
                end = int(units["position"][taken - 1]) + int(units["size"][taken - 1])
                count = at + taken
            if len(bad):
                break
        return count, end

    def _chunks(self, file: QueueFile, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.void]]]:
        for at in range(start, stop, _CHUNK):
            yield at, self._units(file, at, min(_CHUNK, stop - at))

    def _position(self, file: QueueFile, number: int) -> int:
        """The physical offset in a unit of :meth:`_units`."""
        at = number * UNIT_LENGTH
        if not file.patches and file.head is not None and at + UNIT_LENGTH <= len(file.head):
            position: int = UNIT.unpack_from(file.head, at)[0]
            return position
        return int(self._units(file, number, 1)[0]["position"])

    def _units(self, file: QueueFile, start: int, count: int) -> NDArray[np.void]:
        """Uint of a file as it will be: what is there, and what the broker writes over it."""
        stop = (start + count) * UNIT_LENGTH
        if not file.patches and file.head is not None and stop <= len(file.head):
            return np.frombuffer(file.head, UNIT_DTYPE, count, start * UNIT_LENGTH)
        units = np.zeros(count, UNIT_DTYPE)
        if file.place is not None:
            found = records_of(file.place, UNIT_DTYPE, count, start * UNIT_LENGTH)
            units[: len(found)] = found
        for position, patch in file.patches:
            at = position // UNIT_LENGTH - start
            low, high = max(at, 0), min(at + len(patch), count)
            if low < high:
                units[low:high] = patch[low - at : high - at]
        return units


def _addresses(ext: ExtModel, tags: NDArray[np.int64], own: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Put records into consumequeue_ext: for each message, before it is known whether it gets a unit."""
    rows = np.arange(len(tags)) if own is None else np.flatnonzero(own)
    put = ext.put(len(rows))
    tags = tags.copy()
    tags[rows] = np.where(put < 0, put, tags[rows])
    return tags


def _head(file: QueueFile, units: int) -> bytes:
    """The first bytes of a file of so many units on disk, read once."""
    if file.head is None:
        length = min(HEAD, units * UNIT_LENGTH)
        path = file.place or ""
        with reading(path, by_ranges=True) as fd:
            file.head = pread(path, fd, length, 0).ljust(length, b"\0")
    return file.head


def _prefix(head: bytes, start: int, before: int) -> tuple[int, int, int]:
    """What ``kernels.prefix`` says of a file's head, without numba; and the greatest end."""
    end = furthest = -1
    for offset, size, _tags in UNIT.iter_unpack(memoryview(head)[start * UNIT_LENGTH :]):
        if offset < 0 or size <= 0 or 0 <= before <= offset:
            break
        end = offset + size
        if end > furthest:
            furthest = end
        start += 1
    return start, end, furthest


def _empty(file: QueueFile) -> Problem:
    return Problem(
        kind="empty-queue-file",
        path="a file that the start makes" if file.place is None else file.place,
        expected="a unit in the last file of a queue",
        found="none",
        outcome="the broker fails while it looks for the queue's first message, and doesn't start",
        next_step="Move the file elsewhere.",
        stops=True,
    )


class Unit(NamedTuple):
    """A queue's unit for one record of the log."""

    queue_offset: int  # of its message; of the first one, if it is a batch
    messages: int  # how many are in it
    physical_offset: int  # physical_offset, size: of the record, in bytes
    size: int
    tags_code: int  # as stored


class QueueView:
    """A queue as a broker has it once it has loaded these files.

    ``topic``, ``queue_id``: which queue; it may have no files. ``log_start``: physical offset where the log
    begins. ``model``: what :func:`recovered` says of it; None where nobody has asked.

    Attributes:
        min_offset: queue offset of the first unit whose message is still in the log.
        max_offset: queue offset of the next message.
        min_logic: byte offset of the first unit that counts.
        files: the files in order, each with the number of its valid bytes.
        file_size: bytes of a file.
    """

    unit_length = UNIT_LENGTH
    holds_batches = False

    def __init__(
        self,
        settings: StoreSettings,
        topic: str,
        queue_id: int,
        log_start: int,
        model: QueueModel | None = None,
    ) -> None:
        self.file_size = settings.consume_queue_file_size
        self._of = settings, topic, queue_id
        if model is None:
            model = self._recovered(log_start)
        self.files = tuple(model.files)
        self.min_logic = model.min_logic
        self.min_offset = model.min_offset
        self.max_offset = model.max_offset

    def _recovered(self, log_start: int) -> QueueModel:
        settings, topic, queue_id = self._of
        listing = loaded(settings, names.CONSUME_QUEUE, topic, queue_id)
        try:
            return recovered(settings, listing, log_start)
        except OSError as error:
            raise unreadable(WHAT, self._directory, error) from error

    @property
    def _directory(self) -> Path:
        settings, topic, queue_id = self._of
        return names.queue_directory(settings.root, topic, queue_id)

    @cached_property
    def tags_code(self) -> Callable[[int], int | None]:
        """See :meth:`QueueExt.tags_code`."""
        return QueueExt(*self._of).tags_code

    @property
    def exists(self) -> bool:
        """Whether the queue has a file."""
        return bool(self.files)

    def roll_next_file(self, queue_offset: int) -> int:
        """Queue offset of the first unit of the file after the one that spans ``queue_offset``."""
        units = self.file_size // UNIT_LENGTH
        return queue_offset + units - queue_offset % units

    def file_at(self, queue_offset: int) -> QueueFile | None:
        """The file with the unit at a queue offset; None before the first, after the last, or in a gap."""
        at = queue_offset * UNIT_LENGTH
        if at < self.min_logic:
            return None
        return next((file for file in self.files if file.base <= at < file.base + file.wrote), None)

    def units(self, file: QueueFile, position: int, count: int) -> NDArray[np.void]:
        """At most ``count`` valid units of a file from a byte position on, UNIT_DTYPE[rows]."""
        head = self._in_head(file, position, count)
        if head is not None:
            return np.frombuffer(head, UNIT_DTYPE)
        count = min(count, (file.wrote - position) // UNIT_LENGTH)
        if count <= 0 or file.place is None:
            return np.empty(0, UNIT_DTYPE)
        try:
            return records_of(file.place, UNIT_DTYPE, count, position)
        except OSError as error:
            raise unreadable(WHAT, self._directory, error) from error

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes of the units of the queueOffsets [start, end), up to the first one that isn't there."""
        while (file := self.file_at(start)) is not None and start < end:
            units = self.units(file, start * UNIT_LENGTH - file.base, end - start)
            if not len(units):
                return
            yield units.tobytes()
            start += len(units)

    @staticmethod
    def _in_head(file: QueueFile, position: int, count: int) -> bytes | None:
        """The bytes of :meth:`units`, where all of them are known; else None."""
        stop = position + min(count, (file.wrote - position) // UNIT_LENGTH) * UNIT_LENGTH
        if file.head is None or not position < stop <= len(file.head):
            return None
        return file.head[position:stop]

    def unit(self, file: QueueFile, position: int) -> tuple[int, int, int]:
        """Physical offset, size and tagsCode of the unit at a byte position of a file, which counts it."""
        found = self.units(file, position, 1)
        if not len(found):
            raise unreadable(WHAT, self._directory, FileNotFoundError("it was cut meanwhile"))
        offset, size, tags = found[0].tolist()
        return offset, size, tags

    def offset_by_time(self, log: Messages, rules: Queries, timestamp: int, boundary: Boundary) -> int:
        """The queue offset that a broker gives for a time in ms; see :func:`reput.derived.times.in_files`."""
        found = in_files(log, self, rules, timestamp, boundary)
        return min(max(found, self.min_offset), self.max_offset) if rules.clamps_time else found

    def units_from(self, queue_offset: int, span: int) -> list[Unit] | None:
        """At most ``span`` units of one file, from a queue offset on; None where no file has that."""
        file = self.file_at(queue_offset)
        if file is None:
            return None
        at = queue_offset * UNIT_LENGTH - file.base
        head = self._in_head(file, at, span)  # numpy would take longer than the reading
        units = self.units(file, at, span).tolist() if head is None else UNIT.iter_unpack(head)
        return [Unit(queue_offset + number, 1, *fields) for number, fields in enumerate(units)]


def recovered(settings: StoreSettings, listing: Listing, log_start: int) -> QueueModel:
    """A queue as a broker has it once it has loaded its files; the log begins at ``log_start``."""
    model = QueueModel(listing.files, settings.consume_queue_file_size)
    model.recover()
    model.correct_min(log_start, searches=settings.dialect.recovery.searches_min_offset)
    return model


_UNITS_AT_ONCE = 1 << 16


class QueueReader(SeriesReader):
    """Reads the units at any places of a store's queues."""

    def __init__(self, root: Path, file_size: int) -> None:
        super().__init__(root, file_size, names.CONSUME_QUEUE, MOST_OPEN)

    def read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """The 20 bytes each of ``count`` places from ``first`` on; zeros where no file has them."""
        at, stop = first * UNIT_LENGTH, (first + count) * UNIT_LENGTH
        pieces = []
        while at < stop:
            base = at - at % self._file_size
            length = min(stop, base + self._file_size) - at
            fd = self.descriptor(topic, queue_id, base)
            if fd >= 0 and self._may_lack:
                have(self.path(topic, queue_id, base), at - base, at - base + length)
            data = os.pread(fd, length, at - base) if fd >= 0 else b""
            pieces.append(data.ljust(length, b"\0"))
            at += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def blocks(
        self, topic: str, queue_id: int, first: int, end: int
    ) -> Iterator[tuple[int, NDArray[np.void]]]:
        """The units of the places [first, end), UNIT_DTYPE[at most 65,536], each with its first place."""
        for at in range(first, end, _UNITS_AT_ONCE):
            data = self.read(topic, queue_id, at, min(end - at, _UNITS_AT_ONCE))
            yield at, np.frombuffer(data, UNIT_DTYPE)
