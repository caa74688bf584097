"""How far a tail was behind its log, computed afterwards from its ledger, its queues and the log."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
from reput.errors import OutputError
from reput.format import commitlog, names
from reput.format.dtypes import UNIT_DTYPE
from reput.log.segments import discover

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from explore.workspace import Store

PERCENTILES = (50, 90, 99)


def batches(out: Path, since: int = 0) -> pd.DataFrame:
    """A row a batch, from the ledger: what it took, and when it was committed to the ledger.

    That is some milliseconds after the commit in the journal, so latencies are slightly too long rather than
    too short. Left out are a long tail's old batches, which are summed up as one, and batches whose commit is
    no longer in the table's log.

    Args:
        out: a tail's output.
        since: physical offset; batches that begin before it are left out.

    Returns:
        ``start`` and ``end`` (physical offsets, half open), ``messages``, ``bytes``, ``committed`` (UTC); in
        order.

    Raises:
        OutputError: there is no ledger.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    path = out / names.LEDGER
    try:
        table = DeltaTable(path)
    except TableNotFoundError as error:
        raise OutputError("there is no ledger here", path=path, found=str(error)) from error
    columns = ["batch_start", "batch_end", "messages", "bytes", "count"]
    rows = table.to_pandas(filters=[("kind", "=", "batch")], columns=columns)
    rows = rows.sort_values(["batch_end", "batch_start"], kind="stable", ignore_index=True)
    committed = _committed(path)
    if not committed:
        raise OutputError("the ledger's log names no batch", path=path)
    # Each row is one batch except the first, which may sum up many: so rows are numbered from the end.
    rows.index = pd.RangeIndex(max(committed) - len(rows) + 1, max(committed) + 1, name="batch")
    rows["committed"] = pd.to_datetime(rows.index.map(committed), unit="ms", utc=True)
    known = rows["count"].isna() & rows["committed"].notna() & (rows["batch_start"] >= since)
    rows = rows[known].drop(columns="count")
    rows = rows.rename(columns={"batch_start": "start", "batch_end": "end"})
    return rows.astype({"messages": "int64", "bytes": "int64"})


def stored(out: Path, store: Store) -> pd.DataFrame:
    """Every message to which the output's consume queues point: ``position`` and ``stored``, ms.

    Args:
        out: a tail's output.
        store: the log that it followed.
    """
    parts = [np.empty(0, np.int64)]
    for path in sorted((out / names.CONSUME_QUEUE).glob("*/*/*")):
        units = np.fromfile(path, UNIT_DTYPE)
        parts.append(units["position"][units["size"] > 0].astype(np.int64))
    position = np.unique(np.concatenate(parts))
    return pd.DataFrame({"position": position, "stored": _store_timestamps(store, position)})


def latencies(batches: pd.DataFrame, stored: pd.DataFrame) -> pd.DataFrame:
    """The time from storing each message to its batch's commit.

    Args:
        batches: see :func:`batches`.
        stored: see :func:`stored`.

    Returns:
        ``stored`` (UTC), ``ms`` (how long) and ``batch``; messages of other batches are left out.
    """
    number = np.searchsorted(batches["end"].to_numpy(), stored["position"].to_numpy(), side="right")
    known = number < len(batches)
    known[known] &= batches["start"].to_numpy()[number[known]] <= stored["position"].to_numpy()[known]
    at = pd.to_datetime(stored["stored"][known], unit="ms", utc=True).reset_index(drop=True)
    committed = batches["committed"].iloc[number[known]].reset_index(drop=True)
    ms = (committed - at).dt.total_seconds() * 1000
    return pd.DataFrame({"stored": at, "ms": ms, "batch": batches.index.to_numpy()[number[known]]})


def percentiles(latencies: pd.DataFrame, seconds: float = 1.0) -> pd.DataFrame:
    """Percentiles of latency over time.

    Args:
        latencies: see :func:`latencies`.
        seconds: width of a bucket of time, by which messages are put together.

    Returns:
        Indexed by the UTC time a bucket begins at: ``p50``, ``p90``, ``p99``, ``max`` (ms), ``messages``.
    """
    groups = latencies.groupby(latencies["stored"].dt.floor(pd.Timedelta(seconds=seconds)))["ms"]
    frame = pd.DataFrame({f"p{level}": groups.quantile(level / 100) for level in PERCENTILES})
    frame["max"], frame["messages"] = groups.max(), groups.size()
    frame.index.name = "time"
    return frame


def _committed(ledger: Path) -> dict[int, int]:
    """When each batch was committed to the ledger, ms, for commits that are still in the table's log."""
    found: dict[int, int] = {}
    for path in (ledger / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        commit = {key: value for action in actions for key, value in action.items()}
        if "txn" in commit:
            found[int(commit["txn"]["version"])] = int(commit["commitInfo"]["timestamp"])
    return found


def _store_timestamps(store: Store, position: NDArray[np.int64]) -> NDArray[np.int64]:
    """storeTimestamps, ms, of the records at these physical offsets, in ascending order."""
    found = np.zeros(len(position), np.int64)
    for segment in discover(store.settings(rocksdb=True)).segments:
        low, high = np.searchsorted(position, [segment.base, segment.base + segment.length])
        if low == high:
            continue
        with segment.path.open("rb") as file:
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        at = position[low:high] - segment.base
        # The flag is in the lowest byte of four.
        v6 = data[at + commitlog.SYS_FLAG + 3] & commitlog.SYS_FLAG_BORN_HOST_V6 > 0
        at = at + commitlog.BORN_HOST + np.where(v6, commitlog.HOST_V6_LENGTH, commitlog.HOST_V4_LENGTH)
        found[low:high] = data[at[:, None] + np.arange(8)].view(">i8")[:, 0]
    return found


_MIB = 1 << 20


def latency_chart(percentiles: pd.DataFrame, latencies: pd.DataFrame, ticks: pd.DataFrame) -> Chart:
    """Percentiles of latency over time.

    Args:
        percentiles: see :func:`explore.latency.percentiles`.
        latencies: see :func:`explore.latency.latencies`.
        ticks: see :attr:`explore.tail.Replay.ticks`.
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
        ticks: see :attr:`explore.tail.Replay.ticks`.
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
        stages: see :func:`explore.tail.stages`.
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
        ticks: see :attr:`explore.tail.Replay.ticks`.
        batches: see :func:`explore.latency.batches`.
        samples: see :attr:`explore.tail.Sampler.samples`.
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
