"""The history of a fleet's checks: a Delta table with a row per store and run, and what was proven.

A run's row for a store is its commit point. It names the file of proofs that was written before it, so that
both count or neither; a transaction per store keeps a run that goes on after a kill from adding another one.

DIR/runs/          the table
DIR/proofs/        a file per store, named by its last row
DIR/run.json       the run that is under way
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from reput.errors import OutputError, ReputError, SettingsError
from reput.format import names
from reput.job.many import Place
from reput.newer_python import UTC, Self
from reput.store import files
from reput.store.delta_log import flush_log, is_deltalakes
from reput.store.lock import OutputLock
from reput.store.reading import read_file
from reput.verify.proven import Proofs

if TYPE_CHECKING:
    from deltalake import DeltaTable

RUNS, PROOFS, RUN = "runs", "proofs", "run.json"
#: A run that began longer ago isn't continued: its stores have changed since.
CONTINUED_SECONDS = 12 * 3600
#: Files of the table that are merged when there are more.
_MOST_FILES = 200
_SUFFIX = ".json.gz"
_BEGIN_ANEW = "Run it once with --all: then all is compared again"

FINDING = pa.struct(
    [
        pa.field("kind", pa.string()),
        pa.field("area", pa.string()),
        pa.field("said", pa.string()),
        pa.field("path", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("count", pa.int64()),
        pa.field("first_seen", pa.string()),
    ]
)
#: The table's columns; docs/data/columns.md explains them.
SCHEMA = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("cluster", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("place", pa.string()),
        pa.field("verdict", pa.string()),
        pa.field("exit_code", pa.int32()),
        pa.field("summary", pa.string()),
        pa.field("next_steps", pa.list_(pa.string())),
        pa.field("findings", pa.int64()),
        pa.field("finding_list", pa.list_(FINDING)),
        pa.field("messages", pa.int64()),
        pa.field("log_start", pa.int64()),
        pa.field("log_end", pa.int64()),
        pa.field("growth", pa.int64()),
        pa.field("lag", pa.int64()),
        pa.field("segments", pa.int64()),
        pa.field("segments_skipped", pa.int64()),
        pa.field("bytes_read", pa.int64()),
        pa.field("bytes_skipped", pa.int64()),
        pa.field("requests", pa.int64()),
        pa.field("bytes_fetched", pa.int64()),
        pa.field("seconds", pa.float64()),
        pa.field("proofs", pa.string()),
    ]
)
Row = dict[str, Any]


class History:
    """A history that this process alone writes to. A context manager.

    ``run`` is the name of a new run, or (``is_continued``) that of one that didn't come to its end.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory).absolute()
        self.run = ""
        self.began_ms = 0
        self.is_continued = False
        self._lock = OutputLock(self.directory)
        self._delta: DeltaTable | None = None
        self._flushed: int | None = None

    def __enter__(self) -> Self:
        self._refuse_others()
        files.make_dirs(self.directory)
        self._lock.acquire()
        try:
            files.make_dirs(self.directory / PROOFS)
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _refuse_others(self) -> None:
        """Refuse a directory that something else lies in."""
        ours = {RUNS, PROOFS, RUN, f".{RUN}.tmp", names.REPUT}
        try:
            found = {one.name for one in self.directory.iterdir()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(
                "the history can't be read", path=self.directory, found=error.strerror or str(error)
            ) from error
        if found - ours:
            raise OutputError(
                "this directory holds something else",
                path=self.directory,
                expected="a directory of its own for --history",
                found=min(found - ours),
                next_step="Name another directory",
            )

    def begin(self, how: str = "") -> None:
        """Begin a run, or go on with one that was killed.

        ``how`` says what is asked of it; one that something else was asked of isn't continued.
        """
        now = int(time.time() * 1000)
        path = self.directory / RUN
        try:
            known = json.loads(read_file(path))
            self.run, self.began_ms = str(known["run"]), int(known["began_ms"])
            is_recent = 0 <= now - self.began_ms < CONTINUED_SECONDS * 1000
            self.is_continued = is_recent and known["how"] == how
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            pass  # none, or not written to its end
        if not self.is_continued:
            began = datetime.fromtimestamp(now / 1000, UTC)
            self.run, self.began_ms = f"{began:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}", now
            note = json.dumps({"run": self.run, "began_ms": now, "how": how})
            files.write_atomically(path, note.encode())
        self._sweep()

    def end(self) -> None:
        """All stores have their rows."""
        self._merge()
        files.remove_files([self.directory / RUN])

    # --- rows ----------------------------------------------------------------------------------------------

    def done(self, place: Place) -> Row | None:
        """The row that this run has of a store already."""
        if self._delta is None or self._transaction(place) != self.began_ms:
            return None
        found = self._rows(f"run = '{self.run}' AND place = {_quoted(str(place))}")
        return found[-1] if found else None

    def last(self, place: Place) -> Row | None:
        """The last row of a store that wasn't refused."""
        where = f"place = {_quoted(str(place))} AND exit_code <> 2"
        found = self._rows(where, "ORDER BY time DESC LIMIT 1")
        return found[0] if found else None

    def rows(self, places: Iterable[Place], most: int) -> list[Row]:
        """The rows of some stores, in the order of time; of each the last ``most``."""
        wanted = ", ".join(_quoted(str(place)) for place in places)
        ranked = (
            "SELECT *, row_number() OVER (PARTITION BY place ORDER BY time DESC) AS age "
            f"FROM runs WHERE place IN ({wanted})"
        )
        found = self._query(f"SELECT * FROM ({ranked}) WHERE age <= {most} ORDER BY time")
        for row in found:
            del row["age"]
        return found

    def add(self, place: Place, row: Row, proofs: Proofs | None, before: str | None) -> Row:
        """Commit a store's row; on return that is on disk. After an error neither row nor proofs count.

        Without ``proofs`` nothing was proven now, and those of the file ``before``, which the run began with,
        stay.
        """
        from deltalake import CommitProperties, Transaction, write_deltalake

        name = before
        if proofs is not None:
            name = f"{_key(place)}-{self.run}{_SUFFIX}"
            files.write_atomically(self.directory / PROOFS / name, proofs.encode())
        row = {**row, "run": self.run, "place": str(place), "proofs": name, "time": self._time(place, row)}
        known = [] if self._delta is None else self._delta.file_uris()
        with self._reported("written"):
            write_deltalake(
                str(self._table),
                pa.Table.from_pylist([row], SCHEMA),
                mode="append",
                schema_mode="merge",  # columns that an earlier release didn't have
                name="reput check",
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(_key(place), self.began_ms)]
                ),
            )
        self._open()
        self._flush(known)
        return row

    def _time(self, place: Place, row: Row) -> datetime:
        """A row's time: after that of the store's row before, for a clock may have been ahead."""
        found = self._query(f"SELECT max(time) AS last FROM runs WHERE place = {_quoted(str(place))}")
        last: datetime | None = found[0]["last"] if found else None
        time_: datetime = row["time"]
        return time_ if last is None else max(time_, last + timedelta(microseconds=1))

    def proofs(self, row: Row | None) -> Proofs | None:
        """What a row's run has proven."""
        name = None if row is None else row["proofs"]
        if name is None:
            return None
        path = self.directory / PROOFS / name
        try:
            return Proofs.decode(read_file(path), path, _BEGIN_ANEW, any_format=True)
        except OSError as error:
            raise SettingsError(
                "what was proven before can't be read",
                path=path,
                expected="the file that the history's last row of this store names",
                found=error.strerror or str(error),
                next_step=_BEGIN_ANEW,
            ) from error

    # --- the table -----------------------------------------------------------------------------------------

    @property
    def _table(self) -> Path:
        return self.directory / RUNS

    def _open(self) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self._reported("read"):
            try:
                self._delta = DeltaTable(str(self._table))
            except TableNotFoundError:
                self._delta = None

    def _transaction(self, place: Place) -> int | None:
        return None if self._delta is None else self._delta.transaction_version(_key(place))

    def _rows(self, where: str, then: str = "ORDER BY time") -> list[Row]:
        return self._query(f"SELECT * FROM runs WHERE {where} {then}")

    def _query(self, text: str) -> list[Row]:
        from deltalake import QueryBuilder

        if self._delta is None:
            return []
        with self._reported("read"):
            found = QueryBuilder().register("runs", self._delta).execute(text).read_all()
            rows: list[Row] = pa.table(found).to_pylist()
            return rows

    def _flush(self, known: Sequence[str]) -> None:
        """Make what was committed durable: deltalake doesn't."""
        if self._delta is None:
            return
        for uri in set(self._delta.file_uris()) - set(known):
            files.fsync_path(self._table / Path(uri).name)
        self._flushed = flush_log(self._table, self._flushed)
        files.fsync_dir(self.directory)

    def _merge(self) -> None:
        """Merge the table's files when there are many, one for each row."""
        if self._delta is None:
            return
        known = self._delta.file_uris()
        if len(known) <= _MOST_FILES:
            return
        with self._reported("written"):
            self._delta.optimize.compact()
            self._delta.vacuum(dry_run=False)
        self._open()
        self._flush(known)

    def _sweep(self) -> None:
        """Remove proofs that no store's last row names any more: a crash, or a later run, left them."""
        last = (
            "SELECT proofs, row_number() OVER (PARTITION BY place ORDER BY time DESC) AS age FROM runs "
            "WHERE proofs IS NOT NULL"
        )
        named = {row["proofs"] for row in self._query(f"SELECT proofs FROM ({last}) WHERE age = 1")}
        with files.reporting("the history can't be written", self.directory):
            left = [one for one in (self.directory / PROOFS).iterdir() if one.name not in named]
        files.remove_files(left)

    @contextmanager
    def _reported(self, done: str) -> Iterator[None]:
        """Turn a failure of the package's into an OutputError."""
        from deltalake.exceptions import TableNotFoundError

        try:
            yield
        except (TableNotFoundError, ReputError):
            raise
        except Exception as error:
            if not is_deltalakes(error):
                raise
            raise OutputError(
                f"the history can't be {done}",
                path=self._table,
                expected="a Delta table whose files are all there",
                found=str(error).splitlines()[0] if str(error) else type(error).__name__,
                next_step="Restore it, or begin another one in another directory",
            ) from error


def _key(place: Place) -> str:
    """A store's name among files and transactions."""
    return hashlib.sha256(str(place).encode()).hexdigest()[:24]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
