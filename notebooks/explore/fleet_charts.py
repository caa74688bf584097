"""The charts of ``notebooks/fleet.ipynb``: skew between brokers, lag, a slave's log, dead letters."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from explore.charts import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    SKY,
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
from explore.replicas import Beside
from reput.words import counted

#: Of brokers; each stands out on white and on black at 3 to 1 or more.
_OF_BROKERS = (BLUE, RED, GREEN, PURPLE)
_MOST_ROWS = 12
_MOST_LETTERS = 40
#: Up to this share more than its own, a broker counts as even.
_EVEN = 1.1
_FULL = 1.5
#: By so much a broker's share of a lag exceeds its share of the messages, where it holds the group back.
_MORE_THAN_HELD = 0.15
_KIB = 1024


def skew_chart(queues: pd.DataFrame, shares: pd.DataFrame, by_topic: pd.DataFrame) -> Chart:
    """Each topic's messages by broker, and each queue by the mean of its topic's.

    Args:
        queues: see :func:`explore.fleet.queues`.
        shares, by_topic: see :func:`explore.fleet.shares`.
    """
    topics = _largest(by_topic)
    chart = Chart(
        skew_title(queues, shares),
        (8.8, 1.9 + 0.5 * max(len(topics), 1)),
        columns=2,
        shares={"sharey": True},
    )
    left, right = chart.axes
    brokers = sorted(shares["broker"])
    subtitle(left, "share of a topic's messages")
    subtitle(right, "each dot is a queue: by the mean of its topic's")
    colours = _colours(brokers)
    for row, topic in enumerate(topics):
        of_topic = by_topic[by_topic["topic"] == topic].set_index("broker")
        begin = 0.0
        for broker in brokers:
            share = float(of_topic["share"].get(broker, 0.0)) * 100
            left.barh(row, share, left=begin, color=colours[broker], height=0.55)
            begin += share
        total = int(of_topic["messages"].sum())
        note(left, f"{total:,}", (100, row), (5, 0))
        for at, broker in enumerate(brokers):
            own = queues[(queues["topic"] == topic) & (queues["broker"] == broker)]["times"]
            shift = (at - (len(brokers) - 1) / 2) * 0.22
            heights = [row + shift] * len(own)
            right.plot(own, heights, "o", color=colours[broker], markersize=6.5, alpha=0.85)
    for place in np.linspace(0, 100, len(brokers) + 1)[1:-1]:
        left.axvline(place, color=GREY, linewidth=1, linestyle="--")
    right.axvline(1, color=GREY, linewidth=1)
    left.set_yticks(range(len(topics)), [short(topic) for topic in topics])
    left.set_ylim(max(len(topics), 1) - 0.4, -0.6)
    left.set_xlim(0, 124)
    left.set_xticks(range(0, 101, 25), [f"{share}%" for share in range(0, 101, 25)])
    left.set_xlabel("dashed: even shares; at the right: messages")
    right.set_xlim(0, max(float(queues["times"].max()) * 1.1, 1.5) if len(queues) else 1.5)
    right.set_xlabel("times the mean")
    _legend_of(chart, brokers, colours)
    for axes in chart.axes:
        grid(axes, "x")
    return chart


def skew_title(queues: pd.DataFrame, shares: pd.DataFrame) -> str:
    """The title of the chart of skew."""
    if not len(shares):
        return "No broker has a message"
    first, even = shares.iloc[0], 1 / len(shares)
    fullest = queues.loc[queues["times"].idxmax()]
    holds = f"{first['broker']} holds {first['share']:.0%} of all"
    if len(shares) == 1:
        holds = f"{first['broker']} is alone"
    elif first["share"] <= even * _EVEN:
        holds = "The brokers hold even shares"
    if fullest["times"] <= _FULL:
        return f"{holds}; no queue has more than {fullest['times']:.1f} times its topic's mean"
    own = "its" if first["broker"] == fullest["broker"] else f"{fullest['broker']}'s"
    queue = f"{own} queue {short(fullest['topic'])}:{fullest['queue']}"
    return f"{holds}; {queue} has {fullest['times']:.1f} times its topic's mean"


def lag_chart(behind: pd.DataFrame, lags: pd.DataFrame) -> Chart:
    """How much each group has still to read, by broker, and how old the next message is on each.

    Args:
        behind: see :func:`explore.fleet.behind`.
        lags: see :func:`explore.fleet.lags`.
    """
    shown = behind.head(_MOST_ROWS)
    rows = shown.to_dict("records")
    chart = Chart(
        lag_title(behind), (8.8, 1.9 + 0.55 * max(len(rows), 1)), columns=2, shares={"sharey": True}
    )
    left, right = chart.axes
    brokers = sorted(set(lags["broker"]))
    colours = _colours(brokers)
    subtitle(left, "messages still to be read")
    subtitle(right, "how old the next one was when the logs ended")
    height = 0.7 / max(len(brokers), 1)
    of = lags.groupby(["group", "topic", "broker"]).agg(lag=("lag", "sum"), behind=("behind", "max"))
    for at, row in enumerate(rows):
        for place, broker in enumerate(brokers):
            key = (row["group"], row["topic"], broker)
            if key not in of.index:
                continue
            lag, age = of.loc[key, "lag"], of.loc[key, "behind"]
            seconds = 0.0 if pd.isna(age) else age.total_seconds()
            y = at + (place - (len(brokers) - 1) / 2) * height
            left.barh(y, lag, color=colours[broker], height=height)
            right.barh(y, seconds, color=colours[broker], height=height)
            note(left, f"{lag:,}" if lag else "nothing", (lag, y), (5, 0), fontsize=8.5)
            note(right, f"{seconds:,.0f} s" if lag else "up to date", (seconds, y), (5, 0), fontsize=8.5)
    left.set_yticks(range(len(rows)), [f"{short(row['group'])}\n{short(row['topic'])}" for row in rows])
    left.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    for axes, unit in ((left, "messages"), (right, "seconds")):
        axes.set_xlim(0, max(axes.get_xlim()[1] * 1.25, 1))
        axes.set_xlabel(unit)
        thousands(axes, "x")
        grid(axes, "x")
    _legend_of(chart, brokers, colours)
    return chart


def lag_title(behind: pd.DataFrame) -> str:
    """The title of the chart of lag."""
    if not len(behind):
        return "No consumer group has committed anything"
    first = behind.iloc[0]
    if not first["lag"]:
        return "Every consumer group has read all there is, on every broker"
    uneven = behind[behind["there"] > behind["holds"] + _MORE_THAN_HELD]
    if len(uneven):
        held = uneven.iloc[0]
        lies = f"{held['there']:.0%} of its lag of {held['lag']:,} messages lies there"
        return f"{held['broker']} holds {short(held['group'])} back: {lies}"
    most = f"{short(first['group'])} has the most to read, {first['lag']:,} messages"
    return f"No broker holds a group back; {most}"


def beside_chart(found: Beside) -> Chart:
    """Two logs by physical offset, and what the slave lacks by topic."""
    topics = found.missing.head(_MOST_ROWS)
    rows = max(len(topics), 3)
    chart = Chart(beside_title(found), (8.8, 1.7 + 0.3 * rows), columns=2, shares={"width_ratios": [1.6, 1]})
    left, right = chart.axes
    subtitle(left, "messages in the log, by physical offset")
    places = {
        found.master: (found.master_start, found.master_end),
        found.slave: (found.slave_start, found.slave_end),
    }
    same_end = found.end if found.parted_at is None else found.parted_at
    for row, (start, end) in enumerate(places.values()):
        # With a range in common, up to where both have the same.
        middle = min(max(same_end, start), end)
        left.barh(row, (middle - start) / _KIB, left=start / _KIB, color=BLUE, height=0.5)
        left.barh(row, (end - middle) / _KIB, left=middle / _KIB, color=RED, height=0.5)
        note(left, f"ends at {end:,}", (end / _KIB, row), (4, 0), fontsize=8.5)
    left.axvline(same_end / _KIB, color=GREY, linewidth=1, linestyle="--")
    left.set_yticks(range(2), [short(name) for name in places])
    left.set_ylim(1.6, -0.6)
    low = min(start for start, _ in places.values())
    high = max(end for _, end in places.values())
    left.set_xlim(low / _KIB, (high + 0.36 * max(high - low, 1)) / _KIB)
    thousands(left, "x")
    left.set_xlabel("KiB; blue: the same in both, red: not")
    subtitle(right, "what the slave lacks, by topic")
    for row, one in enumerate(topics.to_dict("records")):
        right.barh(row, one["messages"], color=RED, height=0.6)
        note(right, f"{one['messages']:,}", (one["messages"], row), (4, 0), fontsize=8.5)
    right.set_yticks(range(len(topics)), [short(topic) for topic in topics["topic"]])
    right.set_ylim(rows - 0.4, -0.6)
    right.set_xlim(0, max(right.get_xlim()[1] * 1.2, 1))
    right.set_xlabel("messages")
    thousands(right, "x")
    for axes in chart.axes:
        grid(axes, "x")
    return chart


def beside_title(found: Beside) -> str:
    """The title of the chart of a master's log and its slave's."""
    if found.parted_at is not None:
        return f"The logs part ways at {found.parted_at:,}: {counted(found.differing, 'message')} differ"
    lacks = int(found.missing["messages"].sum())
    if not lacks:
        more = f", and {counted(found.ahead, 'message')} more" if found.ahead else ""
        return f"{found.slave} has all that {found.master} has{more}"
    last = f"the last {counted(lacks, 'message')} of {found.master}"
    return f"{found.slave} lacks {last}; all before is the same"


def dead_chart(totals: pd.DataFrame, newest: pd.DataFrame) -> Chart:
    """Dead letters from their birth to their end, the newest ones.

    Args:
        totals, newest: see :mod:`explore.dead_letters`.
    """
    shown = newest.head(_MOST_LETTERS).sort_values(["born", "came"], ignore_index=True)
    chart = Chart(dead_title(totals, newest), (8.8, 1.7 + 0.14 * max(len(shown), 8)))
    axes = chart.axes[0]
    few = "" if len(shown) == totals["messages"].sum() else f", the newest {len(shown)}"
    subtitle(axes, f"each line is a dead letter{few}: from its birth to the dot, when it was given up")
    groups = sorted(set(shown["group"]))
    colours = dict(zip(groups, (BLUE, RED, GREEN, PURPLE, SKY) * len(groups), strict=False))
    born, came = naive(shown["born"]), naive(shown["came"])
    for group in groups:
        rows = np.flatnonzero((shown["group"] == group).to_numpy())
        axes.hlines(rows, born[rows], came[rows], color=colours[group], linewidth=2, alpha=0.8)
        axes.plot(came[rows], rows, "o", color=colours[group], markersize=5, label=short(group))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(max(len(shown), 1) - 0.2, -0.8)
    if len(shown):
        utc(axes)
        legend(axes)
    grid(axes, "x")
    return chart


def dead_title(totals: pd.DataFrame, newest: pd.DataFrame) -> str:
    """The title of the chart of dead letters."""
    if not len(totals):
        return "No dead-letter topic has a message"
    groups = totals.groupby("group")["messages"].sum().sort_values(ascending=False, kind="stable")
    first, count = str(groups.index[0]), int(groups.iloc[0])
    origins = totals[totals["group"] == first]["origin_topic"].dropna().unique()
    what = f" of {short(origins[0])}" if len(origins) == 1 else ""
    rest = "" if len(groups) == 1 else f"; {groups.sum():,} in all"
    middle = newest.loc[newest["group"] == first, "age"].dt.total_seconds().median()
    old = f"half within {middle:,.0f} s of birth"
    return f"{short(first)} gave up {counted(count, 'message')}{what}, {old}{rest}"


def _largest(by_topic: pd.DataFrame) -> list[str]:
    order = by_topic.groupby("topic")["messages"].sum().sort_values(ascending=False, kind="stable")
    return list(order.index[:_MOST_ROWS])


def _colours(brokers: Iterable[str]) -> dict[str, str]:
    names = list(brokers)
    return {name: _OF_BROKERS[at] if at < len(_OF_BROKERS) else GREY for at, name in enumerate(names)}


def _legend_of(chart: Chart, brokers: Iterable[str], colours: dict[str, str]) -> None:
    """Brokers and their colours, beside the axes at the right."""
    axes = chart.axes[-1]
    for broker in brokers:
        axes.plot([], [], "s", color=colours[broker], label=short(broker))
    legend(axes)
