"""Where a log that a broker is writing ends, for certain; docs/internals/live-log.md has the rules.

The pipeline takes everything before this end as it finds it: whole messages, and damage that stays.
Source: ``MappedFile.appendMessagesInner``, ``CommitLog.DefaultAppendMessageCallback`` (rocketmq-all-4.9.7,
5.3.3), ``MappedFileQueue.truncateDirtyFiles``, ``AllocateMappedFileService``, ``TransientStorePool``.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.errors import LogWentBackError, ReputError, SegmentGoneError, StoreError
from reput.format import commitlog
from reput.format.commitlog import store_timestamp
from reput.log import walk
from reput.log.end import Records, is_written_out, written_end
from reput.log.segments import CommitLog, Segment, discover, listed, map_segment
from reput.log.walk import Walked
from reput.scan.output import Status
from reput.store.reading import looked_at, open_file, reading

if TYPE_CHECKING:
    from reput.scan.extent import Extents


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
    """The segments and the settled end of a live log; ``exact``, ``timestamp``: see :class:`LiveEnd`."""

    def __init__(self, settings: StoreSettings, exact: int | None = None, timestamp: int = 0) -> None:
        self._settings = settings
        self._end = LiveEnd(settings, exact=exact, timestamp=timestamp)
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


#: How much behind a segment's last byte is seen to stay zero, bytes.
ZEROS = 4096


@dataclass(frozen=True, slots=True)
class Passed:
    """A segment whose end never came, and that was passed by time alone: what comes later is noticed."""

    segment: Segment
    end: int  # position up to which there were records
    marks: tuple[tuple[int, bytes], ...]  # (position, bytes) that stood there when it was passed

    def changed(self) -> int | None:
        """The first physical offset where other bytes are now than were passed, None if missing.

        A BLANK where the records ended is no change: it was all that was missing.
        """
        try:
            descriptor = open_file(self.segment.path)
        except FileNotFoundError:
            return None  # expired
        try:
            head = os.pread(descriptor, commitlog.BLANK_LENGTH, self.end)
            if head[4:] == commitlog.MAGIC_BLANK.to_bytes(4, "big"):
                return None
            for position, data in sorted(self.marks):
                if os.pread(descriptor, len(data), position) != data:
                    return self.segment.base + position
        finally:
            os.close(descriptor)
        return None


#: Longer than bytes that one thread writes after others take to be seen after them, seconds.
_NAP_SECONDS = 0.0005
#: A record whose end can't be told from unwritten bytes counts when it stays as it is for so long.
_REST_SECONDS = 2.0
#: A segment without its BLANK, which a later one follows, is over when its file stays as it is for so long.
_BUFFER_SECONDS = 10.0
#: A segment that was last modified longer ago isn't being written any more, seconds by the wall clock.
_LONG_SECONDS = 60.0
#: How often the rest of a segment is searched past something that is no record, seconds.
_SEARCH_SECONDS = 0.2
#: How far past it, in a part of the segment that was seen unwritten. A broker's largest message is 4 MiB.
_SEARCH_BYTES = 8 << 20
#: More zeros than a record can end in, bytes.
_MOST_ZEROS = 64 << 10
#: What tells bytes from others written in their place: a record's head with its storeTimestamp.
_SIGN_BYTES = 96
#: A longer walk is left to numba, loaded or not.
_SLOW_RECORDS = 200
_LEAST = -(1 << 63)


class End(NamedTuple):
    """The end of a log."""

    offset: int  # physical offset; everything before it is settled
    store_timestamp: int  # of the last record before it, ms; 0 if not known


@dataclass(slots=True)
class _Foreign:
    """Bytes after the settled end that may be left over from before the broker's last start."""

    end: int  # position after the last of them
    newest: int  # the highest storeTimestamp, ms, among records in them
    searched: float = 0.0  # when what follows the settled end was gone over last, seconds


class _Survey(NamedTuple):
    """What a segment holds from a settled position on; positions, -1 is none."""

    doubt: int  # where it first isn't certain to be the broker's present log
    last: int  # the last record before that
    before: int  # the record before that one
    reach: int  # position after the last record of all
    final: int  # the last record of all
    final_before: int  # the record before that one
    newest: int  # the highest storeTimestamp, ms, of records from ``doubt`` on
    is_closed: bool  # a BLANK stands at ``reach``


class _Held(NamedTuple):
    """Why the end stays in a segment though a later one has begun."""

    #: the position that waits to be written, what stands there, and the file's time of modification
    looks: tuple[int, bytes, int]
    since: float  # when it began to look like that, seconds
    last: int  # physical offset of the last segment that has begun
    passes: bool = False  # it has looked like that for long enough


@dataclass(slots=True)
class _Tail:
    """The segment that the broker is writing."""

    segment: Segment
    descriptor: int
    identity: tuple[int, int]
    data: NDArray[np.uint8]
    records: Records
    end: int = 0  # settled up to here
    last: int = -1  # position of the last settled record, -1 if none is known
    head: bytes = b""  # its first bytes, by which it is known again
    timestamp: int = 0  # its storeTimestamp, ms
    foreign: _Foreign | None = None  # what else stands after the end, None if it was seen unwritten
    unfinished: NDArray[np.uint8] | None = None  # the bytes after the end when a record was seen half there
    #: position and CRC of a record that waits for time to pass, and since when
    resting: tuple[int, int, float] = (-1, 0, 0.0)
    #: what stood at the end when the rest was searched last, and when
    searched: tuple[bytes, float] = field(default=(b"", 0.0))
    held: _Held | None = None  # a later segment has begun, and this one isn't written to its end

    @property
    def view(self) -> memoryview:
        return self.data.data

    def sign(self) -> bytes:
        return bytes(self.view[self.end : self.end + _SIGN_BYTES])

    def looks(self) -> tuple[int, bytes, int]:
        return self.end, self.sign(), os.fstat(self.descriptor).st_mtime_ns

    def passed(self, held: _Held) -> Passed:
        """What has to stay as it is when nothing more is waited for."""
        written = written_end(self.descriptor, self.data, self.end)
        zeros = min(ZEROS, len(self.data) - written)
        marks = [(self.end, held.looks[1]), (written, bytes(zeros))]
        if self.last >= 0:
            marks.append((self.last, self.head))
        return Passed(self.segment, self.end, tuple(marks))

    def take(self, position: int) -> None:
        """Settle everything up to the end of the record at ``position``."""
        self.last = position
        self.head = bytes(self.view[position : position + commitlog.MIN_RECORD_LENGTH])
        self.timestamp = store_timestamp(self.view, position)
        self.end = self.records.end(position)
        self.unfinished = None

    def close(self) -> None:
        os.close(self.descriptor)


class LiveEnd:
    """The settled end of a log, again and again while a broker writes it.

    If a record begins at ``exact``, so does the first look. What lies behind it and is older than
    ``timestamp``, the storeTimestamp before it in ms, may be left of a log that was cut: it is in doubt.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        exact: int | None = None,
        timestamp: int = 0,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self._v2 = settings.dialect.topic_length_v2
        self._property_crc_only = settings.force_verify_prop_crc
        self._largest_record = settings.largest_record
        self._exact = exact
        self._timestamp = timestamp
        self._clock = clock
        self._nap = nap
        self._tail: _Tail | None = None
        # None: written out, and so not waited for.
        self._ahead: dict[int, _Tail | None] = {}
        self._passed: list[Passed] = []

    def find(self, log: CommitLog, floor: int | None = None) -> End:
        """The end as of now. It never moves back.

        An earlier reader found everything before ``floor`` settled. Where what was settled is no longer
        there, this raises LogWentBackError; where a segment has just been deleted, SegmentGoneError: look at
        the directory again.
        """
        tail = self._tail
        if tail is not None and not self._is_there(tail, log):
            tail = self._tail = None
        for one in self._passed:
            if (changed := one.changed()) is not None:
                raise went_back(one.segment, changed, one.segment.base + log.segment_size)
        if tail is None:
            tail = self._begin(log, floor)
        else:
            self._advance(tail)
        while self._is_over(tail, log):
            following = self._growing(log, tail.segment.base + log.segment_size)
            # Of bytes that stand before those that were seen just now, all are seen after this.
            self._nap(_NAP_SECONDS)
            opened = self._open(following, log.segment_size)
            opened.timestamp = tail.timestamp
            held = tail.held
            by_time = held is not None and held.passes
            if held is not None and by_time:
                self._passed.append(tail.passed(held))
            tail.close()
            tail = self._tail = opened
            self._advance(tail)
            self._inherit(tail, by_time=by_time)
        if floor is not None and floor > self._settled(tail, log, floor):
            # An earlier reader knew more than this one: look again, with what it knew.
            self.close()
            tail = self._begin(log, floor)
            if floor > self._settled(tail, log, floor):
                raise went_back(tail.segment, tail.segment.base + tail.end, floor)
        self._look_ahead(tail, log)
        if tail.last >= 0:
            # By this record it is seen from now on whether the log went back.
            self._passed.clear()
        return End(self._settled(tail, log, floor), tail.timestamp)

    def _settled(self, tail: _Tail, log: CommitLog, floor: int | None) -> int:
        """The end; ``floor`` if that lies between a BLANK and the end of its segment, where nothing is."""
        end = tail.segment.base + tail.end
        if (
            floor is not None
            and end < floor <= tail.segment.base + log.segment_size
            and self._is_closed(tail)
        ):
            return floor
        return end

    def stirs(self) -> bool:
        """Whether there may be more than at the last look; costs a microsecond."""
        tail = self._tail
        if tail is None or tail.foreign is not None or tail.unfinished is not None:
            return True
        if tail.held is not None and self._clock() - tail.held.since >= _BUFFER_SECONDS:
            return True
        return not self._is_closed(tail) and any(tail.view[tail.end : tail.end + commitlog.BLANK_LENGTH])

    @property
    def is_uncertain(self) -> bool:
        """Whether there are bytes after the end that may yet turn out to be records, or such may come."""
        tail = self._tail
        if tail is None:
            return False
        return tail.foreign is not None or tail.unfinished is not None or tail.held is not None

    @property
    def held_before(self) -> int | None:
        """The last segment that has begun, by its physical offset, while the end waits in an earlier one."""
        held = None if self._tail is None else self._tail.held
        return None if held is None else held.last

    @property
    def is_at_segments_end(self) -> bool:
        """Whether the next record goes to a segment that is yet to be seen."""
        return self._tail is not None and self._is_closed(self._tail)

    def close(self) -> None:
        """Let the segments go."""
        for base in list(self._ahead):
            self._let_go(base)
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _open(self, segment: Segment, segment_size: int) -> _Tail:
        data = map_segment(segment.path, min(segment.length, segment_size))
        try:
            descriptor = open_file(segment.path)
        except FileNotFoundError as error:
            raise SegmentGoneError("the segment has been deleted", path=segment.path) from error
        status = os.fstat(descriptor)
        records = Records(
            data, segment.base, topic_length_v2=self._v2, property_crc_only=self._property_crc_only
        )
        return _Tail(segment, descriptor, (status.st_dev, status.st_ino), data, records)

    def _is_there(self, tail: _Tail, log: CommitLog) -> bool:
        """Whether the segment and its last settled record still are; False when it has expired.

        Raises LogWentBackError where other bytes are in their place.
        """
        base = tail.segment.base
        now = next((segment for segment in log.segments if segment.base == base), None)
        if now is None:
            tail.close()
            self._tail = None
            if log.start > base:
                return False
            raise went_back(log.segments[-1], base, base + tail.end)
        if now != tail.segment or _identity(now) != tail.identity:
            if now.length < tail.end:
                raise went_back(now, base + now.length, base + tail.end)
            again = self._open(now, log.segment_size)
            tail.close()
            tail.segment, tail.descriptor, tail.identity = again.segment, again.descriptor, again.identity
            tail.data, tail.records = again.data, again.records
        if tail.last >= 0 and bytes(tail.view[tail.last : tail.last + len(tail.head)]) != tail.head:
            raise went_back(now, base + tail.last, base + tail.end)
        return True

    def _is_closed(self, tail: _Tail) -> bool:
        end = tail.end
        return end >= len(tail.data) or _is_blank(tail.view[end : end + commitlog.BLANK_LENGTH])

    def _is_over(self, tail: _Tail, log: CommitLog) -> bool:
        """Whether a later segment has begun, and nothing will be written to this one any more."""
        last = _last_begun(segment for segment in log.segments if segment.base > tail.segment.base)
        if last is None:
            tail.held = None
            return False
        if self._is_closed(tail):
            tail.held = None
            return True
        return self._is_held_out(tail, last)

    def _is_held_out(self, tail: _Tail, last: Segment) -> bool:
        """Whether nothing comes any more to a segment that has no BLANK at its end.

        The broker may have had no buffer for a later one: what is missing here is still in this one's.
        """
        looks = tail.looks()
        if tail.held is None or tail.held.looks != looks:
            if is_written_out(tail.descriptor, len(tail.data)) and self._leads_to_blank(tail):
                tail.held = None
                return True
            tail.held = _Held(looks, self._clock(), last.base)
        if self._clock() - tail.held.since < _BUFFER_SECONDS:
            return False
        tail.held = tail.held._replace(passes=True)
        return True

    def _leads_to_blank(self, tail: _Tail) -> bool:
        """Whether the records from the end on, and the extents of damaged ones, lead to a closing record.

        One that merely stands in the segment may be part of a message's body.
        """
        extents = self._extents(tail, len(tail.data))
        position = tail.end
        while True:
            walked = self._walk(tail, position, 0, _LEAST)
            if walked.status == Status.BLANK:
                return extents.is_blank(walked.position)
            position = extents.end(walked.position)
            if position < 0:
                return False

    def _is_written_out(self, segment: Segment, segment_size: int) -> bool:
        """Whether a segment that another one follows is over.

        One that hasn't been modified for a minute has been waited for, whatever a body in it holds.
        """
        try:
            with reading(segment.path, by_ranges=True) as descriptor:
                if not is_written_out(descriptor, segment.length):
                    return False
                modified = os.fstat(descriptor).st_mtime
        except FileNotFoundError as error:
            raise SegmentGoneError("the segment has been deleted", path=segment.path) from error
        if not 0 <= time.time() - modified < _LONG_SECONDS:
            return True
        tail = self._open(segment, segment_size)
        try:
            return self._leads_to_blank(tail)
        finally:
            tail.close()

    def _look_ahead(self, tail: _Tail, log: CommitLog) -> None:
        """See what the segments look like that are waited for after this one; they wait together with it."""
        last = None if tail.held is None else tail.held.last
        between = (one for one in log.segments if last is not None and tail.segment.base < one.base < last)
        middle = {segment.base: segment for segment in between}
        for base in self._ahead.keys() - middle.keys():
            self._let_go(base)
        for base, segment in middle.items():
            ahead = self._ahead.get(base)
            if ahead is not None and _identity(segment) != ahead.identity:
                self._let_go(base)
            if base not in self._ahead:
                is_over = self._is_written_out(segment, log.segment_size)
                ahead = None if is_over else self._open(segment, log.segment_size)
                self._ahead[base] = ahead
            if ahead is None:
                continue
            ahead.timestamp = max(ahead.timestamp, tail.timestamp)
            self._advance(ahead)
            looks = ahead.looks()
            if ahead.held is None or ahead.held.looks != looks:
                ahead.held = _Held(looks, self._clock(), last or base)

    def _let_go(self, base: int) -> None:
        ahead = self._ahead.pop(base)
        if ahead is not None:
            ahead.close()

    def _inherit(self, tail: _Tail, *, by_time: bool) -> None:
        """Let a segment have waited beside the one before it, if nothing came to either meanwhile.

        A broker writes its buffers in order: while something comes to the one before, this one's turn is yet
        to come, and its time doesn't count.
        """
        ahead = self._ahead.pop(tail.segment.base, None)
        if ahead is None:
            return
        if by_time and ahead.held is not None and ahead.held.looks == tail.looks():
            tail.held = ahead.held
        ahead.close()

    def _growing(self, log: CommitLog, start: int) -> Segment:
        """The first segment that may not be written to its end yet; those that end by ``start`` are."""
        last = _last_begun(log.segments) or log.segments[0]
        for segment in log.segments:
            if segment.base >= last.base:
                break
            if segment.base + log.segment_size > start and not self._is_written_out(
                segment, log.segment_size
            ):
                return segment
        return last

    # The first look: nothing is known yet of what lies after the last record.

    def _begin(self, log: CommitLog, floor: int | None) -> _Tail:
        chosen = self._growing(log, max(floor or 0, self._exact or 0))
        tail = self._tail = self._open(chosen, log.segment_size)
        trusted = 0 if floor is None else max(floor - chosen.base, 0)
        if self._exact is not None and chosen.base <= self._exact < chosen.base + len(tail.data):
            place = self._exact - chosen.base
            head = tail.view[place : place + commitlog.BLANK_LENGTH]
            # What begins within a record says nothing of where the next one does: then all of it is walked.
            if tail.records.end(place) >= 0 or _is_zero(head) or _is_blank(head):
                tail.end, tail.timestamp = place, self._timestamp
        found = self._survey(tail, trusted)
        # What was written before the bytes that were seen just now is seen after this.
        self._nap(_NAP_SECONDS)
        last, stop = found.last, found.doubt if found.doubt >= 0 else found.reach
        written = written_end(tail.descriptor, tail.data, stop)
        if found.is_closed and written == found.reach + commitlog.BLANK_LENGTH:
            written = found.reach
        if last < 0:
            tail.end = stop if trusted >= stop else tail.end
        elif last < trusted or (found.doubt >= 0 and store_timestamp(tail.view, last) <= found.newest):
            # Somebody took it, or something newer lies behind it: it was written to its end.
            tail.take(last)
            tail.end = max(tail.end, min(stop, trusted))
        else:
            if found.before >= 0:
                tail.take(found.before)
            tail.end = last
        if tail.end < written:
            tail.foreign = _Foreign(written, found.newest, self._clock())
            self._advance(tail)
        return tail

    def _survey(self, tail: _Tail, trusted: int) -> _Survey:
        """Go over everything from the settled end on, around what is damaged."""
        position, timestamp, top = tail.end, tail.timestamp, tail.timestamp
        doubt = limit = before = final = final_before = -1
        last, newest = tail.last, _LEAST
        while True:
            if doubt < 0:
                walked = self._walk(tail, position, trusted, top)
                if walked.drop >= 0:
                    doubt = walked.drop
                    newest = self._walk(tail, doubt, 0, _LEAST).top
                    if walked.before_drop >= 0:
                        to_drop = self._walk(tail, position, trusted, top, until=doubt)
                        before = to_drop.before if to_drop.before >= 0 else last
                        last = walked.before_drop
                elif walked.last >= 0:
                    before = walked.before if walked.before >= 0 else last
                    last = walked.last
                top = walked.top
            else:
                walked = self._walk(tail, position, 0, _LEAST)
                newest = max(newest, walked.top)
            if walked.records:
                timestamp = walked.timestamp
                final_before = walked.before if walked.before >= 0 else final
                final = walked.last
            position = walked.position
            if walked.status == Status.BLANK or position >= len(tail.data):
                break
            if limit < 0:
                limit = written_end(tail.descriptor, tail.data, position)
            found = self._resume(tail, position, limit, timestamp)
            if found < 0:
                break
            if doubt < 0 and position >= trusted:
                self._nap(_NAP_SECONDS)
                if tail.records.end(position) >= 0:
                    continue  # it was being written
                doubt = position
            position = found
        is_closed = walked.status == Status.BLANK
        return _Survey(doubt, last, before, position, final, final_before, newest, is_closed)

    # Later looks.

    def _advance(self, tail: _Tail) -> None:
        for _ in range(4):
            if not (self._fresh(tail) if tail.foreign is None else self._strict(tail, tail.foreign)):
                return

    def _fresh(self, tail: _Tail) -> bool:
        """Settle what was written where nothing was before. Whether there may be more."""
        if _is_zero(tail.view[tail.end : tail.end + commitlog.BLANK_LENGTH]) or self._is_closed(tail):
            return False
        if tail.unfinished is not None:
            before, now = tail.unfinished, tail.data[tail.end : tail.end + len(tail.unfinished)]
            if bool(((before != 0) & (before != now)).any()):
                # Another record than the one that was begun: a broker that died, and the next one.
                tail.foreign = _Foreign(tail.end + len(before), _LEAST)
                tail.unfinished = None
                return True
        walked = self._walk(tail, tail.end, len(tail.data))
        last = walked.last
        is_ended = last >= 0 and (tail.records.is_ended(last) or tail.records.is_proven(last))
        self._nap(_NAP_SECONDS)
        if last >= 0:
            if not (is_ended and tail.records.has_stored_crc(last)):
                if walked.before >= 0:
                    tail.take(walked.before)
                return self._wait_for(tail, last)
            tail.take(last)
        if walked.status in (Status.BLANK, Status.UNWRITTEN, Status.FULL):
            return walked.status == Status.FULL
        return tail.records.end(tail.end) >= 0 or self._pass_damage(tail)

    def _wait_for(self, tail: _Tail, last: int) -> bool:
        """Leave the last record, whose frame is whole, for later: its end isn't there, or looks like that."""
        after = tail.records.end(last)
        if after >= 0 and tail.records.has_stored_crc(last) and self._has_rested(tail, last, after):
            tail.take(last)
            return True
        tail.end = last
        self._remember_unfinished(tail)
        return False

    def _pass_damage(self, tail: _Tail) -> bool:
        """Go around what is no record, when one that was written later follows it."""
        sign = tail.sign()
        if tail.searched[0] == sign and self._clock() - tail.searched[1] < _SEARCH_SECONDS:
            return False
        tail.searched = (sign, self._clock())
        limit = written_end(tail.descriptor, tail.data, tail.end)
        found = self._resume(tail, tail.end, limit, tail.timestamp, finally_=True)
        self._remember_unfinished(tail)
        if found < 0 or not self._has_rested(tail, tail.end, found):
            return False
        tail.end = found
        tail.unfinished = None
        return True

    def _remember_unfinished(self, tail: _Tail) -> None:
        window = tail.data[: tail.end + _SEARCH_BYTES]
        tail.unfinished = tail.data[tail.end : written_end(tail.descriptor, window, tail.end)].copy()

    def _strict(self, tail: _Tail, foreign: _Foreign) -> bool:
        """Settle records over bytes that were there before, one by one. Whether there may be more."""
        begun_at = tail.end
        records = tail.records
        while tail.end < foreign.end:
            position = tail.end
            after = records.end(position)
            if after < 0:
                break
            timestamp = store_timestamp(tail.view, position)
            if timestamp <= foreign.newest or not records.has_stored_crc(position):
                break
            is_followed = records.end(after) >= 0 and store_timestamp(tail.view, after) >= timestamp
            if is_followed:
                self._nap(_NAP_SECONDS)
                if not records.has_stored_crc(position):
                    break
            elif not (records.is_proven(position) or self._has_rested(tail, position, after)):
                break
            tail.take(position)
        if tail.end >= foreign.end:
            tail.foreign = None
            return True
        return tail.end > begun_at or self._confirm(tail, foreign)

    def _has_rested(self, tail: _Tail, position: int, end: int) -> bool:
        found = crc32(tail.view[position:end])
        if tail.resting[:2] != (position, found):
            tail.resting = (position, found, self._clock())
        return self._clock() - tail.resting[2] >= _REST_SECONDS

    def _confirm(self, tail: _Tail, foreign: _Foreign) -> bool:
        """Settle whatever stands there when the log goes on past all of it. Whether it does."""
        now = self._clock()
        goes_on = any(tail.view[foreign.end : foreign.end + commitlog.BLANK_LENGTH])
        if not goes_on and now - foreign.searched < _SEARCH_SECONDS:
            return False
        foreign.searched = now
        found = self._survey(tail, tail.end)
        if found.final < foreign.end:
            return False
        self._nap(_NAP_SECONDS)
        if found.final_before >= 0:
            tail.take(found.final_before)
        tail.end = found.final
        tail.foreign = None
        return True

    def _walk(
        self, tail: _Tail, start: int, trusted: int, top: int | None = None, until: int | None = None
    ) -> Walked:
        """See :func:`reput.log.walk.walk`; ``until``: only records that end by this position."""
        base = tail.segment.base
        top = tail.timestamp if top is None else top
        view = tail.view[:until]
        if "reput.log.walk_kernel" not in sys.modules:
            walked = walk.walk(view, base, start, trusted, self._v2, top, _SLOW_RECORDS)
            if walked.status != Status.FULL:
                return walked
        from reput.log import walk_kernel

        data = tail.data[: len(view)]
        return walk_kernel.walk(data, base, start, trusted, self._v2, top, len(data))

    def _resume(
        self, tail: _Tail, position: int, limit: int, timestamp: int, *, finally_: bool = False
    ) -> int:
        """Where the log goes on behind the damage at ``position``, -1 if nowhere up to ``limit``.

        ``limit`` is behind the last byte that isn't zero; ``timestamp`` is that of the newest record before
        the damage. With ``finally_``, what is written later must not change the answer.
        """
        extents = self._extents(tail, limit, timestamp)
        found = extents.resume(position, limit)
        if finally_ and found.position >= 0:
            # The log has to go on past every place where the damaged record may end.
            reached = self._walk(tail, found.position, 0, _LEAST).position
            if reached < max(extents.claims(position), default=0):
                return -1
        return found.position

    def _extents(self, tail: _Tail, limit: int, timestamp: int | None = None) -> Extents:
        from reput.scan.extent import Extents

        return Extents(
            tail.data[: limit + _MOST_ZEROS],
            tail.segment.base,
            len(tail.data),
            topic_length_v2=self._v2,
            largest_record=self._largest_record,
            not_before=timestamp,
            growing=True,
        )


def _last_begun(segments: Iterable[Segment]) -> Segment | None:
    """The last of some segments that the broker has written to."""
    return next((segment for segment in reversed(list(segments)) if _is_begun(segment)), None)


def _is_begun(segment: Segment) -> bool:
    """Whether the broker has written to a segment that it may have made ahead of time."""
    try:
        with reading(segment.path, by_ranges=True) as descriptor:
            return not _is_zero(os.read(descriptor, commitlog.BLANK_LENGTH))
    except FileNotFoundError as error:
        raise SegmentGoneError("the segment has been deleted", path=segment.path) from error


def _is_blank(head: memoryview) -> bool:
    return bytes(head[4:]) == commitlog.MAGIC_BLANK.to_bytes(4, "big")


def _is_zero(data: bytes | memoryview) -> bool:
    return not any(data)


def _identity(segment: Segment) -> tuple[int, int]:
    try:
        status = segment.path.stat()
    except FileNotFoundError as error:
        raise SegmentGoneError("the segment has been deleted", path=segment.path) from error
    return status.st_dev, status.st_ino


def went_back(segment: Segment, offset: int, reached: int) -> LogWentBackError:
    """The error of a log that was read up to ``reached``, and isn't that log any more at ``offset``."""
    return LogWentBackError(
        "the commit log has gone back: it was cut by its broker, or is another one",
        path=segment.path,
        offset=offset,
        expected=f"the log that was read up to {reached}",
        found="its end, or other bytes",
        next_step="Start again where the log is still the same",
    )
