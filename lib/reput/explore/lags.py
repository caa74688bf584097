"""How far behind consumer groups are, as data frames; see :mod:`reput.lag`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from reput.format import names
from reput.lag import lag
from reput.replay.selection import is_system

if TYPE_CHECKING:
    from reput.explore.workspace import Store

_COLUMNS = ["group", "topic", "queue", "committed", "end", "lag", "expired", "behind"]


def lags(store: Store, last_stored: pd.Timestamp) -> pd.DataFrame:
    """A row a group, topic and queue: what the group has still to read.

    Args:
        last_stored: when the log's last message was stored. Ages are counted to there and not to now, since a
            stopped store doesn't change.

    Returns:
        No rows for a store without a file of committed offsets. Otherwise
        ``group``, ``topic``, ``queue``, ``committed`` and ``end`` (queueOffsets), ``lag`` and ``expired``
        (messages), ``behind`` (how much earlier than the log's last message the next one to read was stored;
        NaT with nothing to read); by group, topic and queue, a broker's own topics left out.

    Raises:
        ReputError: the offsets, a queue or the log can't be read.
    """
    now = int(last_stored.timestamp() * 1000)
    rows: list[list[object]] = []
    settings = store.settings()
    # For a store that was copied without config/, all the rest can still be shown.
    config = store.root / names.CONFIG
    known = any(path.exists() for path in config.glob("*onsumerOffset*")) if config.is_dir() else False
    for row in lag(settings, now=now).rows if known else ():
        behind = pd.NaT if row.oldest_stored is None else pd.Timedelta(now - row.oldest_stored, unit="ms")
        facts = row.group, row.topic, row.queue_id, row.committed, row.max_offset, row.lag, row.expired
        if not is_system(row.topic):
            rows.append([*facts, behind])
    frame = pd.DataFrame(rows, columns=_COLUMNS).astype({"committed": "Int64", "behind": "timedelta64[ns]"})
    return frame.sort_values(["group", "topic", "queue"], ignore_index=True)


def by_group(lags: pd.DataFrame) -> pd.DataFrame:
    """A row a group and topic, the one with the most to read first.

    Returns:
        ``group``, ``topic``, ``queues``, ``lag`` and ``expired`` (messages), ``share`` (of all that the
        queues ever got, 0 to 1, what is still to be read), ``behind`` (of the queue that is furthest behind).
    """
    groups = lags.groupby(["group", "topic"], as_index=False)
    frame = groups.agg(
        queues=("queue", "size"),
        lag=("lag", "sum"),
        expired=("expired", "sum"),
        share=("end", "sum"),
        behind=("behind", "max"),
    )
    frame["share"] = (frame["lag"] / frame["share"].where(frame["share"] > 0)).fillna(0.0)
    return frame.sort_values(["lag", "group"], ascending=[False, True], ignore_index=True)
