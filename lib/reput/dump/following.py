"""A log that a broker is writing, as far as it is settled, again and again (docs/internals/live-log.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.dump.commitlog import Event, Reader
from reput.dump.damage import Damage
from reput.dump.wanted import Wanted
from reput.errors import SegmentGoneError, UnsupportedError
from reput.format.names import Queue
from reput.log.live import LiveLog
from reput.log.segments import CommitLog, Segment

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
