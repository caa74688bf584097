"""Reading a commit log once: what is damaged in it, what it holds of each queue, and its traffic.

Two threads go over each segment side by side, so that it comes from the disk once: the scan of
:mod:`reput.scan.part`, which checks CRCs and follows queues, and a walk over frames that counts. Both take
the same messages, but for those that a broker can't dispatch: the walk counts them all the same, as messages
that the log holds. Nothing grows with the log but the table of queues.

The records of a block are columns of :class:`reput.scan.frames.Frames`; what is counted is a few numbers a
topic, one series a topic for the first few thousand topics, and a histogram of sizes. The width of a bucket
isn't known beforehand: it begins at a millisecond and grows along :data:`WIDTHS` whenever the times seen
don't fit into :data:`BUCKETS` any more; each width divides the next, so that no count is ever split.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.config.settings import StoreSettings
from reput.errors import Finding
from reput.format.names import Queue
from reput.log.segments import CommitLog, map_segment, part_of
from reput.replay.part_result import Chain, ScannedPart
from reput.report.facts import SegmentFacts, Series, Sizes, TopicFacts, Traffic
from reput.scan import output
from reput.scan.frames import ROWS, Frames, FrameWalk, frames
from reput.scan.kernel import _topic
from reput.scan.part import PartOutcome, scan_part
from reput.scan.rules import Part, rules
from reput.scan.table import QUEUE_REPEAT, QueueTable
from reput.statistics import (
    BINS,
    BYTES,
    EIGHTHS,
    LAST,
    LEAST,
    MESSAGES,
    MOST,
    Listener,
    add_size,
    add_time,
    bin_of,
    bin_range,
    empty_sums,
    grown,
)

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
#: Widths of buckets, ms; each divides the next.
WIDTHS = (
    1,
    10,
    100,
    *(number * _SECOND for number in (1, 5, 10, 30)),
    *(number * _MINUTE for number in (1, 5, 10, 30)),
    *(number * _HOUR for number in (1, 3, 6, 12)),
    *(number * _DAY for number in (1, 7, 28, 168)),
)
#: As many as a chart can show; 168 days each, they span more time than there has been a RocketMQ.
BUCKETS = 180
#: Topics that get a series of their own; those that come later share one. 8,192 take 24 MiB.
MOST_SERIES = 8192
#: No message was stored before; older times are no clock's.
EARLIEST = 1_262_304_000_000  # 2010-01-01

_ORIGIN, _WIDTH, _LATEST, _WITHOUT_TIME, _LEAST_TIME, _MOST_TIME = range(6)
_DONE, _NEW_TOPIC, _OUT_OF_RANGE = range(3)


class Counts(NamedTuple):
    """What the kernel adds to."""

    #: int64[topics, 6], the columns MESSAGES to LAST of :mod:`reput.statistics`; of the times
    #: only those that a clock may have had
    sums: NDArray[np.int64]
    #: series_messages, series_bytes: int64[series, BUCKETS]; the last row is that of all later topics
    series_messages: NDArray[np.int64]
    series_bytes: NDArray[np.int64]
    bins: NDArray[np.int64]  # int64[BINS], messages by size, see :func:`reput.statistics.bin_range`
    #: int64[6], number of the first bucket, width (ms), the latest time that a clock may have had,
    #: messages without such a time, the least and the greatest time seen
    state: NDArray[np.int64]
    #: int64[n, 2], a time (ms), and the position in the log after the last record that is no newer
    vouched: NDArray[np.int64]


_NONE = 1 << 62


class Tally:
    """Counts messages.

    ``latest``: the latest time, ms, that a clock may have had: now, and a little more. ``times``: for each of
    these times, ms, it is told how far the log has no newer message.

    Attributes:
        counts: what was counted so far.
    """

    def __init__(self, latest: int, times: tuple[int, ...] = ()) -> None:
        self._topics = QueueTable()
        self.counts = Counts(
            sums=empty_sums(0, LAST + 1),
            series_messages=np.zeros((1, BUCKETS), np.int64),
            series_bytes=np.zeros((1, BUCKETS), np.int64),
            bins=np.zeros(BINS, np.int64),
            state=np.array([0, WIDTHS[0], latest, 0, _NONE, -1], np.int64),
            vouched=np.array([(time, -1) for time in times], np.int64).reshape(len(times), 2),
        )

    @property
    def topics(self) -> list[bytes]:
        """The topics, by their numbers."""
        return self._topics.topic_names

    @property
    def without_time(self) -> int:
        """Messages whose storeTimestamp no clock had."""
        return int(self.counts.state[_WITHOUT_TIME])

    @property
    def span(self) -> tuple[int, int] | None:
        """The least and the greatest time, ms; None without any."""
        least, most = int(self.counts.state[_LEAST_TIME]), int(self.counts.state[_MOST_TIME])
        return None if most < 0 else (least, most)

    @property
    def width(self) -> int:
        """Of a bucket, ms."""
        return int(self.counts.state[_WIDTH])

    @property
    def origin(self) -> int:
        """The number of the first bucket: its time is this times the width."""
        return int(self.counts.state[_ORIGIN])

    def add(self, data: NDArray[np.uint8], base: int, block: Frames) -> None:
        """Count the records of a block.

        ``data``: the segment, uint8[segment_length]. ``base``: physical offset of its first byte.
        """
        row = 0
        while row < int(block.counts[ROWS]):
            row, why, value = (
                int(number) for number in _add(data, base, block, row, self._topics.topics, self.counts)
            )
            if why == _NEW_TOPIC:
                start = int(block.topic[row])
                self._topics.intern_topic(data[start : start + value].tobytes())
                self._grow()
            elif why == _OUT_OF_RANGE:
                self._widen(value)

    def _grow(self) -> None:
        known, counts = len(self._topics.topic_names), self.counts
        if known > len(counts.sums):
            larger = empty_sums(max(64, 2 * len(counts.sums)), LAST + 1)
            counts = counts._replace(sums=grown(counts.sums, larger))
        series = len(counts.series_messages)
        if series <= min(known, MOST_SERIES):
            shape = min(max(64, 2 * series), MOST_SERIES + 1), BUCKETS
            # The last row stays the last: nothing is in it before there are more topics than series.
            counts = counts._replace(
                series_messages=grown(counts.series_messages, np.zeros(shape, np.int64)),
                series_bytes=grown(counts.series_bytes, np.zeros(shape, np.int64)),
            )
        self.counts = counts

    def _widen(self, time: int) -> None:
        """Make room for a time: move the buckets, or make them wider."""
        counts = self.counts
        least = min(time, int(counts.state[_LEAST_TIME]))
        most = max(time, int(counts.state[_MOST_TIME]))
        old_width, old_origin = self.width, self.origin
        for width in WIDTHS[WIDTHS.index(old_width) :]:
            origin = least // width
            if most // width - origin < BUCKETS:
                break
        counts.state[_ORIGIN], counts.state[_WIDTH] = origin, width
        self.counts = counts._replace(
            **{
                name: _moved(getattr(counts, name), old_origin, old_width, origin, width)
                for name in ("series_messages", "series_bytes")
            }
        )


def _moved(
    series: NDArray[np.int64], old_origin: int, old_width: int, origin: int, width: int
) -> NDArray[np.int64]:
    """Counts in their new buckets; those without a count may fall outside."""
    moved = np.zeros_like(series)
    old = np.flatnonzero(series.any(axis=0))
    new = (old + old_origin) * old_width // width - origin
    for source, target in zip(old.tolist(), new.tolist(), strict=True):
        moved[:, target] += series[:, source]
    return moved


@njit(cache=CACHED, nogil=True)
def _add(data, base, block, row, topics, counts):  # type: ignore[no-untyped-def]
    """Count from ``row`` on. Returns (row, why it stopped, topic's length or time that needs room)."""
    state = counts.state
    origin, width, latest = state[_ORIGIN], state[_WIDTH], state[_LATEST]
    shared = len(counts.series_messages) - 1
    for at in range(row, block.counts[ROWS]):
        topic = _topic(data, block.topic[at], block.topic_length[at], topics)
        if topic < 0:
            return at, _NEW_TOPIC, block.topic_length[at]
        time = block.store_timestamp[at]
        size = block.size[at]
        has_time = EARLIEST <= time <= latest
        if has_time:
            bucket = time // width - origin
            if bucket < 0 or bucket >= BUCKETS:
                return at, _OUT_OF_RANGE, time
            series = min(topic, shared)
            counts.series_messages[series, bucket] += 1
            counts.series_bytes[series, bucket] += size
            state[_LEAST_TIME] = min(state[_LEAST_TIME], time)
            state[_MOST_TIME] = max(state[_MOST_TIME], time)
            add_time(counts.sums[topic], time)
        else:
            state[_WITHOUT_TIME] += 1
        add_size(counts.sums[topic], size)
        counts.bins[bin_of(size)] += 1
        for number in range(len(counts.vouched)):
            if time <= counts.vouched[number, 0]:
                counts.vouched[number, 1] = base + block.position[at] + size
    return block.counts[ROWS], _DONE, np.int64(0)


@dataclass(frozen=True, slots=True)
class InLog:
    """What the log has of a queue."""

    messages: int  # how many
    next: int  # the queueOffset after the last one
    last_time: int  # storeTimestamp of the last one, ms
    regular: bool  # each message came right after the one before it


@dataclass(slots=True)
class LogScan:
    """What came of reading a log."""

    end: int  # physical offset after the last message or BLANK
    tally: Tally  # the traffic
    messages: int = 0  # messages, bytes: of it
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)  # what is wrong in it
    #: by the physical offset of their first byte
    segments: dict[int, SegmentFacts] = field(default_factory=dict)
    queues: dict[Queue, InLog] = field(default_factory=dict)  # by topic and queue id

    @property
    def last_time(self) -> int:
        """StoreTimestamp of its last message, ms; 0 without one."""
        times = [one.last_time for one in self.segments.values() if one.last_time is not None]
        return times[-1] if times else 0


def scan_log(
    settings: StoreSettings,
    log: CommitLog,
    end: int,
    tally: Tally,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> LogScan:
    """Read a log from its first segment up to a physical offset.

    ``end``: a live log is read up to its end at the moment of the start.
    """
    result = LogScan(log.start, tally, findings=list(log.findings))
    chain = Chain(log.start, 0)
    table = QueueTable(
        excludes_lmq=lambda topic: settings.dialect.lmq_excludes(topic.decode("utf-8", "replace"))
    )
    total = sum(max(min(one.length, end - one.base), 0) for one in log.segments)
    out, block = output.output(), frames()
    scan_rules = rules(settings, index=False)
    done = 0
    with ThreadPoolExecutor(1, "reput-tally") as pool:
        for segment in log.segments:
            stop = min(segment.base + segment.length, end)
            if stop <= segment.base and result.segments:
                continue
            data = map_segment(segment.path, segment.length)
            part = replace(part_of(log, segment, segment.base, stop), after_timestamp=chain.newest)
            ended = Event()
            counted = pool.submit(_count, settings, part, data, block, tally, ended)
            outcome = PartOutcome()
            try:
                for chunk in scan_part(part, data, scan_rules, table, out, outcome):
                    at = int(chunk.counts[output.LAST_POSITION]) - segment.base
                    listener(done + at, result.messages + int(chunk.counts[output.MESSAGES]), total)
                messages, size, first, last_time = counted.result()
            finally:
                ended.set()
            result.segments[segment.base] = SegmentFacts(
                os.fspath(segment.path), segment.base, segment.length, messages, first, last_time
            )
            result.messages += messages
            result.bytes += size
            # Of the whole segment: messages without unit and keys make no chunk.
            taken, last = int(out.counts[output.MESSAGES]), int(out.counts[output.LAST_TIMESTAMP])
            chain.judge(ScannedPart(part, outcome, taken, last))
            done += stop - segment.base
            listener(done, result.messages, total)
    result.end = chain.finish()
    result.findings += chain.findings
    result.queues = _queues(table)
    return result


def _count(
    settings: StoreSettings,
    part: Part,
    data: NDArray[np.uint8],
    block: Frames,
    tally: Tally,
    ended: Event,
) -> tuple[int, int, int | None, int | None]:
    """Count the messages of a segment; ends early when the scan beside it has failed.

    Returns:
        How many, bytes of these, storeTimestamp of the first and of the last one, ms.
    """
    stop = part.end - part.base
    walk = FrameWalk.over(part, data, settings, part.after_timestamp)
    messages = size = 0
    first = last = None
    for rows in walk.blocks(stop, block):
        if rows:
            tally.add(data, part.base, block)
            messages, size = messages + rows, size + int(block.size[:rows].sum())
            first = int(block.store_timestamp[0]) if first is None else first
            last = int(block.store_timestamp[rows - 1])
        if ended.is_set():
            break
    return messages, size, first, last


def _queues(table: QueueTable) -> dict[Queue, InLog]:
    names = [name.decode("utf-8", "replace") for name in table.topic_names]
    found = {}
    columns = table.queues
    number = int(table.queue_count[0])
    for topic, queue_id, units, after, last, irregular in zip(
        *(
            column[:number].tolist()
            for column in (
                columns.topic,
                columns.queue_id,
                columns.units,
                columns.next,
                columns.last_timestamp,
                columns.irregular,
            )
        ),
        strict=True,
    ):
        if after >= 0:
            found[names[topic], queue_id] = InLog(units, after, last, not irregular & QUEUE_REPEAT)
    return found


#: Topics with a colour of their own in the chart.
MOST_SHOWN = 7


def traffic(scan: LogScan) -> tuple[list[TopicFacts], Traffic | None, Sizes | None]:
    """Topics, those with the most messages first; traffic over time; sizes. None without a message."""
    tally = scan.tally
    names = tally.topics
    sums = tally.counts.sums[: len(names)]
    queues: dict[str, int] = {}
    for topic, _queue_id in scan.queues:
        queues[topic] = queues.get(topic, 0) + 1
    of_each = sums[:, MESSAGES].tolist()
    order = sorted(range(len(names)), key=lambda number: (-of_each[number], names[number]))
    topics = []
    for number in order:
        name = names[number].decode()
        messages, size, least, most, first, last = sums[number].tolist()
        topics.append(
            TopicFacts(
                topic=name,
                queues=queues.get(name, 0),
                messages=messages,
                bytes=size,
                least=least,
                most=most,
                first_time=first if last >= 0 else None,
                last_time=last if last >= 0 else None,
            )
        )
    return topics, _over_time(tally, order), _sizes(tally)


def _over_time(tally: Tally, order: list[int]) -> Traffic | None:
    span = tally.span
    if span is None:
        return None
    counts, names = tally.counts, tally.topics
    # Topics that share the last series can't be told apart there.
    shown = [number for number in order if number < min(len(counts.series_messages) - 1, MOST_SERIES)]
    if len(order) > MOST_SHOWN + 1:
        shown = shown[:MOST_SHOWN]
    first, last = (time // tally.width - tally.origin for time in span)
    buckets = slice(first, last + 1)
    series = [
        Series(
            names[number].decode(),
            tuple(counts.series_messages[number, buckets].tolist()),
            tuple(counts.series_bytes[number, buckets].tolist()),
        )
        for number in shown
    ]
    rest = len(order) - len(shown)
    if rest:
        series.append(
            Series(
                None,
                _others(counts.series_messages[:, buckets], shown),
                _others(counts.series_bytes[:, buckets], shown),
            )
        )
    return Traffic(
        start_ms=(tally.origin + first) * tally.width,
        width_ms=tally.width,
        series=tuple(series),
        without_time=tally.without_time,
        topics_in_others=rest,
    )


def _others(series: NDArray[np.int64], shown: list[int]) -> tuple[int, ...]:
    return tuple((series.sum(axis=0) - series[shown].sum(axis=0)).tolist())


def _sizes(tally: Tally) -> Sizes | None:
    sums = tally.counts.sums[: len(tally.topics)]
    messages = int(sums[:, MESSAGES].sum())
    if not messages:
        return None
    least, most = int(sums[:, LEAST].min()), int(sums[:, MOST].max())
    octaves = tally.counts.bins.reshape(-1, EIGHTHS).sum(axis=1)
    used = np.flatnonzero(octaves)
    low, high = int(used[0]), int(used[-1]) + 1
    median, p90, p99 = (int(min(max(_quantile(tally, share), least), most)) for share in (0.5, 0.9, 0.99))
    return Sizes(
        bounds=tuple(bin_range(octave * EIGHTHS)[0] for octave in range(low, high + 1)),
        counts=tuple(octaves[low:high].tolist()),
        mean=float(sums[:, BYTES].sum()) / messages,
        p50=median,
        p90=p90,
        p99=p99,
        least=least,
        most=most,
    )


def _quantile(tally: Tally, share: float) -> float:
    """The size that this share of the messages doesn't exceed, taken as even within quarters of an octave."""
    bins = tally.counts.bins.reshape(-1, 2).sum(axis=1)
    sums = np.cumsum(bins)
    wanted = share * float(sums[-1])
    at = int(np.searchsorted(sums, wanted))
    within = (wanted - float(sums[at] - bins[at])) / float(bins[at])
    low, high = bin_range(2 * at)[0], bin_range(2 * at + 1)[1]
    return low + within * (high - low)
