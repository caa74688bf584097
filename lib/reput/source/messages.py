"""The messages of a part as Arrow record batches.

Records are found and taken apart in blocks by :mod:`reput.scan.frames`. Texts go from the log to Arrow as
they are, since nearly all are UTF-8; the others become what Java makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.errors import Finding
from reput.format import javastring
from reput.format.names import Queue
from reput.log.segments import open_segment
from reput.scan.frames import (
    BYTES,
    ENTRIES,
    Frames,
    FrameWalk,
    Runs,
    blocks_at,
    frames,
    gather,
    gather_in_order,
    which_crc,
)
from reput.scan.output import Status
from reput.scan.part import missing_range
from reput.scan.rules import Part
from reput.source import arrow
from reput.source.columns import MESSAGE_COLUMNS, STORE_COLUMN, arrow_schema
from reput.source.filters import Range, Wanted
from reput.source.ranges import ReadStatistics
from reput.store.witness import FileSeen

if TYPE_CHECKING:
    from reput.verify.proven import QueueUnits

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
    by_queue: tuple[int, int] | None = None,
    units: tuple[QueueUnits, ...] | None = None,
    damage: list[Finding] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages that begin in ``part``, in log order.

    Args:
        part: the range; the segment is walked from its first byte, so that ``start`` may be any offset.
        names: the columns, ``store`` among them if it is wanted.
        wanted: which messages, by the columns of :data:`reput.source.columns.MESSAGE_FILTERS`; None for all.
        seen: what the planner read of the part; None doesn't ask.
        by_queue: so many messages, and bytes of their records, at most are a batch, in which they are in
            order of topic, queueId, queueOffset, and of the log, topic and hosts as dictionaries; None for
            small batches in log order.
        units: those that lead to all wanted messages of the segment, and to others; None where the log has to
            be walked.
        damage: gets what is passed over, also where it begins before the part; then a part with an exact
            start is walked from there.
    """
    wanted, reads = wanted or Wanted(), reads or ReadStatistics()
    segment = open_segment(part.path, part.segment_length, keeps=False)
    data = segment.data
    reads.files += 1
    if seen is not None:
        seen.check_mapped(data, part.base)
        reads.passed += seen.read
    schema = arrow_schema(names, {**STORE_COLUMN, **MESSAGE_COLUMNS})
    most_rows, most_bytes = by_queue or (BATCH_ROWS, BATCH_BYTES)
    out = frames(most_rows)
    store = settings.place
    known = None
    if units is not None:
        from reput.source.proven import places

        known = places(units, settings, wanted, part, reads)
    if known is not None:
        blocks = _at(known, data, part, settings, out, most_bytes, reads)
    else:

        def skipped(status: Status, position: int, end: int, outcome: str) -> None:
            if damage is not None and part.base + end > part.start:
                at, entries = part.base + position, settings.entries
                if status is Status.BAD_CRC:
                    only = settings.force_verify_prop_crc
                    status = which_crc(data.data, position, property_crc_only=only)
                damage.append(
                    missing_range(part, data, at, part.base + end, status, outcome, entries=entries)
                )

        walk = FrameWalk.over(
            part,
            data,
            settings,
            position=part.start - part.base if damage is not None and part.exact else 0,
            arriving=segment.arriving,
            skipped=None if damage is None else skipped,
        )
        blocks = _walked(walk, part, out, most_bytes, reads)
    for rows in blocks:
        block = _Block(data, part.base, out, rows, store, reads)
        kept = _kept(block, wanted)
        if kept is not None:
            block = replace(block, rows=len(kept), kept=kept)
        if by_queue is not None and block.rows:
            block = _ordered(block, names)
        if block.rows:
            reads.rows += block.rows
            arrays = [_COLUMNS[name](block) for name in names]
            if by_queue is None:
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            else:
                yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def _walked(
    walk: FrameWalk, part: Part, out: Frames, most_bytes: int, reads: ReadStatistics
) -> Iterator[int]:
    walk.advance(part.start - part.base)
    at = min(walk.position, part.segment_length)
    reads.passed += at
    for rows in walk.blocks(part.end - part.base, out, most_bytes):
        reads.read += min(walk.position, part.segment_length) - at
        at = min(walk.position, part.segment_length)
        yield rows


def _at(
    known: NDArray[np.int64],
    data: NDArray[np.uint8],
    part: Part,
    settings: StoreSettings,
    out: Frames,
    most_bytes: int,
    reads: ReadStatistics,
) -> Iterator[int]:
    for rows in blocks_at(data, part, known, settings, out, most_bytes):
        reads.read += int(out.counts[BYTES])
        yield rows


@dataclass(frozen=True, slots=True)
class _Block:
    """Some records: ``frames`` says where in ``data`` everything lies."""

    data: NDArray[np.uint8]
    base: int
    frames: Frames
    rows: int  # how many there are, after ``kept``
    store: str  # the store's directory
    reads: ReadStatistics  # where copied bytes are counted
    #: int64[rows], the ordinals of those that are wanted; None for all, in log order
    kept: NDArray[np.int64] | None = None
    #: what :meth:`pieces` returns, if they aren't in log order; None if they are
    made: Mapping[str, tuple[NDArray[np.int32], NDArray[np.uint8]]] | None = None
    topics: pa.Array | None = None  # their topics; None where nobody has looked yet

    def column(self, name: str) -> NDArray[Any]:
        """A column's own copy: the frames are filled again for the next block."""
        column: NDArray[Any] = getattr(self.frames, name)
        return column[: self.rows].copy() if self.kept is None else column[self.kept]

    def pieces(
        self, name: str, which: slice | NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """The bytes of a column's values, copied; see :func:`reput.scan.frames.gather`.

        Args:
            which: of them; None for those of the rows.
        """
        if self.made is not None:
            offsets, raw = self.made[name]
        else:
            starts, lengths = (getattr(self.frames, each) for each in (name, f"{name}_length"))
            if which is None:
                which = slice(0, self.rows) if self.kept is None else self.kept
            offsets, raw = gather(self.data, starts[which], lengths[which])
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
        known = topics.dictionary.to_pylist()
        codes = np.frombuffer(topics.indices.buffers()[1], np.int32, block.rows)
        kept &= np.array([topic in wanted.texts["topic"] for topic in known], np.bool_)[codes]
        if wanted.queues is not None:
            kept &= _in_queues(block, wanted.queues, known, codes)
    return None if kept.all() else np.flatnonzero(kept)


def _in_queues(
    block: _Block, queues: Mapping[Queue, Range], topics: list[str], codes: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Which messages have one of the wanted queueOffsets of their queue: bool[rows]."""
    queue_id, queue_offset = block.column("queue_id"), block.column("queue_offset")
    fits = np.zeros(block.rows, np.bool_)
    for (topic, number), offsets in queues.items():
        if topic in topics:
            rows = np.flatnonzero((codes == topics.index(topic)) & (queue_id == number))
            fits[rows] = offsets.holds(queue_offset[rows])
    return fits


def _ordered(block: _Block, names: tuple[str, ...]) -> _Block:
    """A block's messages in order of their queues.

    Args:
        names: the columns that are wanted.
    """
    topics = _topic(block).dictionary_encode()
    codes = np.frombuffer(topics.indices.buffers()[1], np.int32, block.rows)
    ranks = np.empty(len(topics.dictionary), np.int64)
    ranks[np.asarray(pc.sort_indices(topics.dictionary))] = np.arange(len(ranks))
    queues = (ranks[codes] << 32) + block.column("queue_id")
    order = np.lexsort((block.column("queue_offset"), queues))
    places = np.empty(block.rows, np.int64)
    places[order] = np.arange(block.rows)
    records = np.arange(block.rows) if block.kept is None else block.kept
    ordered = replace(
        block,
        kept=records[order],
        topics=pa.DictionaryArray.from_arrays(arrow.numbers(codes[order]), topics.dictionary),
    )
    runs = Runs(records, records + 1, places)
    found, columns = block.frames, {}
    for one in (piece for name in names for piece in _PIECES.get(name, ())):
        columns[one] = (getattr(found, one), getattr(found, f"{one}_length"), runs)
    if "properties" in names:
        ends, _ = _entries(ordered)
        begins = _firsts(found.entry_end, records)
        entries = Runs(begins, found.entry_end[records], ends[places].astype(np.int64))
        columns["name"] = (found.name, found.name_length, entries)
        columns["value"] = (found.value, found.value_length, entries)
    made = gather_in_order(block.data, list(columns.values()))
    return replace(ordered, made=dict(zip(columns, made, strict=True)))


#: What :meth:`_Block.pieces` is asked for by columns, but for topic and properties.
_PIECES = {
    "bornHost": ("born_host",),
    "storeHost": ("store_host",),
    "tags": ("tags",),
    "keys": ("keys",),
    "uniqKey": ("unique_key",),
    "body": ("body",),
}
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
        if block.made is not None:
            return pa.DictionaryArray.from_arrays(raw.indices, hosts)
        return hosts.take(raw.indices)

    return make


def host_text(raw: bytes) -> str:
    """A host field as text, e.g. ``127.0.0.1:10911`` or ``[2001:db8::1]:80``; 4 or 16 bytes and the port."""
    address, port = ip_address(raw[:-4]), int.from_bytes(raw[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _property(name: str) -> Callable[[_Block], pa.Array]:
    """A property's text, null without it: it can't be there and empty."""

    def make(block: _Block) -> pa.Array:
        return _texts(*block.pieces(name), block.column(f"{name}_length") > 0)[0]

    return make


def _topic(block: _Block) -> pa.Array:
    return _texts(*block.pieces("topic"))[0] if block.topics is None else block.topics


def _properties(block: _Block) -> pa.Array:
    ends, entries = _entries(block)
    names, is_java = _texts(*block.pieces("name", entries))
    values, _ = _texts(*block.pieces("value", entries))
    # Names that differ only in bytes that aren't UTF-8 are one name to Java; the last value wins.
    if is_java and any("\ufffd" in name for name in names.unique().to_pylist()):
        pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
        rows = [list(dict(pairs[start:end]).items()) for start, end in pairwise(ends)]
        return pa.array(rows, pa.map_(pa.string(), pa.string()))
    return pa.MapArray.from_arrays(arrow.numbers(ends), names, values)


def _entries(block: _Block) -> tuple[NDArray[np.int32], slice | NDArray[np.int64] | None]:
    """Where each row's properties end, int32[rows + 1], counted from the first row's, and which they are."""
    entry_end, kept = block.frames.entry_end, block.kept
    ends = np.zeros(block.rows + 1, np.int32)
    if kept is None:
        ends[1:] = entry_end[: block.rows]
        return ends, slice(0, int(block.frames.counts[ENTRIES]))
    firsts = _firsts(entry_end, kept)
    np.cumsum(entry_end[kept] - firsts, out=ends[1:])
    return ends, None if block.made is not None else arrow.spread(firsts, entry_end[kept] - firsts)


def _firsts(entry_end: NDArray[np.int64], records: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(records > 0, entry_end[records - 1], 0)


def _pieces(block: _Block, kind: pa.DataType, name: str) -> pa.Array:
    return arrow.pieces(kind, *block.pieces(name))


def _texts(
    offsets: NDArray[np.int32], raw: NDArray[np.uint8], present: NDArray[np.bool_] | None = None
) -> tuple[pa.Array, bool]:
    """Pieces as strings, null where ``present`` is False; whether some aren't UTF-8: those are as Java's."""
    if not _are_utf8(offsets, raw):
        texts = [javastring.decode(raw[start:end].tobytes()) for start, end in pairwise(offsets)]
        return arrow.strings(texts, present), True
    return arrow.pieces(pa.string(), offsets, raw, present), False


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
