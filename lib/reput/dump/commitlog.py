"""The records of a commit log in blocks, and in their places what is no record.

Damage is found and skipped by :func:`reput.scan.part.scan_part`, as in a rebuild; the columns of records
come from :class:`reput.scan.frames.FrameWalk`, which takes the same records.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.dump.damage import Damage
from reput.dump.places import LogPlace
from reput.dump.wanted import Wanted
from reput.errors import Finding, SegmentGoneError, UnsupportedError
from reput.format import commitlog, dledger
from reput.format.names import Queue
from reput.log.live import LiveLog
from reput.log.segments import CommitLog, Segment, SegmentBytes, open_segment, written_ranges
from reput.log.walk import first_time
from reput.query.message import Message
from reput.scan import output
from reput.scan.frames import Frames, FrameWalk, frames
from reput.scan.output import Status
from reput.scan.part import TORN_PROPERTIES, PartOutcome, missing_range, scan_part, wrong_end
from reput.scan.rules import Part, rules
from reput.scan.table import QueueTable

_LOOK_AGAIN_SECONDS = 0.1
_LOOK_AGAIN_BYTES = 8 << 20

MOST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Block:
    """Some records that are asked for, in log order. Its columns are filled again for the next block."""

    data: NDArray[np.uint8]  # uint8[bytes], the segment
    base: int  # physical offset of its first byte
    frames: Frames  # columns
    rows: NDArray[np.int64]  # int64[n], which of their rows; n > 0

    def messages(self) -> Iterator[Message]:
        """The records one by one."""
        view = self.data.data
        for row in self.rows.tolist():
            record = commitlog.decode(view, int(self.frames.position[row]))
            yield Message(record, int(self.frames.size[row]))

    def first(self, count: int) -> Block:
        """The first ``count`` of them."""
        return Block(self.data, self.base, self.frames, self.rows[:count])


class Blank(NamedTuple):
    """The record that closes a segment; ``size`` is what it says of itself."""

    offset: int
    size: int

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"type": "blank", "physical_offset": self.offset, "size": self.size}


class Unwritten(NamedTuple):
    """Zeros up to the end of the log, physical offsets."""

    offset: int
    end: int

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"type": "unwritten", "physical_offset": self.offset, "size": self.end - self.offset}


Event = Block | Damage | Blank | Unwritten


@dataclass(slots=True)
class _Scan:
    """One segment, while it is gone over."""

    part: Part  # from where the scan begins to where only a hole of the file follows
    segment: SegmentBytes  # its bytes
    walk: FrameWalk  # gives the columns
    tail: int  # physical offset after the last record or damage

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[bytes], the segment."""
        return self.segment.data


class Reader:
    """Goes over segments.

    ``entries``: records may stand in DLedger's entries. ``wanted``: which records are asked for. ``start``,
    ``end``: of their physical offsets; half open.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        entries: bool,
        wanted: Wanted,
        start: int = 0,
        end: int = MOST_OFFSET,
    ) -> None:
        self._settings = settings
        self._entries = entries
        self._rules = rules(settings, index=False)._replace(entries=entries or None)
        self._table = QueueTable()
        # Small, so that what is found first is seen before a whole segment was read.
        self._out = output.output(units=1)
        self._frames = frames()
        self._wanted = wanted
        self._start, self._end = start, end
        #: storeTimestamp of the last record that was passed, ms.
        self.timestamp = 0

    def log(self, log: CommitLog, *, followed: bool = False) -> Iterator[Event]:
        """What a log at rest holds; ``followed`` says that there are segments behind these.

        Segments are left out where their own first storeTimestamp, or the next segment's, says that nothing
        in them is of the time that is asked for.
        """
        findings = sorted(log.findings, key=lambda finding: finding.offset)
        times = self._times(log)
        for number, segment in enumerate(log.segments):
            while findings and findings[0].offset <= segment.base:
                yield from self.damage(findings.pop(0))
            end = segment.base + log.segment_size
            if end <= self._start or segment.base >= self._end:
                continue
            following = times[number + 1] if number + 1 < len(times) else None
            if self._is_out_of_time(times[number], following):
                continue
            last = number == len(log.segments) - 1 and not followed
            yield from self.segment(segment, log.segment_size, last=last)
        for finding in findings:
            yield from self.damage(finding)

    def segment(
        self,
        segment: Segment,
        segment_size: int,
        *,
        last: bool,
        exact: int | None = None,
        grows: bool = False,
    ) -> Iterator[Event]:
        """What one segment holds.

        Args:
            segment_size: bytes that it spans in the log.
            last: no segment follows.
            exact: a physical offset where a record begins, to begin with.
            grows: more will come behind its last byte.
        """
        scan = self._begin(segment, segment_size, last=last, exact=exact)
        if scan is None:
            return
        outcome = PartOutcome()
        seen = 0
        for chunk in scan_part(
            scan.part, scan.data, self._rules, self._table, self._out, outcome, scan.segment.arriving
        ):
            stop = int(chunk.counts[output.LAST_POSITION]) + 1
            findings, seen = outcome.findings[seen:], len(outcome.findings)
            yield from self._events(scan, stop, findings)
            if stop > self._end:
                return
        left = [
            one
            for one in outcome.findings[seen:]
            if not (last and one.kind == TORN_PROPERTIES and _changes(scan.data, one.offset - segment.base))
        ]
        # Zeros in a hole of the file aren't gone over: that would fill the page cache with them.
        yield from self._events(scan, scan.part.end, left)
        self.timestamp = scan.walk.timestamp
        written_end = segment.base + len(scan.data)
        if outcome.status is Status.END and outcome.end < written_end:
            outcome.status, outcome.rest_is_zero = Status.UNWRITTEN, True  # a hole of the file
        if not grows:
            yield from self._close(scan, outcome)
        elif outcome.status is not Status.END:
            rest = missing_range(
                scan.part, scan.data, outcome.end, written_end, outcome.status, entries=self._entries
            )
            yield from self.damage(replace(rest, outcome="passed over: the log went on behind it"))

    def _begin(self, segment: Segment, segment_size: int, *, last: bool, exact: int | None) -> _Scan | None:
        first = 0 if exact is None else exact - segment.base
        walk, opened, part = self.walk(segment, segment_size, last=last, position=first)
        walk.timestamp = 0 if exact is None else self.timestamp
        # A record is asked for by its own place, which lies behind its entry's header.
        header = dledger.HEADER_LENGTH if self._entries else 0
        walk.advance(self._start - segment.base - header)
        if walk.end >= segment_size:
            return None  # past its BLANK
        # What is damaged around ``start`` is said, too: the scan begins where the last record before it ends.
        begin = segment.base + walk.end
        return _Scan(replace(part, start=begin, after_timestamp=walk.timestamp), opened, walk, begin)

    def walk(
        self, segment: Segment, segment_size: int, *, last: bool, position: int = 0
    ) -> tuple[FrameWalk, SegmentBytes, Part]:
        """A walk over the records of a segment.

        ``segment_size``: bytes that it spans in the log. ``last``: no segment follows. ``position``: where a
        record begins, or the entry that it stands in. Returns the walk; the segment's bytes; what it goes
        over, up to where only a hole of the file follows.
        """
        opened = open_segment(segment.path, segment.length)
        limit = max((end for _, end in written_ranges(segment)), default=0)
        base = segment.base
        part = Part(
            str(segment.path), base, segment.length, segment_size, base + position, base + limit, last=last
        )
        walk = FrameWalk.over(
            part,
            opened.data,
            self._settings,
            position=position,
            entries=self._entries,
            arriving=opened.arriving,
        )
        return walk, opened, part

    def places(
        self, segment: Segment, segment_size: int, position: int
    ) -> tuple[NDArray[np.uint8], list[tuple[int, int]]]:
        """A segment's bytes, uint8[bytes], and (position, size) of the records in it.

        ``segment_size``: bytes that it spans in the log. ``position``: where a record begins, or would.
        """
        walk, opened, part = self.walk(segment, segment_size, last=True, position=position)
        found = self._frames
        places: list[tuple[int, int]] = []
        for count in walk.blocks(part.end - part.base, found):
            places += zip(found.position[:count].tolist(), found.size[:count].tolist(), strict=True)
        return opened.data, places

    def _events(self, scan: _Scan, stop: int, findings: list[Finding]) -> Iterator[Event]:
        """Records up to the physical offset ``stop``, and between them what was found."""
        pending = sorted(findings, key=lambda finding: finding.offset)
        found, base = self._frames, scan.part.base
        for count in scan.walk.blocks(stop - base, found):
            if not count:
                continue
            places = found.position[:count] + base
            mask = self._wanted.rows(scan.data, found, count)
            mask &= (places >= self._start) & (places < self._end)
            rows = np.flatnonzero(mask)
            while pending and pending[0].offset <= places[-1]:
                before = int(np.searchsorted(places[rows], pending[0].offset))
                if before:
                    yield Block(scan.data, base, found, rows[:before])
                rows = rows[before:]
                yield from self.damage(pending.pop(0))
            if len(rows):
                yield Block(scan.data, base, found, rows)
            scan.tail = int(places[-1] + found.size[count - 1])
        for finding in pending:
            yield from self.damage(finding)
        scan.tail = max([scan.tail, *(finding.end for finding in findings)])

    def _close(self, scan: _Scan, outcome: PartOutcome) -> Iterator[Event]:
        """How the segment ends."""
        part, data, place = scan.part, scan.data, outcome.end
        written_end = part.base + part.segment_length
        if outcome.status is Status.BLANK:
            if self._start <= scan.tail < min(self._end, written_end - commitlog.BLANK_LENGTH + 1):
                yield Blank(scan.tail, self._blank_size(data, scan.tail - part.base))
            return
        is_unwritten = outcome.status in (Status.END, Status.UNWRITTEN) and outcome.rest_is_zero
        if part.last and is_unwritten and place < part.base + part.segment_size:
            if place < self._end and written_end > self._start:
                yield Unwritten(place, written_end)
            return
        finding = wrong_end(part, data, place, outcome.status, entries=self._entries)
        if finding is not None and not (part.last and _changes(data, place - part.base)):
            yield from self.damage(finding)

    def damage(self, finding: Finding) -> Iterator[Damage]:
        """What was found, if it touches the range that is asked for."""
        if finding.offset < self._end and (finding.end > self._start or finding.offset >= self._start):
            yield Damage.of(finding)

    def _blank_size(self, data: NDArray[np.uint8], position: int) -> int:
        first, second = struct.unpack_from(">ii", data.data, position)
        return int(second if self._entries and first == dledger.BLANK_MAGIC else first)

    def _times(self, log: CommitLog) -> list[int | None]:
        """Of each segment's first record the storeTimestamp, ms; None without one, or where nobody asks."""
        if self._wanted.since is None and self._wanted.until is None:
            return [None] * len(log.segments)
        v2 = self._rules.topic_length_v2
        return [first_time(segment, topic_length_v2=v2, entries=self._entries) for segment in log.segments]

    def _is_out_of_time(self, first: int | None, following: int | None) -> bool:
        since, until = self._wanted.since, self._wanted.until
        too_early = since is not None and following is not None and following < since
        return too_early or (until is not None and first is not None and first >= until)


def _changes(data: NDArray[np.uint8], position: int, *, nap: Callable[[float], None] = time.sleep) -> bool:
    """Whether somebody is writing at a place: half a record there is no damage then."""
    here = slice(position, position + _LOOK_AGAIN_BYTES)
    before = data[here].copy()
    nap(_LOOK_AGAIN_SECONDS)
    return not np.array_equal(before, data[here])


@dataclass(frozen=True, slots=True)
class LogExtent:
    """What a log holds."""

    #: start, end: physical offsets, half open, up to the last record's end; equal where there is none
    start: int
    end: int
    first: int = 0  # first, last: storeTimestamp, ms, of the first and the last record; 0 if missing
    last: int = 0


def of_log(place: LogPlace) -> LogExtent:
    """Where a log begins and ends. Read from both sides up to the first segment that has a record.

    Only the heads of records are looked at, of the last segment's all: what lies behind half a record tells
    whether the log goes on there or was cut.
    """
    log = place.log
    ends = (_last(place, segment) for segment in reversed(log.segments))
    found = next((end for end in ends if end is not None), None)
    if found is None:
        return LogExtent(log.start, log.start)
    end, last = found
    times = (_first(place, segment) for segment in log.segments)
    first = next((time for time in times if time is not None), last)
    return LogExtent(log.start, end, first, last)


def _last(place: LogPlace, segment: Segment) -> tuple[int, int] | None:
    """Of a segment's last record the end, a physical offset, and its storeTimestamp, ms."""
    walk, opened, part = _walk(place, segment)
    walk.advance(part.end - part.base)
    if walk.last_record < 0:
        return None
    size = int.from_bytes(opened.data[walk.last_record : walk.last_record + 4].tobytes(), "big")
    return segment.base + walk.last_record + size, walk.timestamp


def _first(place: LogPlace, segment: Segment) -> int | None:
    """Of a segment's first record the storeTimestamp, ms."""
    walk, _, part = _walk(place, segment)
    while walk.last_record < 0 and walk.position < part.end - part.base:
        walk.advance(walk.position + 1)
    return walk.timestamp if walk.last_record >= 0 else None


def _walk(place: LogPlace, segment: Segment) -> tuple[FrameWalk, SegmentBytes, Part]:
    reader = Reader(place.settings, entries=place.log.entries, wanted=Wanted())
    return reader.walk(segment, place.log.segment_size, last=True)


# --- a log that a broker is writing, as far as it is settled (docs/internals/live-log.md) ------------------

_WAIT_SECONDS = 0.25


def follow(
    settings: StoreSettings, wanted: Wanted, start: int | None, end: int, *, entries: bool
) -> Iterator[Event | None]:
    """The records of a log, and those that come, until ``end`` is reached; None while there is nothing new.

    Args:
        wanted: which records are asked for.
        start: physical offset to begin at; None for what isn't in the log yet.
        end: physical offset; half open.
        entries: records may stand in DLedger's entries.

    Raises:
        UnsupportedError: DLedger writes the log.
        LogWentBackError: the broker cut the log before what was read.
        StoreError: it can't be read.
    """
    if entries:
        raise UnsupportedError(
            "a log that DLedger writes isn't followed",
            path=settings.commit_log_dirs[0],
            next_step="Leave --follow out: what is committed is the group's to decide",
        )
    live = LiveLog(settings)
    place: int | None = None
    following: _Following | None = None
    standing = _Standing()
    while place is None or place < end:
        found = live.look(place or 0)
        if found is None:
            start = start or 0  # there was nothing when it began, so that all of it is news
        else:
            log, settled = found
            if following is None or place is None:
                first = settled.offset if start is None else max(start, log.start)
                reader = Reader(settings, entries=False, wanted=wanted, start=first, end=end)
                place, exact = min(first, settled.offset), first >= settled.offset
                reader.timestamp = settled.store_timestamp if exact else 0
                following = _Following(live, reader, exact=exact)
                if start is None:
                    standing.see(reader, log, place)
            place = standing.passed(place, settled.offset)
            if settled.offset > place:
                yield from following.between(log, place, settled.offset)
                place = settled.offset
        yield None
        live.wait(_WAIT_SECONDS, lambda: False)


class _Record(NamedTuple):
    """A record in a segment that begins at physical offset ``base``."""

    data: NDArray[np.uint8]
    base: int
    position: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.position + self.size

    def sum(self) -> int:
        """CRC of its bytes as they are now."""
        return crc32(self.data.data[self.position : self.position + self.size])


class _Following:
    """Goes from one settled end to the next.

    ``reader``: reads its segments. ``exact``: a record begins where the first stretch does.
    """

    def __init__(self, live: LiveLog, reader: Reader, *, exact: bool) -> None:
        self._live = live
        self._reader = reader
        self._exact = exact
        self._told: set[Queue] = set()

    def between(self, log: CommitLog, start: int, end: int) -> Iterator[Event]:
        """What lies in [start, end), of which everything is settled."""
        segments = [one for one in log.segments if one.base + log.segment_size > start and one.base < end]
        if start < log.start:
            yield _expired(log.segments[0], start, log.start)
        for segment in segments:
            yield from self._said(log, segment.base)
            last = segment is segments[-1]
            known = replace(segment, length=min(segment.length, end - segment.base)) if last else segment
            at = max(start, segment.base) if self._exact or segment.base >= start else None
            try:
                yield from self._reader.segment(known, log.segment_size, last=last, exact=at, grows=last)
            except SegmentGoneError:
                now = self._live.segments()
                if now is None or now.start <= segment.base:
                    raise
                yield _expired(segment, max(start, segment.base), min(segment.base + log.segment_size, end))
        yield from self._said(log, end)
        self._exact = True

    def _said(self, log: CommitLog, offset: int) -> Iterator[Event]:
        """What is said of the segments themselves up to a physical offset, once."""
        for finding in sorted(log.findings, key=lambda finding: finding.offset):
            if finding.offset <= offset and (finding.kind, finding.offset) not in self._told:
                self._told.add((finding.kind, finding.offset))
                yield from self._reader.damage(finding)


class _Standing:
    """Records that stood behind the settled end when following began: they aren't what comes from then on."""

    def __init__(self) -> None:
        self._records: deque[tuple[_Record, int]] = deque()

    def see(self, reader: Reader, log: CommitLog, start: int) -> None:
        """Look at what stands in the log from a physical offset on."""
        for segment in log.segments:
            if segment.base + segment.length > start:
                first = max(start - segment.base, 0)
                data, places = reader.places(segment, log.segment_size, first)
                records = (_Record(data, segment.base, *place) for place in places)
                self._records.extend((record, record.sum()) for record in records)

    def passed(self, place: int, settled: int) -> int:
        """Where what came later begins: ``place``, or the end of what stood there; physical offsets.

        ``place``: everything before it was shown, or stood there. ``settled``: the settled end.
        """
        while self._records and self._records[0][0].end <= settled:
            record, found = self._records.popleft()
            if record.sum() != found:
                self._records.clear()  # another one was written in its place
                break
            place = record.end
        return place


def _expired(segment: Segment, start: int, end: int) -> Damage:
    return Damage(
        kind="expired-unread",
        path=str(segment.path),
        offset=start,
        end=end,
        expected="the log as it was",
        found="segments that have expired",
        outcome="passed over: the broker deleted this before it was shown",
        in_log=True,
    )


#: What follows the log's last record is looked at twice: a broker may just be writing there.
