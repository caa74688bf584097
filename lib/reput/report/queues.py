"""The queues of a store: where each begins and ends, whether it goes as far as the log, or past its end.

The offsets are those that a broker finds when it loads the files (:mod:`reput.recovery`), the same that
consumers are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from reput.broker.batch_queue import BatchModel
from reput.broker.files import Listing
from reput.broker.problem import StartFailsError
from reput.broker.queue import QueueModel
from reput.broker.snapshot import Queue, Snapshot
from reput.config.topics import batch_queue_topics
from reput.errors import ReputError, SettingsError
from reput.format.batchconsumequeue import UNIT_LENGTH as BATCH_UNIT
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.log.segments import CommitLog
from reput.query.log import LogReader
from reput.recovery.past_end import left_by_a_cut, units_past
from reput.report.facts import Found, QueueFacts, QueueTotals
from reput.report.log_scan import InLog, LogScan
from reput.report.queue_findings import IS_BATCH, REPEATS, behind, is_compared, past_end

_ODD_FILES = "files that aren't a queue's: see their names and lengths"


@dataclass(slots=True)
class QueuesSeen:
    """What came of looking at all queues.

    Attributes:
        rows: by topic and queue id.
        totals: of all.
        end: physical offset after the last message that a queue knows of, -1 if none does.
        findings: queues that don't go as far as the log, or farther, and an index that does.
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
        running: a broker may add to log and queues meanwhile, so that none is called behind or ahead.
    """
    reader = None
    if log is not None and scan is None:
        reader = LogReader(snapshot.settings)
    past = None if scan is None or running else _log_end(scan)
    looking = _Looking(snapshot, 0 if log is None else log.start, scan, reader, past)
    rows = list(looking.rows())
    rows.sort(key=lambda row: (row.topic, row.queue_id))
    seen = QueuesSeen(rows, _totals(rows), looking.end)
    if past is not None:
        seen.findings = [*behind(snapshot, rows), *past_end(snapshot, rows, past)]
    return seen


def _log_end(scan: LogScan) -> int:
    """The physical offset that nothing leads past: the log's end, or that of DLedger's uncommitted entries.

    What a group has committed is written down behind its back, and its queues may know of more.
    """
    left_out = [one.end for one in scan.findings if one.kind == "uncommitted-entries"]
    return max([scan.end, *left_out])


class _Looking:
    """Goes over the queues."""

    def __init__(
        self,
        snapshot: Snapshot,
        log_start: int,
        scan: LogScan | None,
        reader: LogReader | None,
        past: int | None,
    ) -> None:
        self._snapshot = snapshot
        self._log_start = log_start
        self._scan = scan
        self._reader = reader
        self._past = past
        self._after_cut = (
            scan is not None and past is not None and left_by_a_cut(snapshot, past, scan.last_time)
        )
        self._batch_topics = _batch_topics(snapshot)
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
        problem, least, most, last_time, past = _why_unloadable(listing), None, None, None, None
        if problem is None and listing.files:
            try:
                model = QueueModel(listing.files, size)
                model.recover()
                model.correct_min(self._log_start, searches=settings.dialect.recovery.searches_min_offset)
                least, most = model.min_offset, model.max_offset
                self.end = max(self.end, model.max_physical)
                past = self._units_past(model)
                if known is None and self._reader is not None:
                    last_time = self._last_time(model)
            except IndexError:
                problem = _ODD_FILES  # such as one that begins between two units
            except (OSError, ValueError, StartFailsError, ReputError) as error:
                problem = str(error)
        return self._row(queue, "plain", listing, size, (least, most, past), known, last_time, problem)

    def _units_past(self, model: QueueModel | BatchModel) -> int | None:
        return None if self._past is None else units_past(model, self._past, after_cut=self._after_cut)

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
        offset, length, _tags = UNIT.unpack(unit)
        time = self._reader.store_timestamp(offset, length)
        return time if time > 0 else None

    def _batch(self, queue: Queue, listing: Listing, known: InLog | None) -> QueueFacts:
        size = self._snapshot.settings.recovery.batch_queue_file_size
        problem, least, most, last_time, past = _why_unloadable(listing), None, None, None, None
        if problem is None and size % BATCH_UNIT:
            problem = f"files of {size} bytes hold no whole number of units"
        if problem is None and listing.files:
            try:
                model = BatchModel(listing.files, size)
                model.recover()
                model.correct_min(self._log_start)
                least, most = max(model.min_offset, 0), model.max_offset
                self.end = max(self.end, model.max_physical)
                past = self._units_past(model)
                full = next((file for file in reversed(model.files) if len(file.counting)), None)
                if full is not None:
                    last_time = int(full.counting[-1]["timestamp"])
            except IndexError:
                problem = _ODD_FILES
            except (OSError, ValueError, ReputError) as error:
                problem = str(error)
        return self._row(queue, "batch", listing, size, (least, most, past), known, last_time, problem)

    def _row(
        self,
        queue: Queue,
        kind: str,
        listing: Listing,
        size: int,
        offsets: tuple[int | None, int | None, int | None],
        known: InLog | None,
        last_time: int | None,
        problem: str | None,
    ) -> QueueFacts:
        least, most, past = offsets
        behind, uncompared = None, None
        if self._past is not None and most is not None:
            uncompared = _uncompared(kind, known)
            if uncompared is None and known is not None:
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
            past=past,
            uncompared=uncompared,
            problem=problem,
        )


def _uncompared(kind: str, known: InLog | None) -> str | None:
    """Why a queue's last offset says nothing about how far it goes in the log; None where it does."""
    if known is None:
        return None  # nothing in the log, and so nothing behind it
    if kind == "batch":
        return IS_BATCH
    return None if known.regular else REPEATS


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
        past=sum(bool(row.past) for row in rows),
        compared=sum(is_compared(row) for row in rows),
    )


def _batch_topics(snapshot: Snapshot) -> frozenset[str]:
    try:
        return frozenset(batch_queue_topics(snapshot.settings.topics_json))
    except SettingsError:
        return frozenset()  # broken: a problem of its own
