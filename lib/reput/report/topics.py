"""A store's topics and queues: what ``reput stats --topics`` says.

The log isn't read, but for a record's head for each queue: the time of its last message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reput.broker.snapshot import take
from reput.config.topics import TopicConfig, topic_configs
from reput.diagnosis.absent import NO_QUEUES, not_derived
from reput.log.segments import discover
from reput.report.queues import queue_facts

if TYPE_CHECKING:
    from reput.broker.problem import Problem
    from reput.broker.snapshot import Snapshot
    from reput.config.settings import StoreSettings
    from reput.report.facts import QueueFacts


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that has queues, or is in ``config/topics.json``."""

    name: str  # its name
    queues: tuple[QueueFacts, ...]  # those with files, by id
    config: TopicConfig | None  # what ``config/topics.json`` says of it; None where it says nothing

    @property
    def messages(self) -> int:
        """Queue offsets from each queue's min to its max."""
        return sum(_messages(queue) for queue in self.queues)

    @property
    def last_time(self) -> int | None:
        """StoreTimestamp of its last message, ms; None if missing."""
        return max((queue.last_time for queue in self.queues if queue.last_time is not None), default=None)

    @property
    def skew(self) -> float | None:
        """As :func:`skew`."""
        return skew(self.queues)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        config = self.config
        return {
            "topic": self.name,
            "messages": self.messages,
            "skew": None if self.skew is None else round(self.skew, 3),
            "last_store_timestamp": self.last_time,
            "in_config": config is not None,
            "read_queue_nums": None if config is None else config.read_queues,
            "write_queue_nums": None if config is None else config.write_queues,
            "perm": None if config is None else config.perm,
            "queues": [_queue(queue) for queue in self.queues],
        }


@dataclass(frozen=True, slots=True)
class TopicList:
    """The topics of a store."""

    settings: StoreSettings  # the store's
    topics: tuple[Topic, ...]  # those with the most messages first
    has_config: bool  # there is a ``config/topics.json``
    unreadable: tuple[QueueFacts, ...] = field(default=())  # queues whose offsets can't be told
    #: why there is no queue at all, though the log has messages
    lacking: tuple[Problem, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        """1 where a queue's offsets can't be told, or all queues are missing."""
        return int(bool(self.unreadable or self.lacking))

    @property
    def next_steps(self) -> list[str]:
        """What says more of queues that can't be read."""
        return [self.settings.command("check")] if self.exit_code else []

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "store": str(self.settings.root),
            "rocketmq_version": self.settings.basis.rocketmq_version,
            "settings": self.settings.basis.to_dict(),
            "topics": [topic.to_dict() for topic in self.topics],
            "findings": [problem.to_dict() for problem in self.lacking],
            "next_steps": self.next_steps,
        }


def topic_list(settings: StoreSettings, topic: str | None = None) -> TopicList:
    """The topics of a store, and their queues as consumers get them (``ConsumeQueue.correctMinOffset``).

    Args:
        topic: only this one.

    Raises:
        ReputError: the store can't be read. Of a queue that can't, ``problem`` says why.
    """
    configs = topic_configs(settings.config)
    queues: dict[str, list[QueueFacts]] = {}
    snapshot = take(settings)
    for row in queue_facts(snapshot, discover(settings), None, running=True).rows:
        queues.setdefault(row.topic, []).append(row)
    names = {*queues, *(configs or {})} if topic is None else {topic} & {*queues, *(configs or {})}
    found = [Topic(name, tuple(queues.get(name, ())), (configs or {}).get(name)) for name in names]
    found.sort(key=lambda one: (-one.messages, one.name))
    unreadable = tuple(row for one in found for row in one.queues if row.problem is not None)
    lacking = () if queues or settings.remote is not None else tuple(_lacking(snapshot))
    return TopicList(settings, tuple(found), configs is not None, unreadable, lacking)


def _lacking(snapshot: Snapshot) -> Iterator[Problem]:
    for problem in (*snapshot.problems, *not_derived(snapshot)):
        if problem.kind in ("broken-rocksdb", NO_QUEUES):
            yield problem


def skew(queues: Sequence[QueueFacts]) -> float | None:
    """Messages of a topic's largest queue, by those of a queue in the mean; None without a second queue."""
    mean = sum(map(_messages, queues)) / len(queues) if len(queues) > 1 else 0
    return max(map(_messages, queues)) / mean if mean else None


def _messages(queue: QueueFacts) -> int:
    if queue.min_offset is None or queue.max_offset is None:
        return 0
    return max(queue.max_offset - queue.min_offset, 0)


def _queue(queue: QueueFacts) -> dict[str, object]:
    return {
        "queue_id": queue.queue_id,
        "kind": queue.kind,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "messages": _messages(queue),
        "files": queue.files,
        "bytes": queue.bytes,
        "last_store_timestamp": queue.last_time,
        "problem": queue.problem,
    }
