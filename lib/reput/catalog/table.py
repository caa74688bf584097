"""The Delta table of messages, by the package deltalake: read, and committed to.

Its transaction :data:`APPLICATION` carries the cursor: the physical offset up to which the table holds the
log. Rows and cursor come in one commit, and go in one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from reput.errors import OutputError
from reput.store import files

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

#: The transaction whose version is the cursor.
APPLICATION = "reput-catalog"
#: Messages of one day, UTC, lie together.
DAY = "day"
#: The column that is only there when it is asked for.
BODY = "body"
#: By these a message of the table is known again in the log. Nothing guards queueId and queueOffset there: a
#: flipped bit in them would make another message of it.
KNOWN_BY = ("physicalOffset", "size", "storeTimestamp", "bodyCRC")
_NO_TIME = -(1 << 63)
_HELD = "held"
_LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the table.

    Attributes:
        path: relative to the table.
        day: its messages' day, None for those that have none.
        size: bytes.
        rows: messages.
        last: the greatest physicalOffset in it; None if the table's log doesn't tell.
    """

    path: str
    day: date | None
    size: int
    rows: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is on disk, and that no commit names yet.

    Attributes:
        path: relative to the table.
        day: its messages', as ``YYYY-MM-DD``; None for those that have none.
        size: bytes.
        rows: messages.
        statistics: JSON, as in the table's log.
    """

    path: str
    day: str | None
    size: int
    rows: int
    statistics: str


class Table:
    """A table of messages, or the place where one will be.

    Args:
        path: its directory.

    Attributes:
        cursor: up to which physical offset it holds the log; None when it isn't there yet.

    Raises:
        OutputError: there is a table that can't be read, or isn't one of messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._delta: DeltaTable | None = None
        self._files: list[File] | None = None
        self.cursor: int | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look at its newest version.

        Raises:
            OutputError: as for the class.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        self._files = None
        with self._reported("read"):
            try:
                self._delta = DeltaTable(str(self.path))
            except TableNotFoundError:
                self._delta, self.cursor = None, None
                return
            version = self._delta.transaction_version(APPLICATION)
        if version is None:
            raise OutputError(
                "another table is in the way",
                path=self.path,
                expected=f"a table with the transaction {APPLICATION}, or none",
                found="a Delta table without it",
                next_step="Take another directory",
            )
        self.cursor = int(version)

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
            actions = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        self._files = [
            File(
                path=each["path"],
                day=each[f"partition.{DAY}"],
                size=each["size_bytes"],
                rows=each["num_records"] or 0,
                last=each.get("max.physicalOffset"),
            )
            for each in actions
        ]
        return self._files

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
        found = self._query(f'SELECT max("physicalOffset") AS last FROM {_HELD}')
        return None if found is None else found.column("last")[0].as_py()

    def first(self, start: int) -> int:
        """The least physicalOffset from ``start`` on.

        Raises:
            ValueError: there is no such message.
        """
        where = f'"physicalOffset" >= {start}'
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
        where = f'"physicalOffset" >= {start} AND "physicalOffset" < {end}'
        found = self._query(f'SELECT {names} FROM {_HELD} WHERE {where} ORDER BY "physicalOffset"')
        if found is None:
            raise ValueError("the table isn't there")
        return known_by(found)

    @property
    def is_plain(self) -> bool:
        """Whether a data file has the rows that it seems to have: no deletion vectors, no renamed columns."""
        return self._delta is not None and self._delta.protocol().min_reader_version == 1

    def has(self, files_: Iterable[File]) -> bool:
        """Whether this version consists of these files, among others."""
        return {file.path for file in files_} <= {file.path for file in self.files()}

    def append(self, written: Iterable[Written], cursor: int, schema: pa.Schema) -> None:
        """Add files, and set the cursor, in one commit; on return that is on disk.

        Args:
            schema: of the table, if it has to be made.

        Raises:
            OutputError: the table can't be written; it is as it was.
        """
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        actions = [_add(file, data_change=True) for file in written]
        with self._reported("written"):
            if self._delta is None:
                create_table_with_add_actions(
                    str(self.path),
                    Schema.from_arrow(schema),
                    actions,
                    partition_by=[DAY],
                    commit_properties=_cursor_at(cursor),
                )
            else:
                self._commit(actions, _cursor_at(cursor))
        self._flush()

    def replace(self, old: Iterable[File], new: Iterable[Written]) -> None:
        """Put files in the place of others that have the same rows; on return that is on disk.

        Raises:
            OutputError: the table can't be written; it is as it was.
        """
        from deltalake.transaction import RemoveAction

        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [_add(file, data_change=False) for file in new]
        for file in old:
            day = {DAY: None if file.day is None else file.day.isoformat()}
            actions.append(RemoveAction(file.path, False, now, file.size, day))
        with self._reported("written"):
            self._commit(actions, None)
        self._flush()

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties | None
    ) -> None:
        if self._delta is None:
            raise ValueError("the table isn't there")
        self._delta.create_write_transaction(
            list(actions), "append", self._delta.schema(), [DAY], commit_properties=properties
        )

    def _flush(self) -> None:
        """Look at the newest version, and make the entries of its log durable: deltalake doesn't."""
        self.refresh()
        log = self.path / _LOG
        entry = f"{self.version:020d}"
        for name in (f"{entry}.json", f"{entry}.checkpoint.parquet", "_last_checkpoint"):
            if (log / name).exists():
                files.fsync_path(log / name)
        files.fsync_dir(log)
        files.fsync_dir(self.path)

    def step_back(self, offset: int) -> None:
        """Take the messages from a physical offset on out, and set the cursor there, in one commit.

        Raises:
            OutputError: the table can't be written.
        """
        if self._delta is None:
            raise ValueError("the table isn't there")
        before = {file.path for file in self.files()}
        with self._reported("written"):
            found = self._delta.delete(f'"physicalOffset" >= {offset}', commit_properties=_cursor_at(offset))
            if not found["num_deleted_rows"]:  # then nothing was committed
                self._commit([], _cursor_at(offset))
        self.refresh()
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
        """Tell a failure of the package's as what it is.

        Raises:
            OutputError: in its place.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

        try:
            yield
        except TableNotFoundError:
            raise
        except CommitFailedError as error:
            raise OutputError(
                "another process has changed the table meanwhile",
                path=self.path,
                found=str(error).splitlines()[0],
                next_step="Run the same command again when no other runs",
            ) from error
        except Exception as error:
            # DataFusion raises the plain class.
            if not isinstance(error, DeltaError | OSError) and type(error) is not Exception:
                raise
            found = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise OutputError(
                f"the table can't be {done}",
                path=self.path,
                expected="a Delta table whose files are all there",
                found=found,
                next_step="Restore it to an earlier version, or begin another one in another directory",
            ) from error


def known_by(messages: pa.Table) -> pa.Table:
    """The columns :data:`KNOWN_BY`, comparable: storeTimestamp in ms, the others as int64, nothing null."""
    columns = []
    for name in KNOWN_BY:
        column = messages.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", "UTC"))
        columns.append(column.cast(pa.int64()).fill_null(_NO_TIME))
    return pa.table(columns, names=list(KNOWN_BY))


def _add(file: Written, *, data_change: bool) -> AddAction:
    from deltalake.transaction import AddAction

    now = int(time.time() * 1000)
    return AddAction(file.path, file.size, {DAY: file.day}, now, data_change, file.statistics)


def _cursor_at(offset: int) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(APPLICATION, offset)])
