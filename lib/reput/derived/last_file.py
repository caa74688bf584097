"""The last file of a queue whose messages have all expired, which only the store itself still has.

The next queueOffset of such a queue stands nowhere in the log. A broker keeps it by never deleting a queue's
last file: ``MappedFileQueue.deleteExpiredFileByOffset`` looks at all files but that one, and
``ConsumeQueue.recover`` takes the queue's end from it (rocketmq-all-4.9.7, 5.3.3), as does
``BatchConsumeQueue.recover`` (rocketmq-all-5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH, unit
from reput.format.dtypes import PLAIN, UNIT_DTYPE, Form, UnitKind, classify
from reput.store import files
from reput.store.reading import read_file

#: Stands for the last blank of a queue that has nothing else: a message before all others, long expired.
AFTER_BLANKS = unit(0, 1, 0)
#: The kind of a finding: of queues whose messages have expired it isn't known where they ended.
EXPIRED_QUEUES = "expired-queues"
_UNITS_AT_ONCE = 1 << 16
#: Why a queue that never had a message can't be carried over.
NO_UNIT = "it has no file with a unit"
_IN_LOG = "all its units ({:,}) lead behind {}, where the log begins, and the log has no message of it"


@dataclass(frozen=True, slots=True)
class LastFile:
    """What can be carried over."""

    path: Path  # the file
    units: bytes  # its bytes up to its last unit's end; zeros follow up to the file's length
    next_offset: int  # the queueOffset of the queue's next message
    last_position: int  # the physical offset in its last unit; -1 where only blanks are left
    #: the physical offset in the first unit that isn't taken, and leads into the log or behind; -1
    #: where all are
    left_out: int
    modified: int  # when it was written, ns since the epoch; 4.9 finds messages of a time by that


class Lost:
    """The parts of a log that can't be read: ``ranges`` are physical offsets, half open, and may overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._starts, ends = np.array(sorted(ranges), np.int64).reshape(-1, 2).T
        self._ends = np.append(np.maximum.accumulate(ends), -1)  # the last one: before all of them

    def __bool__(self) -> bool:
        return len(self._starts) > 0

    def has(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        """bool[units], which of them lead into one."""
        position = units["position"].astype(np.int64)
        at = np.searchsorted(self._starts, position, "right") - 1
        return np.array((classify(units) > UnitKind.PRE_BLANK) & (position < self._ends[at]))


def own_end(
    read: Callable[[int, int], bytes], first: int, is_own: Callable[[NDArray[np.void]], NDArray[np.bool_]]
) -> int:
    """The queueOffset behind the last place, from ``first`` on, that a plain queue's own messages had.

    ``read`` gives the units of so many places from a queueOffset on, zeros where none are. As ``recover`` has
    it, the queue ends at the first place without a unit. What lies before one of the queue's own was a place
    of it, too, whatever its unit leads to now.
    """
    at = end = first
    count = 1  # most queues end there
    while True:
        units = np.frombuffer(read(at, count), UNIT_DTYPE)
        units = units[: int(np.append(units["size"] > 0, False).argmin())]
        own = np.flatnonzero(is_own(units))
        end = at + int(own[-1]) + 1 if len(own) else end
        at += len(units)
        if len(units) < count:
            return end
        count = _UNITS_AT_ONCE


def nowhere(segment_size: int) -> bytes:
    """The unit of a place that leads into a log that begins at 0, and to nothing.

    It reaches over the first segment's end: a broker gets nothing for it, and passes over it
    (``DefaultMappedFile.selectMappedBuffer``, ``DefaultMessageStore.getMessage``, rocketmq-all-4.9.7, 5.3.3).
    """
    return unit(segment_size - 1, 2, 0)


def last_file(
    directory: Path,
    file_size: int,
    log_start: int,
    log_end: int,
    form: Form = PLAIN,
    lost: Lost | None = None,
    segment_size: int = 0,
) -> LastFile | str:
    """The last file with a unit in a queue's directory, or why it isn't one to go on with.

    A broker's crash may leave an empty file behind it, which says nothing more. As ``recover`` has it,
    a queue ends at the first place that holds no unit, whatever lies behind. Units from the first one on that
    leads to the log's end or behind it don't count: a start cuts them off, and leaves the blanks before
    them (``ConsumeQueue.truncateDirtyLogicFiles``). Behind a blank a broker puts no unit of a message that
    ends below 2 GiB (``putMessagePositionInfo``), so the last blank becomes a unit of one byte.

    Units that lead into the log are of messages that it has lost. Their places are kept, so that no new
    message gets the queueOffset of an old one: units before the log stand there, as of expired messages. In a
    log that begins at 0 no unit leads before it: :func:`nowhere` stands in all places up to the last that
    leads into what is ``lost``, if the log is longer than a segment of ``segment_size`` bytes, and the queue
    a plain one.

    The log, [log_start, log_end), has no message of the queue. ``file_size`` is as the broker rounds it.
    """
    stands = None
    if lost is not None and form.by_place and not log_start and 0 < segment_size < log_end:
        (stands,) = np.frombuffer(nowhere(segment_size), form.dtype)
    reason, behind_start, left_out = NO_UNIT, 0, -1
    for found in _newest_first(directory, file_size):
        if isinstance(found, str):
            return found
        path, data, modified = found
        units = np.frombuffer(data, form.dtype, len(data) // form.unit_length).copy()
        # What recover takes for a unit; the blanks before a queue's first unit count, too.
        is_unit, blanks = form.counts(units), 0
        if form.by_place:
            blanks = int(np.argmax(np.append(classify(units), UnitKind.EMPTY) != UnitKind.PRE_BLANK))
        if lost is not None and stands is not None:
            own = np.flatnonzero(lost.has(units) | (units == stands))
            if len(own):
                count = int(own[-1]) + 1
                units[blanks:count] = stands
                after = int(path.name) // UNIT_LENGTH + count
                return LastFile(path, units[:count].tobytes(), after, segment_size - 1, -1, modified)
        counts = _counts(units, is_unit, log_start, log_end, blanks)
        if isinstance(counts, str):
            return counts
        before, count = counts
        count = count if log_start else before
        behind = units["position"][before:][is_unit[before:]]
        behind = behind[behind >= log_start]
        left_out = int(behind[0]) if behind.size else left_out
        if count:
            if not form.by_place:
                for name, least in (("position", 0), ("size", 1)):
                    units[name][before:count] = units[name][before - 1] if before else least
                after = int(units[count - 1]["base_offset"]) + int(units[count - 1]["batch_size"])
            else:
                if before > blanks:
                    units[before:count] = units[before - 1]
                else:
                    (after_blanks,) = np.frombuffer(AFTER_BLANKS, form.dtype)
                    units[blanks:count] = units[max(count - 1, 0)] = (
                        after_blanks if stands is None else stands
                    )
                after = (int(path.name) + count * UNIT_LENGTH) // UNIT_LENGTH
            last = int(units[count - 1]["position"]) if count > blanks else -1
            return LastFile(path, units[:count].tobytes(), after, last, left_out, modified)
        behind_start += int(is_unit.sum()) - blanks
        reason = _IN_LOG.format(behind_start, log_start)
    return reason


def last_ext_file(directory: Path, file_size: int) -> tuple[Path, bytes] | None:
    """A queue's last file in consumequeue_ext that isn't empty, and its bytes without zeros at the end."""
    if not directory.is_dir():
        return None
    found = next(_newest_first(directory, file_size), NO_UNIT)
    return None if isinstance(found, str) else (found[0], found[1].rstrip(b"\0"))


def _newest_first(directory: Path, file_size: int) -> Iterator[tuple[Path, bytes, int] | str]:
    """The files that aren't empty, their bytes, and when each was written, ns; or why one can't be taken."""
    with files.reporting("the queue's last file can't be read", directory):
        bases = {names.parse_offset_name(path.name): path for path in directory.iterdir()}
        for base in sorted((base for base in bases if base is not None), reverse=True):
            path = bases[base]
            facts = path.stat()
            if facts.st_size != file_size:
                yield f"its last file has {facts.st_size} bytes, not {file_size}"
                return
            if base % file_size:
                yield f"its last file's name is no multiple of {file_size}"
                return
            data = read_file(path)
            if data.count(0) != len(data):
                yield path, data, facts.st_mtime_ns


def _counts(
    units: NDArray[np.void],
    is_unit: NDArray[np.bool_],
    log_start: int,
    log_end: int,
    blanks: int = 0,
) -> tuple[int, int] | str:
    """How many units a file begins with that lead before the log, and whose places are kept.

    ``blanks`` of them, at its beginning, count, too, and lead nowhere. Or what is wrong with them.
    """
    count = len(units) if is_unit.all() else int(is_unit.argmin())
    if count <= blanks:
        return "its last file doesn't begin with units"
    position = units["position"][blanks:count].astype(np.int64)
    if (np.diff(position) < 0).any():
        return "the units of its last file aren't in the log's order"
    before, kept = (blanks + int(np.searchsorted(position, end)) for end in (log_start, log_end))
    return before, kept
