"""A store, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.config.settings import StoreSettings
from reput.config.stand_in import here
from reput.errors import SettingsError, StoreError
from reput.format.names import parse_queue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from reput.diagnosis.check import Diagnosis
    from reput.dump.damage import Damage
    from reput.dump.wanted import Wanted
    from reput.job import Summary
    from reput.lag import LagReport
    from reput.mending import Mended
    from reput.query import Message, QueryStore
    from reput.report.facts import QueueFacts
    from reput.report.queues import TopicList

AnyPath = str | PathLike[str]
#: Milliseconds since 1970, or a time with a time zone.
Time = int | datetime
#: ``"Orders"``, ``"Orders:3"`` or ``("Orders", 3)``.
Queue = str | tuple[str, int | None]


class Store:
    """A store, at rest or with a broker that runs on it; it is only read.

    Nothing is read, and nothing refused, before something is asked. What a start does with a DLedger log
    isn't known to :meth:`check`.

    Args:
        path: its directory, or its URL (docs/remote.md).
        broker_conf: the broker's own configuration file; None for what the store shows.
        rocketmq_version: that wrote it, or is going to start on it; None for what the store shows.
    """

    def __init__(
        self, path: AnyPath, *, broker_conf: AnyPath | None = None, rocketmq_version: str | None = None
    ) -> None:
        self.path = Path(path)
        self.broker_conf = None if broker_conf is None else Path(broker_conf)
        self.rocketmq_version = rocketmq_version

    def __repr__(self) -> str:
        return f"reput.Store({str(self.path)!r})"

    @cached_property
    def settings(self) -> StoreSettings:
        """What broker.conf and the files say: sizes, release, places.

        Raises:
            ReputError: there is no store, or it can't be read, or what was given contradicts itself.
        """
        return StoreSettings.load(
            self._root, self.broker_conf, self.rocketmq_version, dledger=True, rocksdb=True
        )

    def check(
        self,
        spark: SparkSession | None = None,
        *,
        quick: bool = False,
        queues: Iterable[str] = (),
        index: bool = True,
    ) -> Diagnosis:
        """Whether a broker can start, what its start would lose, and what is wrong with queues and index.

        Args:
            spark: a session of :func:`reput.session`, to compare there; None for this host's processes.
            quick: read only what a start reads, and compare nothing.
            queues: ``TOPIC`` or ``TOPIC:ID``; empty for all. With a choice the index isn't looked at.
            index: the index is looked at, too.

        Raises:
            ReputError: the store can't be read, or what was given can't be used.
        """
        from reput.diagnosis.check import check
        from reput.verify.plan import VerifyOptions

        options = VerifyOptions(
            self._root,
            broker_conf=self.broker_conf,
            rocketmq_version=self.rocketmq_version,
            queues=tuple(queues),
            index=index,
        )
        return check(options, None if spark is None else _starter(spark), quick=quick)

    def queues(self) -> list[QueueFacts]:
        """Every queue that has files, by topic and queue id: its min and max offset, files, last time.

        Of the log a record's head is read for each queue.

        Raises:
            ReputError: the store can't be read. Of a queue that can't, ``problem`` says why.
        """
        from reput.broker.snapshot import take
        from reput.log.segments import discover
        from reput.report.queues import queue_facts

        return queue_facts(take(self.settings), discover(self.settings), None, running=True).rows

    def topics(self, topic: str | None = None) -> TopicList:
        """Topics with queue files, or in config/topics.json, those with the most messages first.

        Args:
            topic: only this one.

        Raises:
            ReputError: the store can't be read.
        """
        from reput.report.queues import topic_list

        return topic_list(self.settings, topic)

    def arrow(
        self,
        columns: Iterable[str] | None = None,
        where: Iterable[Sequence[Any]] = (),
        *,
        source: str = "rocketmq-commitlog",
        **options: object,
    ) -> pa.RecordBatchReader:
        """Messages, units of queues or entries of the index as Arrow batches: for pandas, Polars or DuckDB.

        Args:
            columns: their names, in the order wanted; None for all.
            where: conditions that must all hold, e.g. ``("topic", "=", "Orders")``.
            source: ``rocketmq-commitlog``, ``rocketmq-consumequeue`` or ``rocketmq-index``.
            options: of the source, as docs/data/columns.md lists them.

        Raises:
            ReputError: the store can't be read, later also from the reader; or what was given can't be used.
        """
        from reput.source import read_arrow

        own = {"brokerConf": self.broker_conf, "rocketmqVersion": self.rocketmq_version}
        given = {name: value for name, value in own.items() if value is not None}
        return read_arrow(self.path, columns, where, source=source, **{**given, **options})

    def messages(
        self,
        *,
        topic: str | Iterable[str] = (),
        queue: Queue | Sequence[Queue] = (),
        tag: str | None = None,
        key: str | None = None,
        uniq_key: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        start: int = 0,
        end: int | None = None,
        limit: int | None = None,
        damage: Callable[[Damage], object] | None = None,
    ) -> Iterator[Message]:
        """Messages of the commit log, in its order, with the conditions of ``reput dump commitlog``.

        Args:
            topic: one, or several of which any will do.
            queue: as ``topic``; a message may be of a topic or of a queue.
            tag: its tag.
            key: one of its keys, or its UNIQ_KEY.
            uniq_key: its UNIQ_KEY.
            since, until: by storeTimestamp; half open.
            start, end: physical offsets at which records begin; half open.
            limit: how many at most.
            damage: gets what is damaged between them; None to end with an error there.

        Raises:
            StoreError: the log is damaged, or can't be read.
            SettingsError: a condition can't be understood.
        """
        wanted = _wanted(topic, queue, tag, key, uniq_key, since, until)
        return self._messages(wanted, start, end, limit, damage)

    def _messages(
        self,
        wanted: Wanted,
        start: int,
        end: int | None,
        limit: int | None,
        damage: Callable[[Damage], object] | None,
    ) -> Iterator[Message]:
        from reput.dump import places
        from reput.dump.commitlog import MOST_OFFSET, Block, Reader
        from reput.dump.damage import Damage

        place = places.log_place(self._root, self.broker_conf, self.rocketmq_version)
        last = MOST_OFFSET if end is None else end
        reader = Reader(place.settings, entries=place.log.entries, wanted=wanted, start=start, end=last)
        left = limit
        if left is not None and left <= 0:
            return
        for event in reader.log(place.log, followed=place.followed):
            if isinstance(event, Damage):
                if damage is None:
                    raise _damaged(event)
                damage(event)
            elif isinstance(event, Block):
                block = event if left is None else event.first(left)
                yield from block.messages()
                left = None if left is None else left - len(block.rows)
                if left == 0:
                    return

    @cached_property
    def query(self) -> QueryStore:
        """Messages by physical offset, queue offset, time, id and key, as a broker answers.

        Raises:
            ReputError: the store can't be read.
        """
        from reput.query import QueryStore

        return QueryStore(self.settings)

    def lag(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        offsets: AnyPath | None = None,
        now: int | None = None,
    ) -> LagReport:
        """How far consumers are behind, by what they committed.

        Args:
            group, topic: only these.
            offsets: the file of committed offsets; None for ``config/consumerOffset.json``.
            now: ms since 1970 up to which ages count; None for the present if a broker uses the store, else
                for when the log's last message was stored.

        Raises:
            ReputError: the offsets, a queue or the log can't be read.
        """
        from reput.lag import lag

        path = None if offsets is None else Path(offsets)
        return lag(self.settings, group=group, topic=topic, offsets=path, now=now)

    @cached_property
    def _root(self) -> Path:
        return here(self.path, derived=True)


def open(  # noqa: A001 - reput.open, as gzip.open
    path: AnyPath, *, broker_conf: AnyPath | None = None, rocketmq_version: str | None = None
) -> Store:
    """A store that can be read. Its files stay as they are.

    Args:
        path, broker_conf, rocketmq_version: see :class:`Store`.

    Raises:
        ReputError: there is no store, or what was given contradicts itself.
    """
    from reput.store.reading import check_store

    store = Store(path, broker_conf=broker_conf, rocketmq_version=rocketmq_version)
    check_store(store._root.absolute())
    _ = store.settings
    return store


def rebuild(
    path: AnyPath,
    out: AnyPath,
    *,
    spark: SparkSession | None = None,
    broker_conf: AnyPath | None = None,
    rocketmq_version: str | None = None,
    queues: Iterable[str] = (),
    index: bool = True,
) -> Summary:
    """Make consume queues, index files, checkpoint and ledger from a store's commit log.

    A run that was interrupted goes on where it stopped. To replace a store's own files, use the command.

    Args:
        path, broker_conf, rocketmq_version: see :class:`Store`.
        out: the directory to write.
        spark: a session of :func:`reput.session`; None for one that is made, or the one that runs.
        queues: ``TOPIC`` or ``TOPIC:ID``; empty for all.
        index: build index files, too.

    Raises:
        ReputError: refused or failed, with what was there unchanged.
    """
    from reput.job import RebuildOptions
    from reput.job import rebuild as run
    from reput.spark.java import check_spark

    check_spark()
    options = RebuildOptions(
        here(Path(path), derived=False),
        Path(out),
        broker_conf=None if broker_conf is None else Path(broker_conf),
        rocketmq_version=rocketmq_version,
        queues=tuple(queues),
        index=index,
    )
    return run(options, _starter(spark))


def mend(
    path: AnyPath,
    *,
    apply: bool = False,
    replica: AnyPath | None = None,
    spark: SparkSession | None = None,
    broker_conf: AnyPath | None = None,
    rocketmq_version: str | None = None,
) -> Mended:
    """Say what puts a store right, or do it; ``reput undo`` takes it back.

    Args:
        path, broker_conf, rocketmq_version: see :class:`Store`.
        apply: do it, with the broker stopped. A run that was killed is finished, or given up, first.
        replica: a slave, a backup or a copy, to take what is damaged or missing in the log from.
        spark: a session of :func:`reput.session`; None for this host's processes.

    Raises:
        ReputError: refused or failed. What was there is unchanged, or the same call finishes what was begun.
    """
    from reput.job.options import RebuildOptions
    from reput.mending import mend as run

    options = RebuildOptions(
        Path(path),
        broker_conf=None if broker_conf is None else Path(broker_conf),
        rocketmq_version=rocketmq_version,
    )
    return run(
        options,
        None if replica is None else Path(replica),
        apply=apply,
        start_spark=None if spark is None else _starter(spark),
    )


def _starter(spark: SparkSession | None) -> Callable[[], SparkSession]:
    from reput.spark.java import refuse_connect

    refuse_connect()

    def start() -> SparkSession:
        from reput.spark import session

        return session("reput") if spark is None else spark

    return start


def _wanted(
    topic: str | Iterable[str],
    queue: Queue | Sequence[Queue],
    tag: str | None,
    key: str | None,
    uniq_key: str | None,
    since: Time | None,
    until: Time | None,
) -> Wanted:
    from reput.dump.wanted import Wanted

    is_one = isinstance(queue, str) or (len(queue) == 2 and isinstance(queue[1], int | None))
    return Wanted(
        topics=(topic,) if isinstance(topic, str) else tuple(topic),
        queues=tuple(map(_queue, [queue] if is_one else queue)),
        tags=None if tag is None else frozenset({tag}),
        key=key,
        uniq_key=uniq_key,
        since=_ms("since", since),
        until=_ms("until", until),
    )


def _queue(queue: object) -> tuple[str, int | None]:
    match queue:
        case (str() as topic, int() | None as number):
            return topic, number
        case str() if queue:
            return parse_queue(queue)
    raise SettingsError("a queue can't be understood", expected="TOPIC, TOPIC:ID or (topic, id)", found=queue)


def _ms(name: str, time: Time | None) -> int | None:
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise SettingsError(
            f"{name} is a time of no time zone", expected="ms since 1970, or a time with tzinfo", found=time
        )
    return round(time.timestamp() * 1000)


def _damaged(damage: Damage) -> StoreError:
    return StoreError(
        f"the commit log is damaged: {damage.kind}",
        path=damage.path,
        offset=damage.offset,
        expected=damage.expected,
        found=damage.found,
        next_step="To read on behind it, let messages(damage=...) take what is damaged, a list's append say",
    )
