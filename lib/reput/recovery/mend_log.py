"""What of the commit log a starting broker would stumble over, changed on copies.

Each step asks the model of the start where the walk ends, and changes the place on a copy; the next step asks
again, about the copies. So nothing is changed that a start doesn't meet, and the end is proven by the model.

The commit log itself is never opened for writing. A copy takes its segment's place by a rename, with all else
that is mended, and the segment is kept as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.broker.record import Kind, judge
from reput.broker.snapshot import Snapshot
from reput.config.settings import StoreSettings
from reput.derived.files import WRONG_LENGTH, StoreFile, segment_at
from reput.errors import LogFact, StoreError
from reput.format import commitlog, names
from reput.format.commitlog import Record
from reput.log.segments import is_zero, map_segment
from reput.log.walk_kernel import walk
from reput.recovery.plan import Plan, plan
from reput.recovery.refusals import (
    first_cut,
    first_whole,
    is_stray,
    place_of_new,
    rebuild_out,
    refuse_outside,
    refuse_sound_record,
)
from reput.scan.part import STAND_IN_TOPIC
from reput.store import files
from reput.store.ownership import Owner
from reput.store.reading import stat_of
from reput.store.system import check_free

_CHUNK = 8 << 20


class LogCopies:
    """The copies of one store's segments.

    Args:
        settings: the store's.
        staging: a directory inside it, for the copies.
        segment_size: bytes of a segment.
        owner: for the copies.
    """

    def __init__(self, settings: StoreSettings, staging: Path, segment_size: int, owner: Owner) -> None:
        self._settings = settings
        self._root = settings.root
        self._staging = staging
        self._size = segment_size
        self._owner = owner
        self._originals: dict[Path, Path] = {}
        self._times: dict[Path, Path] = {}  # of segments that are new: whose time they get

    @property
    def names(self) -> list[str]:
        """The segments that have copies, relative to the store, sorted."""
        made = (
            *self._originals.values(),
            *(self._root / one.relative_to(self._staging) for one in self._times),
        )
        return sorted(path.relative_to(self._root).as_posix() for path in made)

    def name(self, path: Path) -> str:
        """A path of the commit log relative to the store.

        UnsupportedError where it lies outside, where nothing can be put in place together with the rest.
        """
        refuse_outside(self._settings, path)
        return path.relative_to(self._root).as_posix()

    def of(self, segment: StoreFile) -> StoreFile:
        """A segment's copy, made when it is first asked for; a copy's copy is itself.

        Of a segment that is too short, what it lacks is zeros.

        UnsupportedError where the segment lies outside the store. OutputError where it can't be written.
        """
        if segment.path in self._originals or segment.path in self._times:
            return segment
        length = min(stat_of("the segment", segment.path).st_size, self._size)
        data = map_segment(segment.path, length)
        copy = self._made(segment.path)
        with self._open(copy, self._owner) as fd:
            for at in range(0, length, _CHUNK):
                chunk = data[at : at + _CHUNK]
                if not is_zero(chunk):  # stays a hole
                    files.pwrite_all(fd, chunk.data, at)
        self._originals[copy] = segment.path
        return StoreFile(str(copy), segment.base)

    def new(self, path: Path, base: int, like: Path) -> StoreFile:
        """A segment that isn't there, of zeros, with another one's time, which it expires by.

        UnsupportedError, OutputError: as for :meth:`of`.
        """
        copy = self._made(path)
        with self._open(copy, self._owner):
            pass
        self._times[copy] = like
        return StoreFile(str(copy), base)

    def original(self, path: Path) -> Path:
        """What a segment is a copy of, or got its time from; itself where it is none."""
        return self._originals.get(path) or self._times.get(path) or path

    def _made(self, path: Path) -> Path:
        copy = self._staging / self.name(path)
        check_free(self._root, self._size, f"a copy of {path.name}")
        files.make_dirs(copy.parent, self._owner)
        files.remove_tree(copy)
        return copy

    def write(self, copy: StoreFile, position: int, data: bytes | memoryview) -> None:
        """Change bytes of a copy."""
        with self._open(copy.path) as fd:
            files.pwrite_all(fd, data, position)

    @contextmanager
    def _open(self, path: Path, owner: Owner | None = None) -> Iterator[int]:
        fd = files.create_file(path, self._size, owner)
        try:
            yield fd
        finally:
            files.system.close(fd)

    def flush(self) -> None:
        """Make the copies durable, with their segments' times: a broker lets segments expire by those.

        OutputError where the disk didn't take them.
        """
        for copy, original in (*self._originals.items(), *self._times.items()):
            with self._open(copy) as fd:
                with files.reporting("can't set the file's time", copy):
                    facts = original.stat()
                    os.utime(fd, ns=(facts.st_atime_ns, facts.st_mtime_ns))
                files.fsync_file(fd)
            files.fsync_dir(copy.parent)


_MOST_CHANGES = 1000

#: Bytes of a record that stands where damage was, so that a start goes on behind it, at least and at most. A
#: damaged message is never shorter than a record without a body.
_LEAST = commitlog.MIN_RECORD_LENGTH + 1
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Change(LogFact):
    """A range of the log that isn't any more what it was.

    Attributes:
        kind: ``stand-in`` (records that a broker passes over), ``closing-record``,
            ``new-segment``, ``made-longer``, ``made-shorter``, ``moved-away`` (a file).
        path: the segment.
    """

    @property
    def said(self) -> str:
        """What was done."""
        return {
            "stand-in": "damaged: records stand there that a broker passes over",
            "closing-record": "the segment's closing record",
            "moved-away": "moved away",
            "new-segment": "it was missing: a segment of records that a broker passes over",
            "made-longer": "the file was too short: it has its length again",
            "made-shorter": "the file was too long: it has its length again",
        }[self.kind]

    def __str__(self) -> str:
        where = f" at {self.offset} to {self.end}" if self.end else ""
        return f"{self.path}{where}: {self.said}"


@dataclass(slots=True)
class MendedLog:
    """A log that a start goes through, and what it took."""

    view: Snapshot  # the store with the copies in the segments' places
    plan: Plan  # what a start makes of it
    changes: list[Change]  # what was changed, in order


class WholeMessagesError(StoreError):
    """Queues and index hold messages that stand-ins take the places of: make them without ``offsets``."""

    def __init__(self, path: Path, offsets: Sequence[int]) -> None:
        super().__init__(
            "a message's body doesn't have its CRC, messages follow, and a start cuts the log there",
            path=path,
            offset=offsets[0],
            next_step="Set checkCRCOnRecover=false in broker.conf to keep it, and all behind it.",
        )
        self.offsets = tuple(offsets)


def mend_log(
    view: Snapshot,
    copies: LogCopies,
    damage: Iterable[tuple[int, int]] = (),
    without: Sequence[int] = (),
    torn: int = -1,
) -> MendedLog:
    """Change copies until nothing of the log's damage is left that a start could end the log at.

    Args:
        view: the store, its queues and index as they will be.
        damage: physical offsets, half open: ranges that a scan of the whole log skipped, with whole records
            or segments behind them. Segments that are missing, or too short, are among them.
        without: the messages with a wrong body that queues and index were made without, by physical offset.
        torn: physical offset where a scan of the whole log ends with a torn message; -1 where it doesn't.

    Raises:
        WholeMessagesError: they have to be made anew, without others.
        ReputError: there is damage that can't be mended, with what to do instead.
    """
    seen = _Seen(view, copies)
    for base in list(_wrong_lengths(view)):
        seen.at(base)
    for start, end in joined(damage):
        seen.close(start, end)
    for offset in without:  # else whether a start meets them depends on the queues, which are without them
        seen.replace(offset)
    while True:
        found = plan(seen.view)
        log_end = found.prediction.log_end
        gap = next((one for one in _gaps(seen.view) if one[1] <= log_end), None)
        if gap is not None:
            seen.close(*gap)
        elif 0 <= torn < log_end:  # 4.x compares no message with its own place
            # Up to 4.3.1 a start goes by its size field, and so may end before a record could.
            segment_end = torn - torn % view.segment_size + view.segment_size
            seen.close(torn, max(log_end, min(torn + _LEAST, segment_end)))
            torn = -1
        elif not found.cuts_messages:  # a cut without a whole message is nothing to keep a start from
            break
        elif len(seen.changes) >= _MOST_CHANGES:
            raise _refused(view, found, f"more than {_MOST_CHANGES} damaged places")
        else:
            seen.step(found)
    if set(seen.whole) != set(without):
        raise WholeMessagesError(Path(seen.changes[0].path), sorted({*seen.whole, *without}))
    return MendedLog(seen.view, found, seen.changes)


def _wrong_lengths(view: Snapshot) -> Iterator[int]:
    """Where segments begin that are too short or too long; one without a byte is a file in the way."""
    for problem in view.log.problems:
        base = names.parse_offset_name(Path(problem.path).name)
        is_segment = problem.kind == WRONG_LENGTH and base is not None and not base % view.segment_size
        if is_segment and base is not None and not is_stray(problem, view.settings):
            yield base


def _gaps(view: Snapshot) -> Iterator[tuple[int, int]]:
    """Gaps between segments; a start deletes an empty segment behind one, if it ends the log before."""
    for one, other in pairwise(view.log.files):
        if one.base + view.segment_size < other.base:
            yield one.base + view.segment_size, other.base


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, those that touch as one; empty ones stay: bytes too many in a segment are one."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return result


class _Seen:
    """The store with the copies in the segments' places, while they are changed."""

    def __init__(self, view: Snapshot, copies: LogCopies) -> None:
        self.view = view
        self.changes: list[Change] = []
        self.whole: list[int] = []  # messages that a stand-in takes the place of
        self._copies = copies

    def close(self, start: int, end: int) -> None:
        """Close a range that a scan skipped, segment by segment; what is too small for a record stays."""
        size = self.view.segment_size
        while start < end:
            base = start - start % size
            stop = min(end, base + size)
            segment = self.at(base)
            if stop == base + size and not any(one.base > base for one in self.view.log.files):
                return  # the log ends here
            data = map_segment(segment.path, size)
            if not self._is_closed(segment, data, start - base):
                self._fill(segment, start - base, stop - base, self._time_behind(stop))
            start = stop

    def _is_closed(self, segment: StoreFile, data: NDArray[np.uint8], before: int) -> bool:
        """Whether a closing record stands before a position: what follows it means nothing."""
        settings, at = self.view.settings, 0
        while 0 <= at < before:
            at = walk(data, segment.base, at, 0, settings.dialect.topic_length_v2, 0, before).position
            if at < before and judge(data, at, settings.dialect, check_crc=False).kind is Kind.BLANK:
                return True
            at = first_whole(self.view, segment, at, 0) if at < before else at
        return False

    def at(self, base: int) -> StoreFile:
        """The segment that begins there: made where it is missing, with its length where it has another."""
        files = self.view.log.files
        there = next((one for one in files if one.base == base), None)
        if there is not None:
            return there
        name = names.offset_name(base)
        directories = self.view.settings.commit_log_dirs
        path = next((one / name for one in directories if (one / name).is_file()), None)
        if path is None:
            nearest = min(files, key=lambda one: abs(one.base - base))
            like = self._copies.original(nearest.path)
            place = place_of_new(self.view.settings, like.parent)
            copy = self._copies.new(place / name, base, like)
            self._note("new-segment", copy, 0, self.view.segment_size)
        else:
            copy = self._copies.of(StoreFile(str(path), base))
            length, size = stat_of("the segment", path).st_size, self.view.segment_size
            self._note("made-longer" if length < size else "made-shorter", copy, min(length, size), size)
        self.view = _with(self.view, sorted([*files, copy], key=lambda one: one.base))
        return copy

    def _time_behind(self, offset: int) -> int:
        """StoreTimestamp, ms, of the message there, or of the next one that begins a segment; else 0."""
        files, size, dialect = self.view.log.files, self.view.segment_size, self.view.settings.dialect
        for at in (offset, *(one.base for one in files if one.base > offset)):
            segment = segment_at(files, size, at)
            if segment is not None:
                data, position = map_segment(segment.path, size), at - segment.base
                if judge(data, position, dialect, check_crc=False).kind is Kind.MESSAGE:
                    return commitlog.store_timestamp(data.data, position)
        return 0

    def step(self, found: Plan) -> None:
        """Change what ends the log in a start."""
        view, prediction = self.view, found.prediction
        cut = first_cut(prediction)
        if cut is None:  # the walk ended with a closing record, and no segment begins there
            path = prediction.cuts[0].path
            raise _refused(view, found, f"the log ends at {prediction.log_end}, and {path.name} follows")
        segment, position, behind, timestamp = cut.segment, cut.position, cut.found, cut.timestamp
        size = view.segment_size
        refuse_sound_record(prediction, cut)
        data = map_segment(segment.path, size)
        if judge(data, position, view.settings.dialect, check_crc=False).kind is Kind.MESSAGE:
            self.whole.append(segment.base + position)
        if behind >= 0:
            timestamp = max(timestamp, commitlog.decode(data.data, behind).store_timestamp)
        if not self._fill(segment, position, behind if behind >= 0 else size, timestamp):
            raise _refused(view, found, f"{size - position} damaged bytes at {segment.base + position}")

    def replace(self, offset: int) -> None:
        """Let a stand-in take the place of a message."""
        segment = segment_at(self.view.log.files, self.view.segment_size, offset)
        if segment is not None:
            data, position = map_segment(segment.path, self.view.segment_size), offset - segment.base
            size = int.from_bytes(data[position : position + 4].tobytes(), "big")
            self.whole.append(offset)
            self._fill(segment, position, position + size, commitlog.store_timestamp(data.data, position))

    def _fill(self, segment: StoreFile, position: int, end: int, timestamp: int) -> bool:
        """Put records, or the closing one, where damage is; False where there is no room for any."""
        size = self.view.segment_size
        closing = end == size
        room = end - (commitlog.BLANK_LENGTH if closing else 0)
        records = []
        if room - position > commitlog.MIN_RECORD_LENGTH:
            data = map_segment(segment.path, size)
            records = list(stand_ins(data, segment.base, position, room, timestamp))
        elif closing and end - position >= commitlog.BLANK_LENGTH:
            room = position
        else:
            return False
        copy = self._take(segment)
        for at, record in records:
            self._copies.write(copy, at, record)
        if records:
            self._note("stand-in", segment, position, room)
        if closing:
            self._copies.write(copy, room, commitlog.encode_blank(size - room))
            self._note("closing-record", segment, room, size)
        return True

    def _take(self, segment: StoreFile) -> StoreFile:
        copy = self._copies.of(segment)
        files = [copy if file == segment else file for file in self.view.log.files]
        self.view = _with(self.view, files)
        return copy

    def _note(self, kind: str, segment: StoreFile, start: int, end: int) -> None:
        path = next(name for name in self._copies.names if name.endswith(segment.path.name))
        self.changes.append(Change(kind, path, segment.base + start, segment.base + end))


def _with(view: Snapshot, log: list[StoreFile]) -> Snapshot:
    there = {file.path.name for file in log}
    problems = tuple(one for one in view.log.problems if not (one.hides and Path(one.path).name in there))
    return replace(view, log=replace(view.log, files=tuple(log), problems=problems))


def _refused(view: Snapshot, result: Plan, found: str) -> StoreError:
    first = next((loss.path for loss in result.losses), str(view.settings.root))
    return StoreError(
        "the commit log has damage that --apply doesn't mend",
        path=Path(first),
        found=found,
        next_step=rebuild_out(view.settings),
    )


def stand_ins(
    data: NDArray[np.uint8], base: int, start: int, end: int, timestamp: int
) -> Iterator[tuple[int, bytes]]:
    """Records that fill a damaged range, one after the other.

    Args:
        data: uint8[bytes], the segment.
        base: physical offset of its first byte.
        start, end: the range, positions in the segment, half open.
        timestamp: storeTimestamp, ms, of a message next to the range.

    Yields:
        Position in the segment, and bytes: of each record what stands before its body and behind it, for the
        body is the very bytes that lie there.

    Raises:
        ValueError: the range is shorter than a record.
    """
    if end - start < _LEAST:
        raise ValueError(f"{end - start} bytes are no room for a record")
    while start < end:
        size = end - start
        if size > _MOST:
            size = min(_MOST, size - _LEAST)
        topic = STAND_IN_TOPIC[: size - commitlog.MIN_RECORD_LENGTH]
        around = commitlog.MIN_RECORD_LENGTH + len(topic)
        # The body lies where these very bytes lay.
        first = start + commitlog.body_at(commitlog.TRANSACTION_ROLLBACK)
        behind = first + size - around
        record = Record(
            topic=topic,
            body=data[first:behind].tobytes(),
            physical_offset=base + start + 1,
            sys_flag=commitlog.TRANSACTION_ROLLBACK,
            born_timestamp=timestamp,
            store_timestamp=timestamp,
        )
        written = commitlog.encode(record)
        yield start, written[: first - start]
        yield behind, written[behind - start :]
        start += size
