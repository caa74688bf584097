"""What a run writes, and where."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from reput.build.bitmaps import BloomFilter
from reput.config.kept import Rereading, TopicsNow
from reput.config.settings import StoreSettings
from reput.errors import SettingsError
from reput.format import names, rocksdbqueue
from reput.format.batchconsumequeue import UNIT_LENGTH
from reput.format.commitlog import LMQ_PREFIX, SCHEDULE_TOPIC
from reput.format.dtypes import BATCH, PLAIN, Form
from reput.format.names import Queue, parse_queue
from reput.replay.state import QueueState
from reput.scan.rules import Rules, rules
from reput.scan.table import QueueTable
from reput.store.file_system import FileSystem
from reput.store.ownership import Owner

if TYPE_CHECKING:
    from reput.build.bitmaps import TopicFilters


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


_LOG = logging.getLogger(__name__)


class FiltersNow:
    """Filters by topic, ready for blocks of messages: read again when the file has changed.

    A broker writes the file every ten seconds, and uses what it has in memory, so that a tail may learn of a
    new consumer some messages later than its broker. This is small enough to be pickled with a task. The
    settings have ``enableConsumeQueueExt`` and ``enableCalcFilterBitMap``; those of a Bloom filter with which
    no broker starts raise SettingsError.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._bloom = BloomFilter.create(settings.filters)
        self._file = Rereading(settings.consumer_filter_json, self._read)

    @classmethod
    def of(cls, settings: StoreSettings) -> FiltersNow | None:
        """Those of a store; None where units have no bit maps."""
        if not settings.has_bit_maps:
            return None
        filters = cls(settings)
        filters.by_topic()
        return filters

    def __reduce__(self) -> tuple[type[FiltersNow], tuple[StoreSettings]]:
        return FiltersNow, (self._settings,)

    def by_topic(self) -> Mapping[str, TopicFilters]:
        """The filters of each topic that has any."""
        return self._file.now()

    def _read(self) -> Mapping[str, TopicFilters]:
        # Not before: the parser takes longer to be imported than most stores have filters.
        from reput.build.bitmaps import TopicFilters, load

        path = self._settings.consumer_filter_json
        found = load(path, self._bloom, parts=self._settings.dialect.filter_parts)
        if found.ignored is not None:
            _LOG.warning("%s is ignored: %s", path, found.ignored)
        return {topic: TopicFilters(filters, self._bloom) for topic, filters in found.by_topic.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run writes, and what; all its tasks get it."""

    settings: StoreSettings  # the store's
    root: Path  # gets the store's layout
    scratch: Path  # for spills
    selection: Selection  # the queues that are wanted
    index: bool  # index keys are wanted
    owner: Owner | None  # of new files; None for the process's own
    flush_in_tasks: bool  # tasks fsync what they wrote, because the driver is on another host
    #: tasks don't share a page cache. They write only new files, below ``scratch``, and the driver
    #: alone gives these their names and changes files that have one
    several_hosts: bool = False
    keys_in_memory: bool = False  # index keys stay in memory, because tasks run in the process that puts them
    filters: FiltersNow | None = None  # of consumers; None where units have no bit maps
    index_in_rocksdb: bool = False  # index keys are wanted for a database, too

    @property
    def is_whole(self) -> bool:
        """Whether the output is of the whole store: every queue, and the index if the broker has one."""
        return self.selection.is_all and (self.index or not self.settings.message_index_enable)

    @property
    def queue_files(self) -> bool:
        """Whether queues are written as files."""
        return self.settings.rocksdb.files

    @property
    def queues_in_rocksdb(self) -> bool:
        """Whether queues are written into a database, too."""
        return self.settings.rocksdb.queues is not None and self.selection.is_all

    @property
    def in_rocksdb(self) -> bool:
        """Whether anything is written into a database."""
        return self.queues_in_rocksdb or self.index_in_rocksdb

    @property
    def runs(self) -> Path:
        """Where tasks put units for a database."""
        return self.root / names.REPUT / names.ROCKSDB

    @property
    def queue_ext(self) -> bool:
        """Whether queues have units in consumequeue_ext as well."""
        return self.settings.recovery.queue_ext and self.queue_files

    def file_system(self) -> FileSystem | None:
        """The output's, for those who flush what they wrote; None where the driver does that."""
        return FileSystem(self.root, self.settings.root) if self.flush_in_tasks else None

    def is_ordered(self, topic: str) -> bool:
        """Whether a topic's queues are written in log order; see reput.output.appended_queues."""
        return self.queue_files and (self.queue_ext or self.selection.is_batch(topic))

    def _excludes_lmq(self, topic: str) -> bool:
        # Only ConsumeQueue dispatches to light queues (ConsumeQueue.putMessagePositionInfoWrapper).
        return self.settings.dialect.lmq_excludes(topic) or self.selection.is_batch(topic)

    def rules(self) -> Rules:
        """The scan's switches."""
        return self._file_rules() if self.queue_files else self.rocksdb_rules()

    def _file_rules(self) -> Rules:
        found = rules(self.settings, index=self.index)
        # Whether a message has keys there is asked anew; see reput.build.rocksdb.
        return found._replace(index_keys=True, index_tags=True) if self.index_in_rocksdb else found

    def table(self) -> QueueTable:
        """A table that knows which topics are wanted."""
        if not self.queue_files:
            return self.rocksdb_table()
        return QueueTable(
            excludes_lmq=lambda topic: self._excludes_lmq(topic.decode("utf-8", "replace")),
            wants_units=self.selection.wants_topic,
        )

    def topic_problem(self, topic: bytes) -> str | None:
        """Why no queue of a topic can be written; None when it can."""
        return names.topic_problem(topic) if self.queue_files else rocksdbqueue.topic_problem(topic)

    def rocksdb_rules(self) -> Rules:
        """The scan's switches for queues in RocksDB.

        Source: ``RocksDBConsumeQueueStore.dispatchLMQ``, ``DispatchRequest.containsLMQ`` (5.3.3, 5.5.0):
        enableMultiDispatch isn't asked, batch queues don't differ, and a slash in a name is no matter.
        """
        return self._file_rules()._replace(
            multi_dispatch=self.settings.rocksdb.lmq, lmq_queue_zero=True, lmq_rejects_slash=False
        )

    def rocksdb_table(self) -> QueueTable:
        """A table of queues in RocksDB that knows which topics are wanted."""
        return QueueTable(
            excludes_lmq=lambda topic: self.settings.dialect.lmq_excludes(topic.decode("utf-8", "replace")),
            wants_units=self.selection.wants_topic,
            problem=rocksdbqueue.topic_problem,
        )
