"""A message as people want to see it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

from reput.errors import StoreError
from reput.format import commitlog, javastring, properties
from reput.query.msgid import MessageId

_COMPRESSED = 0x1  # MessageSysFlag.COMPRESSED_FLAG
_COMPRESSION_TYPE = 0x700  # MessageSysFlag.COMPRESSION_TYPE_COMPARATOR
_ZLIB_TYPES = (0x000, 0x300)  # before 5.0 there was no type and always zlib
_MOST_BODY = 1 << 30  # bytes that a compressed body may become


@dataclass(frozen=True)
class Message:
    """One message of the commit log.

    Attributes:
        record: what lies in the log.
        size: bytes of the record.
    """

    record: commitlog.Record
    size: int

    @cached_property
    def topic(self) -> str:
        """The topic."""
        return _text(self.record.topic)

    @cached_property
    def properties(self) -> dict[str, str]:
        """Every property, as Java reads it: of a name that occurs twice the last value."""
        return {_text(name): _text(value) for name, value in properties.pairs(self.record.properties)}

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """The words of property KEYS, which are separated by one space each."""
        return tuple(word for word in self.properties.get("KEYS", "").split(" ") if word)

    @property
    def uniq_key(self) -> str | None:
        """Property UNIQ_KEY: the id that the client gave."""
        return self.properties.get("UNIQ_KEY")

    @property
    def offset_msg_id(self) -> str:
        """The id that the broker gave: its own address, and the message's place."""
        address, port = self.record.store_host
        return MessageId(address, port, self.record.physical_offset).encode()

    @property
    def body_is_sound(self) -> bool:
        """Whether the body has the CRC that was stored with it."""
        body = self.record.body
        return not body or commitlog.body_crc(body) == self.record.body_crc

    def body(self) -> bytes:
        """The body as the producer gave it: uncompressed, when it was compressed with zlib.

        Raises:
            StoreError: it doesn't uncompress.
        """
        flags = self.record.sys_flag
        if not flags & _COMPRESSED or flags & _COMPRESSION_TYPE not in _ZLIB_TYPES:
            return self.record.body
        try:
            stream = zlib.decompressobj()
            return stream.decompress(self.record.body, _MOST_BODY)
        except zlib.error as error:
            raise StoreError(
                "the body doesn't uncompress",
                offset=self.record.physical_offset,
                expected="zlib data, by the flag COMPRESSED",
                found=str(error),
            ) from error

    def has_key(self, topic: str, key: str) -> bool:
        """Whether the message is one of this topic with this key, or with this UNIQ_KEY.

        That is what a client keeps of a broker's answer (``MQAdminImpl.queryMessage``,
        rocketmq-all-5.3.3): the broker compares hashes only.
        """
        return self.topic == topic and (key in self.keys or key == self.uniq_key)

    def to_dict(self) -> dict[str, object]:
        """The message without its body as a JSON-ready mapping."""
        record = self.record
        return {
            "topic": self.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "physicalOffset": record.physical_offset,
            "size": self.size,
            "storeTimestamp": record.store_timestamp,
            "bornTimestamp": record.born_timestamp,
            "bornHost": _host(record.born_host),
            "storeHost": _host(record.store_host),
            "sysFlag": record.sys_flag,
            "flag": record.flag,
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "offsetMsgId": self.offset_msg_id,
            "uniqKey": self.uniq_key,
            "tags": self.tags,
            "keys": list(self.keys),
            "properties": self.properties,
            "bodySize": len(record.body),
            "bodyIsSound": self.body_is_sound,
        }


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return javastring.decode(data)


def _host(host: tuple[str, int]) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
