"""How far behind consumer groups are, as data frames; see :mod:`reput.lag`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from reput.config.kept import Kind
from reput.format import names
from reput.lag import AgesTo, lag
from reput.replay.target import is_system

if TYPE_CHECKING:
    from explore.workspace import Store

_COLUMNS = ["group", "topic", "queue", "committed", "end", "lag", "expired", "behind"]
_AGES_TO = "ages_to"


def lags(store: Store, to: pd.Timestamp | None = None) -> pd.DataFrame:
    """A row a group, topic and queue: what the group has still to read.

    Args:
        to: up to when ages count; None as `reput lag` has it.

    Returns:
        No rows for a store without a file of committed offsets. Otherwise
        ``group``, ``topic``, ``queue``, ``committed`` and ``end`` (queueOffsets), ``lag`` and ``expired``
        (messages), ``behind`` (the age of the next one to read, up to the moment that :func:`ages_to` names,
        as `reput lag` has it; NaT with nothing to read); by group, topic and queue, a broker's own topics
        left out.
    """
    rows: list[list[object]] = []
    settings = store.settings(rocksdb=True)
    # For a store that was copied without config/, all the rest can still be shown.
    config = store.root / names.CONFIG
    places = [*config.glob("*onsumerOffset*"), settings.config.where(Kind.OFFSETS)]
    known = any(path.exists() for path in places)
    now = None if to is None else to.value // 1_000_000
    found = lag(settings, now=now) if known else None
    for row in () if found is None else found.rows:
        age = None if found is None else found.age(row.oldest_stored)
        behind = pd.NaT if age is None else pd.Timedelta(age, unit="ms")
        facts = row.group, row.topic, row.queue_id, row.committed, row.max_offset, row.lag, row.expired
        if not is_system(row.topic):
            rows.append([*facts, behind])
    frame = pd.DataFrame(rows, columns=_COLUMNS).astype({"committed": "Int64", "behind": "timedelta64[ns]"})
    frame = frame.sort_values(["group", "topic", "queue"], ignore_index=True)
    frame.attrs[_AGES_TO] = None if found is None else (str(found.ages_to), found.reference)
    return frame


def ages_to(lags: pd.DataFrame) -> str:
    """Up to when the ages of :func:`lags` count, in words; empty where there are none."""
    reference = lags.attrs.get(_AGES_TO)
    if reference is None:
        return ""
    what = "now" if reference[0] == AgesTo.NOW else "the log's last message"
    return f"up to {what}, {pd.Timestamp(reference[1], unit='ms'):%Y-%m-%d %H:%M:%S} UTC"


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
