"""From counts to what a page shows: the busiest topics, buckets, a histogram with its percentiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reput.report.facts import Series, Sizes, TopicFacts, Traffic
from reput.report.log_scan import LogScan
from reput.report.tally import MOST_SERIES, Tally
from reput.statistics.tally import BYTES, EIGHTHS, LEAST, MESSAGES, MOST, bin_range

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
        median=median,
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
