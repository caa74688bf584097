"""The records of one segment as columns: where each is, its fixed fields, where its properties are.

A record is taken by the same rules as in :mod:`reput.scan.part`: its frame is whole, and it either has the
stored CRC or is followed by another whole frame. So the CRC has to be checked only where a run of whole
frames ends. Source: as :mod:`reput.log.walk`.

Numbers in properties aren't read. A record with a DELAY, INNER_BASE or INNER_NUM that isn't a number is taken
here, since it is a message that was stored and can be read; the scan gives it no unit and no keys, doesn't
count it, and has a finding for it (``bad-delay``, ``bad-inner-batch``), since a broker can't dispatch it
(``CommitLog.checkMessageAndReturnSize``; rocketmq-all-4.9.7, 5.3.3). Otherwise both take the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import commitlog, dledger, properties
from reput.format.commitlog import (
    BODY_CRC,
    BORN_HOST,
    BORN_TIMESTAMP,
    FLAG,
    NAME_VALUE_SEPARATOR,
    PREPARED_OFFSET_AFTER_STORE_HOST,
    PROPERTY_SEPARATOR,
    QUEUE_ID,
    QUEUE_OFFSET,
    STORE_HOST_AFTER_BORN_HOST,
    SYS_FLAG,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    TOTAL_SIZE,
    host_length,
    store_timestamp_at,
)
from reput.newer_python import Self
from reput.scan import kernel
from reput.scan.extent import NOWHERE, TO_NEXT_RECORD, Extents, Resumed
from reput.scan.kernel import (
    _BLANK,
    _END,
    _FULL,
    _GOOD,
    _NAME_KEYS,
    _NAME_TAGS,
    _NAME_UNIQ_KEY,
    _SEPARATORS_1,
    _SEPARATORS_2,
    _find,
    _frame,
)
from reput.scan.load import copy_u64, i32, i64, u8, u32, u64
from reput.scan.output import Status
from reput.scan.part import TO_NEXT_SEGMENT, Arriving, Visible, is_blank_but_for_its_magic
from reput.scan.rules import Part

#: A property takes at least four bytes of at most 32767.
_MOST_ENTRIES = 8_192

#: Records whose bytes, without their bodies, a processor's cache holds.
_STRETCH_ROWS = 1024

ROWS, ENTRIES, BYTES = range(3)
#: Of one block: how many records, and bytes of them; a larger record is a block of its own.
BLOCK_ROWS = 8192
BLOCK_BYTES = 4 << 20


class Frames(NamedTuple):
    """The columns of some records; ``counts`` says how many are filled. Positions: relative to the data."""

    position: NDArray[np.int64]  # position, size: int64[rows], of a record
    size: NDArray[np.int64]
    queue_id: NDArray[np.int32]  # queue_id, flag, sys_flag, reconsume_times, body_crc: int32[rows], as stored
    flag: NDArray[np.int32]
    sys_flag: NDArray[np.int32]
    reconsume_times: NDArray[np.int32]
    body_crc: NDArray[np.int32]
    queue_offset: NDArray[np.int64]  # queue_offset, prepared_transaction_offset: int64[rows], as stored
    prepared_transaction_offset: NDArray[np.int64]
    born_timestamp: NDArray[np.int64]  # born_timestamp, store_timestamp: int64[rows], ms
    store_timestamp: NDArray[np.int64]
    #: born_host, born_host_length, store_host, store_host_length: int64[rows], address and port
    born_host: NDArray[np.int64]
    born_host_length: NDArray[np.int64]
    store_host: NDArray[np.int64]
    store_host_length: NDArray[np.int64]
    body: NDArray[np.int64]  # body, body_length, topic, topic_length: int64[rows]
    body_length: NDArray[np.int64]
    topic: NDArray[np.int64]
    topic_length: NDArray[np.int64]
    #: tags, tags_length, keys, keys_length, unique_key, unique_key_length: int64[rows], length 0 if
    #: absent
    tags: NDArray[np.int64]
    tags_length: NDArray[np.int64]
    keys: NDArray[np.int64]
    keys_length: NDArray[np.int64]
    unique_key: NDArray[np.int64]
    unique_key_length: NDArray[np.int64]
    #: int64[rows], the row's properties are the entries from the row before's end to this
    entry_end: NDArray[np.int64]
    #: name, name_length, value, value_length: int64[entries], properties; of a repeated name the last
    #: value
    name: NDArray[np.int64]
    name_length: NDArray[np.int64]
    value: NDArray[np.int64]
    value_length: NDArray[np.int64]
    counts: NDArray[np.int64]  # int64[3], rows, entries, bytes of the records


_INT32 = frozenset({"queue_id", "flag", "sys_flag", "reconsume_times", "body_crc"})
_PER_ENTRY = frozenset({"name", "name_length", "value", "value_length"})


def frames(rows: int = BLOCK_ROWS) -> Frames:
    """Empty columns with room for ``rows`` records and some eight properties each."""
    entries = rows * 8 + _MOST_ENTRIES
    columns: dict[str, Any] = {}
    for column in Frames._fields[:-1]:
        room = entries if column in _PER_ENTRY else rows
        columns[column] = np.empty(room, np.int32 if column in _INT32 else np.int64)
    return Frames(**columns, counts=np.zeros(3, np.int64))


@njit(cache=CACHED, nogil=True)
def _pass_over(data, base, start, end, topic_length_v2, entries):  # type: ignore[no-untyped-def]
    """See :func:`_collect`; nothing is kept."""
    position = np.int64(start)
    segment_end = np.int64(len(data))
    last_frame = last = previous = np.int64(-1)
    while True:
        status, size, header, _b, _bl, _t, _tl, _p, _pl = _frame(
            data, base, position, segment_end, topic_length_v2, entries
        )
        if position >= end:
            return _END, position, status in (_GOOD, _BLANK), last_frame, last, previous
        if status != _GOOD:
            return status, position, status == _BLANK, last_frame, last, previous
        previous = last
        last_frame = position
        last = position + header
        position += size


@njit(cache=CACHED, nogil=True)
def _collect(  # type: ignore[no-untyped-def]
    data, base, start, end, topic_length_v2, in_entries, out, most_bytes
):
    """Put the records whose frames begin in ``data[start:end)`` into ``out``.

    Returns (status, position, whether a whole frame stands there, position of the last frame or -1, position
    of its record or -1, position of the record before that or -1).
    """
    frame = np.int64(start)
    segment_end = np.int64(len(data))
    last_frame = last = previous = np.int64(-1)
    counts = out.counts
    row_limit = len(out.position)
    entry_limit = len(out.name) - _MOST_ENTRIES
    while True:
        status, frame_size, header, body, body_length, topic, topic_length, at, properties_length = _frame(
            data, base, frame, segment_end, topic_length_v2, in_entries
        )
        if frame >= end:
            return _END, frame, status in (_GOOD, _BLANK), last_frame, last, previous
        if status != _GOOD:
            return status, frame, status == _BLANK, last_frame, last, previous
        position = frame + header
        size = frame_size - header
        row = counts[ROWS]
        if (
            row >= row_limit
            or counts[ENTRIES] > entry_limit
            or (row > 0 and counts[BYTES] + size > most_bytes)
        ):
            return _FULL, frame, True, last_frame, last, previous

        sys_flag = i32(data, position + SYS_FLAG)
        born_length = host_length(sys_flag, SYS_FLAG_BORN_HOST_V6)
        store_length = host_length(sys_flag, SYS_FLAG_STORE_HOST_V6)
        store = position + store_timestamp_at(sys_flag)
        after = store + STORE_HOST_AFTER_BORN_HOST + store_length
        out.position[row] = position
        out.size[row] = size
        out.queue_id[row] = i32(data, position + QUEUE_ID)
        out.flag[row] = i32(data, position + FLAG)
        out.sys_flag[row] = sys_flag
        out.reconsume_times[row] = i32(data, after)
        out.body_crc[row] = i32(data, position + BODY_CRC)
        out.queue_offset[row] = i64(data, position + QUEUE_OFFSET)
        out.prepared_transaction_offset[row] = i64(data, after + PREPARED_OFFSET_AFTER_STORE_HOST)
        out.born_timestamp[row] = i64(data, position + BORN_TIMESTAMP)
        out.store_timestamp[row] = i64(data, store)
        out.born_host[row] = position + BORN_HOST
        out.born_host_length[row] = born_length
        out.store_host[row] = store + STORE_HOST_AFTER_BORN_HOST
        out.store_host_length[row] = store_length
        out.body[row] = body
        out.body_length[row] = body_length
        out.topic[row] = topic
        out.topic_length[row] = topic_length
        out.tags[row] = out.keys[row] = out.unique_key[row] = 0
        out.tags_length[row] = out.keys_length[row] = out.unique_key_length[row] = 0

        first = counts[ENTRIES]
        entries = first
        limit = at + properties_length
        while at < limit:
            entry_end = _find(data, at, limit, _SEPARATORS_2, PROPERTY_SEPARATOR)
            name_end = _find(data, at, entry_end, _SEPARATORS_1, NAME_VALUE_SEPARATOR)
            name_length = name_end - at
            value = name_end + 1
            if name_length > 0 and value < entry_end:
                entry = _entry(data, at, name_length, out, first, entries)
                out.name[entry] = at
                out.name_length[entry] = name_length
                out.value[entry] = value
                out.value_length[entry] = entry_end - value
                if entry == entries:
                    entries += 1
                if name_length == 4:
                    word = np.int64(u32(data, at))
                    if word == _NAME_KEYS:
                        out.keys[row], out.keys_length[row] = value, entry_end - value
                    elif word == _NAME_TAGS:
                        out.tags[row], out.tags_length[row] = value, entry_end - value
                elif name_length == 8 and u64(data, at) == _NAME_UNIQ_KEY:
                    out.unique_key[row], out.unique_key_length[row] = value, entry_end - value
            at = entry_end + 1
        out.entry_end[row] = entries
        counts[ROWS] = row + 1
        counts[ENTRIES] = entries
        counts[BYTES] += size
        previous = last
        last_frame = frame
        last = position
        frame += frame_size


@njit(cache=CACHED, nogil=True)
def _collect_at(  # type: ignore[no-untyped-def]
    data, base, places, first, topic_length_v2, in_entries, out, most_bytes
):
    """Put the records whose frames begin at ``places[first:]`` into ``out``; returns (how many, status)."""
    for number in range(first, len(places)):
        found = _collect(
            data, base, places[number], places[number] + 1, topic_length_v2, in_entries, out, most_bytes
        )
        if found[3] < 0:
            return number - first, found[0]
    return len(places) - first, _END


def blocks_at(
    data: NDArray[np.uint8],
    part: Part,
    places: NDArray[np.int64],
    settings: StoreSettings,
    out: Frames,
    most_bytes: int = BLOCK_BYTES,
) -> Iterator[int]:
    """The records whose frames begin at some positions of a segment, in ``out``, block by block.

    ``places`` ascend. Yields how many rows ``out`` has; they are filled again for the next block. Raises
    StoreError where no whole record stands at one.
    """
    at = 0
    while at < len(places):
        out.counts.fill(0)
        v2, entries = settings.dialect.topic_length_v2, settings.entries or None
        count, status = _collect_at(data, part.base, places, at, v2, entries, out, most_bytes)
        at += int(count)
        if status not in (_END, _FULL):
            raise StoreError(
                "a unit leads to no whole record",
                path=part.path,
                offset=part.base + int(places[at]),
                expected="a record, as it was when the queue was proven",
                found=Status(int(status)).name.lower(),
                next_step="Check the store: reput check says what is wrong",
            )
        yield int(out.counts[ROWS])


@njit
def _entry(data, name, length, out, first, entries):  # type: ignore[no-untyped-def]
    """Where a property goes: the place of the same name among the record's entries, or a new one."""
    for entry in range(first, entries):
        if out.name_length[entry] == length:
            other = out.name[entry]
            at = 0
            while at < length and u8(data, other + at) == u8(data, name + at):
                at += 1
            if at == length:
                return entry
    return entries


@njit(inline="always")
def _copy(data, source, out, target, length):  # type: ignore[no-untyped-def]
    if length > 64:
        out[target : target + length] = data[source : source + length]
    elif length >= 8:
        last = length - 8
        for at in range(0, last, 8):
            copy_u64(out, target + at, data, source + at)
        copy_u64(out, target + last, data, source + last)
    else:
        for at in range(length):
            out[target + at] = u8(data, source + at)


@njit(cache=CACHED, nogil=True)
def _gather(data, starts, offsets, out):  # type: ignore[no-untyped-def]
    for row in range(len(starts)):
        target = np.int64(offsets[row])
        _copy(data, starts[row], out, target, np.int64(offsets[row + 1]) - target)


@njit(cache=CACHED, nogil=True)
def _put_lengths(lengths, begins, ends, places, offsets):  # type: ignore[no-untyped-def]
    for run in range(len(begins)):
        place = places[run]
        for piece in range(begins[run], ends[run]):
            place += 1
            offsets[place] = lengths[piece]


@njit(cache=CACHED, nogil=True)
def _put(data, starts, begins, ends, places, offsets, out):  # type: ignore[no-untyped-def]
    for run in range(len(begins)):
        place = places[run]
        for piece in range(begins[run], ends[run]):
            target = np.int64(offsets[place])
            place += 1
            _copy(data, starts[piece], out, target, np.int64(offsets[place]) - target)


class Runs(NamedTuple):
    """Runs of pieces that are to stand in another order than in the log; each run stays together."""

    #: begins, ends: int64[runs], of each run in log order: half-open ranges of pieces
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    places: NDArray[np.int64]  # int64[runs], which piece its first one becomes


def gather(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The pieces of ``data`` one after another, as Arrow keeps them.

    Returns int32[pieces + 1], where each begins and the last ends; uint8[bytes].
    """
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _gather(data, starts, offsets, out)
    return offsets, out


def gather_in_order(
    data: NDArray[np.uint8], columns: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], Runs]]
) -> list[tuple[NDArray[np.int32], NDArray[np.uint8]]]:
    """The pieces of several columns as :func:`gather` has them, in another order.

    They are copied in that of ``data``, each to its place, and all columns' pieces of a stretch before those
    of the next one, so that ``data`` comes from memory once. Each column has starts, lengths and as many
    runs.
    """
    made = []
    for _, lengths, runs in columns:
        offsets = np.zeros(int((runs.ends - runs.begins).sum()) + 1, np.int32)
        _put_lengths(lengths, *runs, offsets)
        np.cumsum(offsets, out=offsets)
        made.append((offsets, np.empty(int(offsets[-1]), np.uint8)))
    for at in range(0, len(columns[0][2].begins) if columns else 0, _STRETCH_ROWS):
        for (starts, _, runs), (offsets, out) in zip(columns, made, strict=True):
            _put(data, starts, *(each[at : at + _STRETCH_ROWS] for each in runs), offsets, out)
    return made


def has_stored_crc(view: memoryview, position: int, *, property_crc_only: bool = False) -> bool:
    """Whether a record with a whole frame has the CRC of its body, and of ``__CRC32#`` where it stands last.

    With ``property_crc_only``, the body's CRC isn't looked at (``forceVerifyPropCRC``).
    """
    record = commitlog.decode(view, position)
    if not property_crc_only and not _has_body_crc(record):
        return False
    stored = properties.parse(record.properties).get(properties.CRC32, b"")
    if len(stored) != 10 or not record.properties.endswith(properties.CRC32 + b"\x01" + stored + b"\x02"):
        return True
    # The digits stand the least significant first; each byte counts as its distance from "0".
    expected = sum((byte - 0x30) * 10**power for power, byte in enumerate(stored))
    size = int.from_bytes(view[position + TOTAL_SIZE : position + TOTAL_SIZE + 4], "big")
    found = commitlog.body_crc(view[position : position + size - commitlog.PROPERTY_CRC_RESERVED])
    return bool(found == expected)


def _has_body_crc(record: commitlog.Record) -> bool:
    return not record.body or commitlog.body_crc(record.body) == (record.body_crc or 0) & 0xFFFFFFFF


def which_crc(view: memoryview, frame: int, *, property_crc_only: bool = False) -> Status:
    """Which CRC is wrong of the record in a whole frame that :func:`has_stored_crc` denies one."""
    record = commitlog.decode(view, dledger.record_at(view, frame))
    is_property = property_crc_only or _has_body_crc(record)
    return Status.BAD_PROPERTY_CRC if is_property else Status.BAD_CRC


class FrameWalk:
    """Walks the whole records of one segment in log order, and skips what is damaged.

    Args:
        data: the segment, uint8[segment_length].
        base: physical offset of its first byte.
        segment_size: bytes that it spans in the log.
        limit: records from this position on aren't read.
        last: no segment follows: past damage, records older than those before it were left by a truncation.
        topic_length_v2: records of magic v2 are known.
        is_whole: decides on a record that nothing whole follows; gets the position of its first byte.
        position: where a frame begins: a record, or the entry that contains it.
        timestamp: storeTimestamp of the record before it, ms.
        search_bytes: how far past damage the next record is searched for.
        search_unwritten: search past zeros, too.
        entries: records may be in DLedger's entries.
        largest_record: bytes that no record exceeds.
        growing: whether a broker is writing the segment; called where there is damage.
        arriving: fills ``data`` while it is walked over; None where all of it is there.
        skipped: is told of each range that is passed over: why, its positions, and what was done, in words.
            Where nothing whole follows before ``limit``, it ends there, or with the segment.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        base: int,
        segment_size: int,
        limit: int,
        *,
        last: bool,
        topic_length_v2: bool,
        is_whole: Callable[[int], bool],
        position: int = 0,
        timestamp: int = 0,
        search_bytes: int | None = None,
        search_unwritten: bool = True,
        entries: bool = False,
        largest_record: int = commitlog.LARGEST_RECORD,
        growing: Callable[[], bool] = lambda: False,
        arriving: Arriving | None = None,
        skipped: Callable[[Status, int, int, str], None] | None = None,
    ) -> None:
        self._data = data
        self._base = base
        self._segment_size = segment_size
        self._limit = min(limit, len(data))
        self._visible = Visible(data, arriving, self._limit, largest_record)
        self._last = last
        self._v2 = topic_length_v2
        self._entries = entries or None
        self._largest_record = largest_record
        self._growing = growing
        self._is_whole = is_whole
        self._skipped = skipped
        self._search_bytes = search_bytes
        self._search_unwritten = search_unwritten
        self.position = position  # where it continues
        self.end = position  # after the last whole frame; ``segment_size`` after a BLANK
        self.timestamp = timestamp  # storeTimestamp of the last whole record, ms
        self.last_record = -1  # its position

    @classmethod
    def over(
        cls,
        part: Part,
        data: NDArray[np.uint8],
        settings: StoreSettings,
        timestamp: int = 0,
        *,
        position: int = 0,
        entries: bool | None = None,
        arriving: Arriving | None = None,
        skipped: Callable[[Status, int, int, str], None] | None = None,
    ) -> Self:
        """A walk from a part's segment's first byte up to the part's end, by the store's settings.

        ``timestamp`` is the storeTimestamp, ms, of the record before the segment. ``entries`` None: as the
        settings say.
        """
        view = data.data

        def is_whole(position: int) -> bool:
            return has_stored_crc(view, position, property_crc_only=settings.force_verify_prop_crc)

        return cls(
            data,
            part.base,
            part.segment_size,
            part.end - part.base,
            last=part.last,
            topic_length_v2=settings.dialect.topic_length_v2,
            is_whole=is_whole,
            position=position,
            timestamp=timestamp,
            entries=settings.entries if entries is None else entries,
            largest_record=settings.largest_record,
            arriving=arriving,
            skipped=skipped,
        )

    def advance(self, stop: int, out: Frames | None = None, most_bytes: int = 0) -> bool:
        """Walk to the first record at or after ``stop``; those before it are added to ``out``.

        Returns whether ``out`` is full, by its rows or by ``most_bytes``, before ``stop`` was reached.
        """
        stop = min(stop, self._limit)
        while self.position < stop:
            start, base = self.position, self._base
            if out is None:
                self._pass()
            data, visible = self._visible.at(start)
            end = min(stop, visible)
            if out is None:
                found = _pass_over(data, base, start, end, self._v2, self._entries)
            else:
                found = _collect(data, base, start, end, self._v2, self._entries, out, most_bytes)
            status, self.position, followed, last_frame, last, previous = (int(value) for value in found)
            if not followed and status != Status.FULL:
                status, followed = self._look_ahead(status, is_end=self.position >= stop)
            if last >= 0 and not followed and not self._is_whole(last):
                status, self.position, last = Status.BAD_CRC, last_frame, previous
                if out is not None:
                    _drop_row(out)
            if last >= 0:
                self.end = self.position
                self.last_record = last
                self.timestamp = commitlog.store_timestamp(self._data.data, last)
            if status == Status.FULL:
                return True
            if status == Status.BLANK or is_blank_but_for_its_magic(
                self._data,
                self.position,
                self._segment_size,
                Status(status),
                last=self._last,
                entries=bool(self._entries),
            ):
                self.position = self.end = self._segment_size
            elif status != Status.END:
                self.position = self._next(self.position, Status(status))
        return False

    def _pass(self) -> None:
        self._visible.passed(self.position if self.last_record < 0 else self.last_record)

    def _look_ahead(self, status: int, *, is_end: bool) -> tuple[int, int]:
        """What stands at the position, and whether it is whole, once all is there that can tell.

        ``is_end``: the walk stops here, whatever that is.
        """
        followed, seen = 0, status
        while not followed and self._visible.more(self.position, Status(seen)):
            data, _ = self._visible.at(self.position)
            found = _pass_over(data, self._base, self.position, self.position + 1, self._v2, self._entries)
            seen, followed = int(found[0]), int(found[3] >= 0 or found[2])
        return status if is_end else seen, followed

    def blocks(self, stop: int, out: Frames, most_bytes: int = BLOCK_BYTES) -> Iterator[int]:
        """Go to the first record at or after ``stop``, with those before it in ``out``, block by block.

        Yields how many rows ``out`` has; they are filled again for the next block. The last block may have
        none.
        """
        more = True
        while more:
            out.counts.fill(0)
            self._pass()
            more = self.advance(stop, out, most_bytes)
            yield int(out.counts[ROWS])

    def _next(self, position: int, status: Status) -> int:
        """Where the next whole record begins after a bad one, or the limit."""
        if status is Status.UNWRITTEN and not self._search_unwritten:
            return self._limit
        if kernel.first_written(self._data, position, self._limit) == self._limit:
            return self._skip(position, status, NOWHERE)
        end = self._limit if self._search_bytes is None else min(self._limit, position + self._search_bytes)
        extents = Extents(
            self._data,
            self._base,
            self._segment_size,
            topic_length_v2=self._v2,
            largest_record=self._largest_record,
            entries=bool(self._entries),
            not_before=self.timestamp if self._last else None,
            growing=self._growing(),
        )
        found = extents.resume(position, end)
        return self._skip(position, status, found, extents)

    def _skip(self, position: int, status: Status, found: Resumed, extents: Extents | None = None) -> int:
        """Where it continues behind a bad record, which is told."""
        end = self._limit if found.position < 0 else found.position
        if self._skipped is not None and found.position >= 0 and extents is not None:
            self._skipped(status, position, end, extents.told(found))
        elif self._skipped is not None and end == len(self._data) and not self._last:
            self._skipped(status, position, self._segment_size, TO_NEXT_SEGMENT)
        elif self._skipped is not None:
            self._skipped(status, position, end, TO_NEXT_RECORD)
        return end


def _drop_row(out: Frames) -> None:
    row = int(out.counts[ROWS]) - 1
    out.counts[:] = row, out.entry_end[row - 1] if row else 0, out.counts[BYTES] - out.size[row]
