"""Where a log ends, for those who look at it: after its last whole record. And how far behind an output is.

A broker creates the next segment ahead of time: a segment without a record is no successor yet.

Other ends are other questions: up to where a tail may take a log that is being written
(:mod:`reput.log.live`), what a DLedger group has committed (:mod:`reput.log.segments`), and how far a
segment was written at all (:func:`reput.log.segments.without_unwritten_end`, :mod:`reput.broker.walk`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.format import commitlog, properties
from reput.format.commitlog import store_timestamp
from reput.log.segments import (
    CommitLog,
    Segment,
    discover,
    map_segment,
    next_place,
    open_segment,
    written_ranges,
)
from reput.log.walk import Frame, body_crc_is_wrong, frame, property_crc_is_wrong
from reput.scan.frames import FrameWalk
from reput.scan.output import Status
from reput.store.lock import is_broker_running
from reput.store.reading import extents

# Nothing here loads numba.

_LOOK_AT = 1 << 20
#: How far before a segment's end its BLANK is looked for, bytes, one after the other. The room that a broker
#: leaves is less than what its next message takes, mostly a few hundred bytes and at most 4 MiB.
_BLANK_WITHIN = (4 << 10, 256 << 10, 8 << 20)
_MAGIC_BLANK = commitlog.MAGIC_BLANK.to_bytes(4, "big")


class Records:
    """The records of one segment, looked at one by one.

    With ``property_crc_only``, the body's CRC isn't looked at (``forceVerifyPropCRC``).
    """

    def __init__(
        self, data: NDArray[np.uint8], base: int, *, topic_length_v2: bool, property_crc_only: bool
    ) -> None:
        self._view = data.data
        self._base = base
        self._v2 = topic_length_v2
        self._property_crc_only = property_crc_only

    def end(self, position: int) -> int:
        """Position after the whole frame at ``position``, -1 if missing."""
        found = self._frame(position)
        return -1 if found is None else position + found.size

    def has_stored_crc(self, position: int) -> bool:
        """Whether a whole frame stands there, with the CRCs that it names: of its body, of all its bytes."""
        found = self._frame(position)
        if found is None or (not self._property_crc_only and body_crc_is_wrong(self._view, found)):
            return False
        raw = self._properties(found)
        return not property_crc_is_wrong(self._view, found, raw, properties.parse(raw))

    def is_proven(self, position: int) -> bool:
        """Whether the record has a CRC of all its bytes, and it is right (``enabledAppendPropCRC``)."""
        found = self._frame(position)
        if found is None:
            return False
        raw = self._properties(found)
        values = properties.parse(raw)
        stored = values.get(properties.CRC32, b"")
        return (
            len(stored) == 10
            and raw.endswith(properties.CRC32 + b"\x01" + stored + b"\x02")
            and not property_crc_is_wrong(self._view, found, raw, values)
        )

    def is_ended(self, position: int) -> bool:
        """Whether the last byte of the record that isn't zero by its layout has been written.

        That is the last one of the properties or, without any, of the topic. Over zeros, and written from
        the first byte to the last, the record is then all there.
        """
        found = self._frame(position)
        if found is None:
            return False
        start, end = found.properties
        if start == end:
            start, end = found.topic
        return start < end and self._view[end - 1] != 0

    def _properties(self, found: Frame) -> bytes:
        return bytes(self._view[slice(*found.properties)])

    def _frame(self, position: int) -> Frame | None:
        found = frame(self._view, self._base, position, self._v2)
        return found if isinstance(found, Frame) else None


def written_end(descriptor: int | None, data: NDArray[np.uint8], start: int) -> int:
    """Position after the last byte from ``start`` on that isn't zero, ``start`` if all are.

    ``descriptor`` is that of the file, whose holes are passed over; None for what is in memory.
    """
    whole = [(start, len(data))]
    for first, stop in reversed(whole if descriptor is None else list(extents(descriptor, *whole[0]))):
        at = stop
        while at > first:
            piece = data[max(at - _LOOK_AT, first) : at]
            if piece.any():
                # A copy, for the broker writes meanwhile.
                return at - len(piece) + len(piece.tobytes().rstrip(b"\0"))
            at -= len(piece)
    return start


def is_written_out(descriptor: int, length: int) -> bool:
    """Whether a BLANK that reaches to the end of a segment of ``length`` bytes stands in it.

    A broker writes it after all that comes before it, whether directly or from a buffer
    (``CommitLog.DefaultAppendMessageCallback.doAppend``, ``DefaultMappedFile.commit0``). One that leaves more
    than 8 MiB isn't found.
    """
    for within in _BLANK_WITHIN:
        start = max(length - within, 0)
        piece = os.pread(descriptor, length - start, start)
        magic = len(piece)
        while (magic := piece.rfind(_MAGIC_BLANK, 0, magic + 3)) >= 4:
            at = magic - 4
            if int.from_bytes(piece[at:magic], "big") == length - start - at:
                return True
        if not start:
            return False
    return False


#: How far past damage in a growing segment the next record is looked for at each call. The largest message
#: that a broker takes by default (``maxMessageSize``) is 4 MiB.
_SEARCH_BYTES = 8 << 20
#: A record older than this, ms, is no longer being written.
_SETTLED_MS = 2_000


@dataclass(frozen=True, slots=True)
class _Known:
    """What the walk before learned of a segment."""

    end: int  # position after the last whole record
    last_record: int  # its position, -1 if missing
    head: bytes  # its first bytes, by which it is known again


class LogEnd:
    """The physical offset after the log's last whole record, again and again while the log grows.

    Only the last written segment is walked, and only from where the walk before stopped. ``timestamp`` is the
    storeTimestamp, ms, of the last record at the last call, 0 without one.
    """

    def __init__(self, settings: StoreSettings, now_ms: Callable[[], float] | None = None) -> None:
        self._settings = settings
        self._v2 = settings.dialect.topic_length_v2
        self._entries = settings.entries
        self._property_crc_only = settings.force_verify_prop_crc
        self._now_ms = now_ms or (lambda: time.time() * 1000)
        self._known: dict[str, _Known] = {}
        self.timestamp = 0

    def find(self, log: CommitLog) -> int:
        """The end of the log as it is now; the end of the segment after a BLANK.

        Past damage the next whole record is looked for: in the whole segment when it is seen for the first
        time, in the 8 MiB that follow later on.
        """
        known, self._known = self._known, {}
        for segment in reversed(log.segments):
            walk = self._walk(segment, log, known.get(str(segment.path)))
            if walk.end:
                self.timestamp = walk.timestamp
                return segment.base + walk.end
        return log.start

    def _walk(self, segment: Segment, log: CommitLog, known: _Known | None) -> FrameWalk:
        opened = open_segment(segment.path, segment.length, keeps=False)
        data, view = opened.data, opened.data.data
        # Of the zeros behind, a file has no pages: looking for more there would make some.
        written = max((end for _, end in written_ranges(segment)), default=0)
        if known is not None:
            opened.fetch_frame(known.last_record)
            if not _is_there(known, view):
                known = None

        records = Records(
            data, segment.base, topic_length_v2=self._v2, property_crc_only=self._property_crc_only
        )

        def is_whole(position: int) -> bool:
            # The end first: what was written before it is there when it is.
            is_settled = (
                records.is_ended(position)
                or records.is_proven(position)
                or abs(self._now_ms() - store_timestamp(view, position)) > _SETTLED_MS
            )
            return is_settled and records.has_stored_crc(position)

        walk = FrameWalk(
            data,
            segment.base,
            log.segment_size,
            written,
            last=True,
            topic_length_v2=self._v2,
            is_whole=is_whole,
            position=known.end if known else 0,
            timestamp=store_timestamp(view, known.last_record) if known and known.last_record >= 0 else 0,
            search_bytes=_SEARCH_BYTES if known else None,
            search_unwritten=known is None,
            entries=self._entries,
            largest_record=self._settings.largest_record,
            growing=lambda: is_broker_running(self._settings.root),
            arriving=opened.arriving,
        )
        walk.advance(written)
        last = walk.last_record if walk.last_record >= 0 else known.last_record if known else -1
        head = bytes(view[last : last + commitlog.MIN_RECORD_LENGTH]) if last >= 0 else b""
        self._known[str(segment.path)] = _Known(walk.end, last, head)
        return walk


def _is_there(known: _Known, view: memoryview) -> bool:
    """Whether the record before the known end is still the same; a broker may have cut the log meanwhile."""
    last = known.last_record
    return last < 0 or bytes(view[last : last + commitlog.MIN_RECORD_LENGTH]) == known.head


@dataclass(frozen=True, slots=True)
class Lag:
    """How far an output is behind."""

    end: int  # physical offset after the log's last whole record. Below the cursor when the log went back
    bytes: int  # of the log between the cursor and the end, without gaps
    ms: int  # how long the oldest message that isn't committed has been in the log; 0 when none waits


class LagProbe:
    """Measures the lag repeatedly; each time reads only what is new in the log. May be used by threads.

    The time is that of the oldest waiting message, not the difference of two storeTimestamps: by that, the
    first message after a quiet hour would count as an hour behind, and a single waiting message as nothing.
    """

    def __init__(self, settings: StoreSettings, now_ms: Callable[[], float] | None = None) -> None:
        self._settings = settings
        self._now_ms = now_ms or (lambda: time.time() * 1000)
        self._log_end = LogEnd(settings, now_ms)
        self._lock = threading.Lock()

    def look(self, cursor: int, last_timestamp: int) -> Lag:
        """The lag of an output that has the log up to ``cursor``.

        ``last_timestamp`` is its last message's storeTimestamp, ms.
        """
        with self._lock:
            log = discover(self._settings)
            end = self._log_end.find(log)
        behind = sum(
            max(min(segment.base + segment.length, end) - max(segment.base, cursor), 0)
            for segment in log.segments
        )
        if not behind:
            return Lag(end, 0, 0)
        since = self._stored_at(log, cursor, end)
        # If no record can be read there, it isn't older than the last one committed.
        since = last_timestamp if since is None else since
        return Lag(end, behind, max(int(self._now_ms()) - since, 0) if since else 0)

    def _stored_at(self, log: CommitLog, cursor: int, end: int) -> int | None:
        """The storeTimestamp, ms, of the first message from ``cursor`` on; None where none begins."""
        place = next_place(log, cursor)
        while place < end:
            segment = log.segment_at(place)
            if segment is None:
                return None
            data = map_segment(segment.path, segment.length).data
            found = frame(data, segment.base, place - segment.base, self._settings.dialect.topic_length_v2)
            if isinstance(found, Frame):
                return store_timestamp(data, found.position)
            rest = segment.base + segment.length - place
            if found is not Status.BLANK and rest >= commitlog.BLANK_LENGTH:
                return None
            place = next_place(log, segment.base + log.segment_size)
        return None
