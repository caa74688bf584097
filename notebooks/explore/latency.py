"""How far a tail was behind its log, computed afterwards from its ledger, its queues and the log."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reput.broker.queue import UNIT
from reput.errors import OutputError
from reput.format import commitlog, names
from reput.log.segments import discover

if TYPE_CHECKING:
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
        units = np.fromfile(path, UNIT)
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
