"""Reading a log once and counting what is in it: a thread a segment, each with sums of its own.

Why not Spark: the walk over frames runs at memory speed on two threads and needs no shuffle, for its sums are
small; a session alone would take longer than a gigabyte does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.config.basis import Basis
from reput.config.settings import StoreSettings
from reput.errors import Finding, Result, json_of
from reput.format import javastring
from reput.format.commitlog import TRANSACTION_MASK
from reput.log.segments import CommitLog, Segment, discover, open_segment, part_of
from reput.newer_python import StrEnum
from reput.scan.frames import ROWS, Frames, FrameWalk, frames
from reput.scan.kernel import _mix, _topic
from reput.scan.load import u8
from reput.scan.table import QueueTable
from reput.store.reading import check_store

# A group is a pair of numbers: that of the topic (or 0), and a queue id, an hour, or the number of a tag or a
# host. Each group has a row of sums and a histogram of sizes. There are at most :data:`MOST_GROUPS`; whatever
# comes later is counted in row 0, so that the memory doesn't grow with the log.


class By(StrEnum):
    """What messages are grouped by."""

    TOPIC = "topic"
    QUEUE = "queue"
    TAG = "tag"
    HOUR = "hour"
    HOST = "host"


_KEYS = {
    By.TOPIC: ("topic",),
    By.QUEUE: ("topic", "queue_id"),
    By.TAG: ("topic", "tag"),
    By.HOUR: ("hour_ms",),
    By.HOST: ("host",),
}
_ALL_KEYS = ("topic", "queue_id", "tag", "hour_ms", "host")


@dataclass(frozen=True, slots=True)
class Group:
    """Messages with something in common."""

    messages: int  # messages, bytes: how many, and of their whole records
    bytes: int
    least: int  # least, most: bytes of the smallest and the largest record
    most: int
    p50: int  # p50, p99: approximate percentiles of the sizes, bytes: at most 7 % off
    p99: int
    first_time: int  # first_time, last_time: least and greatest storeTimestamp, ms
    last_time: int
    keys: int  # keys, tags: messages with keys, with a tag
    tags: int
    #: whose sysFlag names a transaction's end: committed, as a rule. Those that wait for it are in
    #: ``RMQ_SYS_TRANS_HALF_TOPIC``, without that
    transactions: int
    #: with a delay level or a time of delivery. While they wait they are in ``SCHEDULE_TOPIC_XXXX`` or
    #: ``rmq_sys_wheel_timer``
    delayed: int
    retries: int  # that were consumed before, and failed
    #: topic, queue_id, tag, hour_ms, host: of the group, None for what it isn't by. ``hour_ms`` is where it
    #: begins, ms since 1970; ``tag`` is None, too, for messages without one; ``host`` is the
    #: producer's address
    topic: str | None = None
    queue_id: int | None = None
    tag: str | None = None
    hour_ms: int | None = None
    host: str | None = None
    rest: bool = False  # whether these are all groups that came when there was no room for more

    @property
    def rate(self) -> float | None:
        """Messages a second between the first and the last; None for one moment."""
        ms = self.last_time - self.first_time
        return None if ms <= 0 else self.messages * 1000 / ms


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nothing was stored."""

    gap_ms: int  # how long
    before_store_timestamp: int  # of the messages around it, ms
    before_physical_offset: int
    after_store_timestamp: int
    after_physical_offset: int


@dataclass(frozen=True, slots=True)
class Statistics(Result):
    """What a log, or a range of it, holds."""

    store: Path
    rocketmq_version: str  # whose rules
    by: By
    #: start, end: half-open range of physical offsets in which the messages begin. Where none was
    #: asked for, the log's: it ends after its last whole record, or BLANK
    start: int
    end: int
    allocated: int  # where the log's last segment ends, written or not
    total: Group | None  # all messages that were counted; None without any
    groups: tuple[Group, ...]  # by descending bytes, hours in their order
    gaps: tuple[Gap, ...]  # the longest, those with the most ms first
    steps_back: int  # messages stored earlier than the one before them in the log
    most_back_ms: int  # by how much at most, ms
    findings: tuple[Finding, ...]  # missing segments, and segments of a wrong length
    seconds: float  # how long it took
    basis: Basis = field(default_factory=Basis)  # what the settings rest on
    #: storeTimestamp of the log's first and last message, ms, where nothing was counted in the time
    #: that was asked for; else None
    log_times: tuple[int, int] | None = None

    hidden = ("log_times",)

    def more(self) -> dict[str, object]:
        """Sums as programs have them, and what isn't a field."""
        return {
            "total": None if self.total is None else self._group(self.total, ()),
            "groups": [self._group(group, _KEYS[self.by]) for group in self.groups],
            "log_first_store_timestamp": None if self.log_times is None else self.log_times[0],
            "log_last_store_timestamp": None if self.log_times is None else self.log_times[1],
        }

    def _group(self, group: Group, keys: tuple[str, ...]) -> dict[str, object]:
        facts = json_of(group)
        named, rest = {name: facts.pop(name) for name in _ALL_KEYS}, facts.pop("rest")
        head = {"rest": True} if rest else {name: named[name] for name in keys}
        rate = None if group.rate is None else round(group.rate, 3)
        share = round(group.bytes / self.total.bytes, 6) if self.total is not None else None
        return {**head, **facts, "share": share, "messages_per_second": rate}


#: Rows of a tally; with their histograms they take 59 MiB.
MOST_GROUPS = 1 << 16
#: Sizes are counted by eighths of an octave, from 64 bytes on: no record is shorter.
_FIRST_OCTAVE, EIGHTHS = 6, 8
BINS = (32 - _FIRST_OCTAVE) * EIGHTHS
#: The longest gaps between two messages that are kept.
MOST_GAPS = 5

MESSAGES, BYTES, LEAST, MOST, FIRST, LAST, KEYS, TAGS, TRANSACTIONS, DELAYED, RETRIES = range(11)
COLUMNS = 11
#: ``walk``: of the segment that is being read, its first and last counted message (time, position); then, of
#: all segments, the steps back.
_FIRST_TIME, _FIRST_AT, _LAST_TIME, _LAST_AT, _BACKS, _MOST_BACK = range(6)
_DONE, _NEW_TOPIC, _NEW_NAME, _NO_ROOM = range(4)
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_HOUR_MS = 3_600_000
_PORT_LENGTH = 4
_BY_TOPIC, _BY_QUEUE, _BY_TAG, _BY_HOUR, _BY_HOST = (list(By).index(by) for by in By)

#: Properties with which a message waits to be delivered, as ``MessageConst`` has them (5.3.3).
_DELAYS = (b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS", b"TIMER_DELAY_MS")
_DELAY_TEXT = np.frombuffer(b"".join(_DELAYS), np.uint8)
_DELAY_ENDS = np.cumsum([len(name) for name in _DELAYS])


class Wanted(NamedTuple):
    """Which messages count."""

    topic: int  # the number of their topic, -1 for all
    since: int  # since, last: least and greatest storeTimestamp, ms
    last: int


class Arrays(NamedTuple):
    """What the kernel adds to."""

    slots: NDArray[np.int32]  # int32[2^n], open addressing, row + 1, 0 = free
    first: NDArray[np.int64]  # first, second: int64[rows], the pair; row 0 is what has no row of its own
    second: NDArray[np.int64]
    sums: NDArray[np.int64]  # int64[rows, COLUMNS]
    bins: NDArray[np.uint32]  # uint32[rows, BINS], messages by size
    #: int64[MOST_GAPS, 5], ms, and time and position before and after; the longest first
    gaps: NDArray[np.int64]
    walk: NDArray[np.int64]  # int64[6], see the module's constants
    used: NDArray[np.int64]  # int64[1], rows in use


@dataclass(frozen=True, slots=True)
class Ends:
    """The first and the last message that counted in a segment: storeTimestamp (ms) and physical offset."""

    first: tuple[int, int]
    last: tuple[int, int]


@dataclass(slots=True)
class Tally:
    """Counts messages of a topic, or stored in a half-open range of ms, in ``most`` rows; for one thread."""

    by: By
    topic: bytes | None = None
    since: int = _LEAST
    until: int = _GREATEST + 1
    most: int = MOST_GROUPS
    arrays: Arrays = field(init=False)
    _topics: QueueTable = field(init=False, default_factory=QueueTable)
    _names: QueueTable = field(init=False)
    _wanted: Wanted = field(init=False)

    def __post_init__(self) -> None:
        wanted = -1 if self.topic is None else self._topics.intern_topic(self.topic)
        self._names = QueueTable(texts=self.by is not By.HOST)
        self._wanted = Wanted(wanted, self.since, self.until - 1)
        rows = 64
        self.arrays = Arrays(
            slots=np.zeros(4 * rows, np.int32),
            first=np.zeros(rows, np.int64),
            second=np.zeros(rows, np.int64),
            sums=empty_sums(rows),
            bins=np.zeros((rows, BINS), np.uint32),
            gaps=np.zeros((MOST_GAPS, 5), np.int64),
            walk=np.array([0, -1, 0, -1, 0, 0], np.int64),
            used=np.ones(1, np.int64),
        )

    @property
    def messages(self) -> int:
        """How many have been counted."""
        return int(self.arrays.sums[:, MESSAGES].sum())

    def add(
        self, data: NDArray[np.uint8], base: int, block: Frames, rows: NDArray[np.int64] | None = None
    ) -> None:
        """Count the records of a block of the segment ``data``, or of it the ``rows``, int64[n]."""
        rows = np.arange(block.counts[ROWS]) if rows is None else rows
        done, by = 0, list(By).index(self.by)
        while done < len(rows):
            done, why, start, length = (
                int(number)
                for number in _add(
                    data, base, block, rows, done, by, self._wanted,
                    self._topics.topics, self._names.topics, self.arrays, self.most, _DELAY_TEXT, _DELAY_ENDS,
                )
            )  # fmt: skip
            if why == _NEW_TOPIC:
                self._topics.intern_topic(data[start : start + length].tobytes())
            elif why == _NEW_NAME:
                self._names.intern_topic(data[start : start + length].tobytes())
            elif why == _NO_ROOM:
                self._grow()

    def end_segment(self) -> Ends | None:
        """What has been counted since the last segment's end; None when nothing has."""
        first_time, first_at, last_time, last_at, _backs, _most = self.arrays.walk.tolist()
        self.arrays.walk[:4] = 0, -1, 0, -1
        return None if first_at < 0 else Ends((first_time, first_at), (last_time, last_at))

    def rows(self) -> list[tuple[tuple[bytes | None, bytes | int | None] | None, int]]:
        """Each group that has a message, and its row; a group is its topic and what it is divided by.

        None is what has no row of its own; in a pair, None is what the groups aren't by, or no tag.
        """
        found: list[tuple[tuple[bytes | None, bytes | int | None] | None, int]] = []
        arrays = self.arrays
        for row in range(int(arrays.used[0])):
            if not arrays.sums[row, MESSAGES]:
                continue
            if not row:
                found.append((None, 0))
                continue
            topic, second = int(arrays.first[row]), int(arrays.second[row])
            named = self._topics.topic_names[topic] if self.by in (By.TOPIC, By.QUEUE, By.TAG) else None
            part: bytes | int | None = second
            if self.by in (By.TAG, By.HOST):
                part = None if second < 0 else self._names.topic_names[second]
            elif self.by is By.TOPIC:
                part = None
            found.append(((named, part), row))
        return found

    def _grow(self) -> None:
        old = self.arrays
        rows = min(2 * len(old.first), self.most)
        slots = np.zeros(len(old.slots) * 2, np.int32)
        first, second = (grown(column, np.zeros(rows, np.int64)) for column in (old.first, old.second))
        _fill(slots, first, second, int(old.used[0]))
        self.arrays = old._replace(
            slots=slots,
            first=first,
            second=second,
            sums=grown(old.sums, empty_sums(rows)),
            bins=grown(old.bins, np.zeros((rows, BINS), np.uint32)),
        )


def empty_sums(rows: int, columns: int = COLUMNS) -> NDArray[np.int64]:
    """int64[rows, columns], as they are before the first message; the first six columns have to be there."""
    sums = np.zeros((rows, columns), np.int64)
    sums[:, [LEAST, FIRST]] = _GREATEST
    sums[:, LAST] = _LEAST
    return sums


def grown(rows: NDArray[Any], larger: NDArray[Any]) -> NDArray[Any]:
    """``larger``, with these rows as its first."""
    larger[: len(rows)] = rows
    return larger


def bin_range(number: int) -> tuple[int, int]:
    """The sizes that a bin counts, half open, in bytes."""
    octave, eighth = divmod(number, EIGHTHS)
    low, step = 1 << (octave + _FIRST_OCTAVE), (1 << (octave + _FIRST_OCTAVE)) // EIGHTHS
    return low + eighth * step, low + (eighth + 1) * step


@njit(cache=CACHED, nogil=True)
def bin_of(size):  # type: ignore[no-untyped-def]
    """The number of a size's bin."""
    octave = np.int64(_FIRST_OCTAVE)
    while size >> (octave + 1):
        octave += 1
    return (octave - _FIRST_OCTAVE) * EIGHTHS + ((size - (np.int64(1) << octave)) * EIGHTHS >> octave)


@njit(cache=CACHED, nogil=True)
def _slot(first, second, slots, firsts, seconds):  # type: ignore[no-untyped-def]
    """The slot of a pair: its own, or the free one where it goes."""
    mask = np.int64(len(slots) - 1)
    slot = np.int64(_mix(_mix(np.uint64(first)) ^ np.uint64(second)) & np.uint64(mask))
    while True:
        row = np.int64(slots[slot]) - 1
        if row < 0 or (firsts[row] == first and seconds[row] == second):
            return slot
        slot = (slot + 1) & mask


@njit(cache=CACHED, nogil=True)
def _fill(slots, firsts, seconds, used):  # type: ignore[no-untyped-def]
    for row in range(1, used):
        slots[_slot(firsts[row], seconds[row], slots, firsts, seconds)] = row + 1


@njit(cache=CACHED, nogil=True)
def _add(  # type: ignore[no-untyped-def]
    data, base, block, rows, done, by, wanted, topics, names, arrays, most, delay_text, delay_ends
):
    """Count from the row numbered ``done`` on. Returns (it, why it stopped, a new name)."""
    for number in range(done, len(rows)):
        at = rows[number]
        time = block.store_timestamp[at]
        if time < wanted.since or time > wanted.last:
            continue
        first = second = np.int64(0)
        known, full = True, arrays.used[0] >= most
        if wanted.topic >= 0 or by <= _BY_TAG:
            first = _topic(data, block.topic[at], block.topic_length[at], topics)
            if wanted.topic >= 0 and first >= 0 and first != wanted.topic:
                continue
            if first < 0:
                # A topic that isn't known may be another spelling of the wanted one.
                if not full or wanted.topic >= 0:
                    return number, _NEW_TOPIC, block.topic[at], block.topic_length[at]
                known = False
        start = length = np.int64(0)
        if by == _BY_QUEUE:
            second = np.int64(block.queue_id[at])
        elif by == _BY_HOUR:
            first, second = np.int64(0), time // _HOUR_MS
        elif by == _BY_TAG:
            start, length = block.tags[at], block.tags_length[at]
        elif by == _BY_HOST:
            first, start, length = np.int64(0), block.born_host[at], block.born_host_length[at] - _PORT_LENGTH
        if length > 0:
            second = _topic(data, start, length, names)
            if second < 0:
                if not full:
                    return number, _NEW_NAME, start, length
                known = False
        elif by == _BY_TAG:
            second = np.int64(-1)
        group = np.int64(0)
        if known:
            slot = _slot(first, second, arrays.slots, arrays.first, arrays.second)
            group = np.int64(arrays.slots[slot]) - 1
            if group < 0 and arrays.used[0] < len(arrays.first):
                group = arrays.used[0]
                arrays.used[0] = group + 1
                arrays.slots[slot] = group + 1
                arrays.first[group], arrays.second[group] = first, second
            elif group < 0 and not full:
                return number, _NO_ROOM, start, length
            group = max(group, np.int64(0))
        _count(data, block, at, arrays.sums[group], delay_text, delay_ends)
        arrays.bins[group, bin_of(block.size[at])] += 1
        _walk(time, base + block.position[at], arrays.walk, arrays.gaps)
    return len(rows), _DONE, np.int64(0), np.int64(0)


@njit(cache=CACHED, nogil=True)
def add_size(sums, size):  # type: ignore[no-untyped-def]
    """Add a message of this size to a row of sums."""
    sums[MESSAGES] += 1
    sums[BYTES] += size
    sums[LEAST] = min(sums[LEAST], size)
    sums[MOST] = max(sums[MOST], size)


@njit(cache=CACHED, nogil=True)
def add_time(sums, time):  # type: ignore[no-untyped-def]
    """Say in a row of sums that it has a message of this storeTimestamp, ms."""
    sums[FIRST] = min(sums[FIRST], time)
    sums[LAST] = max(sums[LAST], time)


@njit(cache=CACHED, nogil=True)
def _count(data, block, at, sums, delay_text, delay_ends):  # type: ignore[no-untyped-def]
    add_size(sums, block.size[at])
    add_time(sums, block.store_timestamp[at])
    sums[KEYS] += block.keys_length[at] > 0
    sums[TAGS] += block.tags_length[at] > 0
    sums[TRANSACTIONS] += block.sys_flag[at] & TRANSACTION_MASK != 0
    sums[RETRIES] += block.reconsume_times[at] > 0
    for entry in range(block.entry_end[at - 1] if at else 0, block.entry_end[at]):
        begin = 0
        for number in range(len(delay_ends)):
            end = delay_ends[number]
            if block.name_length[entry] == end - begin:
                name, same = block.name[entry], True
                for byte in range(end - begin):
                    same = same and u8(data, name + byte) == delay_text[begin + byte]
                if same:
                    sums[DELAYED] += 1
                    return
            begin = end


@njit(cache=CACHED, nogil=True)
def _walk(time, position, walk, gaps):  # type: ignore[no-untyped-def]
    """Take a message for the next in time: keep the longest gaps, and count the steps back."""
    if walk[_LAST_AT] < 0:
        walk[_FIRST_TIME], walk[_FIRST_AT] = time, position
    else:
        step = time - walk[_LAST_TIME]
        if step < 0:
            walk[_BACKS] += 1
            walk[_MOST_BACK] = max(walk[_MOST_BACK], -step)
        elif step > gaps[-1, 0]:
            place = len(gaps) - 1
            while place > 0 and gaps[place - 1, 0] < step:
                gaps[place] = gaps[place - 1]
                place -= 1
            gaps[place, 0] = step
            gaps[place, 1], gaps[place, 2] = walk[_LAST_TIME], walk[_LAST_AT]
            gaps[place, 3], gaps[place, 4] = time, position
    walk[_LAST_TIME], walk[_LAST_AT] = time, position


_MOST_THREADS = 8
_LISTEN_SECONDS = 0.2
_HOUR_MS = 3_600_000
_Key = tuple[bytes | None, bytes | int | None] | None

#: Gets bytes of the log and messages that were read, and how many bytes there are.
Listener = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Span:
    """Which messages count; None is no bound."""

    start: int | None = None  # start, end: those that begin in this half-open range of physical offsets
    end: int | None = None
    since: int | None = None  # since, until: those stored in this half-open range, ms since 1970
    until: int | None = None


@dataclass(slots=True)
class _Worker:
    """What one thread counts with."""

    tally: Tally
    block: Frames = field(default_factory=frames)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A segment that was counted."""

    ends: Ends | None  # its first and last message; None without one
    reached: int  # physical offset after its last whole record, or BLANK; the log's start without one


def count(
    settings: StoreSettings,
    by: By = By.TOPIC,
    *,
    topic: str | None = None,
    span: Span | None = None,
    threads: int | None = None,
    most_groups: int = MOST_GROUPS,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Statistics:
    """Count the messages of a store's commit log. What is damaged in it is skipped.

    Of a live log, what is there at the beginning is read. ``threads`` are as many as there are processors, up
    to 8, when None. Beyond ``most_groups``, groups that come later share one row. ``listener`` gets, a few
    times a second, how far it is.
    """
    began = time.monotonic()
    span = span or Span()
    check_store(settings.root)
    log = discover(settings)
    start = log.start if span.start is None else span.start
    end = log.end if span.end is None else min(span.end, log.end)
    segments = [one for one in log.segments if one.base < end and one.base + one.length > start]
    bounds = {
        name: value for name, value in (("since", span.since), ("until", span.until)) if value is not None
    }
    wanted = None if topic is None else topic.encode("utf-8", "surrogateescape")
    processors = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    number = max(min(threads or processors, len(segments)), 1)
    workers = [_Worker(Tally(by, wanted, most=most_groups, **bounds)) for _ in range(number)]
    counted = _count_all(settings, log, segments, (start, end), workers, listener)
    tallies = [worker.tally for worker in workers]
    groups = groups_of(tallies, by)
    backs, most_back, gaps = _times(tallies, [one.ends for one in counted if one.ends is not None])
    return Statistics(
        store=settings.root,
        rocketmq_version=settings.told_release,
        by=by,
        start=start,
        end=max(start, min(end, max((one.reached for one in counted), default=start))),
        allocated=log.end,
        total=total_of(tallies),
        groups=groups,
        gaps=gaps,
        steps_back=backs,
        most_back_ms=most_back,
        findings=log.findings,
        seconds=time.monotonic() - began,
        basis=settings.basis,
    )


def _count_all(
    settings: StoreSettings,
    log: CommitLog,
    segments: list[Segment],
    span: tuple[int, int],
    workers: list[_Worker],
    listener: Listener,
) -> list[_Counted]:
    """Count all segments."""
    free: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)
    done = [0] * len(segments)
    total = sum(min(one.base + one.length, span[1]) - max(one.base, span[0]) for one in segments)
    stopped = Event()

    def one(number: int) -> _Counted:
        worker = free.get()
        try:
            return _count_segment(settings, log, segments[number], span, worker, done, number, stopped)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(len(workers), "reput-stats") as pool:
        futures = [pool.submit(one, number) for number in range(len(segments))]
        waiting = set(futures)
        try:
            while waiting:
                finished, waiting = wait(waiting, _LISTEN_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    future.result()
                listener(sum(done), sum(worker.tally.messages for worker in workers), total)
        except BaseException:
            stopped.set()
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]


def _count_segment(
    settings: StoreSettings,
    log: CommitLog,
    segment: Segment,
    span: tuple[int, int],
    worker: _Worker,
    done: list[int],
    number: int,
    stopped: Event,
) -> _Counted:
    opened = open_segment(segment.path, segment.length, keeps=False)
    begin = max(span[0] - segment.base, 0)
    stop = min(segment.length, span[1] - segment.base)
    part = part_of(log, segment, segment.base + begin, segment.base + stop)
    walk = FrameWalk.over(part, opened.data, settings, arriving=opened.arriving)
    if begin:
        walk.advance(begin)
    for _rows in walk.blocks(stop, worker.block):
        worker.tally.add(opened.data, segment.base, worker.block)
        done[number] = min(max(walk.position, begin), stop) - begin
        if stopped.is_set():
            break
    return _Counted(worker.tally.end_segment(), segment.base + walk.end if walk.end else log.start)


def groups_of(tallies: list[Tally], by: By) -> tuple[Group, ...]:
    """What several tallies counted, by group: the one with most bytes first, hours in their order."""
    places: dict[_Key, list[tuple[Tally, int]]] = {}
    for tally in tallies:
        for key, row in tally.rows():
            places.setdefault(key, []).append((tally, row))
    groups = [_group(key, by, found) for key, found in places.items()]
    if by is By.HOUR:
        return tuple(sorted(groups, key=lambda one: (one.rest, one.hour_ms)))
    return tuple(sorted(groups, key=lambda one: (one.rest, -one.bytes, _name(one))))


def _name(group: Group) -> tuple[str, int, str, str]:
    return group.topic or "", group.queue_id or 0, group.tag or "", group.host or ""


def total_of(tallies: list[Tally]) -> Group | None:
    """All that several tallies counted; None when there is nothing."""
    rows = [(tally, row) for tally in tallies for _key, row in tally.rows()]
    return _group((None, None), By.TOPIC, rows) if rows else None


def _group(key: _Key, by: By, rows: Iterable[tuple[Tally, int]]) -> Group:
    columns = np.array([tally.arrays.sums[row] for tally, row in rows])
    bins = np.zeros(BINS, np.int64)
    for tally, row in rows:
        bins += tally.arrays.bins[row]
    least, first = (int(columns[:, column].min()) for column in (LEAST, FIRST))
    most, last = (int(columns[:, column].max()) for column in (MOST, LAST))
    added = columns.sum(axis=0).tolist()
    return Group(
        messages=added[MESSAGES],
        bytes=added[BYTES],
        least=least,
        most=most,
        p50=_percentile(bins, 50, least, most),
        p99=_percentile(bins, 99, least, most),
        first_time=first,
        last_time=last,
        keys=added[KEYS],
        tags=added[TAGS],
        transactions=added[TRANSACTIONS],
        delayed=added[DELAYED],
        retries=added[RETRIES],
        **_named(key, by),  # type: ignore[arg-type]
    )


def _named(key: _Key, by: By) -> dict[str, object]:
    if key is None:
        return {"rest": True}
    topic, part = key
    names: dict[str, object] = {"topic": None if topic is None else javastring.decode(topic)}
    if by is By.QUEUE:
        names["queue_id"] = part
    elif by is By.TAG and isinstance(part, bytes):
        names["tag"] = javastring.decode(part)
    elif by is By.HOUR and isinstance(part, int):
        names["hour_ms"] = part * _HOUR_MS
    elif by is By.HOST and isinstance(part, bytes):
        names["host"] = str(ip_address(part))
    return names


def _percentile(bins: NDArray[np.int64], percent: int, least: int, most: int) -> int:
    """The middle of the bin that has the message of this rank, within the least and the greatest size."""
    number = int(bins.sum())
    place = int(np.searchsorted(np.cumsum(bins), -(-number * percent // 100)))
    low, high = bin_range(place)
    return min(max((low + high - 1) // 2, least), most)


def _times(tallies: list[Tally], ends: list[Ends]) -> tuple[int, int, tuple[Gap, ...]]:
    """Steps back, the greatest of them in ms, and the longest gaps; also those between segments."""
    gaps = [Gap(*row) for tally in tallies for row in tally.arrays.gaps.tolist() if row[0]]
    backs = sum(int(tally.arrays.walk[_BACKS]) for tally in tallies)
    most_back = max(int(tally.arrays.walk[_MOST_BACK]) for tally in tallies)
    for before, after in pairwise(ends):
        step = after.first[0] - before.last[0]
        if step > 0:
            gaps.append(Gap(step, *before.last, *after.first))
        elif step < 0:
            backs, most_back = backs + 1, max(most_back, -step)
    gaps.sort(key=lambda gap: (-gap.gap_ms, gap.after_physical_offset))
    return backs, most_back, tuple(gaps[:MOST_GAPS])
