"""The Delta table of messages, by the package deltalake: read, and committed to.

A transaction carries the cursor: the physical offset up to which the table holds the log. Rows and cursor
come in one commit, and go in one. So do the ranges before it that the table lacks, by the number of their
file (:mod:`reput.catalog.lacking`). A table of one store has the transaction :data:`APPLICATION`; one of many
has :data:`LAKE`, the columns of :class:`reput.catalog.table.Broker`, and a transaction for each.

A commit is made for the version that follows the one that was looked at, or not at all. Where another writer
was faster, this one looks again, and tries again if nothing has changed that is its own. That is left to
nobody else: deltalake's own tries take two commits that remove one file both for good.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from reput.catalog.lacking import LackingFiles, Ranges, before_offset
from reput.config.broker_conf import BrokerConf, read
from reput.config.settings import StoreSettings
from reput.errors import OutputError, RemoteStoreError, SettingsError
from reput.remote.client import allows_http, in_few_words, is_url, url_of
from reput.store import files
from reput.store.delta_log import flush_log, is_deltalakes
from reput.store.system import shortage_in

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction


#: The columns of a table of many stores that say whose message it is.
CLUSTER, BROKER = "cluster", "broker"
_KEYS = {CLUSTER: "brokerClusterName", BROKER: "brokerName"}
#: What can stand in SQL, in a line for people and in a URL's query without harm.
_NAME = re.compile(r"""[^\x00-\x20'"\\\x7f-\xa0\ud800-\udfff]{1,127}""")
_NOT_IN_PATHS = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of a cluster."""

    cluster: str  # ``brokerClusterName``
    name: str  # ``brokerName``

    def __str__(self) -> str:
        return f"{self.name} of {self.cluster}"

    @property
    def application(self) -> str:
        """The Delta transaction whose version is the cursor of this broker's log."""
        return f"reput-catalog/{quote(self.cluster, safe='')}/{quote(self.name, safe='')}"

    @property
    def directory(self) -> str:
        """Where its files lie, relative to the table. Only the table's log says for sure whose a file is."""
        cluster, name = (_NOT_IN_PATHS.sub("_", one) for one in (self.cluster, self.name))
        return f"{CLUSTER}={cluster}/{BROKER}={name}"

    @property
    def digest(self) -> str:
        """A name for files about it."""
        return hashlib.sha256(self.application.encode()).hexdigest()[:16]

    def to_columns(self) -> dict[str, str]:
        """Its values of :data:`CLUSTER` and :data:`BROKER`."""
        return {CLUSTER: self.cluster, BROKER: self.name}


def broker_of(settings: StoreSettings, cluster: str | None, broker: str | None) -> Broker:
    """Whose a store is: what was said, or what its broker.conf says, and never a default."""
    path = settings.broker_conf
    conf = BrokerConf({} if path is None else read(path), path, settings.dialect)
    names = []
    for column, said in ((CLUSTER, cluster), (BROKER, broker)):
        key = _KEYS[column]
        found = conf.text(key) or None
        if said is not None and found is not None and said != found:
            raise SettingsError(
                f"{key} isn't what was said of the store",
                path=path,
                expected=said,
                found=found,
                next_step=f"Leave --{column} out, or give the broker.conf of this store's broker",
            )
        name = found if said is None else said
        if name is None:
            raise SettingsError(
                f"nothing says which {column} the store is of",
                path=settings.root if path is None else path,
                expected=f"{key} in broker.conf, --{column}, or {column} in stores.toml",
                found="no broker.conf" if path is None else f"no {key}",
                next_step="Give it: a default would put two brokers' messages under one name",
            )
        if _NAME.fullmatch(name) is None:
            raise SettingsError(
                f"the {column} has a name that the table can't have",
                path=path,
                expected="up to 127 characters, no blanks, quotes, backslashes or control characters",
                found=repr(name),
                next_step=f"Say it with --{column}, and leave broker.conf's out"
                if said is None
                else "Give another",
            )
        names.append(name)
    return Broker(*names)


#: The transaction whose version is the cursor.
APPLICATION = "reput-catalog"
#: The transaction of a table of many stores; its version is that of what such a table holds.
LAKE, _LAKE_VERSION = "reput-lake", 1
#: Messages of one day, UTC, lie together.
DAY = "day"
#: The column that is only there when it is asked for.
BODY = "body"
#: By these a message of the table is known again in the log. Nothing guards queueId and queueOffset there: a
#: flipped bit in them would make another message of it.
KNOWN_BY = ("physicalOffset", "size", "storeTimestamp", "bodyCRC")
#: The broker's that wrote it.
HOST = "storeHost"
_NO_TIME = -(1 << 63)
_HELD = "held"
#: Colours and arrows, with which deltalake shows what has caused an error.
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|↳")
#: How often a commit is tried while others are faster, and the longest wait in between, seconds.
_TRIES, _LONGEST_WAIT = 60, 2.0
#: Conditional writes whatever the environment says of S3, and tries that end.
_S3_OPTIONS = {"aws_s3_allow_unsafe_rename": "false", "conditional_put": "etag"}
_OPTIONS = {"max_retries": "4", "retry_timeout": "60s", "timeout": "60s", "connect_timeout": "10s"}


@dataclass(frozen=True, slots=True)
class File:
    """A file of the table."""

    path: str  # relative to the table
    day: date | None  # its messages' day, None for those that have none
    size: int  # bytes
    rows: int  # messages
    last: int | None  # the greatest physicalOffset in it; None if the table's log doesn't tell


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is on disk, and that no commit names yet."""

    path: str  # relative to the table
    day: str | None  # its messages', as ``YYYY-MM-DD``; None for those that have none
    size: int  # bytes
    rows: int  # messages
    statistics: str  # JSON, as in the table's log


class Table:
    """A table of messages, or the place where one will be; raises OutputError where another table is there.

    ``broker``: whose rows are meant, in a table of many stores; None for a table of one store. With
    ``either``, only its kind is asked for, so that none is refused. ``path`` is, for one in an object store,
    what ``Path`` makes of the URL. ``is_many`` and ``cursor``, the physical offset up to which it holds the
    log, are None when there is nothing yet. ``named`` are the files that this object has put into a commit,
    whatever became of that.
    """

    def __init__(self, path: Path, broker: Broker | None = None, *, either: bool = False) -> None:
        self.path = path
        self.broker = broker
        self.is_many: bool | None = None
        self._either = either
        self.is_remote = is_url(path)
        self.url = url_of(path) if self.is_remote else str(path)
        self._delta: DeltaTable | None = None
        self._files: list[File] | None = None
        self._flushed: int | None = None
        self.cursor: int | None = None
        self.named: set[str] = set()
        self._lacking = LackingFiles(
            path, self.url if self.is_remote else None, "one" if broker is None else broker.digest
        )
        self._lacks: tuple[int, Ranges] = 0, ()
        self._old: list[str] = []
        self.refresh()

    def refresh(self) -> None:
        """Look at its newest version."""
        from deltalake.exceptions import TableNotFoundError

        self._files = None
        with self._reported("read"):
            try:
                self._load()
            except TableNotFoundError:
                self._delta, self.is_many, self.cursor = None, None, None
                return
            one = self._transaction(APPLICATION)
            self.is_many = self._transaction(LAKE) is not None
        if one is None and not self.is_many:
            raise OutputError(
                "another table is in the way",
                path=self.url,
                expected=f"a table with the transaction {APPLICATION} or {LAKE}, or none",
                found="a Delta table without it",
                next_step="Take another directory",
            )
        if self.is_many != (self.broker is not None) and not self._either:
            raise OutputError(
                "the table was begun otherwise",
                path=self.url,
                expected="a table of many stores" if self.broker else "a table of one store",
                found="one of many stores" if self.is_many else "one of one store",
                next_step="Take another directory",
            )
        self.cursor = one if self.broker is None else self._transaction(self.broker.application)

    def _load(self) -> None:
        from deltalake import DeltaTable

        if self.is_remote and self._delta is not None:
            self._delta.update_incremental()
        else:
            self._delta = DeltaTable(self.url, storage_options=self._options)

    def _transaction(self, application: str) -> int | None:
        version = None if self._delta is None else self._delta.transaction_version(application)
        return None if version is None else int(version)

    @property
    def _options(self) -> dict[str, str] | None:
        """What deltalake is told of the object store; credentials are the environment's."""
        if not self.is_remote:
            return None
        http = {"allow_http": "true"} if allows_http() else {}
        return {**_OPTIONS, **http, **(_S3_OPTIONS if self.url.startswith("s3") else {})}

    @property
    def version(self) -> int:
        """The table's version, -1 when it isn't there."""
        return -1 if self._delta is None else self._delta.version()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns; none when it isn't there."""
        return () if self._delta is None else tuple(field.name for field in self._delta.schema().fields)

    def files(self) -> list[File]:
        """The files of this version."""
        if self._delta is None:
            return []
        if self._files is not None:
            return self._files
        with self._reported("read"):
            actions = pa.table(self._delta.get_add_actions(flatten=True))
            for column, value in self._whose.items():
                actions = actions.filter(pc.equal(actions.column(f"partition.{column}"), value))
            wanted = ("path", f"partition.{DAY}", "size_bytes", "num_records", "max.physicalOffset")
            actions = actions.select([name for name in wanted if name in actions.column_names])
        self._files = [
            File(
                # As in the log's JSON, where what deltalake itself writes for a name like a:b is escaped.
                path=unquote(each["path"]),
                day=each[f"partition.{DAY}"],
                size=each["size_bytes"],
                rows=each["num_records"] or 0,
                last=each.get("max.physicalOffset"),
            )
            for each in actions.to_pylist()
        ]
        return self._files

    @property
    def state(self) -> tuple[int | None, frozenset[str]]:
        """What stays the same as long as nobody has changed these messages."""
        return self.cursor, frozenset(file.path for file in self.files())

    def brokers(self) -> list[Broker]:
        """Whose messages a table of many stores holds."""
        if self._delta is None:
            return []
        with self._reported("read"):
            actions = pa.table(self._delta.get_add_actions(flatten=True))
            whose = actions.select([f"partition.{CLUSTER}", f"partition.{BROKER}"]).to_pylist()
        return sorted(
            {Broker(*one.values()) for one in whose if None not in one.values()},
            key=lambda one: (one.cluster, one.name),
        )

    def newest_day(self) -> date | None:
        """The last day that a table has messages of, whoever's; None without any."""
        if self._delta is None:
            return None
        with self._reported("read"):
            days = pa.table(self._delta.get_add_actions(flatten=True)).column(f"partition.{DAY}")
        newest: date | None = pc.max(days).as_py()
        return newest

    @property
    def _whose(self) -> dict[str, str]:
        return {} if self.broker is None else self.broker.to_columns()

    @property
    def _partitioned_by(self) -> list[str]:
        return [*self._whose, DAY]

    def _where(self, *conditions: str) -> str:
        """A condition in SQL for this store's rows."""
        whose = [f"\"{column}\" = '{value}'" for column, value in self._whose.items()]
        return " AND ".join([*whose, *conditions]) or "true"

    @property
    def messages(self) -> int:
        """How many it holds, by what its log says of its files; rows behind deletion vectors count."""
        return sum(file.rows for file in self.files())

    def last(self) -> int | None:
        """The greatest physicalOffset; None when there is no message."""
        known = [file.last for file in self.files() if file.rows]
        told = [last for last in known if last is not None]
        if len(told) == len(known):
            return max(told, default=None)
        found = self._query(f'SELECT max("physicalOffset") AS last FROM {_HELD} WHERE {self._where()}')
        return None if found is None else found.column("last")[0].as_py()

    def first(self, start: int) -> int:
        """The least physicalOffset from ``start`` on; ValueError where there is no such message."""
        where = self._where(f'"physicalOffset" >= {start}')
        found = self._query(f'SELECT min("physicalOffset") AS first FROM {_HELD} WHERE {where}')
        first = None if found is None else found.column("first")[0].as_py()
        if first is None:
            raise ValueError(f"the table holds nothing from {start} on")
        return int(first)

    def between(self, start: int, end: int) -> pa.Table:
        """The messages with a physicalOffset in [start, end), in its order, by :data:`KNOWN_BY`.

        storeTimestamp is in ms since the epoch, int64.
        """
        names = ", ".join(f'"{name}"' for name in KNOWN_BY)
        where = self._where(f'"physicalOffset" >= {start}', f'"physicalOffset" < {end}')
        found = self._query(f'SELECT {names} FROM {_HELD} WHERE {where} ORDER BY "physicalOffset"')
        if found is None:
            raise ValueError("the table isn't there")
        return known_by(found)

    def holder_of(self, message: pa.Table) -> Broker | None:
        """Under whose name a table of many stores holds a message; None when it doesn't.

        ``message`` is one row of the log, with the columns :data:`KNOWN_BY` and :data:`HOST`.
        """
        place, host = message.column(KNOWN_BY[0])[0].as_py(), message.column(HOST)[0].as_py()
        everyone = Table(self.path, either=True)
        names = ", ".join(f'"{name}"' for name in (CLUSTER, BROKER, HOST, *KNOWN_BY))
        found = everyone._query(f'SELECT {names} FROM {_HELD} WHERE "physicalOffset" = {place}')
        if found is None or not len(found):
            return None
        [wanted] = known_by(message).to_pylist()
        for row, known in zip(found.to_pylist(), known_by(found).to_pylist(), strict=True):
            if known == wanted and row[HOST] == host:
                return Broker(row[CLUSTER], row[BROKER])
        return None

    def told_of(self, place: int) -> tuple[str, str]:
        """Topic and storeHost of the message at a physicalOffset, for people."""
        where = self._where(f'"physicalOffset" = {place}')
        found = self._query(f'SELECT "topic", "{HOST}" FROM {_HELD} WHERE {where}')
        if found is None or not len(found):
            raise ValueError(f"the table holds nothing at {place}")
        return str(found.column("topic")[0].as_py()), str(found.column(HOST)[0].as_py())

    @property
    def is_plain(self) -> bool:
        """Whether a data file has the rows that it seems to have: no deletion vectors, no renamed columns."""
        return self._delta is not None and self._delta.protocol().min_reader_version == 1

    def has(self, files_: Iterable[File]) -> bool:
        """Whether this version consists of these files, among others."""
        return {file.path for file in files_} <= {file.path for file in self.files()}

    def append(
        self,
        written: Iterable[Written],
        cursor: int,
        schema: pa.Schema,
        still: Callable[[], None] = lambda: None,
        lacks: Ranges | None = None,
    ) -> None:
        """Add files, and set the cursor, in one commit; on return that is on disk.

        ``schema`` is for a table that has to be made. ``still`` is called before each try that follows the
        first; it raises if nothing shall be written any more. After an error the table is as it was.
        ``lacks`` None leaves :attr:`lacks`.
        """
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import create_table_with_add_actions

        actions = [self._add(file, data_change=True) for file in written]
        with self._reported("written"):
            if self._delta is None:
                try:
                    create_table_with_add_actions(
                        self.url,
                        Schema.from_arrow(schema),
                        actions,
                        partition_by=self._partitioned_by,
                        storage_options=self._options,
                        commit_properties=self._at(cursor, lacks),
                    )
                except DeltaError:
                    self.refresh()
                    # Another store's run has made it, or an answer was lost.
                    if self.broker is None or self.version < 0:
                        raise
                    if set(self.columns) != set(schema.names):
                        raise OutputError(
                            "another run has begun the table otherwise",
                            path=self.url,
                            expected=f"the columns {', '.join(schema.names)}",
                            found=", ".join(self.columns),
                            next_step="Run it as the table was begun, or take another directory",
                        ) from None
                    if not self._has_all(actions):
                        self._check_cursor(None)
                        still()
                        self._commit(actions, cursor, still, lacks=lacks)
            else:
                self._commit(actions, cursor, still, lacks=lacks)
        self._flush()

    def replace(
        self,
        old: Iterable[File],
        new: Iterable[Written],
        still: Callable[[], None] = lambda: None,
    ) -> None:
        """Put files in the place of others that have the same rows; on return that is on disk.

        After an error, as where it hasn't these files any more, the table is as it was.
        """
        old = list(old)
        added: list[AddAction | RemoveAction] = [self._add(file, data_change=False) for file in new]
        with self._reported("written"):
            self._commit([*added, *self._removed(old, data_change=False)], self.cursor, still, old)
        self._flush()

    def remove(self, old: Iterable[File], still: Callable[[], None] = lambda: None) -> None:
        """Take files with their rows out, in one commit; on return that is on disk."""
        old = list(old)
        with self._reported("written"):
            self._commit(self._removed(old, data_change=True), self.cursor, still, old)
        self._flush()

    def touch(self, still: Callable[[], None]) -> None:
        """Make a commit that changes nothing: what was under way for an earlier version can't be made now."""
        with self._reported("written"):
            self._commit([], self.cursor, still)
        self._flush()

    def vacuum(self) -> int:
        """Remove the files that were taken out of the table more than a week ago; how many.

        Those that no version ever named are left: a run may be about to name them.
        """
        if self._delta is None:
            return 0
        with self._reported("written"):
            removed = self._delta.vacuum(dry_run=False)
        self._flush()
        return len(removed)

    def _commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        cursor: int | None,
        still: Callable[[], None] = lambda: None,
        needed: Sequence[File] = (),
        lacks: Ranges | None = None,
    ) -> None:
        """Commit for the version after this one; again after others', if that doesn't concern this store."""

        def commit(delta: DeltaTable) -> None:
            delta.create_write_transaction(
                list(actions),
                "append",
                delta.schema(),
                self._partitioned_by,
                commit_properties=self._at(cursor, lacks),
            )

        def done() -> bool:
            there = {file.path for file in self.files()}
            gone = all(file.path not in there for file in needed)
            # A commit without files shows in the cursor, if it moves that.
            is_seen = bool(actions) or self.cursor == cursor != before
            return is_seen and self._has_all(actions) and gone

        before = self.cursor
        self._insist(commit, done, still, needed)

    def _insist(
        self,
        commit: Callable[[DeltaTable], object],
        done: Callable[[], bool],
        still: Callable[[], None],
        needed: Sequence[File] = (),
    ) -> None:
        """Try a commit until it is made.

        ``done`` tells of the version that is there whether it was made, and only its answer was lost.
        """
        from deltalake.exceptions import CommitFailedError

        before = self.cursor
        for tried in range(_TRIES):
            if self._delta is None:
                raise ValueError("the table isn't there")
            try:
                commit(self._delta)
                return
            except CommitFailedError:
                if tried == _TRIES - 1:
                    raise
            time.sleep(random.uniform(0, min(0.02 * 2**tried, _LONGEST_WAIT)))
            self.refresh()
            if done():
                return
            self._check_cursor(before)
            if not self.has(needed):
                raise OutputError(
                    "somebody has changed the table meanwhile",
                    path=self.url,
                    expected="the files that are to be replaced",
                    found="a table without some of them",
                    next_step="Run the same command again",
                )
            still()

    def _check_cursor(self, expected: int | None) -> None:
        if self.cursor != expected:
            raise OutputError(
                "another run has written to the table meanwhile",
                path=self.url,
                expected="nothing of this store" if expected is None else f"messages up to {expected}",
                found="nothing" if self.cursor is None else f"up to {self.cursor}",
                next_step="Run the same command again when no other runs",
            )

    def _has_all(self, actions: Iterable[AddAction | RemoveAction]) -> bool:
        from deltalake.transaction import AddAction

        added = {action.path for action in actions if isinstance(action, AddAction)}
        return added <= {file.path for file in self.files()}

    def _add(self, file: Written, *, data_change: bool) -> AddAction:
        from deltalake.transaction import AddAction

        self.named.add(file.path)
        now = int(time.time() * 1000)
        values: dict[str, str | None] = {**self._whose, DAY: file.day}
        return AddAction(file.path, file.size, values, now, data_change, file.statistics)

    def _removed(self, old: Iterable[File], *, data_change: bool) -> list[RemoveAction]:
        from deltalake.transaction import RemoveAction

        now = int(time.time() * 1000)
        return [
            RemoveAction(
                file.path,
                data_change,
                now,
                file.size,
                {**self._whose, DAY: None if file.day is None else file.day.isoformat()},
            )
            for file in old
        ]

    @property
    def lacks(self) -> Ranges:
        """The ranges of the log before the cursor that couldn't be read when it came by, in log order."""
        number = self._transaction(self._lacks_application) or 0
        if number != self._lacks[0]:
            self._lacks = number, self._lacking.read(number)
        return self._lacks[1]

    @property
    def _lacks_application(self) -> str:
        """The transaction whose version is the number of the file with :attr:`lacks`."""
        return f"{APPLICATION if self.broker is None else self.broker.application}//lacking"

    def _at(self, cursor: int | None, lacks: Ranges | None = None) -> CommitProperties:
        """The transactions of a commit, that is made for the next version or not at all."""
        from deltalake import CommitProperties, Transaction

        made = []
        if lacks is not None and lacks != self.lacks:
            # Seen before the commit: what another run writes that takes over later stays.
            self._old = self._lacking.names()
            made.append(Transaction(self._lacks_application, self._lacking.write(lacks)))
        if self.broker is not None and self._delta is None:
            made.append(Transaction(LAKE, _LAKE_VERSION))
        if cursor is not None:
            application = APPLICATION if self.broker is None else self.broker.application
            made.append(Transaction(application, cursor))
        return CommitProperties(app_transactions=made, max_commit_retries=0)

    def _flush(self) -> None:
        """Look at the newest version, and make the entries of its log durable: deltalake doesn't."""
        self.refresh()
        if not self.is_remote:
            self._flushed = flush_log(self.path, self._flushed)
        if self._old:  # only now: what an earlier version needed, nobody needs any more
            with suppress(OutputError, RemoteStoreError):  # else the next commit does it
                self._lacking.clean(self._old, self._transaction(self._lacks_application) or 0)
                self._old = []

    def step_back(self, offset: int, still: Callable[[], None] = lambda: None) -> None:
        """Take the messages from a physical offset on out, and set the cursor there, in one commit."""
        if self._delta is None:
            raise ValueError("the table isn't there")
        before = {file.path for file in self.files()}
        cursor = self.cursor
        where = self._where(f'"physicalOffset" >= {offset}')

        def delete(delta: DeltaTable) -> None:
            at = self._at(offset, before_offset(self.lacks, offset))
            found = delta.delete(where, commit_properties=at)
            if not found["num_deleted_rows"]:  # then nothing was committed
                delta.create_write_transaction(
                    [], "append", delta.schema(), self._partitioned_by, commit_properties=at
                )

        with self._reported("written"):
            self._insist(delete, lambda: self.cursor == offset != cursor, still)
        self.refresh()
        if not self.is_remote:
            # What deltalake has written anew, it hasn't flushed.
            made = [self.path / file.path for file in self.files() if file.path not in before]
            for path in made:
                files.fsync_path(path)
            for directory in {path.parent for path in made}:
                files.fsync_dir(directory)
        self._flush()

    def _query(self, text: str) -> pa.Table | None:
        """What DataFusion answers; None when there is no table or no message in it."""
        from deltalake import QueryBuilder

        if self._delta is None or not self.files():
            return None
        with self._reported("read"):
            return pa.table(QueryBuilder().register(_HELD, self._delta).execute(text).read_all())

    @contextmanager
    def _reported(self, done: str) -> Iterator[None]:
        """Turn a failure of the package's into an OutputError."""
        from deltalake.exceptions import CommitFailedError, TableNotFoundError

        try:
            yield
        except TableNotFoundError:
            raise
        except CommitFailedError as error:
            raise OutputError(
                "another process has changed the table meanwhile",
                path=self.url,
                found=self._words(error),
                next_step="Run the same command again when no other runs",
            ) from self._cause(error)
        except Exception as error:
            if not is_deltalakes(error):
                raise
            if self.is_remote:
                raise RemoteStoreError(
                    f"the table can't be {done}",
                    path=self.url,
                    found=self._words(error),
                    next_step="Check the network, the server, the URL and the credentials in the environment "
                    "(docs/catalog.md), then run the same command again",
                ) from None
            raise shortage_in(str(error), [self.path]) or OutputError(
                f"the table can't be {done}",
                path=self.path,
                expected="a Delta table whose files are all there",
                found=self._words(error),
                next_step="Restore it to an earlier version, or begin another one in another directory",
            ) from error

    def _words(self, error: Exception) -> str:
        lines = [_DECORATION.sub("", line).strip() for line in str(error).splitlines()] or [""]
        if not self.is_remote:
            return lines[0] or type(error).__name__
        words = in_few_words(error)
        # Without an answer of the server's, the last line has the cause.
        return f"{words}: {lines[-1][:200]}" if len(lines) > 1 and words.strip() == lines[0] else words

    def _cause(self, error: Exception) -> Exception | None:
        """What is shown of an error's origin: an object store's has the key's id and signatures in it."""
        return None if self.is_remote else error


def known_by(messages: pa.Table) -> pa.Table:
    """The columns :data:`KNOWN_BY`, comparable: storeTimestamp in ms, the others as int64, nothing null."""
    columns = []
    for name in KNOWN_BY:
        column = messages.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", "UTC"))
        columns.append(column.cast(pa.int64()).fill_null(_NO_TIME))
    return pa.table(columns, names=list(KNOWN_BY))
