"""The stores of one cluster side by side: masters and slaves, their queues, and how far consumers are.

What is about one message on a master and its slave is in :mod:`explore.replicas`, what is about dead
letters in :mod:`explore.dead_letters`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from explore import lags as lags_of
from explore import traffic
from explore.workspace import Store, Workspace
from reput import demo
from reput.config.broker_conf import parse
from reput.errors import StoreError
from reput.replay.target import is_system
from reput.store.reading import check_store, unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from reput.source.filters import Condition

AnyPath = str | os.PathLike[str]
#: A name for people, the store's directory, and its broker.conf, or None where there is none.
Named = tuple[str, AnyPath, AnyPath | None]

COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "size", "sysFlag", "storeTimestamp")
RETRY = "%RETRY%"


@dataclass(frozen=True, slots=True)
class Member:
    """A broker's store.

    Attributes:
        name: for people.
        store: its files.
        broker: ``brokerName``, the same for a master and its slaves; None where broker.conf doesn't say.
        number: ``brokerId``: 0 for a master.
    """

    name: str
    store: Store
    broker: str | None = None
    number: int = 0

    @property
    def is_slave(self) -> bool:
        """Whether it has what its master has, and nothing of its own."""
        return self.number > 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The stores of a cluster, in the order in which they were given.

    Attributes:
        members: at least one.
    """

    members: tuple[Member, ...]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __getitem__(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(f"no store is named {name}; there are {', '.join(one.name for one in self.members)}")

    def __repr__(self) -> str:
        return "\n".join(f"{one.name}: {self._role(one)}, {one.store.title}" for one in self.members)

    @property
    def masters(self) -> tuple[Member, ...]:
        """Those whose messages count: a slave has its master's once more."""
        return tuple(one for one in self.members if not one.is_slave)

    def pair(self) -> tuple[Member, Member]:
        """The first master with a slave, and that slave.

        Raises:
            StoreError: there is no such pair.
        """
        for slave in self.members:
            for master in self.masters:
                if slave.is_slave and slave.broker is not None and slave.broker == master.broker:
                    return master, slave
        raise StoreError(
            "no master has a slave here",
            expected="two stores with one brokerName in broker.conf, and brokerId=0 in that of the master",
            next_step="Add the slave's store to the list, or choose two by their names",
        )

    def messages(
        self, spark: SparkSession, columns: Sequence[str] = COLUMNS, where: Iterable[Condition] = ()
    ) -> DataFrame:
        """The logs of all masters as one table, with a first column ``broker``.

        Args:
            columns, where: see :func:`reput.source.read`.
        """
        conditions = tuple(where)
        return reduce(
            lambda one, other: one.unionByName(other),
            (log(spark, member, columns, conditions) for member in self.masters),
        )

    def _role(self, member: Member) -> str:
        if not member.is_slave:
            return "a master"
        masters = [one.name for one in self.masters if one.broker == member.broker is not None]
        return f"a slave of {masters[0]}" if masters else "a slave, whose master isn't here"


def open_fleet(workspace: Workspace, named: Iterable[Named] = (), version: str | None = None) -> Fleet:
    """The stores to look at; without any, the fleet that reput has.

    Real brokers of RocketMQ 5.5.0 wrote that one. It is unpacked into the workspace.

    Args:
        workspace: where to unpack it.
        named: name, store and broker.conf of each; the stores are only read.
        version: the RocketMQ release that wrote them; None to use what each shows.

    Raises:
        StoreError: a store or a broker.conf isn't there, or two have the same name.
        SettingsError: a broker.conf can't be read.
    """
    given = list(named)
    if not given:
        unpacked = demo.unpack_fleet(workspace.root / "fleet")
        title = f"comes with reput, written by a broker of RocketMQ {demo.VERSION}"
        return Fleet(
            tuple(
                _member(name, Store(one.root, one.broker_conf, demo.VERSION, title))
                for name, one in unpacked.items()
            )
        )
    names = [name for name, _, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StoreError("two stores have the same name", expected="one name each", found=", ".join(twice))
    members = []
    for name, path, conf in given:
        root = Path(os.path.abspath(path))
        check_store(root, next_step="Check the list of stores")
        settings = None if conf is None else Path(os.path.abspath(conf))
        members.append(_member(name, Store(root, settings, version, f"the store in {root}")))
    return Fleet(tuple(members))


def log(
    spark: SparkSession, member: Member, columns: Sequence[str], where: Iterable[Condition] = ()
) -> DataFrame:
    """The log of one store, with a first column ``broker``: its name."""
    from pyspark.sql import functions as F  # noqa: N812 - as everywhere

    from reput.source import NAME, read

    store = member.store
    options: dict[str, str] = {}
    if store.broker_conf is not None:
        options["brokerConf"] = str(store.broker_conf)
    if store.version is not None:
        options["rocketmqVersion"] = store.version
    frame = read(spark, store.root, columns, where, source=NAME, **options)
    return frame.select(F.lit(member.name).alias("broker"), *columns)


def offsets(fleet: Fleet) -> pd.DataFrame:
    """A row a queue of each store, slaves included, by its files: the log isn't read.

    Returns:
        ``broker``, ``topic``, ``queue``, ``min_offset``, ``max_offset``, ``messages`` (queueOffsets from the
        one to the other), ``last_stored`` (UTC); a broker's own topics left out.
    """
    rows = [
        (member.name, one.topic, one.queue_id, one.min_offset, one.max_offset, one.last_time)
        for member in fleet
        for one in member.store.open().queues()
        if not is_system(one.topic)
    ]
    names = ["broker", "topic", "queue", "min_offset", "max_offset", "last_stored"]
    frame = pd.DataFrame(rows, columns=names).astype({"min_offset": "Int64", "max_offset": "Int64"})
    frame.insert(5, "messages", frame["max_offset"] - frame["min_offset"])
    frame["last_stored"] = pd.to_datetime(frame["last_stored"], unit="ms", utc=True)
    return frame


def queues(messages: DataFrame) -> pd.DataFrame:
    """A row a broker and queue: what the logs have of it, and by how much that is more than its share.

    Args:
        messages: see :meth:`Fleet.messages`; of any length, only the result is collected.

    Returns:
        As :func:`explore.traffic.queues`, with ``broker`` in front; ``times``: its messages by the mean
        of the topic's queues on all brokers. A broker's own topics are left out.
    """
    frame = traffic.queues(messages, by=("broker",))
    frame = frame[~frame["topic"].map(is_system)].reset_index(drop=True)
    frame["times"] = frame["messages"] / frame.groupby("topic")["messages"].transform("mean")
    return frame


def shares(queues: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """What each broker holds of everything, or of each topic.

    Args:
        queues: see :func:`queues`.
        by: ``["topic"]`` for a row a topic and broker.

    Returns:
        ``broker``, ``queues``, ``messages``, ``bytes``, ``share`` and ``share_of_bytes`` (0 to 1); the one
        with the most messages of its topic first.
    """
    columns = [*by, "broker"]
    frame = queues.groupby(columns, as_index=False).agg(
        queues=("queue", "size"), messages=("messages", "sum"), bytes=("bytes", "sum")
    )
    for name, of in (("share", "messages"), ("share_of_bytes", "bytes")):
        total = frame.groupby(list(by))[of].transform("sum") if by else frame[of].sum()
        frame[name] = frame[of] / total
    order = [*by, "messages"]
    return frame.sort_values(order, ascending=[True] * len(by) + [False], ignore_index=True)


def lags(fleet: Fleet, last_stored: pd.Timestamp) -> pd.DataFrame:
    """A row a broker, group, topic and queue: what the group has still to read there. Masters only.

    A retry topic that its group has read is left out.

    Args:
        last_stored: when the last message of all logs was stored; ages are counted to there.

    Returns:
        As :func:`explore.lags.lags`, with ``broker`` in front.
    """
    parts = []
    for member in fleet.masters:
        frame = lags_of.lags(member.store, last_stored)
        frame.insert(0, "broker", member.name)
        parts.append(frame)
    # Pandas doesn't tell types of columns without a row.
    frame = pd.concat([one for one in parts if len(one)] or parts[:1], ignore_index=True)
    return frame[(frame["lag"] > 0) | ~frame["topic"].str.startswith(RETRY)].reset_index(drop=True)


def behind(lags: pd.DataFrame) -> pd.DataFrame:
    """A row a group and topic over all brokers, the one with the most to read first.

    Args:
        lags: see :func:`lags`.

    Returns:
        As :func:`explore.lags.by_group`; ``broker`` (where most of it lies; None with nothing to read),
        ``there`` (its share of the lag, 0 to 1) and ``holds`` (its share of all that the queues ever got).
    """
    frame = lags_of.by_group(lags)
    of_broker = lags.groupby(["group", "topic", "broker"], as_index=False).agg(
        lag=("lag", "sum"), end=("end", "sum")
    )
    ever = of_broker.groupby(["group", "topic"])["end"].transform("sum")
    of_broker["holds"] = of_broker.pop("end") / ever.where(ever > 0)
    most = of_broker.sort_values(["lag", "broker"], ascending=[False, True], kind="stable")
    most = most.drop_duplicates(["group", "topic"]).rename(columns={"lag": "most"})
    frame = frame.merge(most, on=["group", "topic"], how="left")
    some = frame["lag"] > 0
    frame.loc[~some, "broker"] = None
    frame["there"] = (frame["most"] / frame["lag"].where(some)).fillna(0.0)
    return frame.drop(columns="most")


def _member(name: str, store: Store) -> Member:
    values = _conf(store.broker_conf)
    number = values.get("brokerId", "").strip()
    slave = values.get("brokerRole", "").strip() == "SLAVE"
    return Member(name, store, values.get("brokerName"), int(number) if number.isdecimal() else int(slave))


def _conf(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable("broker.conf", path, error) from error
    return {key: one.value for key, one in parse(data, path).items()}
