"""What dead-letter topics hold: ``%DLQ%`` and a group's name, with the messages that the group gave up on.

A broker puts a message there when a consumer has failed on it as often as its group allows. What it was
before is in its properties ``RETRY_TOPIC`` and ``ORIGIN_MESSAGE_ID``
(``AbstractSendMessageProcessor.consumerSendMsgBack``, rocketmq-all-5.5.0); its ``REAL_TOPIC`` is the group's
retry topic, where it waited for its last delivery. ``DLQ_ORIGIN_TOPIC`` and ``DLQ_ORIGIN_MESSAGE_ID`` have
names in 5.x, but neither broker nor client of 5.5.0 sets them; where somebody does, they count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from explore.fleet import Fleet
from reput.errors import SettingsError
from reput.format import names
from reput.store.listing import names_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from reput.query import Message, QueryStore

DEAD = "%DLQ%"
COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "size",
    "storeTimestamp",
    "bornTimestamp",
    "reconsumeTimes",
    "keys",
    "tags",
    "uniqKey",
    "properties",
)
#: Where the topic is found, and the id, of the message that a dead letter was; the first one that is there.
_ORIGIN_TOPIC = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
_ORIGIN_ID = ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")
_TIMES = ("came", "born")


def topics(fleet: Fleet) -> list[str]:
    """The dead-letter topics that have queues on any of the masters."""
    found: set[str] = set()
    for member in fleet.masters:
        found |= {name for name in names_in(member.store.root / names.CONSUME_QUEUE) if name.startswith(DEAD)}
    return sorted(found)


def dead_letters(spark: SparkSession, fleet: Fleet) -> DataFrame:
    """The messages of all dead-letter topics as a table.

    Returns:
        ``broker``, ``group``, ``origin_topic``, ``origin_id`` (the broker's id of the message that it was),
        ``tries`` (deliveries that failed), ``came`` and ``born`` (ms since 1970), ``age`` (ms from the
        one to the other: how old it was when it was given up), ``keys``, ``tags``, ``uniq_key``, ``topic``,
        ``queue_offset``, ``physical_offset``, ``size``.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    # A condition on no topic at all can't be put; no topic has this name.
    wanted = topics(fleet) or [DEAD]
    messages = fleet.messages(spark, COLUMNS, [("topic", "in", wanted)])
    came, born = F.unix_millis("storeTimestamp"), F.unix_millis("bornTimestamp")
    return messages.select(
        "broker",
        F.substring("topic", len(DEAD) + 1, 1 << 15).alias("group"),
        _first(_ORIGIN_TOPIC).alias("origin_topic"),
        _first(_ORIGIN_ID).alias("origin_id"),
        F.col("reconsumeTimes").alias("tries"),
        came.alias("came"),
        born.alias("born"),
        (came - born).alias("age"),
        "keys",
        "tags",
        F.col("uniqKey").alias("uniq_key"),
        "topic",
        F.col("queueOffset").alias("queue_offset"),
        F.col("physicalOffset").alias("physical_offset"),
        "size",
    )


def totals(letters: DataFrame) -> pd.DataFrame:
    """A row a group, original topic and broker: how many, since when, and how old they were.

    Args:
        letters: see :func:`dead_letters`; of any number, only the result is collected.

    Returns:
        ``group``, ``origin_topic``, ``broker``, ``messages``, ``first`` and ``last`` (UTC, when they came),
        ``most_tries``, ``oldest`` (the greatest age when it came).
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    by = ["group", "origin_topic", "broker"]
    found = letters.groupBy(*by).agg(
        F.count("*").alias("messages"),
        F.min("came").alias("first"),
        F.max("came").alias("last"),
        F.max("tries").alias("most_tries"),
        F.max("age").alias("oldest"),
    )
    frame = found.orderBy(*by).toPandas()
    for name in ("first", "last"):
        frame[name] = _utc(frame[name])
    frame["oldest"] = _span(frame["oldest"])
    return frame


def newest(letters: DataFrame, most: int = 200) -> pd.DataFrame:
    """The dead letters that came last, the newest first; times are UTC.

    Args:
        letters: see :func:`dead_letters`.
        most: so many of them are collected.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    ordered = letters.orderBy(F.desc("came"), "broker", F.desc("physical_offset"))
    frame = ordered.limit(most).toPandas()
    for name in _TIMES:
        frame[name] = _utc(frame[name])
    frame["age"] = _span(frame["age"])
    return frame


def by_key(letters: DataFrame, most: int = 20) -> pd.DataFrame:
    """Keys that several dead letters of a group have in common, those of the most first.

    Returns:
        ``group``, ``key``, ``messages``, ``first`` and ``last`` (UTC, when they came).
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    keys = letters.select("group", "came", F.explode(F.split("keys", " ")).alias("key")).where("key != ''")
    found = keys.groupBy("group", "key").agg(
        F.count("*").alias("messages"), F.min("came").alias("first"), F.max("came").alias("last")
    )
    frame = found.where("messages > 1").orderBy(F.desc("messages"), "group", "key").limit(most).toPandas()
    for name in ("first", "last"):
        frame[name] = _utc(frame[name])
    return frame


def originals(fleet: Fleet, newest: pd.DataFrame) -> pd.DataFrame:
    """Where the message is that each dead letter was: by its id, in the log of the broker that the id names.

    Args:
        newest: see :func:`newest`.

    Returns:
        The same with ``origin_broker``, ``origin_offset`` (physical offset) and ``origin_queue`` (queue id
        and queueOffset); None where the message isn't there any more, or its broker isn't here.
    """
    stores = {member.name: member.store.open().query for member in fleet.masters}
    frame = newest.copy()
    found = [
        _original(stores, *row)
        for row in newest[["origin_id", "origin_topic", "uniq_key"]].itertuples(index=False, name=None)
    ]
    frame["origin_broker"] = pd.Series([broker for broker, _ in found], index=frame.index, dtype=object)
    records = [None if message is None else message.record for _, message in found]
    offsets = [None if one is None else one.physical_offset for one in records]
    frame["origin_offset"] = pd.array(offsets, dtype="Int64")
    places = [None if one is None else f"{one.queue_id}:{one.queue_offset}" for one in records]
    frame["origin_queue"] = pd.Series(places, index=frame.index, dtype=object)
    return frame


def _original(
    stores: dict[str, QueryStore], text: str | None, topic: str | None, key: str | None
) -> tuple[str | None, Message | None]:
    """The broker's name and the message; a record that has come to its place since has another UNIQ_KEY."""
    for name, store in stores.items():
        if text is None or topic is None:
            break
        try:
            hit = store.by_id(text, topic)
        except SettingsError:  # the property isn't an id
            continue
        if hit.message is not None and hit.host_fits and hit.message.uniq_key == key:
            return name, hit.message
    return None, None


def _first(properties: tuple[str, ...]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    return F.coalesce(*(F.col("properties").getItem(name) for name in properties))


def _utc(ms: pd.Series) -> pd.Series:
    return pd.to_datetime(ms, unit="ms", utc=True)


def _span(ms: pd.Series) -> pd.Series:
    return pd.to_timedelta(ms, unit="ms")
