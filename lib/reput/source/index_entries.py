"""The entries of an index, in files or in RocksDB: which can hold what a query wants, and their rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.derived.index import IndexFile, index_files
from reput.derived.rocksdb import open_index
from reput.errors import StoreError
from reput.format import indexfile, javastring, names, rocksdbindex
from reput.format.dtypes import ENTRY_DTYPE
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, HEADER_LENGTH, IndexHeader
from reput.rocksdb import CURRENT, is_database
from reput.source import arrow
from reput.source.columns import INDEX_COLUMNS, arrow_schema
from reput.source.filters import ALL, Wanted
from reput.source.queue_units import CURRENT_LENGTH
from reput.source.ranges import ReadStatistics, check_whole, opened, stretches
from reput.store.reading import check_store

_ENTRY = ENTRY_DTYPE
_MS = 1000
_WHAT = "an index file"


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Some entries of one file."""

    path: str
    store: str  # the store's directory
    slots: int  # how many the file has
    begin_timestamp: int  # the header's, ms
    first: int  # first, last: half-open range of ordinals
    last: int

    @property
    def span(self) -> tuple[int, int]:
        """The entries' bytes in the file, half open."""
        return indexfile.file_length(self.slots, self.first), indexfile.file_length(self.slots, self.last)

    @property
    def weight(self) -> int:
        """Bytes of the entries."""
        return (self.last - self.first) * ENTRY_LENGTH

    def rows(
        self, columns: tuple[str, ...], wanted: Wanted, reads: ReadStatistics
    ) -> Iterator[pa.RecordBatch]:
        """The wanted entries."""
        return _of_file(self, columns, wanted, reads)


def ranges(
    settings: StoreSettings, wanted: Wanted, slack_ms: int, part_bytes: int, reads: ReadStatistics
) -> Iterator[EntryRange]:
    """The entries of a store that can be wanted, by the files' names and headers.

    Args:
        slack_ms: how far entries may be older or newer than what a header says.
        part_bytes: no range has more bytes.
    """
    check_store(settings.root, expected="a directory with index/", next_step="Check the path")
    if wanted.is_nothing or not wanted.wants_text("store", settings.place):
        return
    most = max(part_bytes // ENTRY_LENGTH, 1)
    for file in index_files(settings):
        if not wanted.wants_text("file", Path(file.path).name):
            continue
        check_whole("index", file.path, file.length, file.full_length)
        with opened(file.path, _WHAT, reads) as descriptor:
            header = _header(descriptor, file, settings)
            # A rolled file's first entry counts its seconds from the end of the file before.
            lead = file.entry_offset(FIRST_ORDINAL)
            first = np.frombuffer(os.pread(descriptor, ENTRY_LENGTH, lead).ljust(ENTRY_LENGTH, b"\0"), _ENTRY)
            reads.passed += HEADER_LENGTH + ENTRY_LENGTH
        if _can_hold(header, int(first["seconds"][0]), wanted, slack_ms):
            for at in range(FIRST_ORDINAL, header.index_count, most):
                yield EntryRange(
                    path=file.path,
                    store=settings.place,
                    slots=file.slots,
                    begin_timestamp=header.begin_timestamp,
                    first=at,
                    last=min(at + most, header.index_count),
                )


def _of_file(
    part: EntryRange, columns: tuple[str, ...], wanted: Wanted, reads: ReadStatistics
) -> Iterator[pa.RecordBatch]:
    """The wanted entries of a range, in their order."""
    schema = arrow_schema(columns, INDEX_COLUMNS)
    start = indexfile.file_length(part.slots, 0)
    with opened(part.path, _WHAT, reads) as descriptor:
        for ordinal, entries in stretches(descriptor, _ENTRY, part.first, part.last, start, reads):
            ordinals = np.arange(ordinal, ordinal + len(entries), dtype=np.int32)
            which = _fits(part, entries, wanted)
            if not which.all():
                ordinals, entries = ordinals[which], entries[which]
            if len(entries):
                reads.rows += len(entries)
                arrays = [_column(part, ordinals, entries, name) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _header(descriptor: int, file: IndexFile, settings: StoreSettings) -> IndexHeader:
    header = IndexHeader.decode(os.pread(descriptor, HEADER_LENGTH, 0).ljust(HEADER_LENGTH, b"\0"))
    if not 0 <= header.index_count <= settings.max_index_num:
        raise StoreError(
            "the index file's header can't be right",
            path=file.path,
            offset=HEADER_LENGTH - 4,
            expected=f"an indexCount of 0 to {settings.max_index_num}",
            found=header.index_count,
            next_step=f"`{settings.command('check')}` says what else is wrong, and what mends it",
        )
    return header


def _can_hold(header: IndexHeader, first_seconds: int, wanted: Wanted, slack_ms: int) -> bool:
    offsets, times = wanted.range_of("physicalOffset"), wanted.range_of("storeTimestamp")
    low, high = header.begin_physical_offset, header.end_physical_offset
    if low <= high and offsets.clip(low, high) is None:
        return False
    begin, end = header.begin_timestamp, header.end_timestamp
    # The last entry's time is rounded down to whole seconds since the first: up to 999 ms before the end.
    latest = max(end, begin + first_seconds * _MS) + slack_ms
    return times == ALL or begin > end or times.clip(begin, latest) is not None


def _fits(part: EntryRange, entries: NDArray[np.void], wanted: Wanted) -> NDArray[np.bool_]:
    fits = np.ones(len(entries), np.bool_)
    if "keyHash" in wanted.ranges:
        fits &= wanted.ranges["keyHash"].holds(entries["hash"].astype(np.int32))
    if "physicalOffset" in wanted.ranges:
        fits &= wanted.ranges["physicalOffset"].holds(entries["position"].astype(np.int64))
    if "storeTimestamp" in wanted.columns:
        times = _times(part, entries)
        fits &= wanted.range_of("storeTimestamp").holds(times) & arrow.are_timestamps(times)
    return fits


def _times(part: EntryRange, entries: NDArray[np.void]) -> NDArray[np.int64]:
    return part.begin_timestamp + entries["seconds"].astype(np.int64) * _MS


def _column(part: EntryRange, ordinals: NDArray[np.int32], entries: NDArray[np.void], name: str) -> pa.Array:
    count = len(entries)
    match name:
        case "store":
            return arrow.repeated(part.store, count)
        case "file":
            return arrow.repeated(Path(part.path).name, count)
        case "ordinal":
            return arrow.numbers(ordinals)
        case "slot":
            return arrow.numbers(entries["hash"].astype(np.int32) % np.int32(part.slots))
        case "keyHash":
            return arrow.numbers(entries["hash"].astype(np.int32))
        case "physicalOffset":
            return arrow.numbers(entries["position"].astype(np.int64))
        case "storeTimestamp":
            return arrow.timestamps(_times(part, entries))
        case "topic" | "kind" | "key" | "uniqKey":
            return pa.nulls(count, pa.string())  # an entry has the hash of a key alone
    return arrow.numbers(entries["previous"].astype(np.int32))


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

    def rows(
        self, columns: tuple[str, ...], wanted: Wanted, reads: ReadStatistics
    ) -> Iterator[pa.RecordBatch]:
        """The wanted entries."""
        return _of_hours(self, columns, wanted, reads)


def hour_ranges(settings: StoreSettings, wanted: Wanted) -> Iterator[HourRange]:
    """The hours of a store's index in RocksDB that can be wanted; none where it has files alone."""
    path = settings.root / names.ROCKSDB_STORE
    if not settings.rocksdb.index or not is_database(path) or wanted.columns & _OF_FILES:
        return
    if not wanted.wants_text("file", names.ROCKSDB_STORE):
        return
    low, high = _hours(wanted)
    with open_index(path) as db:
        found = []
        at = db.first(rocksdbindex.ENTRIES, rocksdbindex.value(low))
        while at is not None and at[0][: rocksdbindex.VALUE_LENGTH] <= rocksdbindex.value(high):
            entry = rocksdbindex.parse_key(at[0])
            if entry is None:  # no broker writes it; others follow
                at = db.first(rocksdbindex.ENTRIES, at[0] + b"\0")
                continue
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


def _of_hours(
    part: HourRange, columns: tuple[str, ...], wanted: Wanted, reads: ReadStatistics
) -> Iterator[pa.RecordBatch]:
    """The wanted entries of some hours, by key."""
    schema = arrow_schema(columns, INDEX_COLUMNS)
    path = Path(part.path).parent
    bounds = rocksdbindex.value(part.first), rocksdbindex.value(part.last)
    with open_index(path) as db:
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
