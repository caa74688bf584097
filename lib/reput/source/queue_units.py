"""The units of consume queue files as Arrow record batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput.format import consumequeueext
from reput.format.dtypes import BATCH_UNIT_DTYPE, EXT_HEAD_DTYPE, UNIT_DTYPE, UnitKind, classify
from reput.log.segments import map_segment
from reput.source import arrow, queue_keys
from reput.source.columns import QUEUE_COLUMNS, arrow_schema
from reput.source.filters import Wanted
from reput.source.queue_files import BATCH, DAMAGED, HOLE, PLAIN, PRE_BLANK, UnitRange, based_files
from reput.source.ranges import BATCH as BATCH_UNITS
from reput.source.ranges import ReadStatistics, opened, stretches

_EXT_HEAD = EXT_HEAD_DTYPE
_KINDS = (PLAIN, BATCH, PRE_BLANK, HOLE, DAMAGED)
_NUMBER = {kind: np.int8(number) for number, kind in enumerate(_KINDS)}
_OF_PLAIN = np.zeros(len(UnitKind), np.int8)
_OF_PLAIN[[UnitKind.MESSAGE, UnitKind.PRE_BLANK, UnitKind.EMPTY, UnitKind.BROKEN]] = [
    _NUMBER[kind] for kind in (PLAIN, PRE_BLANK, HOLE, DAMAGED)
]


def read(
    part: UnitRange, names_: tuple[str, ...], wanted: Wanted, reads: ReadStatistics, *, blanks: bool
) -> Iterator[pa.RecordBatch]:
    """The wanted units of a range, in the order of the file.

    Args:
        wanted: which units; its columns are those of :data:`reput.source.columns.QUEUE_FILTERS`.
        blanks: places without a unit are rows, too, up to the queue's last unit.
    """
    kind = BATCH_UNIT_DTYPE if part.is_batch else UNIT_DTYPE
    schema = arrow_schema(names_, QUEUE_COLUMNS)
    needs_ext = part.ext is not None and bool(
        {"storeTimestamp", "extTagsCode", "bitMap"} & (set(names_) | wanted.columns)
    )
    ext = _Ext(Path(part.ext), reads) if needs_ext and part.ext is not None else None
    if part.database is not None:
        for offsets, units in queue_keys.read(part, reads):
            is_unit = (units["position"] >= 0) & (units["size"] > 0)
            kinds = np.where(is_unit, _NUMBER[PLAIN], _NUMBER[DAMAGED])
            rows = _Rows(part, offsets, units, kinds)
            rows = rows if blanks else rows.kept(is_unit)
            yield from _batches(rows.kept(_fits(rows, wanted)), names_, schema, None, reads)
        return
    with opened(part.path, "a consume queue file", reads) as descriptor:
        found = stretches(descriptor, kind, part.first, part.last, 0, reads)
        if blanks:
            length = os.fstat(descriptor).st_size // kind.itemsize
            end = part.last if part.goes_on else _end_of_units(descriptor, kind, part.first, length, reads)
            found = _with_holes(found, kind, part.first, min(end, part.last))
        for ordinal, units in found:
            rows = _rows(part, ordinal, units, blanks=blanks)
            if ext is not None:
                rows = replace(rows, ext=ext.look_up(rows))
            yield from _batches(rows.kept(_fits(rows, wanted)), names_, schema, ext, reads)


def _batches(
    rows: _Rows, names_: tuple[str, ...], schema: pa.Schema, ext: _Ext | None, reads: ReadStatistics
) -> Iterator[pa.RecordBatch]:
    """The rows as one batch; none where there are no rows."""
    if len(rows.units):
        reads.rows += len(rows.units)
        columns = [_column(rows, name, ext) for name in names_]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found in consumequeue_ext of some units."""

    file: NDArray[np.int32]  # int32[units], which file has it, -1 for none
    position: NDArray[np.int64]  # int64[units], where in that file
    head: NDArray[np.void]  # its fields without the bit map

    def kept(self, which: NDArray[np.bool_]) -> _Found:
        """Those for which ``which`` is true."""
        return _Found(self.file[which], self.position[which], self.head[which])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some units."""

    part: UnitRange  # where they come from
    ordinal: NDArray[np.int64]  # int64[units], places in the queue
    units: NDArray[np.void]  # as they are stored
    kind: NDArray[np.int8]  # int8[units], of ``_KINDS``
    ext: _Found | None = None  # what was found in consumequeue_ext; None before it is looked for

    def kept(self, which: NDArray[np.bool_]) -> _Rows:
        """Those for which ``which`` is true."""
        if which.all():
            return self
        ext = None if self.ext is None else self.ext.kept(which)
        return _Rows(self.part, self.ordinal[which], self.units[which], self.kind[which], ext)

    @property
    def is_message(self) -> NDArray[np.bool_]:
        """Units that say where a message is: all but places without one."""
        is_message: NDArray[np.bool_] = (self.kind != _NUMBER[PRE_BLANK]) & (self.kind != _NUMBER[HOLE])
        return is_message

    @property
    def has_ext(self) -> NDArray[np.bool_]:
        """Units whose unit of consumequeue_ext was found."""
        return np.zeros(len(self.units), np.bool_) if self.ext is None else self.ext.file >= 0

    def field(self, name: str, kind: type[np.signedinteger]) -> NDArray[np.signedinteger]:
        """A field in this machine's byte order."""
        return self.units[name].astype(kind)

    @property
    def queue_offset(self) -> NDArray[np.int64]:
        """The queueOffset of each unit's first message."""
        return self.units["base_offset"].astype(np.int64) if self.part.is_batch else self.ordinal

    @property
    def store_timestamp(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The times that are known, ms, and which are."""
        if self.part.is_batch or self.part.database is not None:
            return self.units["timestamp"].astype(np.int64), self.is_message
        return self.ext_field("timestamp"), self.has_ext

    def ext_field(self, name: str) -> NDArray[np.int64]:
        """A field of the units in consumequeue_ext, 0 if missing."""
        return (
            np.zeros(len(self.units), np.int64) if self.ext is None else self.ext.head[name].astype(np.int64)
        )


class _Ext:
    """A queue's files in consumequeue_ext: ``ConsumeQueueExt.get``, ``CqExtUnit.read``."""

    def __init__(self, directory: Path, reads: ReadStatistics) -> None:
        found = based_files(directory)
        self._bases = np.array([base for base, _ in found], np.int64)
        self._entries = [entry for _, entry in found]
        self._data: dict[int, NDArray[np.uint8]] = {}
        self._touched = reads

    def look_up(self, rows: _Rows) -> _Found:
        """The units that these units lead to."""
        count = len(rows.units)
        found = _Found(np.full(count, -1, np.int32), np.zeros(count, np.int64), np.zeros(count, _EXT_HEAD))
        tags = rows.units["tags"].astype(np.int64)
        leads = rows.is_message & (tags <= consumequeueext.MAX_ADDRESS)
        if not len(self._bases) or not leads.any():
            return found
        place = np.where(leads, tags - consumequeueext.FIRST_ADDRESS, 0)
        file = np.where(leads, np.searchsorted(self._bases, place, "right") - 1, -1).astype(np.int32)
        for number in np.unique(file[file >= 0]).tolist():
            data = self._file(number)
            at = np.flatnonzero(file == number)
            position = place[at] - self._bases[number]
            at, position = (values[position + _EXT_HEAD.itemsize <= len(data)] for values in (at, position))
            heads = data[position[:, None] + np.arange(_EXT_HEAD.itemsize)].view(_EXT_HEAD)[:, 0]
            self._touched.read += heads.nbytes
            is_unit = heads["size"] > 0
            at, position, heads = at[is_unit], position[is_unit], heads[is_unit]
            found.file[at], found.position[at], found.head[at] = number, position, heads
        return found

    def bit_maps(self, rows: _Rows) -> pa.Array:
        """The bit maps, null if missing."""
        count = len(rows.units)
        found = rows.ext
        if found is None:
            return _no_bytes(count)
        lengths = np.maximum(rows.ext_field("width"), 0)
        starts = found.position + _EXT_HEAD.itemsize
        files = np.unique(found.file[lengths > 0]).tolist()
        for number in files:
            # One that goes on behind the file's end is none.
            lengths[(found.file == number) & (starts + lengths > len(self._file(number)))] = 0
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        raw = np.empty(int(offsets[-1]), np.uint8)
        for number in files:
            at = np.flatnonzero((found.file == number) & (lengths > 0))
            target = arrow.spread(offsets[at].astype(np.int64), lengths[at])
            raw[target] = self._file(number)[arrow.spread(starts[at], lengths[at])]
        self._touched.read += len(raw)
        return arrow.pieces(pa.binary(), offsets, raw, lengths > 0)

    def _file(self, number: int) -> NDArray[np.uint8]:
        data = self._data.get(number)
        if data is None:
            entry = self._entries[number]
            data = self._data[number] = map_segment(entry.path, entry.length)
            self._touched.files += 1
        return data


def _rows(part: UnitRange, ordinal: int, units: NDArray[np.void], *, blanks: bool) -> _Rows:
    if part.is_batch:
        is_unit = (units["position"] >= 0) & (units["size"] > 0)
        is_unit &= (units["base_offset"] >= 0) & (units["batch_size"] > 0)
        kind = np.where(is_unit, _NUMBER[BATCH], _NUMBER[DAMAGED])
        kind = np.where(_are_written(units), kind, _NUMBER[HOLE])
    else:
        kind = _OF_PLAIN[classify(units)]
    rows = _Rows(part, part.base + ordinal + np.arange(len(units), dtype=np.int64), units, kind)
    return rows if blanks else rows.kept(kind <= _NUMBER[BATCH])


def _fits(rows: _Rows, wanted: Wanted) -> NDArray[np.bool_]:
    fits = np.ones(len(rows.units), np.bool_)
    if "kind" in wanted.texts:
        of_kind = np.array([kind in wanted.texts["kind"] for kind in _KINDS], np.bool_)
        fits &= of_kind[rows.kind]
    if "queueOffset" in wanted.columns:
        fits &= wanted.range_of("queueOffset").holds(rows.queue_offset)
        if rows.part.is_batch:
            fits &= rows.is_message
    if "physicalOffset" in wanted.columns:
        fits &= rows.is_message & wanted.range_of("physicalOffset").holds(rows.field("position", np.int64))
    if "storeTimestamp" in wanted.columns:
        times, known = rows.store_timestamp
        fits &= known & arrow.are_timestamps(times) & wanted.range_of("storeTimestamp").holds(times)
    return fits


def _column(rows: _Rows, name: str, ext: _Ext | None) -> pa.Array:
    count, part = len(rows.units), rows.part
    match name:
        case "store":
            return arrow.repeated(part.store, count)
        case "topic":
            return arrow.repeated(part.topic, count)
        case "queueId":
            return arrow.numbers(np.full(count, part.queue_id, np.int32))
        case "queueOffset":
            return arrow.numbers(rows.queue_offset, present=rows.is_message if part.is_batch else None)
        case "kind":
            return arrow.labels(_KINDS, rows.kind.astype(np.int32))
        case "physicalOffset":
            return arrow.numbers(rows.field("position", np.int64), present=rows.is_message)
        case "size":
            return arrow.numbers(rows.field("size", np.int32), present=rows.is_message)
        case "tagsCode":
            return arrow.numbers(rows.field("tags", np.int64), present=rows.is_message)
        case "storeTimestamp":
            return arrow.timestamps(*rows.store_timestamp)
        case "extTagsCode":
            return arrow.numbers(rows.ext_field("tags"), present=rows.has_ext)
        case "bitMap":
            return _no_bytes(count) if ext is None else ext.bit_maps(rows)
        case "baseOffset":
            return _of_batches(rows, "base_offset", np.int64)
        case "batchSize":
            return _of_batches(rows, "batch_size", np.int32)
    return _of_batches(rows, "compacted", np.int32)


def _of_batches(rows: _Rows, field: str, kind: type[np.signedinteger]) -> pa.Array:
    if not rows.part.is_batch:
        nothing = np.zeros(len(rows.units), kind)
        return arrow.numbers(nothing, present=np.zeros(len(nothing), np.bool_))
    return arrow.numbers(rows.field(field, kind), present=rows.is_message)


def _no_bytes(count: int) -> pa.Array:
    return arrow.pieces(pa.binary(), np.zeros(count + 1, np.int32), b"", np.zeros(count, np.bool_))


def _with_holes(
    found: Iterator[tuple[int, NDArray[np.void]]], kind: np.dtype[np.void], first: int, end: int
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """The stretches up to ``end``, with those of zeros between them that the file has as holes."""
    at = first
    for ordinal, units in found:
        yield from _zeros(kind, at, min(ordinal, end))
        if ordinal >= end:
            return
        yield ordinal, units[: end - ordinal]
        at = ordinal + len(units)
    yield from _zeros(kind, at, end)


def _zeros(kind: np.dtype[np.void], first: int, end: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    for at in range(first, end, BATCH_UNITS):
        yield at, np.zeros(min(BATCH_UNITS, end - at), kind)


def _end_of_units(
    descriptor: int, kind: np.dtype[np.void], first: int, length: int, reads: ReadStatistics
) -> int:
    """After the last unit of a file, from ``first`` on, that isn't all zeros; ``first`` if there is none."""
    end = first
    for ordinal, units in stretches(descriptor, kind, first, length, 0, reads):
        written = np.flatnonzero(_are_written(units))
        if len(written):
            end = ordinal + int(written[-1]) + 1
    return end


def _are_written(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which units aren't all zeros, bool[units]."""
    return np.asarray(units.view(np.uint8).reshape(len(units), -1).any(axis=1), np.bool_)
