"""Topics and queues as small numbers, and what a scan saw of each queue.

The tables live in numpy arrays so that the kernel can look names up; new topics are interned here, in
Python, because what is computed of a topic (its hash prefix, whether it may be a directory) is needed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format import commitlog, javastring, names

TOPIC_SCHEDULE = 1  # DELAY decides the tagsCode
TOPIC_NO_MULTI_DISPATCH = 2  # INNER_MULTI_DISPATCH is not looked at
TOPIC_NO_UNITS = 4  # can't be a directory, or isn't wanted: messages are counted, no units made

QUEUE_JUMP = 1  # a queueOffset above the expected one
QUEUE_REPEAT = 2  # a queueOffset below the expected one, or a message twice in one queue

HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class TopicArrays(NamedTuple):
    """The topic table as the kernel sees it. Capacities double when needed."""

    slots: NDArray[np.int32]  # int32[2^n], open addressing, number of a spelling + 1, 0 = free
    start: NDArray[np.int64]  # start, length: int64[spellings], where a spelling's bytes are in ``text``
    length: NDArray[np.int64]
    #: int32[spellings], the number of the topic that is spelled so: its name in UTF-8, and whatever
    #: else Java reads as the same string
    topic: NDArray[np.int32]
    text: NDArray[np.uint8]  # uint8[bytes]
    key_hash: NDArray[np.int32]  # int32[topics], ``String.hashCode`` of ``topic#``
    tag_hash: NDArray[np.int32]  # int32[topics], ``String.hashCode`` of ``topic#T#``
    flags: NDArray[np.uint8]  # uint8[topics], TOPIC_* bits
    without_unit: NDArray[np.int64]  # int64[topics], messages that got no unit because of TOPIC_NO_UNITS
    first_position: NDArray[np.int64]  # int64[topics], physical offset of the first of them, -1 if none


class QueueArrays(NamedTuple):
    """The queue table as the kernel sees it, with what was seen of each queue."""

    slots: NDArray[np.int32]  # int32[2^n], open addressing, queue number + 1, 0 = free
    topic: NDArray[np.int32]  # int32[queues], topic number
    queue_id: NDArray[np.int32]  # int32[queues]
    first: NDArray[np.int64]  # int64[queues], queueOffset of the first unit seen
    next: NDArray[np.int64]  # int64[queues], queueOffset after the last unit seen, -1 if none was seen
    units: NDArray[np.int64]  # int64[queues], units seen
    bytes: NDArray[np.int64]  # int64[queues], sum of their messages' sizes
    #: first_position, last_position: int64[queues], physical offset of the first and the last message
    first_position: NDArray[np.int64]
    last_position: NDArray[np.int64]
    end: NDArray[np.int64]  # int64[queues], physical offset after the last message
    #: first_timestamp, last_timestamp: int64[queues], storeTimestamp of first and last message, ms
    first_timestamp: NDArray[np.int64]
    last_timestamp: NDArray[np.int64]
    irregular: NDArray[np.uint8]  # uint8[queues], QUEUE_* bits
    odd_position: NDArray[np.int64]  # int64[queues], physical offset of the first irregular message
    odd_offset: NDArray[np.int64]  # int64[queues], its queueOffset
    odd_expected: NDArray[np.int64]  # int64[queues], the queueOffset expected there


class QueueTable:
    """Interns topics and queues for one scanning process.

    With ``texts``, names that Java reads alike are one; else each is what its bytes are. ``problem`` says why
    a topic can't have units, None where it can.
    """

    def __init__(
        self,
        excludes_lmq: Callable[[bytes], bool] = lambda _topic: False,
        wants_units: Callable[[bytes], bool] = lambda _topic: True,
        capacity: int = 256,
        *,
        texts: bool = True,
        problem: Callable[[bytes], str | None] = names.topic_problem,
    ) -> None:
        self._excludes_lmq = excludes_lmq
        self._wants_units = wants_units
        self._texts = texts
        self._problem = problem
        self._topic_numbers: dict[bytes, int] = {}  # by spelling, in the order in which those are numbered
        self.topic_names: list[bytes] = []
        self.queue_count = np.zeros(1, np.int64)  # an array, for the kernel counts too
        self.topics = TopicArrays(
            slots=np.zeros(capacity * 4, np.int32),
            start=np.zeros(capacity, np.int64),
            length=np.zeros(capacity, np.int64),
            topic=np.zeros(capacity, np.int32),
            text=np.zeros(capacity * 32, np.uint8),
            key_hash=np.zeros(capacity, np.int32),
            tag_hash=np.zeros(capacity, np.int32),
            flags=np.zeros(capacity, np.uint8),
            without_unit=np.zeros(capacity, np.int64),
            first_position=np.full(capacity, -1, np.int64),
        )
        self._topic_hashes = np.zeros(capacity, np.uint64)  # of the spellings
        self._text_used = 0
        self.queues = QueueArrays(
            slots=np.zeros(capacity * 4, np.int32),
            topic=np.zeros(capacity, np.int32),
            queue_id=np.zeros(capacity, np.int32),
            first=np.zeros(capacity, np.int64),
            next=np.full(capacity, -1, np.int64),
            units=np.zeros(capacity, np.int64),
            bytes=np.zeros(capacity, np.int64),
            first_position=np.zeros(capacity, np.int64),
            last_position=np.zeros(capacity, np.int64),
            end=np.zeros(capacity, np.int64),
            first_timestamp=np.zeros(capacity, np.int64),
            last_timestamp=np.zeros(capacity, np.int64),
            irregular=np.zeros(capacity, np.uint8),
            odd_position=np.zeros(capacity, np.int64),
            odd_offset=np.zeros(capacity, np.int64),
            odd_expected=np.zeros(capacity, np.int64),
        )

    def intern_topic(self, name: bytes) -> int:
        """The number of a topic, new or known."""
        number = self._topic_numbers.get(name)
        if number is not None:
            return number
        text = javastring.utf8(name) if self._texts else name
        number = self._add_topic(name) if text == name else self.intern_topic(text)
        spelling = len(self._topic_numbers)
        self._grow_spellings(spelling + 1, self._text_used + len(name))
        topics = self.topics
        topics.start[spelling] = self._text_used
        topics.length[spelling] = len(name)
        topics.topic[spelling] = number
        topics.text[self._text_used : self._text_used + len(name)] = np.frombuffer(name, np.uint8)
        self._text_used += len(name)
        self._topic_numbers[name] = number
        key = topic_hash(name)
        self._topic_hashes[spelling] = key
        _insert(topics.slots, key, spelling)
        return number

    def _add_topic(self, name: bytes) -> int:
        number = len(self.topic_names)
        self._grow_spellings(number + 1, 0)
        topics = self.topics
        key_hash = javastring.hash_code(b"#", javastring.hash_code(name))
        topics.key_hash[number] = key_hash
        topics.tag_hash[number] = javastring.hash_code(b"T#", key_hash)
        flags = TOPIC_SCHEDULE if name == commitlog.SCHEDULE_TOPIC else 0
        if self._excludes_lmq(name):
            flags |= TOPIC_NO_MULTI_DISPATCH
        if self._problem(name) is not None or not self._wants_units(name):
            flags |= TOPIC_NO_UNITS
        topics.flags[number] = flags
        topics.first_position[number] = -1
        self.topic_names.append(name)
        return number

    def intern_queue(self, topic: int, queue_id: int) -> int:
        """The number of a queue, new or known. The kernel does the same on the arrays."""
        key = queue_hash(topic, queue_id)
        slots = self.queues.slots
        slot = key & (len(slots) - 1)
        while slots[slot]:
            number = int(slots[slot]) - 1
            if self.queues.topic[number] == topic and self.queues.queue_id[number] == queue_id:
                return number
            slot = (slot + 1) & (len(slots) - 1)
        number = int(self.queue_count[0])
        if number >= len(self.queues.topic):
            self.grow_queues()
        self.queues.topic[number] = topic
        self.queues.queue_id[number] = queue_id
        self.queues.next[number] = -1
        self.queue_count[0] = number + 1
        _insert(self.queues.slots, key, number)
        return number

    def grow_queues(self) -> None:
        """Double the queue table."""
        from reput.scan import table_kernels as kernels

        old = self.queues
        capacity = len(old.topic)
        columns: dict[str, Any] = {
            name: _doubled(getattr(old, name)) for name in old._fields if name != "slots"
        }
        columns["next"][capacity:] = -1
        keys = kernels.queue_hashes(old.topic, old.queue_id, int(self.queue_count[0]))
        slots = kernels.slots_of(keys, len(old.slots) * 2)
        self.queues = QueueArrays(slots=slots, **columns)

    def _grow_spellings(self, count: int, text: int) -> None:
        """Make room for a number of spellings, at most as many topics, and the bytes of their text."""
        from reput.scan import table_kernels as kernels

        topics = self.topics
        if text > len(topics.text):
            grown = np.zeros(max(text, 2 * len(topics.text)), np.uint8)
            grown[: self._text_used] = topics.text[: self._text_used]
            topics = topics._replace(text=grown)
        if count > len(topics.start):
            columns: dict[str, Any] = {
                name: _doubled(getattr(topics, name))
                for name in topics._fields
                if name not in ("slots", "text")
            }
            known = len(self._topic_numbers)
            slots = kernels.slots_of(self._topic_hashes[:known], len(topics.slots) * 2)
            self._topic_hashes = _doubled(self._topic_hashes)
            topics = TopicArrays(slots=slots, text=topics.text, **columns)
        self.topics = topics


def topic_hash(name: bytes) -> int:
    """The kernel's hash of a topic name: 8 bytes at a time, the rest byte by byte."""
    value = len(name)
    whole = len(name) & ~7
    for at in range(0, whole, 8):
        value = _mix(value ^ int.from_bytes(name[at : at + 8], "big"))
    for byte in name[whole:]:
        value = _mix(value ^ byte)
    return value


def queue_hash(topic: int, queue_id: int) -> int:
    """The kernel's hash of a queue."""
    return _mix((topic << 32) ^ (queue_id & 0xFFFFFFFF))


def _mix(value: int) -> int:
    value = (value * int(HASH_MULTIPLIER)) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 29)


def _insert(slots: NDArray[np.int32], key: int, number: int) -> None:
    slot = key & (len(slots) - 1)
    while slots[slot]:
        slot = (slot + 1) & (len(slots) - 1)
    slots[slot] = number + 1


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    grown = np.zeros(2 * len(array), array.dtype)
    grown[: len(array)] = array
    return grown
