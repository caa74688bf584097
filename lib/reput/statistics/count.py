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
from queue import SimpleQueue
from threading import Event

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.errors import SettingsError
from reput.format import javastring
from reput.log.segments import CommitLog, Segment, discover, open_segment, part_of
from reput.scan.frames import Frames, FrameWalk, frames
from reput.statistics import tally as sums
from reput.statistics.tally import By, Ends, Gap, Group, Statistics, Tally, bin_range
from reput.store.reading import check_store

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
    most_groups: int = sums.MOST_GROUPS,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Statistics:
    """Count the messages of a store's commit log. What is damaged in it is skipped.

    Of a live log, what is there at the beginning is read. ``threads`` are as many as there are processors, up
    to 8, when None. Beyond ``most_groups``, groups that come later share one row. ``listener`` gets, a few
    times a second, how far it is.
    """
    began = time.monotonic()
    span = span or Span()
    _refuse_empty(span)
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


def _refuse_empty(span: Span) -> None:
    for low, high, names in (
        (span.start, span.end, "--start and --end"),
        (span.since, span.until, "--since and --until"),
    ):
        if low is not None and high is not None and low >= high:
            raise SettingsError(
                f"{names} leave nothing to count",
                expected="the first before the second",
                found=f"{low}, {high}",
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
            return _count(settings, log, segments[number], span, worker, done, number, stopped)
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


def _count(
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
        return tuple(sorted(groups, key=lambda one: (one.rest, one.hour)))
    return tuple(sorted(groups, key=lambda one: (one.rest, -one.bytes, _name(one))))


def _name(group: Group) -> tuple[str, int, str, str]:
    return group.topic or "", group.queue_id or 0, group.tag or "", group.host or ""


def total_of(tallies: list[Tally]) -> Group | None:
    """All that several tallies counted; None when there is nothing."""
    rows = [(tally, row) for tally in tallies for _key, row in tally.rows()]
    return _group((None, None), By.TOPIC, rows) if rows else None


def _group(key: _Key, by: By, rows: Iterable[tuple[Tally, int]]) -> Group:
    columns = np.array([tally.arrays.sums[row] for tally, row in rows])
    bins = np.zeros(sums.BINS, np.int64)
    for tally, row in rows:
        bins += tally.arrays.bins[row]
    least, first = (int(columns[:, column].min()) for column in (sums.LEAST, sums.FIRST))
    most, last = (int(columns[:, column].max()) for column in (sums.MOST, sums.LAST))
    added = columns.sum(axis=0).tolist()
    return Group(
        messages=added[sums.MESSAGES],
        bytes=added[sums.BYTES],
        least=least,
        most=most,
        p50=_percentile(bins, 50, least, most),
        p99=_percentile(bins, 99, least, most),
        first=first,
        last=last,
        keys=added[sums.KEYS],
        tags=added[sums.TAGS],
        transactions=added[sums.TRANSACTIONS],
        delayed=added[sums.DELAYED],
        retries=added[sums.RETRIES],
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
        names["hour"] = part * _HOUR_MS
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
    backs = sum(int(tally.arrays.walk[sums._BACKS]) for tally in tallies)
    most_back = max(int(tally.arrays.walk[sums._MOST_BACK]) for tally in tallies)
    for before, after in pairwise(ends):
        step = after.first[0] - before.last[0]
        if step > 0:
            gaps.append(Gap(step, *before.last, *after.first))
        elif step < 0:
            backs, most_back = backs + 1, max(most_back, -step)
    gaps.sort(key=lambda gap: (-gap.ms, gap.after_offset))
    return backs, most_back, tuple(gaps[: sums.MOST_GAPS])
