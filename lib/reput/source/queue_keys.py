"""The units of consume queues in RocksDB: which queues can hold what a query wants, and their units."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import commitlog, names, rocksdbqueue
from reput.format.dtypes import ROCKSDB_UNIT_DTYPE
from reput.format.names import QueueBytes
from reput.rocksdb import CURRENT, Database, is_database, opened
from reput.source.filters import Wanted
from reput.source.queue_files import UnitRange
from reput.source.ranges import ReadStatistics
from reput.store.listing import names_seen

_FAMILIES = (rocksdbqueue.UNITS, rocksdbqueue.OFFSETS)
_LAST = (1 << 63) - 1


def ranges(settings: StoreSettings, wanted: Wanted, part_bytes: int) -> Iterator[UnitRange]:
    """The units of a store that can be wanted, by the order of their keys; none where queues are in files.

    Args:
        part_bytes: no range has more bytes of values.

    Raises:
        StoreError: the database can't be read.
        UnsupportedError: what reads RocksDB isn't installed, or can't read this one.
    """
    if settings.rocksdb.queues is None:
        return
    path = settings.root / settings.rocksdb.queues
    if not is_database(path):
        return
    most = max(part_bytes // rocksdbqueue.UNIT_LENGTH, 1)
    with opened(path, required=_FAMILIES, known=_FAMILIES) as db:
        for topic, queue_id in _queues(db):
            text = topic.decode("utf-8", "replace")
            if not wanted.wants_text("topic", text) or not _is_read(settings, text):
                continue
            if wanted.range_of("queueId").clip(queue_id, queue_id) is None:
                continue
            span = _extent(db, topic, queue_id)
            span = span and wanted.range_of("queueOffset").clip(*span)
            if span is None:
                continue
            for first in range(span[0], span[1] + 1, most):
                last = min(first + most, span[1] + 1)
                yield UnitRange(
                    path=str(path / CURRENT),
                    store=settings.place,
                    topic=text,
                    queue_id=queue_id,
                    is_batch=False,
                    base=0,
                    first=first,
                    last=last,
                    goes_on=False,
                    ext=None,
                    weight=(last - first) * rocksdbqueue.UNIT_LENGTH,
                    database=str(path),
                )


def read(part: UnitRange, reads: ReadStatistics) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
    """The queueOffsets of a range's units, int64[units], and the units, ROCKSDB_UNIT_DTYPE[units].

    Raises:
        StoreError: the database can't be read, or has a unit that is none.
    """
    path = Path(part.database or "")
    topic = part.topic.encode("utf-8", "surrogateescape")
    bounds = [rocksdbqueue.unit_key(topic, part.queue_id, at) for at in (part.first, part.last - 1)]
    with opened(path, required=_FAMILIES, known=_FAMILIES) as db:
        reads.files += 1
        for keys, values in db.blocks(rocksdbqueue.UNITS, bounds[0], bounds[1] + b"\0"):
            data = b"".join(values)
            reads.read += len(data)
            lengths = set(map(len, values)) | {len(key) - len(bounds[0]) for key in keys}
            if lengths != {0, rocksdbqueue.UNIT_LENGTH}:
                raise _no_units(
                    path, part, max(values, key=lambda one: abs(len(one) - ROCKSDB_UNIT_DTYPE.itemsize))
                )
            # Keys of one queue have one length, and end in the queueOffset.
            offsets = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)[:, -8:]
            yield (
                offsets.copy().view(">i8")[:, 0].astype(np.int64),
                np.frombuffer(data, ROCKSDB_UNIT_DTYPE),
            )


def _queues(db: Database) -> Iterator[QueueBytes]:
    """The queues that have a unit, by key."""
    at = db.first(rocksdbqueue.UNITS, b"")
    while at is not None:
        place = rocksdbqueue.parse_unit_key(at[0])
        if place is None:
            at = db.first(rocksdbqueue.UNITS, at[0] + b"\0")
            continue
        if place.queue_id >= 0:
            yield place.topic, place.queue_id
        after = rocksdbqueue.prefix(place.topic, place.queue_id)[:-1] + rocksdbqueue.CTRL_2
        at = db.first(rocksdbqueue.UNITS, after)


def _extent(db: Database, topic: bytes, queue_id: int) -> tuple[int, int] | None:
    """The first and the last queueOffset of a queue."""
    low, high = (rocksdbqueue.unit_key(topic, queue_id, at) for at in (0, _LAST))
    first, last = db.first(rocksdbqueue.UNITS, low, high), db.last(rocksdbqueue.UNITS, high)
    if first is None or last is None:
        return None
    return int.from_bytes(first[0][-8:], "big"), int.from_bytes(last[0][-8:], "big")


def _is_read(settings: StoreSettings, topic: str) -> bool:
    """Whether a topic is read from here: where files have it as well, these are read."""
    if not settings.rocksdb.files:
        return True
    is_light = topic.startswith(commitlog.LMQ_PREFIX.decode())
    return is_light and not names_seen(settings.root / names.CONSUME_QUEUE / topic)


def _no_units(path: Path, part: UnitRange, value: bytes) -> StoreError:
    return StoreError(
        "a key or a value of these units in RocksDB isn't a unit's",
        path=path,
        expected=f"values of {rocksdbqueue.UNIT_LENGTH} bytes, for {part.topic}:{part.queue_id}",
        found=f"{len(value)} bytes",
        next_step="`reput dump consumequeue` shows which; badStores=skip reads the other stores",
    )
