"""The entries of an index in RocksDB: which hours can hold what a query wants, and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import indexfile, javastring, names, rocksdbindex
from reput.rocksdb import CURRENT, is_database, opened
from reput.source import arrow
from reput.source.columns import INDEX_COLUMNS, arrow_schema
from reput.source.filters import ALL, Wanted
from reput.source.queue_files import CURRENT_LENGTH
from reput.source.ranges import ReadStatistics

_LAST_HOUR = (1 << 63) - 1
#: What an entry of a file has, and one of RocksDB doesn't.
_OF_FILES = frozenset({"ordinal", "slot", "keyHash", "previous"})


@dataclass(frozen=True, slots=True)
class HourRange:
    """The entries of some hours."""

    path: str  # the database's CURRENT
    store: str  # the store's directory
    first: int  # first, last: hours, ms, half open
    last: int
    weight: int  # bytes, as far as the database knows

    @property
    def span(self) -> tuple[int, int]:
        """The bytes of CURRENT that tell one state from another."""
        return 0, CURRENT_LENGTH


def ranges(settings: StoreSettings, wanted: Wanted) -> Iterator[HourRange]:
    """The hours of a store's index in RocksDB that can be wanted; none where it has files alone.

    Raises:
        StoreError: the database can't be read.
        UnsupportedError: what reads RocksDB isn't installed, or can't read this one.
    """
    path = settings.root / names.ROCKSDB_STORE
    if not settings.rocksdb.index or not is_database(path) or wanted.columns & _OF_FILES:
        return
    if not wanted.wants_text("file", names.ROCKSDB_STORE):
        return
    low, high = _hours(wanted)
    with opened(path, required=(rocksdbindex.ENTRIES,), known=rocksdbindex.FAMILIES) as db:
        found = []
        at = db.first(rocksdbindex.ENTRIES, rocksdbindex.value(low))
        while at is not None and (entry := rocksdbindex.parse_key(at[0])) is not None and entry.hour <= high:
            found.append(entry.hour)
            if entry.hour == _LAST_HOUR:
                break
            at = db.first(rocksdbindex.ENTRIES, rocksdbindex.value(entry.hour + 1))
        weight = db.estimate(rocksdbindex.ENTRIES) * indexfile.ENTRY_LENGTH // max(len(found), 1)
    for hour in found:
        yield HourRange(str(path / CURRENT), settings.place, hour, hour + 1, weight)


def _hours(wanted: Wanted) -> tuple[int, int]:
    """The first and the last hour that can be wanted, ms."""
    times = wanted.range_of("storeTimestamp")
    if times == ALL:
        return 0, _LAST_HOUR
    span = times.clip(0, _LAST_HOUR)
    return (1, 0) if span is None else (rocksdbindex.hour_of(span[0]), rocksdbindex.hour_of(span[1]))


def read(
    part: HourRange, columns: tuple[str, ...], wanted: Wanted, reads: ReadStatistics
) -> Iterator[pa.RecordBatch]:
    """The wanted entries of some hours, by key.

    Raises:
        StoreError: the database can't be read, or has an entry that is none.
    """
    schema = arrow_schema(columns, INDEX_COLUMNS)
    path = Path(part.path).parent
    bounds = rocksdbindex.value(part.first), rocksdbindex.value(part.last)
    with opened(path, required=(rocksdbindex.ENTRIES,), known=rocksdbindex.FAMILIES) as db:
        reads.files += 1
        for keys, values in db.blocks(rocksdbindex.ENTRIES, *bounds):
            reads.read += sum(map(len, values)) + sum(map(len, keys))
            if {len(value) for value in values} != {rocksdbindex.VALUE_LENGTH}:
                raise _no_entry(
                    path, next(key for key, one in zip(keys, values, strict=True) if len(one) != 8)
                )
            times = np.frombuffer(b"".join(values), ">i8").astype(np.int64)
            places = np.frombuffer(b"".join(key[-8:].rjust(8, b"\0") for key in keys), ">i8").astype(np.int64)
            which = np.ones(len(keys), np.bool_)
            if "physicalOffset" in wanted.columns:
                which &= wanted.range_of("physicalOffset").holds(places)
            if "storeTimestamp" in wanted.columns:
                which &= wanted.range_of("storeTimestamp").holds(times) & arrow.are_timestamps(times)
            rows = np.flatnonzero(which)
            if len(rows):
                reads.rows += len(rows)
                chosen = [keys[row] for row in rows.tolist()]
                texts = _texts(path, chosen) if {"topic", "kind", "key", "uniqKey"} & {*columns} else {}
                arrays = []
                for name in columns:
                    if name in texts:
                        arrays.append(pa.array(texts[name], pa.string()))
                    elif name == "store":
                        arrays.append(arrow.repeated(part.store, len(rows)))
                    elif name == "file":
                        arrays.append(arrow.repeated(names.ROCKSDB_STORE, len(rows)))
                    elif name == "physicalOffset":
                        arrays.append(arrow.numbers(places[rows]))
                    elif name == "storeTimestamp":
                        arrays.append(arrow.timestamps(times[rows]))
                    else:
                        arrays.append(pa.nulls(len(rows), pa.int32()))
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _texts(path: Path, keys: list[bytes]) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {"topic": [], "kind": [], "key": [], "uniqKey": []}
    for key in keys:
        entry = rocksdbindex.parse_key(key)
        words = None if entry is None else rocksdbindex.words_of(entry.middle)
        if words is None:
            raise _no_entry(path, key)
        for name, word in zip(found, words, strict=True):
            found[name].append(None if word is None else javastring.decode(word))
    return found


def _no_entry(path: Path, key: bytes) -> StoreError:
    return StoreError(
        "an entry of the index in RocksDB isn't one",
        path=path,
        expected="an hour, a key and a physical offset, with a time of 8 bytes",
        found=f"the key {key[:80].hex()}",
        next_step="`reput dump index` shows which; badStores=skip reads the other stores",
    )
