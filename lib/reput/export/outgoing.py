"""What is sent of a message: topic, body and properties, or why nothing is.

Source: ``DefaultMQProducerImpl.sendKernelImpl``, ``Validators``, ``SendMessageProcessor``, ``HookUtils``
(``CommitLog`` in 4.9), ``EndTransactionProcessor``, ``ScheduleMessageService``, ``TimerMessageStore``
(rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reput.dump.commitlog import Block, Reader
from reput.dump.damage import Damage
from reput.dump.places import log_place
from reput.dump.wanted import Wanted
from reput.errors import StoreError
from reput.export.records import REASONS, Apart, apart, deliver_time, is_delayed, is_half, message_of
from reput.format import commitlog, innerbatch, properties
from reput.format.innerbatch import InnerMessage
from reput.query.message import Message

#: Bytes of the longest line: a body of base64, and what a record has beyond it.
_MOST_LINE = 1 << 30


@dataclass(frozen=True, slots=True)
class Item:
    """A message in its place."""

    #: start, next: where it begins, and where the next one does: bytes of a file, or physical offsets
    start: int
    next: int
    message: Message  # the message
    due: int | None  # when a delayed one is to be delivered, ms; None for others
    data: bytes  # its bytes there

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.data).hexdigest()


class LinesSource:
    """The lines of a file that ``reput export`` wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage: list[Damage] = []

    def items(self, start: int) -> Iterator[Item]:
        """The messages from a byte on, where a line begins; StoreError names a line that is none."""
        try:
            with open(self._path, "rb") as file:
                file.seek(start)
                at = start
                while line := file.readline(_MOST_LINE):
                    if line.strip():
                        yield self._item(at, line)
                    at += len(line)
        except OSError as error:
            raise StoreError(
                "the export can't be read",
                path=self._path,
                found=error.strerror,
                next_step="Check the FILE argument: a file of lines, or a small store, of `reput export`",
            ) from error

    def _item(self, at: int, line: bytes) -> Item:
        try:
            message = message_of(line)
            if not line.endswith(b"\n"):
                raise ValueError("expected a whole line, found one without its end")
            due = json.loads(line).get("deliver_timestamp")
        except ValueError as error:
            expected, _, found = str(error).removeprefix("expected ").partition(", found ")
            raise StoreError(
                "this is no line of an export",
                path=self._path,
                offset=at,
                expected=expected,
                found=found or None,
                next_step="Export the messages again, or mend the line",
            ) from None
        return Item(at, at + len(line), message, due if type(due) is int else None, line)


class StoreSource:
    """All records of a log, one after the other."""

    def __init__(self, path: Path, broker_conf: Path | None, version: str | None) -> None:
        self._place = log_place(path, broker_conf, version)
        self.damage: list[Damage] = []

    def items(self, start: int) -> Iterator[Item]:
        """The messages from a physical offset on."""
        place = self._place
        reader = Reader(place.settings, entries=place.log.entries, wanted=Wanted(), start=start)
        for event in reader.log(place.log, followed=place.followed):
            if isinstance(event, Damage):
                self.damage.append(event)
            if not isinstance(event, Block):
                continue
            for one in event.messages():
                at = one.record.physical_offset
                due = deliver_time(one, place.settings.delay_levels_ms)
                yield Item(at, at + one.size, one, due, commitlog.encode(one.record))


Source = LinesSource | StoreSource


def check_resumed(path: Path, source: Source, last: int, fingerprint: str) -> None:
    """See that the message that was sent last is still there, so that the position is of these messages."""
    item = next(source.items(last), None)
    if item is None or item.start != last or item.fingerprint != fingerprint:
        raise StoreError(
            "these aren't the messages that an earlier run has begun to send",
            path=path,
            offset=last,
            expected=f"the message that was sent last, with SHA-256 {fingerprint}",
            found="another one" if item is not None else "none",
            next_step="Name another file with --position; then all messages are sent",
        )


#: Names the message that was sent again: its broker's id, which holds the broker's address and the physical
#: offset.
ORIGIN = "REPUT_ORIGIN"

#: What client or broker set by themselves, or what would make a broker treat the message otherwise than the
#: first time.
NOT_KEPT = frozenset(
    {
        *("CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "DUP_INFO", "__CRC32#"),
        *("REAL_TOPIC", "REAL_QID", "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"),
        *("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *(
            "TIMER_ENQUEUE_MS",
            "TIMER_DEQUEUE_MS",
            "TIMER_ROLL_TIMES",
            "TIMER_DEL_UNIQKEY",
            "TIMER_DELAY_LEVEL",
        ),
        *("INNER_NUM", "INNER_BASE", "INNER_MULTI_QUEUE_OFFSET"),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET"),
        *("RECONSUME_TIME", "MSG_TYPE", "REDIRECT", "PROPERTY_FORWARD_QUEUE_ID"),
    }
)
_RETRY_PREFIX = "%RETRY%"
_TOPIC = re.compile("[%|a-zA-Z0-9_-]{1,127}", re.ASCII)
#: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET.
_NO_CLIENT_SENDS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_MOST_PROPERTIES = 0x7FFF  # bytes


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message as it is sent."""

    topic: str  # where to
    queue_id: int  # the queue that it was in
    inner: InnerMessage  # flag, body (uncompressed), and properties
    origin: str  # the broker's id of the message that it is made of

    @property
    def size(self) -> int:
        """Bytes of body and properties."""
        return len(self.inner.body) + len(self.inner.properties)


class NotSentError(Exception):
    """A message isn't sent: a stable ``kind``, the ``reason`` in words, and the ``option`` that sends it."""

    def __init__(self, kind: str, reason: str, option: str | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.option = option


def can_be_sent_to(topic: str) -> bool:
    """Whether a client may send to a topic of this name (``Validators.checkTopic``, ``TopicValidator``)."""
    return _TOPIC.fullmatch(topic) is not None and topic not in _NO_CLIENT_SENDS


def outgoing(
    message: Message,
    due: int | None,
    now: int,
    *,
    to_topic: str | None = None,
    included: Collection[Apart] = (),
) -> list[Outgoing]:
    """What is sent of a message: one, or those that a batch holds; NotSentError says why nothing is.

    ``due``, ms, says when a delayed one is to be delivered, None where that isn't known. What is ``included``
    is sent although it is left out otherwise.
    """
    kind = apart(message, included)
    if kind is not None:
        raise NotSentError(kind.value, REASONS[kind], f"--{kind}")
    topic = _topic(message) if to_topic is None else to_topic
    if not can_be_sent_to(topic):
        raise NotSentError("topic", "clients can't send to such a topic", "--to-topic")
    waits = _waits(message, due, now)
    found = []
    for flag, body, values in _parts(message):
        kept = {name: value for name, value in values.items() if name not in NOT_KEPT}
        kept |= waits
        kept.setdefault(ORIGIN, message.offset_msg_id)
        if topic.startswith(_RETRY_PREFIX):
            kept["RECONSUME_TIME"] = str(message.record.reconsume_times)
        raw = properties.encode({name.encode(): value.encode() for name, value in kept.items()})
        if len(raw) > _MOST_PROPERTIES:
            raise NotSentError("properties", f"brokers take at most {_MOST_PROPERTIES} bytes of properties")
        if not body:
            raise NotSentError("no-body", "clients can't send a message without a body")
        inner = InnerMessage(flag, body, raw)
        found.append(Outgoing(topic, message.record.queue_id, inner, message.offset_msg_id))
    return found


def _topic(message: Message) -> str:
    """Where a message belongs, also one that waits elsewhere."""
    if is_half(message) or is_delayed(message):
        real = message.properties.get("REAL_TOPIC")
        if real is None and message.topic in _NO_CLIENT_SENDS | {commitlog.TIMER_TOPIC.decode()}:
            raise NotSentError("topic", "it doesn't say which topic it belongs to (REAL_TOPIC)", "--to-topic")
        return real or message.topic
    return message.topic


def _waits(message: Message, due: int | None, now: int) -> dict[str, str]:
    """The properties by which a broker holds back what isn't due yet."""
    if not is_delayed(message) or (due is not None and due <= now):
        return {}
    if message.record.topic == commitlog.TIMER_TOPIC:
        return {} if due is None else {"TIMER_DELIVER_MS": str(due)}
    level = message.properties.get("DELAY")
    return {} if level is None else {"DELAY": level}


def _parts(message: Message) -> Iterator[tuple[int, bytes, dict[str, str]]]:
    try:
        if message.is_wrapped:
            yield from ((one.flag, one.body, one.properties) for one in message.unwrapped())
        else:
            yield message.record.flag, message.body(), message.properties
    except StoreError as error:
        raise NotSentError(
            "body", f"the body can't be read as its producer gave it: {error.problem}"
        ) from None


def encoded(messages: Sequence[Outgoing]) -> bytes:
    """Messages as ``MessageDecoder.decodeMessages`` takes them."""
    return innerbatch.encode([one.inner for one in messages])
