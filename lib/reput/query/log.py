"""Single messages of the commit log, read at their offsets.

Source: ``CommitLog.getMessage``, ``getMinOffset``, ``pickupStoreTimestamp``, ``rollNextFile``,
``DefaultMessageStore.lookMessageByOffset`` (rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode). A broker reads
whatever is at an offset; reput takes a message only where a record names that offset as its own.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reput.broker.record import Kind, judge
from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import commitlog, names
from reput.log.segments import UNCOMMITTED, Segment, SegmentBytes, discover, open_segment, written_ranges
from reput.query.message import Message

# Both magics of messages begin with it.
_MAGIC = struct.pack(">I", commitlog.MAGIC_V1)[:3]
_PIECE = 1 << 20
# Segments that are searched for a message: a broker makes two ahead of time.
_MOST_SEGMENTS = 3


class LogReader:
    """The segments of a store as they are when this is created, and those that a broker adds later.

    StoreError where there is no log. SettingsError where broker.conf gives another segment size than the
    segments have.

    Attributes:
        start: physical offset where the log begins.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._dialect = settings.dialect
        self._opened: dict[int, SegmentBytes] = {}
        self._discover()
        self.start = self._segments[0].base

    def _discover(self) -> None:
        log = discover(self._settings)
        self._segments = log.segments
        self._bases = [segment.base for segment in log.segments]
        self._size = log.segment_size
        self._uncommitted = any(one.kind == UNCOMMITTED for one in log.findings)

    @property
    def end(self) -> int:
        """Physical offset after the last message; the log's start when none is found."""
        message = self.before(self._limit)
        return self.start if message is None else message.record.physical_offset + message.size

    @property
    def times(self) -> tuple[int, int] | None:
        """StoreTimestamp of the first and the last message, ms; None when none is found."""
        first, last = self.after(self.start - 1), self.before(self._limit)
        if first is None or last is None:
            return None
        return first.record.store_timestamp, last.record.store_timestamp

    def is_uncommitted(self, offset: int) -> bool:
        """Whether a physical offset is behind what a DLedger group is known to have committed."""
        return self._uncommitted and offset >= self._limit

    def why_not(self, offset: int) -> str:
        """Why the message that should be at a physical offset can't be read, in words."""
        if offset < self.start:
            return "the messages have expired"
        if self.is_uncommitted(offset):
            return (
                f"the group hasn't committed the message at physical offset {offset}, as far as this member "
                f"knows: what is committed ends at {self._limit}"
            )
        if offset >= self.end:
            return f"the log ends at {self.end}, before the message at physical offset {offset}"
        if self._segment(offset) is None:
            return f"the segment with the message at physical offset {offset} is missing"
        return f"there is no message at physical offset {offset}"

    @property
    def _limit(self) -> int:
        last = self._segments[-1]
        return last.base + last.length

    def roll_next_file(self, offset: int) -> int:
        """Physical offset of the segment after the one that spans ``offset``."""
        return offset + self._size - offset % self._size

    def message(self, offset: int) -> Message | None:
        """The message that begins at a physical offset, None where none does."""
        segment = self._segment(offset)
        if segment is None:
            return None
        position = offset - segment.base
        data = self._frame(segment, position)
        judged = judge(data, position, self._dialect, check_crc=False)
        if judged.kind is not Kind.MESSAGE or judged.physical_offset != offset:
            return None
        return Message(commitlog.decode(data.data, position), judged.size)

    def record(self, message: Message) -> bytes:
        """A message's record, as it is in the log."""
        offset = message.record.physical_offset
        segment = self._segment(offset)
        if segment is None:
            raise StoreError(
                "the message has expired meanwhile", offset=offset, next_step="Run the same command again"
            )
        at = offset - segment.base
        return self._open(segment).read(at, at + message.size).tobytes()

    def before(self, offset: int) -> Message | None:
        """The last message that begins before a physical offset, within the three segments before it."""
        number = bisect_left(self._bases, offset)
        for segment in reversed(self._segments[max(number - _MOST_SEGMENTS, 0) : number]):
            opened = self._open(segment)
            # What nothing was written to is most of a broker's last segments.
            for start, stop in reversed(list(written_ranges(segment))):
                first = max(start - commitlog.MAGIC, 0)
                high = min(offset - segment.base, stop)
                while high > first:
                    low = max(high - _PIECE, first)
                    behind = min(high + commitlog.MAGIC + len(_MAGIC), segment.length)
                    if opened.is_zero(low, behind):
                        high = low
                        continue
                    for position in _magics(opened, low, high, backwards=True):
                        message = self.message(segment.base + position)
                        if message is not None:
                            return message
                    high = low
        return None

    def after(self, offset: int) -> Message | None:
        """The first message that begins after a physical offset, within three segments from there on."""
        number = max(bisect_right(self._bases, offset) - 1, 0)
        for segment in self._segments[number : number + _MOST_SEGMENTS]:
            low = max(offset + 1 - segment.base, 0)
            while low < segment.length:
                high = min(low + _PIECE, segment.length)
                for position in _magics(self._open(segment), low, high):
                    message = self.message(segment.base + position)
                    if message is not None:
                        return message
                low = high
        return None

    def holds(self, offset: int, size: int) -> bool:
        """Whether ``size`` bytes at a physical offset are within the log, so that a unit's record is there.

        In the last segment a record has to be there, since the log ends before the segment does.
        """
        segment = self._segment(offset)
        return segment is not None and self._is_in(segment, offset, size)

    def _is_in(self, segment: Segment, offset: int, size: int) -> bool:
        if not 0 <= size <= segment.base + segment.length - offset:
            return False
        return segment is not self._segments[-1] or self._stands_at(segment, offset)

    def store_timestamp(self, offset: int, size: int) -> int:
        """The storeTimestamp of the record that a unit points to, ms; -1 when it isn't there."""
        segment = self._segment(offset) if size >= commitlog.MIN_RECORD_LENGTH else None
        if segment is None or not self._is_in(segment, offset, size):
            return -1
        position = offset - segment.base
        return commitlog.store_timestamp(self._frame(segment, position).data, position)

    def _stands_at(self, segment: Segment, offset: int) -> bool:
        at = offset - segment.base + commitlog.PHYSICAL_OFFSET
        data = self._frame(segment, offset - segment.base)
        return at + 8 <= len(data) and struct.unpack_from(">q", data.data, at)[0] == offset

    def _segment(self, offset: int) -> Segment | None:
        if offset >= self._bases[-1] + self._size and self._goes_on():
            self._discover()
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            return None
        segment = self._segments[number]
        return segment if offset < segment.base + segment.length else None

    def _goes_on(self) -> bool:
        """Whether a broker has made another segment since."""
        name = names.offset_name(self._bases[-1] + self._size)
        return any((directory / name).exists() for directory in self._settings.commit_log_dirs)

    def _frame(self, segment: Segment, position: int) -> NDArray[np.uint8]:
        """A segment, with what stands at a position."""
        opened = self._open(segment)
        opened.fetch_frame(position)
        return opened.data

    def _open(self, segment: Segment) -> SegmentBytes:
        opened = self._opened.get(segment.base)
        if opened is None:
            opened = self._opened[segment.base] = open_segment(segment.path, segment.length)
        return opened


def _magics(segment: SegmentBytes, low: int, high: int, *, backwards: bool = False) -> Iterator[int]:
    """Positions in [low, high) where a message may begin, by the magic behind its size; also backwards."""
    first, end = commitlog.MAGIC, high - low + commitlog.MAGIC + len(_MAGIC) - 1
    piece = segment.read(low, low + end).tobytes()
    while (at := (piece.rfind if backwards else piece.find)(_MAGIC, first, end)) >= 0:
        yield low + at - commitlog.MAGIC
        if backwards:
            end = at + len(_MAGIC) - 1
        else:
            first = at + 1
