"""A master's log beside its slave's: what both have, what the slave lacks, and where they part ways.

A slave's log is its master's, byte for byte at the same physical offsets, storeTimestamps included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pandas as pd

from explore.fleet import Member, log
from reput.format import commitlog
from reput.words import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from reput.query import Message

#: What is compared of two messages at the same physical offset.
COMPARED = (
    "size",
    "topic",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "bornTimestamp",
    "storeHost",
    "sysFlag",
    "flag",
    "reconsumeTimes",
    "bodyCRC",
    "tags",
    "keys",
    "uniqKey",
)
_FACTS = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "storeTimestamp",
    "bornTimestamp",
    "storeHost",
    "size",
    "bodyCRC",
)
#: Topics of which a client that asks for a message knows nothing.
_NO_CLIENT_S = "^(rmq_sys_|RMQ_SYS_|SCHEDULE_TOPIC_XXXX$|%)"


@dataclass(frozen=True, slots=True)
class Beside:
    """A master's log and its slave's.

    Attributes:
        master, slave: their names.
        start, end: physical offsets, half open: where both have messages.
        master_start, master_end, slave_start, slave_end: where each has.
        same: messages there that are the same in both.
        differing: messages there that one has alone, or that aren't the same.
        parted_at: physical offset of the first of these; None without one.
        missing: what only the master has behind ``end``, a row a topic: ``topic``, ``messages``, ``bytes``,
            ``first_stored``, ``last_stored`` (UTC).
        ahead: messages that only the slave has behind ``end``.
        last_common, first_missing: physical offsets of the last message of a client's topic that both have,
            and of the first one that the slave lacks; None without one.
    """

    master: str
    slave: str
    start: int
    end: int
    master_start: int
    master_end: int
    slave_start: int
    slave_end: int
    same: int
    differing: int
    parted_at: int | None
    missing: pd.DataFrame
    ahead: int
    last_common: int | None
    first_missing: int | None

    def __repr__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """What it comes to, in a sentence or two."""
        same = f"{counted(self.same, 'message')} of {self.master} and {self.slave} are the same"
        if self.parted_at is not None:
            where = f"at physical offset {self.parted_at:,}, {counted(self.differing, 'message')} differ"
            return f"The logs part ways {where}, or one is damaged there; {same}"
        if self.start >= self.end:
            return f"The logs of {self.master} and {self.slave} have no range in common"
        lacks = int(self.missing["messages"].sum())
        if lacks:
            size = int(self.missing["bytes"].sum())
            return f"{same}; {self.slave} lacks the last {counted(lacks, 'message')}, {size:,} bytes"
        if self.ahead:
            return f"{same}; {self.slave} has {counted(self.ahead, 'message')} that {self.master} lacks"
        return f"{same}; none is missing"


def beside(spark: SparkSession, master: Member, slave: Member) -> Beside:
    """Compare two logs, message by message at each physical offset. Only sums are collected."""
    columns = ("physicalOffset", *COMPARED)
    return compared(
        log(spark, master, columns).drop("broker"),
        log(spark, slave, columns).drop("broker"),
        master.name,
        slave.name,
    )


def compared(master: DataFrame, slave: DataFrame, master_name: str, slave_name: str) -> Beside:
    """The same of two frames with ``physicalOffset`` and :data:`COMPARED`."""
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    master_start, master_end = _range(master)
    slave_start, slave_end = _range(slave)
    start, end = max(master_start, slave_start), min(master_end, slave_end)
    joined = master.alias("m").join(slave.alias("s"), "physicalOffset", "full")
    equal = reduce(
        lambda one, other: one & other,
        (F.col(f"m.{name}").eqNullSafe(F.col(f"s.{name}")) for name in COMPARED),
    )
    both = F.col("m.size").isNotNull() & F.col("s.size").isNotNull()
    at = F.col("physicalOffset")
    states: Column = (
        F.when(at >= end, F.when(F.col("m.size").isNotNull(), "missing").otherwise("ahead"))
        .when(at < start, "before")
        .when(both & equal, "same")
        .otherwise("differing")
    )
    topic = F.coalesce("m.topic", "s.topic")
    of_client = F.coalesce("m.uniqKey", "s.uniqKey").isNotNull() & ~topic.rlike(_NO_CLIENT_S)
    stored = F.unix_millis(F.coalesce("m.storeTimestamp", "s.storeTimestamp"))
    found = (
        joined.groupBy(states.alias("state"), topic.alias("topic"))
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.coalesce("m.size", "s.size")).alias("bytes"),
            F.min(at).alias("first"),
            F.min(F.when(of_client, at)).alias("first_of_client"),
            F.max(F.when(of_client, at)).alias("last_of_client"),
            F.min(stored).alias("first_stored"),
            F.max(stored).alias("last_stored"),
        )
        .toPandas()
    )
    of = {state: found[found["state"] == state] for state in ("same", "differing", "missing", "ahead")}
    missing = of["missing"].sort_values(["messages", "topic"], ascending=[False, True], ignore_index=True)
    missing = missing[["topic", "messages", "bytes", "first_stored", "last_stored"]]
    for name in ("first_stored", "last_stored"):
        missing[name] = pd.to_datetime(missing[name], unit="ms", utc=True)
    return Beside(
        master_name,
        slave_name,
        start,
        max(start, end),
        master_start,
        master_end,
        slave_start,
        slave_end,
        int(of["same"]["messages"].sum()),
        int(of["differing"]["messages"].sum()),
        _number(of["differing"]["first"].min()),
        missing,
        int(of["ahead"]["messages"].sum()),
        _number(of["same"]["last_of_client"].max()),
        _number(of["missing"]["first_of_client"].min()),
    )


def key_at(member: Member, physical_offset: int | None) -> tuple[str, str] | None:
    """Topic and UNIQ_KEY of the message at a physical offset; None without one."""
    message = None if physical_offset is None else member.store.open().query.message_at(physical_offset)
    return None if message is None or message.uniq_key is None else (message.topic, message.uniq_key)


def one_message(members: Sequence[Member], topic: str, key: str) -> pd.DataFrame:
    """What each store has of the message with a UNIQ_KEY, by its own index; see :func:`facts`."""
    return facts({member.name: member.store.open().query.by_id(key, topic).message for member in members})


def facts(found: Mapping[str, Message | None]) -> pd.DataFrame:
    """One message in several stores, a row a fact and a column a store; ``same`` says where all agree.

    Args:
        found: by store; None where it isn't there: its column is empty.
    """
    columns = {name: {} if one is None else _facts(one) for name, one in found.items()}
    names = [*_FACTS, "CRC of its body", "UNIQ_KEY", "offsetMsgId"]
    frame = pd.DataFrame({name: [of.get(fact, "") for fact in names] for name, of in columns.items()})
    frame.index = pd.Index(names)
    frame["same"] = [len(set(row)) == 1 for row in frame.to_numpy().tolist()]
    return frame


def _facts(message: Message) -> dict[str, str]:
    columns = message.columns()
    of = {name: str(columns[name]) for name in _FACTS}
    for name in ("storeTimestamp", "bornTimestamp"):
        time = pd.Timestamp(int(of[name]), unit="ms", tz="UTC")
        of[name] = f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d}"
    of["bodyCRC"] = f"{int(of['bodyCRC']) & 0xFFFF_FFFF:08x}"
    of["CRC of its body"] = f"{commitlog.body_crc(message.record.body):08x}"
    return {**of, "UNIQ_KEY": message.uniq_key or "", "offsetMsgId": message.offset_msg_id}


def _range(messages: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    row = messages.agg(F.min("physicalOffset"), F.max(F.col("physicalOffset") + F.col("size"))).collect()[0]
    return (0, 0) if row[0] is None else (int(row[0]), int(row[1]))


def _number(value: float | None) -> int | None:
    return None if value is None or pd.isna(value) else int(value)
