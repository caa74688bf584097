"""What :func:`reput.statistics.count` gives."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from reput.config.evidence import Basis
from reput.errors import Finding
from reput.newer_python import StrEnum


class By(StrEnum):
    """What messages are grouped by."""

    TOPIC = "topic"
    QUEUE = "queue"
    TAG = "tag"
    HOUR = "hour"
    HOST = "host"


_KEYS = {
    By.TOPIC: ("topic",),
    By.QUEUE: ("topic", "queue_id"),
    By.TAG: ("topic", "tag"),
    By.HOUR: ("hour_ms",),
    By.HOST: ("host",),
}
_ALL_KEYS = ("topic", "queue_id", "tag", "hour_ms", "host")
#: What attributes of a group are called in JSON.
_NAMES = {
    "hour": "hour_ms",
    "least": "min_size",
    "most": "max_size",
    "p50": "p50_size",
    "p99": "p99_size",
    "first": "first_store_timestamp",
    "last": "last_store_timestamp",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Messages with something in common."""

    messages: int  # messages, bytes: how many, and of their whole records
    bytes: int
    least: int  # least, most: bytes of the smallest and the largest record
    most: int
    p50: int  # p50, p99: approximate percentiles of the sizes, bytes: at most 7 % off
    p99: int
    first: int  # first, last: least and greatest storeTimestamp, ms
    last: int
    keys: int  # keys, tags: messages with keys, with a tag
    tags: int
    #: whose sysFlag names a transaction's end: committed, as a rule. Those that wait for it are in
    #: ``RMQ_SYS_TRANS_HALF_TOPIC``, without that
    transactions: int
    #: with a delay level or a time of delivery. While they wait they are in ``SCHEDULE_TOPIC_XXXX`` or
    #: ``rmq_sys_wheel_timer``
    delayed: int
    retries: int  # that were consumed before, and failed
    #: topic, queue_id, tag, hour, host: of the group, None for what it isn't by. ``hour`` is where it
    #: begins, ms since 1970; ``tag`` is None, too, for messages without one; ``host`` is the
    #: producer's address
    topic: str | None = None
    queue_id: int | None = None
    tag: str | None = None
    hour: int | None = None
    host: str | None = None
    rest: bool = False  # whether these are all groups that came when there was no room for more

    @property
    def rate(self) -> float | None:
        """Messages a second between the first and the last; None for one moment."""
        return None if self.last <= self.first else self.messages * 1000 / (self.last - self.first)


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nothing was stored."""

    ms: int  # how long
    before: int  # before, after: storeTimestamp of the messages around it, ms
    before_offset: int  # before_offset, after_offset: their physical offsets
    after: int
    after_offset: int

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "gap_ms": self.ms,
            "before_store_timestamp": self.before,
            "before_physical_offset": self.before_offset,
            "after_store_timestamp": self.after,
            "after_physical_offset": self.after_offset,
        }


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a log, or a range of it, holds."""

    store: Path
    rocketmq_version: str  # whose rules
    by: By
    #: start, end: half-open range of physical offsets in which the messages begin. Where none was
    #: asked for, the log's: it ends after its last whole record, or BLANK
    start: int
    end: int
    allocated: int  # where the log's last segment ends, written or not
    total: Group | None  # all messages that were counted; None without any
    groups: tuple[Group, ...]  # by descending bytes, hours in their order
    gaps: tuple[Gap, ...]  # the longest, those with the most ms first
    steps_back: int  # messages stored earlier than the one before them in the log
    most_back: int  # by how much at most, ms
    findings: tuple[Finding, ...]  # missing segments, and segments of a wrong length
    seconds: float  # how long it took
    basis: Basis = field(default_factory=Basis)  # what the settings rest on
    #: storeTimestamp of the log's first and last message, ms, where nothing was counted in the time
    #: that was asked for; else None
    log_times: tuple[int, int] | None = None

    @property
    def exit_code(self) -> int:
        """1 when part of the log is missing."""
        return int(bool(self.findings))

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "store": str(self.store),
            "rocketmq_version": self.basis.rocketmq_version,
            "settings": self.basis.to_dict(),
            "by": str(self.by),
            "start": self.start,
            "end": self.end,
            "allocated": self.allocated,
            "total": None if self.total is None else self._group(self.total, ()),
            "groups": [self._group(group, _KEYS[self.by]) for group in self.groups],
            "gaps": [gap.to_dict() for gap in self.gaps],
            "steps_back": self.steps_back,
            "most_back_ms": self.most_back,
            "findings": [finding.to_dict() for finding in self.findings],
            "seconds": round(self.seconds, 3),
            "log_first_store_timestamp": None if self.log_times is None else self.log_times[0],
            "log_last_store_timestamp": None if self.log_times is None else self.log_times[1],
        }

    def _group(self, group: Group, keys: tuple[str, ...]) -> dict[str, object]:
        facts = {_NAMES.get(name, name): value for name, value in asdict(group).items()}
        named, rest = {name: facts.pop(name) for name in _ALL_KEYS}, facts.pop("rest")
        head = {"rest": True} if rest else {name: named[name] for name in keys}
        rate = None if group.rate is None else round(group.rate, 3)
        share = round(group.bytes / self.total.bytes, 6) if self.total is not None else None
        return {**head, **facts, "share": share, "messages_per_second": rate}
