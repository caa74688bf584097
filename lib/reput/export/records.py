"""A message as a line of JSON, and back (docs/export.md has the fields), and which messages are left out.

A line holds every byte of a record. What isn't text, or that Java reads differently from how it is spelled,
stands beside its text in base64; then the base64 counts.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from reput.format import commitlog, javastring, properties
from reput.format.commitlog import Record
from reput.newer_python import StrEnum
from reput.query.message import Message
from reput.words import SCHEMA_VERSION

_INT32, _INT64 = 1 << 31, 1 << 63


def line_of(message: Message, deliver_timestamp: int | None = None) -> dict[str, object]:
    """A message, JSON-ready; ``deliver_timestamp`` says when a delayed one is due, ms."""
    record = message.record
    facts: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "topic": message.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": message.size,
        "offset_msg_id": message.offset_msg_id,
        "uniq_key": message.uniq_key,
        "keys": list(message.keys),
        "tags": message.tags,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "born_host": commitlog.host_text(record.born_host),
        "store_timestamp": record.store_timestamp,
        "store_host": commitlog.host_text(record.store_host),
        "deliver_timestamp": deliver_timestamp,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "version": record.version,
        "properties": message.properties,
        "properties_size": len(record.properties),
        "compression": message.compression,
        "body_crc": record.body_crc,
        "body_size": len(record.body),
        "body_base64": base64.b64encode(record.body).decode(),
    }
    if message.topic.encode() != record.topic:
        facts["topic_base64"] = base64.b64encode(record.topic).decode()
    if _encoded(message.properties, len(record.properties)) != record.properties:
        facts["properties_base64"] = base64.b64encode(record.properties).decode()
    return facts


def message_of(line: bytes | str) -> Message:
    """The message in a line; the size is that of the record that is made of it.

    ``topic``, ``body_base64`` and ``properties`` suffice for one that was written by hand. Without
    ``body_crc`` the body counts as sound. ValueError says what was expected and found.
    """
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected an object of JSON, found none: {error}") from None
    if not isinstance(facts, dict):
        raise ValueError(f"expected an object of JSON, found {type(facts).__name__}")
    record = record_of(facts)
    return Message(record, len(commitlog.encode(record)))


def record_of(facts: Mapping[str, object]) -> Record:
    """The record in the facts of a line.

    ValueError names a field that is missing, or has a value that a record can't hold.
    """
    raw = _bytes(facts, "properties_base64")
    if raw is None:
        size = facts.get("properties_size")
        raw = _encoded(_texts(facts, "properties"), size if isinstance(size, int) else -1)
    topic = _bytes(facts, "topic_base64")
    if topic is None:
        topic = _utf8("topic", facts.get("topic"))
    body = _bytes(facts, "body_base64")
    if body is None:
        raise ValueError("expected body_base64, found none")
    record = Record(
        topic=topic,
        body=body,
        properties=raw,
        queue_id=_number(facts, "queue_id", _INT32),
        flag=_number(facts, "flag", _INT32),
        queue_offset=_number(facts, "queue_offset", _INT64),
        physical_offset=_number(facts, "physical_offset", _INT64),
        sys_flag=_number(facts, "sys_flag", _INT32),
        born_timestamp=_number(facts, "born_timestamp", _INT64),
        born_host=_host(facts, "born_host"),
        store_timestamp=_number(facts, "store_timestamp", _INT64),
        store_host=_host(facts, "store_host"),
        reconsume_times=_number(facts, "reconsume_times", _INT32),
        prepared_transaction_offset=_number(facts, "prepared_transaction_offset", _INT64),
        version=_number(facts, "version", _INT32, 1 if len(topic) < 128 else 2),
        body_crc=_crc(facts, body),
    )
    if record.version not in (1, 2) or len(topic) > (0xFF if record.version == 1 else 0xFFFF):
        raise ValueError(f"expected a topic that version {record.version} of a record can hold")
    if len(raw) > 0xFFFF:
        raise ValueError(f"expected properties of at most 65535 bytes, found {len(raw)}")
    return record


def _encoded(values: Mapping[str, str], size: int) -> bytes:
    """Properties in bytes; 4.9 leaves the last separator out, which the size shows."""
    pairs = {name.encode(): value.encode() for name, value in values.items()}
    short = properties.encode(pairs, terminated=False)
    return short if len(short) == size else properties.encode(pairs)


def _texts(facts: Mapping[str, object], name: str) -> dict[str, str]:
    given = facts.get(name, {})
    if not isinstance(given, dict):
        raise ValueError(f"expected {name} to be an object of texts, found {given!r}")
    for key, value in given.items():
        if b"\x01" in _utf8(name, key) or b"\x02" in _utf8(name, key) + _utf8(name, value):
            raise ValueError(f"expected {name} without separators (0x01, 0x02), found {key!r}")
        if not key or not value:
            raise ValueError(f"expected {name} with names and values, found {key!r}: {value!r}")
    return given


def _utf8(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"expected {name} to be a text, found {'none' if text is None else repr(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected {name} to be whole characters, found half a pair") from None


def _bytes(facts: Mapping[str, object], name: str) -> bytes | None:
    text = facts.get(name)
    if text is None:
        return None
    try:
        return base64.b64decode(text if isinstance(text, str) else b"!", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"expected {name} in base64, found something else") from None


def _number(facts: Mapping[str, object], name: str, limit: int, default: int = 0) -> int:
    value = facts.get(name, default)
    if type(value) is not int or not -limit <= value < limit:
        raise ValueError(f"expected {name} to be a number of {limit.bit_length()} bits, found {value!r}")
    return value


def _crc(facts: Mapping[str, object], body: bytes) -> int:
    value = facts.get("body_crc")
    if value is None:
        return commitlog.body_crc(body)
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError(f"expected body_crc to be a CRC, found {value!r}")
    return value


def _host(facts: Mapping[str, object], name: str) -> tuple[str, int]:
    text = facts.get(name, "127.0.0.1:0")
    address, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    try:
        number = int(port)
        if not -_INT32 <= number < _INT32:
            raise ValueError
        return str(ip_address(address.removeprefix("[").removesuffix("]"))), number
    except ValueError:
        raise ValueError(f"expected {name} to be ADDRESS:PORT, found {text!r}") from None


def deliver_time(message: Message, delay_levels: tuple[int, ...]) -> int | None:
    """When a broker delivers a delayed message, ms; None for one that isn't, or where that can't be told.

    The message is in the topic where it waits. ``delay_levels[0]`` is the delay of level 1, ms.

    Source: ``ScheduleMessageService.computeDeliverTimestamp``, ``TimerMessageStore`` (rocketmq-all-5.3.3).
    """
    values = properties.parse(message.record.properties)
    if message.record.topic == commitlog.SCHEDULE_TOPIC:
        level = javastring.parse_integer(values.get(properties.DELAY, b""), 32)
        if level is None or level <= 0 or not delay_levels:
            return None
        return message.record.store_timestamp + delay_levels[min(level, len(delay_levels)) - 1]
    if message.record.topic == commitlog.TIMER_TOPIC:
        return javastring.parse_integer(values.get(properties.TIMER_OUT_MS, b""), 64)
    return None


# Source: ``TopicValidator``, ``TransactionalMessageUtil``, ``ScheduleMessageService``, ``TimerMessageStore``
# (rocketmq-all-4.9.7, 5.3.3).

_HALF_TOPIC = b"RMQ_SYS_TRANS_HALF_TOPIC"
_SYSTEM_PREFIX = b"rmq_sys_"
_SYSTEM_TOPICS = frozenset(
    {
        b"TBW102",
        b"BenchmarkTest",
        b"RMQ_SYS_TRACE_TOPIC",
        b"RMQ_SYS_TRANS_OP_HALF_TOPIC",
        b"TRANS_CHECK_MAX_TIME_TOPIC",
        b"SELF_TEST_TOPIC",
        b"OFFSET_MOVED_EVENT",
        b"CHECKPOINT_TOPIC",
    }
)


class Apart(StrEnum):
    """Why a message is left out; the value is the name in a result, and that of the option without ``--``."""

    HALF = "half"
    SYSTEM = "system-topics"
    DELAYED = "delayed"
    DAMAGED = "damaged"


REASONS = {
    Apart.HALF: "half messages of transactions, or rolled back: their producers never committed them, or "
    "did, and the log has them a second time",
    Apart.SYSTEM: "of system topics: a broker's own notes, which mean nothing to another one",
    Apart.DELAYED: "delayed messages in the topic where they wait: what was due has been delivered, and the "
    "log has it a second time",
    Apart.DAMAGED: "they don't match their CRC: something in them was changed",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Messages that were left out."""

    kind: str  # why; a stable name
    count: int  # how many
    first: int  # physical offset of the first
    reason: str  # why, in words
    option: str | None  # what includes them; None where nothing does

    def __str__(self) -> str:
        how = "" if self.option is None else f" ({self.option} includes them)"
        return f"{self.count:,} {self.kind}, from {self.first} on: {self.reason}{how}"


class Counted:
    """Counts what is left out, by its kind."""

    def __init__(self) -> None:
        self._found: dict[str, list[int]] = {}
        self._words: dict[str, tuple[str, str | None]] = {}

    def add(self, kind: str, message: Message, reason: str, option: str | None = None) -> None:
        """Count a message."""
        found = self._found.setdefault(kind, [0, message.record.physical_offset])
        found[0] += 1
        self._words[kind] = reason, option

    def all(self) -> list[LeftOut]:
        """What was counted, in the order in which it was met."""
        return [
            LeftOut(kind, count, first, *self._words[kind]) for kind, (count, first) in self._found.items()
        ]


def apart(message: Message, included: Iterable[Apart] = ()) -> Apart | None:
    """Why a message is left out; None for one that isn't. What is ``included`` isn't a reason.

    Messages of %RETRY% and %DLQ% topics are a consumer group's, and like any other.
    """
    return next((kind for kind in _kinds(message) if kind not in set(included)), None)


def is_half(message: Message) -> bool:
    """Whether it is a prepared message, or one that was rolled back."""
    state = message.record.sys_flag & commitlog.TRANSACTION_MASK
    return message.record.topic == _HALF_TOPIC or state in (
        commitlog.TRANSACTION_PREPARED,
        commitlog.TRANSACTION_ROLLBACK,
    )


def is_delayed(message: Message) -> bool:
    """Whether it stands where delayed messages wait."""
    return message.record.topic in (commitlog.SCHEDULE_TOPIC, commitlog.TIMER_TOPIC)


def _kinds(message: Message) -> Iterable[Apart]:
    topic = message.record.topic
    if is_half(message):
        yield Apart.HALF
    elif is_delayed(message):
        yield Apart.DELAYED
    elif topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIX):
        yield Apart.SYSTEM
    whole = commitlog.encode(message.record)
    digits = commitlog.property_crc(whole)
    if not message.body_is_sound or (digits is not None and digits != whole[-1 - len(digits) : -1]):
        yield Apart.DAMAGED
