"""Queues in log order: each fast path and its slow twin agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reput.build import ext, units
from reput.build.units import BatchRows
from reput.format import commitlog, javastring, properties
from reput.scan import kernel, output
from reput.scan.fields import RecordFields, record_fields
from reput.scan.rules import Rules
from reput.scan.table import QueueTable
from tests import slow_build
from tests.levels import examples
from tests.property.logs import segments

RULES = Rules(
    topic_length_v2=True,
    index_keys=False,
    index_tags=False,
    multi_dispatch=True,
    lmq_queue_zero=True,
    lmq_rejects_slash=False,
    inner_batch=True,
    check_crc=False,
    property_crc_only=False,
    delay_levels=np.array([1000], np.int64),
)


def record_fields_slowly(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    unit_queues: NDArray[np.int32],
    table: QueueTable,
) -> RecordFields:
    """What ``record_fields`` does, one record at a time."""
    rows = []
    before = (-1, -1)
    units = zip(positions.tolist(), queue_offsets.tolist(), unit_queues.tolist(), strict=True)
    for position, queue_offset, queue in units:
        record = commitlog.decode(data.data, position)
        values = properties.parse(record.properties)
        base, count = values.get(properties.INNER_BASE), values.get(properties.INNER_NUM)
        is_own = (
            javastring.utf8(record.topic) == table.topic_names[table.queues.topic[queue]]
            and record.queue_id == table.queues.queue_id[queue]
            and (queue, position) != before
        )
        rows.append(
            (
                record.store_timestamp,
                queue_offset if base is None or count is None else javastring.parse_integer(base, 64),
                1 if base is None or count is None else javastring.parse_integer(count, 16),
                is_own,
                position + _size(data, position) - len(record.properties),
                len(record.properties),
            )
        )
        before = (queue, position)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(RecordFields._fields)
    kinds = (np.int64, np.int64, np.int16, np.bool_, np.int64, np.int32)
    return RecordFields(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def _size(data: NDArray[np.uint8], position: int) -> int:
    return int.from_bytes(data[position : position + 4].tobytes(), "big")


_file_sizes = st.one_of(st.integers(1, 60), st.sampled_from([100, 1000]))


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 200), st.integers(0, 30), st.integers(0, 14), _file_sizes, st.randoms())
def test_units_of_consumequeue_ext(
    start: int, count: int, width: int, file_size: int, random: object
) -> None:
    fast = ext.lay_out(start, count, 20 + width, file_size)
    slow = slow_build.lay_out_ext(start, count, 20 + width, file_size)
    tags = np.arange(count, dtype=np.int64) - 5
    assert (fast.end, fast.marks) == (slow.end, slow.marks)
    assert fast.addresses(tags).tolist() == slow.addresses(tags).tolist()
    bit_maps = np.arange(count * width).astype(np.uint8).reshape(count, width)
    images = []
    for layout, pack in ((fast, ext.pack), (slow, slow_build.pack_ext)):
        image = bytearray(layout.end + file_size)
        for place, data in pack(layout, tags, tags + 7, bit_maps):
            image[place : place + len(data)] = data
        images.append(image)
    assert images[0] == images[1]


def test_a_unit_that_is_too_long_is_not_stored() -> None:
    for lay_out in (ext.lay_out, slow_build.lay_out_ext):
        layout = lay_out(40, 3, 0x8000, 1 << 20)
        assert (layout.end, layout.runs, layout.marks) == (40, [], [])
        assert layout.addresses(np.array([7, 8, 9])).tolist() == [7, 8, 9]


_longs = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.lists(
        st.tuples(
            _longs,
            st.integers(0, (1 << 31) - 1),
            _longs,
            _longs,
            _longs,
            st.integers(-(1 << 15), (1 << 15) - 1),
        ),
        max_size=8,
    )
)
def test_units_of_a_batch_queue(rows: list[tuple[int, ...]]) -> None:
    kinds = (np.int64, np.int32, np.int64, np.int64, np.int64, np.int16)
    columns = [np.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    given_rows = BatchRows(*columns)
    assert units.pack_batch(given_rows) == slow_build.pack_batch(given_rows)
    left = list(zip(*given_rows.dispatched(), strict=True))
    assert left == [row for row in rows if row[4] >= 0 and row[5] >= 0]


@settings(max_examples=examples(300), deadline=None)
@given(segments())
def test_fields_of_records(segment: tuple[int, np.ndarray]) -> None:
    base, data = segment
    table, out = QueueTable(), output.output()
    position = 0
    while position < len(data):
        stop = kernel.scan(data, base, position, len(data), RULES, table, out)
        if not stop.status.is_framed:
            break
        # A record that gets no unit for its numbers.
        position = stop.position + int.from_bytes(data[stop.position : stop.position + 4].tobytes(), "big")
    count = int(table.queue_count[0])
    order, starts = units.by_queue(out, count)
    queues = out.unit_queue[order]
    assert (np.diff(queues) >= 0).all()
    assert np.repeat(np.arange(count), np.diff(starts)).tolist() == queues.tolist()
    assert all((np.diff(order[starts[number] : starts[number + 1]]) > 0).all() for number in range(count))
    asked = (data, out.unit_position[order] - base, out.unit_offset[order], queues, table)
    for fast, slow in zip(record_fields(*asked), record_fields_slowly(*asked), strict=True):
        assert fast.tolist() == slow.tolist()
        assert fast.dtype == slow.dtype
