"""What leads past the log's end: units and keys of messages that the log had, and has lost.

Whoever knows where a log ends asks here: ``reput check`` (:mod:`reput.recovery.check`), which looks for that
end only if something seems to lead past it, and ``reput report``, which has read the log. Two others have the
same names for other questions: the plan (:mod:`reput.recovery.plan`, :mod:`reput.recovery.losses`) asks
what is ahead of the log after a restart, verify (:mod:`reput.verify.checkpoint`) whether the checkpoint is
ahead of the data.

Source: ``CommitLog.recoverNormally``, ``recoverAbnormally``, ``ConsumeQueue.truncateDirtyLogicFiles``,
``IndexService.buildIndex`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from reput.broker.batch_queue import BatchModel
from reput.broker.files import LAST_FILES, segment_at
from reput.broker.queue import QueueModel
from reput.broker.snapshot import IndexEntry, Queue, Snapshot
from reput.broker.written import first_written
from reput.format import commitlog
from reput.format.checkpoint import LOGICS_FIELDS
from reput.format.consumequeue import PRE_BLANK_SIZE
from reput.log.segments import map_segment
from reput.log.walk_kernel import walk
from reput.scan import kernel
from reput.scan.status import Status

#: Kinds of findings: units of queues, keys of the index, the checkpoint's last unit.
PAST_LOG_END, INDEX_AHEAD, CHECKPOINT_AHEAD = "past-log-end", "index-ahead", "checkpoint-ahead"

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


def units_past(
    model: QueueModel | BatchModel, end: int, *, after_cut: bool, before: CutBefore | None = None
) -> int:
    """Units that lead to a message which begins or ends past a physical offset.

    They are looked for in the last files, as a starting broker does, and in those before them as long as they
    go on past the end.

    Args:
        model: the queue, recovered.
        end: where the log ends.
        after_cut: an earlier start may have cut units off the queue's end: those aren't counted.
        before: nor are those of a log that was cut on purpose.

    Raises:
        OSError: a file can't be read.
    """
    if isinstance(model, QueueModel) and model.ends_before(end):
        return 0
    files = _batch_units(model, end, before) if isinstance(model, BatchModel) else _units(model, end, before)
    return _count_past(files, after_cut=after_cut)


def _units(model: QueueModel, end: int, before: CutBefore | None) -> Iterator[NDArray[np.bool_]]:
    for file in reversed(model.files):
        if file.place is not None:
            units = model.counting(file)
            # The blanks before a queue's first unit lead nowhere.
            past = _leads_past(units, end, before)
            yield past & (units["size"] != PRE_BLANK_SIZE)


def _batch_units(model: BatchModel, end: int, before: CutBefore | None) -> Iterator[NDArray[np.bool_]]:
    for file in reversed(model.files):
        units = file.counting
        yield _leads_past(units, end, before)


def _leads_past(units: NDArray[np.void], end: int, before: CutBefore | None) -> NDArray[np.bool_]:
    offset, size = units["position"].astype(np.int64), units["size"].astype(np.int64)
    # A sum that overflows is of an offset that lies past any end.
    past = (offset >= end) | (offset + size > end)
    if before is not None and past.any():
        past[past] = ~before.holds(offset[past], size[past])
    return past


def _count_past(files: Iterable[NDArray[np.bool_]], *, after_cut: bool) -> int:
    """How many are True in the last files, the last one first, and in those before that go on with True."""
    count = 0
    for number, past in enumerate(files, 1):
        others = np.flatnonzero(~past)
        cut = int(others[-1]) + 1 if len(others) else 0
        count += int(past[:cut].sum() if after_cut else past.sum())
        after_cut = after_cut and not cut
        if number >= LAST_FILES and len(past) and not past[0]:
            break
    return count


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
    return snapshot.clean and last_unit(snapshot) < end and 0 < known == last_time


def keys_past(index: Iterable[IndexEntry], end: int) -> list[IndexEntry]:
    """The index files with a key of a message at a physical offset or behind it, in order."""
    return [
        entry for entry in index if entry.header.index_count > 1 and entry.header.end_physical_offset >= end
    ]


def last_unit(snapshot: Snapshot) -> int:
    """Physical offset of the last message with a unit, by the checkpoint; -1 before 5.4, and without one."""
    known = snapshot.settings.dialect.checkpoint_fields >= LOGICS_FIELDS
    offset = snapshot.checkpoint.logics_physical_offset
    return offset if known and offset > 0 else -1


def named(queues: Sequence[Queue]) -> str:
    """``A:0, B:1``, and how many more there are."""
    names = ", ".join(f"{topic}:{queue_id}" for topic, queue_id in queues[:MOST_NAMED])
    more = len(queues) - MOST_NAMED
    return f"{names} and {more:,} more" if more > 0 else names
