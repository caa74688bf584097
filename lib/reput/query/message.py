"""A message with its properties decoded and its body uncompressed."""

from __future__ import annotations

import base64
import io
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from reput.errors import SettingsError, StoreError
from reput.format import commitlog, innerbatch, javastring, properties
from reput.words import snake_case

if TYPE_CHECKING:
    from reput.query.store import TagFilter


# A broker's id (``offsetMsgId``) is its own address, IPv4 or IPv6, a port of four bytes, and the message's
# physical offset. A client's id (UNIQ_KEY) has the same lengths but doesn't contain the offset. Source:
# ``MessageDecoder.createMessageId`` and ``decodeMessageId``, ``MessageClientIDSetter`` (rocketmq-all-4.9.7,
# 5.3.3).

_PLACE = struct.Struct(">iq")
_V4_DIGITS = 2 * (4 + _PLACE.size)
_V6_DIGITS = 2 * (16 + _PLACE.size)
_HEX = re.compile(r"[0-9a-fA-F]*", re.ASCII)
_MOST_PORT = 0xFFFF


@dataclass(frozen=True, slots=True)
class MessageId:
    """A broker's id of a message."""

    address: str  # of the broker, IPv4 or IPv6 in text form
    port: int  # of the broker, 0 to 65535
    physical_offset: int  # of the message

    def encode(self) -> str:
        """32 digits with an IPv4 address, 56 with an IPv6 address."""
        packed = ip_address(self.address).packed
        return (packed + _PLACE.pack(self.port, self.physical_offset)).hex().upper()

    @classmethod
    def decode(cls, text: str) -> MessageId:
        """Decode an id.

        SettingsError: it isn't a broker's id; the error says why.
        """
        if _HEX.fullmatch(text) is None:
            raise _malformed(text, "another character")
        if len(text) not in (_V4_DIGITS, _V6_DIGITS):
            raise _malformed(text, f"{len(text)} digits")
        data = bytes.fromhex(text)
        port, physical_offset = _PLACE.unpack(data[-_PLACE.size :])
        if not 0 <= port <= _MOST_PORT:
            raise _malformed(text, f"{port} where a port should be", _CLIENT_STEP)
        if physical_offset < 0:
            raise _malformed(text, f"a physical offset of {physical_offset}", _CLIENT_STEP)
        return cls(str(ip_address(data[: -_PLACE.size])), port, physical_offset)


_CLIENT_STEP = "If it is the id that the client printed, give --topic, too: then the index is searched"


def _malformed(text: str, found: str, next_step: str | None = None) -> SettingsError:
    return SettingsError(
        f"{text!r} isn't a broker's message id",
        expected=f"{_V4_DIGITS} or {_V6_DIGITS} hexadecimal digits: address, port, physical offset",
        found=found,
        next_step=next_step,
    )


_COMPRESSED = 0x1  # MessageSysFlag.COMPRESSED_FLAG
_COMPRESSION_TYPE = 0x700  # MessageSysFlag.COMPRESSION_TYPE_COMPARATOR
_LZ4, _ZSTD, _ZLIB = "LZ4", "ZSTD", "ZLIB"
# CompressionType; before 5.0 there was no type and always zlib.
_TYPES = {0x000: _ZLIB, 0x100: _LZ4, 0x200: _ZSTD, 0x300: _ZLIB}
_WRAPPED = commitlog.SYS_FLAG_INNER_BATCH | commitlog.SYS_FLAG_NEED_UNWRAP
_PIECE = 1 << 20
_MOST_BODY = 1 << 30  # bytes that a compressed body may become


class Batch(NamedTuple):
    """The messages in a record, by its properties: queueOffset of the first one, and how many they are."""

    base_offset: int
    messages: int


@dataclass(frozen=True, slots=True)
class Inner:
    """A message of a batch."""

    queue_offset: int  # its own
    flag: int  # the application's
    properties: dict[str, str]  # as :attr:`Message.properties`
    body: bytes  # bytes

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self.properties.get("TAGS")

    def to_dict(self) -> dict[str, object]:
        """The message without its body as a JSON-ready mapping; as :meth:`Message.to_dict`."""
        return {**_in_snake_case(self.columns()), "keys": list(_keys(self.properties))}

    def columns(self) -> dict[str, object]:
        """The message without its body, JSON-ready, in the names of the data source's columns."""
        return {
            "queueOffset": self.queue_offset,
            "flag": self.flag,
            **_of_properties(self.properties),
            "bodySize": len(self.body),
        }


@dataclass(frozen=True)
class Message:
    """One message of the commit log."""

    record: commitlog.Record  # as it is in the log
    size: int  # bytes of the record

    @cached_property
    def topic(self) -> str:
        """The topic."""
        return javastring.decode(self.record.topic)

    @cached_property
    def properties(self) -> dict[str, str]:
        """Every property, as Java reads it: of a name that occurs twice the last value."""
        return _properties(self.record.properties)

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """The words of property KEYS, which are separated by one space each."""
        return _keys(self.properties)

    @property
    def uniq_key(self) -> str | None:
        """Property UNIQ_KEY: the id that the client gave."""
        return self.properties.get("UNIQ_KEY")

    @property
    def offset_msg_id(self) -> str:
        """The id that the broker gave: its own address, and the message's physical offset."""
        address, port = self.record.store_host
        return MessageId(address, port, self.record.physical_offset).encode()

    @property
    def body_is_sound(self) -> bool:
        """Whether the body has the CRC that was stored with it."""
        body = self.record.body
        return not body or commitlog.body_crc(body) == self.record.body_crc

    def body(self) -> bytes:
        """The body as the producer gave it: uncompressed, when it was compressed.

        StoreError where it doesn't uncompress, or ends before its compressed data do.
        """
        flags, body = self.record.sys_flag, self.record.body
        if not flags & _COMPRESSED or not body:  # MessageDecoder.decode leaves an empty one alone
            return body
        kind = _TYPES.get(flags & _COMPRESSION_TYPE)
        if kind is None:
            raise self._packed_wrongly("LZ4, ZSTD or ZLIB", f"type {(flags & _COMPRESSION_TYPE) >> 8}")
        if kind != _ZLIB and find_spec("pyarrow") is None:
            raise StoreError(
                "the body can't be uncompressed here",
                offset=self.record.physical_offset,
                expected=f"pyarrow, which reads {kind}",
                found="no such module",
                next_step="Run: pip install pyarrow",
            )
        whole = io.BytesIO()
        try:
            for piece in _unzipped(body) if kind == _ZLIB else _unpacked(body, kind):
                whole.write(piece)
                if whole.tell() > _MOST_BODY:
                    raise self._packed_wrongly(f"at most {_MOST_BODY} bytes when uncompressed", "more")
        except (zlib.error, OSError) as error:
            found = f"{error}, after {whole.tell()} bytes of the body"
            raise self._packed_wrongly(f"{kind} data to their end", found) from error
        return whole.getvalue()

    @cached_property
    def batch(self) -> Batch | None:
        """The batch, if INNER_BASE and INNER_NUM are both there: ``CommitLog.setBatchSizeIfNeeded``."""
        values = properties.parse(self.record.properties)
        base = javastring.parse_integer(values.get(properties.INNER_BASE, b""), 64)
        number = javastring.parse_integer(values.get(properties.INNER_NUM, b""), 16)
        return None if base is None or number is None else Batch(base, number)

    @property
    def is_wrapped(self) -> bool:
        """Whether a client unpacks the body (``PullAPIWrapper``, rocketmq-all-5.3.3)."""
        return self.record.sys_flag & _WRAPPED == _WRAPPED

    def unwrapped(self) -> tuple[Inner, ...]:
        """The messages in the body, as a client unpacks it.

        StoreError where the body doesn't uncompress, or isn't a batch.
        """
        try:
            found = innerbatch.decode(self.body())
        except ValueError as error:
            raise StoreError(
                "the body isn't a batch",
                offset=self.record.physical_offset,
                expected="messages up to its end, by the message's sysFlag",
                found=str(error),
            ) from error
        first = self.record.queue_offset
        return tuple(
            Inner(first + number, one.flag, _properties(one.properties), one.body)
            for number, one in enumerate(found)
        )

    def is_wanted(self, tags: TagFilter) -> bool:
        """Whether a client keeps it, or any message in it; one that can't be unpacked counts as a whole."""
        if tags.tags is not None and self.is_wrapped:
            try:
                return any(tags.wants(one.tags) for one in self.unwrapped())
            except StoreError:
                pass
        return tags.wants(self.tags)

    @property
    def compression(self) -> str | None:
        """How the body is compressed, by sysFlag; None where it isn't."""
        flags = self.record.sys_flag
        if not flags & _COMPRESSED:
            return None
        return _TYPES.get(flags & _COMPRESSION_TYPE, f"type {(flags & _COMPRESSION_TYPE) >> 8}")

    def _packed_wrongly(self, expected: str, found: str) -> StoreError:
        return StoreError(
            "the body doesn't uncompress",
            offset=self.record.physical_offset,
            expected=f"{expected}, by the message's sysFlag",
            found=found,
        )

    def has_key(self, topic: str, key: str) -> bool:
        """Whether the message is one of this topic with this key, or with this UNIQ_KEY.

        A client keeps such messages of a broker's answer (``MQAdminImpl.queryMessage``, rocketmq-all-5.3.3):
        the broker compares only hashes.
        """
        return self.topic == topic and (key in self.keys or key == self.uniq_key)

    def to_dict(self) -> dict[str, object]:
        """The message without its body as a JSON-ready mapping: its columns, and its id and batch.

        The columns' names are in snake_case here, and KEYS is a list of its words.
        """
        batch = self.batch
        return {
            **_in_snake_case(self.columns()),
            "keys": list(self.keys),
            "offset_msg_id": self.offset_msg_id,
            "batch": batch and {"base_offset": batch.base_offset, "messages": batch.messages},
        }

    def body_to_dict(self) -> dict[str, object]:
        """The body as its producer gave it, JSON-ready: ``body`` where it is UTF-8, else ``body_base64``.

        Of a batch that clients take apart ``inner_messages``, each with its body. A body that doesn't
        uncompress, or is no batch, is as it is stored, with the reason in ``body_problem``.
        """
        try:
            if not self.is_wrapped:
                return _text(self.body())
            inner = self.unwrapped()
        except StoreError as error:
            stored = base64.b64encode(self.record.body).decode()
            return {"body_base64": stored, "body_problem": f"{error}; shown as it is stored"}
        return {"inner_messages": [{**one.to_dict(), **_text(one.body)} for one in inner]}

    def columns(self) -> dict[str, object]:
        """The message without its body, JSON-ready, as the data source names its columns; times in ms."""
        record = self.record
        crc = record.body_crc or 0
        return {
            "topic": self.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "physicalOffset": record.physical_offset,
            "size": self.size,
            "storeTimestamp": record.store_timestamp,
            "bornTimestamp": record.born_timestamp,
            "bornHost": commitlog.host_text(record.born_host),
            "storeHost": commitlog.host_text(record.store_host),
            "sysFlag": record.sys_flag,
            "flag": record.flag,
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "bodyCRC": crc - 0x1_0000_0000 if crc >= 0x8000_0000 else crc,  # int32, as the column has it
            **_of_properties(self.properties),
            "bodySize": len(record.body),
        }


def _in_snake_case(columns: dict[str, object]) -> dict[str, object]:
    return {snake_case(name): value for name, value in columns.items()}


def _text(data: bytes) -> dict[str, object]:
    with suppress(UnicodeDecodeError):
        return {"body": data.decode()}
    return {"body_base64": base64.b64encode(data).decode()}


def _of_properties(values: dict[str, str]) -> dict[str, object]:
    return {
        "tags": values.get("TAGS"),
        "keys": values.get("KEYS"),
        "uniqKey": values.get("UNIQ_KEY"),
        "properties": values,
    }


def _unzipped(data: bytes) -> Iterator[bytes]:
    """As ``java.util.zip.InflaterInputStream``: bytes behind the stream are ignored.

    zlib.error where it isn't such a stream, or only a part of one.
    """
    stream = zlib.decompressobj()
    while not stream.eof:
        piece = stream.decompress(data, _PIECE)
        data = stream.unconsumed_tail
        if not piece and not data and not stream.eof:
            raise zlib.error("the data are cut off")
        yield piece


def _unpacked(data: bytes, kind: str) -> Iterator[bytes]:
    """Frames of LZ4 or Zstandard.

    OSError where they are none, or cut off.
    """
    # Most bodies don't need this, and it takes longer to load than all the rest.
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(data), kind.lower()) as stream:
        while piece := stream.read(_PIECE):
            yield piece


def _properties(data: bytes) -> dict[str, str]:
    return {javastring.decode(name): javastring.decode(value) for name, value in properties.pairs(data)}


def _keys(values: dict[str, str]) -> tuple[str, ...]:
    return tuple(word for word in values.get("KEYS", "").split(" ") if word)
