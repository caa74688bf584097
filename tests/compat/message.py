"""What a producer gives to a store, before the store has added offsets and times."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NOT_TRANSACTIONAL = 0x0
PREPARED = 0x4
COMMIT = 0x8
ROLLBACK = 0xC
"""Transaction types, bits 2 and 3 of sysFlag (``MessageSysFlag``)."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where delayed messages wait; the queue of delay level n is n - 1."""

# Client-side magic of one message of a batch: the store skips it (MessageDecoder.encodeMessage writes 0).
_BATCH_MAGIC = 0


@dataclass(frozen=True, slots=True)
class Host:
    """An address, IPv4 or IPv6 in text form, and a port."""

    ip: str = "127.0.0.1"
    port: int = 10911


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        topic, queue_id: where it goes.
        body: any bytes.
        tags, keys, uniq_key, delay_level: properties TAGS, KEYS, UNIQ_KEY and DELAY, absent when None.
        properties: all other properties.
        properties_string: the encoded properties as they shall stand in the log, in place of what the
            attributes above say: for strings that no client sends.
        flag: the application's own flag.
        sys_flag: transaction type and more; the store adds the IPv6 bits itself.
        born_host, store_host: producer and broker.
        born_timestamp: ms.
        reconsume_times: how often a consumer has failed on it.
        prepared_transaction_offset: physical offset of the prepared message that this one ends.
    """

    topic: str
    queue_id: int = 0
    body: bytes = b""
    tags: str | None = None
    keys: str | None = None
    uniq_key: str | None = None
    delay_level: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    properties_string: str | None = None
    flag: int = 0
    sys_flag: int = NOT_TRANSACTIONAL
    born_host: Host = Host(port=50000)
    store_host: Host = Host()
    born_timestamp: int = 1_700_000_000_000
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    def all_properties(self) -> dict[str, str]:
        """Every property by name, in the order in which they are encoded."""
        named = {"KEYS": self.keys, "UNIQ_KEY": self.uniq_key, "TAGS": self.tags}
        if self.delay_level is not None:
            named["DELAY"] = str(self.delay_level)
        return {**self.properties, **{name: value for name, value in named.items() if value is not None}}

    def encoded_properties(self, *, final_separator: bool) -> str:
        """``name 0x01 value 0x02 …``; 4.9 leaves the final 0x02 out (``MessageDecoder``)."""
        if self.properties_string is not None:
            return self.properties_string
        text = "".join(f"{name}\x01{value}\x02" for name, value in self.all_properties().items())
        return text if final_separator else text.removesuffix("\x02")


def encode_batch(messages: Sequence[Message], *, final_separator: bool) -> bytes:
    """The body of a batch, as a client sends it: ``MessageDecoder.encodeMessages``."""
    encoded = bytearray()
    for message in messages:
        properties = message.encoded_properties(final_separator=final_separator).encode()
        rest = (
            struct.pack(
                ">iIii", _BATCH_MAGIC, zlib.crc32(message.body) & 0x7FFFFFFF, message.flag, len(message.body)
            )
            + message.body
            + struct.pack(">h", len(properties))
            + properties
        )
        encoded += struct.pack(">i", 4 + len(rest)) + rest
    return bytes(encoded)
