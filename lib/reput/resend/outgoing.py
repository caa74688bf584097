"""What is sent of a message: topic, body and properties, or why nothing is.

Source: ``DefaultMQProducerImpl.sendKernelImpl``, ``Validators``, ``SendMessageProcessor``, ``HookUtils``
(``CommitLog`` in 4.9), ``EndTransactionProcessor``, ``ScheduleMessageService``, ``TimerMessageStore``
(rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from reput.errors import StoreError
from reput.export.apart import REASONS, Apart, apart, is_delayed, is_half
from reput.format import commitlog, innerbatch, properties
from reput.format.innerbatch import InnerMessage
from reput.query.message import Message

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
    """A message isn't sent.

    Attributes:
        kind: a stable name.
        reason: in words.
        option: what sends it all the same; None where nothing does.
    """

    def __init__(self, kind: str, reason: str, option: str | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.option = option


def outgoing(
    message: Message,
    due: int | None,
    now: int,
    *,
    to_topic: str | None = None,
    included: Collection[Apart] = (),
) -> list[Outgoing]:
    """What is sent of a message: one, or those that a batch holds.

    Args:
        message: the message.
        due: when a delayed one is to be delivered, ms; None where that isn't known.
        now: ms.
        to_topic: the topic to send to, in place of the message's own.
        included: what is sent although it is left out otherwise.

    Raises:
        NotSentError: nothing; says why.
    """
    kind = apart(message, included)
    if kind is not None:
        raise NotSentError(kind.value, REASONS[kind], f"--{kind}")
    topic = _topic(message) if to_topic is None else to_topic
    if _TOPIC.fullmatch(topic) is None or topic in _NO_CLIENT_SENDS:
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
