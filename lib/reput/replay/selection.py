"""Which queues a run writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reput.config.topics import TopicsNow
from reput.errors import SettingsError
from reput.format.batchconsumequeue import UNIT_LENGTH
from reput.format.commitlog import LMQ_PREFIX, SCHEDULE_TOPIC
from reput.format.dtypes import BATCH, PLAIN, Form
from reput.format.names import Queue, parse_queue
from reput.replay.state import QueueState

# Topics that brokers make for themselves, not all of them in topics.json (TopicValidator, 4.9.7 to 5.3.3).
_SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC.decode(),
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)


def check_batch_file_size(file_size: int, broker_conf: Path | None) -> None:
    """Refuse sizes of batch queues' files that a broker's units don't fill."""
    if file_size % UNIT_LENGTH:  # ``appendMessage``
        raise SettingsError(
            "files of batch queues that aren't filled by whole units of 46 bytes: a broker can't go past one",
            path=broker_conf,
            found=f"mapperFileSizeBatchConsumeQueue={file_size}",
            next_step="Set it to a multiple of 46, for the broker as well",
        )


def is_system(topic: str) -> bool:
    """Whether a topic is a broker's own. Source: ``TopicValidator.isSystemTopic`` (rocketmq-all-5.3.3)."""
    return topic in _SYSTEM_TOPICS or topic.startswith("rmq_sys_")


def is_known(topic: str, known: frozenset[str]) -> bool:
    """Whether a topic is in ``known`` (those of topics.json), or need not be."""
    return topic in known or is_system(topic) or topic.startswith(LMQ_PREFIX.decode())


@dataclass(frozen=True, slots=True)
class Selection:
    """The queues that are wanted; the default is all of them."""

    #: (topic, queue id or None for all of the topic's); empty: every queue
    queues: frozenset[tuple[str, int | None]] = frozenset()
    known: frozenset[str] | None = None  # only these topics and the broker's own; None: every topic
    batch: frozenset[str] = frozenset()  # topics with batch queues

    @property
    def is_all(self) -> bool:
        """Whether no queue was chosen, so that the output is of the whole store."""
        return not self.queues

    def wants_topic(self, topic: bytes) -> bool:
        """Whether any queue of a topic is written."""
        name = topic.decode("utf-8", "replace")
        if self.known is not None and not is_known(name, self.known):
            return False
        return not self.queues or any(chosen == name for chosen, _ in self.queues)

    def form_of(self, topic: str) -> Form:
        """The form of its queues in files."""
        return BATCH if self.is_batch(topic) else PLAIN

    def is_batch(self, topic: str) -> bool:
        """Whether a topic's queues are batch queues."""
        return topic in self.batch

    def remember(self, queues: Mapping[Queue, QueueState]) -> None:
        """What was written of a topic stays of its type."""

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """Whether a queue of a topic that is wanted is written."""
        return not self.queues or (topic, None) in self.queues or (topic, queue_id) in self.queues

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Selection:
        """From ``TOPIC`` and ``TOPIC:ID`` arguments."""
        return cls(frozenset(map(parse_queue, texts)))


@dataclass(frozen=True, slots=True)
class LiveSelection(Selection):
    """The queues that are wanted while a broker runs, which creates topics and deletes them."""

    #: the broker's topics as they are now. A topic is looked up until it is written; from then on it
    #: is wanted
    topics: TopicsNow = field(kw_only=True)
    batches: bool = field(kw_only=True)  # the broker's version has batch queues
    #: ``mapperFileSizeBatchConsumeQueue``, bytes; checked when a batch topic appears
    batch_file_size: int = field(kw_only=True)
    broker_conf: Path | None = field(kw_only=True, default=None)  # where it is set
    _batch: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    _written: set[bytes] = field(default_factory=set, compare=False, repr=False)

    def wants_topic(self, topic: bytes) -> bool:
        """Whether any queue of a topic is written."""
        if topic in self._written:
            return True
        known = self.topics.known
        now = Selection(
            self.queues,
            # If the file is missing, what it said when the run began still holds.
            self.known if self.known is None or known is None else known,
        )
        wanted = now.wants_topic(topic)
        if wanted:
            self._written.add(topic)
        return wanted

    def is_batch(self, topic: str) -> bool:
        """Whether a topic's queues are batch queues.

        Raises SettingsError also where no broker can write such queues with the size that their files have.
        """
        found = self._batch.get(topic)
        if found is None:
            now = self.topics.batch if self.batches and self.topics.known is not None else frozenset()
            found = topic in self.batch or topic in now
            if found:
                check_batch_file_size(self.batch_file_size, self.broker_conf)
            self._batch[topic] = found
        return found

    def remember(self, queues: Mapping[Queue, QueueState]) -> None:
        """What was written of a topic stays of its type."""
        self._batch.update({topic: state.is_batch for (topic, _), state in queues.items()})
