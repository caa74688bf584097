"""What a report says of a store, as plain values: no path objects, no arrays, nothing that needs Spark.

``Facts.to_dict`` is what ``reput report --json`` prints; docs/data/json.md has its fields. Times are ms since
the epoch, ranges are half open, offsets of the log are physical offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reput.config.basis import Basis
from reput.diagnosis.verdict import Finding, Judged, Sort, Verdict
from reput.verify.report import Note

#: How bad something is, as the page colours it.
SOUND, ATTENTION, BROKEN = "sound", "attention", "broken"

WRITTEN, UNWRITTEN, CORRUPT, MISSING, EXPIRED = "written", "unwritten", "corrupt", "missing", "expired"
UNREAD = "unread"
#: The kind of a queue that has no files.
IN_ROCKSDB = "rocksdb"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of the log."""

    kind: str  # "expired", "written", "corrupt", "missing", "unwritten" or "unread"
    start: int  # start, end: physical offsets
    end: int
    note: str = ""  # what is known of it


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment."""

    path: str
    base: int  # physical offset of its first byte
    length: int  # bytes of the file that belong to the log
    messages: int | None = None  # whole messages that begin in it; None where the log wasn't read
    #: first_time, last_time: storeTimestamp of its first and its last message, ms; None without one
    first_time: int | None = None
    last_time: int | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """How far something goes in the log."""

    name: str  # what, e.g. "queues"
    offset: int | None  # the physical offset up to which it goes; None where it can't be told
    time_ms: int | None  # the time that says so; None where none does
    note: str  # what that means


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The commit log."""

    start: int  # physical offset of the first byte that there is; above 0 when the head has expired
    end: int  # after the last whole message or BLANK
    allocated: int  # after the last byte of the last segment
    segment_size: int  # bytes that a segment spans
    segments: tuple[SegmentFacts, ...] = ()  # in log order
    stretches: tuple[Stretch, ...] = ()  # what is where, from 0 to ``allocated``, without gaps, in order
    reaches: tuple[Reach, ...] = ()  # how far checkpoint, queues and index go
    read: bool = False  # whether its messages were read
    messages: int | None = None  # messages, bytes: whole messages; None where it wasn't read
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue."""

    topic: str  # topic, queue_id: which one
    queue_id: int
    kind: str  # "plain" or "batch"; "rocksdb" where it is in RocksDB, and has no files
    #: min_offset, max_offset: the first queueOffset that consumers get, and that of the next message;
    #: None where it has no files or they can't be read
    min_offset: int | None
    max_offset: int | None
    files: int  # files, bytes: its files, and how long they are
    bytes: int
    log_messages: int | None = None  # messages in the log that belong to it; None where the log wasn't read
    log_next: int | None = None  # the queueOffset after its last message in the log; None without one
    last_time: int | None = None  # storeTimestamp of its last message, ms; None if missing
    #: queueOffsets that the log has and the files don't reach; None where that can't be told, and
    #: where the log has no message of the queue
    behind: int | None = None
    problem: str | None = None  # why the offsets can't be told

    @property
    def is_there(self) -> bool:
        """Whether it has files, or keys in RocksDB."""
        return bool(self.files) or self.max_offset is not None


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """All queues together."""

    queues: int = 0  # those with files or in RocksDB, and those that the log has messages of
    topics: int = 0  # of these
    files: int = 0  # files, bytes: of all, those of RocksDB included
    bytes: int = 0
    units: int = 0  # queueOffsets from the first to the next, of all
    behind: int = 0  # queues that the log is ahead of


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic, as far as the log has messages of it."""

    topic: str  # its name; bytes that are no UTF-8 show as escapes
    queues: int  # queues of it
    messages: int  # messages, bytes: in the log
    bytes: int
    least: int  # least, most: bytes of the smallest and the largest message; 0 without one
    most: int
    #: first_time, last_time: storeTimestamp of the first and the last message, ms; None without one
    first_time: int | None
    last_time: int | None
    skew: float | None = None  # of the queues that have files; see :func:`reput.report.queues.skew`


@dataclass(frozen=True, slots=True)
class Series:
    """Traffic of one topic, or of all others together."""

    topic: str | None  # its name; None for the others
    messages: tuple[int, ...]  # messages, bytes: one number for each bucket
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages by the time at which they were stored."""

    start_ms: int  # of the first bucket; a multiple of ``width_ms``
    width_ms: int  # of a bucket
    series: tuple[Series, ...]  # the topics with the most messages, most first, then the others
    without_time: int = 0  # messages whose storeTimestamp is no time that a clock may have had
    topics_in_others: int = 0  # topics that the last series stands for


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of messages as they stand in the log, headers and properties included."""

    #: bytes[n + 1]: bar ``i`` counts sizes from ``bounds[i]`` up to but not ``bounds[i + 1]``
    bounds: tuple[int, ...]
    counts: tuple[int, ...]  # messages[n]
    mean: float  # bytes
    p50: int  # p50, p90, p99: bytes, to within a fifth
    p90: int
    p99: int
    least: int  # least, most: bytes, exact
    most: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file, by its header."""

    name: str  # the file's
    keys: int  # entries
    room: int  # entries that it has room for
    first_time: int | None  # first_time, last_time: ms; None without entries
    last_time: int | None
    start: int  # start, end: physical offsets of the first and the last message with a key
    end: int
    bytes: int  # the file's length


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group of consumers is behind on a topic."""

    group: str  # group, topic: which
    topic: str
    queues: int  # queues of the topic that it is about
    lag: int  # messages that it still has to read
    expired: int  # messages that went before it read them
    oldest_stored: int | None  # storeTimestamp of the oldest of its next messages, ms; None without one
    notes: tuple[str, ...] = ()  # what is odd about its offsets


@dataclass(slots=True)
class Facts(Judged):
    """A store, at one moment."""

    store: str  # its directory
    broker_conf: str | None  # the file of settings, if one was given
    rocketmq_version: str  # the release by whose rules it was read
    reput_version: str  # of the program
    made_at: int  # ms
    #: what was assumed of settings, and what the store says against those given
    basis: Basis = field(default_factory=Basis)
    seconds: float = 0.0  # how long it took
    clean: bool | None = None  # the last broker stopped in good order; None where that wasn't looked at
    in_use_by: str | None = None  # who uses the store; None without anybody
    #: what it comes to, as ``reput check`` says it
    verdict: Verdict = field(default_factory=lambda: Verdict(Sort.UNKNOWN, "", "", ""))
    findings: list[Finding] = field(default_factory=list)  # all that is wrong, the worst first
    notes: list[Note] = field(default_factory=list)  # what is odd and legal
    next_steps: list[str] = field(default_factory=list)  # what to do, in order
    quick: bool = False  # only what a start reads was looked at
    #: what a start does, as ``reput check --json`` has it; None where that isn't foretold
    starting: dict[str, Any] | None = None
    log: LogFacts | None = None  # the commit log; None where it can't be read
    queues: list[QueueFacts] = field(default_factory=list)  # by topic and id
    queue_totals: QueueTotals = field(default_factory=QueueTotals)  # of all of them
    #: those that the log has messages of, most messages first
    topics: list[TopicFacts] = field(default_factory=list)
    traffic: Traffic | None = None  # traffic, sizes: None where the log wasn't read, or has no message
    sizes: Sizes | None = None
    index: list[IndexFile] = field(default_factory=list)  # index files in order
    #: by group and topic; None where it can't be told: ``not_seen`` says why
    lag: list[GroupLag] | None = None
    #: ages_to, ages_to_ms: up to when the ages of ``lag`` count, as :class:`reput.lag.AgesTo` names
    #: it, and that moment, ms; None without ``lag``
    ages_to: str | None = None
    ages_to_ms: int | None = None
    not_seen: list[str] = field(default_factory=list)  # what this page doesn't say, and why

    hidden = ("verdict",)
