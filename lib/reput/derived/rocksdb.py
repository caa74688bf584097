"""Queues in RocksDB: as a broker answers from them, and as they stand there.

Source: ``RocksDBConsumeQueueOffsetTable.getMinCqOffset``, ``correctMinCqOffset``,
``RocksDBConsumeQueueTable.rangeQuery``, ``binarySearchInCQ``, ``binarySearchInCQByTime``,
``RocksDBConsumeQueueStore`` (rocketmq-all-5.3.3). A broker corrects a queue's min offset when it is asked
for it; here it is only computed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.config.dialect import Queries
from reput.config.settings import StoreSettings
from reput.derived.plain import Unit
from reput.derived.times import Boundary, Messages
from reput.errors import StoreError
from reput.format import commitlog, names, rocksdbindex, rocksdbqueue
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.dtypes import ROCKSDB_UNIT_DTYPE
from reput.format.names import Queue, QueueBytes
from reput.format.rocksdbqueue import OFFSETS, UNITS
from reput.rocksdb import Database, is_database, opened, stamp
from reput.rocksdb.reader import BLOCK, COPY
from reput.store.listing import names_seen

#: Units that are read at once.
_BLOCK = 1024
Blocks = Iterator[tuple[Sequence[bytes], Sequence[bytes]]]
COMPARE = "Let reput compare it with the log, or derive it again"


class KeptOpen:
    """A database that stays open for several questions, until nobody has this any more."""

    def __init__(self, opening: AbstractContextManager[Database]) -> None:
        stack = ExitStack()
        self.database: Database = stack.enter_context(opening)
        weakref.finalize(self, stack.close)  # at the end of the process, too


# --- a database that is open ----------------------------------------------------------------------------

_LONG_MAX = (1 << 63) - 1


def open_queues(directory: Path) -> AbstractContextManager[Database]:
    """A database, opened as one of queues."""
    return opened(directory, required=(UNITS, OFFSETS), known=(UNITS, OFFSETS))


def open_index(directory: Path) -> AbstractContextManager[Database]:
    """A database, opened as one of an index."""
    return opened(directory, required=(rocksdbindex.ENTRIES,), known=rocksdbindex.FAMILIES)


class Stored(NamedTuple):
    """An entry of the column family of ends; the checkpoint isn't one."""

    text: bytes  # the key
    key: rocksdbqueue.OffsetKey | None  # what it is of; None for what no broker writes
    end: rocksdbqueue.QueueEnd | None  # None for a value of another length
    value: bytes

    @property
    def queue(self) -> QueueBytes | None:
        """The queue whose last message this is; None where it is something else, or broken."""
        if self.key is None or self.end is None or self.key.which != rocksdbqueue.MAX:
            return None
        return self.key.topic, self.key.queue_id


def stored_ends(database: Database, start: bytes = b"", stop: bytes | None = None) -> Iterator[Stored]:
    """The ends of queues whose keys are in [start, stop), by key."""
    for keys, values in database.blocks(OFFSETS, start, stop):
        for text, value in zip(keys, values, strict=True):
            if text != rocksdbqueue.CHECKPOINT_KEY:
                of, end = rocksdbqueue.parse_offset_key(text), rocksdbqueue.parse_offset(value)
                yield Stored(text, of, end, value)


@dataclass(slots=True)
class QueueKeys:
    """The keys of a queue's ends; None where there is none."""

    last: rocksdbqueue.QueueEnd | None = None
    first: rocksdbqueue.QueueEnd | None = None


@dataclass(slots=True)
class KeptQueues:
    """Queues in RocksDB, as they are kept."""

    directory: Path  # the database; it may not be there
    exists: bool = False  # it is there, and opens
    checkpoint: int | None = None  # its checkpoint key; None without one
    ends: dict[Queue, QueueKeys] = field(default_factory=dict)  # by queue, for those that have such a key
    units: int = 0  # about how many units it has


def read_kept(directory: Path) -> KeptQueues:
    """The ends of the queues of a database."""
    found = KeptQueues(directory, exists=True)
    with open_queues(directory) as db:
        found.units = db.estimate(UNITS)
        mark = db.get(OFFSETS, rocksdbqueue.CHECKPOINT_KEY)
        found.checkpoint = None if mark is None else rocksdbqueue.parse_checkpoint(mark)
        if mark is not None and found.checkpoint is None:
            raise _broken_value(
                directory, rocksdbqueue.CHECKPOINT_KEY, f"{rocksdbqueue.CHECKPOINT_LENGTH} bytes", mark
            )
        for name, key, end, value in stored_ends(db):
            if key is None:
                continue  # a broker passes over it, too
            if end is None:
                raise _broken_value(directory, name, f"{rocksdbqueue.OFFSET_LENGTH} bytes", value)
            ends = found.ends.setdefault((key.topic.decode("utf-8", "replace"), key.queue_id), QueueKeys())
            if key.which == rocksdbqueue.MAX:
                ends.last = end
            else:
                ends.first = end
    return found


def _broken_value(directory: Path, name: bytes, expected: str, value: bytes) -> StoreError:
    return StoreError(
        f"a value of this RocksDB is broken, that of {name[:80].hex()}",
        path=directory,
        expected=expected,
        found=f"{len(value)} bytes",
        next_step=COPY,
    )


def queues_with_units(database: Database) -> Iterator[QueueBytes]:
    """The queues that have a unit, by key."""
    at = database.first(UNITS, b"")
    while at is not None:
        place = rocksdbqueue.parse_unit_key(at[0])
        if place is not None:
            yield place.topic, place.queue_id
        at = database.first(UNITS, at[0] + b"\0" if place is None else rocksdbqueue.after(*place[:2]))


def extent(database: Database, topic: bytes, queue_id: int) -> tuple[int, int] | None:
    """The first queueOffset of a queue, and that after its last one; None without a unit."""
    low, high = (rocksdbqueue.unit_key(topic, queue_id, at) for at in (0, _LONG_MAX))
    first, last = database.first(UNITS, low, high), database.last(UNITS, high)
    if first is None or last is None:
        return None
    return int.from_bytes(first[0][-8:], "big"), int.from_bytes(last[0][-8:], "big") + 1


def key_blocks(
    database: Database, topic: bytes, queue_id: int, start: int, end: int, most: int = BLOCK
) -> Blocks:
    """Keys and values of a queue's units of the queueOffsets [start, end), in order, many at once."""
    if start < end:
        low = rocksdbqueue.unit_key(topic, queue_id, min(start, _LONG_MAX))
        is_all = end > _LONG_MAX
        high = rocksdbqueue.after(topic, queue_id) if is_all else rocksdbqueue.unit_key(topic, queue_id, end)
        yield from database.blocks(UNITS, low, high, most=most)


def as_units(
    topic: bytes, keys: Sequence[bytes], values: Sequence[bytes]
) -> tuple[NDArray[np.int64], NDArray[np.void]] | None:
    """QueueOffsets, int64[units], and ROCKSDB_UNIT_DTYPE[units] of one queue; None where one is no unit."""
    width = {rocksdbqueue.UNIT_KEY_LENGTH + len(topic)}
    if set(map(len, keys)) != width or set(map(len, values)) != {rocksdbqueue.UNIT_LENGTH}:
        return None
    offsets = np.frombuffer(b"".join(key[-8:] for key in keys), ">i8").astype(np.int64)
    return offsets, np.frombuffer(b"".join(values), ROCKSDB_UNIT_DTYPE)


def searched(
    position_of: Callable[[int], int | None], low: int, high: int, target: int, *, least: bool
) -> rocksdbqueue.QueueEnd | None:
    """``binarySearchInCQ``: as the broker searches, which is wrong where a unit is missing.

    It also is where it comes by just the unit that it isn't to take: it ends with the one that it had come by
    before, which may lie further off.
    """
    result: rocksdbqueue.QueueEnd | None = None
    while high >= low:
        middle = low + ((high - low) >> 1)
        position = position_of(middle)
        if position is None:
            low = middle + 1
        elif position == target:
            return rocksdbqueue.QueueEnd(position, middle) if least else result
        elif position > target:
            high = middle - 1
            result = rocksdbqueue.QueueEnd(position, middle) if least else result
        else:
            low = middle + 1
            result = result if least else rocksdbqueue.QueueEnd(position, middle)
    return result


@lru_cache(maxsize=1)
def _kept(directory: Path, _stamp: object) -> KeptOpen:
    return KeptOpen(open_queues(directory))


def kept_open(directory: Path) -> Database:
    """A database as it is now, which stays open until another one is asked for."""
    return _kept(directory, stamp(directory)).database


# --- the queues of a store ------------------------------------------------------------------------------


def is_read_from(settings: StoreSettings, topic: str) -> bool:
    """Whether a topic's queues are read from RocksDB: where files have them as well, files come first."""
    if not settings.rocksdb.files:
        return True
    is_light = settings.rocksdb.lmq and topic.startswith(commitlog.LMQ_PREFIX.decode())
    return is_light and not names_seen(settings.root / names.CONSUME_QUEUE / topic)


def database_of(settings: StoreSettings) -> Path | None:
    """The database of the queues of a store; None where all are in files."""
    name = settings.rocksdb.queues
    path = None if name is None else settings.root / name
    return path if path is not None and is_database(path) else None


def queues_in_rocksdb(settings: StoreSettings) -> RocksQueues | None:
    """The queues in RocksDB; None where all are in files."""
    path = database_of(settings)
    return None if path is None else RocksQueues(settings, path)


class RocksQueues:
    """The queues of a store in RocksDB."""

    def __init__(self, settings: StoreSettings, path: Path) -> None:
        self.path = path
        self._settings = settings
        self._kept = KeptOpen(open_queues(path))
        self._is_read: dict[str, bool] = {}

    @property
    def database(self) -> Database:
        """The database."""
        return self._kept.database

    def reads(self, topic: str) -> bool:
        """Whether a topic's queues are read from here: not where files have them as well."""
        if topic not in self._is_read:
            self._is_read[topic] = is_read_from(self._settings, topic)
        return self._is_read[topic]

    def view(self, topic: str, queue_id: int, log_start: int) -> RocksQueueView:
        """A queue, which may have no keys."""
        return RocksQueueView(self, topic, queue_id, log_start)

    def ids(self, topic: str) -> tuple[int, ...]:
        """Queue ids of a topic that have a last message, in order."""
        name = topic.encode("utf-8", "surrogatepass")
        start = rocksdbqueue.offset_key(name, 0, rocksdbqueue.MAX)
        stop = rocksdbqueue.offset_key(name, -1, rocksdbqueue.MAX) + b"\0"
        found = stored_ends(self.database, start, stop)
        return tuple(sorted(one.key.queue_id for one in found if one.key is not None and one.end is not None))

    def read(self) -> Iterator[Queue]:
        """Those of :meth:`ends` that are read from here."""
        yield from (queue for queue in self.ends() if self.reads(queue[0]) and queue[1] >= 0)

    def values(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the units of [start, end), in order; queueOffsets without one are left out."""
        name = topic.encode("utf-8", "surrogatepass")
        for keys, values in key_blocks(self.database, name, queue_id, start, end):
            for key, value in zip(keys, values, strict=True):
                if len(value) != rocksdbqueue.UNIT_LENGTH:
                    raise _broken(self.path, f"{topic}:{queue_id}", "unit", rocksdbqueue.UNIT_LENGTH, value)
                yield key, value

    def ends(self) -> Iterator[Queue]:
        """Topic and queueId of all queues that have a last message, by key."""
        for one in stored_ends(self.database):
            if one.queue is not None:
                yield one.queue[0].decode("utf-8", "surrogateescape"), one.queue[1]


class RocksQueueView:
    """A queue as a broker answers from these keys; the counterpart of :class:`reput.derived.plain.QueueView`.

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
        value = self._queues.database.get(UNITS, key)
        return None if value is None else self._parsed(value, queue_offset)

    def units_from(self, queue_offset: int, span: int) -> list[Unit] | None:
        """At most ``span`` units from a queue offset on, up to the first that is missing; None for none."""
        stop = min(queue_offset + span, self.max_offset)
        if queue_offset < 0 or queue_offset >= stop:
            return None
        found: list[Unit] = []
        queue = self._topic, self._queue_id
        blocks = key_blocks(self._queues.database, *queue, queue_offset, stop, min(span, _BLOCK))
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

    def last(self) -> tuple[int, int] | None:
        """Of its last message where it ends, a physical offset, and its storeTimestamp, ms."""
        unit = self.unit(self._last)
        return None if unit is None else (unit.position + unit.size, unit.timestamp)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes that a file would have of the units of [start, end), without those that are missing."""
        topic = self._topic.decode("utf-8", "surrogatepass")
        for _, value in self._queues.values(topic, self._queue_id, start, end):
            yield value[:UNIT_LENGTH]  # the storeTimestamp stands behind it

    def _end(self, which: bytes) -> rocksdbqueue.QueueEnd | None:
        key = rocksdbqueue.offset_key(self._topic, self._queue_id, which)
        value = self._queues.database.get(OFFSETS, key)
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
        found = searched(self._position, least, last.queue_offset, self._log_start, least=True)
        return least if found is None else found.queue_offset

    def _position(self, queue_offset: int) -> int | None:
        unit = self.unit(queue_offset)
        return None if unit is None else unit.position

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
