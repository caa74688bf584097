"""The messages of a part as Arrow record batches.

Records are found and taken apart in blocks by :mod:`reput.scan.frames`. Texts go from the log to Arrow as
they are, since nearly all are UTF-8; the others become what Java makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.format import javastring
from reput.log.segments import open_segment
from reput.scan.frames import ENTRIES, Frames, FrameWalk, frames, gather
from reput.scan.rules import Part
from reput.source import arrow
from reput.source.columns import MESSAGE_COLUMNS, STORE_COLUMN, arrow_schema
from reput.source.filters import Wanted
from reput.source.read_statistics import ReadStatistics
from reput.store.witness import FileSeen

#: Bytes of records in one batch; a larger record is a batch of its own.
BATCH_BYTES = 8 << 20
BATCH_ROWS = 10_000


def read(
    part: Part,
    settings: StoreSettings,
    names: tuple[str, ...] = tuple(MESSAGE_COLUMNS),
    wanted: Wanted | None = None,
    reads: ReadStatistics | None = None,
    seen: FileSeen | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages that begin in ``part``, in log order.

    Args:
        part: the range; the segment is walked from its first byte, so that ``start`` may be any offset.
        names: the columns, ``store`` among them if it is wanted.
        wanted: which messages, by the columns of :data:`reput.source.columns.MESSAGE_FILTERS`; None for all.
        seen: what the planner read of the part; None doesn't ask.

    Raises:
        StoreError: the segment can't be read, or the planner has another one.
    """
    wanted, reads = wanted or Wanted(), reads or ReadStatistics()
    segment = open_segment(part.path, part.segment_length, keeps=False)
    data = segment.data
    reads.files += 1
    if seen is not None:
        seen.check_mapped(data, part.base)
        reads.passed += seen.read
    stop = part.end - part.base
    walk = FrameWalk.over(part, data, settings, arriving=segment.arriving)
    schema = arrow_schema(names, {**STORE_COLUMN, **MESSAGE_COLUMNS})
    out = frames(BATCH_ROWS)
    store = settings.place
    walk.advance(part.start - part.base)
    at = min(walk.position, part.segment_length)
    reads.passed += at
    for rows in walk.blocks(stop, out, BATCH_BYTES):
        reads.read += min(walk.position, part.segment_length) - at
        at = min(walk.position, part.segment_length)
        block = _Block(data, part.base, out, rows, store, reads)
        kept = _kept(block, wanted)
        if kept is not None:
            block = replace(block, rows=len(kept), kept=kept)
        if block.rows:
            reads.rows += block.rows
            yield pa.RecordBatch.from_arrays([_COLUMNS[name](block) for name in names], schema=schema)


@dataclass(frozen=True, slots=True)
class _Block:
    """Some records: ``frames`` says where in ``data`` everything lies.

    Attributes:
        rows: how many there are, after ``kept``.
        store: the store's directory.
        reads: where copied bytes are counted.
        kept: int64[rows], the ordinals of those that are wanted; None for all.
    """

    data: NDArray[np.uint8]
    base: int
    frames: Frames
    rows: int
    store: str
    reads: ReadStatistics
    kept: NDArray[np.int64] | None = None

    def column(self, name: str) -> NDArray[Any]:
        """A column's own copy: the frames are filled again for the next block."""
        column: NDArray[Any] = getattr(self.frames, name)
        return column[: self.rows].copy() if self.kept is None else column[self.kept]

    def gather(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Pieces of the log, copied; see :func:`reput.scan.frames.gather`."""
        offsets, raw = gather(self.data, starts, lengths)
        self.reads.copied += len(raw)
        return offsets, raw


def _kept(block: _Block, wanted: Wanted) -> NDArray[np.int64] | None:
    """The ordinals of the wanted messages; None when all are."""
    if not wanted.columns:
        return None
    kept = np.full(block.rows, wanted.wants_text("store", block.store), np.bool_)
    for name, column in _NUMBERS.items():
        if name in wanted.ranges:
            kept &= wanted.ranges[name].holds(block.column(column))
    if "physicalOffset" in wanted.ranges:
        kept &= wanted.ranges["physicalOffset"].holds(block.column("position") + block.base)
    if "storeTimestamp" in wanted.columns:
        kept &= arrow.are_timestamps(block.column("store_timestamp"))
    if "topic" in wanted.texts and kept.any():
        topics = _topic(block).dictionary_encode()
        fits = np.array([topic in wanted.texts["topic"] for topic in topics.dictionary.to_pylist()], np.bool_)
        kept &= fits[np.frombuffer(topics.indices.buffers()[1], np.int32, block.rows)]
    return None if kept.all() else np.flatnonzero(kept)


_NUMBERS = {"queueId": "queue_id", "queueOffset": "queue_offset", "storeTimestamp": "store_timestamp"}


def _number(name: str) -> Callable[[_Block], pa.Array]:
    return lambda block: arrow.numbers(block.column(name))


def _timestamp(name: str) -> Callable[[_Block], pa.Array]:
    """Null where a time is no timestamp to Spark: no clock wrote it."""
    return lambda block: arrow.timestamps(block.column(name))


def _host(name: str) -> Callable[[_Block], pa.Array]:
    """``address:port``; a log holds few hosts, so each is written out once."""

    def make(block: _Block) -> pa.Array:
        raw = _pieces(block, pa.binary(), name).dictionary_encode()
        hosts = arrow.strings([host_text(host) for host in raw.dictionary.to_pylist()])
        return hosts.take(raw.indices)

    return make


def host_text(raw: bytes) -> str:
    """A host field as text, e.g. ``127.0.0.1:10911`` or ``[2001:db8::1]:80``; 4 or 16 bytes and the port."""
    address, port = ip_address(raw[:-4]), int.from_bytes(raw[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _property(name: str) -> Callable[[_Block], pa.Array]:
    """A property's text, null without it: it can't be there and empty."""

    def make(block: _Block) -> pa.Array:
        lengths = block.column(f"{name}_length")
        return _texts(block, block.column(name), lengths, lengths > 0)

    return make


def _topic(block: _Block) -> pa.Array:
    return _texts(block, block.column("topic"), block.column("topic_length"))


def _properties(block: _Block) -> pa.Array:
    found = block.frames
    ends, entries = _entries(block)
    names = _texts(block, found.name[entries], found.name_length[entries])
    values = _texts(block, found.value[entries], found.value_length[entries])
    # Names that differ only in bytes that aren't UTF-8 are one name to Java; the last value wins.
    if any("\ufffd" in name for name in names.unique().to_pylist()):
        pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
        rows = [list(dict(pairs[start:end]).items()) for start, end in pairwise(ends)]
        return pa.array(rows, pa.map_(pa.string(), pa.string()))
    return pa.MapArray.from_arrays(arrow.numbers(ends), names, values)


def _entries(block: _Block) -> tuple[NDArray[np.int32], slice | NDArray[np.int64]]:
    """Where each row's properties end, int32[rows + 1], counted from the first row's, and which they are."""
    if block.kept is None:
        ends = np.zeros(block.rows + 1, np.int32)
        ends[1:] = block.frames.entry_end[: block.rows]
        return ends, slice(0, int(block.frames.counts[ENTRIES]))
    lasts = block.frames.entry_end[block.kept]
    firsts = np.where(block.kept > 0, block.frames.entry_end[block.kept - 1], 0)
    ends = np.zeros(block.rows + 1, np.int32)
    np.cumsum(lasts - firsts, out=ends[1:])
    return ends, arrow.spread(firsts, lasts - firsts)


def _pieces(block: _Block, kind: pa.DataType, name: str) -> pa.Array:
    offsets, raw = block.gather(block.column(name), block.column(f"{name}_length"))
    return arrow.pieces(kind, offsets, raw)


def _texts(
    block: _Block,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    present: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Pieces of the log as strings; null where ``present`` is False."""
    offsets, raw = block.gather(starts, lengths)
    if not _are_utf8(offsets, raw):
        texts = [javastring.decode(raw[start:end].tobytes()) for start, end in pairwise(offsets)]
        return arrow.strings(texts, present)
    return arrow.pieces(pa.string(), offsets, raw, present)


def _are_utf8(offsets: NDArray[np.int32], raw: NDArray[np.uint8]) -> bool:
    """Whether every piece is UTF-8 by itself."""
    if not len(raw) or int(raw.max()) < 0x80:
        return True
    try:
        raw.tobytes().decode()
    except UnicodeDecodeError:
        return False
    # The whole is sound: so are the pieces, unless one begins inside a character.
    begins = offsets[:-1][offsets[:-1] < offsets[1:]]
    return not bool(np.any(raw[begins] & 0xC0 == 0x80))


_COLUMNS: dict[str, Callable[[_Block], pa.Array]] = {
    "store": lambda block: arrow.repeated(block.store, block.rows),
    "topic": _topic,
    "queueId": _number("queue_id"),
    "queueOffset": _number("queue_offset"),
    "physicalOffset": lambda block: arrow.numbers(block.column("position") + block.base),
    "size": lambda block: arrow.numbers(block.column("size").astype(np.int32)),
    "storeTimestamp": _timestamp("store_timestamp"),
    "bornTimestamp": _timestamp("born_timestamp"),
    "bornHost": _host("born_host"),
    "storeHost": _host("store_host"),
    "sysFlag": _number("sys_flag"),
    "flag": _number("flag"),
    "reconsumeTimes": _number("reconsume_times"),
    "preparedTransactionOffset": _number("prepared_transaction_offset"),
    "bodyCRC": _number("body_crc"),
    "tags": _property("tags"),
    "keys": _property("keys"),
    "uniqKey": _property("unique_key"),
    "properties": _properties,
    "body": lambda block: _pieces(block, pa.binary(), "body"),
}
