"""The charts of ``notebooks/latency.ipynb``: latency, batches, stages and throughput of a tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from explore.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Chart,
    grid,
    legend,
    naive,
    note,
    subtitle,
    thousands,
    utc,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIB = 1 << 20


def latency_chart(percentiles: pd.DataFrame, latencies: pd.DataFrame, ticks: pd.DataFrame) -> Chart:
    """Percentiles of latency over time.

    Args:
        percentiles: see :func:`explore.latency.percentiles`.
        latencies: see :func:`explore.latency.latencies`.
        ticks: see :attr:`explore.replay.Replay.ticks`.
    """
    half, most = latencies["ms"].quantile([0.5, 0.99])
    within = f"within {half:,.0f} ms, 99% within {most:,.0f} ms"
    chart = Chart(f"Half of {len(latencies):,} messages were committed {within}")
    axes = chart.axes[0]
    subtitle(
        axes, "from a message's storeTimestamp to its batch's commit in the ledger, ms, by second of storing"
    )
    shown = percentiles.asfreq("s")  # a line ends where there was nothing
    for name, colour in (("p99", RED), ("p90", ORANGE), ("p50", BLUE)):
        at = naive(shown.index)
        axes.plot(at, shown[name], color=colour, label=name, marker="o", markersize=3)
    axes.set_ylim(0, percentiles["p99"].max() * 1.25)
    _phases(axes, ticks)
    legend(axes)
    axes.set_ylabel("ms")
    thousands(axes)
    utc(axes)
    grid(axes)
    return chart


def batch_chart(batches: pd.DataFrame, ticks: pd.DataFrame) -> Chart:
    """How many messages each batch took.

    Args:
        batches: see :func:`explore.latency.batches`.
        ticks: see :attr:`explore.replay.Replay.ticks`.
    """
    shown = batches[batches["messages"] > 0]
    seconds = (batches["committed"].max() - batches["committed"].min()).total_seconds()
    rate = (len(batches) - 1) / seconds if seconds else 0.0
    low, half, high = batches["messages"].quantile([0, 0.5, 1])
    each = f"of {half:,.0f} messages in the median: {low:,.0f} up to {high:,.0f}"
    chart = Chart(f"{rate:,.1f} batches a second, {each}")
    axes = chart.axes[0]
    subtitle(axes, "messages in a batch, when it was committed; each dot is a batch")
    at = shown["committed"].dt.tz_localize(None)
    axes.plot(at, shown["messages"], "o", color=BLUE, markersize=4, alpha=0.6)
    axes.set_yscale("log")
    axes.set_ylim(max(shown["messages"].min() / 2, 0.8), shown["messages"].max() * 3)
    _phases(axes, ticks)
    axes.set_ylabel("messages")
    thousands(axes)
    utc(axes)
    grid(axes)
    return chart


def stage_chart(stages: pd.DataFrame) -> Chart:
    """How a batch's time is spent.

    Args:
        stages: see :func:`explore.tailing.stages`.
    """
    shown = stages[stages["ms"] >= 0.005]
    most = f"{stages['share'].iloc[0]:.0%} of that is {stages.index[0]}"
    title = f"A batch takes {stages['ms'].sum():,.0f} ms in the mean; {most}"
    chart = Chart(title, (8.4, 1.4 + 0.34 * max(len(shown), 1)))
    axes = chart.axes[0]
    subtitle(axes, "a batch's time by stage, ms in the mean, by the tail's own metrics")
    axes.barh(range(len(shown)), shown["ms"], color=BLUE, height=0.65)
    for row, (ms, share) in enumerate(zip(shown["ms"], shown["share"], strict=True)):
        note(axes, f"{ms:,.1f} ms, {share:.0%}", (ms, row), (5, 0))
    axes.set_yticks(range(len(shown)), list(shown.index))
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.set_xlim(0, max(shown["ms"].max() * 1.2, 1e-3) if len(shown) else 1)
    axes.set_xlabel("ms")
    grid(axes, "x")
    return chart


def throughput_chart(ticks: pd.DataFrame, batches: pd.DataFrame, samples: pd.DataFrame) -> Chart:
    """What was written and what was committed in each second, and what was waiting.

    Args:
        ticks: see :attr:`explore.replay.Replay.ticks`.
        batches: see :func:`explore.latency.batches`.
        samples: see :attr:`explore.tailing.Sampler.samples`.
    """
    written = _by_second(ticks["time"], ticks["messages"])
    done = _by_second(batches["committed"], batches["messages"])
    late = samples["reput_lag_seconds"].max() * 1000
    behind = int(ticks["end"].max() - batches["end"].max())
    kept = "The tail kept up with" if behind <= 0 else f"The tail is {behind:,} bytes behind at"
    seen = f"none was seen to wait for over {late:,.0f} ms"
    title = f"{kept} {written.max():,.0f} messages/s; {seen}"
    chart = Chart(title, (8.4, 4.6), rows=2, shares={"sharex": True, "height_ratios": [2, 1]})
    above, below = chart.axes
    subtitle(above, "messages a second")
    above.step(written.index, written, where="post", color=GREY, label="stored", linewidth=3, alpha=0.6)
    above.step(done.index, done, where="post", color=GREEN, label="committed")
    above.set_ylim(0, max(written.max(), done.max()) * 1.25)
    _phases(above, ticks)
    legend(above)
    thousands(above)
    grid(above)
    subtitle(below, "KiB of the log that wait to be committed, when the tail was asked")
    waiting = samples["reput_lag_bytes"] / 1024
    below.fill_between(naive(waiting.index), waiting, color=PURPLE, alpha=0.6, linewidth=0)
    below.set_ylim(0, max(waiting.max() * 1.1, 1))
    thousands(below)
    grid(below)
    utc(below)
    return chart


def _by_second(at: pd.Series, messages: pd.Series) -> pd.Series:
    """Messages in each second, those without any included."""
    summed = messages.groupby(at.dt.tz_localize(None).dt.floor("s").to_numpy()).sum()
    return summed.asfreq("s", fill_value=0)


def _phases(axes: Axes, ticks: pd.DataFrame) -> None:
    """Name the phases of traffic above, and shade every other one."""
    times = ticks["time"].dt.tz_localize(None)
    begins = times.groupby((ticks["phase"] != ticks["phase"].shift()).cumsum()).agg(["first", "last"])
    names = ticks["phase"][ticks["phase"] != ticks["phase"].shift()]
    for row, (name, begin, end) in enumerate(zip(names, begins["first"], begins["last"], strict=True)):
        if row % 2:
            axes.axvspan(begin, end, color=SKY, alpha=0.12, linewidth=0)
        note(axes, name, (begin, 1), (2, -8), ("data", "axes fraction"))
