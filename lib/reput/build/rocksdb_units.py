"""Units of queues in RocksDB, many at once, and back; see :mod:`reput.format.rocksdbqueue`.

Keys of one block have one length, so that a block is an array of rows: what sorts queues puts those whose
topics' names are equally long together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import iter_unpack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format import rocksdbqueue
from reput.format.dtypes import ROCKSDB_UNIT_DTYPE


class UnitRows(NamedTuple):
    """Units of several queues."""

    queue: NDArray[np.int64]  # int64[units], which of the block's queues
    offset: NDArray[np.int64]  # offset, position: int64[units], queueOffset, physicalOffset
    position: NDArray[np.int64]
    size: NDArray[np.int32]  # int32[units], bytes
    tags: NDArray[np.int64]  # tags, timestamp: int64[units], tagsCode, storeTimestamp in ms
    timestamp: NDArray[np.int64]


def pack(prefixes: Sequence[bytes], rows: UnitRows) -> NDArray[np.uint8]:
    """Keys and values one after the other, uint8[units, key + value].

    The keys of each queue begin with its prefix, all of one length; at least one is given.
    """
    width = len(prefixes[0])
    row = np.dtype([("prefix", np.uint8, width), ("offset", ">i8"), *ROCKSDB_UNIT_DTYPE.descr])
    packed = np.empty(len(rows.queue), row)
    packed["prefix"] = np.frombuffer(b"".join(prefixes), np.uint8).reshape(-1, width)[rows.queue]
    for name, column in rows._asdict().items():
        if name != "queue":
            packed[name] = column
    return packed.view(np.uint8).reshape(len(packed), row.itemsize)


def pairs(block: NDArray[np.uint8]) -> Iterator[tuple[Any, ...]]:
    """(key, value) of each row of a block of units, as bytes."""
    key = block.shape[1] - rocksdbqueue.UNIT_LENGTH
    return iter_unpack(f"{key}s{rocksdbqueue.UNIT_LENGTH}s", block.reshape(-1))  # type: ignore[arg-type]


def unpack(block: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], UnitRows]:
    """The prefixes of a block's rows, uint8[units, prefix], and their units; ``queue`` is all zeros."""
    width = block.shape[1] - 8 - rocksdbqueue.UNIT_LENGTH
    row = np.dtype([("prefix", np.uint8, width), ("offset", ">i8"), *ROCKSDB_UNIT_DTYPE.descr])
    given = np.ascontiguousarray(block).reshape(-1).view(row)
    fields = [(name, np.int32 if name == "size" else np.int64) for name in UnitRows._fields[1:]]
    columns: list[NDArray[Any]] = [given[name].astype(kind) for name, kind in fields]
    return given["prefix"], UnitRows(np.zeros(len(given), np.int64), *columns)
