"""The units of consume queues in RocksDB: which queues can hold what a query wants, and their units."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.derived.rocksdb import (
    as_units,
    database_of,
    extent,
    is_read_from,
    key_blocks,
    open_queues,
    queues_with_units,
)
from reput.errors import StoreError
from reput.format import rocksdbqueue
from reput.format.dtypes import ROCKSDB_UNIT_DTYPE
from reput.rocksdb import CURRENT
from reput.source.filters import Wanted
from reput.source.queue_files import UnitRange
from reput.source.ranges import ReadStatistics


def ranges(settings: StoreSettings, wanted: Wanted, part_bytes: int) -> Iterator[UnitRange]:
    """The units of a store that can be wanted, by the order of their keys; none where queues are in files.

    Args:
        part_bytes: no range has more bytes of values.

    Raises:
        StoreError: the database can't be read.
        UnsupportedError: what reads RocksDB isn't installed, or can't read this one.
    """
    path = database_of(settings)
    if path is None:
        return
    most = max(part_bytes // rocksdbqueue.UNIT_LENGTH, 1)
    with open_queues(path) as db:
        for topic, queue_id in queues_with_units(db):
            text = topic.decode("utf-8", "replace")
            if queue_id < 0 or not wanted.wants_text("topic", text) or not is_read_from(settings, text):
                continue
            if wanted.range_of("queueId").clip(queue_id, queue_id) is None:
                continue
            span = extent(db, topic, queue_id)
            span = span and wanted.range_of("queueOffset").clip(span[0], span[1] - 1)
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
    with open_queues(path) as db:
        reads.files += 1
        for keys, values in key_blocks(db, topic, part.queue_id, part.first, part.last):
            reads.read += sum(map(len, values))
            found = as_units(topic, keys, values)
            if found is None:
                raise _no_units(
                    path, part, max(values, key=lambda one: abs(len(one) - ROCKSDB_UNIT_DTYPE.itemsize))
                )
            yield found


def _no_units(path: Path, part: UnitRange, value: bytes) -> StoreError:
    return StoreError(
        "a key or a value of these units in RocksDB isn't a unit's",
        path=path,
        expected=f"values of {rocksdbqueue.UNIT_LENGTH} bytes, for {part.topic}:{part.queue_id}",
        found=f"{len(value)} bytes",
        next_step="`reput dump consumequeue` shows which; badStores=skip reads the other stores",
    )
