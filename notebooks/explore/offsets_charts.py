"""The charts of ``notebooks/offsets.ipynb``: skew, traffic, lag, sizes and gaps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from explore.charts import (
    BLUE,
    COLOURS,
    GREY,
    RED,
    Chart,
    grid,
    legend,
    naive,
    note,
    short,
    subtitle,
    thousands,
    utc,
)
from explore.lags import ages_to
from explore.traffic import quantiles
from reput.replay.target import is_system

#: Topics with a colour of their own; the rest is shown together.
_MOST_TOPICS = 5
_MOST_ROWS = 20
#: Up to this max/mean, queues count as evenly filled.
_EVEN = 1.25
_REST = "all others"


def skew_chart(queues: pd.DataFrame, skew: pd.DataFrame) -> Chart:
    """Each queue as a dot: how much of its topic it got, by the mean of the topic's queues.

    Args:
        queues: see :func:`explore.traffic.queues`.
        skew: see :func:`explore.traffic.skew`.
    """
    shown = skew.head(_MOST_ROWS)
    chart = Chart(skew_title(skew), (8.4, 1.7 + 0.42 * max(len(shown), 1)))
    axes = chart.axes[0]
    subtitle(axes, "each dot is a queue: its messages by the mean of its topic's queues")
    for at, row in enumerate(shown.to_dict("records")):
        counts = queues.loc[queues["topic"] == row["topic"], "messages"].to_numpy()
        ratios = np.concatenate([counts, np.zeros(row["empty"])]) / row["mean"]
        axes.plot([ratios.min(), ratios.max()], [at, at], color=GREY, alpha=0.4, linewidth=5)
        axes.plot(ratios, [at] * len(ratios), "o", color=BLUE, markersize=7, alpha=0.75)
        words = f"Gini {row['gini']:.3f}, max/mean {row['max_to_mean']:.2f}"
        note(axes, words, (1, at), (6, 0), ("axes fraction", "data"))
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(
        range(len(shown)), [f"{short(row['topic'])} ({row['queues']})" for row in shown.to_dict("records")]
    )
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    low, high = axes.get_xlim()
    axes.set_xlim(max(min(low, 0.85), -0.05), max(high, 1.15))
    axes.set_xlabel("messages in the queue / mean of the topic's queues")
    grid(axes, "x")
    return chart


def skew_title(skew: pd.DataFrame) -> str:
    """The title of the chart of skew."""
    if not len(skew):
        return "No topic has more than one queue: there is nothing to be uneven"
    worst = skew.iloc[0]
    if worst["max_to_mean"] <= _EVEN:
        above = worst["max_to_mean"] - 1
        return f"All topics are spread evenly: no queue is more than {above:.0%} above its topic's mean"
    uneven = int((skew["max_to_mean"] > _EVEN).sum())
    rest = "" if uneven == 1 else f", and {uneven - 1} more topics are uneven"
    times = f"{worst['max_to_mean']:.1f} times the mean"
    return f"A queue of {short(worst['topic'])} holds {times} of its topic's{rest}"


def traffic_chart(traffic: pd.DataFrame) -> Chart:
    """Messages a second over time, by topic, one above the other.

    Args:
        traffic: see :func:`explore.traffic.traffic`.
    """
    total = traffic.sum(axis=1)
    first = traffic.columns[0]
    most = f"{traffic[first].sum() / max(total.sum(), 1e-9):.0%} of all is {short(first)}"
    peak = f"{total.max():,.0f} messages/s at {total.idxmax():%H:%M:%S} UTC"
    chart = Chart(f"Traffic peaked at {peak}; {most}")
    axes = chart.axes[0]
    shown = _few_topics(traffic)
    width = _width(traffic)
    each = f"in each {width:,.0f} s" if width > 1 else "in each second"
    subtitle(axes, f"messages a second, {each}, by topic")
    colours = [GREY if topic == _REST else COLOURS[at] for at, topic in enumerate(shown)]
    # The last bucket has an end, too.
    end = shown.index[-1] + pd.Timedelta(seconds=width)
    edges = naive([*shown.index, end])
    steps = np.vstack([shown.to_numpy(), shown.to_numpy()[-1:]])
    axes.stackplot(
        edges,
        steps.T,
        labels=[short(topic) for topic in shown.columns],
        colors=colours,
        step="post",
        alpha=0.85,
        linewidth=0,
    )
    legend(axes, backwards=True)
    axes.margins(x=0)
    thousands(axes)
    utc(axes)
    grid(axes)
    return chart


def lag_chart(groups: pd.DataFrame, lags: pd.DataFrame) -> Chart:
    """How much each group has still to read, and how far it is behind in time.

    Args:
        groups: see :func:`explore.lags.by_group`.
        lags: see :func:`explore.lags.lags`.
    """
    shown = groups.head(_MOST_ROWS)
    chart = Chart(
        lag_title(groups), (8.4, 1.6 + 0.5 * max(len(shown), 1)), columns=2, shares={"sharey": True}
    )
    left, right = chart.axes
    subtitle(left, "messages still to be read; a piece is a queue")
    rows = shown.to_dict("records")
    for at, row in enumerate(rows):
        of_group = lags[(lags["group"] == row["group"]) & (lags["topic"] == row["topic"])]
        begins = of_group["lag"].cumsum() - of_group["lag"]
        bars = left.barh(at, of_group["lag"], left=begins, color=BLUE)
        for bar in bars[1::2]:
            bar.set_alpha(0.7)
        words = f"{row['lag']:,} ({row['share']:.0%})" if row["lag"] else "nothing"
        note(left, words, (row["lag"], at), (5, 0))
    left.set_xlim(0, max(groups["lag"].max() if len(groups) else 1, 1) * 1.35)
    left.set_yticks(range(len(shown)), [f"{short(row['group'])}\n{short(row['topic'])}" for row in rows])
    left.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    left.set_xlabel("messages")
    thousands(left, "x")
    ages = [0.0 if pd.isna(row["behind"]) else row["behind"].total_seconds() for row in rows]
    seconds, unit = _duration(max(ages, default=0.0))
    subtitle(right, "how old the next one to read is")
    for at, age in enumerate(ages):
        right.barh(at, age / seconds, color=BLUE, height=0.5)
        words = f"{age / seconds:,.1f} {unit}" if age else "up to date"
        note(right, words, (age / seconds, at), (5, 0))
    right.set_xlim(0, max(right.get_xlim()[1] * 1.3, 1e-9))
    right.set_xlabel(f"{unit} {ages_to(lags)}".replace(", ", ",\n").rstrip())
    for axes in chart.axes:
        grid(axes, "x")
    return chart


def lag_title(groups: pd.DataFrame) -> str:
    """The title of the chart of lag."""
    if not len(groups):
        return "No consumer group has committed anything"
    total = groups["lag"].sum()
    if not total:
        return "Every consumer group has read all there is"
    first = groups.iloc[0]
    return (
        f"{short(first['group'])} has {first['lag']:,} messages of {short(first['topic'])} still to read, "
        f"{first['lag'] / total:.0%} of all that is behind"
    )


def size_chart(sizes: pd.DataFrame) -> Chart:
    """Which share of each topic's messages is up to which size.

    Args:
        sizes: see :func:`explore.traffic.sizes`.
    """
    own = sizes[~sizes["topic"].map(is_system)]
    told = own if len(own) else sizes
    p50, p99 = quantiles(told["size"].to_numpy(), told["messages"].to_numpy(), (0.5, 0.99))
    least = f"Half of all messages have up to {p50:,} bytes, 99% up to {p99:,}"
    chart = Chart(f"{least}, the largest {told['size'].max():,}")
    axes = chart.axes[0]
    subtitle(axes, "share of a topic's messages up to a size in the log; a broker's own topics left out")
    order = own.groupby("topic")["messages"].sum().sort_values(ascending=False).index[:_MOST_TOPICS]
    for topic, colour in zip(order, COLOURS, strict=False):
        of_topic = own[own["topic"] == topic]
        share = of_topic["messages"].cumsum() / of_topic["messages"].sum()
        at = np.concatenate([[of_topic["size"].iloc[0]], of_topic["size"]])
        axes.step(at, np.concatenate([[0], share]) * 100, where="post", color=colour, label=short(topic))
    if len(own) and own["size"].max() > 10 * own["size"].min():
        axes.set_xscale("log")
    thousands(axes, "x")
    axes.set_ylim(0, 101)
    axes.set_xlabel("bytes")
    axes.yaxis.set_major_formatter("{x:.0f}%")
    legend(axes)
    grid(axes)
    return chart


def gap_chart(gaps: pd.DataFrame) -> Chart:
    """How often the log was silent for at least a given time.

    Args:
        gaps: see :func:`explore.traffic.gaps`.
    """
    chart = Chart(gap_title(gaps))
    axes = chart.axes[0]
    subtitle(axes, "how often no message was stored for at least so long")
    positive = gaps[gaps["ms"] > 0]
    at_least = positive["count"][::-1].cumsum()[::-1]
    axes.step(positive["ms"], at_least, where="pre", color=BLUE)
    if len(positive):
        last = positive.iloc[-1]
        axes.plot(last["ms"], 1, "o", color=RED, markersize=7)
        words = f"{last['ms'] / 1000:,.1f} s, until {last['first']:%H:%M:%S} UTC"
        note(axes, words, (last["ms"], 1), (0, 80), points=True, ha="right")
    axes.set_xscale("log")
    axes.set_yscale("log")
    thousands(axes)
    thousands(axes, "x")
    axes.set_xlabel("length of the gap, ms")
    axes.set_ylabel("gaps at least as long")
    grid(axes)
    return chart


def gap_title(gaps: pd.DataFrame) -> str:
    """The title of the chart of gaps."""
    back = int(gaps.loc[gaps["ms"] < 0, "count"].sum())
    if back:
        return f"The broker's clock went back {back:,} times; by it, gaps mean little"
    if not len(gaps):
        return "There is one message at most, and so no gap"
    steps = int(gaps["count"].sum())
    close = int(gaps.loc[gaps["ms"] <= 1, "count"].sum())
    longest = gaps["ms"].max() / 1000
    within = f"{close / steps:.0%} of messages came within 1 ms of the one before"
    return f"{within}; longest silence {longest:,.1f} s"


def _few_topics(traffic: pd.DataFrame) -> pd.DataFrame:
    """The topics with the most messages, and the rest of them as one."""
    if traffic.shape[1] <= _MOST_TOPICS + 1:
        return traffic
    few = traffic.iloc[:, :_MOST_TOPICS].copy()
    few[_REST] = traffic.iloc[:, _MOST_TOPICS:].sum(axis=1)
    return few


def _width(traffic: pd.DataFrame) -> float:
    """Seconds of a bucket."""
    return (traffic.index[1] - traffic.index[0]).total_seconds() if len(traffic) > 1 else 1.0


def _duration(seconds: float) -> tuple[float, str]:
    """Seconds of the unit that suits a duration, and its name."""
    for length, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 3 * length:
            return length, name
    return 1, "seconds"
