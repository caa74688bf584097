"""An index: looked up by key, in files or in RocksDB, and the model of its files while a broker starts.

Source: ``IndexService.load``, ``queryOffset``, ``buildKey``, ``buildIndex``, ``getAndCreateLastIndexFile``,
``IndexFile.isTimeMatched``, ``selectPhyOffset``, ``putKey``, ``IndexHeader.load``, ``MessageStoreConfig``
(rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode), ``MessageRocksDBStorage.queryOffsetForIndex`` (5.5.0 by
its bytecode).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reput.derived.files import in_order
from reput.derived.rocksdb import COMPARE, KeptOpen, open_index
from reput.errors import SettingsError, StoreError
from reput.format import indexfile, javastring, names, rocksdbindex
from reput.format.dtypes import ENTRY_DTYPE
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, HEADER_LENGTH, SLOT_LENGTH, IndexHeader
from reput.store.reading import pread, reading

if TYPE_CHECKING:
    from reput.config.settings import StoreSettings

#: ``maxMsgsNumBatch``: a broker gives no more offsets for a key.
MOST_OFFSETS = 64
#: ``MessageConst.INDEX_TAG_TYPE``: from 5.4 on, keys that are tags.
TAG_TYPE = "T"

_WHAT = "the index file"
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
#: Entries of RocksDB that are read at once.
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file, as it is laid out."""

    path: str  # the file
    slots: int  # maxHashSlotNum
    entries: int  # maxIndexNum
    length: int  # bytes in the file

    @property
    def full_length(self) -> int:
        """Bytes that a broker gives it."""
        return indexfile.file_length(self.slots, self.entries)

    def slot_offset(self, slot: int) -> int:
        """Byte offset of a slot."""
        return HEADER_LENGTH + slot * SLOT_LENGTH

    def entry_offset(self, ordinal: int) -> int:
        """Byte offset of an entry."""
        return indexfile.file_length(self.slots, ordinal)

    def end_of(self, header: IndexHeader) -> int:
        """The ordinal after the last entry that a header of it and its length allow."""
        room = (self.length - self.entry_offset(0)) // ENTRY_LENGTH
        return max(min(header.index_count, self.entries, room), FIRST_ORDINAL)

    def read_header(self) -> IndexHeader:
        """Its header; a part that is missing counts as zeros."""
        return IndexHeader.decode(self._bytes(0, HEADER_LENGTH).ljust(HEADER_LENGTH, b"\0"))

    def read_slots(self, first: int, count: int) -> NDArray[np.int32]:
        """The ordinals in slots, int32[slots]; fewer in a file that is cut."""
        data = self._bytes(self.slot_offset(first), count * SLOT_LENGTH)
        return np.frombuffer(data, ">i4", len(data) // SLOT_LENGTH).astype(np.int32)

    def read(self, ordinal: int, count: int) -> NDArray[np.void]:
        """The entries from an ordinal on, ENTRY_DTYPE[entries]; fewer in a file that is cut."""
        data = self._bytes(self.entry_offset(ordinal), count * ENTRY_LENGTH)
        return np.frombuffer(data, ENTRY_DTYPE, len(data) // ENTRY_LENGTH)

    def _bytes(self, at: int, length: int) -> bytes:
        with reading(self.path, _WHAT, by_ranges=True) as fd:
            return pread(self.path, fd, length, at)


def index_files(settings: StoreSettings) -> list[IndexFile]:
    """The files that a broker takes for its index, in order; see :func:`check_lengths`."""
    slots, entries = settings.max_hash_slot_num, settings.max_index_num
    found = [
        IndexFile(entry.place, slots, entries, entry.length)
        for entry in in_order(settings.root / names.INDEX)
        if not entry.is_dir and names.number(entry.name) is not None
    ]
    check_lengths(found)
    return found


def check_lengths(files: Sequence[IndexFile]) -> None:
    """See that files are as long as the settings say: where their entries begin follows from those.

    A shorter one is torn, and a broker fills it up with zeros. StoreError where all of them are shorter, or
    one is longer.
    """
    longest = max(files, key=lambda file: file.length, default=None)
    if longest is not None and longest.length != longest.full_length:
        settings = f"maxHashSlotNum={longest.slots}, maxIndexNum={longest.entries}"
        raise StoreError(
            "the index file has another length than it should",
            path=longest.path,
            expected=f"{longest.full_length} bytes ({settings})",
            found=f"{longest.length} bytes",
            next_step="Give the broker.conf of the broker that wrote this store: --broker-conf or brokerConf",
        )


class IndexReader:
    """The index files of a store as they are when this is created; for one query."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._check = settings.command("check")
        self._files = [(file, file.read_header()) for file in index_files(settings)]

    def offsets(
        self,
        topic: str,
        key: str,
        begin: int,
        end: int,
        most: int,
        *,
        index_type: str | None = None,
        limit: int = MOST_OFFSETS,
    ) -> list[int]:
        """Physical offsets of messages whose key has this key's hash, the newest first.

        The times of entries are kept in whole seconds since their file's first: an entry counts as up to
        999 ms earlier than its message.

        Args:
            topic, key: what to look for; only the hash is checked.
            begin, end: ms, both inclusive.
            most: how many at most, and no more than ``limit``.
            index_type: None for keys and UNIQ_KEYs, ``"T"`` for tags.
            limit: what a broker gives at most.

        Raises:
            SettingsError: an index of this type doesn't exist.
            StoreError: a file can't be read, or one of its chains is a loop.
        """
        text = f"{topic}#{key}" if index_type is None else f"{topic}#{self._type(index_type)}#{key}"
        key_hash = indexfile.key_hash(javastring.hash_code(text.encode("utf-8", "replace")))
        most = min(most, limit)
        found: list[int] = []
        for file, header in reversed(self._files):
            first, last = header.begin_timestamp, header.end_timestamp
            if (begin < first and end > last) or first <= begin <= last or first <= end <= last:
                self._select(file, key_hash, begin, end, most, found)
            if first < begin or len(found) >= most:
                break
        return found

    def _type(self, index_type: str) -> str:
        if index_type != TAG_TYPE or not self._settings.dialect.index_tags:
            raise SettingsError(
                "there is no such index",
                expected=f"{TAG_TYPE}: tags, from 5.4 on",
                found=f"{index_type} of {self._settings.dialect.name}",
            )
        return index_type

    def _select(
        self, file: IndexFile, key_hash: int, begin: int, end: int, most: int, found: list[int]
    ) -> None:
        with reading(file.path, _WHAT) as fd:
            slot = file.slot_offset(key_hash % file.slots)
            (ordinal,) = _SLOT.unpack(_pread(fd, _SLOT.size, slot))
            # After the slot: a running broker counts an entry once its slot points to it, and a slot that
            # points past the count is invalid.
            header = file.read_header()
            if header.index_count <= 1:
                return
            steps = header.index_count + 1
            while 0 < ordinal <= header.index_count and len(found) < most:
                steps -= 1
                if steps < 0:
                    raise StoreError(
                        "a chain of the index is a loop",
                        path=file.path,
                        next_step=f"Run `{self._check}`, which says how to repair it",
                    )
                entry = _pread(fd, _ENTRY.size, file.entry_offset(ordinal))
                stored, offset, seconds, previous = _ENTRY.unpack(entry)
                time = header.begin_timestamp + seconds * 1000
                if seconds >= 0 and stored == key_hash and begin <= time <= end:
                    found.append(offset)
                if seconds < 0 or previous == ordinal or time < begin:
                    return
                ordinal = previous


def _pread(fd: int, length: int, at: int) -> bytes:
    return os.pread(fd, length, at).ljust(length, b"\0")


def read_header(path: Path) -> IndexHeader:
    """The header as ``IndexHeader.load`` takes it; what a short file lacks counts as zero."""
    with reading(path, by_ranges=True) as descriptor:
        header = IndexHeader.decode(pread(path, descriptor, HEADER_LENGTH, 0).ljust(HEADER_LENGTH, b"\0"))
    return header if header.index_count > 0 else replace(header, index_count=1)


class RocksIndexReader:
    """The index in RocksDB; answers as :class:`IndexReader`, but by keys and not by hashes.

    A broker looks at a few days at most (``maxRocksDBIndexQueryDays``); here the whole index is searched.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._path = settings.root / names.ROCKSDB_STORE
        self._kept = KeptOpen(open_index(self._path))

    def offsets(
        self,
        topic: str,
        key: str,
        begin: int,
        end: int,
        most: int,
        *,
        index_type: str | None = None,
        limit: int = MOST_OFFSETS,
    ) -> list[int]:
        """Physical offsets of messages with a key, the newest hour first; as :meth:`IndexReader.offsets`."""
        if index_type not in (None, TAG_TYPE):
            raise SettingsError("there is no such index", expected=f"{TAG_TYPE}: tags", found=index_type)
        kinds = (rocksdbindex.TAG,) if index_type else (rocksdbindex.KEY, rocksdbindex.UNIQUE)
        found: dict[int, None] = {}
        for hour in self._hours(begin, end):
            inside: dict[int, None] = {}
            for bounds in rocksdbindex.ranges(hour, topic, kinds, key):
                inside |= dict.fromkeys(self._inside(bounds, begin, end))
            found |= dict.fromkeys(sorted(inside, reverse=True))
            if len(found) >= min(most, limit):
                break
        return list(found)[: min(most, limit)]

    def _hours(self, begin: int, end: int) -> Iterator[int]:
        """The hours that have entries, the newest first."""
        database = self._kept.database
        hour = rocksdbindex.hour_of(min(end, rocksdbindex.MS_AN_HOUR * (1 << 40)))
        first = rocksdbindex.hour_of(begin)
        while True:
            # Marks are text, and come after any hour.
            at = database.last(rocksdbindex.ENTRIES, rocksdbindex.value(hour) + b"\xff" * 64)
            if at is None or (parsed := rocksdbindex.parse_key(at[0])) is None or parsed.hour < first:
                return
            yield parsed.hour
            hour = parsed.hour - 1

    def _inside(self, bounds: tuple[bytes, bytes], begin: int, end: int) -> Iterator[int]:
        for keys, values in self._kept.database.blocks(rocksdbindex.ENTRIES, *bounds, most=_BLOCK):
            for key, value in zip(keys, values, strict=True):
                entry, time = rocksdbindex.parse_key(key), rocksdbindex.parse_value(value)
                if entry is None or time is None:
                    raise StoreError(
                        "an entry of the index in RocksDB isn't one",
                        path=self._path,
                        expected="an hour, a key and a physical offset, with a time of 8 bytes",
                        found=f"{key[:80].hex()} with {len(value)} bytes",
                        next_step=COMPARE,
                    )
                if begin <= time <= end:
                    yield entry.position


class IndexNow:
    """The index of a store: its files as they are at each query, or RocksDB as it was at the first one."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._kept: RocksIndexReader | None = None

    def reader(self) -> IndexReader | RocksIndexReader:
        """What the next query is answered from."""
        if not self._settings.rocksdb.index:
            return IndexReader(self._settings)
        if self._kept is None:
            self._kept = RocksIndexReader(self._settings)
        return self._kept


@dataclass(slots=True)
class IndexModelFile:
    """An index file."""

    path: Path | None  # where it is; None for one that the broker makes: its clock names it
    header: IndexHeader  # as the broker holds it; slot_count is that on disk and isn't kept up


class IndexModel:
    """The index files of a store, in order.

    Attributes:
        files: those that the broker holds.
        filled: endTimestamps of the files that filled up and got a successor. A thread for each writes its
            own to the checkpoint, so that any of several may stay there.
        added: keys that were put.
    """

    def __init__(self, files: Sequence[IndexModelFile], max_index_num: int) -> None:
        self.files = list(files)
        self.filled: list[int] = []
        self.added = 0
        self._max = max_index_num

    def put(
        self,
        position: NDArray[np.int64],
        timestamp: NDArray[np.int64],
        keys: NDArray[np.int32],
        last_message: int,
    ) -> None:
        """Dispatch messages, in log order.

        ``position``, ``timestamp``, ``keys``: [rows], physical offset, storeTimestamp (ms) and number of keys
        of the messages that have keys. ``last_message``: physical offset of the last message, with keys or
        without; at least one there is.
        """
        from reput.derived import kernels

        self._open()
        row, done = 0, 0
        while row < len(position):
            header = self.files[-1].header
            row, done, count, begin, end, begun, ended, added = kernels.fill_index(
                position,
                timestamp,
                keys,
                row,
                done,
                self._max,
                header.index_count,
                header.begin_physical_offset,
                header.end_physical_offset,
                header.begin_timestamp,
                header.end_timestamp,
            )
            self.added += int(added)
            self.files[-1].header = replace(
                header,
                index_count=int(count),
                begin_physical_offset=int(begin),
                end_physical_offset=int(end),
                begin_timestamp=int(begun),
                end_timestamp=int(ended),
            )
            if row < len(position):
                self._open()
        if not len(position) or last_message > int(position[-1]):
            self._open()

    def _open(self) -> None:
        """Have a last file with room."""
        if not self.files:
            self.files.append(IndexModelFile(None, IndexHeader()))
            return
        last = self.files[-1].header
        if last.index_count >= self._max:
            self.files.append(IndexModelFile(None, last.successor()))
            if last.end_timestamp > 0:
                self.filled.append(last.end_timestamp)
