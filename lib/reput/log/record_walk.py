"""Counting a log's records, and finding one by its time: what a stream takes next, and what is left to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from reput.config.settings import StoreSettings
from reput.format import dledger
from reput.log.segments import CommitLog, Segment, open_segment, part_of
from reput.scan.frames import BLOCK_ROWS, ROWS, Frames, FrameWalk, frames

#: So much is walked over to count what is left: some tens of milliseconds, whatever the backlog.
_MOST_COUNTED = 256 << 20
_ANY_BYTES = (1 << 63) - 1


class Left(NamedTuple):
    """What a range of the log holds; None where too much would have to be walked over to tell."""

    messages: int | None = None  # whole records that begin in it
    first_timestamp: int | None = None  # the first one's storeTimestamp, ms; None also where there is none


class RecordWalk:
    """Walks over whole records from any physical offset on.

    A place is where a record begins, or the DLedger entry that it stands in. Each segment is walked from its
    first byte, for what stands in its middle may be a body; a later call goes on where one was.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._lead = dledger.HEADER_LENGTH if settings.entries else 0
        #: A segment's path, a place in it as a position, and the storeTimestamp before that, ms.
        self._known = ("", 0, 0)

    def after(self, log: CommitLog, start: int, stop: int, messages: int) -> int:
        """The place behind so many records (at least one) that begin at or after ``start``.

        It is ``stop`` where there are fewer.
        """
        place, left = stop, messages
        for segment, walk, _, rows in self._blocks(log, start, stop, messages):
            left -= rows
            place = segment.base + walk.position
            self._known = (str(segment.path), walk.position, walk.timestamp)
        return place if left <= 0 else stop

    def first_since(self, log: CommitLog, start: int, stop: int, timestamp: int) -> int | None:
        """The place of the first record in [start, stop) that was stored at ``timestamp``, ms, or later."""
        for segment, _, out, rows in self._blocks(log, start, stop):
            since = np.flatnonzero(out.store_timestamp[:rows] >= timestamp)
            if len(since):
                return segment.base + int(out.position[since[0]]) - self._lead
        return None

    def left(self, log: CommitLog, start: int, stop: int) -> Left:
        """What [start, stop) holds."""
        if start >= stop:
            return Left(0)
        segment = log.segment_at(start)
        if segment is not None and start - segment.base - self._known_in(segment, start) > _MOST_COUNTED:
            return Left()
        is_counted = stop - start <= _MOST_COUNTED
        messages, first = 0, None
        for _, _, out, rows in self._blocks(log, start, stop, None if is_counted else 1):
            first = int(out.store_timestamp[0]) if rows and first is None else first
            messages += rows
        return Left(messages if is_counted else None, first)

    def _blocks(
        self, log: CommitLog, start: int, stop: int, most: int | None = None
    ) -> Iterator[tuple[Segment, FrameWalk, Frames, int]]:
        """Records that begin in [start, stop), ``most`` in all, in blocks; some may have none."""
        for segment in log.segments:
            if segment.base + segment.length <= start or segment.base >= stop:
                continue
            opened = open_segment(segment.path, segment.length, keeps=False)
            begin, end = max(start, segment.base), min(stop, segment.base + segment.length)
            position = self._known_in(segment, begin)
            walk = FrameWalk.over(
                part_of(log, segment, begin, end),
                opened.data,
                self._settings,
                self._known[2] if position else 0,
                position=position,
                arriving=opened.arriving,
            )
            walk.advance(begin - segment.base)
            self._known = (str(segment.path), walk.position, walk.timestamp)
            while walk.position < end - segment.base:
                if most == 0:
                    return
                out = frames(BLOCK_ROWS if most is None else min(most, BLOCK_ROWS))
                walk.advance(end - segment.base, out, _ANY_BYTES)
                rows = int(out.counts[ROWS])
                most = None if most is None else most - rows
                yield segment, walk, out, rows

    def _known_in(self, segment: Segment, place: int) -> int:
        """The last known position at or before a place, 0 where there is none."""
        path, position, _ = self._known
        return position if path == str(segment.path) and segment.base + position <= place else 0
