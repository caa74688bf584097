"""Units of queues and keys of the index in RocksDB, many at once.

Source: see :mod:`reput.format.rocksdbqueue` and :mod:`reput.format.rocksdbindex`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import iter_unpack
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.format import commitlog, properties, rocksdbindex, rocksdbqueue
from reput.format.commitlog import SYS_FLAG, TRANSACTION_MASK, TRANSACTION_ROLLBACK, store_timestamp_at
from reput.format.dtypes import ROCKSDB_UNIT_DTYPE
from reput.scan.fields import property_value, topic_of
from reput.scan.load import i32, i64, u8

# Keys of one block have one length, so that a block is an array of rows: what sorts queues puts those whose
# topics' names are equally long together.


class UnitRows(NamedTuple):
    """Units of several queues."""

    queue: NDArray[np.int64]  # int64[units], which of the block's queues
    offset: NDArray[np.int64]  # offset, position: int64[units], queueOffset, physicalOffset
    position: NDArray[np.int64]
    size: NDArray[np.int32]  # int32[units], bytes
    tags: NDArray[np.int64]  # tags, timestamp: int64[units], tagsCode, storeTimestamp in ms
    timestamp: NDArray[np.int64]


def pack_units(prefixes: Sequence[bytes], rows: UnitRows) -> NDArray[np.uint8]:
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


_UNIQUE = np.frombuffer(properties.UNIQ_KEY + b"\x01", np.uint8)
_KEYS = np.frombuffer(properties.KEYS + b"\x01", np.uint8)
_TAGS = np.frombuffer(properties.TAGS + b"\x01", np.uint8)
_SPLIT, _KEY, _TAG, _UNIQ = (
    each[0] for each in (rocksdbindex.SPLIT, rocksdbindex.KEY, rocksdbindex.TAG, rocksdbindex.UNIQUE)
)
_HOUR = rocksdbindex.MS_AN_HOUR
_SPACE = ord(" ")


class IndexKeys(NamedTuple):
    """Keys of messages, a message's one after the other; one may come twice."""

    text: NDArray[np.uint8]  # uint8[bytes], the keys
    ends: NDArray[np.int64]  # int64[keys], where each ends in ``text``
    timestamp: NDArray[np.int64]  # int64[keys], storeTimestamp of its message in ms

    def texts(self) -> list[bytes]:
        """The keys as bytes."""
        text, ends = self.text.tobytes(), self.ends.tolist()
        return [text[at:end] for at, end in zip([0, *ends][:-1], ends, strict=True)]


def pack_keys(data: NDArray[np.uint8], positions: NDArray[np.int64], base: int) -> IndexKeys:
    """The keys of messages whose whole records begin at ``positions`` in ``data``.

    ``base`` is the physical offset of ``data[0]``.
    """
    nothing = np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    keys, size, bad = _pack(data, positions, base, *nothing, False)
    found = IndexKeys(np.empty(size, np.uint8), np.empty(keys, np.int64), np.empty(keys, np.int64))
    _pack(data, positions, base, *found, True)
    if not len(bad):
        return found
    # Java reads other characters there, and writes these.
    slow = pack_keys_slowly(data, positions[bad], base)
    return IndexKeys(
        np.concatenate([found.text, slow.text]),
        np.concatenate([found.ends, slow.ends + size]),
        np.concatenate([found.timestamp, slow.timestamp]),
    )


def pack_keys_slowly(data: NDArray[np.uint8], positions: NDArray[np.int64], base: int) -> IndexKeys:
    """What :func:`pack` does, one message at a time."""
    keys: list[bytes] = []
    timestamps: list[int] = []
    for position in positions.tolist():
        record = commitlog.decode(data.data, position)
        found = rocksdbindex.keys_of(
            record.topic,
            properties.parse(record.properties),
            record.sys_flag,
            record.store_timestamp,
            base + position,
        )
        keys += found
        timestamps += [record.store_timestamp] * (len(keys) - len(timestamps))
    return IndexKeys(
        np.frombuffer(b"".join(keys), np.uint8),
        np.cumsum([len(key) for key in keys], dtype=np.int64),
        np.array(timestamps, np.int64),
    )


@njit(inline="always")
def _long(out, at, value):  # type: ignore[no-untyped-def]
    for byte in range(8):
        out[at + byte] = np.uint8((value >> (56 - 8 * byte)) & 0xFF)
    return at + 8


@njit(inline="always")
def _copy(out, at, data, start, end):  # type: ignore[no-untyped-def]
    for byte in range(end - start):
        out[at + byte] = u8(data, start + byte)
    return at + end - start


@njit(cache=CACHED, nogil=True)
def _is_utf8(data, at, end):  # type: ignore[no-untyped-def]
    while at < end:
        first = u8(data, at)
        if first < 0x80:
            at += 1
            continue
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if first < 0xC2 or first > 0xF4 or at + more >= end:
            return False
        second = u8(data, at + 1)
        least = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        most = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if second < least or second > most:
            return False
        for byte in range(2, more + 1):
            if u8(data, at + byte) & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


@njit(inline="always")
def _key(out, at, data, hour, topic, topic_end, kind, text, text_end, unique, unique_end, place):  # type: ignore[no-untyped-def]
    at = _long(out, at, hour)
    out[at] = _SPLIT
    at = _copy(out, at + 1, data, topic, topic_end)
    out[at] = _SPLIT
    out[at + 1] = kind
    out[at + 2] = _SPLIT
    at += 3
    if text_end > text:
        at = _copy(out, at, data, text, text_end)
        out[at] = _SPLIT
        at += 1
    at = _copy(out, at, data, unique, unique_end)
    out[at] = _SPLIT
    return _long(out, at + 1, place)


@njit(cache=CACHED, nogil=True)
def _pack(data, positions, base, out, ends, timestamps, writes):  # type: ignore[no-untyped-def]
    bad = np.empty(len(positions), np.int64)
    keys = size = odd = np.int64(0)
    for row in range(len(positions)):
        position = positions[row]
        sys_flag = i32(data, position + SYS_FLAG)
        timestamp = i64(data, position + store_timestamp_at(sys_flag))
        hour = timestamp // _HOUR * _HOUR
        if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK or timestamp < _HOUR:
            continue
        topic, topic_end = topic_of(data, position, sys_flag)
        at = topic_end + 2
        end = position + np.int64(i32(data, position))
        unique, unique_end = property_value(data, at, end, _UNIQUE)
        if unique_end == unique or topic_end == topic:
            continue
        words, words_end = property_value(data, at, end, _KEYS)
        tags, tags_end = property_value(data, at, end, _TAGS)
        if not (
            _is_utf8(data, topic, topic_end)
            and _is_utf8(data, unique, unique_end)
            and _is_utf8(data, words, words_end)
            and _is_utf8(data, tags, tags_end)
        ):
            bad[odd] = row
            odd += 1
            continue
        fixed = 8 + 1 + topic_end - topic + 3 + unique_end - unique + 1 + 8
        place = base + position
        word = words
        while word < words_end:
            word_end = word
            while word_end < words_end and u8(data, word_end) != _SPACE:
                word_end += 1
            if word_end > word:
                if writes:
                    _key(
                        out, size, data, hour, topic, topic_end, _KEY, word, word_end, unique, unique_end,
                        place,
                    )  # fmt: skip
                    ends[keys] = size + fixed + word_end - word + 1
                    timestamps[keys] = timestamp
                size += fixed + word_end - word + 1
                keys += 1
            word = word_end + 1
        if tags_end > tags:
            if writes:
                _key(out, size, data, hour, topic, topic_end, _TAG, tags, tags_end, unique, unique_end, place)
                ends[keys] = size + fixed + tags_end - tags + 1
                timestamps[keys] = timestamp
            size += fixed + tags_end - tags + 1
            keys += 1
        if writes:
            _key(out, size, data, hour, topic, topic_end, _UNIQ, 0, 0, unique, unique_end, place)
            ends[keys] = size + fixed
            timestamps[keys] = timestamp
        size += fixed
        keys += 1
    return keys, size, bad[:odd]
