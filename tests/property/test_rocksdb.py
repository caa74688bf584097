"""Keys and values in RocksDB: the fast builders against their slow twins, and the order of keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.build import rocksdb
from reput.build.placement import Breaks, keep
from reput.build.rocksdb import UnitRows
from reput.format import commitlog, rocksdbqueue
from reput.format.commitlog import Record
from tests import slow_build
from tests.levels import examples

_int64 = st.integers(-(1 << 63), (1 << 63) - 1)
_int32 = st.integers(-(1 << 31), (1 << 31) - 1)
_topic = st.binary(min_size=1, max_size=12)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[bytes], UnitRows]:
    length = draw(st.integers(1, 12))
    queues = draw(
        st.lists(st.tuples(st.binary(min_size=length, max_size=length), _int32), min_size=1, max_size=4)
    )
    unit = st.tuples(st.integers(0, len(queues) - 1), _int64, _int64, _int32, _int64, _int64)
    units = draw(st.lists(unit, max_size=20))
    kinds = [np.int32 if name == "size" else np.int64 for name in UnitRows._fields]
    columns = zip(*units, strict=True) if units else [()] * len(kinds)
    rows = UnitRows(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))  # type: ignore[arg-type]
    return [rocksdbqueue.prefix(topic, queue_id) for topic, queue_id in queues], rows


@settings(max_examples=examples(150), deadline=None)
@given(blocks())
def test_units_pack_alike(given_block: tuple[list[bytes], UnitRows]) -> None:
    prefixes, rows = given_block
    block = rocksdb.pack_units(prefixes, rows)
    assert block.tobytes() == slow_build.pack_rocksdb_units(prefixes, rows).tobytes()
    assert b"".join(key + value for key, value in rocksdb.pairs(block)) == block.tobytes()
    found, back = rocksdb.unpack(block)
    assert [row.tobytes() for row in found] == [prefixes[queue] for queue in rows.queue]
    for name in UnitRows._fields[1:]:
        assert getattr(back, name).tolist() == getattr(rows, name).tolist()


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(_topic, _int32, _int64), max_size=12))
def test_keys_sort_as_their_parts(keys: list[tuple[bytes, int, int]]) -> None:
    by_parts = sorted(
        keys, key=lambda key: (len(key[0]), key[0], key[1] & 0xFFFFFFFF, key[2] & (1 << 64) - 1)
    )
    assert [rocksdbqueue.unit_key(*key) for key in by_parts] == sorted(
        rocksdbqueue.unit_key(*key) for key in keys
    )
    ends = [(topic, queue_id, which) for topic, queue_id, _ in keys for which in (b"min", b"max")]
    in_order = sorted(ends, key=lambda end: (len(end[0]), end[0], end[2], end[1] & 0xFFFFFFFF))
    assert [rocksdbqueue.offset_key(*end) for end in in_order] == sorted(
        rocksdbqueue.offset_key(*end) for end in ends
    )
    for key in keys:
        assert rocksdbqueue.parse_unit_key(rocksdbqueue.unit_key(*key)) == key


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda rest: b"\0\0\0\x01\x01" + rest))
def test_any_bytes_parse_or_are_none(data: bytes) -> None:
    unit, end = rocksdbqueue.parse_unit_key(data), rocksdbqueue.parse_offset_key(data)
    assert unit is None or rocksdbqueue.unit_key(*unit) == data
    assert end is None or rocksdbqueue.offset_key(*end) == data


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], Breaks]:
    count = draw(st.integers(0, 14))
    steps = st.sampled_from([1, 1, 1, 1, 0, 2, 3, -2])
    restarts = st.sampled_from([False] * 6 + [True])
    offset, position = draw(st.integers(0, 4)), draw(st.integers(0, 3)) * 300
    offsets, positions, sizes = [], [], []
    for _ in range(count):
        size = draw(st.sampled_from([91, 100, 300]))
        offsets.append(offset)
        positions.append(position)
        sizes.append(size)
        position += size + draw(st.sampled_from([0, 0, 0, 200, 600]))
        offset = 0 if draw(restarts) else max(offset + draw(steps), -2)
    places = sorted(draw(st.sets(st.integers(0, position + 100), max_size=3)))
    unproven = [(start, start + 250) for start in sorted(draw(st.sets(st.integers(0, position), max_size=2)))]
    return offsets, positions, sizes, Breaks(places, unproven)


@settings(max_examples=examples(500), deadline=None)
@given(queues(), st.booleans())
def test_units_are_kept_alike(queue: tuple[list[int], list[int], list[int], Breaks], from_zero: bool) -> None:
    offset, position = np.array(queue[0], np.int64), np.array(queue[1], np.int64)
    size, breaks = np.array(queue[2], np.int32), queue[3]
    kept = keep(offset, position, size, breaks, from_zero=from_zero)
    slow = slow_build.keep(offset, position, size, breaks, from_zero=from_zero)
    assert dict(zip(kept.offset.tolist(), kept.row.tolist(), strict=True)) == slow
    assert len(kept.offset) == len(slow)
    in_order = kept.offset.view(np.uint64)
    assert (in_order[1:] > in_order[:-1]).all()
    if kept.last >= 0:
        assert kept.last not in kept.hidden
        assert kept.last == max(row for row in range(len(offset)) if row not in kept.hidden)


_text = st.text(alphabet="ab ü€\U0001d518", max_size=5).map(str.encode) | st.binary(max_size=5)
_names = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"KEY", b"UNIQ_KEYS"])


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=6) | st.just("Zürich".encode()),
            st.lists(st.tuples(_names, _text.map(lambda text: text.translate(None, b"\1\2"))), max_size=5),
            st.sampled_from([0, 4, 8, 12]),
            st.sampled_from([3_599_999, 3_600_000, 1_795_500_000_123, -5]),
            st.booleans(),
        ),
        max_size=4,
    ),
    st.integers(0, 1 << 40),
)
def test_index_keys_pack_alike(
    messages: list[tuple[bytes, list[tuple[bytes, bytes]], int, int, bool]], base: int
) -> None:
    data, positions = bytearray(b"xx"), []
    for topic, found, sys_flag, timestamp, terminated in messages:
        text = b"\x02".join(name + b"\x01" + value for name, value in found) + b"\x02" * terminated
        positions.append(len(data))
        data += commitlog.encode(
            Record(topic=topic, properties=text, sys_flag=sys_flag, store_timestamp=timestamp, body=b"b")
        )
    array, at = np.frombuffer(bytes(data), np.uint8), np.array(positions, np.int64)
    fast, slow = rocksdb.pack_keys(array, at, base), rocksdb.pack_keys_slowly(array, at, base)
    assert dict(zip(fast.texts(), fast.timestamp.tolist(), strict=True)) == dict(
        zip(slow.texts(), slow.timestamp.tolist(), strict=True)
    )
