"""What consumers can get from a store: as it is, after a broker's restart, and after a repair by reput.

All is compared with the store as it was: a message is reached when its queue points to it at its queueOffset,
a key when the chains of an index file lead to its entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reput.broker.queue import QueueModel
from reput.broker.snapshot import take
from reput.format import indexfile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from explore.workspace import Store
    from reput.broker.snapshot import Queue
    from reput.recovery.plan import Plan

_UNIT = ["topic", "queue", "offset", "position", "size"]
_ENTRY = np.dtype(indexfile.ENTRY_FIELDS)


@dataclass(frozen=True)
class Reach:
    """The units and entries that lead to messages. Light and batch queues count as they are in consumequeue/.

    Attributes:
        units: ``topic``, ``queue``, ``offset`` (queueOffset), ``position`` (physical offset), ``size``
            (bytes): one row a unit of a consume queue.
        entries: ``hash``, ``position``: one row an entry that the chains of the index lead to.
    """

    units: pd.DataFrame
    entries: pd.DataFrame

    def of(self, before: Reach, lost: Sequence[tuple[int, int]] = ()) -> pd.Series:
        """How much of what there was is still reached.

        Args:
            before: the store as it was.
            lost: physical offsets, half open, where the log can't be read any more.

        Returns:
            ``messages`` and ``keys``.
        """
        units = before.units.merge(self.units.drop_duplicates(), on=_UNIT)
        keys = before.entries.merge(self.entries.drop_duplicates(), on=["hash", "position"])
        return pd.Series({"messages": _outside(units, lost), "keys": _outside(keys, lost)})


def as_it_lies(store: Store) -> Reach:
    """What the files of a store lead to as they are now."""
    snapshot = take(store.settings())
    size = snapshot.settings.consume_queue_file_size
    queues = {queue: QueueModel(listing.files, size) for queue, listing in snapshot.queues.items()}
    return Reach(_units(queues), _entries([one.path for one in snapshot.index], store))


def after_restart(plan: Plan, store: Store) -> Reach:
    """What a broker's queues and index lead to after the start that a plan predicts.

    Entries that the start adds to the index aren't included: after a clean stop there are none.
    """
    prediction = plan.prediction
    units = _units(prediction.queues)
    entries = _entries([file.path for file in prediction.index.files if file.path is not None], store)
    end = prediction.log_end
    return Reach(units[units["position"] < end], entries[entries["position"] < end])


def findings_table(report: Mapping[str, Any]) -> pd.DataFrame:
    """The findings of ``reput check --json`` in a few rows: what is wrong with how much of what.

    Returns:
        ``area``, ``kind``, ``what`` (topic; file), ``ranges`` and ``count`` (units, entries, bytes of log).
    """
    columns = ["area", "kind", "cause", "what", "ranges", "count"]
    rows = [
        [one["area"], one["kind"], one["cause"] or "", _what(one), 1, one["count"]]
        for one in report["findings"]
    ]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(columns[:4], as_index=False, sort=False).sum()


def _what(finding: Mapping[str, Any]) -> str:
    return str(finding["topic"] or str(finding["path"]).rpartition("/")[2])


def _outside(rows: pd.DataFrame, lost: Sequence[tuple[int, int]]) -> int:
    position = rows["position"].to_numpy()
    hit = np.zeros(len(position), bool)
    for start, end in lost:
        hit |= (position >= start) & (position < end)
    return int((~hit).sum())


def _units(queues: Mapping[Queue, QueueModel]) -> pd.DataFrame:
    parts = []
    for (topic, queue_id), model in sorted(queues.items()):
        for first, units in model.units():
            written = units["size"] > 0
            offsets = np.arange(first, first + len(units), dtype=np.int64)[written]
            position, size = (units[name][written].astype(np.int64) for name in ("position", "size"))
            columns = {"offset": offsets, "position": position, "size": size}
            parts.append(pd.DataFrame({"topic": topic, "queue": queue_id, **columns}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_UNIT)


def _entries(paths: Sequence[Path], store: Store) -> pd.DataFrame:
    slots = store.settings().max_hash_slot_num
    parts = []
    for path in paths:
        data = path.read_bytes()
        count = indexfile.IndexHeader.decode(data).index_count
        first = np.frombuffer(data, ">i4", slots, indexfile.HEADER_LENGTH)
        found = np.frombuffer(data, _ENTRY, offset=indexfile.file_length(slots, 0))[:count]
        found = found[chained(first, found["previous"])]
        parts.append(pd.DataFrame({name: found[name].astype(np.int64) for name in ("hash", "position")}))
    empty = pd.DataFrame({"hash": [], "position": []}, dtype=np.int64)
    return pd.concat(parts, ignore_index=True) if parts else empty


def chained(first: NDArray[Any], previous: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries of an index file a broker gets to, going from slots to entries and on.

    Source: ``IndexFile.selectPhyOffset`` (rocketmq-all-5.3.3).

    Args:
        first: int[slots], the ordinal of each slot's newest entry; 0: none.
        previous: int[entries], the ordinal of the entry before in its slot; 0: none. Entry 0 stays unused.
    """
    reached = np.zeros(len(previous), bool)
    at = np.unique(first)
    while len(at := at[(at > 0) & (at < len(previous))]):
        # An entry seen before leads to nothing new; so a loop ends, too.
        at = at[~reached[at]]
        reached[at] = True
        at = np.unique(previous[at])
    return reached
