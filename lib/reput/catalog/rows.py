"""The files of a table of messages: what a task writes, without Spark and without a commit.

Rows go from the log to Parquet as Arrow columns. In a file they lie in order of topic, queueId, queueOffset
and of the log, so that a reader passes over the row groups of other queues. A file is on disk before its name
is handed on.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reput.catalog.lacking import Ranges
from reput.catalog.table import BODY, BROKER, CLUSTER, DAY, File, Written
from reput.config.settings import StoreSettings
from reput.errors import Finding, OutputError, ReputError
from reput.newer_python import UTC
from reput.remote.client import objects
from reput.scan.rules import Part
from reput.source import messages
from reput.source.columns import MESSAGE_COLUMNS, arrow_schema
from reput.source.filters import Range, Wanted
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.system import unwritten

#: Messages, and bytes of their records, in one file at most: their columns are in memory together.
MOST_ROWS = 1 << 19
MOST_BYTES = {False: 176 << 20, True: 96 << 20}
"""By whether bodies are wanted."""
#: In order of queues, so many rows are a few queues of one file.
_ROWS_IN_GROUP = 1 << 16
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
_DAY_US = 86_400_000_000
_ORDER = ("topic", "queueId", "queueOffset", "physicalOffset")
#: Columns of few values; of the others Parquet would make a dictionary, and give it up.
_FEW_VALUES = (
    *("topic", "queueId", "bornHost", "storeHost", "sysFlag", "flag", "reconsumeTimes"),
    *("preparedTransactionOffset", "tags", "properties.key_value.key"),
)
#: Columns whose least and greatest value nobody can use.
_WITHOUT_STATISTICS = ("tags", "keys", "uniqKey", "properties", BODY)
#: A longer text isn't put into a table's log.
_LONGEST_STATISTIC = 256


def columns(*, bodies: bool) -> tuple[str, ...]:
    """The columns in a table's files: without those by which it is partitioned."""
    return tuple(name for name in MESSAGE_COLUMNS if bodies or name != BODY)


def schema(*, bodies: bool, many: bool = False) -> pa.Schema:
    """The columns of a new table, of one store or of ``many``."""
    found = arrow_schema(columns(bodies=bodies), MESSAGE_COLUMNS).append(pa.field(DAY, pa.date32()))
    whose = [pa.field(name, pa.string()) for name in (CLUSTER, BROKER)] if many else []
    return pa.schema([*whose, *found])


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes files beside a table. Its functions are a task's work: they return an error that they raised."""

    table: Path  # the table's directory
    token: str  # is in the name of every file, so that those which no commit came to name are found
    bodies: bool  # whether the table has them
    #: the directory with the lock for tasks, which they hold; None where hosts' locks may not meet
    locks: Path | None
    directory: str = ""  # where a store's days lie, relative to the table; empty for the table itself
    url: str | None = None  # of a table in an object store; None for one in a directory

    def guarded(self, work: Iterable[Written]) -> list[Written] | ReputError:
        """Do some of this writer's work."""
        try:
            if self.locks is None:
                return list(work)
            with OutputLock(self.locks).shared():
                return list(work)
        except ReputError as error:
            return error
        except OSError as error:
            return unwritten(error, self.table)
        except pa.ArrowException as error:
            return OutputError(
                "a file of the table isn't what it was",
                path=self.url or self.table,
                found=str(error).partition("\n")[0],
                next_step="Restore it to an earlier version, or begin another one in another directory",
            )

    def write(self, directory: str, rows: pa.Table) -> Written:
        """Write at least one row, in order, to a file below the table; on return it is on disk."""
        name = f"{directory}/part-{self.token}-{secrets.token_hex(8)}.parquet"
        if self.url is None:
            place = self.table / name
            files.make_dirs(place.parent)
            with files.reporting("can't write the file", place):
                footer = _write(rows, place)
                files.fsync_path(place)
                size = place.stat().st_size
            files.fsync_dir(place.parent)
        else:
            made = pa.BufferOutputStream()
            footer = _write(rows, made)
            data = made.getvalue()
            objects(self.url).put(name, memoryview(data).cast("B"))
            size = data.size
        day = directory.rpartition("=")[2]
        return Written(
            path=name,
            day=None if day == _NO_DAY else day,
            size=size,
            rows=rows.num_rows,
            statistics=json.dumps(_statistics(footer)),
        )

    def read(self, path: str, columns_: list[str]) -> pa.Table:
        """Columns of one of the table's files, whose path is relative to the table."""
        place: Any = self.table / path
        if self.url is not None:
            found = objects(self.url).get(path)
            if found is None:
                raise OutputError(
                    "a file of the table is gone",
                    path=f"{self.url}/{path}",
                    next_step="Run the same command again; else restore the table to an earlier version",
                )
            place = pa.BufferReader(found.data)
        with files.reporting("can't read the file", self.table / path):
            # Spark writes times as INT96, without a zone.
            return pq.ParquetFile(place, coerce_int96_timestamp_unit="us").read(columns=columns_)


def _write(rows: pa.Table, place: Any) -> Any:
    """Write a file, or its bytes; returns its footer."""
    found: list[Any] = []
    pq.write_table(
        rows,
        place,
        row_group_size=_ROWS_IN_GROUP,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(_FEW_VALUES),
        write_statistics=[name for name in rows.column_names if name not in _WITHOUT_STATISTICS],
        write_page_index=True,
        store_schema=False,
        metadata_collector=found,
    )
    return found[0]


@dataclass(frozen=True, slots=True)
class Added:
    """What came of a part of the log."""

    files: list[Written]  # with its messages
    findings: list[Finding]  # what was passed over in it


@dataclass(frozen=True, slots=True)
class Lacked(Range):
    """The physicalOffsets of messages that a table lacks in some ranges of the log."""

    within: Ranges = ()
    held: tuple[int, ...] = ()  # that it has there, in order

    def holds(self, values: NDArray[np.integer]) -> NDArray[np.bool_]:
        """For each physicalOffset whether its message is lacking: bool[values]."""
        starts, ends = np.array(self.within, np.int64).reshape(-1, 2).T
        at = np.searchsorted(starts, values, "right") - 1
        return (at >= 0) & (values < ends[at]) & ~np.isin(values, np.array(self.held, np.int64))


@dataclass(frozen=True, slots=True)
class Adding:
    """Writes the messages of a part of the log."""

    writer: Writer
    settings: StoreSettings  # the store's
    #: of parts from ``begin`` on, messages with a greater physicalOffset are wanted
    after: int
    begin: int = 0
    lacked: Lacked = field(default_factory=Lacked)  # those that are wanted of earlier ones

    def __call__(self, part: Part) -> Added | ReputError:
        """The files with the messages that begin in ``part``, or why there are none."""
        found: list[Finding] = []
        files_ = self.writer.guarded(self._written(part, found))
        if isinstance(files_, ReputError):
            return files_
        # Behind a stand-in nothing is left to be had: mending has closed the damage.
        return Added(files_, [one for one in found if not one.is_stand_in])

    def _written(self, part: Part, damage: list[Finding]) -> Iterator[Written]:
        bodies = self.writer.bodies
        wanted = None
        if part.start < self.begin:  # what lies between the ranges of a part, the table has
            wanted = Wanted({"physicalOffset": self.lacked})
        elif part.start <= self.after:
            wanted = Wanted({"physicalOffset": Range(low=self.after + 1)})
        for rows in messages.read(
            part,
            self.settings,
            columns(bodies=bodies),
            wanted,
            seen=part.witness,
            by_queue=(MOST_ROWS, MOST_BYTES[bodies]),
            damage=damage,
        ):
            for day, of_day in _by_day(pa.Table.from_batches([rows])):
                below = self.writer.directory
                yield self.writer.write(f"{below}/{day}" if below else day, of_day)


@dataclass(frozen=True, slots=True)
class Merging:
    """Writes the rows of several files of one day into one."""

    writer: Writer

    def __call__(self, merged: list[File]) -> list[Written] | ReputError:
        """One file, or why there is none."""
        return self.writer.guarded(self._written(merged))

    def _written(self, merged: list[File]) -> Iterator[Written]:
        wanted = arrow_schema(columns(bodies=self.writer.bodies), MESSAGE_COLUMNS)
        tables = []
        for file in merged:
            rows = self.writer.read(file.path, wanted.names)
            tables.append(rows.select(wanted.names).cast(wanted))
        rows = pa.concat_tables(tables).combine_chunks()
        order = pc.sort_indices(rows, [(name, "ascending") for name in _ORDER])
        yield self.writer.write(str(Path(merged[0].path).parent), rows.take(order))


def _by_day(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each day in their order, and the directory for them."""
    times = rows.column("storeTimestamp").chunk(0)
    days = np.asarray(pc.fill_null(times.cast(pa.int64()), 0)) // _DAY_US
    if times.null_count:
        has_none = np.asarray(pc.is_null(times))
        yield f"{DAY}={_NO_DAY}", rows.filter(pa.array(has_none))
        rows, days = rows.filter(pa.array(~has_none)), days[~has_none]
    found = np.unique(days)
    for day in found.tolist():
        of_day = rows if len(found) == 1 else rows.filter(pa.array(days == day))
        yield f"{DAY}={np.datetime64(day, 'D')}", of_day


def _statistics(found: Any) -> dict[str, object]:
    """What Parquet's footer says of a file's columns, as Delta's log has it."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown = set()
    for group in map(found.row_group, range(found.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, known = column.path_in_schema, column.statistics
            if known is None or not known.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + known.null_count
            if not known.has_min_max:
                if known.null_count < group.num_rows:
                    unknown.add(name)
                continue
            least[name] = min(least.get(name, known.min), known.min)
            most[name] = max(most.get(name, known.max), known.max)
    names = [
        name for name in least if name not in unknown and _is_short(least[name]) and _is_short(most[name])
    ]
    return {
        "numRecords": found.num_rows,
        "minValues": {name: _in_json(least[name]) for name in names},
        "maxValues": {name: _in_json(most[name]) for name in names},
        "nullCount": nulls,
    }


def _is_short(value: object) -> bool:
    return not isinstance(value, str) or len(value) <= _LONGEST_STATISTIC


def _in_json(value: Any) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
