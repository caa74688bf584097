"""What a report says of a store, as plain values: no path objects, no arrays, nothing that needs Spark.

``Facts.to_dict`` is what ``reput report --json`` prints; docs/data/json.md has its fields. Times are ms since
the epoch, ranges are half open, offsets of the log are physical offsets.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from reput.config.evidence import Basis
from reput.diagnosis.verdict import Finding, Sort, Verdict
from reput.verify.report import Note

#: What JSON calls attributes: by what they are in all documents (docs/interface.md).
_NAMES = {
    "made_at": "made_ms",
    "first_time": "first_store_timestamp",
    "last_time": "last_store_timestamp",
    "oldest_stored": "oldest_store_timestamp",
    "least": "min_size",
    "most": "max_size",
    "mean": "mean_size",
    "median": "p50_size",
    "p90": "p90_size",
    "p99": "p99_size",
    "not_seen": "not_read",
}

#: How bad something is, as the page colours it.
SOUND, ATTENTION, BROKEN = "sound", "attention", "broken"

WRITTEN, UNWRITTEN, CORRUPT, MISSING, EXPIRED = "written", "unwritten", "corrupt", "missing", "expired"
UNREAD = "unread"
#: The kind of a queue that has no files.
IN_ROCKSDB = "rocksdb"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of the log.

    Attributes:
        kind: "expired", "written", "corrupt", "missing", "unwritten" or "unread".
        start, end: physical offsets.
        note: what is known of it.
    """

    kind: str
    start: int
    end: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment.

    Attributes:
        base: physical offset of its first byte.
        length: bytes of the file that belong to the log.
        messages: whole messages that begin in it; None where the log wasn't read.
        first_time, last_time: storeTimestamp of its first and its last message, ms; None without one.
    """

    path: str
    base: int
    length: int
    messages: int | None = None
    first_time: int | None = None
    last_time: int | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """How far something goes in the log.

    Attributes:
        name: what, e.g. "queues".
        offset: the physical offset up to which it goes; None where it can't be told.
        time_ms: the time that says so; None where none does.
        note: what that means.
    """

    name: str
    offset: int | None
    time_ms: int | None
    note: str


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The commit log.

    Attributes:
        start: physical offset of the first byte that there is; above 0 when the head has expired.
        end: after the last whole message or BLANK.
        allocated: after the last byte of the last segment.
        segment_size: bytes that a segment spans.
        segments: in log order.
        stretches: what is where, from 0 to ``allocated``, without gaps, in order.
        reaches: how far checkpoint, queues and index go.
        read: whether its messages were read.
        messages, bytes: whole messages; None where it wasn't read.
    """

    start: int
    end: int
    allocated: int
    segment_size: int
    segments: tuple[SegmentFacts, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    reaches: tuple[Reach, ...] = ()
    read: bool = False
    messages: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue.

    Attributes:
        topic, queue_id: which one.
        kind: "plain" or "batch"; "rocksdb" where it is in RocksDB, and has no files.
        min_offset, max_offset: the first queueOffset that consumers get, and that of the next message; None
            where it has no files or they can't be read.
        files, bytes: its files, and how long they are.
        log_messages: messages in the log that belong to it; None where the log wasn't read.
        log_next: the queueOffset after its last message in the log; None without one.
        last_time: storeTimestamp of its last message, ms; None if missing.
        behind: queueOffsets that the log has and the files don't reach; None where that can't be told, and
            where the log has no message of the queue.
        problem: why the offsets can't be told.
    """

    topic: str
    queue_id: int
    kind: str
    min_offset: int | None
    max_offset: int | None
    files: int
    bytes: int
    log_messages: int | None = None
    log_next: int | None = None
    last_time: int | None = None
    behind: int | None = None
    problem: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether it has files, or keys in RocksDB."""
        return bool(self.files) or (self.kind == IN_ROCKSDB and self.max_offset is not None)


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """All queues together.

    Attributes:
        queues: those with files or in RocksDB, and those that the log has messages of.
        topics: of these.
        files, bytes: of all, those of RocksDB included.
        units: queueOffsets from the first to the next, of all.
        behind: queues that the log is ahead of.
    """

    queues: int = 0
    topics: int = 0
    files: int = 0
    bytes: int = 0
    units: int = 0
    behind: int = 0


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic, as far as the log has messages of it.

    Attributes:
        topic: its name; bytes that are no UTF-8 show as escapes.
        queues: queues of it.
        messages, bytes: in the log.
        least, most: bytes of the smallest and the largest message; 0 without one.
        first_time, last_time: storeTimestamp of the first and the last message, ms; None without one.
        skew: of the queues that have files; see :func:`reput.report.queues.skew`.
    """

    topic: str
    queues: int
    messages: int
    bytes: int
    least: int
    most: int
    first_time: int | None
    last_time: int | None
    skew: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Traffic of one topic, or of all others together.

    Attributes:
        topic: its name; None for the others.
        messages, bytes: one number for each bucket.
    """

    topic: str | None
    messages: tuple[int, ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages by the time at which they were stored.

    Attributes:
        start_ms: of the first bucket; a multiple of ``width_ms``.
        width_ms: of a bucket.
        series: the topics with the most messages, most first, then the others.
        without_time: messages whose storeTimestamp is no time that a clock may have had.
        topics_in_others: topics that the last series stands for.
    """

    start_ms: int
    width_ms: int
    series: tuple[Series, ...]
    without_time: int = 0
    topics_in_others: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of messages as they stand in the log, headers and properties included.

    Attributes:
        bounds: bytes[n + 1]: bar ``i`` counts sizes from ``bounds[i]`` up to but not ``bounds[i + 1]``.
        counts: messages[n].
        mean: bytes.
        median, p90, p99: bytes, to within a fifth.
        least, most: bytes, exact.
    """

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    mean: float
    median: int
    p90: int
    p99: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file, by its header.

    Attributes:
        name: the file's.
        keys: entries.
        room: entries that it has room for.
        first_time, last_time: ms; None without entries.
        start, end: physical offsets of the first and the last message with a key.
        bytes: the file's length.
    """

    name: str
    keys: int
    room: int
    first_time: int | None
    last_time: int | None
    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group of consumers is behind on a topic.

    Attributes:
        group, topic: which.
        queues: queues of the topic that it is about.
        lag: messages that it still has to read.
        expired: messages that went before it read them.
        oldest_stored: storeTimestamp of the oldest of its next messages, ms; None without one.
        notes: what is odd about its offsets.
    """

    group: str
    topic: str
    queues: int
    lag: int
    expired: int
    oldest_stored: int | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Facts:
    """A store, at one moment.

    Attributes:
        store: its directory.
        broker_conf: the file of settings, if one was given.
        rocketmq_version: the release by whose rules it was read.
        basis: what was assumed of settings, and what the store says against those given.
        reput_version: of the program.
        made_at: ms.
        seconds: how long it took.
        clean: the last broker stopped in good order; None where that wasn't looked at.
        in_use_by: who uses the store; None without anybody.
        verdict: what it comes to, as ``reput check`` says it.
        findings: all that is wrong, the worst first.
        notes: what is odd and legal.
        next_steps: what to do, in order.
        quick: only what a start reads was looked at.
        starting: what a start does, as ``reput check --json`` has it; None where that isn't foretold.
        log: the commit log; None where it can't be read.
        queues: by topic and id.
        queue_totals: of all of them.
        topics: those that the log has messages of, most messages first.
        traffic, sizes: None where the log wasn't read, or has no message.
        index: index files in order.
        lag: by group and topic; None where it can't be told: ``not_seen`` says why.
        ages_to, ages_to_ms: up to when the ages of ``lag`` count, as :class:`reput.lag.AgesTo` names it, and
            that moment, ms; None without ``lag``.
        not_seen: what this page doesn't say, and why.
    """

    store: str
    broker_conf: str | None
    rocketmq_version: str
    reput_version: str
    made_at: int
    basis: Basis = field(default_factory=Basis)
    seconds: float = 0.0
    clean: bool | None = None
    in_use_by: str | None = None
    verdict: Verdict = field(default_factory=lambda: Verdict(Sort.UNKNOWN, "", "", ""))
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    quick: bool = False
    starting: dict[str, Any] | None = None
    log: LogFacts | None = None
    queues: list[QueueFacts] = field(default_factory=list)
    queue_totals: QueueTotals = field(default_factory=QueueTotals)
    topics: list[TopicFacts] = field(default_factory=list)
    traffic: Traffic | None = None
    sizes: Sizes | None = None
    index: list[IndexFile] = field(default_factory=list)
    lag: list[GroupLag] | None = None
    ages_to: str | None = None
    ages_to_ms: int | None = None
    not_seen: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """That of ``reput check``."""
        return self.verdict.exit_code

    def to_dict(self) -> dict[str, object]:
        """The facts as a JSON-ready mapping."""
        facts = _named(asdict(replace(self, basis=Basis(), queues=[], findings=[])))
        facts["queues"] = [dict(zip(_QUEUE_NAMES, _of_queue(row), strict=True)) for row in self.queues]
        return {
            "verdict": self.verdict.sort,
            "summary": self.verdict.text,
            **{name: value for name, value in facts.items() if name not in ("verdict", "basis")},
            "rocketmq_version": self.basis.rocketmq_version,
            "settings": self.basis.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }


#: What JSON has of a queue, of which there may be 100,000.
_QUEUE_NAMES = tuple(_NAMES.get(one.name, one.name) for one in fields(QueueFacts))
_of_queue = attrgetter(*(one.name for one in fields(QueueFacts)))


def _named(value: Any) -> Any:
    """A value with JSON's names of what is in it."""
    if isinstance(value, dict):
        return {_NAMES.get(name, name): _named(one) for name, one in value.items()}
    return [_named(one) for one in value] if isinstance(value, (list, tuple)) else value
