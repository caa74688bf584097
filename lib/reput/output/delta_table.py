"""A Delta table with one writer, which writes every byte through :mod:`reput.store.files`.

Format: the Delta transaction log protocol, reader version 1, writer version 2
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md). The log is ``_delta_log/VERSION.json``, lines of
actions; ``VERSION.checkpoint.parquet`` holds what all of them up to a version add up to.

What a commit names is on disk before the commit is, and after a crash a commit is there whole or not at all.
So nothing has to be repaired: files that no commit names were left by a crash, and :meth:`Table.open` removes
them. The cost of a commit depends on what it adds; nothing is listed or read again while the table is open.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from reput.errors import OutputError
from reput.store import files
from reput.store.delta_log import LAST_CHECKPOINT, LOG, version_of
from reput.store.reading import read_file

#: Seconds for which replaced files stay, for readers that know only these.
RETENTION_SECONDS = 300

_ROWS_IN_GROUP = 1 << 14
_TYPES = {pa.string(): "string", pa.int64(): "long", pa.int32(): "integer"}
_MAP = pa.map_(pa.string(), pa.string())
_CHECKPOINT = {
    "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    "metaData": pa.struct(
        {
            "id": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": _MAP}),
            "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.string()),
            "configuration": _MAP,
            "createdTime": pa.int64(),
        }
    ),
    "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
    "add": pa.struct(
        {
            "path": pa.string(),
            "partitionValues": _MAP,
            "size": pa.int64(),
            "modificationTime": pa.int64(),
            "dataChange": pa.bool_(),
            "stats": pa.string(),
            "tags": _MAP,
        }
    ),
    "remove": pa.struct(
        {
            "path": pa.string(),
            "deletionTimestamp": pa.int64(),
            "dataChange": pa.bool_(),
            "partitionValues": _MAP,
            "size": pa.int64(),
        }
    ),
}


class TableError(OSError):
    """The files aren't those of a table that this writer wrote, or another process wrote to it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the table."""

    name: str  # the file's name, in the table's directory
    size: int  # bytes
    modified: int  # when it was written, ms
    rows: int  # how many it has
    first: int  # first, last: the transaction versions whose rows it has, both included
    last: int
    level: int  # how often its rows were merged from smaller files; only the writer uses it


@dataclass(frozen=True, slots=True)
class _LogFile:
    version: int
    path: Path
    written: int  # ms


class Table:
    """An open table. Commits may come from several threads.

    ``version`` is the last commit's, ``transaction`` the version of the writer's last transaction (0 before
    the first), ``checkpointed`` the last checkpoint's (-1 before the first).
    """

    def __init__(self, path: Path, application: str) -> None:
        self.path = path
        self.version = -1
        self.files: dict[str, DataFile] = {}
        self.transaction = 0
        self.checkpointed = -1
        self._application = application
        self._metadata: dict[str, Any] = {}
        self._removed: dict[str, tuple[int, int]] = {}  # when, ms, and bytes
        self._log: deque[_LogFile] = deque()
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, application: str, schema: pa.Schema) -> Table:
        """Create a table in an empty place; it becomes visible with its first commit."""
        table = cls(path, application)
        files.make_dirs(path / LOG)
        table._metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": _schema_string(schema),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": _now(),
        }
        return table

    @classmethod
    def open(cls, path: Path, application: str, *, clean: bool = True) -> Table | None:
        """The table as described by its log; None where there is no log.

        ``application`` names the writer's transactions. With ``clean``, files that crashes left are removed;
        without it the table is read-only.
        """
        log = path / LOG
        if not log.is_dir():
            return None
        table = cls(path, application)
        names = {entry.name for entry in log.iterdir()}
        kept = sorted((version, name) for name in names if (version := version_of(name)) is not None)
        versions = [version for version, name in kept if name.endswith(".json")]
        checkpoints = [version for version, name in kept if name == _checkpoint_name(version)]
        if not versions and not checkpoints:
            return None
        if checkpoints:
            table._read_checkpoint(checkpoints[-1])
        for version in versions:
            if version > table.version:
                table._read_commit(version)
        if not table._metadata:
            raise TableError(f"{log} names no schema")
        if clean:
            for version, name in kept:
                written = int((log / name).stat().st_mtime * 1000)
                table._log.append(_LogFile(version, log / name, written))
            table._remove_left_over(names)
        return table

    def write(self, rows: pa.Table, first: int, last: int, level: int) -> DataFile:
        """Write a file that no commit names yet; on return it is on disk."""
        with self._written(rows, first, last, level) as (file, fd):
            files.flush_together(lambda flush: flush(), [lambda: files.fsync_file(fd), self._flush_names])
        return file

    def append(self, rows: pa.Table, first: int, last: int, level: int) -> None:
        """Write a file and commit it, with ``last`` as the transaction's version.

        File and entry are flushed at once; the entry gets its name when all that it names is on disk. Raises
        TableError where another process committed.
        """
        with self._written(rows, first, last, level) as (file, fd), self._lock:
            entry = self._entry(self._added(file, last))
            try:
                files.flush_together(
                    lambda flush: flush(), [lambda: files.fsync_file(fd), self._flush_names, entry.flushed]
                )
            except OutputError:
                entry.give_up()
                raise
            self._commit(entry)
            self._take(file, last)

    @contextmanager
    def _written(self, rows: pa.Table, first: int, last: int, level: int) -> Iterator[tuple[DataFile, int]]:
        """A new file with its descriptor, not flushed yet; its name isn't either."""
        buffer = pa.BufferOutputStream()
        compression = "zstd" if level else "snappy"
        pq.write_table(rows, buffer, row_group_size=_ROWS_IN_GROUP, compression=compression)
        data = buffer.getvalue()
        name = f"part-{first:012d}-{last:012d}-{uuid.uuid4()}.parquet"
        with self._unless_failed(name):
            fd = files.create_file(self.path / name, None)
            try:
                files.pwrite_all(fd, data, 0)
                yield DataFile(name, data.size, _now(), rows.num_rows, first, last, level), fd
            finally:
                files.system.close(fd)

    @contextmanager
    def _unless_failed(self, name: str) -> Iterator[None]:
        """Remove a new file when the block fails, unless a commit that is there all the same names it."""
        first = self.version + 1
        try:
            yield
        except Exception:
            with suppress(OSError, OutputError):
                entries = [self._entry_path(version) for version in range(first, self.version + 2)]
                if not entries[-1].exists():
                    entries.pop()
                if not any(name.encode() in read_file(entry) for entry in entries):
                    _unlink(self.path / name)
            raise

    def _flush_names(self) -> None:
        files.fsync_dir(self.path)

    def read(self, file: DataFile, columns: list[str] | None = None) -> pa.Table:
        """A file's rows in the order in which they were written.

        Raises OSError or ArrowException where it isn't what was written.
        """
        return pq.read_table(self.path / file.name, columns=columns, partitioning=None)

    def read_end(self, file: DataFile, count: int) -> pa.Table:
        """A file's last ``count`` rows, without reading much more."""
        with pq.ParquetFile(self.path / file.name) as parquet:
            groups: list[int] = []
            rows = 0
            for group in reversed(range(parquet.num_row_groups)):
                groups.insert(0, group)
                rows += parquet.metadata.row_group(group).num_rows
                if rows >= count:
                    break
            return parquet.read_row_groups(groups).slice(max(rows - count, 0))

    def _added(self, file: DataFile, transaction: int) -> list[dict[str, Any]]:
        """The actions of a commit that adds a file."""
        now = _now()
        actions = [
            _commit_info(now, "WRITE"),
            {"txn": {"appId": self._application, "version": transaction, "lastUpdated": now}},
            {"add": _add(file, data_change=True)},
        ]
        if self.version >= 0:
            return actions
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        return [{"protocol": protocol}, {"metaData": self._metadata}, *actions]

    def _take(self, added: DataFile, transaction: int) -> None:
        self.files[added.name] = added
        self.transaction = transaction

    def replace(self, old: list[DataFile], new: DataFile, *, data_change: bool) -> None:
        """Replace some files by one; ``data_change``: its rows aren't the same rows.

        Raises TableError where another process committed.
        """
        now = _now()
        actions = [_commit_info(now, "OPTIMIZE"), {"add": _add(new, data_change=data_change)}]
        for file in old:
            removed = {
                "path": quote(file.name),
                "deletionTimestamp": now,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": file.size,
            }
            actions.append({"remove": removed})
        with self._lock, self._unless_failed(new.name):
            self._commit(self._entry(actions).flushed())
            for file in old:
                del self.files[file.name]
                self._removed[file.name] = (now, file.size)
            self.files[new.name] = new

    def checkpoint(self) -> None:
        """Write a checkpoint, so that no reader needs the commits before it."""
        with self._lock:
            version, transaction = self.version, self.transaction
            live, removed = list(self.files.values()), list(self._removed.items())
        parts = {
            "protocol": _array("protocol", [{"minReaderVersion": 1, "minWriterVersion": 2}]),
            "metaData": _array("metaData", [_with_pairs(self._metadata)]),
            "txn": _array("txn", [{"appId": self._application, "version": transaction, "lastUpdated": None}]),
            "add": _array("add", [_with_pairs(_add(file, data_change=False)) for file in live]),
            "remove": _removed_array(removed),
        }
        buffer = pa.BufferOutputStream()
        pq.write_table(_one_below_the_other(parts), buffer)
        log = self.path / LOG
        files.write_atomically(log / _checkpoint_name(version), buffer.getvalue())
        size = sum(len(part) for part in parts.values())
        files.write_atomically(log / LAST_CHECKPOINT, json.dumps({"version": version, "size": size}).encode())
        self._log.append(_LogFile(version, log / _checkpoint_name(version), _now()))
        self.checkpointed = version

    def clean_up(self) -> None:
        """Remove what has been replaced for longer than :data:`RETENTION_SECONDS`; after the first commit."""
        before = _now() - RETENTION_SECONDS * 1000
        with self._lock:
            expired = [name for name, (when, _size) in self._removed.items() if when < before]
        for name in expired:
            _unlink(self.path / name)
            with self._lock:
                del self._removed[name]
        while self._log[0].version < self.checkpointed and self._log[0].written < before:
            _unlink(self._log[0].path)
            self._log.popleft()

    def _entry(self, actions: list[dict[str, Any]]) -> files.Replacement:
        """The next commit, under a temporary name; the table's lock is held until it has its own."""
        path = self._entry_path(self.version + 1)
        if path.exists():
            raise TableError(f"{path} was written by another process")
        lines = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        return files.Replacement(path, lines.encode())

    def _commit(self, entry: files.Replacement) -> None:
        entry.put_in_place()
        self.version += 1
        self._log.append(_LogFile(self.version, self._entry_path(self.version), _now()))

    def _entry_path(self, version: int) -> Path:
        return self.path / LOG / f"{version:020d}.json"

    def _read_commit(self, version: int) -> None:
        path = self._entry_path(version)
        if version != self.version + 1:
            raise TableError(f"{path} has no predecessor")
        try:
            actions = [json.loads(line) for line in read_file(path).splitlines()]
            if not actions:
                raise ValueError("it is empty")
            for action in actions:
                for kind, facts in action.items():
                    self._apply(kind, facts)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise TableError(f"{path} is no commit of this writer: {error!r}") from error
        self.version = version

    def _read_checkpoint(self, version: int) -> None:
        path = self.path / LOG / _checkpoint_name(version)
        try:
            rows = pq.read_table(path, partitioning=None).to_pylist(maps_as_pydicts="strict")
            for row in rows:
                for kind, facts in row.items():
                    if facts is not None:
                        self._apply(kind, facts)
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise TableError(f"{path} is no checkpoint of this writer: {error!r}") from error
        self.version = self.checkpointed = version

    def _apply(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "add":
            file = _file_of(facts)
            self.files[file.name] = file
            self._removed.pop(file.name, None)
        elif kind == "remove":
            name = _own_name(facts)
            self.files.pop(name, None)
            self._removed[name] = (facts["deletionTimestamp"], facts.get("size") or 0)
        elif kind == "txn" and facts["appId"] == self._application:
            self.transaction = facts["version"]
        elif kind == "metaData":
            self._metadata = facts
        elif kind == "protocol" and (facts["minReaderVersion"], facts["minWriterVersion"]) != (1, 2):
            raise ValueError(f"it requires protocol {facts}")

    def _remove_left_over(self, log_names: set[str]) -> None:
        """Remove what a crash left: data that no commit names, files that were about to be renamed."""
        known = {LOG, *self.files, *self._removed}
        for entry in self.path.iterdir():
            if entry.name not in known:
                _unlink(entry)
        for name in log_names:
            if name.endswith(".tmp"):
                _unlink(self.path / LOG / name)


def _now() -> int:
    return int(time.time() * 1000)


def _checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def _commit_info(now: int, operation: str) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": now, "operation": operation, "engineInfo": "reput"}}


def _schema_string(schema: pa.Schema) -> str:
    fields = [
        {"name": field.name, "type": _TYPES[field.type], "nullable": field.nullable, "metadata": {}}
        for field in schema
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _add(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.name),
        "partitionValues": {},
        "size": file.size,
        "modificationTime": file.modified,
        "dataChange": data_change,
        "stats": json.dumps({"numRecords": file.rows}),
        "tags": {"first": str(file.first), "last": str(file.last), "level": str(file.level)},
    }


def _own_name(facts: dict[str, Any]) -> str:
    """The name of a file, which has to be in the table's directory: replaced files are removed some day."""
    name = unquote(facts["path"])
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no file of this table")
    return name


def _file_of(facts: dict[str, Any]) -> DataFile:
    tags = facts["tags"]
    return DataFile(
        name=_own_name(facts),
        size=facts["size"],
        modified=facts["modificationTime"],
        rows=json.loads(facts["stats"])["numRecords"],
        first=int(tags["first"]),
        last=int(tags["last"]),
        level=int(tags["level"]),
    )


def _with_pairs(facts: dict[str, Any]) -> dict[str, Any]:
    """Maps as lists of pairs, as Arrow needs them."""
    changed: dict[str, Any] = {
        name: list(value.items())
        for name, value in facts.items()
        if name in ("partitionValues", "tags", "options", "configuration")
    }
    if "format" in facts:
        changed["format"] = _with_pairs(facts["format"])
    return {**facts, **changed}


def _array(kind: str, values: list[dict[str, Any]]) -> pa.Array:
    return pa.array(values, _CHECKPOINT[kind])


def _removed_array(removed: list[tuple[str, tuple[int, int]]]) -> pa.Array:
    """Column by column: there may be thousands."""
    count = len(removed)
    kind = _CHECKPOINT["remove"]
    columns = {
        "path": pa.array([quote(name) for name, _ in removed], pa.string()),
        "deletionTimestamp": pa.array([when for _, (when, _size) in removed], pa.int64()),
        "dataChange": pa.array([False] * count, pa.bool_()),
        "partitionValues": pa.array([[]] * count, _MAP),
        "size": pa.array([size for _, (_when, size) in removed], pa.int64()),
    }
    return pa.StructArray.from_arrays(list(columns.values()), fields=list(kind))


def _one_below_the_other(parts: dict[str, pa.Array]) -> pa.Table:
    """A table in which each row has a value in one column only."""
    total = sum(len(part) for part in parts.values())
    before = 0
    columns = {}
    for name, part in parts.items():
        after = total - before - len(part)
        columns[name] = pa.concat_arrays([pa.nulls(before, part.type), part, pa.nulls(after, part.type)])
        before += len(part)
    return pa.table(columns)


def _unlink(path: Path) -> None:
    """Remove a file, without making that durable: if it comes back, it is removed again."""
    with files.reporting("can't remove it", path), suppress(FileNotFoundError):
        files.system.unlink(path)
