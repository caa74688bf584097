"""The queues of a store: where each begins and ends, and whether it goes as far as the log.

The offsets are those that a broker finds when it loads the files (:mod:`reput.recovery`), the same that
consumers are told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from reput.errors import ReputError, SettingsError
from reput.format.batchconsumequeue import UNIT_LENGTH as BATCH_UNIT
from reput.format.consumequeue import UNIT_LENGTH
from reput.query.log import LogReader
from reput.recovery.batch import BatchModel
from reput.recovery.files import Listing
from reput.recovery.problem import StartFailsError
from reput.recovery.queue import QueueModel
from reput.recovery.snapshot import Queue, Snapshot
from reput.report.checks import QUEUES
from reput.report.facts import ATTENTION, BROKEN, Found, QueueFacts, QueueTotals
from reput.report.log_scan import InLog, LogScan
from reput.store.segments import CommitLog
from reput.topics import batch_queue_topics, known_topics

_UNIT = struct.Struct(">qiq")
#: Queues that one finding names.
_NAMED = 5
_ODD_FILES = "files that aren't a queue's: see their names and lengths"


@dataclass(slots=True)
class QueuesSeen:
    """What came of looking at all queues.

    Attributes:
        rows: by topic and queue id.
        totals: of all.
        end: physical offset after the last message that a queue knows of, -1 if none does.
        findings: queues that don't go as far as the log, or farther.
    """

    rows: list[QueueFacts] = field(default_factory=list)
    totals: QueueTotals = field(default_factory=QueueTotals)
    end: int = -1
    findings: list[Found] = field(default_factory=list)


def queue_facts(
    snapshot: Snapshot, log: CommitLog | None, scan: LogScan | None, *, running: bool
) -> QueuesSeen:
    """Look at every queue.

    Args:
        log: None where it can't be read: then nothing has expired, as far as that can be told.
        scan: None where the log wasn't read.
        running: a broker may add to queues meanwhile, so that none is called behind.
    """
    reader = None
    if log is not None and scan is None:
        reader = LogReader(snapshot.settings)
    looking = _Looking(snapshot, 0 if log is None else log.start, scan, reader, _batch_topics(snapshot))
    rows = list(looking.rows())
    rows.sort(key=lambda row: (row.topic, row.queue_id))
    seen = QueuesSeen(rows, _totals(rows), looking.end)
    if scan is not None and not running:
        seen.findings = list(_findings(snapshot, rows))
    return seen


class _Looking:
    """Goes over the queues."""

    def __init__(
        self,
        snapshot: Snapshot,
        log_start: int,
        scan: LogScan | None,
        reader: LogReader | None,
        batch_topics: frozenset[str],
    ) -> None:
        self._snapshot = snapshot
        self._log_start = log_start
        self._scan = scan
        self._reader = reader
        self._batch_topics = batch_topics
        self.end = -1

    def rows(self) -> Iterator[QueueFacts]:
        """One for each queue that has files, or messages in the log."""
        in_log = dict(self._scan.queues) if self._scan is not None else {}
        for queue, listing in self._snapshot.queues.items():
            yield self._plain(queue, listing, in_log.pop(queue, None))
        for queue, listing in self._snapshot.batch_queues.items():
            yield self._batch(queue, listing, in_log.pop(queue, None))
        for (topic, queue_id), known in in_log.items():
            kind = "batch" if topic in self._batch_topics else "plain"
            yield QueueFacts(
                topic, queue_id, kind, None, None, 0, 0, known.messages, known.next, known.last_time
            )

    def _plain(self, queue: Queue, listing: Listing, known: InLog | None) -> QueueFacts:
        settings = self._snapshot.settings
        size = settings.consume_queue_file_size
        problem, least, most, last_time = _stopped_by(listing), None, None, None
        if problem is None and listing.files:
            try:
                model = QueueModel(listing.files, size)
                model.recover()
                model.correct_min(self._log_start, searches=settings.dialect.recovery.searches_min_offset)
                least, most = model.min_offset, model.max_offset
                self.end = max(self.end, model.max_physical)
                if known is None and self._reader is not None:
                    last_time = self._last_time(model)
            except IndexError:
                problem = _ODD_FILES  # such as one that begins between two units
            except (OSError, ValueError, StartFailsError, ReputError) as error:
                problem = str(error)
        return self._row(queue, "plain", listing, size, (least, most), known, last_time, problem)

    def _last_time(self, model: QueueModel) -> int | None:
        """Of the message of the last unit, ms."""
        file = next((file for file in reversed(model.files) if file.wrote), None)
        if file is None or file.path is None or self._reader is None:
            return None
        with open(file.path, "rb") as data:
            data.seek(file.wrote - UNIT_LENGTH)
            unit = data.read(UNIT_LENGTH)
        if len(unit) < UNIT_LENGTH:
            return None
        offset, length, _tags = _UNIT.unpack(unit)
        time = self._reader.store_timestamp(offset, length)
        return time if time > 0 else None

    def _batch(self, queue: Queue, listing: Listing, known: InLog | None) -> QueueFacts:
        size = self._snapshot.settings.recovery.batch_queue_file_size
        problem, least, most, last_time = _stopped_by(listing), None, None, None
        if problem is None and size % BATCH_UNIT:
            problem = f"files of {size} bytes hold no whole number of units"
        if problem is None and listing.files:
            try:
                model = BatchModel(listing.files, size)
                model.recover()
                model.correct_min(self._log_start)
                least, most = max(model.min_offset, 0), model.max_offset
                self.end = max(self.end, model.max_physical)
                full = next((file for file in reversed(model.files) if len(file.counting)), None)
                if full is not None:
                    last_time = int(full.counting[-1]["timestamp"])
            except IndexError:
                problem = _ODD_FILES
            except (OSError, ValueError, ReputError) as error:
                problem = str(error)
        return self._row(queue, "batch", listing, size, (least, most), known, last_time, problem)

    def _row(
        self,
        queue: Queue,
        kind: str,
        listing: Listing,
        size: int,
        offsets: tuple[int | None, int | None],
        known: InLog | None,
        last_time: int | None,
        problem: str | None,
    ) -> QueueFacts:
        least, most = offsets
        behind = None
        if known is not None and kind == "plain" and most is not None and known.regular:
            behind = max(known.next - most, 0)
        return QueueFacts(
            topic=queue[0],
            queue_id=queue[1],
            kind=kind,
            min_offset=least,
            max_offset=most,
            files=len(listing.files),
            bytes=len(listing.files) * size,
            log_messages=None if self._scan is None else 0 if known is None else known.messages,
            log_next=None if known is None else known.next,
            last_time=last_time if known is None else known.last_time,
            behind=behind,
            problem=problem,
        )


def _stopped_by(listing: Listing) -> str | None:
    """Why no broker loads these files."""
    for problem in listing.problems:
        if problem.stops:
            return f"{problem.path}: expected {problem.expected}, found {problem.found}"
    return None


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


def _findings(snapshot: Snapshot, rows: list[QueueFacts]) -> Iterator[Found]:
    behind = [row for row in rows if row.behind]
    if behind:
        most = max(behind, key=lambda row: row.behind or 0)
        yield _found(
            BROKEN if snapshot.clean else ATTENTION,
            "queue-behind-log",
            behind,
            "a unit for each message of the log",
            f"{sum(row.behind or 0 for row in behind):,} messages without one, "
            f"{most.behind:,} of them of {most.topic}:{most.queue_id}",
            "consumers don't get these messages; a start after a crash places those that its walk meets",
        )
    # A deleted topic's messages stay in the log: its queues are missing on purpose.
    try:
        known = known_topics(snapshot.settings.topics_json)
    except SettingsError:
        known = None
    without = [row for row in rows if not row.files and row.problem is None and row.log_messages]
    deleted = [row for row in without if known is not None and row.topic not in known]
    lost = [row for row in without if known is None or row.topic in known]
    if lost:
        yield _found(
            BROKEN if known is not None and snapshot.clean else ATTENTION,
            "queue-without-files",
            lost,
            "files of a queue that the log has messages of",
            f"none, for {sum(row.log_messages or 0 for row in lost):,} messages",
            "consumers don't get these messages"
            if known is not None
            else "a deleted topic, or lost files: without config/topics.json it can't be told",
        )
    if deleted:
        yield _found(
            ATTENTION,
            "deleted-topic",
            deleted,
            "topics of config/topics.json",
            f"{sum(row.log_messages or 0 for row in deleted):,} messages of topics that it doesn't name",
            "nothing, if they were deleted; a rebuild brings them back unless it gets --known-topics-only",
        )


def _found(
    level: str,
    kind: str,
    rows: list[QueueFacts],
    expected: str,
    found: str,
    outcome: str,
) -> Found:
    names = ", ".join(f"{row.topic}:{row.queue_id}" for row in rows[:_NAMED])
    if len(rows) > _NAMED:
        names += f" and {len(rows) - _NAMED:,} more"
    return Found(
        source=QUEUES,
        level=level,
        kind=kind,
        where=names,
        path="",
        expected=expected,
        found=found,
        outcome=outcome,
        count=len(rows),
    )


def _batch_topics(snapshot: Snapshot) -> frozenset[str]:
    try:
        return frozenset(batch_queue_topics(snapshot.settings.topics_json))
    except SettingsError:
        return frozenset()  # broken: a problem of its own
