"""A log that a broker is writing, as a stream's planner sees it: looked at often, for little."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from reput.config.settings import StoreSettings
from reput.errors import ReputError, SegmentGoneError, StoreError
from reput.log.live_end import End, LiveEnd
from reput.log.segments import CommitLog, discover, listed
from reput.store.reading import looked_at

#: How often the directories are listed when nothing calls for it, seconds. A broker makes a segment long
#: before it needs it.
_LIST_SECONDS = 0.25
#: Steps of waiting: the longer a log has been silent, the longer, so that a silent one costs next to nothing.
_FIRST_STEP_SECONDS = 0.001
_LONGEST_STEP_SECONDS = 0.02
_STEPS_OF_SILENCE = 50
#: What is looked for by a thread that waits for nothing else.
_SETTLE_STEP_SECONDS = 0.008
_TRIES = 5


class LiveLog:
    """The segments and the settled end of a live log; at ``exact`` a record is known to begin."""

    def __init__(self, settings: StoreSettings, exact: int | None = None) -> None:
        self._settings = settings
        self._end = LiveEnd(settings, exact=exact)
        self._log: CommitLog | None = None
        self._listed = 0.0
        self._found: tuple[CommitLog, End] | None = None
        self._is_warm = False
        self._silent_since = time.monotonic()

    def look(self, floor: int) -> tuple[CommitLog, End] | None:
        """The log and its settled end, None while there is no segment with a byte in it.

        Everything before ``floor`` has been taken before: where the log was cut there, this raises
        LogWentBackError.
        """
        for tries_left in reversed(range(_TRIES)):
            log = self._list()
            if log is None:
                return None
            try:
                end = self._end.find(log, floor)
                if self._found is None or end != self._found[1]:
                    self._silent_since = time.monotonic()
                self._found = log, end
                return self._found
            except SegmentGoneError:
                self._log = None
                if not tries_left:
                    raise
        raise AssertionError  # the loop returns or raises

    def settled(self, floor: int) -> int:
        """The settled end, or ``floor`` where that can't be told: then whoever takes ``floor`` says why."""
        try:
            found = self.look(floor)
        except ReputError:
            return floor
        return floor if found is None else max(floor, found[1].offset)

    def close(self) -> None:
        """Let the segments go."""
        self._end.close()

    def segments(self) -> CommitLog | None:
        """The log's segments as listed now; None while there is none with a byte in it."""
        self._log = None
        return self._list()

    def settle(self, seconds: float) -> int:
        """The end once it is certain what the log's last bytes are, or after so many seconds.

        It takes longer as long as the end is held before the last segment that has begun at the first look.
        """
        deadline: float | None = None
        least: int | None = None
        while True:
            found = self.look(0)
            # The first look may take long: kernels are loaded, and segments walked.
            deadline = deadline or time.monotonic() + seconds
            if found is None or not self._end.is_uncertain:
                return 0 if found is None else found[1].offset
            held_before = self._end.held_before
            least = held_before if least is None else least
            is_held = held_before is not None and least is not None and found[1].offset < least
            if time.monotonic() >= deadline and not is_held:
                return found[1].offset
            time.sleep(_SETTLE_STEP_SECONDS)

    def written(self, floor: int) -> CommitLog | None:
        """The log without the segments that the broker hasn't begun to write; None while there is none.

        ``floor``, up to which all has been taken, lies before the log's end.
        """
        found = self._found
        if found is None or found[1].offset < floor:
            found = self.look(floor)
        if found is None:
            return None
        log, end = found
        segments = tuple(segment for segment in log.segments if segment.base < end.offset)
        return replace(log, segments=segments or log.segments[:1])

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Wait until the log may hold more; False when ``is_over`` says so or the time has passed."""
        if not self._is_warm:
            self._is_warm = True
            threading.Thread(target=_load_kernel, name="reput-walk", daemon=True).start()
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline and not is_over():
            step = min((now - self._silent_since) / _STEPS_OF_SILENCE, _LONGEST_STEP_SECONDS)
            time.sleep(min(max(step, _FIRST_STEP_SECONDS), deadline - now))
            if self._end.stirs() or self._end.is_at_segments_end:
                return True
        return False

    def _list(self) -> CommitLog | None:
        now = time.monotonic()
        if self._log is None or self._end.is_at_segments_end or now - self._listed >= _LIST_SECONDS:
            try:
                self._log = discover(self._settings)
            except StoreError:
                # A broker that starts may have made its first segment since.
                self._log = discover(self._settings) if _has_bytes(self._settings) else None
            self._listed = now
        return self._log


def _load_kernel() -> None:
    from reput.log import walk_kernel

    walk_kernel.load()


def _has_bytes(settings: StoreSettings) -> bool:
    """Whether there is more in the log's directories than a broker puts there while it starts."""
    for entry in [entry for directory in settings.commit_log_dirs for entry in listed(directory)]:
        facts = looked_at(entry)
        if facts is not None and stat.S_ISREG(facts.st_mode) and facts.st_size:
            return True
    return False
