"""How far an output is behind its log, measured in the log itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from reput.config.settings import StoreSettings
from reput.format import commitlog
from reput.format.commitlog import store_timestamp
from reput.log.end import LogEnd
from reput.log.segments import CommitLog, discover, map_segment, next_place
from reput.log.walk import Frame, frame
from reput.scan.output import Status


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
