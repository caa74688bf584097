"""The units of consume queues: which files can hold what a query wants, and Arrow batches of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.derived import rocksdb
from reput.derived.files import Entry, in_order, numbered_files
from reput.errors import StoreError
from reput.format import consumequeueext, names
from reput.format.dtypes import (
    BATCH,
    EXT_HEAD_DTYPE,
    IN_ROCKSDB,
    PLAIN,
    Form,
    UnitKind,
    are_written,
    classify,
)
from reput.log.segments import map_segment
from reput.rocksdb import CURRENT
from reput.source import arrow
from reput.source.columns import QUEUE_COLUMNS, arrow_schema
from reput.source.filters import Wanted
from reput.source.ranges import BATCH as BATCH_UNITS
from reput.source.ranges import ReadStatistics, check_whole, opened, stretches
from reput.store.reading import check_store, extents

PRE_BLANK, HOLE, DAMAGED = "pre-blank", "hole", "damaged"
_BLOCK = 512
#: Of the file that names a RocksDB's MANIFEST: a name of 15 bytes and a line feed.
CURRENT_LENGTH = 16


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Some units of one file."""

    path: str  # the file; in RocksDB the database's CURRENT
    store: str  # the store's directory
    topic: str  # the queue's, as text
    queue_id: int  # the queue's
    form: Form  # the queue's
    base: int = 0  # the ordinal in the queue of the file's first unit
    first: int = 0  # first, last: half-open range of units in the file; in RocksDB of queueOffsets
    last: int = 0
    goes_on: bool = False  # a later file of the queue holds something
    ext: str | None = None  # the queue's directory in consumequeue_ext; None if missing
    weight: int = 0  # bytes on the disk

    @property
    def span(self) -> tuple[int, int]:
        """The units' bytes in the file, half open; in RocksDB those that tell one state from another."""
        if self.form == IN_ROCKSDB:
            return 0, CURRENT_LENGTH
        return self.first * self.form.unit_length, self.last * self.form.unit_length


def ranges(
    settings: StoreSettings, wanted: Wanted, part_bytes: int, *, blanks: bool, reads: ReadStatistics
) -> Iterator[UnitRange]:
    """The units of a store that can be wanted, by topic, queueId and place.

    Args:
        part_bytes: no range has more bytes.
        blanks: places without a unit are wanted, too: it has to be known where a queue ends.
        reads: where files that were opened are counted.
    """
    check_store(settings.root, expected="a directory with consumequeue/", next_step="Check the path")
    if wanted.is_nothing:
        return
    wants_blanks = blanks and any(wanted.wants_text("kind", other) for other in (PRE_BLANK, HOLE, DAMAGED))
    if wanted.wants_text("kind", PLAIN.name):
        yield from _rocksdb_ranges(settings, wanted, part_bytes)
    sizes = {PLAIN: settings.consume_queue_file_size, BATCH: settings.recovery.batch_queue_file_size}
    for form, directory in ((PLAIN, names.CONSUME_QUEUE), (BATCH, names.BATCH_CONSUME_QUEUE)):
        if form == PLAIN and not settings.rocksdb.files:
            continue
        if wants_blanks or wanted.wants_text("kind", form.name):
            for queue in _queues(settings, directory, wanted, form):
                yield from _of_queue(queue, wanted, part_bytes, blanks, reads, sizes[form])


def _rocksdb_ranges(settings: StoreSettings, wanted: Wanted, part_bytes: int) -> Iterator[UnitRange]:
    """The units in RocksDB, by the order of their keys."""
    path = rocksdb.database_of(settings)
    if path is None:
        return
    most = max(part_bytes // IN_ROCKSDB.unit_length, 1)
    with rocksdb.open_queues(path) as db:
        for topic, queue_id in rocksdb.queues_with_units(db):
            text = topic.decode("utf-8", "replace")
            if queue_id < 0 or not wanted.wants_text("topic", text):
                continue
            if not rocksdb.is_read_from(settings, text):
                continue
            if wanted.range_of("queueId").clip(queue_id, queue_id) is None:
                continue
            ends = rocksdb.extent(db, topic, queue_id)
            span = None if ends is None else wanted.range_of("queueOffset").clip(ends[0], ends[1] - 1)
            if span is None:
                continue
            for first in range(span[0], span[1] + 1, most):
                last = min(first + most, span[1] + 1)
                weight = (last - first) * IN_ROCKSDB.unit_length
                place = str(path / CURRENT), settings.place, text, queue_id, IN_ROCKSDB
                yield UnitRange(*place, first=first, last=last, weight=weight)


def _queues(settings: StoreSettings, name: str, wanted: Wanted, form: Form) -> Iterator[UnitRange]:
    """A range of no units of each queue of a kind that can be wanted; its path is the queue's directory."""
    root = settings.root
    for topic in in_order(root / name):
        text = os.fsencode(topic.path.name).decode("utf-8", "replace")
        if not topic.is_dir or not wanted.wants_text("topic", text):
            continue
        for queue in in_order(topic.path):
            queue_id = _queue_id(queue)
            if queue_id is None or wanted.range_of("queueId").clip(queue_id, queue_id) is None:
                continue
            ext = root / names.CONSUME_QUEUE_EXT / topic.path.name / queue.path.name
            has_ext = not form.has_time and ext.is_dir()
            # Only these know a time.
            if "storeTimestamp" in wanted.columns and not (form.has_time or has_ext):
                continue
            place = str(queue.path), settings.place, text, queue_id, form
            yield UnitRange(*place, ext=str(ext) if has_ext else None)


def _of_queue(
    queue: UnitRange, wanted: Wanted, part_bytes: int, blanks: bool, reads: ReadStatistics, size: int
) -> Iterator[UnitRange]:
    unit = queue.form.unit_length
    found = numbered_files(Path(queue.path))
    with_data = [base for path, base, length in found if blanks and _has_data(path, length, reads)]
    most = max(part_bytes // unit, 1)
    for path, base, length in found:
        check_whole("consume queue", path, length, size)
        if base % unit:
            raise StoreError(
                "no unit of the queue begins where this file does",
                path=path,
                expected=f"a name that is a multiple of {unit}",
                found=base,
                next_step="See what the file is; badStores=skip reads the other stores without this one",
            )
        first, last = 0, length // unit
        if queue.form.by_place:
            # Its place is a unit's queueOffset. Those of a batch queue stand in the units.
            span = wanted.range_of("queueOffset").clip(base // unit, base // unit + last - 1)
            if span is None:
                continue
            first, last = span[0] - base // unit, span[1] - base // unit + 1
        weight = min(_on_disk(path), (last - first) * unit)
        for at in range(first, last, most):
            stop = min(at + most, last)
            yield replace(
                queue,
                path=str(path),
                base=base // unit,
                first=at,
                last=stop,
                goes_on=any(other > base for other in with_data),
                weight=weight * (stop - at) // (last - first),
            )


def _queue_id(entry: Entry) -> int | None:
    text = entry.path.name
    return int(text) if entry.is_dir and names.is_queue_id(text) else None


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * _BLOCK
    except OSError:
        return 0  # gone just now; who reads it says so


def _has_data(path: Path, length: int, reads: ReadStatistics) -> bool:
    """Whether there is a byte in a file that isn't zero."""
    with opened(path, "a consume queue file", reads) as descriptor:
        for begin, end in extents(descriptor, 0, length):
            for at in range(begin, end, 1 << 20):
                data = os.pread(descriptor, min(1 << 20, end - at), at)
                reads.passed += len(data)
                if data.count(0) != len(data):
                    return True
    return False


_EXT_HEAD = EXT_HEAD_DTYPE
_KINDS = (PLAIN.name, BATCH.name, PRE_BLANK, HOLE, DAMAGED)
_NUMBER = {kind: np.int8(number) for number, kind in enumerate(_KINDS)}
_OF_PLAIN = np.zeros(len(UnitKind), np.int8)
_OF_PLAIN[[UnitKind.MESSAGE, UnitKind.PRE_BLANK, UnitKind.EMPTY, UnitKind.BROKEN]] = [
    _NUMBER[kind] for kind in (PLAIN.name, PRE_BLANK, HOLE, DAMAGED)
]


def read(
    part: UnitRange, names_: tuple[str, ...], wanted: Wanted, reads: ReadStatistics, *, blanks: bool
) -> Iterator[pa.RecordBatch]:
    """The wanted units of a range, in the order of the file.

    Args:
        wanted: which units; its columns are those of :data:`reput.source.columns.QUEUE_FILTERS`.
        blanks: places without a unit are rows, too, up to the queue's last unit.
    """
    kind = part.form.dtype
    schema = arrow_schema(names_, QUEUE_COLUMNS)
    needs_ext = part.ext is not None and bool(
        {"storeTimestamp", "extTagsCode", "bitMap"} & (set(names_) | wanted.columns)
    )
    ext = _Ext(Path(part.ext), reads) if needs_ext and part.ext is not None else None
    if part.form == IN_ROCKSDB:
        for offsets, units in _in_rocksdb(part, reads):
            rows = _rows(part, offsets, units, blanks=blanks)
            yield from _batches(rows.kept(_fits(rows, wanted)), names_, schema, None, reads)
        return
    with opened(part.path, "a consume queue file", reads) as descriptor:
        found = stretches(descriptor, kind, part.first, part.last, 0, reads)
        if blanks:
            length = os.fstat(descriptor).st_size // kind.itemsize
            end = part.last if part.goes_on else _end_of_units(descriptor, kind, part.first, length, reads)
            found = _with_holes(found, kind, part.first, min(end, part.last))
        for ordinal, units in found:
            places = part.base + ordinal + np.arange(len(units), dtype=np.int64)
            rows = _rows(part, places, units, blanks=blanks)
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
        return self.ordinal if self.part.form.by_place else self.units["base_offset"].astype(np.int64)

    @property
    def store_timestamp(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The times that are known, ms, and which are."""
        if self.part.form.has_time:
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
        self._files = numbered_files(directory)
        self._bases = np.array([base for _, base, _ in self._files], np.int64)
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
            path, _, length = self._files[number]
            data = self._data[number] = map_segment(path, length)
            self._touched.files += 1
        return data


def _in_rocksdb(
    part: UnitRange, reads: ReadStatistics
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void]]]:
    """The queueOffsets of a range's units in RocksDB, int64[units], and the units."""
    path, topic = Path(part.path).parent, part.topic.encode("utf-8", "surrogateescape")
    with rocksdb.open_queues(path) as db:
        reads.files += 1
        for keys, values in rocksdb.key_blocks(db, topic, part.queue_id, part.first, part.last):
            reads.read += sum(map(len, values))
            found = rocksdb.as_units(topic, keys, values)
            if found is None:
                raise StoreError(
                    "a key or a value of these units in RocksDB isn't a unit's",
                    path=path,
                    expected=f"values of {IN_ROCKSDB.unit_length} bytes, for {part.topic}:{part.queue_id}",
                    found=f"{max(map(len, values), key=lambda one: abs(one - IN_ROCKSDB.unit_length))} bytes",
                    next_step="`reput dump consumequeue` shows which; badStores=skip reads the other stores",
                )
            yield found


def _rows(part: UnitRange, places: NDArray[np.int64], units: NDArray[np.void], *, blanks: bool) -> _Rows:
    if part.form == PLAIN:
        kind = _OF_PLAIN[classify(units)]
    else:
        counted = _NUMBER[BATCH.name if part.form == BATCH else PLAIN.name]
        kind = np.where(part.form.counts(units), counted, _NUMBER[DAMAGED])
        if part.form == BATCH:
            kind = np.where(are_written(units), kind, _NUMBER[HOLE])
    rows = _Rows(part, places, units, kind)
    return rows if blanks else rows.kept(kind <= _NUMBER[BATCH.name])


def _fits(rows: _Rows, wanted: Wanted) -> NDArray[np.bool_]:
    fits = np.ones(len(rows.units), np.bool_)
    if "kind" in wanted.texts:
        of_kind = np.array([kind in wanted.texts["kind"] for kind in _KINDS], np.bool_)
        fits &= of_kind[rows.kind]
    if "queueOffset" in wanted.columns:
        fits &= wanted.range_of("queueOffset").holds(rows.queue_offset)
        if not rows.part.form.by_place:
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
            return arrow.numbers(rows.queue_offset, present=None if part.form.by_place else rows.is_message)
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
    if rows.part.form.by_place:
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
        written = np.flatnonzero(are_written(units))
        if len(written):
            end = ordinal + int(written[-1]) + 1
    return end
