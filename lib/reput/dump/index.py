"""What an index holds: of files header, slots, entries, and the chain of one key; of RocksDB each key.

Source: ``IndexFile.selectPhyOffset``, ``IndexHeader`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reput.config.settings import StoreSettings
from reput.derived.index import IndexFile, check_lengths
from reput.derived.rocksdb import open_index
from reput.dump.damage import Damage, Record
from reput.errors import ReputError, SettingsError
from reput.format import indexfile, javastring, rocksdbindex
from reput.log.segments import discover
from reput.rocksdb import Database
from reput.store.reading import stat_of

_CHUNK = 1 << 16  # entries
_SLOTS_CHUNK = 1 << 20
_WHAT = "the index file"


@dataclass(frozen=True, slots=True)
class FileHead:
    """A file's first line."""

    place: IndexFile  # the file
    header: indexfile.IndexHeader  # its header
    slots_used: int  # slots that lead to an entry

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        header = self.header
        return {
            "type": "index",
            "path": self.place.path,
            "begin_timestamp": header.begin_timestamp,
            "end_timestamp": header.end_timestamp,
            "begin_physical_offset": header.begin_physical_offset,
            "end_physical_offset": header.end_physical_offset,
            "hash_slot_count": header.slot_count,
            "index_count": header.index_count,
            "max_hash_slot_num": self.place.slots,
            "max_index_num": self.place.entries,
            "slots_used": self.slots_used,
        }


@dataclass(frozen=True, slots=True)
class Entry(Record):
    """One entry."""

    type = "entry"
    ordinal: int  # its number in the file, from 1 on
    key_hash: int  # as stored
    physical_offset: int  # physicalOffset
    timestamp: int  # beginTimestamp and the entry's seconds, ms; up to 999 ms before its message's
    prev_index: int  # ordinal of the next one in the chain, 0 at its end
    slot: int  # number of the slot that the chain begins at
    matches: bool | None = None  # whether it has the hash of the key that is asked for; None when none is

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts = Record.to_dict(self)
        if self.matches is None:
            del facts["matches"]
        return facts


@dataclass(frozen=True, slots=True)
class Chain(Record):
    """Where the search for a key begins."""

    type = "slot"
    key: str  # ``topic#key``
    key_hash: int  # its hash, as entries have it
    slot: int  # number of the slot
    index_ordinal: int  # that the slot leads to, 0: no chain


Event = FileHead | Chain | Entry | Damage


def places(paths: list[Path], settings: StoreSettings) -> list[IndexFile]:
    """The index files at some paths."""
    slots, entries = settings.max_hash_slot_num, settings.max_index_num
    found = [IndexFile(str(path), slots, entries, stat_of(_WHAT, path).st_size) for path in paths]
    check_lengths(found)
    return found


def log_end(settings: StoreSettings) -> int | None:
    """Physical offset after the last segment's last byte; None where there is no log that tells it."""
    try:
        return None if settings.dledger is not None else discover(settings).end
    except ReputError:
        return None


def dump(
    place: IndexFile,
    since: int | None = None,
    until: int | None = None,
    log_end: Callable[[], int | None] = lambda: None,
) -> Iterator[Event]:
    """What a file holds.

    ``since`` and ``until``: ms, half open. An entry's time is kept in whole seconds: it counts where its
    message may be of that time. ``log_end``: where the log ends; asked once all entries were read, for a
    broker may write both.
    """
    head = yield from _head(place)
    count = min(max(head.index_count, 0), place.entries)
    ordinal = indexfile.FIRST_ORDINAL
    furthest = (-1, 0)
    while ordinal < count:
        entries = place.read(ordinal, min(_CHUNK, count - ordinal))
        if not len(entries):
            break  # a short file: that was said
        row = int(entries["position"].argmax())
        furthest = max(furthest, (int(entries["position"][row]), ordinal + row))
        times = head.begin_timestamp + entries["seconds"].astype(np.int64) * 1000
        mask = np.ones(len(entries), np.bool_)
        if since is not None:
            mask &= times + 999 >= since
        if until is not None:
            mask &= times < until
        numbers = np.arange(ordinal, ordinal + len(entries))
        bad = (entries["hash"] < 0) | (entries["previous"] < 0) | (entries["previous"] >= numbers)
        bad |= entries["seconds"] < 0
        for row in np.flatnonzero(mask | bad).tolist():
            entry = _entry(place, head, int(numbers[row]), entries[row])
            if bad[row]:
                yield _bad_entry(place, entry)
            if mask[row]:
                yield entry
        ordinal += len(entries)
    end = log_end() if furthest[1] else None
    if end is not None and furthest[0] >= end:
        at = place.entry_offset(furthest[1])
        yield Damage(
            kind="entry-past-log",
            path=place.path,
            offset=at,
            end=at + indexfile.ENTRY_LENGTH,
            expected=f"physical offsets below {end}, where the last segment ends",
            found=f"{furthest[0]} in entry {furthest[1]}, the furthest",
            outcome="a search by key finds no message there",
        )


def walk(place: IndexFile, key: str, since: int | None = None, until: int | None = None) -> Iterator[Event]:
    """The chain of one ``topic#key``, newest entry first, and entries of other keys in it."""
    head = yield from _head(place)
    key_hash = indexfile.key_hash(javastring.hash_code(key.encode("utf-8", "replace")))
    slot = key_hash % place.slots
    found = place.read_slots(slot, 1)
    ordinal = int(found[0]) if len(found) else 0
    yield Chain(key, key_hash, slot, ordinal)
    limit = min(head.index_count, place.entries)
    while 0 < ordinal <= limit:
        entries = place.read(ordinal, 1)
        if not len(entries):
            return
        entry = _entry(place, head, ordinal, entries[0], key_hash)
        if entry.prev_index >= ordinal or entry.prev_index < 0:
            yield _bad_entry(place, entry)
        if (since is None or entry.timestamp + 999 >= since) and (until is None or entry.timestamp < until):
            yield entry
        if entry.prev_index >= ordinal:
            return  # it would never end
        ordinal = entry.prev_index
    if ordinal > limit or ordinal < 0:
        yield Damage(
            kind="bad-slot",
            path=place.path,
            offset=place.slot_offset(slot),
            end=place.slot_offset(slot + 1),
            expected=f"an ordinal up to {limit}",
            found=str(ordinal),
            outcome="a broker takes it for no chain",
        )


def _head(place: IndexFile) -> Generator[Event, None, indexfile.IndexHeader]:
    header = place.read_header()
    used = 0
    for first in range(0, place.slots, _SLOTS_CHUNK):
        used += int(np.count_nonzero(place.read_slots(first, min(_SLOTS_CHUNK, place.slots - first)) > 0))
    yield FileHead(place, header, used)
    if place.length < place.full_length:
        yield Damage(
            kind="file-length",
            path=place.path,
            offset=place.length,
            end=place.full_length,
            expected=f"{place.full_length} bytes",
            found=f"{place.length} bytes",
            outcome="what is missing was passed over; a broker fills it up with zeros",
        )
    most = max(place.slots, place.entries)  # up to 4.7.0 it counts keys
    if not 0 <= header.index_count <= place.entries or not 0 <= header.slot_count <= most:
        yield Damage(
            kind="bad-header",
            path=place.path,
            offset=32,
            end=indexfile.HEADER_LENGTH,
            expected=f"hashSlotCount up to {most}, indexCount up to {place.entries}",
            found=f"{header.slot_count} and {header.index_count}",
            outcome="as many entries as fit were read",
        )
    return header


def _entry(
    place: IndexFile, head: indexfile.IndexHeader, ordinal: int, stored: Any, key_hash: int | None = None
) -> Entry:
    found = int(stored["hash"])
    return Entry(
        ordinal=ordinal,
        key_hash=found,
        physical_offset=int(stored["position"]),
        timestamp=head.begin_timestamp + int(stored["seconds"]) * 1000,
        prev_index=int(stored["previous"]),
        slot=found % place.slots,
        matches=None if key_hash is None else found == key_hash,
    )


def _bad_entry(place: IndexFile, entry: Entry) -> Damage:
    at = place.entry_offset(entry.ordinal)
    return Damage(
        kind="bad-entry",
        path=place.path,
        offset=at,
        end=at + indexfile.ENTRY_LENGTH,
        expected=f"a keyHash and seconds of 0 or more, and a prevIndex below {entry.ordinal}",
        found=f"keyHash {entry.key_hash}, time {entry.timestamp}, prevIndex {entry.prev_index}",
        outcome="a broker's search ends here or goes astray",
    )


def of_index(files: list[IndexFile]) -> tuple[int, int] | None:
    """The times that index files say of themselves, ms, the first and the last; None without an entry."""
    headers = [place.read_header() for place in files]
    used = [one for one in headers if one.index_count > 1]
    if not used:
        return None
    return min(one.begin_timestamp for one in used), max(one.end_timestamp for one in used)


_LAST_HOUR = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DatabaseHead(Record):
    """What the database says of itself."""

    type = "database"
    path: Path  # the database
    last_offset_py: int | None  # physicalOffset of the last message with entries; None without the mark
    last_store_timestamp: int | None  # the mark of a storeTimestamp, ms


@dataclass(frozen=True, slots=True)
class KeyEntry(Record):
    """One entry."""

    type = "key"
    hour: int  # of storeTimestamp, ms
    topic: str  # the message's
    kind: str  # ``K``, ``T`` or ``U``
    key: str | None  # the key, or the tags; None for ``U``
    uniq_key: str  # the unique key
    physical_offset: int  # physicalOffset
    store_timestamp: int  # storeTimestamp, ms


KeyEvent = DatabaseHead | KeyEntry | Damage


def dump_keys(
    path: Path, since: int | None = None, until: int | None = None, *, key: str | None = None
) -> Iterator[KeyEvent]:
    """What the database says of itself, and its entries in the order of their keys.

    Of those with a storeTimestamp in [since, until), ms, and of one ``topic#key``, which may be a unique key;
    SettingsError for a key that is none.
    """
    with open_index(path) as db:
        yield _marks(db)
        for low, high in _bounds(db, since, until, key):
            for keys, values in db.blocks(rocksdbindex.ENTRIES, low, high):
                for one, value in zip(keys, values, strict=True):
                    if one in rocksdbindex.MARKS:
                        continue
                    entry = parse_entry(one, value)
                    if entry is None:
                        yield _bad(path, one, value)
                    elif (since is None or entry.store_timestamp >= since) and (
                        until is None or entry.store_timestamp < until
                    ):
                        yield entry


def extent_of_keys(path: Path) -> tuple[int, int] | None:
    """The storeTimestamps of its first and last entries by hours, ms; None without an entry."""
    with open_index(path) as db:
        first = db.first(rocksdbindex.ENTRIES, b"")
        last = db.last(rocksdbindex.ENTRIES, min(rocksdbindex.MARKS)[:1])  # a mark is text: past any hour
        ends = [None if one is None else parse_entry(*one) for one in (first, last)]
        if ends[0] is None or ends[1] is None:
            return None
        times = [
            entry.store_timestamp
            for end in ends
            for _, entry in _in_hour(db, end.hour)  # type: ignore[union-attr]
        ]
        return min(times), max(times)


def parse_entry(key: bytes, value: bytes) -> KeyEntry | None:
    """What a key and its value say; None for what no broker writes, and for the marks.

    >>> parse_entry(bytes(8) + b"@t@K@k1@AC1F@" + bytes(8), bytes(8)).key
    'k1'
    """
    entry, timestamp = rocksdbindex.parse_key(key), rocksdbindex.parse_value(value)
    if entry is None or timestamp is None:
        return None
    words = rocksdbindex.words_of(entry.middle)
    if words is None:
        return None
    topic, kind, text, unique = words
    return KeyEntry(
        hour=entry.hour,
        topic=javastring.decode(topic),
        kind=kind.decode(),
        key=None if text is None else javastring.decode(text),
        uniq_key=javastring.decode(unique),
        physical_offset=entry.position,
        store_timestamp=timestamp,
    )


def _marks(db: Database) -> DatabaseHead:
    marks = db.get_many(rocksdbindex.ENTRIES, rocksdbindex.MARKS)
    position, timestamp = (None if mark is None else rocksdbindex.parse_value(mark) for mark in marks)
    return DatabaseHead(db.path, position, timestamp)


def _bounds(
    db: Database, since: int | None, until: int | None, key: str | None
) -> Iterator[tuple[bytes, bytes | None]]:
    """The ranges of keys in which entries can be wanted, half open, in order."""
    low = b"" if since is None else rocksdbindex.value(max(rocksdbindex.hour_of(since), 0))
    high = None
    if until is not None:
        high = rocksdbindex.value(max(min(rocksdbindex.hour_of(until - 1) + 1, _LAST_HOUR), 0))
    if key is None:
        yield low, high
        return
    topic, sign, text = key.partition("#")
    if not sign:
        raise SettingsError("a key can't be understood", expected="TOPIC#KEY, e.g. orders#4711", found=key)
    kinds = rocksdbindex.KEY, rocksdbindex.UNIQUE
    at = db.first(rocksdbindex.ENTRIES, low, high)
    while at is not None and at[0] not in rocksdbindex.MARKS:
        hour = rocksdbindex.parse_value(at[0][: rocksdbindex.VALUE_LENGTH])
        if hour is None:
            return
        yield from rocksdbindex.ranges(hour, topic, kinds, text)
        at = (
            None if hour == _LAST_HOUR else db.first(rocksdbindex.ENTRIES, rocksdbindex.value(hour + 1), high)
        )


def _in_hour(db: Database, hour: int) -> Iterator[tuple[bytes, KeyEntry]]:
    for keys, values in db.blocks(
        rocksdbindex.ENTRIES, rocksdbindex.value(hour), rocksdbindex.value(hour + 1)
    ):
        for key, value in zip(keys, values, strict=True):
            entry = parse_entry(key, value)
            if entry is not None:
                yield key, entry


def _bad(path: Path, key: bytes, value: bytes) -> Damage:
    return Damage(
        kind="bad-key",
        path=str(path),
        offset=0,
        end=0,
        expected="an hour, @TOPIC@K|T|U@…@ and a physicalOffset, with a time of 8 bytes",
        found=f"{len(value)} bytes under the key {key[:80].hex()}",
        outcome="a broker's search passes over it or fails",
    )
