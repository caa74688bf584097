"""Messages inside the body of a batch. Grammar: docs/formats/batchconsumequeue.md.

Source: ``MessageDecoder.decodeMessage``, ``decodeMessages``, ``encodeMessage`` (rocketmq-all-5.3.3).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

#: Total size, magic, CRC of the body, flag, bytes of the body: no reader looks at the first three.
_HEAD = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")


class InnerMessage(NamedTuple):
    """One message of a batch.

    Attributes:
        flag: the application's own.
        body: bytes.
        properties: its own, encoded.
    """

    flag: int
    body: bytes
    properties: bytes


def decode(data: bytes) -> list[InnerMessage]:
    """Take a body apart.

    Raises:
        ValueError: it doesn't consist of whole messages; says where.
    """
    found = []
    at = 0
    while at < len(data):
        start = at
        try:
            *_, flag, length = _HEAD.unpack_from(data, at)
            at, body = _taken(data, at + _HEAD.size, length)
            (length,) = _SHORT.unpack_from(data, at)
            at, properties = _taken(data, at + _SHORT.size, length)
        except (struct.error, IndexError):
            raise ValueError(f"no whole message at byte {start} of {len(data)}") from None
        found.append(InnerMessage(flag, body, properties))
    return found


def encode(messages: list[InnerMessage]) -> bytes:
    """A body that holds these messages, as a client builds it."""
    data = bytearray()
    for flag, body, properties in messages:
        size = _HEAD.size + len(body) + _SHORT.size + len(properties)
        data += _HEAD.pack(size, 0, 0, flag, len(body)) + body + _SHORT.pack(len(properties)) + properties
    return bytes(data)


def _taken(data: bytes, at: int, length: int) -> tuple[int, bytes]:
    end = at + length
    if length < 0 or end > len(data):
        raise IndexError(end)
    return end, data[at:end]
