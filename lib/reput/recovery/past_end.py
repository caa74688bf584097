"""What leads past the log's end, and isn't lost: it was cut on purpose, or an earlier start has left it.

Source: ``CommitLog.recoverNormally``, ``recoverAbnormally``, ``ConsumeQueue.truncateDirtyLogicFiles``,
``IndexService.buildIndex`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reput.broker.snapshot import Snapshot
from reput.broker.written import first_written
from reput.derived.files import segment_at
from reput.format import commitlog
from reput.format.checkpoint import LOGICS_FIELDS
from reput.format.names import Queue
from reput.log.segments import map_segment
from reput.log.walk_kernel import walk
from reput.scan import kernel
from reput.scan.output import Status

#: Queues that one finding names.
MOST_NAMED = 5


class CutBefore:
    """What stands behind the log's end of a log that was longer, and was cut on purpose.

    ``DefaultMessageStore.truncateFiles``, which a controller asks for, moves positions back: whole messages
    stay behind the log's end, and units of them in the queues' files (rocketmq-all-5.3.3). They are older
    than the message before the end. Later segments are deleted.

    Args:
        snapshot: the store.
        end: where the log ends.
        last_time: storeTimestamp of its last message, ms; 0 without one.
    """

    def __init__(self, snapshot: Snapshot, end: int, last_time: int) -> None:
        self._data, self._base = np.empty(0, np.uint8), end
        self._had_more, self._last_time = False, last_time
        size, files = snapshot.segment_size, snapshot.log.files
        segment = segment_at(files, size, end)
        if segment is None or not last_time:
            return
        v2, array = snapshot.settings.dialect.topic_length_v2, map_segment(segment.path, size)
        at = first_written(segment, size, end - segment.base)
        found = kernel.find_record(array, segment.base, at, size, v2)
        if found < 0 or commitlog.store_timestamp(array.data, found) >= last_time:
            return
        self._data, self._base = array, segment.base
        # Only a segment that was filled had others behind it.
        closed = walk(array, segment.base, found, 0, v2, 0, size).status == Status.BLANK
        later = [one for one in files if one.base > segment.base]
        self._had_more = closed and all(first_written(one, size, 0) == size for one in later)

    def holds(self, position: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[units], which of some units that lead past the log's end are of what was cut.

        Args:
            position, size: int64[units], physical offset and bytes.
        """
        if not len(self._data):
            return np.zeros(len(position), bool)
        at = position - self._base
        held = (at >= len(self._data)) & self._had_more
        most = len(self._data) - commitlog.MIN_RECORD_LENGTH
        for number in np.flatnonzero((at >= 0) & (at <= most)).tolist():
            place, view = int(at[number]), self._data.data
            length = int.from_bytes(view[place : place + 4], "big")
            stored = view[place + commitlog.PHYSICAL_OFFSET : place + commitlog.PHYSICAL_OFFSET + 8]
            known = length == size[number] and int.from_bytes(stored, "big") == position[number]
            held[number] = known and commitlog.store_timestamp(view, place) < self._last_time
        return held


def left_by_a_cut(snapshot: Snapshot, end: int, last_time: int) -> bool:
    """Whether units past the log's end may be what an earlier start cut off.

    A start after a crash cuts queues by moving a position back: the units stay in the file until new ones are
    written over them, also through a stop in good order. That stop writes down the time of the last message
    with a unit. If it is the log's last one, the log has lost nothing since. (5.5 sometimes writes down an
    earlier one, which tells nothing.)

    Args:
        end: where the log ends.
        last_time: storeTimestamp of its last message, ms; 0 without one.
    """
    known = snapshot.checkpoint.logics_msg_timestamp
    return snapshot.clean and _last_unit(snapshot) < end and 0 < known == last_time


def _last_unit(snapshot: Snapshot) -> int:
    """Physical offset of the last message with a unit, by the checkpoint; -1 before 5.4, and without one."""
    known = snapshot.settings.dialect.checkpoint_fields >= LOGICS_FIELDS
    offset = snapshot.checkpoint.logics_physical_offset
    return offset if known and offset > 0 else -1


def named(queues: Sequence[Queue]) -> str:
    """``A:0, B:1``, and how many more there are."""
    names = ", ".join(f"{topic}:{queue_id}" for topic, queue_id in queues[:MOST_NAMED])
    more = len(queues) - MOST_NAMED
    return f"{names} and {more:,} more" if more > 0 else names
