"""Writes what a log has gained to a table of messages: tasks write files, this process commits them.

Each batch is one commit, with the physical offset up to which the table then holds the log; see
:mod:`reput.catalog.table`. A run's files have a mark in their names, by which those are found that no commit
came to name, and removed.

A broker cuts its log at a start: it deletes the segments behind the place, and wipes nothing in the one that
holds it (``MappedFileQueue.truncateDirtyFiles``; rocketmq-all-4.9.7, 5.3.3). What it writes then takes the
place of old messages, and old ones stand behind that until they are written over. So in the last segment that
has begun, old and new messages may take turns, and all of it is held against the table, message by message.
An earlier segment was written to its end before the next one began: what the log has in common with the table
there is its beginning, and one common message stands for all before it. Where none is found, the comparison
goes back, in windows that get larger; it reads as much as was cut.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput.catalog import CatalogOptions
from reput.catalog.hold import Hold, hold_of
from reput.catalog.lacking import Ranges, before_offset
from reput.catalog.rows import Added, Adding, Lacked, Merging, Writer, schema
from reput.catalog.table import HOST, KNOWN_BY, File, Table, Written, known_by
from reput.config.settings import StoreSettings
from reput.errors import (
    Finding,
    LogWentBackError,
    OutputError,
    RemoteStoreError,
    ReputError,
    SegmentGoneError,
    StoreError,
    StoreInUseError,
)
from reput.format import dledger
from reput.format.commitlog import BLANK_LENGTH
from reput.log.end import LogEnd
from reput.log.segments import (
    CommitLog,
    Segment,
    batch_end,
    cut,
    discover,
    map_segment,
    next_place,
    open_segment,
    part_of,
)
from reput.log.walk import frame
from reput.query.log import LogReader
from reput.replay.part_result import witnessed
from reput.replay.runner import Runner, in_waves
from reput.scan.output import Status
from reput.scan.rules import Part
from reput.source import messages
from reput.store.lock import is_broker_running
from reput.words import counted

if TYPE_CHECKING:
    from collections.abc import Generator

#: Bytes of log in the first window, and how much larger each one before it is.
WINDOW = 64 << 20
_LARGER = 4
MOST_WINDOW = 1 << 30
#: Bytes from the table's first message on that tell another log from one that was cut.
_PROBE = 1 << 20
_PLACE, _SIZE, *_ = KNOWN_BY
_PART = 1 << 40  # a segment is one part
#: A log that begins so much before the table's last message, ms, is another one. Clocks are set back by less.
_OLDER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run continues."""

    after: int  # messages with a greater physicalOffset are missing in the table, once what is gone is out
    #: physical offset at or before the first one that is missing, where a record begins, or where the
    #: log does
    begin: int
    #: the table's messages from this physicalOffset on aren't in the log any more; None when all of
    #: those are that have not expired
    gone_from: int | None = None
    #: bytes of log between the table's cursor and ``begin`` that the broker has deleted unread
    expired: int = 0

    def earlier(self, gone_from: int) -> Standing:
        """How it stands if the log is known to have changed from the record at ``gone_from`` on."""
        if self.gone_from is not None and self.gone_from <= gone_from:
            return self
        return replace(self, after=gone_from - 1, begin=min(self.begin, gone_from), gone_from=gone_from)


def stand(table: Table, settings: StoreSettings, *, allow_gap: bool) -> Standing:
    """Hold the end of a table against the log.

    Damage in the log takes nothing out of the table, nor does what somebody deleted there: only a log that
    ends before the table's messages, or that holds others in their places, has gone back. One that has none
    of them is another one: LogWentBackError. With ``allow_gap``, messages behind the table's last one may
    have expired, else StoreError is raised; and so it is where a table of many stores has nothing of this
    one, but holds its log under another name.
    """
    log = discover(settings)
    last = table.last()
    if table.cursor is None and table.broker is not None:
        _check_new(table, settings, log)
    if table.cursor is None or last is None:
        return Standing(after=-1, begin=log.start)
    if last < log.start:
        _check_gap(table, settings, log, last, allow_gap=allow_gap)
        return Standing(after=last, begin=log.start, expired=max(log.start - table.cursor, 0))
    lead = dledger.HEADER_LENGTH if log.entries else 0  # an entry's header stands before the record
    found = _compare(table, settings, log, last, lead)
    if not found.is_known:
        raise LogWentBackError(
            "the log has none of the table's messages: it was cut before them, or is another one",
            path=settings.root,
            offset=last,
            expected=f"the log that the table holds up to {table.cursor}{_held(table, last)}",
            found=_found(settings, last),
            next_step="Begin a table of this log in another directory"
            if table.broker is None
            else "Give the names of its own cluster and broker, or begin another table. If it is the same "
            "log, which went back before all that --retain has left of it, see docs/catalog.md",
        )
    begin = log.start if found.common is None else found.common - lead
    gone, missing = found.strange, found.missing
    if missing is not None and (gone is None or missing < gone):
        # Either a BLANK was written over it, which is no message, or nothing was written there since a cut.
        is_over = gone is None and LogEnd(settings).find(log) <= missing
        if is_over or _is_blank(settings, log, missing - lead):
            gone = missing
    if gone is None:
        return Standing(after=last, begin=begin)
    return Standing(gone - 1 if found.common is None else found.common, begin, gone_from=gone)


@dataclass(slots=True)
class _Compared:
    """What table and log have in common in a range; each a physicalOffset, None without such a message."""

    is_known: bool = False  # both hold a message
    strange: int | None = None  # of the table's first message that another one of the log lies over
    common: int | None = None  # of the last message before it that both hold
    missing: int | None = None  # of the table's first message behind ``common`` that the log lacks

    @classmethod
    def of(cls, held: pa.Table, found: pa.Table) -> _Compared:
        """What the messages of table and log have in common in one range of physical offsets."""
        same = _same_start(held, found)
        last_same = int(_values(held, _PLACE)[same - 1]) if same else None
        held, found = held.slice(same), found.slice(same)
        places, in_log = _values(held, _PLACE), _values(found, _PLACE)
        sizes, log_sizes = _values(held, _SIZE), _values(found, _SIZE)
        at = np.searchsorted(places, in_log)
        known = at < len(places)
        for name in KNOWN_BY:
            known[known] = _values(held, name)[at[known]] == _values(found, name)[known]
        is_known = same > 0 or bool(known.any())
        # Of the messages that aren't the same, those that lie over one of the table's.
        over = np.searchsorted(places + sizes, in_log, "right")
        lies_over = ~known & (over < len(places))
        lies_over[lies_over] = places[over[lies_over]] < (in_log + log_sizes)[lies_over]
        strange = int(places[over[lies_over][0]]) if lies_over.any() else None
        if strange is not None:
            known &= in_log < strange
        both = in_log[known]
        common = int(both[-1]) if len(both) else last_same
        lacking = places[~np.isin(places, in_log)]
        behind = lacking[lacking > (-1 if common is None else common)]
        return cls(is_known, strange, common, int(behind[0]) if len(behind) else None)

    def add(self, before: _Compared) -> None:
        """Take in a range that ends where this one begins."""
        self.is_known |= before.is_known
        if before.strange is not None:
            self.strange, self.common, self.missing = before.strange, before.common, before.missing
        elif self.common is None:
            self.common = before.common
            self.missing = self.missing if before.missing is None else before.missing


def _compare(table: Table, settings: StoreSettings, log: CommitLog, last: int, lead: int) -> _Compared:
    """Hold the end of a table, whose last message the log doesn't begin behind, against the log."""

    def window(low: int, high: int) -> _Compared:
        return _Compared.of(table.between(low, high), _in_log(settings, log, low, high, lead))

    doubtful = _last_begun(log).base
    found = _Compared()
    high, size = last + 1, min(max(WINDOW, last + 1 - doubtful), MOST_WINDOW)
    bottom: int | None = None
    while True:
        low = max(high - size, log.start if bottom is None else bottom)
        found.add(window(low, high))
        if low == log.start or (found.common is not None and low <= doubtful):
            return found
        if bottom is None:
            bottom = table.first(log.start)
            if not found.is_known and bottom < low:
                probe = window(bottom, min(bottom + _PROBE, low))
                if probe.strange is not None and not probe.is_known:
                    return found
        if low <= bottom:
            return found
        high, size = low, min(size * _LARGER, MOST_WINDOW)


def _last_begun(log: CommitLog) -> Segment:
    """The last segment that something was written to; a broker makes the next ones ahead of time."""
    for segment in reversed(log.segments):
        if map_segment(segment.path, min(segment.length, BLANK_LENGTH)).any():
            return segment
    return log.segments[0]


def _is_blank(settings: StoreSettings, log: CommitLog, place: int) -> bool:
    """Whether a segment's closing record stands at a physical offset."""
    segment = log.segment_at(place)
    if segment is None or place >= segment.base + segment.length:
        return False
    opened = open_segment(segment.path, segment.length)
    opened.fetch_frame(place - segment.base)
    found = frame(
        opened.data.data, segment.base, place - segment.base, settings.dialect.topic_length_v2, log.entries
    )
    return found is Status.BLANK


def _same_start(held: pa.Table, found: pa.Table) -> int:
    """How many messages both begin with: as a rule, all."""
    same = min(len(held), len(found))
    for name in KNOWN_BY:
        differ = _values(held, name)[:same] != _values(found, name)[:same]
        same = int(differ.argmax()) if differ.any() else same
    return same


def _values(messages_: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(messages_.column(name).to_numpy(), np.int64)


def _in_log(settings: StoreSettings, log: CommitLog, start: int, end: int, lead: int) -> pa.Table:
    """The log's messages with a physicalOffset in [start, end), by :data:`KNOWN_BY`."""
    found = _rows(settings, log, start, end, lead, KNOWN_BY)
    return known_by(found) if len(found) else pa.table({name: pa.array([], pa.int64()) for name in KNOWN_BY})


def _rows(
    settings: StoreSettings, log: CommitLog, start: int, end: int, lead: int, columns: tuple[str, ...]
) -> pa.Table:
    """Columns of the log's messages with a physicalOffset in [start, end); none of them without a message."""
    parts = cut(log, max(start - lead, log.start), end - lead, _PART, None)
    batches = [batch for part in parts for batch in messages.read(part, settings, columns)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _check_new(table: Table, settings: StoreSettings, log: CommitLog) -> None:
    """See that a table of many stores, new to this name, doesn't hold the same messages under another one.

    Two of the log's messages are looked for: its first one, and the first one of the last segment that has
    begun. The first one may be out of the table, or have come from a log that had lost it.
    """
    reader = LogReader(settings)
    looked = (reader.after(log.start - 1), reader.after(_last_begun(log).base - 1))
    places = {one.record.physical_offset for one in looked if one is not None}
    lead = dledger.HEADER_LENGTH if log.entries else 0
    for place in sorted(places):
        wanted = _rows(settings, log, place, place + 1, lead, (*KNOWN_BY, HOST))
        other = table.holder_of(wanted) if len(wanted) else None
        if other is not None:
            raise StoreError(
                "the table holds this log under another name",
                path=settings.root,
                offset=place,
                expected=f"messages that no other broker has, for {table.broker}",
                found=f"the same message, of the broker at {wanted.column(HOST)[0]}, for {other}",
                next_step=f"If it is the same store or its slave, give the names {other}: else each message "
                "is there twice. For a log that was copied to another broker, take another table",
            )


def _check_gap(table: Table, settings: StoreSettings, log: CommitLog, last: int, *, allow_gap: bool) -> None:
    if not allow_gap and log.start > (table.cursor or 0):
        raise StoreError(
            "the log begins behind the table's last message",
            path=settings.root,
            offset=log.start,
            expected=f"the message at {last}",
            found="a log without it: it has expired, or this is another store",
            next_step="If it is the same store, use `reput catalog` with --allow-gap: the rest is gone",
        )
    first = LogReader(settings).after(log.start - 1)
    newest = int(_values(table.between(last, last + 1), "storeTimestamp")[0])
    if first is not None and first.record.store_timestamp < newest - _OLDER_MS:
        raise LogWentBackError(
            "the log's first message is older than the table's last one: this is another log",
            path=settings.root,
            offset=first.record.physical_offset,
            expected=f"a storeTimestamp of {newest} ms or later",
            found=f"{first.record.store_timestamp} ms, of the broker at {first.record.store_host[0]}",
            next_step="Begin a table of this log in another directory",
        )


def _held(table: Table, place: int) -> str:
    """What a table of many stores holds at a place, for people."""
    if table.broker is None:
        return ""
    topic, host = table.told_of(place)
    return f" for {table.broker}, with a message of {topic} of the broker at {host} there"


def _found(settings: StoreSettings, place: int) -> str:
    reader = LogReader(settings)
    message = reader.message(place)
    if message is not None:
        return f"another one, of {message.topic}"
    first = reader.after(-1)
    if first is None:
        return "no message there"
    return f"no message there, and the broker at {first.record.store_host[0]} in the log's first one"


_LOG = logging.getLogger(__name__)
#: How long the end of a live log is given to settle.
_SETTLE_SECONDS = 2.5
#: Bytes of log that are worth a task. A larger part needs less of its segment before it passed over.
_LEAST_PART = 64 << 20
#: How long tasks that were cancelled may take to end.
_LATE_SECONDS = 2.0


class Appending:
    """Adds to a table, and merges its files.

    ``listener`` gets the bytes of log that were read, the messages that were found, and the bytes in all.
    ``expired`` counts bytes of log that were deleted before they were read. ``findings`` are the ranges of
    the log that the table lacks, and that couldn't be read now.
    """

    def __init__(
        self,
        options: CatalogOptions,
        settings: StoreSettings,
        table: Table,
        listener: Callable[[int, int, int], None] = lambda *_: None,
        hold: Hold | None = None,
    ) -> None:
        self.commits = 0
        self.expired = 0
        self.findings: tuple[Finding, ...] = ()
        self._options = options
        self._settings = settings
        self._table = table
        self._listener = listener
        self._hold = hold_of(table) if hold is None else hold
        self._read = self._messages = 0

    def append(self, start: Callable[[], Runner], standing: Standing, end: int | None) -> None:
        """Commit what the log holds behind ``standing``, up to ``end`` or its own end.

        Before that, what the table lacks is looked at again, and what can be read there by now is added.
        """
        with ThreadPoolExecutor(1, "reput-log-end") as pool:  # beside a start of Spark
            looked = pool.submit(self._log, standing.begin, end)
            runner = start()
            log, end = looked.result()
        self.expired += max(min(log.start, end) - standing.begin, 0)
        with self._writing(runner) as writer:
            known, cursor = self._table.lacks, self._table.cursor
            # What lies behind ``begin`` is read again, and what expired doesn't come back.
            lacks = tuple(one for one in before_offset(known, standing.begin) if one[1] > log.start)
            behind = tuple(one for one in known if one[0] >= standing.begin)
            again = list(_lacked(log, lacks))
            lacked = Lacked(within=lacks, held=self._held(lacks, again))
            work = Adding(writer, self._settings, standing.after, standing.begin, lacked)
            batches = list(self._batches(log, standing.begin, end, runner.slots))
            if lacks and cursor is not None:
                batches.insert(0, (cursor, again))
            damage: dict[tuple[str, int], Finding] = {}
            every = [part for _, parts in batches for part in parts]
            total = sum(part.end - part.start for part in every)
            with _results(runner, work, every) as results:
                for stop, parts in batches:
                    written: list[Written] = []
                    for part in parts:
                        added = self._of(part, next(results), total)
                        written += added.files
                        # Of damage that a part's end cuts, the next part tells all.
                        damage |= {(one.kind, one.offset): one for one in added.findings}
                    spans = lacks if parts is again else (*lacks, (standing.begin, stop))
                    found = sorted((*damage.values(), *log.gaps), key=lambda one: one.offset)
                    self.findings = tuple(one for one in found if _met(one, spans))
                    lacking = _ranges(self.findings, spans)
                    self._commit(written, stop, (*lacking, *behind) if parts is again else lacking)
        self._warn(known)

    def _held(self, lacks: Ranges, parts: list[Part]) -> tuple[int, ...]:
        """What the table has within some ranges: damage that came to it later has made it lie there."""
        places = [_values(self._table.between(part.start, part.end), _PLACE) for part in parts]
        if not places:
            return ()
        held = np.concatenate(places)
        return tuple(held[Lacked(within=lacks).holds(held)].tolist())

    def _warn(self, known: Ranges) -> None:
        new = [one for one in self.findings if not _met(one, known)]
        if new:
            _LOG.warning(
                "%s: the table lacks %s of the log, the first: %s",
                self._table.url,
                counted(len(new), "more range"),
                new[0],
            )

    def merge(self, runner: Runner, groups: list[list[File]]) -> Iterator[list[File]]:
        """Put one file in the place of each group of files; yields the groups of which that was done."""
        with self._writing(runner) as writer, _results(runner, Merging(writer), groups) as results:
            for group in groups:
                result = next(results)
                if isinstance(result, ReputError):
                    raise result
                self._check_alone()
                # Else somebody has deleted rows meanwhile, which would come back.
                if self._table.is_plain and self._table.has(group):
                    self._table.replace(group, result, self._hold.check)
                    yield group

    def _log(self, begin: int, end: int | None) -> tuple[CommitLog, int]:
        """The log, and up to where it is to be read."""
        if end is None and self._settings.dledger is None and is_broker_running(self._settings.root):
            from reput.log.live import LiveLog

            live = LiveLog(self._settings, begin)
            end = live.settle(_SETTLE_SECONDS)
            # Segments that a broker has made ahead of time are no successors of the one that it writes.
            return live.written(end) or discover(self._settings), end
        log = discover(self._settings)
        if end is None:
            from reput.log.end import LogEnd

            end = LogEnd(self._settings).find(log)
        return log, min(end, log.end)

    def _batches(self, log: CommitLog, at: int, end: int, slots: int) -> Iterator[tuple[int, list[Part]]]:
        """The ends of batches, and their parts. A small rest needs no batch of its own."""
        most = self._options.max_bytes_per_trigger
        while at < end:
            at = max(at, min(next_place(log, at), end))
            stop = end if end - at <= most + most // 16 else batch_end(log, at, end, most)
            yield stop, list(cut(log, at, stop, max(-(-(stop - at) // slots), _LEAST_PART), None))
            at = stop

    def _of(self, part: Part, result: Any, total: int) -> Added:
        """What came of a part; nothing if it has expired meanwhile."""
        if isinstance(result, SegmentGoneError) and discover(self._settings).start > part.base:
            _LOG.warning(
                "%s has expired; messages from %d to %d are left out", part.path, part.start, part.end
            )
            self.expired += part.end - part.start
            return Added([], [])
        if isinstance(result, ReputError):
            raise result
        added: Added = result
        self._read += part.end - part.start
        self._messages += sum(file.rows for file in added.files)
        self._listener(self._read, self._messages, total)
        self._hold.beat()
        return added

    def _commit(self, written: list[Written], end: int, lacks: Ranges) -> None:
        """Add a batch's files, its end as the cursor, and what the table then lacks before that."""
        self._check_alone()
        cursor = self._table.cursor
        if not written and cursor is not None and end <= cursor and lacks == self._table.lacks:
            return  # only the record that the run began with
        columns_ = schema(bodies=self._options.bodies, many=self._table.broker is not None)
        self._table.append(written, end, columns_, self._hold.check, lacks)
        self.commits += 1

    def _check_alone(self) -> None:
        expected = self._table.cursor
        self._table.refresh()
        # After the look at the table: see reput.catalog.hold.
        self._hold.check()
        found = self._table.cursor
        if found != expected:
            raise OutputError(
                "another run has written to the table meanwhile",
                path=self._table.url,
                expected=f"messages up to {expected}",
                found=f"up to {found}",
                next_step="Run the same command again when no other runs",
            )

    @contextmanager
    def _writing(self, runner: Runner) -> Iterator[Writer]:
        """What tasks write with; then remove the files that no commit names."""
        table = self._table
        token = self._hold.begin()
        try:
            with nullcontext() if table.is_remote else runner.shared(table.path, None, ()):
                yield Writer(
                    table.path,
                    token,
                    self._options.bodies,
                    locks=self._hold.locks if runner.is_local else None,
                    directory="" if table.broker is None else table.broker.directory,
                    url=table.url if table.is_remote else None,
                )
        finally:
            with suppress(OutputError, RemoteStoreError, StoreInUseError):  # else the next run does it
                table.refresh()
                self._hold.clean(_LATE_SECONDS)


def _met(finding: Finding, spans: Ranges) -> Ranges:
    """Those of some ranges that a finding is about some of."""
    first = bisect_right(spans, finding.offset, key=itemgetter(1))
    return spans[first : max(bisect_left(spans, finding.end, key=itemgetter(0)), first)]


def _lacked(log: CommitLog, lacks: Ranges) -> Iterator[Part]:
    """The parts with ranges that a table lacks, each of which begins where a record does.

    Ranges near each other are in one part: each by itself would cost a task and a query.
    """
    for segment in log.segments:
        # In the last segment, the time of what stands before damage tells what a truncation has left behind
        # it: each part is walked from the segment's begin, so that it is only one.
        is_last = segment is log.segments[-1]
        stop = segment.base + segment.length
        first = bisect_right(lacks, segment.base, key=itemgetter(1))
        parts: list[tuple[int, int]] = []
        for start, end in lacks[first : bisect_left(lacks, stop, key=itemgetter(0))]:
            if parts and (is_last or start - parts[-1][1] < _LEAST_PART):
                parts[-1] = parts[-1][0], min(end, stop)
            else:
                parts.append((max(start, segment.base), min(end, stop)))
        for start, end in parts:
            yield part_of(log, segment, start, end, exact=not is_last)


def _ranges(findings: Sequence[Finding], spans: Ranges) -> Ranges:
    """What findings are about, within some ranges; what overlaps is one."""
    found: list[tuple[int, int]] = []
    within = [(one, *span) for one in findings for span in _met(one, spans)]
    for start, end in sorted((max(one.offset, low), min(one.end, high)) for one, low, high in within):
        if found and start < found[-1][1]:
            start, end = found[-1][0], max(end, found.pop()[1])
        found.append((start, end))
    return tuple(found)


def _results(runner: Runner, work: Callable[[Any], object], items: Sequence[Any]) -> closing[Generator[Any]]:
    """What tasks make of the items, in order."""

    def seen(item: Any) -> Any:
        if isinstance(item, Part):
            with suppress(SegmentGoneError):  # the task finds that, too
                return witnessed(runner, item)
        return item

    def do(wave: list[Any]) -> list[object]:
        return runner.map(work, [seen(item) for item in wave])

    return closing(in_waves(runner, do, items, runner.cancel))
