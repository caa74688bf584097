"""The queues of a store: where each begins and ends, and whether it goes as far as the log.

The offsets are those that a broker finds when it loads the files (:mod:`reput.recovery`), the same that
consumers get.

The log isn't read, but for a record's head for each queue: the time of its last message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reput.broker.snapshot import Snapshot, queue_directories, take
from reput.config.kept import TopicConfig, batch_queue_topics, topic_configs
from reput.derived.files import Listing, in_order
from reput.derived.queues import Queues, recovered
from reput.derived.rocksdb import RocksQueues
from reput.diagnosis.findings import NO_QUEUES, not_derived
from reput.errors import RemoteStoreError, ReputError, Result, SettingsError, StartFailsError
from reput.format.dtypes import BATCH, PLAIN, Form
from reput.format.names import Queue
from reput.log.segments import CommitLog, discover
from reput.query import QueryStore
from reput.query.log import LogReader
from reput.report.facts import IN_ROCKSDB, QueueFacts, QueueTotals
from reput.report.log_scan import InLog, LogScan

if TYPE_CHECKING:
    from reput.config.settings import StoreSettings
    from reput.errors import Problem

_ODD_FILES = "files that aren't a queue's: see their names and lengths"


@dataclass(slots=True)
class QueuesSeen:
    """What came of looking at all queues."""

    rows: list[QueueFacts] = field(default_factory=list)  # by topic and queue id
    totals: QueueTotals = field(default_factory=QueueTotals)  # of all
    end: int = -1  # physical offset after the last message that a queue knows of, -1 if none does


def queue_facts(
    snapshot: Snapshot,
    log: CommitLog | None,
    scan: LogScan | None,
    *,
    running: bool,
    store: QueryStore | None = None,
) -> QueuesSeen:
    """Look at every queue.

    Without a log nothing has expired, as far as that can be told; without a scan the log wasn't read. Where a
    broker is running, none is called behind. ``store`` gets to know the queues in files.
    """
    if store is not None:
        for name in queue_directories(snapshot.settings):
            store.all_queues.know_listed(name, snapshot.all_queues[name])
    looking = _Looking(snapshot, log, scan, store, compares=scan is not None and not running)
    rows = sorted(looking.rows(), key=lambda row: (row.topic, row.queue_id))
    seen = QueuesSeen(rows, _totals(rows), looking.end)
    if looking.queues.in_rocksdb is not None:
        lengths = [entry.length for entry in in_order(looking.queues.in_rocksdb.path) if not entry.is_dir]
        of_files = seen.totals.files + len(lengths), seen.totals.bytes + sum(lengths)
        seen.totals = replace(seen.totals, files=of_files[0], bytes=of_files[1])
    return seen


class _Looking:
    """Goes over the queues; ``compares`` their ends with what the log has of them."""

    def __init__(
        self,
        snapshot: Snapshot,
        log: CommitLog | None,
        scan: LogScan | None,
        store: QueryStore | None,
        *,
        compares: bool,
    ) -> None:
        self._store = store
        self._compares = compares
        self._snapshot = snapshot
        self._log_start = 0 if log is None else log.start
        self._scan = scan
        self._reader = LogReader(snapshot.settings) if log is not None and scan is None else None
        self._batch_topics = _batch_topics(snapshot)
        self.queues = Queues(snapshot.settings)
        self.end = -1

    def rows(self) -> Iterator[QueueFacts]:
        """One for each queue that has files or is in RocksDB, or that has messages in the log."""
        in_log = dict(self._scan.queues) if self._scan is not None else {}
        for form, queues in self._snapshot.by_form.items():
            for of, listing in queues.items():
                yield self._row(of, form, listing, in_log.pop(of, None))
        if (kept := self.queues.in_rocksdb) is not None:
            for of in kept.read():
                yield self._row_in_rocksdb(kept, of, in_log.pop(of, None))
        for (topic, queue_id), known in in_log.items():
            kind = BATCH.name if topic in self._batch_topics else PLAIN.name
            if self.queues.is_in_rocksdb(topic):
                kind = IN_ROCKSDB
            yield QueueFacts(
                topic, queue_id, kind, None, None, 0, 0, known.messages, known.next, known.last_time
            )

    def _row(self, of: Queue, form: Form, listing: Listing, known: InLog | None) -> QueueFacts:
        settings = self._snapshot.settings
        _, size = settings.queue_file_sizes[form.directory]
        least = most = last_time = None
        problem = _why_unloadable(listing)
        if problem is None and size % form.unit_length:
            problem = f"files of {size} bytes hold no whole number of units"
        if problem is None and listing.files:
            try:
                model = recovered(form, settings, listing, self._log_start)
                least, most = max(model.min_offset, 0), model.max_offset
                self.end = max(self.end, model.max_physical)
                if self._store is not None:
                    self._store.all_queues.know(*of, self._log_start, model)
                if known is None:
                    last_time = model.last_time(self._reader)
            except IndexError:
                problem = _ODD_FILES  # such as one that begins between two units
            except RemoteStoreError:
                raise
            except (OSError, ValueError, StartFailsError, ReputError) as error:
                problem = str(error)
        of_files = len(listing.files), len(listing.files) * size
        behind = self._behind(known, most) if form.by_place else None
        return self._facts(of, form.name, known, (least, most), of_files, last_time, behind, problem)

    def _row_in_rocksdb(self, kept: RocksQueues, of: Queue, known: InLog | None) -> QueueFacts:
        least = most = last_time = problem = None
        try:
            view = kept.view(*of, self._log_start)
            least, most = view.min_offset, view.max_offset
            last = view.last()
            if last is not None:
                self.end, last_time = max(self.end, last[0]), last[1]
        except ReputError as error:
            least, problem = None, str(error)
        whole = problem is None and of[0] not in self._batch_topics
        ends = (None, None) if problem else (least, most)
        behind = self._behind(known, most) if whole else None
        return self._facts(of, IN_ROCKSDB, known, ends, (0, 0), last_time, behind, problem)

    def _facts(
        self,
        of: Queue,
        kind: str,
        known: InLog | None,
        ends: tuple[int | None, int | None],
        of_files: tuple[int, int],
        last_time: int | None,
        behind: int | None,
        problem: str | None,
    ) -> QueueFacts:
        messages = None if self._scan is None else 0 if known is None else known.messages
        following, last_time = (None, last_time) if known is None else (known.next, known.last_time)
        return QueueFacts(*of, kind, *ends, *of_files, messages, following, last_time, behind, problem)

    def _behind(self, known: InLog | None, most: int | None) -> int | None:
        """Places that the log has of a queue and that it doesn't reach; None where that can't be told.

        Where queueOffsets repeat in the log, as of a topic that was created anew, the last one tells nothing.
        """
        if not self._compares or known is None or most is None or not known.regular:
            return None
        return max(known.next - most, 0)


def _why_unloadable(listing: Listing) -> str | None:
    problem = listing.unloadable
    if problem is None:
        return None
    return f"{problem.path}: expected {problem.expected}, found {problem.found}"


def _totals(rows: list[QueueFacts]) -> QueueTotals:
    return QueueTotals(
        queues=len(rows),
        topics=len({row.topic for row in rows}),
        files=sum(row.files for row in rows),
        bytes=sum(row.bytes for row in rows),
        units=sum(
            row.max_offset - row.min_offset
            for row in rows
            if row.max_offset is not None and row.min_offset is not None
        ),
        behind=sum(bool(row.behind) for row in rows),
    )


def _batch_topics(snapshot: Snapshot) -> frozenset[str]:
    try:
        return frozenset(batch_queue_topics(snapshot.settings.config))
    except SettingsError:
        return frozenset()  # broken: a problem of its own


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
        """How unevenly its messages are spread over its queues; see :func:`skew`."""
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
class TopicList(Result):
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

    hidden = ("has_config", "unreadable", "lacking")

    def more(self) -> dict[str, object]:
        """What isn't a field by this name."""
        return {"findings": self.lacking, "next_steps": self.next_steps}


def topic_list(settings: StoreSettings, topic: str | None = None) -> TopicList:
    """The topics of a store, or one, and their queues as consumers get them.

    Source: ``ConsumeQueue.correctMinOffset``. Of a queue that can't be read, ``problem`` says why.
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
