"""The entries of an index in RocksDB, as their keys have them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.derived.rocksdb import open_index
from reput.dump.damage import Damage
from reput.errors import SettingsError
from reput.format import javastring, rocksdbindex
from reput.rocksdb import Database

_HOUR = struct.Struct(">q")
_LAST_HOUR = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DatabaseHead:
    """What the database says of itself."""

    path: Path  # the database
    position: int | None  # physicalOffset of the last message with entries; None without the mark
    timestamp: int | None  # the mark of a storeTimestamp, ms

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "type": "database",
            "path": str(self.path),
            "last_offset_py": self.position,
            "last_store_timestamp": self.timestamp,
        }


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One entry."""

    hour: int  # of storeTimestamp, ms
    topic: str  # the message's
    kind: str  # ``K``, ``T`` or ``U``
    key: str | None  # the key, or the tags; None for ``U``
    unique: str  # the unique key
    position: int  # physicalOffset
    timestamp: int  # storeTimestamp, ms

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "type": "key",
            "hour": self.hour,
            "topic": self.topic,
            "kind": self.kind,
            "key": self.key,
            "uniq_key": self.unique,
            "physical_offset": self.position,
            "store_timestamp": self.timestamp,
        }


Event = DatabaseHead | KeyEntry | Damage


def dump(
    path: Path, since: int | None = None, until: int | None = None, *, key: str | None = None
) -> Iterator[Event]:
    """What the database says of itself, and its entries in the order of their keys.

    Of those with a storeTimestamp in [since, until), ms, and of one ``topic#key``, which may be a unique key;
    SettingsError for a key that is none.
    """
    with open_index(path) as db:
        yield _head(db)
        for low, high in _bounds(db, since, until, key):
            for keys, values in db.blocks(rocksdbindex.ENTRIES, low, high):
                for one, value in zip(keys, values, strict=True):
                    if one in rocksdbindex.MARKS:
                        continue
                    entry = parse(one, value)
                    if entry is None:
                        yield _bad(path, one, value)
                    elif (since is None or entry.timestamp >= since) and (
                        until is None or entry.timestamp < until
                    ):
                        yield entry


def extent(path: Path) -> tuple[int, int] | None:
    """The storeTimestamps of its first and last entries by hours, ms; None without an entry."""
    with open_index(path) as db:
        first = db.first(rocksdbindex.ENTRIES, b"")
        last = db.last(rocksdbindex.ENTRIES, min(rocksdbindex.MARKS)[:1])  # a mark is text: past any hour
        ends = [None if one is None else parse(*one) for one in (first, last)]
        if ends[0] is None or ends[1] is None:
            return None
        times = [
            entry.timestamp
            for end in ends
            for _, entry in _in_hour(db, end.hour)  # type: ignore[union-attr]
        ]
        return min(times), max(times)


def parse(key: bytes, value: bytes) -> KeyEntry | None:
    """What a key and its value say; None for what no broker writes, and for the marks.

    >>> parse(bytes(8) + b"@t@K@k1@AC1F@" + bytes(8), bytes(8)).key
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
        unique=javastring.decode(unique),
        position=entry.position,
        timestamp=timestamp,
    )


def _head(db: Database) -> DatabaseHead:
    marks = db.get_many(rocksdbindex.ENTRIES, rocksdbindex.MARKS)
    position, timestamp = (None if mark is None else rocksdbindex.parse_value(mark) for mark in marks)
    return DatabaseHead(db.path, position, timestamp)


def _bounds(
    db: Database, since: int | None, until: int | None, key: str | None
) -> Iterator[tuple[bytes, bytes | None]]:
    """The ranges of keys in which entries can be wanted, half open, in order."""
    low = b"" if since is None else _HOUR.pack(max(rocksdbindex.hour_of(since), 0))
    high = None
    if until is not None:
        high = _HOUR.pack(max(min(rocksdbindex.hour_of(until - 1) + 1, _LAST_HOUR), 0))
    if key is None:
        yield low, high
        return
    topic, sign, text = key.partition("#")
    if not sign:
        raise SettingsError("a key can't be understood", expected="TOPIC#KEY, e.g. orders#4711", found=key)
    words = (topic.encode("utf-8", "replace"), text.encode("utf-8", "replace"))
    wanted = [
        rocksdbindex.middle(words[0], kind, words[1]) for kind in (rocksdbindex.KEY, rocksdbindex.UNIQUE)
    ]
    at = db.first(rocksdbindex.ENTRIES, low, high)
    while at is not None and at[0] not in rocksdbindex.MARKS and len(at[0]) >= _HOUR.size:
        (hour,) = _HOUR.unpack_from(at[0])
        for middle in wanted:
            prefix = at[0][: _HOUR.size] + middle
            yield prefix, prefix[:-1] + bytes([prefix[-1] + 1])  # it ends in an @
        at = None if hour == _LAST_HOUR else db.first(rocksdbindex.ENTRIES, _HOUR.pack(hour + 1), high)


def _in_hour(db: Database, hour: int) -> Iterator[tuple[bytes, KeyEntry]]:
    for keys, values in db.blocks(rocksdbindex.ENTRIES, _HOUR.pack(hour), _HOUR.pack(hour + 1)):
        for key, value in zip(keys, values, strict=True):
            entry = parse(key, value)
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
