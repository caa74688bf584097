"""From a store to the facts of its report. Nothing is changed; what can't be read is said instead of raised.

What is wrong with the store is said by one diagnosis, the same as that of ``reput check``; the rest of the
page is beside it. A page is wanted most of a store that is damaged: only what makes the question itself
senseless (no store, a broker.conf that can't be read) is refused. Every other failure of a part leaves that
part out, and says why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import reput
from reput.broker.snapshot import IndexEntry, Snapshot, take
from reput.broker.walk import begin
from reput.config.settings import StoreSettings
from reput.derived.files import Listing
from reput.diagnosis.check import (
    HALF_REPLACED,
    NOT_FORETOLD,
    Diagnosis,
    check,
    not_looked_at,
    settings_to_look,
)
from reput.errors import RemoteStoreError, ReputError, SettingsError, StoreError
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.lag import Flag, LagReport, lag
from reput.log.end import LogEnd
from reput.log.segments import CommitLog, Segment, discover, without_unwritten_end
from reput.query import QueryStore
from reput.replay.state import collector_paused
from reput.report import log_scan
from reput.report.facts import (
    CORRUPT,
    EXPIRED,
    MISSING,
    UNREAD,
    UNWRITTEN,
    WRITTEN,
    Facts,
    GroupLag,
    IndexFile,
    LogFacts,
    QueueFacts,
    Reach,
    SegmentFacts,
    Stretch,
    TopicFacts,
)
from reput.report.log_scan import LogScan, Tally, scan_log
from reput.report.queues import QueuesSeen, queue_facts, skew
from reput.statistics import Listener
from reput.store.lock import may_be_running
from reput.verify.plan import VerifyOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Findings whose range holds no message that can be read.
_DAMAGE = frozenset(
    {"bad-size", "bad-magic", "bad-physical-offset", "bad-lengths", "unwritten-range", "torn-tail"}
)
#: Findings about a message that is there all the same.
_BAD_MESSAGES = frozenset({"bad-crc", "bad-property-crc", "bad-delay", "bad-inner-batch", "torn-properties"})


def log_facts(
    snapshot: Snapshot, log: CommitLog, scan: LogScan | None, seen: QueuesSeen, *, end: int
) -> LogFacts:
    """The map of a log.

    Args:
        log: without segments at its end that nothing was written to.
        scan: None where it wasn't read.
        end: physical offset after the last whole message, as far as that is known without a scan.
    """
    every = discover(snapshot.settings).segments
    allocated = every[-1].base + every[-1].length
    reached = end if scan is None else scan.end
    return LogFacts(
        start=log.start,
        end=reached,
        allocated=allocated,
        segment_size=log.segment_size,
        segments=tuple(_segment(segment, scan) for segment in every),
        stretches=tuple(_stretches(every, log.segment_size, scan, reached)),
        reaches=tuple(_reaches(snapshot, log, scan, seen)),
        read=scan is not None,
        messages=None if scan is None else scan.messages,
        bytes=None if scan is None else scan.bytes,
    )


def _segment(segment: Segment, scan: LogScan | None) -> SegmentFacts:
    found = SegmentFacts(os.fspath(segment.path), segment.base, segment.length)
    if scan is None:
        return found
    return replace(scan.segments.get(segment.base, replace(found, messages=0)), length=segment.length)


def _stretches(segments: Iterable[Segment], size: int, scan: LogScan | None, end: int) -> Iterator[Stretch]:
    """What lies where, from 0 on, without gaps."""
    at = 0
    damaged = [] if scan is None else sorted(_damaged(scan), key=lambda one: (one.start, one.end))
    for segment in segments:
        if segment.base > at:
            kind = MISSING if at else EXPIRED
            note = "no segment is there" if at else "deleted: it had expired, or was never copied here"
            yield Stretch(kind, at, segment.base, note)
        stop = segment.base + segment.length
        written = min(max(end, segment.base), stop)
        yield from _written(segment.base, written, damaged, known=scan is not None)
        if written < stop:
            torn = [one for one in damaged if one.start >= written]
            yield Stretch(
                UNWRITTEN,
                written,
                stop,
                torn[0].note if torn else "made ahead of time: the broker goes on writing here",
            )
        at = stop
        if segment.length < size and written == stop:
            yield Stretch(MISSING, stop, segment.base + size, "the segment is shorter than the others")
            at = segment.base + size


def _damaged(scan: LogScan) -> Iterator[Stretch]:
    for finding in scan.findings:
        if finding.kind in _DAMAGE or finding.kind in _BAD_MESSAGES:
            note = f"{finding.kind}: expected {finding.expected}, found {finding.found}; {finding.outcome}"
            yield Stretch(CORRUPT, finding.offset, finding.end, note)


def _written(start: int, end: int, damaged: list[Stretch], *, known: bool) -> Iterator[Stretch]:
    kind = WRITTEN if known else UNREAD
    for one in damaged:
        low, high = max(one.start, start), min(one.end, end)
        if low >= high:
            continue
        if low > start:
            yield Stretch(kind, start, low)
        yield Stretch(CORRUPT, low, high, one.note)
        start = high
    if start < end:
        yield Stretch(kind, start, end)


def _reaches(snapshot: Snapshot, log: CommitLog, scan: LogScan | None, seen: QueuesSeen) -> Iterator[Reach]:
    vouched = [] if scan is None else scan.tally.counts.vouched.tolist()
    names = (
        (
            "checkpoint: log",
            "the log was flushed at least so far (physicMsgTimestamp; a good stop leaves it behind)",
        ),
        ("checkpoint: queues", "units of messages so far are vouched for (logicsMsgTimestamp)"),
        ("checkpoint: index", "the end of the last index file that was full and flushed (indexMsgTimestamp)"),
    )
    if snapshot.checkpoint_exists:
        for (name, note), (time, offset) in zip(names, vouched, strict=False):
            yield Reach(name, offset if offset >= 0 else log.start if time <= 0 else None, time or None, note)
        logics = snapshot.checkpoint.logics_physical_offset
        if logics > 0:
            yield Reach(
                "checkpoint: last unit", logics, None, "logicsPhysicalOffset of RocketMQ 5.5 and later"
            )
    if seen.end >= 0:
        yield Reach("queues", seen.end, None, "the last message that a queue's files know of")
    if snapshot.index:
        header = snapshot.index[-1].header
        yield Reach(
            "index",
            header.end_physical_offset,
            header.end_timestamp or None,
            "the last message with a key in the last index file",
        )
    if snapshot.starts and snapshot.log.files and snapshot.settings.dledger is None:
        with suppress(StoreError):  # a segment that the scan has reported, or that has just expired
            first = snapshot.log.files[begin(snapshot, seen.end)].base
            yield Reach("next start", first, None, "a broker that starts now walks the log from here on")


#: A clock that is ahead of ours by more wasn't right, ms.
_AHEAD_MS = 86_400_000

_T = TypeVar("_T")
_FLAGS = {
    Flag.EXPIRED: "messages expired unread",
    Flag.PAST_END: "offset past the queue's end",
    Flag.NO_QUEUE: "no such queue",
    Flag.UNREADABLE: "next message can't be read",
    Flag.NOT_COMMITTED: "never committed",
}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """What is asked for."""

    store: Path  # its directory
    broker_conf: Path | None = None  # the broker's own file; None for what the store shows
    rocketmq_version: str | None = None  # the release; None for the one that the store shows
    #: read only what a start reads: nothing is compared with the log, and there is no traffic
    quick: bool = False
    at: int | None = None  # the moment of the report, ms; None for now


def gather(
    options: GatherOptions,
    start_spark: Callable[[], SparkSession] | None = None,
    say: Say = lambda _what: None,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Facts:
    """Look at a store.

    Args:
        start_spark: gives a session whose executors compare; None to compare on this host's processes.
        say: gets what is being done.
        listener: gets how far the log was read.

    Raises:
        ReputError: there is no store, the settings can't be read, or it is of a kind that reput can't read.
    """
    started = time.perf_counter()
    now = int(time.time() * 1000) if options.at is None else options.at
    settings = settings_to_look(options.store, options.broker_conf, options.rocketmq_version)
    facts = Facts(
        store=settings.place,
        broker_conf=None if settings.broker_conf is None else str(settings.broker_conf),
        rocketmq_version=settings.told_release,
        basis=settings.basis,
        reput_version=reput.__version__,
        made_at=now,
        quick=options.quick,
    )
    _Gathering(options, settings, facts, say, listener).run(start_spark)
    facts.seconds = time.perf_counter() - started
    return facts


class _Gathering:
    """One run."""

    def __init__(
        self, options: GatherOptions, settings: StoreSettings, facts: Facts, say: Say, listener: Listener
    ) -> None:
        self._options = options
        self._settings = settings
        self._facts = facts
        self._say = say
        self._listener = listener
        self._running = may_be_running(settings.root)

    def run(self, start_spark: Callable[[], SparkSession] | None) -> None:
        facts, settings = self._facts, self._settings
        self._say("checking")
        found = self._diagnosed(start_spark)
        if any(one.kind == HALF_REPLACED for one in found.findings):
            return
        with collector_paused():
            snapshot, is_whole = self._snapshot(found)
        facts.clean = snapshot.clean
        facts.in_use_by = None if snapshot.holder is None else snapshot.holder.what
        log, end = self._attempt("the commit log", self._log) or (None, 0)
        scan = None
        if log is not None and not facts.quick:
            what = "messages, traffic and the map of the commit log"
            scan = self._attempt(what, lambda: self._scan(log, end, snapshot))
        seen = None
        store = (
            None if self._running or log is None else self._attempt("the log", lambda: QueryStore(settings))
        )
        if is_whole:
            self._say("looking at the queues")
            with collector_paused():
                seen = self._attempt(
                    "the queues",
                    lambda: queue_facts(snapshot, log, scan, running=self._running, store=store),
                )
        seen = seen or QueuesSeen()
        facts.queues, facts.queue_totals = seen.rows, seen.totals
        room = settings.max_index_num - 1
        facts.index = [_index_file(entry, room) for entry in snapshot.index]
        if log is not None:
            facts.log = self._attempt(
                "the map of the commit log", lambda: log_facts(snapshot, log, scan, seen, end=end)
            )
        if scan is not None:
            topics, facts.traffic, facts.sizes = log_scan.traffic(scan)
            facts.topics = _with_skew(topics, facts.queues)
        self._say("looking at consumers")
        late = self._attempt("the consumers' lag", lambda: lag(settings, store=store))
        if late is not None:
            facts.lag = _group_lag(late)
            facts.ages_to, facts.ages_to_ms = str(late.ages_to), late.reference
        if settings.rocksdb.index:
            facts.not_seen.append(
                f"{names.ROCKSDB_STORE}: `reput dump index` shows the keys of an index in RocksDB; "
                "here they aren't counted"
            )

    def _diagnosed(self, start_spark: Callable[[], SparkSession] | None) -> Diagnosis:
        """What ``reput check`` says; a store whose files can't be read isn't known to be anything.

        Raises:
            ReputError: this is no store at all, or it is elsewhere and can't be reached.
        """
        options, facts, settings = self._options, self._facts, self._settings
        wanted = VerifyOptions(options.store, None, options.broker_conf, options.rocketmq_version)
        try:
            found = check(wanted, start_spark, self._listener, quick=facts.quick)
        except (RemoteStoreError, SettingsError):
            raise
        except ReputError as error:
            if not any(directory.is_dir() for directory in settings.commit_log_dirs):
                raise
            found = Diagnosis(settings, [not_looked_at(NOT_FORETOLD, settings, error)], quick=facts.quick)
        facts.verdict, facts.findings, facts.notes = found.verdict, found.findings, found.notes
        facts.next_steps, facts.not_seen = found.next_steps, list(found.not_read)
        facts.starting = None if found.plan is None else found.plan.facts()
        return found

    def _attempt(self, what: str, work: Callable[[], _T]) -> _T | None:
        """What came of it; None, with a note, of a part that can't be read."""
        try:
            return work()
        except RemoteStoreError:
            raise
        except ReputError as error:
            self._facts.not_seen.append(f"{what}: {error}")
        except OSError as error:
            self._facts.not_seen.append(f"{what}: {error.filename or ''} {error.strerror or error}".strip())
        return None

    def _log(self) -> tuple[CommitLog, int]:
        """The log, without segments that nothing was written to, and where it ends, if it isn't scanned."""
        log = without_unwritten_end(discover(self._settings))
        here = self._running or self._facts.quick
        return log, LogEnd(self._settings).find(log) if here else log.end

    def _snapshot(self, found: Diagnosis) -> tuple[Snapshot, bool]:
        """The store as a broker loads it, and whether it can be looked at: if not, nothing is in it."""
        settings = self._settings
        try:
            return found.snapshot or take(settings), True
        except StoreError:
            self._facts.not_seen.append("queues, index and checkpoint: the store's files can't be read")
        size = settings.segment_size
        nothing = Snapshot(
            settings=settings,
            clean=not (settings.root / names.ABORT).exists(),
            segment_size=size or 0,
            log=Listing(),
            queues={},
            batch_queues={},
            checkpoint=StoreCheckpoint(),
            checkpoint_exists=False,
            index=(),
            holder=None,
        )
        return nothing, False

    def _scan(self, log: CommitLog, end: int, snapshot: Snapshot) -> LogScan:
        checkpoint = snapshot.checkpoint
        self._say("reading the commit log")
        times = (
            checkpoint.physic_msg_timestamp,
            checkpoint.logics_msg_timestamp,
            checkpoint.index_msg_timestamp,
        )
        tally = Tally(self._facts.made_at + _AHEAD_MS, times)
        return scan_log(self._settings, log, end, tally, self._listener)


def _index_file(entry: IndexEntry, room: int) -> IndexFile:
    header = entry.header
    keys = max(header.index_count - 1, 0)
    return IndexFile(
        name=entry.path.name,
        keys=keys,
        room=room,
        first_time=header.begin_timestamp if keys else None,
        last_time=header.end_timestamp if keys else None,
        start=header.begin_physical_offset,
        end=header.end_physical_offset,
        bytes=entry.length,
    )


def _with_skew(topics: list[TopicFacts], queues: list[QueueFacts]) -> list[TopicFacts]:
    """The topics, with how unevenly their messages lie in their queues."""
    of_topic: dict[str, list[QueueFacts]] = {}
    for row in queues:
        of_topic.setdefault(row.topic, []).append(row)
    return [replace(one, skew=skew(of_topic.get(one.topic, ()))) for one in topics]


def _group_lag(found: LagReport) -> list[GroupLag]:
    """A row for each group and topic, the greatest lag first."""
    return [
        GroupLag(
            group=one.group,
            topic=one.topic,
            queues=one.queues,
            lag=one.lag,
            expired=one.expired,
            oldest_stored=one.oldest_stored,
            notes=tuple(
                f"{_FLAGS.get(flag, str(flag))}: {number:,} of {one.queues:,} queues"
                for flag, number in one.flags.items()
            ),
        )
        for one in found.groups
    ]
