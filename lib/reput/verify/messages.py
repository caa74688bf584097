"""What a verification needs of messages and a scan doesn't yield: for batch queues and consumequeue_ext."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.build.units import by_queue
from reput.errors import Finding
from reput.format.batchconsumequeue import NOT_COMPACTED, UNIT_DTYPE
from reput.log.segments import open_segment
from reput.replay.part_result import QueueRows
from reput.scan.fields import RecordFields, fields_of_queue, record_fields
from reput.scan.output import OutputArrays
from reput.scan.rules import Part
from reput.scan.table import QueueTable
from reput.verify.ext import OfMessages

_Queue = tuple[str, int]


class ChunkFields:
    """The records of a chunk's units, by queue, read while the chunk is in the processor's cache.

    Args:
        part: of the chunk.
        table, chunk, data: as the scan hands them over.
    """

    def __init__(self, part: Part, table: QueueTable, chunk: OutputArrays, data: NDArray[np.uint8]) -> None:
        self._part = part
        self._chunk = chunk
        self._order, self._starts = by_queue(chunk, int(table.queue_count[0]))
        self._fields: RecordFields = record_fields(
            data,
            chunk.unit_position[self._order] - part.base,
            chunk.unit_offset[self._order],
            chunk.unit_queue[self._order],
            table,
        )

    def records(self, number: int) -> OfMessages:
        """What the records in consumequeue_ext of a queue's units have to hold."""
        rows = slice(int(self._starts[number]), int(self._starts[number + 1]))
        return OfMessages(self._fields.own[rows], self._fields.timestamp[rows])

    def batch_units(self, number: int, queue: _Queue) -> tuple[NDArray[Any], list[Finding]]:
        """The units that a batch queue has to have, UNIT_DTYPE[n]; messages that get none."""
        rows = slice(int(self._starts[number]), int(self._starts[number + 1]))
        order, fields = self._order[rows], self._fields
        units = np.zeros(len(order), UNIT_DTYPE)
        units["position"], units["size"] = self._chunk.unit_position[order], self._chunk.unit_size[order]
        units["tags"], units["timestamp"] = self._chunk.unit_tags[order], fields.timestamp[rows]
        units["base_offset"], units["batch_size"] = fields.base_offset[rows], fields.batch_size[rows]
        units["compacted"] = NOT_COMPACTED
        bad = (units["base_offset"] < 0) | (units["batch_size"] < 0)
        if not bad.any():
            return units, []
        return units[~bad], [self._passed_over(queue, units[bad])]

    def _passed_over(self, queue: _Queue, units: NDArray[Any]) -> Finding:
        first = units[0]
        return Finding(
            kind="bad-inner-batch",
            path=self._part.path,
            offset=int(first["position"]),
            end=int(first["position"]) + int(first["size"]),
            expected="INNER_BASE and INNER_NUM of 0 or more",
            found=f"{int(first['base_offset'])} and {int(first['batch_size'])}",
            outcome="it has no unit, as by the broker",
            topic=queue[0],
            queue_id=queue[1],
            count=len(units),
        )


def records_of(parts: Sequence[Part], queue: _Queue, rows: QueueRows) -> OfMessages:
    """What the records of a queue's units have to hold, the units being in log order over several parts."""
    own, timestamp = np.ones(len(rows.position), bool), np.full(len(rows.position), -1, np.int64)
    for part in parts:
        chosen = slice(*np.searchsorted(rows.position, [part.start, part.end]).tolist())
        if chosen.start < chosen.stop:
            segment = open_segment(part.path, part.segment_length)
            positions = rows.position[chosen] - part.base
            segment.fetch(int(positions[0]), int(positions[-1]))
            segment.fetch_frame(int(positions[-1]))
            fields = fields_of_queue(
                segment.data, positions, rows.offset[chosen], queue[0].encode(), queue[1]
            )
            own[chosen], timestamp[chosen] = fields.own, fields.timestamp
    return OfMessages(own, timestamp)
