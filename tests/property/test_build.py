"""Packed units and index entries: the fast builders against their slow twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reput.build import index, units
from reput.format.indexfile import HEADER_LENGTH, IndexHeader, file_length
from reput.scan import output
from tests import slow_build
from tests.levels import examples

_int64 = st.integers(-(1 << 63), (1 << 63) - 1)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), _int64, _int64, st.integers(0, 2**31 - 1), _int64), max_size=30))
def test_units_pack_alike(rows: list[tuple[int, int, int, int, int]]) -> None:
    out = output.output()
    columns = (out.unit_queue, out.unit_offset, out.unit_position, out.unit_size, out.unit_tags)
    for at, row in enumerate(rows):
        for column, value in zip(columns, row, strict=True):
            column[at] = value
    out.counts[output.UNITS] = len(rows)
    fast, slow = units.pack(out, 5), slow_build.pack_units(out, 5)
    assert fast.data.tobytes() == slow.data.tobytes()
    assert [(q, o, bytes(d)) for q, o, d in fast.runs()] == [(q, o, bytes(d)) for q, o, d in slow.runs()]


_rows = st.lists(
    st.tuples(
        st.integers(0, 1 << 40),
        st.integers(-5, 1 << 43) | _int64,
        st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 12), min_size=1, max_size=4),
    ),
    max_size=25,
)


def key_rows(rows: list[tuple[int, int, list[int]]]) -> index.KeyRows:
    return index.KeyRows(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        np.array([len(row[2]) for row in rows], np.int32),
        np.array([key for row in rows for key in row[2]], np.int32),
    )


@settings(max_examples=examples(200), deadline=None)
@given(_rows, st.integers(1, 9), st.integers(2, 15), st.integers(1, 10), st.data())
def test_keys_put_alike(
    rows: list[tuple[int, int, list[int]]], slots: int, entries: int, step: int, data: st.DataObject
) -> None:
    """Both builders, file after file; the fast one gets its rows in pieces, as tasks do."""
    slow_files = _all_files_slowly(key_rows(rows), slots, entries)
    fast_files: list[bytes] = []
    header, slot_values, body = IndexHeader(), np.zeros(slots, np.int32), b""
    for start in range(0, len(rows), step):
        piece, skip = key_rows(rows[start : start + step]), 0
        while True:
            if header.index_count >= entries:
                fast_files.append(_file(header, slot_values, body, slots, entries))
                header, slot_values, body = header.successor(), np.zeros(slots, np.int32), b""
            put = index.put_keys(header, slot_values, piece, skip, entries)
            header, body = put.header, body + put.entries.tobytes()
            if put.rows == len(piece.position):
                break
            piece, skip = _rest(piece, put.rows, put.keys + skip)
    fast_files.append(_file(header, slot_values, body, slots, entries))
    assert fast_files == slow_files


def _rest(rows: index.KeyRows, done_rows: int, done_keys: int) -> tuple[index.KeyRows, int]:
    whole = int(rows.keys[:done_rows].sum())
    rest = index.KeyRows(
        rows.position[done_rows:], rows.timestamp[done_rows:], rows.keys[done_rows:], rows.key_hash[whole:]
    )
    return rest, done_keys - whole


def _file(header: IndexHeader, slot_values: np.ndarray, body: bytes, slots: int, entries: int) -> bytes:
    data = header.encode() + slot_values.astype(">i4").tobytes() + bytes(20) + body
    return data.ljust(file_length(slots, entries), b"\0")


def _all_files_slowly(rows: index.KeyRows, slots: int, entries: int) -> list[bytes]:
    files = []
    file = bytearray(file_length(slots, entries))
    file[:HEADER_LENGTH] = IndexHeader().encode()
    skip = 0
    while len(rows.position):
        put = slow_build.put_keys(file, rows, skip, slots, entries)
        rows, skip = _rest(rows, put.rows, put.keys + skip)
        if len(rows.position):
            files.append(bytes(file))
            file = bytearray(file_length(slots, entries))
            file[:HEADER_LENGTH] = put.header.successor().encode()
    return [*files, bytes(file)]


@settings(max_examples=examples(50), deadline=None)
@given(_rows, st.integers(1, 9))
def test_slots_are_recomputed_from_the_entries(rows: list[tuple[int, int, list[int]]], slots: int) -> None:
    put_slots = np.zeros(slots, np.int32)
    index.put_keys(IndexHeader(), put_slots, key_rows(rows), 0, 1000)
    again = np.zeros(slots, np.int32)
    index.rebuild_slots(key_rows(rows).key_hash, again, 1)
    assert again.tolist() == put_slots.tolist()
