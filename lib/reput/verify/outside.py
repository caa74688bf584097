"""The places of a queue that the log says nothing of, and the queue's files themselves.

Before a queue's first message in the log there may be pre-blank units, then units of messages that have
expired with the log's head (``ConsumeQueue.fillPreBlank``, ``ConsumeQueue.correctMinOffset``,
rocketmq-all-4.9.7, 5.3.3). Behind its last message there is nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH, UnitKind, classify
from reput.remote.left_out import have
from reput.store.listing import entries_in
from reput.store.reading import extents, looked_at, pread, reading, what_is
from reput.verify.report import QUEUE, Difference
from reput.verify.units import UnitRange, extra_ranges, missing_ranges, units_of

_UNITS_AT_ONCE = 1 << 18
#: Less than any position: no unit but pre-blank ones so far. One more: units, but none of an expired message.
_UNUSED = -2


class Seen(NamedTuple):
    """What needn't be read again of a file that stays as it is.

    Attributes:
        log_start: physical offset where the log began.
        came_with, left_with: the highest position before the file's first place, and before ``first``.
        first: queueOffset up to which its places are as they should be before a queue's first message.
        after: queueOffset from which on they are empty; -1 where that isn't so, or wasn't looked at.
    """

    log_start: int
    came_with: int
    left_with: int
    first: int
    after: int


@dataclass(slots=True)
class Outside:
    """What came of looking at one queue's directory.

    Attributes:
        ranges: places that differ.
        problems: files that are wrong.
        fitting: files of the right length.
        units: units that stand for expired messages.
        beyond: units past the end of the log that was looked at, which a live broker has added.
        used: queueOffset after the last place that isn't zero, of those before the first message.
        seen: files that are as they should be, by their first byte.
    """

    topic: str
    queue_id: int
    ranges: list[UnitRange] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)
    fitting: int = 0
    units: int = 0
    beyond: int = 0
    used: int = 0
    seen: dict[int, Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """What the log says of a queue.

    Attributes:
        first, next: queueOffset of its first message in the log and after its last one; None where the log
            has no message of it.
        seen: what an earlier run found of files that are as they were, by their first byte.
    """

    topic: str
    queue_id: int
    first: int | None = None
    next: int | None = None
    seen: dict[int, Seen] = field(default_factory=dict)


def check_outside(
    root: Path,
    file_size: int,
    log_start: int,
    live_end: int | None,
    ext_file_size: int | None,
    known: Known,
) -> Outside:
    """Look at a queue's files, and at the places outside of what the log has.

    Args:
        file_size: ``mappedFileSizeConsumeQueue`` as the broker rounds it, bytes.
        log_start: physical offset where the log begins.
        live_end: where a broker writes meanwhile, the physical offset up to which the log was looked at:
            units of messages from there on are let be. None without a broker.
        ext_file_size: ``mappedFileSizeConsumeQueueExt``, bytes, where the queue's files in consumequeue_ext
            are looked at as well.

    Raises:
        OSError: a file can't be read.
    """
    result = Outside(known.topic, known.queue_id)
    queue = known.topic, known.queue_id
    directory = names.queue_directory(root, *queue)
    listed = series_files(directory, queue, file_size, UNIT_LENGTH)
    files, result.problems, result.fitting = listed.files, listed.problems, listed.fitting
    if ext_file_size is not None:
        listed = series_files(names.queue_ext_directory(root, *queue), queue, ext_file_size)
        result.problems += listed.problems
    last_position = _UNUSED
    for base, path in files:
        with reading(path, by_ranges=True) as fd:
            length = min(os.fstat(fd).st_size, file_size) // UNIT_LENGTH * UNIT_LENGTH
            file = _File(path, fd, base // UNIT_LENGTH)
            stop = file.start + length // UNIT_LENGTH
            before = stop if known.first is None else min(max(known.first, file.start), stop)
            seen = known.seen.get(base)
            if seen is None or not _still_holds(seen, last_position, log_start, before, live_end):
                seen = Seen(log_start, last_position, last_position, file.start, -1)
            count, used = len(result.ranges), result.used
            result.used = seen.first if seen.first > file.start else 0
            left_with = _before(file, seen.first, before, log_start, seen.left_with, live_end, result)
            odd = result.ranges[count:]
            first = before if known.first is not None else max(result.used, file.start)
            is_right = all(one.first >= first for one in odd) if known.first is None else not odd
            after = first if known.first is None else -1
            if known.next is not None:
                after, count = max(known.next, file.start), len(result.ranges)
                if after < stop and not 0 <= seen.after <= after:
                    _behind(file, after, stop, live_end, result)
                after = after if len(result.ranges) == count else -1
            if is_right and live_end is None:
                result.seen[base] = Seen(log_start, last_position, left_with, first, after)
            last_position, result.used = left_with, result.used or used
    if known.first is None:
        # Where the log has nothing of a queue, what is behind its last unit is no loss.
        result.ranges = [one for one in result.ranges if one.first < result.used]
    return result


class _File(NamedTuple):
    """A file of a queue that is open, and the queueOffset of its first place."""

    path: Path
    fd: int
    start: int

    def read(self, at: int, length: int) -> bytes:
        return pread(self.path, self.fd, length, at)


def _still_holds(seen: Seen, last_position: int, log_start: int, before: int, live_end: int | None) -> bool:
    """Whether what was found of a file says as much of it now: more may have expired since, and no less."""
    return (
        live_end is None
        and seen.came_with == last_position
        and seen.log_start <= log_start
        and seen.first <= before
    )


def place_in(directory: Path, file_size: int, at: int) -> tuple[Path, int]:
    """The file of a queue that has its byte ``at``, and the byte offset there."""
    return directory / names.offset_name(at - at % file_size), at % file_size


@dataclass(slots=True)
class SeriesListed:
    """The files of one size that follow one another in a directory.

    Attributes:
        files: (byte offset of its first byte, file), in order: those that have places.
        problems: what is wrong with the others, and with these.
        fitting: files of the right length.
    """

    files: list[tuple[int, Path]] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)
    fitting: int = 0


def series_files(
    directory: Path, queue: tuple[str, int], file_size: int, unit_length: int | None = None
) -> SeriesListed:
    """List the files of a queue.

    Args:
        queue: whose the directory is, for what is wrong in it.
        unit_length: bytes of a place; None where places have no queueOffsets.
    """
    result = SeriesListed()
    found = result.files

    def wrong(kind: str, path: str, expected: str, found: str, first: int = 0, end: int = 0) -> None:
        told = Difference(
            kind, path, QUEUE, expected, found, first=first, end=end, topic=queue[0], queue_id=queue[1]
        )
        result.problems.append(told)

    for entry in entries_in(directory):
        facts = looked_at(entry)
        if facts is None:
            continue
        if not stat.S_ISREG(facts.st_mode):
            wrong("queue-stray-directory", entry.path, "files only", what_is(facts.st_mode))
            continue
        base = names.parse_offset_name(entry.name)
        if base is None or base % file_size:
            expected = f"20 digits, a multiple of {file_size}"
            wrong("queue-file-name", entry.path, expected, entry.name)
            continue
        per_file = 0 if unit_length is None else file_size // unit_length
        first = base // file_size * per_file
        if facts.st_size != file_size:
            whole = 0 if unit_length is None else min(facts.st_size // unit_length, per_file)
            wrong(
                "queue-file-length",
                entry.path,
                f"{file_size} bytes",
                f"{facts.st_size} bytes",
                first + whole,
                first + per_file,
            )
        else:
            result.fitting += 1
        if found and base > found[-1][0] + file_size:
            missing = found[-1][0] + file_size
            wrong(
                "queue-file-missing",
                str(directory / names.offset_name(missing)),
                f"file {names.offset_name(missing)}",
                f"{entry.name} after {names.offset_name(found[-1][0])}",
                missing // file_size * per_file,
                first,
            )
        found.append((base, Path(entry.path)))
    return result


def _before(
    file: _File,
    start: int,
    stop: int,
    log_start: int,
    last_position: int,
    live_end: int | None,
    result: Outside,
) -> int:
    """Look at a file's places [start, stop) before the queue's first message; their highest position."""
    for first in range(start, stop, _UNITS_AT_ONCE):
        count = min(_UNITS_AT_ONCE, stop - first)
        data = file.read((first - file.start) * UNIT_LENGTH, count * UNIT_LENGTH)
        units = units_of(data[: len(data) // UNIT_LENGTH * UNIT_LENGTH])
        position = units["position"].astype(np.int64)
        kinds = classify(units)
        nothing, is_message = kinds == UnitKind.EMPTY, kinds == UnitKind.MESSAGE
        # A broker makes pre-blank units before it writes any other.
        used = np.append(last_position > _UNUSED, kinds > UnitKind.PRE_BLANK)
        late_blank = (kinds == UnitKind.PRE_BLANK) & np.logical_or.accumulate(used)[:-1]
        expired = is_message & (position < log_start)
        highest = np.maximum.accumulate(np.append(last_position, np.where(expired, position, _UNUSED)))
        descending = expired & (position < highest[:-1])
        beyond = np.zeros(len(units), bool)
        if live_end is not None:
            beyond = is_message & (position >= live_end)
        extra = ((kinds > UnitKind.PRE_BLANK) & ~expired & ~beyond) | descending
        result.ranges += extra_ranges(first, np.flatnonzero(extra), units)
        result.ranges += missing_ranges(first, np.flatnonzero(nothing), units)
        result.ranges += missing_ranges(first, np.flatnonzero(late_blank), units)
        written = np.flatnonzero(~nothing)
        if len(written):
            result.used = first + int(written[-1]) + 1
        result.units += int((expired & ~descending).sum())
        result.beyond += int(beyond.sum())
        last_position = int(highest[-1])
        if last_position == _UNUSED and used.any():
            last_position = _UNUSED + 1
    return last_position


def _behind(file: _File, after: int, stop: int, live_end: int | None, result: Outside) -> None:
    """Look at the places [after, stop) of a file behind the queue's last message; holes aren't read."""
    start, end_at = (after - file.start) * UNIT_LENGTH, (stop - file.start) * UNIT_LENGTH
    have(file.path, start, end_at)  # of a file that was left out, no hole is known yet
    for at, end in _written(file.fd, start, end_at):
        units = units_of(file.read(at, end - at))
        first = file.start + at // UNIT_LENGTH
        kinds = classify(units)
        used, beyond = kinds != UnitKind.EMPTY, np.zeros(len(units), bool)
        if live_end is not None:
            beyond = (kinds == UnitKind.MESSAGE) & (units["position"] >= live_end)
        result.ranges += extra_ranges(first, np.flatnonzero(used & ~beyond), units)
        result.beyond += int(beyond.sum())


def _written(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The stretches of whole units in [start, end) that may hold bytes, some at a time."""
    done = start
    for at, stop in extents(fd, start, end):
        at = max(at - (at - start) % UNIT_LENGTH, done)
        stop = min(stop + -(stop - start) % UNIT_LENGTH, end)
        while at < stop:
            done = min(at + _UNITS_AT_ONCE * UNIT_LENGTH, stop)
            yield at, done
            at = done
