"""Where a damaged record ends, and where the log continues behind it: a message's body is never log.

The sender of a message decides what its body holds, and may know every rule, every offset and every CRC. So
the bytes of a record belong to that record alone. Three witnesses show how far they reach:

* its size field,
* the sum of the lengths within it,
* what is behind it: a whole record, a closing record (BLANK), or the end of all that was written.

As long as one of them is intact, damage is skipped to there without a search. Where size and sum disagree and
there is a record behind both, the farther end counts, unless the records from the nearer one prove that the
farther one is inside a body. Where no witness is left, the next whole record is searched for, and taken only
if the chain of records from it joins the log: if it leads to the segment's closing record, to the end of what
was written, or farther than any one record reaches. Such records are unproven, and are listed.

Source of what a record is: as :mod:`reput.log.walk`. docs/adr/0031 has the reasons.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format import commitlog, dledger
from reput.format.names import QueueBytes
from reput.scan import kernel
from reput.scan.output import Status, Stop

#: What is done about damage behind which the log continues.
TO_NEXT_RECORD = "passed over up to the next whole record"
#: How many unproven records a finding lists.
MOST_LISTED = 32
#: Records whose queueOffsets are compared.
_MOST_COMPARED = 20_000
_MAGICS = (commitlog.MAGIC_V1, commitlog.MAGIC_V2)
#: What a message ends with at least: its last property, or its topic and two zeros.
_LAST_BYTES = 3

# How well a place behind a record shows that one ends there.
_NOTHING, _END_OF_WRITTEN, _TRACE, _WHOLE = range(4)


class Resumed(NamedTuple):
    """Where the log continues behind damage. Positions are relative to the segment."""

    position: int  # of a whole frame or of a closing record; -1 if missing
    #: records that begin in [position, unproven) may be part of a damaged record's body; equal to
    #: ``position`` where a witness led there
    unproven: int = -1
    #: (start, end) of bytes that are records by one witness and a body by another; usually None
    contested: tuple[int, int] | None = None


NOWHERE = Resumed(-1)


class Extents:
    """Finds the ends of damaged records in one segment, uint8[segment_length].

    ``base`` is the physical offset of its first byte, ``segment_size`` what it spans in the log; behind the
    end of ``data`` nothing was written. ``not_before`` is, in the log's last segment, the storeTimestamp, ms,
    of the newest record before the damage: older ones behind it were left by a truncation. A ``growing``
    segment's end shows nothing.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        base: int,
        segment_size: int,
        *,
        topic_length_v2: bool,
        largest_record: int,
        entries: bool = False,
        not_before: int | None = None,
        growing: bool = False,
    ) -> None:
        self._data = data
        self._view = data.data
        self._base = base
        self._segment_size = segment_size
        self._v2 = topic_length_v2
        self._largest = largest_record
        self._entries = entries
        self._not_before = not_before
        self._growing = growing

    def resume(self, position: int, stop: int) -> Resumed:
        """Where the log continues behind the damaged record at ``position``.

        Without a witness, the next record is searched for up to ``stop``, which is excluded.
        """
        contested: tuple[int, int] | None = None
        while True:
            if self._entries and self._shows(position + dledger.HEADER_LENGTH) == _WHOLE:
                # Only the head of the entry is damaged.
                return Resumed(position + dledger.HEADER_LENGTH, position + dledger.HEADER_LENGTH, contested)
            end, between = self._end(position)
            contested = contested or between
            if end < 0:
                return self._search(position, stop)._replace(contested=contested)
            while self._shows(end) == _WHOLE and self._is_left_over(end):
                end += dledger.frame_size(self._view, end)
            if self._shows(end) == _WHOLE:
                return Resumed(end, end, contested)
            if self._is_zero_from(end):
                return NOWHERE
            position = end

    def end(self, position: int) -> int:
        """Position after the damaged record at ``position``, -1 without an intact witness."""
        return self._end(position)[0]

    def claims(self, position: int, otherwise: int = commitlog.MAGIC_V1) -> dict[int, int]:
        """Where the damaged record at ``position`` would end by its fields: position, and by how many fields.

        ``otherwise`` is the magic to assume if it has none.
        """
        found: dict[int, int] = {}
        # A broker leaves room for a closing record behind each message.
        most = self._segment_size - commitlog.BLANK_LENGTH
        for end in self._claimed(position, otherwise):
            if position + commitlog.MIN_RECORD_LENGTH <= end <= most:
                found[end] = found.get(end, 0) + 1
        return found

    def is_blank(self, position: int) -> bool:
        """Whether a closing record of the right size is there."""
        return self._is_blank(position) and self._is_exact_blank(position)

    def is_message(self, position: int) -> bool:
        """Whether a whole record with its CRC is there, not older than the log before the damage."""
        found = kernel.find_record(self._data, self._base, position, position + 1, self._v2, self._entries)
        return found == position and not self._is_left_over(position)

    def told(self, resumed: Resumed) -> str:
        """For people: what was done about damage behind which the log continues."""
        text = TO_NEXT_RECORD
        if resumed.contested is not None:
            text += "; its size and its lengths disagree, and there are records behind both: not taken, "
            text += f"as they may be part of its body: {self.listed(*resumed.contested)}"
        if resumed.unproven > resumed.position:
            text += "; nothing proves that one begins there, so that these may be part of a message's body, "
            text += f"and give way to proven ones: {self.listed(resumed.position, resumed.unproven)}"
        return text

    def listed(self, start: int, end: int) -> str:
        """For people: the records that begin in [start, end), the first :data:`MOST_LISTED` one by one."""
        lines: list[str] = []
        at, view = start, self._view
        while (
            len(lines) < MOST_LISTED and self._chain(at, min(end, at + 1)).status is Status.END and at < end
        ):
            record = dledger.record_at(view, at)
            message = commitlog.decode(view, record)
            topic = message.topic.decode("utf-8", "backslashreplace")
            place = f"{topic}:{message.queue_id} queueOffset {message.queue_offset}"
            lines.append(f"{place} at {self._base + record}")
            at += dledger.frame_size(view, at)
        _, _, more = kernel.chain(self._data, self._base, at, max(end, at), self._v2, self._entries)
        rest = f"; {more} more up to {self._base + end}" if more else ""
        return "; ".join(lines) + rest

    # By witnesses.

    def _end(self, position: int) -> tuple[int, tuple[int, int] | None]:
        found = self._end_as(position, commitlog.MAGIC_V1)
        # Without a magic, the one of nearly all records is assumed, unless that doesn't fit.
        return found if found[0] >= 0 else self._end_as(position, commitlog.MAGIC_V2)

    def _end_as(self, position: int, otherwise: int) -> tuple[int, tuple[int, int] | None]:
        claims = self.claims(position, otherwise)
        agreed = [end for end, votes in claims.items() if votes > 1]
        if agreed:
            return max(agreed), None
        size_counts = self._head_is_intact(position)
        by_size = position + self._size(position)
        standing = [
            end for end in sorted(claims) if self._shows(end) > _NOTHING or (size_counts and end == by_size)
        ]
        if not standing:
            return -1, None
        chosen, contested = standing[0], None
        for end in standing[1:]:
            near, chosen = chosen, self._of_two(chosen, end)
            if chosen == end and self._shows(near) == _WHOLE:
                contested = near, end
        return chosen, contested

    def _of_two(self, near: int, far: int) -> int:
        """Which of two ends counts, each with some evidence."""
        if self._shows(near) != _WHOLE:
            return far
        at, last = near, -1
        while True:
            stop, last, _ = kernel.chain(self._data, self._base, at, far, self._v2, self._entries)
            at = stop.position
            if stop.status is Status.END:
                break
            if self._closes(stop):
                # A body may hold a closing record, too.
                return far if self._shows(far) > _NOTHING else near
            agreed = [end for end, votes in self.claims(at).items() if votes > 1]
            if not agreed:
                return far
            at = max(agreed)
        if at == far or last < 0:
            return far
        # The records from the nearer end on lead past the farther one.
        return far if self._shows(far) == _WHOLE and not self._is_in_body(far, last) else near

    def _closes(self, stop: Stop) -> bool:
        """Whether a chain of records has reached the segment's end, or the end of what was written."""
        if stop.status is Status.BLANK:
            return self._is_exact_blank(stop.position)
        return not self._growing and self._is_zero_from(stop.position)

    def _is_in_body(self, position: int, frame: int) -> bool:
        """Whether a position is inside the body, with a right CRC, of the whole frame at ``frame``."""
        record = dledger.record_at(self._view, frame)
        message = commitlog.decode(self._view, record)
        start = self._body(record)
        is_proven = commitlog.body_crc(message.body) == (message.body_crc or 0) & 0xFFFFFFFF
        return is_proven and start <= position <= start + len(message.body) - commitlog.BLANK_LENGTH

    def _claimed(self, position: int, otherwise: int) -> list[int]:
        found = self._record_claims(position, otherwise)
        if self._entries and position + dledger.HEADER_LENGTH <= len(self._view):
            (size,) = struct.unpack_from(">i", self._view, position + dledger.SIZE)
            (body,) = struct.unpack_from(">i", self._view, position + dledger.BODY_LENGTH)
            inner = position + dledger.HEADER_LENGTH
            found += [position + size, inner + body, *self._record_claims(inner, otherwise)]
        return found

    def _record_claims(self, position: int, otherwise: int = commitlog.MAGIC_V1) -> list[int]:
        """The record's ends by its size and by its lengths."""
        view = self._view
        if position + commitlog.MIN_RECORD_LENGTH > len(view):
            return []
        found = [position + self._size(position)]
        topic = self._body(position)
        if topic > len(view):
            return found
        (body_length,) = struct.unpack_from(">i", view, topic - 4)
        topic += max(body_length, 0)
        magic = self._magic(position)
        width = 2 if (magic if magic in _MAGICS else otherwise) == commitlog.MAGIC_V2 else 1
        at = topic + width
        if at + 2 > len(view):
            return found
        at += int.from_bytes(view[topic:at], "big", signed=True)
        if topic + width <= at <= len(view) - 2:
            properties = int.from_bytes(view[at : at + 2], "big", signed=True)
            end = at + 2 + max(properties, 0)
            # Where the whole head is gone, the lengths may be read from the body.
            if end == found[0] or self._head_is_intact(position) or self._has_time(position):
                found.append(end)
        return found

    def _has_time(self, position: int) -> bool:
        """Whether storeTimestamp, which is next to the lengths, is a time: ms since 1970 in 13 digits."""
        at = position + commitlog.store_timestamp_at(self._sys_flag(position))
        return 10**12 <= int.from_bytes(self._view[at : at + 8], "big") < 10**13

    def _body(self, position: int) -> int:
        """Position of a record's body."""
        return position + commitlog.body_at(self._sys_flag(position))

    def _size(self, position: int) -> int:
        return int.from_bytes(self._view[position : position + 4], "big", signed=True)

    def _magic(self, position: int) -> int:
        at = position + commitlog.MAGIC
        return int.from_bytes(self._view[at : at + 4], "big")

    def _sys_flag(self, position: int) -> int:
        at = position + commitlog.SYS_FLAG
        return int.from_bytes(self._view[at : at + 4], "big", signed=True)

    def _is_own_place(self, position: int) -> bool:
        at = position + commitlog.PHYSICAL_OFFSET
        return int.from_bytes(self._view[at : at + 8], "big") == self._base + position

    def _head_is_intact(self, position: int) -> bool:
        """Whether a field behind the size is what it was: then the size may be, too."""
        return self._magic(position) in _MAGICS or self._is_own_place(position)

    def _shows(self, position: int) -> int:
        """How well the bytes at a position show that a record ends there."""
        data = self._data
        if position + commitlog.BLANK_LENGTH <= len(data):
            found = kernel.find_record(data, self._base, position, position + 1, self._v2, self._entries)
            if found == position:
                return _WHOLE
            if self._chain(position, position + 1).status is Status.BLANK:
                return _WHOLE if self._is_exact_blank(position) else _NOTHING
            if self._is_trace(position):
                return _TRACE
        if self._growing or position > len(data) or not self._is_zero_from(position):
            return _NOTHING
        return _END_OF_WRITTEN if any(self._view[position - _LAST_BYTES : position]) else _NOTHING

    def _is_trace(self, position: int) -> bool:
        """Whether a damaged record is there: two of its magic, its place and its lengths are intact."""
        if self._entries and self._magic(position) not in _MAGICS:
            position += dledger.HEADER_LENGTH
        claims = self._record_claims(position)
        if not claims:
            return False
        traces = self._magic(position) in _MAGICS, self._is_own_place(position), claims[0] in claims[1:]
        return sum(traces) > 1

    def _is_zero_from(self, position: int) -> bool:
        data = self._data
        return position >= len(data) or kernel.first_written(data, position, len(data)) == len(data)

    def _is_exact_blank(self, position: int) -> bool:
        """Whether the closing record there says how many bytes are left, as a broker's does."""
        sizes = [position, position + dledger.SIZE] if self._entries else [position]
        return any(self._size(at) == self._segment_size - position for at in sizes)

    def _is_left_over(self, frame: int) -> bool:
        if self._not_before is None or self._chain(frame, frame + 1).status is not Status.END:
            return False
        message = commitlog.decode(self._view, dledger.record_at(self._view, frame))
        return message.store_timestamp < self._not_before

    def _chain(self, start: int, end: int) -> Stop:
        return kernel.walk(self._data, self._base, start, end, self._v2, self._entries)

    # Without a witness.

    def _search(self, position: int, stop: int, *, at_once: bool = False) -> Resumed:
        """The first record whose chain joins the log.

        A chain that ends in a closing record counts only if no other one continues behind that: a body may
        hold a closing record, too. One that breaks off counts only if the log behind lacks its messages,
        which isn't checked with ``at_once``.
        """
        lost: set[int] = set()
        closing, closed_at = -1, -1
        while True:
            position = kernel.find_record(self._data, self._base, position + 1, stop, self._v2, self._entries)
            if position < 0:
                break
            if position in lost or self._is_left_over(position):
                continue
            joined = self._joins(position, lost)
            if joined < 0 and closing < 0 and not at_once and self._is_missed(position):
                return self._unproven(position)
            if joined < 0 or (closing >= 0 and joined <= closed_at):
                continue
            if not self._is_blank(joined):
                return self._unproven(position)
            if closing < 0:
                stop = max(stop, min(position + self._largest, len(self._data)))
            closing, closed_at = position, joined
            self._lose(position, joined, lost)
        return self._unproven(closing) if closing >= 0 else NOWHERE

    def _is_missed(self, position: int) -> bool:
        """Whether the log further on lacks exactly the messages of a chain that breaks off.

        It does if there is damage at both of its ends: each queue of these messages continues above them, in
        records that join the log. If they are in a body, the log lacks nothing.
        """
        if self._growing:
            return False
        broken, _, _ = kernel.chain(
            self._data, self._base, position, len(self._data), self._v2, self._entries
        )
        last = dict(self._queue_offsets(position, broken.position))
        following = self._search(broken.position, len(self._data), at_once=True).position
        if following < 0:
            return False
        for queue, offset in self._queue_offsets(following, len(self._data)):
            if queue in last and offset <= last.pop(queue):
                return False
            if not last:
                return True
        return False

    def _queue_offsets(self, start: int, end: int) -> Iterator[tuple[QueueBytes, int]]:
        """(topic, queueId) and queueOffset of the records of a chain that begin in [start, end)."""
        for _ in range(_MOST_COMPARED):
            if start >= end or self._chain(start, start + 1).status is not Status.END:
                return
            message = commitlog.decode(self._view, dledger.record_at(self._view, start))
            yield (message.topic, message.queue_id), message.queue_offset
            start += dledger.frame_size(self._view, start)

    def _unproven(self, position: int) -> Resumed:
        return Resumed(position, min(position + self._largest, len(self._data)))

    def _is_blank(self, position: int) -> bool:
        return self._chain(position, position + 1).status is Status.BLANK

    def _joins(self, position: int, lost: set[int]) -> int:
        """Where the chain of records from ``position`` on is part of the log, -1 if it breaks off before.

        ``lost`` takes the records of a chain that breaks off.
        """
        data, far = self._data, min(position + self._largest, len(self._data))
        at, last = position, position
        while at < far:
            stop, frame, _ = kernel.chain(data, self._base, at, far, self._v2, self._entries)
            last = frame if frame >= 0 else last
            at = stop.position
            if stop.status is Status.END or self._closes(stop):
                break
            # Less than a record may have been begun at the end.
            if not self._growing and self._is_zero_from(at + commitlog.MIN_RECORD_LENGTH):
                break
            end = self.end(at)
            if end < 0:
                self._lose(position, far, lost)
                return -1
            at = end
        if self._is_left_over(last):
            self._lose(position, far, lost)
            return -1
        return at

    def _lose(self, position: int, far: int, lost: set[int]) -> None:
        while position < far and self._chain(position, position + 1).status is Status.END:
            lost.add(position)
            position += dledger.frame_size(self._view, position)
