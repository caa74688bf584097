"""A log that a broker is writing, as far as it is settled, again and again: see docs/live-log.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reput.dump.commitlog import Event, Reader
from reput.dump.wanted import Wanted
from reput.errors import UnsupportedError
from reput.settings import StoreSettings
from reput.source.live import LiveLog
from reput.store.segments import CommitLog

_WAIT_SECONDS = 0.25


def follow(
    settings: StoreSettings, wanted: Wanted, start: int | None, end: int, *, entries: bool
) -> Iterator[Event | None]:
    """The records of a log, and those that come, until ``end`` is reached; None while there is nothing new.

    Args:
        settings: the store's.
        wanted: which records are asked for.
        start: physical offset to begin at; None for the log's present end.
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
    reader: Reader | None = None
    while place is None or place < end:
        found = live.look(place or 0)
        if found is not None:
            log, settled = found
            if reader is None:
                start = settled.offset if start is None else max(start, log.start)
                reader = Reader(settings, entries=False, wanted=wanted, start=start, end=end)
                reader.timestamp = settled.store_timestamp if start >= settled.offset else 0
                yield from _between(reader, log, start, settled.offset, exact=start >= settled.offset)
            elif place is not None and settled.offset > place:
                yield from _between(reader, log, place, settled.offset, exact=True)
            place = max(settled.offset, place or 0)
        yield None
        live.wait(_WAIT_SECONDS, lambda: False)


def _between(reader: Reader, log: CommitLog, start: int, end: int, *, exact: bool) -> Iterator[Event]:
    """What lies in [start, end); with ``exact`` a record begins at ``start``, or a segment."""
    segments = [one for one in log.segments if one.base + log.segment_size > start and one.base < end]
    for segment in segments:
        last = segment is segments[-1]
        known = replace(segment, length=min(segment.length, end - segment.base)) if last else segment
        at = max(start, segment.base) if exact or segment.base >= start else None
        yield from reader.segment(known, log.segment_size, last=last, exact=at, grows=last)
