"""The Delta ledger: what every batch did, as a table for people and Spark SQL.

``ledger/`` in the output, one Delta table with a row per batch, per queue that the batch changed, per index
file and per finding, partitioned by ``kind``. It is derived from the journal: a batch is committed to it
once, under the transaction ``reput`` with the batch's number in the journal, from 1 on, as version, and
whatever is missing is written from the journal at the next start. (The end offset would not do: a batch that
only found damage at the log's end moves no offset.)

The ``deltalake`` package commits in 10 ms what takes Spark half a second, but it neither checks transaction
versions nor flushes its files, so that is done here.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from reput.errors import OutputError
from reput.format import names
from reput.sink.journal import Batch
from reput.store import files
from reput.store.filecache import FileCache

APPLICATION = "reput"

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # batch, queue, index, finding
        pa.field("batch_end", pa.int64(), nullable=False),  # physical offset; names the batch
        pa.field("batch_start", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("last_timestamp", pa.int64()),  # storeTimestamp, ms
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("first_offset", pa.int64()),  # queueOffset
        pa.field("next_offset", pa.int64()),
        pa.field("units", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("begin_timestamp", pa.int64()),
        pa.field("end_timestamp", pa.int64()),
        pa.field("begin_offset", pa.int64()),  # physicalOffset
        pa.field("end_offset", pa.int64()),
        pa.field("index_count", pa.int64()),
        pa.field("finding", pa.string()),
        pa.field("expected", pa.string()),
        pa.field("found", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("queue_offset", pa.int64()),
        pa.field("count", pa.int64()),
    ]
)


def rows(batch: Batch) -> pa.Table:
    """A batch's ledger rows."""
    found: list[dict[str, object]] = [
        {
            "kind": "batch",
            "batch_start": batch.start,
            "messages": batch.messages,
            "bytes": batch.bytes,
            "last_timestamp": batch.last_timestamp,
        }
    ]
    found += [
        {
            "kind": "queue",
            "topic": topic,
            "queue_id": queue_id,
            "first_offset": state.first,
            "next_offset": state.next,
            "units": state.units,
            "bytes": state.bytes,
            "end_offset": state.end,
        }
        for (topic, queue_id), state in batch.queues.items()
    ]
    found += [
        {
            "kind": "index",
            "file": name,
            "begin_timestamp": header.begin_timestamp,
            "end_timestamp": header.end_timestamp,
            "begin_offset": header.begin_physical_offset,
            "end_offset": header.end_physical_offset,
            "index_count": header.index_count,
        }
        for name, header in batch.index
    ]
    found += [
        {
            "kind": "finding",
            "finding": finding.kind,
            "file": finding.path,
            "begin_offset": finding.offset,
            "end_offset": finding.end,
            "expected": finding.expected,
            "found": finding.found,
            "outcome": finding.outcome,
            "topic": finding.topic,
            "queue_id": finding.queue_id,
            "queue_offset": finding.queue_offset,
            "count": finding.count,
        }
        for finding in batch.findings
    ]
    return pa.Table.from_pylist([{"batch_end": batch.end, **row} for row in found], SCHEMA)


class Ledger:
    """The ledger under one output directory."""

    def __init__(self, root: Path) -> None:
        self.path = root / names.LEDGER
        self._table: DeltaTable | None = None
        self._checked = False

    def version(self) -> int:
        """How many of the journal's batches the ledger has."""
        table = self._open()
        if table is None:
            return 0
        return table.transaction_version(APPLICATION) or 0

    def catch_up(self, batches: list[Batch]) -> None:
        """Commit those of the journal's batches that the ledger doesn't have.

        The first time, a ledger that isn't what the journal says is made anew: its last commit may have been
        cut short by a power loss.

        Raises:
            OutputError: the ledger can't be written.
        """
        if not self._checked and not self._is_sound(batches):
            self._table = None
            files.remove_tree(self.path)
        self._checked = True
        try:
            done = self.version()
            for number, batch in enumerate(batches[done:], done + 1):
                self._commit(batch, number)
        except (DeltaError, OSError) as error:
            raise OutputError(
                "the ledger can't be written",
                path=self.path,
                found=str(error),
                next_step="Mend the cause and run the same command again; the journal has the batch",
            ) from error

    def _is_sound(self, batches: list[Batch]) -> bool:
        """Whether all files are there and the last commit's rows are those of its batch."""
        try:
            done = self.version()
            table = self._table
            if table is None or not done:
                return not self.path.exists()
            if done > len(batches):
                return False
            for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
                if (self.path / unquote(action["path"])).stat().st_size != action["size_bytes"]:
                    return False
            end = batches[done - 1].end
            wanted = pa.concat_tables(rows(batch) for batch in batches[:done] if batch.end == end)
            found = table.to_pyarrow_table(filters=[("batch_end", "=", end)])
        except (DeltaError, OSError, pa.ArrowException):
            return False
        return _sorted(found) == _sorted(wanted)

    def _commit(self, batch: Batch, number: int) -> None:
        """Commit one batch and flush it."""
        before = _listing(self.path)
        properties = CommitProperties(app_transactions=[Transaction(APPLICATION, number)])
        write_deltalake(
            self._open() or str(self.path),
            rows(batch),
            mode="append",
            partition_by=["kind"],
            commit_properties=properties,
        )
        self._flush(_listing(self.path) - before)
        if self._table is not None:
            self._table.update_incremental()

    def _flush(self, new: set[Path]) -> None:
        with FileCache() as cache:
            for path in new:
                cache.descriptor(path, path.stat().st_size)
            cache.flush_all()
        for directory in {
            parent for path in new for parent in path.parents if parent.is_relative_to(self.path)
        }:
            files.fsync_dir(directory)
        files.fsync_dir(self.path.parent)

    def _open(self) -> DeltaTable | None:
        if self._table is None and DeltaTable.is_deltatable(str(self.path)):
            self._table = DeltaTable(str(self.path))
        return self._table


def _sorted(table: pa.Table) -> list[str]:
    return sorted(str(sorted(row.items())) for row in table.to_pylist())


def _listing(path: Path) -> set[Path]:
    return {Path(folder) / name for folder, _, found in os.walk(path) for name in found}
