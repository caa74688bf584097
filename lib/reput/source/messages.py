"""The messages of a part as Arrow record batches.

Records are found and taken apart in blocks by :mod:`reput.scan.frames`. Texts go from the log to Arrow as
they are, since nearly all are UTF-8; the others become what Java makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput.format import javastring
from reput.scan.frames import ENTRIES, ROWS, Frames, FrameWalk, frames, gather, has_stored_crc
from reput.settings import StoreSettings
from reput.source import arrow
from reput.source.columns import MESSAGE_COLUMNS, arrow_schema
from reput.source.parts import LogPart
from reput.store.segments import map_segment

#: Bytes of records in one batch; a larger record is a batch of its own.
BATCH_BYTES = 8 << 20
BATCH_ROWS = 10_000

_MICROSECONDS = 1000
# Spark's timestamps, and Python's, run from the year 1 to 9999.
_LEAST_MS, _MOST_MS = -62_135_596_800_000, 253_402_300_799_999


def read(
    part: LogPart, settings: StoreSettings, names: tuple[str, ...] = tuple(MESSAGE_COLUMNS)
) -> Iterator[pa.RecordBatch]:
    """The messages that begin in ``part``, in log order.

    Args:
        part: the range; the segment is walked from its first byte, so that ``start`` may be any offset.
        settings: the store's.
        names: the columns.

    Raises:
        StoreError: the segment can't be read.
    """
    data = map_segment(part.path, part.segment_length)
    view = data.data

    def is_whole(position: int) -> bool:
        return has_stored_crc(view, position, property_crc_only=settings.force_verify_prop_crc)

    stop = part.end - part.base
    walk = FrameWalk(
        data,
        part.base,
        part.segment_size,
        stop,
        last=part.last,
        topic_length_v2=settings.dialect.topic_length_v2,
        is_whole=is_whole,
        entries=settings.entries,
    )
    walk.advance(part.start - part.base)
    schema = arrow_schema(names, MESSAGE_COLUMNS)
    out = frames(BATCH_ROWS)
    more = True
    while more:
        out.counts.fill(0)
        more = walk.advance(stop, out, BATCH_BYTES)
        if out.counts[ROWS]:
            block = _Block(data, part.base, out, int(out.counts[ROWS]))
            yield pa.RecordBatch.from_arrays([_COLUMNS[name](block) for name in names], schema=schema)


@dataclass(frozen=True, slots=True)
class _Block:
    """Some records: ``frames`` says where in ``data`` everything lies."""

    data: NDArray[np.uint8]
    base: int
    frames: Frames
    rows: int

    def column(self, name: str) -> NDArray[Any]:
        """A column's own copy: the frames are filled again for the next block."""
        column: NDArray[Any] = getattr(self.frames, name)
        return column[: self.rows].copy()


def _number(name: str) -> Callable[[_Block], pa.Array]:
    return lambda block: arrow.numbers(block.column(name))


def _timestamp(name: str) -> Callable[[_Block], pa.Array]:
    """Null where a time is no timestamp to Spark: no clock wrote it."""

    def make(block: _Block) -> pa.Array:
        times = block.column(name)
        fits = (_LEAST_MS <= times) & (times <= _MOST_MS)
        kind = pa.timestamp("us", tz="UTC")
        return arrow.numbers(np.where(fits, times, 0) * _MICROSECONDS, kind, fits)

    return make


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
        return _texts(block.data, block.column(name), lengths, lengths > 0)

    return make


def _topic(block: _Block) -> pa.Array:
    return _texts(block.data, block.column("topic"), block.column("topic_length"))


def _physical_offset(block: _Block) -> pa.Array:
    return arrow.numbers(block.column("position") + block.base)


def _size(block: _Block) -> pa.Array:
    return arrow.numbers(block.column("size").astype(np.int32))


def _body(block: _Block) -> pa.Array:
    return _pieces(block, pa.binary(), "body")


def _properties(block: _Block) -> pa.Array:
    found = block.frames
    entries = int(found.counts[ENTRIES])
    names = _texts(block.data, found.name[:entries], found.name_length[:entries])
    values = _texts(block.data, found.value[:entries], found.value_length[:entries])
    ends = np.zeros(block.rows + 1, np.int32)
    ends[1:] = found.entry_end[: block.rows]
    # Names that differ only in bytes that aren't UTF-8 are one name to Java; the last value wins.
    if any("\ufffd" in name for name in names.unique().to_pylist()):
        pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
        rows = [list(dict(pairs[start:end]).items()) for start, end in pairwise(ends)]
        return pa.array(rows, pa.map_(pa.string(), pa.string()))
    return pa.MapArray.from_arrays(arrow.numbers(ends), names, values)


def _pieces(block: _Block, kind: pa.DataType, name: str) -> pa.Array:
    offsets, raw = gather(block.data, block.column(name), block.column(f"{name}_length"))
    return arrow.pieces(kind, offsets, raw)


def _texts(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    present: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Pieces of the log as strings; null where ``present`` is False."""
    offsets, raw = gather(data, starts, lengths)
    if not _are_utf8(offsets, raw):
        texts = [_decode(raw[start:end].tobytes()) for start, end in pairwise(offsets)]
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


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return javastring.decode(raw)


_COLUMNS: dict[str, Callable[[_Block], pa.Array]] = {
    "topic": _topic,
    "queueId": _number("queue_id"),
    "queueOffset": _number("queue_offset"),
    "physicalOffset": _physical_offset,
    "size": _size,
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
    "body": _body,
}
