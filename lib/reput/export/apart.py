"""Messages that are neither sent again nor put into a store unless that is asked for.

Source: ``TopicValidator``, ``TransactionalMessageUtil``, ``ScheduleMessageService``, ``TimerMessageStore``
(rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reput.format import commitlog
from reput.newer_python import StrEnum
from reput.query.message import Message

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

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {name: getattr(self, name) for name in self.__slots__}


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
