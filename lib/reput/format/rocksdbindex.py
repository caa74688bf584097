"""The keys and values of the index in RocksDB. Grammar and worked bytes: docs/formats/rocksdb.md.

Entries stand in the column family ``default`` of ``rocksdbstore/``; ``timer`` and ``trans`` hold what the
commit log doesn't give.

Source: ``IndexRocksDBRecord``, ``IndexRocksDBStore``, ``MessageRocksDBStorage``,
``MixAll.dealTimeToHourStamps`` (5.5.0).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reput.format import commitlog, javastring, properties

ENTRIES = "default"  # column family
TIMER = "timer"  # column family
TRANS = "trans"  # column family
#: All that a broker opens it with.
FAMILIES = (ENTRIES, TIMER, TRANS)

SPLIT = b"@"
KEY = b"K"
TAG = b"T"
UNIQUE = b"U"

MS_AN_HOUR = 3_600_000
LAST_POSITION = b"lastOffsetPy"
LAST_TIMESTAMP = b"lastStoreTimeStamp"
#: Keys that are no message's.
MARKS = (LAST_POSITION, LAST_TIMESTAMP)

_LONG = struct.Struct(">q")
_WORDS = re.compile(rb"@(.+?)@(?:([KT])@(.*)@(.*?)|U@(.*))@", re.DOTALL)
VALUE_LENGTH = _LONG.size


class Entry(NamedTuple):
    """An index entry.

    Attributes:
        hour: the hour of storeTimestamp, ms.
        kind: :data:`KEY`, :data:`TAG` or :data:`UNIQUE`.
        middle: topic, kind, key or tag, and unique key as they stand in the key, with ``@`` before, between
            and after: where one has an ``@`` of its own, they can't be told apart.
        position: physicalOffset.
    """

    hour: int
    middle: bytes
    position: int


def hour_of(timestamp: int) -> int:
    """The hour of a storeTimestamp, both in ms.

    >>> hour_of(1_795_500_000_123)
    1795500000000
    """
    return timestamp // MS_AN_HOUR * MS_AN_HOUR if timestamp > 0 else timestamp


def key(topic: bytes, kind: bytes, text: bytes, unique: bytes, timestamp: int, position: int) -> bytes | None:
    """An entry's key; None where a broker makes none: no topic, no unique key, or before 1970-01-01 01:00.

    Args:
        text: the key or the tag; not looked at for :data:`UNIQUE`.

    >>> key(b"t", KEY, b"k1", b"AC1F", 1_795_500_000_123, 0x1E8AE).hex()
    '000001a20c23c3004074404b406b31404143314640000000000001e8ae'
    """
    if not topic or not unique or position < 0 or hour_of(timestamp) <= 0:
        return None
    parts = [b"", topic, kind, unique, b""] if kind == UNIQUE else [b"", topic, kind, text, unique, b""]
    return _LONG.pack(hour_of(timestamp)) + SPLIT.join(parts) + _LONG.pack(position)


def value(number: int) -> bytes:
    """The value of an entry, its storeTimestamp in ms; of a mark, its number."""
    return _LONG.pack(number)


def parse_value(data: bytes) -> int | None:
    """What :func:`value` packed; None for a value of another length."""
    return int(_LONG.unpack(data)[0]) if len(data) == VALUE_LENGTH else None


def parse_key(data: bytes) -> Entry | None:
    """What a key says; None for a mark, and for what no broker writes."""
    if data in MARKS or len(data) < 2 * _LONG.size:
        return None
    middle = data[8:-8]
    if len(middle) < len(b"@t@U@u@") or middle[:1] != SPLIT or middle[-1:] != SPLIT:
        return None
    return Entry(_LONG.unpack_from(data)[0], middle, _LONG.unpack_from(data, len(data) - 8)[0])


def words_of(middle: bytes) -> tuple[bytes, bytes, bytes | None, bytes] | None:
    """Topic, kind, key or tags (None for :data:`UNIQUE`), and unique key of an entry; None if it has none.

    No topic has an ``@``, and no unique key that a client makes: others are taken to be in the key.

    >>> words_of(b"@t@K@a@b@AC1F@")
    (b't', b'K', b'a@b', b'AC1F')
    """
    found = _WORDS.fullmatch(middle)
    if found is None:
        return None
    topic, kind, text, unique, alone = found.groups()
    return (topic, UNIQUE, None, alone) if kind is None else (topic, kind, text, unique)


def ranges(hour: int, topic: str, kinds: Sequence[bytes], text: str) -> Iterator[tuple[bytes, bytes]]:
    """What a broker seeks: the keys, half open, of an hour's entries of a topic's key, tag or unique key."""
    words = topic.encode("utf-8", "replace"), text.encode("utf-8", "replace")
    for kind in kinds:
        start = value(hour) + SPLIT.join([b"", words[0], kind, words[1]])
        yield start + SPLIT, start + bytes([SPLIT[0] + 1])


def keys_of(
    topic: bytes, found: Mapping[bytes, bytes], sys_flag: int, timestamp: int, position: int
) -> Iterator[bytes]:
    """The keys of a message's entries, each once, slowly: of KEYS, of TAGS, of the unique key.

    Args:
        topic: as the record has it.
        found: its properties.
    """
    if sys_flag & commitlog.TRANSACTION_MASK == commitlog.TRANSACTION_ROLLBACK:
        return
    name, unique, keys, tags = (
        javastring.utf8(text)
        for text in (
            topic,
            found.get(properties.UNIQ_KEY, b""),
            found.get(properties.KEYS, b""),
            found.get(properties.TAGS, b""),
        )
    )
    wanted = [(KEY, word) for word in dict.fromkeys(keys.split(b" ")) if word]
    wanted += [(TAG, tags)] if tags else []
    for kind, text in [*wanted, (UNIQUE, b"")]:
        found_key = key(name, kind, text, unique, timestamp, position)
        if found_key is not None:
            yield found_key
