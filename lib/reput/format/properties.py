"""Message properties: ``name 0x01 value 0x02 …`` inside a commit-log record.

Source: ``MessageDecoder.string2messageProperties`` (rocketmq-all-4.9.7, 5.3.3), ``MessageConst``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

KEYS = b"KEYS"
TAGS = b"TAGS"
UNIQ_KEY = b"UNIQ_KEY"
DELAY = b"DELAY"
TIMER_OUT_MS = b"TIMER_OUT_MS"
CRC32 = b"__CRC32#"
MSG_REGION = b"MSG_REGION"
INNER_NUM = b"INNER_NUM"
INNER_BASE = b"INNER_BASE"
INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = b"INNER_MULTI_QUEUE_OFFSET"
_FIRST_PRINTABLE = 0x20


def pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and value of each property in order; entries without a name or a value don't count."""
    for entry in data.split(b"\x02"):
        name, separator, value = entry.partition(b"\x01")
        if separator and name and value:
            yield name, value


def are_pairs(data: bytes) -> bool:
    """Whether all entries have a name and 0x01, as those that a client's library or a broker writes.

    A name with control bytes is none, and of a value that has a 0x01 no other byte is one: such are the
    fields of a record that lay there before a cut.
    """
    return all(_is_pair(*entry.partition(b"\x01")) for entry in data.split(b"\x02") if entry)


def _is_pair(name: bytes, separator: bytes, value: bytes) -> bool:
    text = name + value.replace(b"\x01", b"") if b"\x01" in value else name
    return bool(name and separator) and min(text) >= _FIRST_PRINTABLE


def parse(data: bytes) -> dict[bytes, bytes]:
    """The properties as a mapping; the last of a repeated name wins."""
    return dict(pairs(data))


def has_keys(properties: Mapping[bytes, bytes]) -> bool:
    """Whether a broker indexes a message with these properties: by KEYS, or by UNIQ_KEY."""
    return bool(properties.get(KEYS, b"").strip(b" ")) or UNIQ_KEY in properties


def encode(properties: Mapping[bytes, bytes], *, terminated: bool = True) -> bytes:
    """The bytes of ``properties``; ``terminated`` puts 0x02 after the last one too, as 5.x does."""
    data = b"\x02".join(name + b"\x01" + value for name, value in properties.items())
    return data + b"\x02" if terminated and properties else data
