"""The charts of ``notebooks/incident.ipynb``: where the damage is, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from explore.charts import BLUE, GREEN, GREY, ORANGE, RED, Chart, grid, note, short, subtitle, thousands
from explore.reach import Reach

_MIB = 1 << 20
_MOST_QUEUES = 30


def damage_chart(before: Reach, now: Reach, lost: Sequence[tuple[int, int]], segment_size: int) -> Chart:
    """Each queue along the log: where it still points to its messages, and where it doesn't.

    Args:
        before, now: the store as it was and as it is.
        lost: physical offsets, half open, of the log's damaged bytes.
        segment_size: bytes of a segment.
    """
    gone = _gone(before.units, now.units)
    missing = gone.groupby(["topic", "queue"]).size()
    topics = sorted({topic for topic, _ in missing.index})
    what = (
        "no queue"
        if not topics
        else f"all of {short(topics[0])}"
        if len(topics) == 1
        else f"{len(topics)} topics"
    )
    bad = sum(end - start for start, end in lost)
    title = f"{what[0].upper()}{what[1:]} leads nowhere, and {bad:,} bytes of the log can't be read"
    largest = before.units.groupby(["topic", "queue"]).size().sort_values(ascending=False)
    order = sorted(largest.index[:_MOST_QUEUES])
    chart = Chart(title, (8.4, 1.6 + 0.17 * len(order)))
    axes = chart.axes[0]
    subtitle(
        axes, "each mark is a message, at its place in the log; red ones are those that their queue lost"
    )
    of_queue = dict(list(before.units.groupby(["topic", "queue"])))
    of_gone = dict(list(gone.groupby(["topic", "queue"])))
    for row, queue in enumerate(order):
        at = of_queue[queue]["position"] / _MIB
        axes.plot(at, [row] * len(at), "|", color=BLUE, markersize=6, alpha=0.25, markeredgewidth=0.5)
        if queue in of_gone:
            at = of_gone[queue]["position"] / _MIB
            axes.plot(at, [row] * len(at), "|", color=RED, markersize=7, markeredgewidth=0.8)
    for start, _ in lost:
        axes.axvline(start / _MIB, color=RED, linewidth=1.2)
        note(axes, "flipped bytes", (start / _MIB, -1), (-4, 0), ha="right")
    end = before.units["position"].max() / _MIB
    for segment in range(1, int(end * _MIB // segment_size) + 1):
        axes.axvline(segment * segment_size / _MIB, color=GREY, linewidth=0.7, alpha=0.6, linestyle=":")
    axes.set_yticks(range(len(order)), [f"{short(topic)}:{queue}" for topic, queue in order], fontsize=7.5)
    axes.set_ylim(len(order) - 0.3, -1.6)
    axes.set_xlim(0, end * 1.005)
    axes.set_xlabel("physical offset, MiB; dotted lines: segments")
    axes.tick_params(length=0)
    return chart


def reach_chart(stages: pd.DataFrame) -> Chart:
    """How many messages and keys can be reached at each stage of an incident.

    Args:
        stages: a row a stage, named by its index: the first is the store as it was, the third a broker's
            restart, the last one the repair. ``messages``, ``keys``.
    """
    messages = stages["messages"]
    broker, repaired = (messages.iloc[0] - messages.iloc[at] for at in (2, -1))
    title = f"After a restart consumers would miss {broker:,} messages; after the repair, {repaired:,}"
    chart = Chart(title, (8.4, 1.5 + 0.45 * len(stages)), columns=2, shares={"sharey": True})
    colours = [GREY, ORANGE, RED, *[GREEN] * len(stages)]
    what = {"messages": "messages that consumers get", "keys": "keys that find their message"}
    for axes, column in zip(chart.axes, what, strict=True):
        subtitle(axes, what[column])
        all_of_it = stages[column].iloc[0]
        for row, value in enumerate(stages[column]):
            axes.barh(row, value, color=colours[row], height=0.6)
            less = value - all_of_it
            note(axes, f"{value:,}" if not row else f"{less:,}" if less else "all", (value, row), (5, 0))
        axes.set_xlim(0, all_of_it * 1.22)
        axes.set_ylim(len(stages) - 0.5, -0.5)
        thousands(axes, "x")
        grid(axes, "x")
    chart.axes[0].set_yticks(range(len(stages)), list(stages.index))
    return chart


def _gone(before: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    both = before.merge(now.drop_duplicates(), on=list(before.columns), how="left", indicator=True)
    return both[both["_merge"] == "left_only"]
