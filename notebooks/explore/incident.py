"""Damage for a copy of a store, as a bad disk or a wrong command would cause it.

All is compared with the store as it was: a message is reached when its queue points to it at its queueOffset,
a key when the chains of an index file lead to its entry.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from explore.charts import BLUE, GREEN, GREY, ORANGE, RED, Chart, grid, note, short, subtitle, thousands
from reput.broker.snapshot import take
from reput.derived.plain import QueueModel
from reput.errors import StoreError
from reput.format import indexfile, names
from reput.format.dtypes import ENTRY_DTYPE
from reput.log.segments import discover
from reput.query import QueryStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from explore.workspace import Store
    from reput.format.names import Queue
    from reput.recovery.plan import Plan

_FLIPPED = 16


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done.

    Attributes:
        text: in words.
        lost: physical offsets, half open, of the log's bytes that are lost for good.
    """

    text: str
    lost: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return self.text


def lose_queues(store: Store, topic: str) -> Damage:
    """Remove all queues of a topic.

    Raises:
        StoreError: the store isn't a copy, or there is no such topic.
    """
    _refuse_all_but_copies(store)
    directory = store.root / names.CONSUME_QUEUE / topic
    if not directory.is_dir():
        raise StoreError("there are no queues of this topic", path=directory, expected="a directory")
    files = [path for path in directory.rglob("*") if path.is_file()]
    shutil.rmtree(directory)
    return Damage(f"{names.CONSUME_QUEUE}/{topic} is gone, with {len(files)} files of its queues")


def tear_index(store: Store) -> Damage:
    """Fill the second half of the entries of the middle index file with zeros.

    Raises:
        StoreError: the store isn't a copy, or has no index.
    """
    _refuse_all_but_copies(store)
    found = sorted((store.root / names.INDEX).glob("*"))
    if not found:
        raise StoreError("there are no index files", path=store.root / names.INDEX, expected="at least one")
    path = found[len(found) // 2]
    header = indexfile.IndexHeader.decode(path.read_bytes()[: indexfile.HEADER_LENGTH])
    first = header.index_count // 2
    count = header.index_count - first
    at = indexfile.file_length(store.settings().max_hash_slot_num, first)
    _overwrite(path, at, bytes(count * indexfile.ENTRY_LENGTH))
    torn = f"its last {count:,} of {header.index_count - 1:,} entries are zeros"
    return Damage(f"{names.INDEX}/{path.name} is torn: {torn}")


def flip_bytes(store: Store) -> Damage:
    """Flip all bits of a message's first bytes, in the middle of the log's last segment.

    Raises:
        StoreError: the store isn't a copy, or has no message there.
    """
    _refuse_all_but_copies(store)
    log, reader = discover(store.settings()), QueryStore(store.settings()).log
    end, last = reader.end, log.segments[-1]
    segment = log.segment_at(end - 1) or last
    message = reader.after(segment.base + (end - segment.base) // 2)
    if message is None:
        raise StoreError("there is no message in the middle of the last segment", path=segment.path)
    record = message.record
    at = record.physical_offset - segment.base
    before = segment.path.read_bytes()[at : at + _FLIPPED]
    _overwrite(segment.path, at, bytes(byte ^ 0xFF for byte in before))
    return Damage(
        f"{names.COMMIT_LOG}/{segment.path.name}: {_FLIPPED} bytes turned at {at}, where message "
        f"{record.queue_offset} of {message.topic}:{record.queue_id} begins",
        (record.physical_offset, record.physical_offset + message.size),
    )


def _refuse_all_but_copies(store: Store) -> None:
    if not store.is_copy:
        raise StoreError(
            "this store isn't a copy, and the only one must not be damaged",
            path=store.root,
            next_step="Copy it first: Workspace.copy",
        )


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


_UNIT = ["topic", "queue", "offset", "position", "size"]
_ENTRY = ENTRY_DTYPE


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
