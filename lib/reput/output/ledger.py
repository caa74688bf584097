"""The Delta ledger: what every batch did, as a table for people and Spark SQL.

``ledger/`` in the output, one Delta table with a row per batch, per queue that the batch changed, per index
file, per finding and per step of retention. It is derived from the journal: a batch is committed to it once,
under the transaction ``reput`` with the batch's number in the journal, from 1 on, as version, and whatever is
missing is written from the journal at the next start. (The end offset can't be the version: a batch that only
found damage at the log's end moves no offset.)

A tail commits a file a batch. A thread beside the stream merges these, :data:`BATCHES` into one, then
:data:`FILES` of those into one; the oldest of the results are summed up as one batch, so that neither files
nor rows grow without bound. The log gets checkpoints, and what was replaced is removed after a while. Each
step is a commit of its own, made when what it names is on disk, so that a crash at any moment leaves a
sound table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reput.errors import Finding, OutputError
from reput.format import names
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.output.delta_table import DataFile, Table, TableError
from reput.output.journal import Journal
from reput.replay.state import FILLED, HIDDEN, KEPT, MAX_FINDINGS, Batch, QueueState, Salvaged, State
from reput.store import files
from reput.store.system import shortage_in

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # the groups of rows below
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

_Row = dict[str, object]


def rows(batch: Batch) -> pa.Table:
    """A batch's rows, in an order that doesn't depend on whether it was read from the journal."""
    retention: list[_Row] = []
    if batch.log_start or batch.dropped_index:
        retention = _of_retention(batch.log_start, batch.queues, batch.dropped_index)
    queues = _of_queues(batch.queues, lambda state: (state.units, state.bytes), batch.end)
    return _rows(batch, {"batch_start": batch.start}, queues, retention, batch.end)


def state_rows(state: State, start: int) -> pa.Table:
    """Rows for all batches up to a state, when these are no longer kept one by one.

    A queue's ``units`` are those that it has; the bytes of their messages aren't known. The first batch began
    at the physical offset ``start``.
    """
    queues = _of_queues(state.queues, lambda known: (known.held, None), state.cursor)
    retention = _of_retention(state.log_start, {}, []) if state.log_start > start else []
    return _rows(state, {"batch_start": start, "count": state.batches}, queues, retention, state.cursor)


def _rows(facts: Batch | State, extent: _Row, queues: pa.Table, retention: list[_Row], end: int) -> pa.Table:
    found: list[_Row] = [
        {
            "kind": "batch",
            "messages": facts.messages,
            "bytes": facts.bytes,
            "last_timestamp": facts.last_timestamp,
            **extent,
        }
    ]
    rest = [*_of_index(facts.index), *_of_findings(facts.findings), *_of_salvaged(facts.salvaged)]
    parts = [_table(found, end), queues, _table([*rest, *retention], end)]
    return pa.concat_tables(part for part in parts if part.num_rows).combine_chunks()


def _of_queues(
    queues: dict[Queue, QueueState],
    sums: Callable[[QueueState], tuple[int, int | None]],
    end: int,
) -> pa.Table:
    """A row for each queue, with its units and bytes, column by column: a store may have a million."""
    ordered = sorted(queues)
    states = [queues[queue] for queue in ordered]
    columns: dict[str, list[object]] = {
        "topic": [topic for topic, _ in ordered],
        "queue_id": [queue_id for _, queue_id in ordered],
        "first_offset": [state.first for state in states],
        "next_offset": [state.next for state in states],
        "end_offset": [state.end for state in states],
        "units": [sums(state)[0] for state in states],
        "bytes": [sums(state)[1] for state in states],
    }
    count = len(ordered)
    same = {"kind": "queue", "batch_end": end}
    return pa.table(
        [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.repeat(pa.scalar(same.get(field.name), field.type), count)
            for field in SCHEMA
        ],
        schema=SCHEMA,
    )


def merged(table: pa.Table) -> pa.Table:
    """Rows of many batches as if they had been one; the result may be merged again.

    One row of kind ``batch`` has their range, sums and number (``count``). A queue has one row, its last one
    with units and bytes summed up; an index file its last one, unless retention removed it; of retention the
    last row of each queue stays, and one for all index files. Findings stay unless they are too many; then
    the older ones become one row a kind, with their count. Of what was salvaged the newest rows stay.
    """
    parts = {kind: table.filter(pc.equal(table["kind"], kind)) for kind in _MERGED}
    salvaged = table.filter(pc.is_in(table["kind"], pa.array([KEPT, FILLED, HIDDEN])))
    return pa.concat_tables(
        [
            _merged_batches(parts["batch"]),
            _merged_queues(parts["queue"]),
            _merged_index(parts["index"].to_pylist(), parts["retention"].to_pylist()),
            _merged_findings(parts["finding"].to_pylist()),
            _merged_retention(parts["retention"].to_pylist()),
            salvaged.slice(max(salvaged.num_rows - _MOST_SALVAGED, 0)),
        ]
    )


_MERGED = ("batch", "queue", "index", "finding", "retention")
_MOST_SALVAGED = 1 << 17


def _merged_batches(batches: pa.Table) -> pa.Table:
    last = batches.slice(batches.num_rows - 1).to_pylist()[0]
    row = {
        "kind": "batch",
        "batch_start": pc.min(batches["batch_start"]).as_py(),
        "messages": pc.sum(batches["messages"]).as_py(),
        "bytes": pc.sum(batches["bytes"]).as_py(),
        "last_timestamp": last["last_timestamp"],
        "count": pc.sum(pc.coalesce(batches["count"], pa.scalar(1, pa.int64()))).as_py(),
    }
    return _table([row], last["batch_end"])


def _merged_queues(queues: pa.Table) -> pa.Table:
    keys = ["topic", "queue_id"]
    lasts = ["batch_end", "first_offset", "next_offset", "end_offset"]
    sums = ["units", "bytes"]
    # "last" is the last in order only if one thread reads the rows.
    grouped = queues.group_by(keys, use_threads=False).aggregate(
        [*((name, "last") for name in lasts), *((name, "sum") for name in sums)]
    )
    columns = {name: grouped[name] for name in keys}
    columns |= {name: grouped[f"{name}_last"] for name in lasts}
    columns |= {name: grouped[f"{name}_sum"] for name in sums}
    columns["kind"] = pa.array(["queue"] * grouped.num_rows, pa.string())
    return pa.table(
        [
            columns[field.name] if field.name in columns else pa.nulls(grouped.num_rows, field.type)
            for field in SCHEMA
        ],
        schema=SCHEMA,
    )


def _merged_index(index: list[_Row], retention: list[_Row]) -> pa.Table:
    dropped = {row["file"] for row in retention}
    last = {row["file"]: row for row in index if row["file"] not in dropped}
    return pa.Table.from_pylist(list(last.values()), SCHEMA)


def _merged_findings(findings: list[_Row]) -> pa.Table:
    if len(findings) <= MAX_FINDINGS:
        return pa.Table.from_pylist(findings, SCHEMA)
    older, newer = findings[: -MAX_FINDINGS // 2], findings[-MAX_FINDINGS // 2 :]
    summed: dict[object, dict[str, Any]] = {}
    for row in older:
        first = summed.setdefault(
            row["finding"], {**row, "topic": None, "queue_id": None, "queue_offset": None, "count": 0}
        )
        first["count"] += row["count"]
        first["end_offset"] = max(first["end_offset"], row["end_offset"])
    return pa.Table.from_pylist([*summed.values(), *newer], SCHEMA)


def _merged_retention(retention: list[_Row]) -> pa.Table:
    last: dict[object, dict[str, Any]] = {}
    for row in retention:
        key = "file" if row["file"] is not None else (row["topic"], row["queue_id"])
        count = (row["count"] or 1) if key == "file" else None
        before = last.get(key)
        if before is not None and key == "file":
            count += before["count"]
        last[key] = {**row, "count": count}
    return pa.Table.from_pylist(list(last.values()), SCHEMA)


def _of_index(index: Iterable[tuple[str, IndexHeader]]) -> list[_Row]:
    return [
        {
            "kind": "index",
            "file": name,
            "begin_timestamp": header.begin_timestamp,
            "end_timestamp": header.end_timestamp,
            "begin_offset": header.begin_physical_offset,
            "end_offset": header.end_physical_offset,
            "index_count": header.index_count,
        }
        for name, header in index
    ]


def _of_findings(findings: Iterable[Finding]) -> list[_Row]:
    return [
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
        for finding in findings
    ]


def _of_salvaged(salvaged: Iterable[Salvaged]) -> list[_Row]:
    return [
        {
            "kind": each.kind,
            "file": None if each.file is None else f"{names.LOST_AND_FOUND}/{each.file}",
            "begin_offset": each.begin,
            "end_offset": each.end,
            "bytes": each.end - each.begin if each.kind != FILLED else None,
            "topic": each.topic,
            "queue_id": each.queue_id,
            "queue_offset": each.queue_offset,
            "count": each.count,
        }
        for each in salvaged
    ]


def _of_retention(log_start: int, queues: dict[Queue, QueueState], dropped: Iterable[str]) -> list[_Row]:
    """Where the log begins now, the queues whose first unit is another one now, the index files that went."""
    found: list[_Row] = [{"begin_offset": log_start or None}]
    found += [
        {"topic": topic, "queue_id": queue_id, "first_offset": queue.first}
        for (topic, queue_id), queue in sorted(queues.items())
    ]
    found += [{"file": name} for name in dropped]
    return [{"kind": "retention", **row} for row in found]


def _table(found: list[_Row], end: int) -> pa.Table:
    return pa.Table.from_pylist([{"batch_end": end, **row} for row in found], SCHEMA)


APPLICATION = "reput"

#: Levels of the table's files: one batch; several; no longer merged with others; batches summed up as one.
LEVEL_BATCH, LEVEL_SOME, LEVEL_FULL, LEVEL_AS_ONE = range(4)

#: Batches that are committed at once when many are missing.
_BATCHES_AT_ONCE = 256


class Ledger:
    """The ledger under one output directory.

    What works on the table's old files holds ``upkeep``, so that the table isn't recreated meanwhile.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / names.LEDGER
        self.upkeep = threading.Lock()
        self._table: Table | None = None
        self._journal: Journal | None = None
        self._steps_back = 0
        self._last: Batch | None = None

    @property
    def table(self) -> Table | None:
        """The table, once :meth:`catch_up` has opened it."""
        return self._table

    def version(self) -> int:
        """How many of the journal's batches the ledger has; nothing is changed."""
        table = self._table or Table.open(self.path, APPLICATION, clean=False)
        return 0 if table is None else table.transaction

    def catch_up(self, journal: Journal) -> None:
        """Commit those of the journal's batches that the ledger doesn't have.

        A ledger that disagrees with the journal is recreated; this is checked the first time, after the
        journal has stepped back, and when another process wrote to it. Batches that the journal no longer
        keeps one by one are then summed up.
        """
        with self._reporting():
            try:
                self._open(journal)
                self._commit_missing(journal)
            except TableError:
                self._journal = None
                self._open(journal)
                self._commit_missing(journal)

    def _open(self, journal: Journal) -> None:
        """Open the table that belongs to the journal; leaves None where there are no batches yet."""
        table = self._table
        known = self._journal is journal and table is not None
        if known and self._steps_back == journal.steps_back:
            return
        if not (known and self._goes_on(journal)):
            self._table = None
            with self.upkeep:
                self._table = self._sound(journal)
                if self._table is None:
                    files.remove_tree(self.path)
        self._journal, self._steps_back = journal, journal.steps_back

    def _goes_on(self, journal: Journal) -> bool:
        """Whether the journal still has the batch that was committed last, under its number."""
        number = self._table.transaction if self._table is not None else 0
        if not journal.first_number <= number <= journal.state.batches:
            return False
        return journal.batch(number) == self._last

    def _sound(self, journal: Journal) -> Table | None:
        """The table, if all its files are there and its last rows are those of the journal's batch."""
        try:
            table = Table.open(self.path, APPLICATION)
            if table is None or not journal.first_number <= table.transaction <= journal.state.batches:
                return None
            done = 0
            newest = None
            for file in sorted(table.files.values(), key=lambda file: file.first):
                if file.first != done + 1 or (self.path / file.name).stat().st_size != file.size:
                    return None
                newest, done = file, file.last
            if newest is None or done != table.transaction:
                return None
            batch = journal.batch(done)
            wanted = rows(batch)
            if not table.read_end(newest, wanted.num_rows).cast(SCHEMA).equals(wanted):
                return None
        except (OSError, pa.ArrowException):
            return None
        self._last = batch
        return table

    def _commit_missing(self, journal: Journal) -> None:
        batches = journal.state.batches
        table = self._table
        if table is None:
            if not batches:
                return
            table = Table.create(self.path, APPLICATION, SCHEMA)
            summed = journal.first_number - 1
            if summed:
                rest = state_rows(journal.state_after(summed), journal.opening.start)
                table.append(rest, 1, summed, LEVEL_AS_ONE)
                self._table = table
        while table.transaction < batches:
            first = table.transaction + 1
            last = min(batches, table.transaction + _BATCHES_AT_ONCE)
            found = [journal.batch(number) for number in range(first, last + 1)]
            data = pa.concat_tables([rows(batch) for batch in found]) if len(found) > 1 else rows(found[0])
            level = LEVEL_BATCH if first == last else LEVEL_SOME
            table.append(data, first, last, level)
            self._last = found[-1]
            self._table = table

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # TableError, too, which has no number
            short = shortage_in(str(error), [self.path])
            again = "Fix the cause and run the same command again; the journal has the batch"
            raise OutputError(
                "the ledger can't be written",
                path=self.path,
                found=str(error),
                next_step=(short and short.next_step) or again,
            ) from error


#: Files of one batch that are merged to one.
BATCHES = 64

#: Merged files that are merged once more.
FILES = 16

#: With this many rows, fewer files are merged.
ROWS = 1 << 18

#: Files, and rows in them, in which batches are kept one by one; older ones are summed up as one batch.
FULL_FILES = 64
FULL_ROWS = 10_000_000

#: Commits from one checkpoint to the next.
COMMITS = 200

_SECONDS = 1.0
_SECONDS_AFTER_FAILURE = 30.0


class LedgerUpkeep:
    """Maintains a ledger in a thread of its own, from start to stop. Use it as a context manager.

    ``failure`` says why the last try failed. The ledger is sound anyway; the step is retried.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None

    def __enter__(self) -> LedgerUpkeep:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="reput-ledger-upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def work(self) -> None:
        """Do all that is due now; may be called without a thread, at the end of a run with few commits."""
        try:
            while not self._stop.is_set():
                with self._ledger.upkeep:
                    table = self._ledger.table
                    if table is None or not step(table):
                        break
            self.failure = None
        except Exception as error:  # noqa: BLE001 - whatever it is, stream and thread continue
            logging.getLogger(__name__).warning("the ledger can't be tidied up: %s", error)
            self.failure = error

    def _run(self) -> None:
        while not self._stop.wait(_SECONDS if self.failure is None else _SECONDS_AFTER_FAILURE):
            self.work()


def step(table: Table) -> bool:
    """Do one step that is due; returns whether there was one."""
    table.clean_up()
    live = sorted(table.files.copy().values(), key=lambda file: file.first)
    for level, enough in ((LEVEL_BATCH, BATCHES), (LEVEL_SOME, FILES)):
        due = _due(live, level, enough)
        if due:
            _merge(table, due, level + 1)
            return True
    full = [at for at, file in enumerate(live) if file.level == LEVEL_FULL]
    if len(full) > FULL_FILES or (len(full) > 1 and sum(live[at].rows for at in full) > FULL_ROWS):
        _sum_up(table, live[: full[0] + 1])
        return True
    if table.version - table.checkpointed >= COMMITS:
        table.checkpoint()
        return True
    return False


def _due(live: list[DataFile], level: int, enough: int) -> list[DataFile]:
    """The oldest files up to a level that are to be merged into one; none if none are due.

    Files are in the order of their batches, so files of lower levels in between are merged, too: catching up
    at a start writes one file of many batches.
    """
    start = 1 + max((at for at, file in enumerate(live) if file.level > level), default=-1)
    count = rows = 0
    for end, file in enumerate(live[start:], start + 1):
        count += file.level == level
        rows += file.rows
        if count == enough or rows >= ROWS:
            return live[start:end]
    return []


def _merge(table: Table, due: list[DataFile], level: int) -> None:
    rows = pa.concat_tables([table.read(file).cast(SCHEMA) for file in due])
    new = table.write(rows, due[0].first, due[-1].last, level)
    table.replace(due, new, data_change=False)


def _sum_up(table: Table, due: list[DataFile]) -> None:
    rows = merged(pa.concat_tables([table.read(file).cast(SCHEMA) for file in due]))
    new = table.write(rows, due[0].first, due[-1].last, LEVEL_AS_ONE)
    table.replace(due, new, data_change=True)
