"""The units of queues in RocksDB, as their keys have them.

A hole is no damage here: a batch has one unit, at its first message's place, and only the log tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from reput.derived.rocksdb import KeptOpen
from reput.dump.places import QueuePlace
from reput.dump.queueevents import Event, QueueUnit, damage
from reput.format import rocksdbqueue
from reput.rocksdb import Database, stamp


def queues(database: Path) -> Iterator[QueuePlace]:
    """The queues of a database that have units, by key.

    Raises:
        StoreError: it can't be read, or is another one.
        UnsupportedError: what reads RocksDB isn't installed, or can't read this one.
    """
    db = _open(database)
    at = db.first(rocksdbqueue.UNITS, b"")
    while at is not None:
        place = rocksdbqueue.parse_unit_key(at[0])
        if place is None:
            at = db.first(rocksdbqueue.UNITS, at[0] + b"\0")
            continue
        topic = place.topic.decode("utf-8", "surrogateescape")
        yield QueuePlace(topic, place.queue_id, (), False, None, database)
        at = db.first(rocksdbqueue.UNITS, _after(place.topic, place.queue_id))


def dump(place: QueuePlace, database: Path, start: int, end: int) -> Iterator[Event]:
    """The units of a queue, and values that are none.

    Args:
        database: the queue's.
        start, end: queueOffsets, half open.
    """
    for keys, values in _open(database).blocks(rocksdbqueue.UNITS, *_range(place, start, end)):
        for key, value in zip(keys, values, strict=True):
            at, unit = rocksdbqueue.parse_unit_key(key), rocksdbqueue.parse_unit(value)
            if at is None or unit is None:
                yield damage(
                    place,
                    "bad-value",
                    database,
                    0,
                    0,
                    expected=f"a unit of {rocksdbqueue.UNIT_LENGTH} bytes",
                    found=f"{len(value)} bytes under the key {key.hex()}",
                    outcome="a broker fails on it",
                    queue_offsets=None if at is None else (at.queue_offset, at.queue_offset + 1),
                )
                continue
            fields = (unit.position, unit.size, unit.tags)
            yield QueueUnit(place, at.queue_offset, *fields, stored=unit.timestamp)


def extent(place: QueuePlace, database: Path) -> tuple[int, int] | None:
    """The queueOffsets of a queue's units, half open; None without one."""
    db = _open(database)
    low, high = _range(place, 0, 1 << 63)
    first, last = db.first(rocksdbqueue.UNITS, low, high), db.last(rocksdbqueue.UNITS, high)
    if first is None or last is None:
        return None
    ends = [rocksdbqueue.parse_unit_key(key) for key, _ in (first, last)]
    return None if None in ends else (ends[0].queue_offset, ends[1].queue_offset + 1)  # type: ignore[union-attr]


def _range(place: QueuePlace, start: int, end: int) -> tuple[bytes, bytes]:
    topic = (place.topic or "").encode("utf-8", "surrogateescape")
    queue_id = place.queue_id or 0
    high = _after(topic, queue_id) if end >= 1 << 63 else rocksdbqueue.unit_key(topic, queue_id, end)
    return rocksdbqueue.unit_key(topic, queue_id, min(start, (1 << 63) - 1)), high


def _after(topic: bytes, queue_id: int) -> bytes:
    """Past every key of a queue."""
    return rocksdbqueue.prefix(topic, queue_id)[:-1] + rocksdbqueue.CTRL_2


def _open(database: Path) -> Database:
    return _kept(database, stamp(database)).database


@lru_cache(maxsize=1)
def _kept(database: Path, _stamp: object) -> KeptOpen:
    return KeptOpen(database, (rocksdbqueue.UNITS, rocksdbqueue.OFFSETS))
