"""The ledger's rows: of a batch, of a state, and of many batches at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reput.errors import Finding
from reput.format import names
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.replay.state import FILLED, HIDDEN, KEPT, MAX_FINDINGS, Batch, QueueState, Salvaged, State

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

    A queue's ``units`` are those that it has; the bytes of their messages aren't known.

    Args:
        state: what the batches add up to.
        start: physical offset where the first one began.
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

    Args:
        table: the rows in the order in which they were committed.
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
