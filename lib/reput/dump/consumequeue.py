"""The units of queues of every form, and in their places what is no unit.

Of plain queues it is said by columns, a chunk at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.derived import rocksdb
from reput.derived.ext import ExtFiles, ExtRecord
from reput.derived.files import WHAT, pieces, read_bytes, records_of
from reput.dump.damage import Damage
from reput.dump.places import QueuePlace
from reput.format import batchconsumequeue, commitlog, consumequeue, names, rocksdbqueue
from reput.format.consumequeueext import MAX_ADDRESS
from reput.format.dtypes import (
    BATCH,
    BATCH_UNIT_DTYPE,
    IN_ROCKSDB,
    PLAIN,
    UNIT_DTYPE,
    Form,
    UnitKind,
    classify,
)

UNWRITTEN, ZEROS = "unwritten", "zeros"


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """One unit."""

    place: QueuePlace  # its queue
    queue_offset: int  # by its place in the file; of a batch the first message's, as it says itself
    position: int  # position, size, tags_code: as stored
    size: int
    tags_code: int
    repeats: bool = False  # the next unit leads to the same message: this one stands in for one that was lost
    #: of a batch queue: storeTimestamp in ms, messages, compacted offset
    batch: tuple[int, int, int] | None = None
    #: what the tagsCode leads to; None where it is no address, or leads to nothing
    ext: ExtRecord | None = None
    stored: int | None = None  # storeTimestamp in ms, which units in RocksDB have

    @property
    def is_address(self) -> bool:
        """Whether the tagsCode is an address in consumequeue_ext."""
        return self.batch is None and self.stored is None and self.tags_code <= MAX_ADDRESS

    @property
    def delivery(self) -> int | None:
        """In the topic of delayed messages: when this one is due, ms."""
        code = self.ext.tags_code if self.ext is not None else self.tags_code
        is_delayed = self.place.topic == commitlog.SCHEDULE_TOPIC.decode()
        return code if is_delayed and code > 0x7FFFFFFF else None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready, in the names of a message's columns."""
        facts: dict[str, object] = {
            "type": "unit",
            "topic": self.place.topic,
            "queue_id": self.place.queue_id,
            "queue_offset": self.queue_offset,
            "physical_offset": self.position,
            "size": self.size,
            "tags_code": self.tags_code,
        }
        if self.batch is not None:
            timestamp, messages, compacted = self.batch
            facts |= {"store_timestamp": timestamp, "messages": messages, "compacted_offset": compacted}
        if self.stored is not None:
            facts["store_timestamp"] = self.stored
        if self.is_address:
            facts["ext"] = None if self.ext is None else self.ext.to_dict()
        if self.delivery is not None:
            facts["deliverTimestamp"] = self.delivery
        return {**facts, "repeats_next": True} if self.repeats else facts


@dataclass(frozen=True, slots=True)
class Run:
    """Places in a queue that hold no unit, and needn't."""

    place: QueuePlace  # the queue
    #: ``pre-blank``: before the first message; ``unwritten``: zeros up to the queue's end; ``zeros``:
    #: up to the end of what was asked for, so that it isn't known what follows
    kind: str
    start: int  # start, end: queueOffsets, half open; of a batch queue numbers of units
    end: int

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "type": self.kind,
            "topic": self.place.topic,
            "queue_id": self.place.queue_id,
            "queue_offset": self.start,
            "queue_end": self.end,
        }


Event = QueueUnit | Run | Damage


@dataclass(slots=True)
class Open:
    """A run that may go on in the next chunk: of pre-blanks, or of zeros that may turn out to be a hole."""

    kind: int  # what its units are; zeros, unless the queue has others
    start: int  # start, end: queueOffsets, half open; of a batch queue numbers of units
    end: int
    path: Path  # the file in which it begins
    offset: int  # byte of that file where it begins


def damage(
    place: QueuePlace,
    kind: str,
    path: Path,
    offset: int,
    end: int,
    *,
    expected: str,
    found: str,
    outcome: str = "a broker's start ends the queue here",
    queue_offsets: tuple[int, int] | None = None,
) -> Damage:
    """What is damaged in the bytes [offset, end) of a queue's file.

    ``queue_offsets`` of the places concerned; None in a batch queue, whose units say theirs.
    """
    first, after = queue_offsets or (None, None)
    where = place.topic, place.queue_id, first
    return Damage(kind, str(path), offset, end, expected, found, outcome, *where, queue_end=after)


def file_length(place: QueuePlace, path: Path, size: int, length: int) -> Damage:
    """A file that ends within a unit of ``length`` bytes."""
    return damage(
        place,
        "file-length",
        path,
        size - size % length,
        size,
        expected=f"a multiple of {length} bytes",
        found=f"{size} bytes",
        outcome="the last ones are no whole unit, and were passed over",
    )


_CHUNK = 1 << 16  # units
_LOOK_AGAIN_SECONDS = 0.05
#: Past every queueOffset.
MOST = 1 << 63

_BACK = len(UnitKind)  # a message's unit that leads before one that comes before it


@dataclass(slots=True)
class _Walk:
    """A queue while it is gone over."""

    place: QueuePlace  # place, start, end: as asked
    start: int
    end: int
    ext: ExtFiles  # its records of consumequeue_ext
    open: Open | None = None  # the run that the last chunk ended with
    last: int = -1  # the highest physicalOffset so far
    after: int | None = None  # queueOffset behind the last file's last unit


def dump(place: QueuePlace, start: int = 0, end: int = MOST) -> Iterator[Event]:
    """What a queue's files hold of the queueOffsets [start, end): batches with a message there, too."""
    by_form = {PLAIN: _dump_units, BATCH: _dump_batches, IN_ROCKSDB: _dump_keys}
    yield from by_form[_form_of(place)](place, start, end)


def _form_of(place: QueuePlace) -> Form:
    """The form of its units; of a file that was copied away by its bytes."""
    looks = place.form is None and any(looks_like_batches(path) for path, _, _ in place.files)
    return place.form or (BATCH if looks else PLAIN)


def extent(place: QueuePlace) -> tuple[int, int] | None:
    """The queueOffsets that a queue's files hold, half open; None where no unit leads anywhere."""
    form = _form_of(place)
    if form == IN_ROCKSDB:
        database, queue = place.keys
        return rocksdb.extent(rocksdb.kept_open(database), *queue)
    extents = batch_extents if form == BATCH else _unit_extents
    first = next((found for file in place.files for found in extents(*file)), None)
    last = next((found for file in reversed(place.files) for found in extents(*file, backwards=True)), None)
    return None if first is None or last is None else (first[0], last[1])


def _dump_keys(place: QueuePlace, start: int, end: int) -> Iterator[Event]:
    """The units of a queue in RocksDB, as its keys have them, and values that are none.

    A hole is no damage here: a batch has one unit, at its first message's place, and only the log tells.
    """
    database, queue = place.keys
    for keys, values in rocksdb.key_blocks(rocksdb.kept_open(database), *queue, start, end):
        for key, value in zip(keys, values, strict=True):
            at, unit = rocksdbqueue.parse_unit_key(key), rocksdbqueue.parse_unit(value)
            if at is None or unit is None:
                yield damage(
                    place,
                    "bad-value",
                    database,
                    0,
                    0,
                    expected=f"a unit of {rocksdbqueue.UNIT_LENGTH} bytes",
                    found=f"{len(value)} bytes under the key {key.hex()}",
                    outcome="a broker fails on it",
                    queue_offsets=None if at is None else (at.queue_offset, at.queue_offset + 1),
                )
                continue
            fields = (unit.position, unit.size, unit.tags)
            yield QueueUnit(place, at.queue_offset, *fields, stored=unit.timestamp)


def _unit_extents(path: Path, base: int, size: int, *, backwards: bool = False) -> Iterator[tuple[int, int]]:
    for before, units in pieces(WHAT, path, UNIT_DTYPE, size, backwards=backwards):
        before += base // consumequeue.UNIT_LENGTH
        found = np.flatnonzero(classify(units) == UnitKind.MESSAGE) + before
        if len(found):
            yield int(found[0]), int(found[-1]) + 1


def _dump_units(place: QueuePlace, start: int, end: int) -> Iterator[Event]:
    length = consumequeue.UNIT_LENGTH
    walk = _Walk(place, start, end, ExtFiles(place.ext))
    for number, (path, base, size) in enumerate(place.files):
        following = place.files[number + 1] if number + 1 < len(place.files) else None
        first = base // length
        if walk.after is not None and walk.after < first:
            yield from _missing(walk, path, walk.after, first)
        walk.after = first + size // length
        if first >= end:
            break
        if walk.after <= start:
            continue
        at = max(start - first, 0)
        while at < size // length and first + at < end:
            units = records_of(path, UNIT_DTYPE, _CHUNK + 1, at * length, WHAT)
            units = units[: end - first - at + 1]
            if not len(units):
                break  # it was cut meanwhile
            upcoming = units[_CHUNK:] if len(units) > _CHUNK else _head(following)
            units = units[: min(_CHUNK, end - first - at)]
            if (classify(units) == UnitKind.BROKEN).any():
                # A broker may have been writing one just then.
                time.sleep(_LOOK_AGAIN_SECONDS)
                units = records_of(path, UNIT_DTYPE, len(units), at * length, WHAT)
            yield from _chunk(walk, path, first + at, at * length, units, upcoming)
            at += len(units)
        if size % length and following is None:
            yield file_length(place, path, size, length)
    path, base, size = place.files[-1]
    yield from _closed(walk, UNWRITTEN if end >= (base + size) // length else ZEROS)


def _head(file: tuple[Path, int, int] | None) -> NDArray[Any]:
    return np.empty(0, UNIT_DTYPE) if file is None else records_of(file[0], UNIT_DTYPE, 1, 0, WHAT)


def _chunk(
    walk: _Walk, path: Path, first: int, offset: int, units: NDArray[Any], upcoming: NDArray[Any]
) -> Iterator[Event]:
    """Units of one file from queueOffset ``first`` on; ``upcoming`` holds the one behind them, if any."""
    position = units["position"].astype(np.int64)
    size, tags = units["size"], units["tags"]
    kinds = classify(units)
    good = kinds == UnitKind.MESSAGE
    highest = np.maximum.accumulate(np.concatenate([[walk.last], np.where(good, position, -1)]))
    kinds[good & (position < highest[:-1])] = _BACK
    walk.last = int(highest[-1])
    after = np.concatenate([position[1:], upcoming["position"][:1].astype(np.int64)])
    repeats = np.zeros(len(units), np.bool_)
    repeats[: len(after)] = good[: len(after)] & (after == position[: len(after)])
    cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(units)]
    for begin, stop in pairwise(cuts):
        kind = int(kinds[begin])
        if kind in (UnitKind.PRE_BLANK, UnitKind.EMPTY):
            if walk.open is not None and walk.open.kind == kind and walk.open.end == first + begin:
                walk.open.end = first + stop
            else:
                yield from _closed(walk)
                place = offset + begin * consumequeue.UNIT_LENGTH
                walk.open = Open(kind, first + begin, first + stop, path, place)
            continue
        yield from _closed(walk)
        at = offset + begin * consumequeue.UNIT_LENGTH, offset + stop * consumequeue.UNIT_LENGTH
        if kind == UnitKind.BROKEN:
            yield damage(
                walk.place,
                "bad-unit",
                path,
                *at,
                expected="a physicalOffset and a size that aren't negative",
                found=f"{position[begin]}, {size[begin]} bytes, tagsCode {tags[begin]}",
                queue_offsets=(first + begin, first + stop),
            )
            continue
        if kind == _BACK:
            yield damage(
                walk.place,
                "order",
                path,
                *at,
                expected="physicalOffsets that go up",
                found=f"{position[begin]} behind {highest[begin]}",
                outcome="shown as it stands",
                queue_offsets=(first + begin, first + stop),
            )
        rows = zip(
            range(first + begin, first + stop),
            position[begin:stop].tolist(),
            size[begin:stop].tolist(),
            tags[begin:stop].tolist(),
            repeats[begin:stop].tolist(),
            strict=True,
        )
        for row in rows:
            code = row[3]
            ext = walk.ext.record(code) if code <= MAX_ADDRESS else None
            yield QueueUnit(walk.place, *row, ext=ext)


def _closed(walk: _Walk, zeros: str | None = None) -> Iterator[Event]:
    """The run that ends here, if one does; ``zeros`` says what they are, a hole where units follow."""
    run, walk.open = walk.open, None
    if run is None:
        return
    if run.kind == UnitKind.PRE_BLANK:
        yield Run(walk.place, "pre-blank", run.start, run.end)
    elif zeros is not None:
        yield Run(walk.place, zeros, run.start, run.end)
    else:
        yield damage(
            walk.place,
            "hole",
            run.path,
            run.offset,
            run.offset + (run.end - run.start) * consumequeue.UNIT_LENGTH,
            expected="units",
            found="zeros",
            outcome="units follow, which a broker's start doesn't find",
            queue_offsets=(run.start, run.end),
        )


def _missing(walk: _Walk, path: Path, start: int, end: int) -> Iterator[Event]:
    yield from _closed(walk)
    if start < walk.end and end > walk.start:
        yield damage(
            walk.place,
            "missing-files",
            path,
            0,
            0,
            expected=f"{names.offset_name(start * consumequeue.UNIT_LENGTH)} before this file",
            found="no such file",
            outcome="the gap was passed over",
            queue_offsets=(start, end),
        )


_LONG_MAX = (1 << 63) - 1


def looks_like_batches(path: Path) -> bool:
    """Whether a file begins with a unit of 46 bytes.

    Its last fields are -1, where it wasn't compacted, and 0. In units of 20 bytes a physicalOffset would be
    negative there.
    """
    return read_bytes(WHAT, path, 0, batchconsumequeue.UNIT_LENGTH)[-8:] == b"\xff\xff\xff\xff\0\0\0\0"


def _dump_batches(place: QueuePlace, start: int, end: int) -> Iterator[Event]:
    """What the files of a batch queue hold; see :func:`reput.dump.consumequeue.dump`."""
    length = batchconsumequeue.UNIT_LENGTH
    zeros: Open | None = None
    for path, base, size in place.files:
        at = 0
        while at < size // length:
            units = records_of(path, BATCH_UNIT_DTYPE, _CHUNK, at * length, WHAT)
            if not len(units):
                break
            empty = (units["position"] == 0) & (units["size"] == 0)
            bad = ~empty & ~BATCH.counts(units)
            first, count = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
            # No sum here is past what an int64 holds.
            before = min(start, _LONG_MAX) - np.maximum(first, 0)
            wanted = (first < end) & (before < count - min(max(start - _LONG_MAX, 0), 1 << 32))
            for row in np.flatnonzero(empty | bad | wanted).tolist():
                number = base // length + at + row
                if empty[row]:
                    if zeros is None:
                        zeros = Open(0, number, number + 1, path, (at + row) * length)
                    zeros.end = number + 1
                    continue
                if zeros is not None:
                    after = zeros.offset + (zeros.end - zeros.start) * length
                    yield damage(
                        place, "hole", zeros.path, zeros.offset, after, expected="a unit", found="zeros"
                    )
                    zeros = None
                unit = units[row]
                if bad[row]:
                    begin = (at + row) * length
                    yield damage(
                        place,
                        "bad-unit",
                        path,
                        begin,
                        begin + length,
                        expected="a physicalOffset, a size and a base offset of a message or more",
                        found=f"{unit['position']}, {unit['size']} bytes, base offset {unit['base_offset']}, "
                        f"{unit['batch_size']} messages",
                    )
                elif wanted[row]:
                    yield _batch_unit(place, unit)
            at += len(units)
        if size % length:
            yield file_length(place, path, size, length)
    if zeros is not None:
        yield Run(place, UNWRITTEN, zeros.start, zeros.end)


def batch_extents(path: Path, _base: int, size: int, *, backwards: bool = False) -> Iterator[tuple[int, int]]:
    """The queueOffsets of a file's units that lead somewhere, half open, piece by piece."""
    for _, units in pieces(WHAT, path, BATCH_UNIT_DTYPE, size, backwards=backwards):
        found = units[BATCH.counts(units)]
        if len(found):
            last = found[-1]
            yield int(found[0]["base_offset"]), int(last["base_offset"]) + int(last["batch_size"])


def _batch_unit(place: QueuePlace, unit: Any) -> QueueUnit:
    return QueueUnit(
        place,
        int(unit["base_offset"]),
        int(unit["position"]),
        int(unit["size"]),
        int(unit["tags"]),
        batch=(int(unit["timestamp"]), int(unit["batch_size"]), int(unit["compacted"])),
    )
