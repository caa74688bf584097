"""From counts to what a page shows: the busiest topics, buckets, a histogram with its percentiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reput.report.facts import Series, Sizes, TopicFacts, Traffic
from reput.report.log_scan import LogScan
from reput.report.tally import BINS, MOST_SERIES, Tally, bin_bounds

#: Topics with a colour of their own in the chart.
MOST_SHOWN = 7


def traffic(scan: LogScan) -> tuple[list[TopicFacts], Traffic | None, Sizes | None]:
    """Topics, those with the most messages first; traffic over time; sizes. None without a message."""
    tally = scan.tally
    counts, names = tally.counts, tally.topics
    queues: dict[str, int] = {}
    for topic, _queue_id in scan.queues:
        queues[topic] = queues.get(topic, 0) + 1
    order = sorted(range(len(names)), key=lambda number: (-int(counts.messages[number]), names[number]))
    topics = []
    for number in order:
        name = names[number].decode()
        last = int(counts.last[number])
        topics.append(
            TopicFacts(
                topic=name,
                queues=queues.get(name, 0),
                messages=int(counts.messages[number]),
                bytes=int(counts.bytes[number]),
                least=int(counts.least[number]),
                most=int(counts.most[number]),
                first_time=int(counts.first[number]) if last >= 0 else None,
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
        start=(tally.origin + first) * tally.width,
        width=tally.width,
        series=tuple(series),
        without_time=tally.without_time,
        topics_in_others=rest,
    )


def _others(series: NDArray[np.int64], shown: list[int]) -> tuple[int, ...]:
    return tuple((series.sum(axis=0) - series[shown].sum(axis=0)).tolist())


def _sizes(tally: Tally) -> Sizes | None:
    counts = tally.counts
    messages = int(counts.messages.sum())
    if not messages:
        return None
    known = len(tally.topics)
    used = np.flatnonzero(counts.bins)
    low, high = int(used[0]) // 4, int(used[-1]) // 4 + 1
    octaves = counts.bins.reshape(BINS // 4, 4).sum(axis=1)
    return Sizes(
        bounds=tuple(1 << octave for octave in range(low, high + 1)),
        counts=tuple(octaves[low:high].tolist()),
        mean=float(counts.bytes.sum()) / messages,
        median=_quantile(tally, 0.5),
        p90=_quantile(tally, 0.9),
        p99=_quantile(tally, 0.99),
        least=int(counts.least[:known].min()),
        most=int(counts.most[:known].max()),
    )


def _quantile(tally: Tally, share: float) -> int:
    """The size that this share of the messages doesn't exceed, taken as evenly spread within its bin."""
    bins, bounds, counts = tally.counts.bins, bin_bounds(), tally.counts
    sums = np.cumsum(bins)
    wanted = share * float(sums[-1])
    at = int(np.searchsorted(sums, wanted))
    within = (wanted - float(sums[at] - bins[at])) / float(bins[at])
    value = float(bounds[at]) + within * float(bounds[at + 1] - bounds[at])
    known = len(tally.topics)
    return int(min(max(value, int(counts.least[:known].min())), int(counts.most[:known].max())))
