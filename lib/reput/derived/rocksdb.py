"""Queues and index in RocksDB, as a broker answers from them.

Source: ``RocksDBConsumeQueueOffsetTable.getMinCqOffset``, ``correctMinCqOffset``,
``RocksDBConsumeQueueTable.rangeQuery``, ``binarySearchInCQ``, ``binarySearchInCQByTime``,
``RocksDBConsumeQueueStore`` (rocketmq-all-5.3.3); ``MessageRocksDBStorage.queryOffsetForIndex`` (5.5.0 by its
bytecode). A broker corrects a queue's min offset when it is asked for it; here it is only computed.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from reput.config.dialect import Queries
from reput.config.settings import StoreSettings
from reput.derived.plain import Unit
from reput.derived.times import Boundary, Messages
from reput.errors import StoreError
from reput.format import commitlog, names, rocksdbqueue
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.names import Queue
from reput.rocksdb import Database, is_database, opened
from reput.store.listing import names_seen

_HOUR = struct.Struct(">q")
#: Units that are read at once.
_BLOCK = 1024
COMPARE = "Let reput compare it with the log, or derive it again"


class KeptOpen:
    """A database that stays open for several questions, until nobody has this any more.

    Args:
        path: the database.
        required: column families that it has to have.
        known: all that it may have: a broker opens no others.
    """

    def __init__(self, path: Path, required: tuple[str, ...], known: tuple[str, ...] | None = None) -> None:
        stack = ExitStack()
        database = opened(path, required=required, known=known or required)
        self.database: Database = stack.enter_context(database)
        self._close = weakref.finalize(self, stack.close)  # at the end of the process, too

    def close(self) -> None:
        """Let go of it at once."""
        self._close()


def queues_of(settings: StoreSettings) -> Path | None:
    """Where the queues' database is; None where queues are in files."""
    name = settings.rocksdb.queues
    return None if name is None else settings.root / name


def is_read_from(settings: StoreSettings, topic: str) -> bool:
    """Whether a topic's queues are read from RocksDB: where files have them as well, files come first."""
    rocksdb = settings.rocksdb
    if rocksdb.files and rocksdb.lmq and topic.startswith(commitlog.LMQ_PREFIX.decode()):
        return not names_seen(settings.root / names.CONSUME_QUEUE / topic)
    return not rocksdb.files


def queues_in_rocksdb(settings: StoreSettings) -> RocksQueues | None:
    """The queues in RocksDB; None where all are in files.

    Raises:
        StoreError, UnsupportedError: see :class:`RocksQueues`.
    """
    path = queues_of(settings)
    return None if path is None or not is_database(path) else RocksQueues(settings, path)


class RocksQueues:
    """The queues of a store in RocksDB.

    Raises:
        StoreError: it can't be read, or isn't what it should be.
        UnsupportedError: what reads RocksDB isn't installed, or can't read this one.
    """

    def __init__(self, settings: StoreSettings, path: Path) -> None:
        self.path = path
        self._settings = settings
        self._kept = KeptOpen(path, (rocksdbqueue.UNITS, rocksdbqueue.OFFSETS))

    @property
    def database(self) -> Database:
        """The database."""
        return self._kept.database

    def view(self, topic: str, queue_id: int, log_start: int) -> RocksQueueView:
        """A queue, which may have no keys."""
        return RocksQueueView(self, topic, queue_id, log_start)

    def ids(self, topic: str) -> tuple[int, ...]:
        """Queue ids of a topic that have a last message, in order."""
        name = topic.encode("utf-8", "surrogatepass")
        start = rocksdbqueue.offset_key(name, 0, rocksdbqueue.MAX)
        stop = rocksdbqueue.offset_key(name, -1, rocksdbqueue.MAX) + b"\0"
        found = []
        for keys, values in self.database.blocks(rocksdbqueue.OFFSETS, start, stop):
            for key, value in zip(keys, values, strict=True):
                parsed = rocksdbqueue.parse_offset_key(key)
                if parsed is not None and len(value) == rocksdbqueue.OFFSET_LENGTH:
                    found.append(parsed.queue_id)
        return tuple(sorted(found))

    def read(self) -> Iterator[Queue]:
        """Those of :meth:`ends` that are read from here: not where files have them as well."""
        topics: dict[str, bool] = {}
        for topic, queue_id in self.ends():
            if topic not in topics:
                topics[topic] = is_read_from(self._settings, topic)
            if topics[topic] and queue_id >= 0:
                yield topic, queue_id

    def values(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the units of [start, end), in order; queueOffsets without one are left out.

        Raises:
            StoreError: they can't be read, or one isn't a unit.
        """
        name = topic.encode("utf-8", "surrogatepass")
        bounds = [rocksdbqueue.unit_key(name, queue_id, at) for at in (start, end - 1)]
        if start >= end:
            return
        for keys, values in self.database.blocks(rocksdbqueue.UNITS, bounds[0], bounds[1] + b"\0"):
            for key, value in zip(keys, values, strict=True):
                if len(value) != rocksdbqueue.UNIT_LENGTH:
                    raise _broken(self.path, f"{topic}:{queue_id}", "unit", rocksdbqueue.UNIT_LENGTH, value)
                yield key, value

    def ends(self) -> Iterator[Queue]:
        """Topic and queueId of all queues that have a last message, by key."""
        for keys, values in self.database.blocks(rocksdbqueue.OFFSETS):
            for key, value in zip(keys, values, strict=True):
                parsed = rocksdbqueue.parse_offset_key(key)
                is_end = parsed is not None and parsed.which == rocksdbqueue.MAX
                if parsed is not None and is_end and len(value) == rocksdbqueue.OFFSET_LENGTH:
                    yield parsed.topic.decode("utf-8", "surrogateescape"), parsed.queue_id


class RocksQueueView:
    """A queue as a broker answers from these keys; the counterpart of :class:`reput.derived.plain.QueueView`.

    Raises:
        StoreError: the database can't be read, or holds what no broker writes.

    Attributes:
        min_offset: queue offset of the first message that is still in the log.
        max_offset: queue offset of the next message.
    """

    unit_length = UNIT_LENGTH  # RocksDBConsumeQueue.getUnitSize: that of files
    holds_batches = False

    def __init__(self, queues: RocksQueues, topic: str, queue_id: int, log_start: int) -> None:
        self._queues = queues
        self._topic, self._queue_id = topic.encode("utf-8", "surrogatepass"), queue_id
        self._log_start = log_start
        last, first = self._end(rocksdbqueue.MAX), self._end(rocksdbqueue.MIN)
        self.exists = last is not None
        self._last = -1 if last is None else last.queue_offset
        self.max_offset = self._last + 1
        self.min_offset = 0 if first is None else first.queue_offset
        if last is not None and (first is None or first.position < log_start):
            self.min_offset = self._corrected_min(last, self.min_offset)

    def roll_next_file(self, queue_offset: int) -> int:  # noqa: ARG002
        """0: there are no files."""
        return 0

    def tags_code(self, stored: int) -> int | None:
        """The tagsCode of a unit: there is no consumequeue_ext for queues in RocksDB."""
        return stored

    def unit(self, queue_offset: int) -> rocksdbqueue.Unit | None:
        """The unit at a queue offset; None without one."""
        key = rocksdbqueue.unit_key(self._topic, self._queue_id, queue_offset)
        value = self._queues.database.get(rocksdbqueue.UNITS, key)
        return None if value is None else self._parsed(value, queue_offset)

    def units_from(self, queue_offset: int, span: int) -> list[Unit] | None:
        """Units from the one at a queue offset on, up to the first one that is missing.

        Args:
            span: how many at most.

        Returns:
            None where there is none at that place.
        """
        stop = min(queue_offset + span, self.max_offset)
        if queue_offset < 0 or queue_offset >= stop:
            return None
        found: list[Unit] = []
        bounds = (
            rocksdbqueue.unit_key(self._topic, self._queue_id, queue_offset),
            rocksdbqueue.unit_key(self._topic, self._queue_id, stop),
        )
        blocks = self._queues.database.blocks(rocksdbqueue.UNITS, *bounds, most=min(span, _BLOCK))
        for keys, values in blocks:
            for key, value in zip(keys, values, strict=True):
                at = queue_offset + len(found)
                if key != rocksdbqueue.unit_key(self._topic, self._queue_id, at):
                    return found or None
                unit = self._parsed(value, at)
                found.append(Unit(at, 1, unit.position, unit.size, unit.tags))
        return found or None

    def offset_by_time(self, _log: Messages, _rules: Queries, timestamp: int, boundary: Boundary) -> int:
        """The queue offset that a broker gives for a time in ms; times are the units' own."""
        low, high, lower = self.min_offset, self._last, boundary is Boundary.LOWER
        if high < 0:
            return 0
        floor, ceiling = low, high
        last, first = self.unit(ceiling), self.unit(floor)
        if last is not None and last.timestamp < timestamp:
            return ceiling + 1 if lower else ceiling
        if first is not None and first.timestamp > timestamp:
            return floor if lower else 0
        left = right = -1
        while high >= low:
            middle = low + (high - low) // 2
            unit = self.unit(middle)
            if unit is None:
                low = middle + 1
            elif unit.position < self._log_start or 0 <= unit.timestamp < timestamp:
                low, left = middle + 1, middle
            elif unit.timestamp < 0:
                return 0
            elif unit.timestamp > timestamp:
                high, right = middle - 1, middle
            else:
                return self._last_equal(middle, timestamp, floor, ceiling, -1 if lower else 1)
        return right if lower else left

    def _last_equal(self, at: int, timestamp: int, floor: int, ceiling: int, step: int) -> int:
        while floor <= at + step <= ceiling:
            unit = self.unit(at + step)
            if unit is None or unit.timestamp != timestamp:
                break
            at += step
        return at

    def _end(self, which: bytes) -> rocksdbqueue.QueueEnd | None:
        key = rocksdbqueue.offset_key(self._topic, self._queue_id, which)
        value = self._queues.database.get(rocksdbqueue.OFFSETS, key)
        if value is None:
            return None
        end = rocksdbqueue.parse_offset(value)
        if end is None:
            raise self._broken(f"{which.decode()} key", rocksdbqueue.OFFSET_LENGTH, value)
        return end

    def _corrected_min(self, last: rocksdbqueue.QueueEnd, least: int) -> int:
        """``correctMinCqOffset``: the first unit whose message is in the log, by halving."""
        if last.position < self._log_start:
            return last.queue_offset + 1
        low, high, found = least, last.queue_offset, -1
        while high >= low:
            middle = low + (high - low) // 2
            unit = self.unit(middle)
            if unit is None or unit.position < self._log_start:
                low = middle + 1
                continue
            found = middle
            if unit.position == self._log_start:
                break
            high = middle - 1
        return least if found < 0 else found

    def _parsed(self, value: bytes, queue_offset: int) -> rocksdbqueue.Unit:
        unit = rocksdbqueue.parse_unit(value)
        if unit is None:
            raise self._broken(f"unit {queue_offset}", rocksdbqueue.UNIT_LENGTH, value)
        return unit

    def _broken(self, what: str, expected: int, value: bytes) -> StoreError:
        queue = f"{self._topic.decode('utf-8', 'replace')}:{self._queue_id}"
        return _broken(self._queues.path, queue, what, expected, value)


def _broken(path: Path, queue: str, what: str, expected: int, value: bytes) -> StoreError:
    return StoreError(
        f"the {what} of queue {queue} in RocksDB isn't one",
        path=path,
        expected=f"{expected} bytes",
        found=f"{len(value)}",
        next_step=COMPARE,
    )
