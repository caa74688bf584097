"""From a store to the facts of its report. Nothing is changed; what can't be read is said instead of raised.

A page is wanted most of a store that is damaged: only what makes the question itself senseless (no store, a
broker.conf that can't be read) is refused. Every other failure of a part leaves that part out, and says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import reput
from reput.broker.files import Listing
from reput.broker.snapshot import IndexEntry, Snapshot, take
from reput.config.settings import StoreSettings
from reput.errors import RemoteStoreError, ReputError, StoreError
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.lag import Flag, LagReport, lag
from reput.log.end import LogEnd
from reput.log.segments import CommitLog, discover, without_unwritten_end
from reput.next_command import next_command
from reput.query import QueryStore
from reput.replay.state import collector_paused
from reput.report import shown
from reput.report.checks import (
    CHECK,
    LOG,
    QUEUES,
    VERIFY,
    checked,
    findings_of,
    told,
    unreadable,
    verified,
    worst,
)
from reput.report.facts import (
    ATTENTION,
    BROKEN,
    Check,
    Facts,
    GroupLag,
    IndexFile,
    QueueFacts,
    TopicFacts,
)
from reput.report.log_map import log_facts
from reput.report.log_scan import LogScan, scan_log
from reput.report.queue_findings import answer
from reput.report.queues import QueuesSeen, queue_facts
from reput.report.tally import Tally
from reput.report.topics import skew
from reput.report.verdict import verdict
from reput.statistics.count import Listener
from reput.store.ignored_features import ignored_features
from reput.verify.plan import may_be_running, refuse_half_replaced
from reput.words import counted

if TYPE_CHECKING:
    from reput.verify import Report

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
_STARTS = "Does a broker load this store and start?"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """What is asked for.

    Attributes:
        store: its directory.
        broker_conf: the broker's own file; None for what the store shows.
        rocketmq_version: the release; None for the one that the store shows.
        read_log: read all messages; else there is no traffic, and no damage is found.
        at: the moment of the report, ms; None for now.
    """

    store: Path
    broker_conf: Path | None = None
    rocketmq_version: str | None = None
    read_log: bool = True
    at: int | None = None

    def command(self, name: str, *more: str) -> str:
        """A command about this store."""
        return next_command(
            name, self.store, *more, broker_conf=self.broker_conf, rocketmq_version=self.rocketmq_version
        )


def gather(
    options: GatherOptions,
    verify: Callable[[], Report] | None = None,
    say: Say = lambda _what: None,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Facts:
    """Look at a store.

    Args:
        verify: verifies it; None where that isn't asked for.
        say: gets what is being done.
        listener: gets how far the log was read.

    Raises:
        ReputError: there is no store, the settings can't be read, or it is of a kind that reput can't read.
    """
    started = time.perf_counter()
    now = int(time.time() * 1000) if options.at is None else options.at
    settings = StoreSettings.load(
        options.store, options.broker_conf, options.rocketmq_version, dledger=True, rocksdb=True
    )
    refuse_half_replaced(settings.root)
    say("looking at the store")
    facts = Facts(
        store=settings.place,
        broker_conf=None if settings.broker_conf is None else str(settings.broker_conf),
        rocketmq_version=settings.dialect.name,
        basis=settings.basis,
        reput_version=reput.__version__,
        made_at=now,
    )
    _Gathering(options, settings, facts, say, listener).run(verify)
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
        self._next: tuple[str, ...] = ()

    def run(self, verify: Callable[[], Report] | None) -> None:
        facts, settings = self._facts, self._settings
        with collector_paused():
            snapshot, is_whole = self._snapshot()
        facts.clean = snapshot.clean
        facts.in_use_by = None if snapshot.holder is None else snapshot.holder.what
        # Of a store in use the queues are read after what was committed of them.
        heads: dict[str, bytes] | None = None if self._running else {}
        if is_whole:
            with collector_paused():
                self._check(snapshot, heads)
        log, end = self._attempt("the commit log", self._log) or (None, 0)
        scan = None
        if log is not None and self._options.read_log:
            what = "messages, traffic and damage of the commit log"
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
                    lambda: queue_facts(snapshot, log, scan, running=self._running, store=store, heads=heads),
                )
        looked, seen = seen is not None, seen or QueuesSeen()
        facts.queues, facts.queue_totals = seen.rows, seen.totals
        room = settings.max_index_num - 1
        facts.index = [_index_file(entry, room) for entry in snapshot.index]
        if log is not None:
            facts.log = self._attempt(
                "the map of the commit log", lambda: log_facts(snapshot, log, scan, seen, end=end)
            )
        if scan is not None:
            topics, facts.traffic, facts.sizes = shown.traffic(scan)
            facts.topics = _with_skew(topics, facts.queues)
        self._log_check(log, scan)
        self._queue_check(scan, seen, looked=looked)
        self._say("looking at consumers")
        found = self._attempt("the consumers' lag", lambda: lag(settings, store=store))
        if found is not None:
            facts.lag, facts.ages_to, facts.ages_to_ms = (
                _group_lag(found),
                str(found.ages_to),
                found.reference,
            )
        self._verify(verify)
        if settings.rocksdb.index:
            self._facts.not_seen.append(
                f"{names.ROCKSDB_STORE}: `reput dump index` shows the keys of an index in RocksDB; "
                "here they aren't counted"
            )
        for name in ignored_features(settings.root):
            facts.not_seen.append(f"{name}: the commit log alone doesn't hold it, and reput doesn't read it")
        facts.findings.sort(key=lambda one: (one.level != BROKEN, one.source))
        facts.verdict = verdict(facts, self._options.command, self._next)

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
        here = self._running or not self._options.read_log
        return log, LogEnd(self._settings).find(log) if here else log.end

    def _snapshot(self) -> tuple[Snapshot, bool]:
        """The store as a broker loads it, and whether it could be looked at: if not, there is nothing in it.

        Raises:
            StoreError: this is no store at all.
        """
        settings = self._settings
        try:
            return take(settings), True
        except StoreError as error:
            if not any(directory.is_dir() for directory in settings.commit_log_dirs):
                raise
            self._check_failed(error)
            self._facts.not_seen.append("queues, index and checkpoint: the store's files can't be read")
        size = settings.segment_size
        nothing = Snapshot(
            settings=settings,
            clean=not (settings.root / names.ABORT).exists(),
            segment_size=size or 0,
            segment_size_known=size is not None,
            log=Listing(),
            queues={},
            batch_queues={},
            checkpoint=StoreCheckpoint(),
            checkpoint_exists=False,
            index=(),
            holder=None,
        )
        return nothing, False

    def _not_run(self, name: str, asks: str, why: str) -> None:
        self._facts.checks.append(Check(name, asks, False, None, why))

    def _check(self, snapshot: Snapshot, heads: dict[str, bytes] | None) -> None:
        if self._settings.dledger is not None:
            self._not_run(CHECK, _STARTS, "it doesn't know commit logs that DLedger writes")
            return
        try:
            check, found, unread = checked(snapshot, _STARTS, heads)
        except RemoteStoreError:
            raise
        except ReputError as error:
            self._check_failed(error)
            return
        self._facts.checks.append(check)
        self._facts.findings += found
        self._facts.not_seen += unread

    def _check_failed(self, error: ReputError) -> None:
        self._facts.checks.append(Check(CHECK, _STARTS, False, ATTENTION, f"it failed: {error}", 1))
        self._facts.findings.append(unreadable(error))

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

    def _log_check(self, log: CommitLog | None, scan: LogScan | None) -> None:
        asks = "Is every byte of the commit log understood, and every CRC right?"
        read = log if scan is None else scan
        found = () if read is None else read.findings
        # A gap between segments, say, is known from the check.
        known = {(one.kind, one.path) for one in self._facts.findings}
        rows = [one for one in findings_of(LOG, found) if (one.kind, one.path) not in known]
        self._facts.findings += rows
        if scan is None:
            why = "its messages weren't read"
            if log is not None and not self._options.read_log:
                why += " (--no-log); gaps between segments are looked for all the same"
            self._facts.checks.append(Check(LOG, asks, False, worst(rows), why, len(rows)))
            return
        answer = f"{counted(scan.messages, 'message')} read"
        answer += f", {counted(len(rows), 'finding')}" if rows else ", nothing is damaged"
        self._facts.checks.append(told(LOG, asks, answer, rows))

    def _queue_check(self, scan: LogScan | None, seen: QueuesSeen, *, looked: bool) -> None:
        asks = "Do the queues and the index end where the log does, by their last offsets?"
        why = None
        if not looked:
            why = "the store's files can't be read"
        elif scan is None:
            why = "the log wasn't read"
        elif self._running:
            why = "a broker may be writing: what it adds meanwhile can't be told from a difference"
        if why is not None:
            self._not_run(QUEUES, asks, why)
            return
        found = seen.findings
        # The check has told what leads past the log's end, too; here every unit that does is counted.
        again = {one.kind for one in found}
        others = [one for one in self._facts.findings if one.source != CHECK or one.kind not in again]
        self._facts.findings = [*others, *found]
        self._facts.checks.append(told(QUEUES, asks, answer(seen.rows, found), found))

    def _verify(self, verify: Callable[[], Report] | None) -> None:
        asks = "Is every unit of the queues and every entry of the index as the log says?"
        if verify is None:
            self._not_run(VERIFY, asks, "not asked for (--verify)")
            return
        self._say("verifying")
        try:
            report = verify()
        except RemoteStoreError:
            raise
        except ReputError as error:
            self._not_run(VERIFY, asks, f"it failed: {error}")
            self._facts.not_seen.append(f"what `reput verify` would say: {error}")
            return
        scanned = any(one.name == LOG and one.ran for one in self._facts.checks)
        check, found = verified(report, asks, log_known=scanned)
        self._facts.checks.append(check)
        self._facts.findings += found
        self._next = tuple(report.next)
        self._facts.not_seen += [str(note) for note in report.not_checked]


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
