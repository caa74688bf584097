"""The units of a consume queue or a batch queue, and in their places what is no unit.

What is said of units is said by columns, a chunk at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.dump.damage import Damage
from reput.dump.places import QueuePlace
from reput.errors import SegmentGoneError, StoreError
from reput.format import batchconsumequeue, commitlog, consumequeue, names
from reput.format.consumequeueext import HEAD, HEAD_LENGTH, MAX_ADDRESS, MAX_UNIT_LENGTH, place_of
from reput.recovery.files import in_order

_UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_BATCH_UNIT = np.dtype(batchconsumequeue.FIELDS)
_PRE_BLANK_SIZE = 0x7FFFFFFF
_CHUNK = 1 << 16  # units
_LOOK_AGAIN_SECONDS = 0.05
_MOST = (1 << 63) - 1
_ENDS_HERE = "a broker's start ends the queue here"

_GOOD, _PRE_BLANK, _ZERO, _BAD, _BACK = range(5)
_UNWRITTEN, _ZEROS = "unwritten", "zeros"


@dataclass(frozen=True, slots=True)
class ExtRecord:
    """A unit's record of consumequeue_ext.

    Attributes:
        tags_code: the tagsCode itself.
        store_timestamp: ms.
        bit_map: for which consumers the message may be.
    """

    tags_code: int
    store_timestamp: int
    bit_map: bytes

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts: dict[str, object] = {"tagsCode": self.tags_code, "storeTimestamp": self.store_timestamp}
        return {**facts, "bitMap": self.bit_map.hex()}


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """One unit.

    Attributes:
        place: its queue.
        queue_offset: by its place in the file; of a batch the first message's, as it says itself.
        position, size, tags_code: as stored.
        repeats: the next unit leads to the same message: this one stands in for one that was lost.
        batch: of a batch queue: storeTimestamp in ms, messages, compacted offset.
        ext: what the tagsCode leads to; None where it is no address, or leads to nothing.
    """

    place: QueuePlace
    queue_offset: int
    position: int
    size: int
    tags_code: int
    repeats: bool = False
    batch: tuple[int, int, int] | None = None
    ext: ExtRecord | None = None

    @property
    def is_address(self) -> bool:
        """Whether the tagsCode is an address in consumequeue_ext."""
        return self.batch is None and self.tags_code <= MAX_ADDRESS

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
            "queueId": self.place.queue_id,
            "queueOffset": self.queue_offset,
            "physicalOffset": self.position,
            "size": self.size,
            "tagsCode": self.tags_code,
        }
        if self.batch is not None:
            timestamp, messages, compacted = self.batch
            facts |= {"storeTimestamp": timestamp, "messages": messages, "compactedOffset": compacted}
        if self.is_address:
            facts["ext"] = None if self.ext is None else self.ext.to_dict()
        if self.delivery is not None:
            facts["deliverTimestamp"] = self.delivery
        return {**facts, "repeatsNext": True} if self.repeats else facts


@dataclass(frozen=True, slots=True)
class Run:
    """Places in a queue that hold no unit, and needn't.

    Attributes:
        place: the queue.
        kind: ``pre-blank``: before the first message; ``unwritten``: zeros up to the queue's end; ``zeros``:
            up to the end of what was asked for, so that it isn't known what follows.
        start, end: queueOffsets, half open; of a batch queue numbers of units.
    """

    place: QueuePlace
    kind: str
    start: int
    end: int

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts: dict[str, object] = {"type": self.kind, "topic": self.place.topic}
        return {
            **facts,
            "queueId": self.place.queue_id,
            "queueOffset": self.start,
            "queueEnd": self.end,
        }


Event = QueueUnit | Run | Damage


@dataclass(slots=True)
class _Open:
    """A run that may go on in the next chunk: of pre-blanks, or of zeros that may turn out to be a hole."""

    kind: int
    start: int
    end: int
    path: Path
    offset: int


@dataclass(slots=True)
class _Walk:
    """A queue while it is gone over.

    Attributes:
        place, start, end: as asked.
        ext: its records of consumequeue_ext.
        open: the run that the last chunk ended with.
        last: the highest physicalOffset so far.
        after: queueOffset behind the last file's last unit.
    """

    place: QueuePlace
    start: int
    end: int
    ext: _Ext
    open: _Open | None = None
    last: int = -1
    after: int | None = None


def dump(place: QueuePlace, start: int = 0, end: int = _MOST) -> Iterator[Event]:
    """What a queue's files hold.

    Args:
        place: the queue.
        start, end: queueOffsets, half open. A batch counts when one of its messages lies inside.

    Raises:
        SegmentGoneError, StoreError: a file can't be read.
    """
    if place.batch or (place.batch is None and any(map(_looks_like_batches, place.files))):
        yield from _dump_batches(place, start, end)
    else:
        yield from _dump_units(place, start, end)


def _looks_like_batches(file: tuple[Path, int, int]) -> bool:
    """Whether a file begins with a unit of 46 bytes.

    Its last fields are -1, where it wasn't compacted, and 0. In units of 20 bytes a physicalOffset would be
    negative there.
    """
    head = _read(file[0], np.dtype("u1"), 0, batchconsumequeue.UNIT_LENGTH).tobytes()
    return head[-8:] == b"\xff\xff\xff\xff\0\0\0\0"


def _dump_units(place: QueuePlace, start: int, end: int) -> Iterator[Event]:
    length = consumequeue.UNIT_LENGTH
    walk = _Walk(place, start, end, _Ext(place.ext))
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
            units = _read(path, _UNIT, at * length, _CHUNK + 1)
            units = units[: end - first - at + 1]
            if not len(units):
                break  # it was cut meanwhile
            upcoming = units[_CHUNK:] if len(units) > _CHUNK else _head(following)
            units = units[: min(_CHUNK, end - first - at)]
            if (_kinds(units) == _BAD).any():
                # A broker may have been writing one just then.
                time.sleep(_LOOK_AGAIN_SECONDS)
                units = _read(path, _UNIT, at * length, len(units))
            yield from _chunk(walk, path, first + at, at * length, units, upcoming)
            at += len(units)
        if size % length and following is None:
            yield _rest(place, path, size, length)
    path, base, size = place.files[-1]
    yield from _closed(walk, _UNWRITTEN if end >= (base + size) // length else _ZEROS)


def _head(file: tuple[Path, int, int] | None) -> NDArray[Any]:
    return np.empty(0, _UNIT) if file is None else _read(file[0], _UNIT, 0, 1)


def _chunk(
    walk: _Walk, path: Path, first: int, offset: int, units: NDArray[Any], upcoming: NDArray[Any]
) -> Iterator[Event]:
    """Units of one file from queueOffset ``first`` on; ``upcoming`` holds the one behind them, if any."""
    position = units["position"].astype(np.int64)
    size, tags = units["size"], units["tags"]
    kinds = _kinds(units)
    good = kinds == _GOOD
    highest = np.maximum.accumulate(np.concatenate([[walk.last], np.where(good, position, -1)]))
    kinds[good & (position < highest[:-1])] = _BACK
    walk.last = int(highest[-1])
    after = np.concatenate([position[1:], upcoming["position"][:1].astype(np.int64)])
    repeats = np.zeros(len(units), np.bool_)
    repeats[: len(after)] = good[: len(after)] & (after == position[: len(after)])
    cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(units)]
    for begin, stop in pairwise(cuts):
        kind = int(kinds[begin])
        if kind in (_PRE_BLANK, _ZERO):
            if walk.open is not None and walk.open.kind == kind and walk.open.end == first + begin:
                walk.open.end = first + stop
            else:
                yield from _closed(walk)
                place = offset + begin * consumequeue.UNIT_LENGTH
                walk.open = _Open(kind, first + begin, first + stop, path, place)
            continue
        yield from _closed(walk)
        if kind == _BAD:
            found = f"{position[begin]}, {size[begin]} bytes, tagsCode {tags[begin]}"
            yield _damage(
                walk.place, "bad-unit", path, offset, first, (begin, stop),
                "a physicalOffset and a size that aren't negative", found, _ENDS_HERE,
            )  # fmt: skip
            continue
        if kind == _BACK:
            yield _damage(
                walk.place, "order", path, offset, first, (begin, stop),
                "physicalOffsets that go up", f"{position[begin]} behind {highest[begin]}",
                "shown as it stands",
            )  # fmt: skip
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


def _kinds(units: NDArray[Any]) -> NDArray[np.int8]:
    """What each unit is by itself: int8[units]."""
    position, size, tags = units["position"], units["size"], units["tags"]
    kinds = np.full(len(units), _GOOD, np.int8)
    kinds[(position < 0) | (size <= 0)] = _BAD
    kinds[(position == 0) & (size == _PRE_BLANK_SIZE) & (tags == 0)] = _PRE_BLANK
    kinds[(position == 0) & (size == 0) & (tags == 0)] = _ZERO
    return kinds


def _closed(walk: _Walk, zeros: str | None = None) -> Iterator[Event]:
    """The run that ends here, if one does; ``zeros`` says what they are, a hole where units follow."""
    run, walk.open = walk.open, None
    if run is None:
        return
    if run.kind == _PRE_BLANK:
        yield Run(walk.place, "pre-blank", run.start, run.end)
    elif zeros is None:
        yield _hole(walk.place, run)
    else:
        yield Run(walk.place, zeros, run.start, run.end)


def _hole(place: QueuePlace, run: _Open) -> Damage:
    return Damage(
        kind="hole",
        path=str(run.path),
        offset=run.offset,
        end=run.offset + (run.end - run.start) * consumequeue.UNIT_LENGTH,
        expected="units",
        found="zeros",
        outcome="units follow, which a broker's start doesn't find",
        topic=place.topic,
        queue_id=place.queue_id,
        queue_offset=run.start,
        queue_end=run.end,
    )


def _missing(walk: _Walk, path: Path, start: int, end: int) -> Iterator[Event]:
    yield from _closed(walk)
    if start < walk.end and end > walk.start:
        yield Damage(
            kind="missing-files",
            path=str(path),
            offset=0,
            end=0,
            expected=f"{names.offset_name(start * consumequeue.UNIT_LENGTH)} before this file",
            found="no such file",
            outcome="the gap was passed over",
            topic=walk.place.topic,
            queue_id=walk.place.queue_id,
            queue_offset=start,
            queue_end=end,
        )


def _damage(
    place: QueuePlace,
    kind: str,
    path: Path,
    offset: int,
    first: int,
    rows: tuple[int, int],
    expected: str,
    found: str,
    outcome: str,
) -> Damage:
    begin, stop = rows
    length = consumequeue.UNIT_LENGTH
    return Damage(
        kind=kind,
        path=str(path),
        offset=offset + begin * length,
        end=offset + stop * length,
        expected=expected,
        found=found,
        outcome=outcome,
        topic=place.topic,
        queue_id=place.queue_id,
        queue_offset=first + begin,
        queue_end=first + stop,
    )


def _rest(place: QueuePlace, path: Path, size: int, length: int) -> Damage:
    return Damage(
        kind="file-length",
        path=str(path),
        offset=size - size % length,
        end=size,
        expected=f"a multiple of {length} bytes",
        found=f"{size} bytes",
        outcome="the last ones are no whole unit, and were passed over",
        topic=place.topic,
        queue_id=place.queue_id,
    )


def _dump_batches(place: QueuePlace, start: int, end: int) -> Iterator[Event]:
    length = batchconsumequeue.UNIT_LENGTH
    zeros: _Open | None = None
    for path, base, size in place.files:
        at = 0
        while at < size // length:
            units = _read(path, _BATCH_UNIT, at * length, _CHUNK)
            if not len(units):
                break
            empty = (units["position"] == 0) & (units["size"] == 0)
            bad = ~empty & ((units["position"] < 0) | (units["size"] <= 0) | (units["base_offset"] < 0))
            wanted = (units["base_offset"] < end) & (units["base_offset"] + units["batch_size"] > start)
            for row in np.flatnonzero(empty | bad | wanted).tolist():
                number = base // length + at + row
                if empty[row]:
                    if zeros is None:
                        zeros = _Open(_ZERO, number, number + 1, path, (at + row) * length)
                    zeros.end = number + 1
                    continue
                if zeros is not None:
                    yield _batch_damage(
                        place, zeros.path, zeros.offset, zeros.end - zeros.start, "hole", "zeros"
                    )
                    zeros = None
                unit = units[row]
                if bad[row]:
                    found = f"{unit['position']}, {unit['size']} bytes, base offset {unit['base_offset']}"
                    yield _batch_damage(place, path, (at + row) * length, 1, "bad-unit", found)
                elif wanted[row]:
                    yield _batch_unit(place, unit)
            at += len(units)
        if size % length:
            yield _rest(place, path, size, length)
    if zeros is not None:
        yield Run(place, _UNWRITTEN, zeros.start, zeros.end)


def _batch_unit(place: QueuePlace, unit: Any) -> QueueUnit:
    return QueueUnit(
        place,
        int(unit["base_offset"]),
        int(unit["position"]),
        int(unit["size"]),
        int(unit["tags"]),
        batch=(int(unit["timestamp"]), int(unit["batch_size"]), int(unit["compacted"])),
    )


def _batch_damage(place: QueuePlace, path: Path, offset: int, units: int, kind: str, found: str) -> Damage:
    return Damage(
        kind=kind,
        path=str(path),
        offset=offset,
        end=offset + units * batchconsumequeue.UNIT_LENGTH,
        expected="a unit" if kind == "hole" else "a physicalOffset, a size and a base offset of a message",
        found=found,
        outcome=_ENDS_HERE,
        topic=place.topic,
        queue_id=place.queue_id,
    )


class _Ext:
    """A queue's files of consumequeue_ext; looked at when a unit first leads there."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: list[tuple[Path, int, int]] | None = None

    def record(self, tags_code: int) -> ExtRecord | None:
        """What an address leads to; None where nothing is there.

        Raises:
            StoreError: a file can't be read.
        """
        place = place_of(tags_code)
        if place is None or self._directory is None:
            return None
        if self._files is None:
            self._files = [
                (entry.path, base, entry.length)
                for entry in in_order(self._directory)
                if (base := names.parse_offset_name(entry.path.name)) is not None and not entry.is_dir
            ]
        for path, base, length in self._files:
            if base <= place < base + length:
                return self._read(path, place - base)
        return None

    def _read(self, path: Path, position: int) -> ExtRecord | None:
        try:
            data = _read(path, np.dtype("u1"), position, MAX_UNIT_LENGTH).tobytes()
        except SegmentGoneError:
            return None  # expired just now
        if len(data) < HEAD_LENGTH:
            return None
        size, tags_code, timestamp, width = HEAD.unpack_from(data)
        if not HEAD_LENGTH <= size <= len(data) or width != size - HEAD_LENGTH:
            return None
        return ExtRecord(tags_code, timestamp, data[HEAD_LENGTH:size])


def _read(path: Path, kind: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    """Whole units of a file from a byte on; fewer where it ends.

    Raises:
        SegmentGoneError, StoreError: it can't be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, count * kind.itemsize, offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise (SegmentGoneError if gone else StoreError)(
            "the queue can't be read",
            path=path,
            found=error.strerror,
            next_step="A running broker deletes what has expired: run the same command again"
            if gone
            else "Check the file and its permissions",
        ) from error
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
