"""Counting messages by time, topic and size, block by block, in a memory that doesn't grow with the log.

The records of a block are columns of :class:`reput.scan.frames.Frames`; what is counted is a few numbers a
topic, one series a topic for the first few thousand topics, and a histogram of sizes. The width of a bucket
isn't known beforehand: it begins at a millisecond and grows along :data:`WIDTHS` whenever the times seen
don't fit into :data:`BUCKETS` any more; each width divides the next, so that no count is ever split.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.scan.frames import ROWS, Frames
from reput.scan.kernel import _topic
from reput.scan.table import QueueTable
from reput.statistics.tally import BINS, LAST, add_size, add_time, bin_of, empty_sums, grown

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

    #: int64[topics, 6], the columns MESSAGES to LAST of :mod:`reput.statistics.tally`; of the times
    #: only those that a clock may have had
    sums: NDArray[np.int64]
    #: series_messages, series_bytes: int64[series, BUCKETS]; the last row is that of all later topics
    series_messages: NDArray[np.int64]
    series_bytes: NDArray[np.int64]
    bins: NDArray[np.int64]  # int64[BINS], messages by size, see :func:`reput.statistics.tally.bin_range`
    #: int64[6], number of the first bucket, width (ms), the latest time that a clock may have had,
    #: messages without such a time, the least and the greatest time seen
    state: NDArray[np.int64]
    #: int64[n, 2], a time (ms), and the position in the log after the last record that is no newer
    vouched: NDArray[np.int64]


_NONE = 1 << 62


class Tally:
    """Counts messages.

    Args:
        latest: the latest time, ms, that a clock may have had: now, and a little more.
        times: for each of these times, ms, it is told how far the log has no newer message.

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

        Args:
            data: the segment, uint8[segment_length].
            base: physical offset of its first byte.
            block: its columns.
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
