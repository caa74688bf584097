"""What a log holds, by queue, time and size: Spark queries whose results fit into a pandas frame.

The functions that take ``messages`` run on Spark, for a log of any length: only the result is collected. The
others work on these results. Times are UTC, whatever the time zone of Spark's session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from explore.tables import table
from reput.config.kept import write_queues
from reput.format.commitlog import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from reput.replay.target import is_system

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from explore.workspace import Store

#: Widths of a bucket of time, s; and how many of them a picture takes.
_WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
_MOST_BUCKETS = 240
#: Bytes of log whose messages one task puts in order to see the gaps between them.
_BLOCK = 128 << 20


def messages(spark: SparkSession, store: Store, columns: str | None = None) -> DataFrame:
    """The log of a store as a table.

    Args:
        columns: those wanted, in SQL; see docs/data/columns.md for all. None for what the functions here
            need.
    """
    return table(spark, store, "commitlog", columns)


def queues(messages: DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """A row a queue: what the log has of it. Messages prepared or rolled back are in none, and don't count.

    Args:
        by: columns that tell queues of the same topic and id apart, such as the broker; they come first.

    Returns:
        ``topic``, ``queue``, ``messages``, ``bytes``, ``first_offset`` and ``next_offset`` (queueOffsets,
        half open), ``first_stored`` and ``last_stored`` (UTC); by topic and queue.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    state = F.col("sysFlag").bitwiseAND(TRANSACTION_MASK)
    placed = messages.where(state.isin(TRANSACTION_NONE, TRANSACTION_COMMIT))
    found = placed.groupBy(*by, "topic", F.col("queueId").alias("queue")).agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.min("queueOffset").alias("first_offset"),
        (F.max("queueOffset") + 1).alias("next_offset"),
        F.min(_stored_ms()).alias("first_stored"),
        F.max(_stored_ms()).alias("last_stored"),
    )
    frame = found.orderBy(*by, "topic", "queue").toPandas()
    for name in ("first_stored", "last_stored"):
        frame[name] = _utc(frame[name])
    return frame


def skew(queues: pd.DataFrame, store: Store | None = None) -> pd.DataFrame:
    """How evenly the messages of each topic are spread over its queues.

    Topics of one queue, and system topics, are left out.

    Args:
        queues: see :func:`queues`.
        store: its ``config/topics.json`` shows queues that got no message at all.

    Returns:
        A row a topic, the most uneven first: ``queues``, ``empty`` (those without a message), ``messages``,
        ``mean`` and ``fullest`` (messages in a queue), ``max_to_mean`` (1: all equal), ``gini`` (0: all
        equal; near 1: all in one).
    """
    wanted = {} if store is None else write_queues(store.settings(rocksdb=True).config)
    rows = []
    for topic, group in queues.groupby("topic"):
        counts = group["messages"].to_numpy()
        empty = max(wanted.get(str(topic), 0) - len(counts), 0)
        counts = np.concatenate([counts, np.zeros(empty, counts.dtype)])
        if is_system(str(topic)) or len(counts) < 2:
            continue
        mean = counts.mean()
        rows.append(
            {
                "topic": topic,
                "queues": len(counts),
                "empty": empty,
                "messages": int(counts.sum()),
                "mean": mean,
                "fullest": int(counts.max()),
                "max_to_mean": counts.max() / mean,
                "gini": gini(counts),
            }
        )
    columns = ["topic", "queues", "empty", "messages", "mean", "fullest", "max_to_mean", "gini"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values(["max_to_mean", "topic"], ascending=[False, True], ignore_index=True)


def gini(counts: Iterable[float]) -> float:
    """The Gini coefficient of some counts: half the mean difference of two of them, by their mean.

    0 when all are equal, ``1 - 1/n`` when one of n has everything; 0 if there are none.
    """
    values = np.sort(np.asarray(list(counts), float))
    total = values.sum()
    if not total:
        return 0.0
    ranks = np.arange(1, len(values) + 1)
    return float((2 * ranks - len(values) - 1) @ values / (len(values) * total))


def traffic(messages: DataFrame, seconds: int) -> pd.DataFrame:
    """Messages a second by topic over time.

    Args:
        seconds: width of a bucket of time; see :func:`bucket`.

    Returns:
        A row a bucket, indexed by the UTC time it begins at, those without a message included; a column a
        topic, the one with the most messages first; messages a second.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    begin = F.floor(_stored_ms() / (1000 * seconds)).alias("bucket")
    found = messages.groupBy(begin, "topic").agg(F.count("*").alias("messages")).toPandas()
    table = found.pivot(index="bucket", columns="topic", values="messages")
    if len(table):
        table = table.reindex(range(int(table.index.min()), int(table.index.max()) + 1))
    table = table.fillna(0) / seconds
    table = table[table.sum().sort_values(ascending=False, kind="stable").index]
    table.index = pd.DatetimeIndex(_utc(pd.Series(table.index, dtype="int64") * 1000 * seconds), name="time")
    table.columns.name = None
    return table


def bucket(queues: pd.DataFrame) -> int:
    """Seconds of a bucket of time that fits the span of a log."""
    if not len(queues):
        return 1
    span = (queues["last_stored"].max() - queues["first_stored"].min()).total_seconds()
    return next((width for width in _WIDTHS if span / width <= _MOST_BUCKETS), _WIDTHS[-1])


def sizes(messages: DataFrame) -> pd.DataFrame:
    """How many messages of each topic have which size in the log.

    Returns:
        ``topic``, ``size`` (bytes of the record), ``messages``; by topic and size.
    """
    found = messages.groupBy("topic", "size").count().withColumnRenamed("count", "messages")
    return found.orderBy("topic", "size").toPandas()


def size_table(sizes: pd.DataFrame) -> pd.DataFrame:
    """The sizes of each topic in a few numbers: ``messages``, ``p50``, ``p99``, ``largest``, ``bytes``."""
    rows = []
    for topic, group in sizes.groupby("topic"):
        at, count = group["size"].to_numpy(), group["messages"].to_numpy()
        p50, p99 = quantiles(at, count, (0.5, 0.99))
        rows.append([topic, int(count.sum()), p50, p99, int(at.max()), int(at @ count)])
    frame = pd.DataFrame(rows, columns=["topic", "messages", "p50", "p99", "largest", "bytes"])
    return frame.sort_values(["bytes", "topic"], ascending=[False, True], ignore_index=True)


def quantiles(values: np.ndarray, counts: np.ndarray, wanted: Iterable[float]) -> list[float]:
    """The least values that a share of all doesn't exceed; each value stands for ``counts`` ones.

    Args:
        values: of any order; at least one.
        wanted: shares, 0 to 1.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    at = np.searchsorted(reached, np.asarray(list(wanted)) * reached[-1], side="left")
    return [value.item() for value in values[order][np.minimum(at, len(values) - 1)]]


def gaps(messages: DataFrame) -> pd.DataFrame:
    """How long it was silent between one message and the next, by the broker's clock.

    Blocks of the log are processed in parallel, and joined by their ends.

    Returns:
        ``ms`` (how long), ``count`` (how often), ``first`` (UTC, when the first one of that length ended);
        by length. A clock that was set back makes negative ones.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    block = F.floor(F.col("physicalOffset") / _BLOCK).alias("block")
    times = messages.select(block, "physicalOffset", _stored_ms().alias("at"))
    window = Window.partitionBy("block").orderBy("physicalOffset")
    steps = times.select("at", (F.col("at") - F.lag("at").over(window)).alias("ms")).where("ms is not null")
    found = steps.groupBy("ms").agg(F.count("*").alias("count"), F.min("at").alias("first")).toPandas()
    ends = (
        times.groupBy("block")
        .agg(F.min_by("at", "physicalOffset").alias("first"), F.max_by("at", "physicalOffset").alias("last"))
        .orderBy("block")
        .toPandas()
    )
    return together(found, ends)


def together(within: pd.DataFrame, ends: pd.DataFrame) -> pd.DataFrame:
    """The gaps of a log, from those within its blocks and from the blocks' first and last messages.

    Args:
        within: ``ms``, ``count``, ``first`` (ms since 1970), as :func:`gaps` finds them in each block.
        ends: storeTimestamps of each block's ``first`` and ``last`` message, ms, in the log's order.

    Returns:
        See :func:`gaps`.
    """
    between = pd.DataFrame({"ms": ends["first"] - ends["last"].shift(), "count": 1, "first": ends["first"]})
    both = pd.concat([within, between.dropna()]).astype("int64")
    frame = both.groupby("ms", as_index=False).agg({"count": "sum", "first": "min"})
    frame["first"] = _utc(frame["first"])
    return frame


def _stored_ms() -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    # As a number: pandas would get a time in the session's zone, without its name.
    return F.unix_millis("storeTimestamp")


def _utc(ms: pd.Series) -> pd.Series:
    return pd.to_datetime(ms, unit="ms", utc=True)
