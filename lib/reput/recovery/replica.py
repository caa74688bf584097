"""What a damaged commit log lacks, and a replica of it has: a slave, a backup or any other copy.

A slave's log is its master's byte for byte at the same physical offsets, as far as the slave has it
(:mod:`reput.scan.same`). So a range can be taken from there if it is damaged here, if it consists of whole
records there, and if all that is sound in both logs is the same. What is sound here is never replaced, and of
neither log is anything written: this module only reads.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.config.dialect import dialect
from reput.config.settings import StoreSettings
from reput.errors import LogFact, StoreError, StoreInUseError, UnsupportedError
from reput.format import commitlog, dledger, names
from reput.log.end import written_end
from reput.log.segments import CommitLog, Segment, discover, map_segment, without_unwritten_end
from reput.recovery.mend_log import joined
from reput.scan import kernel
from reput.scan.output import Status, clear, output
from reput.scan.part import PartOutcome, scan_part, torn_properties
from reput.scan.rules import Part, Rules, rules
from reput.scan.same import Compared, compare
from reput.scan.table import QueueTable
from reput.store.lock import store_holder
from reput.store.places import lies_in
from reput.store.reading import reading, stat_of
from reput.store.system import human
from reput.words import counted

#: Findings of a scan that are about the log's own bytes; others are about what a message says.
_DAMAGE = frozenset(
    {
        "bad-size",
        "bad-magic",
        "bad-physical-offset",
        "bad-lengths",
        "bad-crc",
        "bad-property-crc",
        "unwritten-range",
    }
)
_BLOCK = 4 << 20
#: Names further apart than this many segments are no log with gaps.
_MOST_SEGMENTS = 1 << 20
#: As often is a segment looked at again after something was taken: what was sound there may show more.
_MOST_ROUNDS = 1000

#: A half-open range of positions in a segment.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Taken(LogFact):
    """A range that comes from the replica.

    Attributes:
        kind: ``damaged-range``, ``missing-segment``, ``short-segment``, ``log-head`` (before the first
            segment here) or ``log-end`` (behind the last message here).
        path: the segment here, which may be yet to be made.
        count: whole messages in it.
    """

    count: int

    @property
    def said(self) -> str:
        """What is there now."""
        messages = counted(self.count, "message")
        here = {
            "damaged-range": "damaged here",
            "missing-segment": "no segment here",
            "short-segment": "behind the end of the file here",
            "log-head": "before the first segment here",
            "log-end": "behind the last message here",
        }[self.kind]
        return f"{self.offset} to {self.end} of the log, {messages}: {here}"


@dataclass(frozen=True, slots=True)
class Left(LogFact):
    """A damaged range that the replica doesn't help with.

    Attributes:
        kind: ``damaged-in-both`` or ``not-in-replica``; what the log ends with is damaged if it is no record.
        path: the segment here.
    """

    @property
    def said(self) -> str:
        """Why it stays."""
        why = "damaged there, too" if self.kind == "damaged-in-both" else "not there"
        return f"{self.offset} to {self.end} of the log: {why}"


@dataclass(slots=True)
class Comparison:
    """A log and its replica."""

    settings: StoreSettings  # the store's
    replica: Path  # its directory, as it was given
    log: CommitLog  # the store's
    segment_size: int  # bytes of a segment
    start: int  # start, end: physical offsets, half open: where both have segments
    end: int
    same: int = 0  # bytes there that are sound in both, and the same
    taken: list[Taken] = field(default_factory=list)  # taken, left: as above, in log order
    left: list[Left] = field(default_factory=list)
    #: the replica's segments that something is taken from, by physical offset
    sources: dict[int, Segment] = field(default_factory=dict)
    new: set[int] = field(default_factory=set)  # physical offsets of segments that the store doesn't have
    #: length and time of the replica's files when they were read
    seen: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def changed(self, path: Path) -> bool:
        """Whether one of the replica's files isn't what it was when it was read."""
        return self.seen.get(path) != _facts(path)

    def to_dict(self) -> dict[str, object]:
        """The facts as a JSON-ready mapping."""
        return {
            "replica": str(self.replica),
            "segment_size": self.segment_size,
            "common_start": self.start,
            "common_end": self.end,
            "same_bytes": self.same,
            "taken": [one.to_dict() for one in self.taken],
            "left": [one.to_dict() for one in self.left],
        }


@dataclass(slots=True)
class _Side:
    """A segment of one log, scanned."""

    segment: Segment  # where it is
    data: NDArray[np.uint8]  # uint8[bytes], its bytes
    sound: list[Range]  # sound, damaged: ranges of positions, in order; together they reach from 0 to ``end``
    damaged: list[Range]
    end: int  # position behind its last record, or of the torn one that the log ends with


class _Scanner:
    """Scans segments one after the other, with the arrays made once."""

    def __init__(self, settings: StoreSettings, size: int) -> None:
        # What a release knows doesn't matter for what is damaged.
        settings = replace(settings, dialect=dialect(None), enable_multi_dispatch=False)
        self.rules: Rules = rules(settings, index=False)
        self.size = size
        self._out = output()

    def scan(self, segment: Segment, data: NDArray[np.uint8], *, last: bool, after: int = 0) -> _Side:
        part = Part(
            str(segment.path),
            segment.base,
            len(data),
            self.size,
            segment.base,
            segment.base + len(data),
            last=last,
            after_timestamp=after,
        )
        outcome = PartOutcome()
        for _ in scan_part(part, data, self.rules, QueueTable(), self._out, outcome):
            pass
        base = segment.base
        damaged = [(one.offset - base, one.end - base) for one in outcome.findings if one.kind in _DAMAGE]
        end = min(outcome.end - base, self.size)
        if outcome.status is not Status.BLANK and not last and end < self.size:
            damaged.append((end, self.size))
            end = self.size
        damaged = _merged(damaged)
        # A BLANK that only its size shows is damage up to the segment's end.
        damaged = [(start, stop if stop < len(data) or last else self.size) for start, stop in damaged]
        return _Side(segment, data, _without((0, end), damaged), damaged, end)

    def found(self, side: _Side, start: int, end: int) -> Iterator[Range]:
        """Whole records with their own places and bodies of the stored CRC, chain by chain.

        Also those that damage before them hides from a scan. One may be a part of a message's body: these are
        the right bytes, too, and whether they are log is for the scan of the whole to tell.
        """
        base, at, end = side.segment.base, start, min(end, len(side.data))
        # Behind the log's end lies what a truncation left, and that isn't log: only what continues it is.
        most = min(end, side.end)
        while 0 <= at < end:
            behind = self._whole(side, at, end)
            if at < behind:
                yield at, behind
            at = kernel.find_record(side.data, base, max(behind, at + 1), most, True)

    def _whole(self, side: _Side, start: int, end: int) -> int:
        """Where a chain of whole records ends that begins at a position; its segment's end after a BLANK."""
        table, at = QueueTable(), start
        self._out.counts.fill(0)
        while at < end:
            status, at = kernel.scan(side.data, side.segment.base, at, end, self.rules, table, self._out)
            clear(self._out)
            if status is Status.BLANK:
                return self.size
            if status in (Status.BAD_DELAY, Status.BAD_INNER_BATCH):
                at += dledger.frame_size(side.data.data, at)
            elif status not in (Status.END, Status.FULL):
                break
        return at

    def next_record(self, side: _Side, chain: Range, position: int) -> tuple[int, int]:
        """(start of the record that spans a position of a sound range, first one at or behind it)."""
        start, end = chain
        if position <= start:
            return start, start
        stop, last, _ = kernel.chain(side.data, side.segment.base, start, min(position, end), True)
        if stop.status is Status.BLANK:
            return stop.position, end
        if stop.position == position:
            return position, position
        return last, stop.position

    def messages(self, data: NDArray[np.uint8], base: int, start: int, end: int) -> int:
        """Whole records that begin in a range."""
        count = 0
        while start < end:
            stop, _, found = kernel.chain(data, base, start, end, True)
            count += found
            if stop.status in (Status.END, Status.BLANK) or stop.position >= end:
                break
            # The rest of a record whose first bytes were sound here, or damage.
            start = kernel.find_record(data, base, stop.position + 1, end, True)
            if start < 0:
                break
        return count


def compare_logs(
    settings: StoreSettings, replica: Path, listener: Callable[[int, int], None] = lambda _done, _total: None
) -> Comparison:
    """Compare a store's log with a replica's. Nothing is changed.

    ``settings``: the store's. ``replica``: a store's directory, or one of segments. ``listener``: gets bytes
    done, and how many there are. StoreInUseError where the replica is being written. UnsupportedError where
    one of the logs is DLedger's. StoreError where the replica isn't one of this log, or contradicts it, or
    one of both can't be read.
    """
    log = without_unwritten_end(discover(settings))
    other = _replica_log(settings, replica, log)
    before = _seen(other)
    here = {segment.base: segment for segment in log.segments}
    there = {segment.base: segment for segment in other.segments}
    size = log.segment_size
    bases = _bases(here, there, log, size)
    start, end = max(log.start, other.start), min(log.segments[-1].base, other.segments[-1].base) + size
    result = Comparison(settings, replica, log, size, start, end)
    if start >= end:
        raise _no_common(settings, replica, log, other, "no segment that both have")
    scanner = _Scanner(settings, size)
    total = _Total()
    for number, base in enumerate(bases):
        listener(number * size, len(bases) * size)
        _segment(result, scanner, base, here, there, total)
    listener(len(bases) * size, len(bases) * size)
    _refuse_different(total)
    if not total.same and (result.taken or result.left):
        raise _no_common(settings, replica, log, other, "no sound record that both have")
    result.same, result.seen = total.bytes, before
    _refuse_changed(settings, replica, other, before)
    return result


def _bases(here: dict[int, Segment], there: dict[int, Segment], log: CommitLog, size: int) -> list[int]:
    """The segments that there are or should be: all here and what lies between, and what joins them there."""
    first, last = log.segments[0].base, log.segments[-1].base
    while first - size in there:
        first -= size
    while last + size in there:
        last += size
    fits = all((base - first) % size == 0 for base in here) and (last - first) // size < _MOST_SEGMENTS
    between = set(range(first, last + size, size)) if fits else set[int]()
    return sorted(between | set(here) | {base for base in there if first <= base <= last})


# --- The replica -------------------------------------------------------------------------------------------


def _replica_log(settings: StoreSettings, replica: Path, log: CommitLog) -> CommitLog:
    root = Path(os.path.abspath(replica))
    if not root.is_dir():
        found = "a file" if root.exists() else "nothing"
        raise StoreError(
            "there is no replica here",
            path=replica,
            expected="a store's directory, or one of segments",
            found=found,
            next_step="Check the path given with --from",
        )
    directory = root / names.COMMIT_LOG if (root / names.COMMIT_LOG).is_dir() else root
    for place in settings.directories:
        if lies_in(directory, place):
            raise StoreError(
                "the replica is a part of the store itself",
                path=replica,
                expected=f"a directory outside of {os.path.realpath(place)}",
                found=os.path.realpath(directory),
                next_step="Give another copy of the log with --from",
            )
    _refuse_used(root, directory)
    try:
        other = discover(
            replace(settings, root=root, commit_log_dirs=(directory,), segment_size=None, broker_conf=None)
        )
    except StoreError as error:
        raise StoreError(
            f"the replica's log can't be read: {error.problem}",
            path=error.path,
            offset=error.offset,
            expected=error.expected,
            found=error.found,
            next_step="--from takes a store's directory, or one of segments",
        ) from error
    size = log.segment_size
    if len(other.segments) == 1 and other.segment_size < size:  # cut short, as far as can be told
        other = replace(other, segment_size=size)
    if other.segment_size != size:
        raise StoreError(
            "the replica has segments of another size",
            path=directory,
            expected=f"{size} bytes, as in {settings.commit_log_dirs[0]}",
            found=f"{other.segment_size} bytes",
            next_step="If one of the files was cut short and misleads, give broker.conf with "
            "mappedFileSizeCommitLog. Else it is another broker's log",
        )
    other = without_unwritten_end(other)
    _refuse_same_files(log, other, replica)
    _refuse_entries(other)
    return other


def _refuse_used(root: Path, directory: Path) -> None:
    for place in (root, root.parent) if directory == root and root.name == names.COMMIT_LOG else (root,):
        holder = store_holder(place)
        step = "Stop what writes it, or copy its commit log and give the copy"
        if holder is not None:
            raise StoreInUseError(
                "the replica is in use, so that its log may grow",
                path=place,
                found=holder.what,
                next_step=step,
            )
        if place == root and (place / names.ABORT).exists():
            raise StoreInUseError(
                "the replica's broker runs, or it crashed",
                path=place / names.ABORT,
                expected="a store that was stopped in good order, or a copy of a commit log without it",
                found="a file abort",
                next_step=f"{step}: {directory}",
            )


def _refuse_same_files(log: CommitLog, other: CommitLog, replica: Path) -> None:
    ours = {_identity(segment.path): segment for segment in log.segments}
    for segment in other.segments:
        same = ours.get(_identity(segment.path))
        if same is not None:
            raise StoreError(
                "the replica's segment is the store's own file, by a link",
                path=segment.path,
                expected="a copy",
                found=f"the same file as {same.path}",
                next_step=f"Give another copy of the log with --from than {replica}",
            )


def _refuse_entries(other: CommitLog) -> None:
    for segment in other.segments:
        head = map_segment(segment.path, min(segment.length, dledger.HEADER_LENGTH)).tobytes()
        if int.from_bytes(head[:4], "big") == dledger.ENTRY_MAGIC and len(head) >= dledger.HEADER_LENGTH:
            raise UnsupportedError(
                "the replica's log is written by DLedger, whose group brings a member's log back itself",
                path=segment.path,
                expected="records",
                found="entries of DLedger",
                next_step="Let the member join its group with an empty directory",
            )


def _identity(path: Path) -> tuple[int, int]:
    facts = stat_of("the segment", path)
    return facts.st_dev, facts.st_ino


def _facts(path: Path) -> tuple[int, int]:
    """Length in bytes, and time of modification, ns."""
    facts = stat_of("the segment", path)
    return facts.st_size, facts.st_mtime_ns


def _seen(log: CommitLog) -> dict[Path, tuple[int, int]]:
    """Length and time of the segments' files."""
    return {segment.path: _facts(segment.path) for segment in log.segments}


def _refuse_changed(
    settings: StoreSettings, replica: Path, other: CommitLog, before: dict[Path, tuple[int, int]]
) -> None:
    directory = other.segments[0].path.parent
    now = discover(
        replace(settings, root=replica, commit_log_dirs=(directory,), segment_size=None, broker_conf=None)
    )
    after = _seen(without_unwritten_end(now))
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            raise StoreInUseError(
                "the replica was written while it was read",
                path=path,
                expected=_stamp(before.get(path)),
                found=_stamp(after.get(path)),
                next_step="Stop what writes it, or copy its commit log and give the copy",
            )


def _stamp(facts: tuple[int, int] | None) -> str:
    return "no file" if facts is None else f"{facts[0]} bytes, modified at {facts[1]} ns"


# --- A segment ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Total:
    """What is sound in both logs, over all segments; physical offsets, -1 without one."""

    same: int = 0
    bytes: int = 0
    different: int = 0
    first: tuple[_Side, int, _Side, int] | None = None
    same_behind: int = -1
    last_same: int = -1


def _segment(
    result: Comparison,
    scanner: _Scanner,
    base: int,
    here: dict[int, Segment],
    there: dict[int, Segment],
    total: _Total,
) -> None:
    mine, other, size = here.get(base), there.get(base), scanner.size
    path = result.settings.commit_log_dirs[0] / names.offset_name(base) if mine is None else mine.path
    theirs = None
    if other is not None:
        theirs = scanner.scan(other, map_segment(other.path, other.length), last=base == max(there))
    if mine is None:
        if theirs is None or other is None:
            result.left.append(Left("not-in-replica", str(path), base, base + size))
            return
        kind = "log-head" if base < min(here) else "log-end" if base > max(here) else "missing-segment"
        for start, end in theirs.sound:
            messages = scanner.messages(theirs.data, base, start, end)
            result.taken.append(Taken(kind, str(path), base + start, base + end, messages))
        result.left += [Left("damaged-in-both", str(path), base + s, base + e) for s, e in theirs.damaged]
        if theirs.end < size and base != max(there):
            result.left.append(Left("not-in-replica", str(path), base + theirs.end, base + size))
        result.sources[base] = other
        result.new.add(base)
        return
    is_last = base == max(here)
    side = scanner.scan(mine, map_segment(mine.path, mine.length), last=is_last)
    if theirs is None or other is None:
        result.left += [Left("not-in-replica", str(path), base + s, base + e) for s, e in side.damaged]
        return
    for one, other_one in ((side, theirs), (theirs, side)):
        _reach(scanner, one, other_one)
        _open(scanner.size, one, other_one)
    _compare_sound(side, theirs, total)
    if total.different:
        return  # refused in the end; nothing is taken from here on
    ended = side.end if is_last else size
    taken, side = _take(scanner, side, theirs, is_last=is_last and base + size not in there)
    if taken:
        result.sources[base] = other
    for kind, start, end in _sorts(taken, mine.length, ended):
        messages = scanner.messages(side.data, base, start, end)
        result.taken.append(Taken(kind, str(path), base + start, base + end, messages))
    left_over = kernel.find_record(side.data, base, side.end, len(side.data), True) >= 0
    torn = side.end if left_over else written_end(None, side.data, side.end)
    for start, end in [*side.damaged, *([(side.end, torn)] if torn > side.end else [])]:
        kind = "damaged-in-both" if start < theirs.end else "not-in-replica"
        result.left.append(Left(kind, str(path), base + start, base + end))


def _sorts(taken: list[Range], length: int, ended: int) -> Iterator[tuple[str, int, int]]:
    """What is taken, cut where its kind changes: at the end of the log, and of the file."""
    places = sorted({length, ended})
    for start, end in taken:
        cuts = [start, *(place for place in places if start < place < end), end]
        for low, high in pairwise(cuts):
            kind = "log-end" if low >= ended else "short-segment" if low >= length else "damaged-range"
            yield kind, low, high


def _take(scanner: _Scanner, side: _Side, theirs: _Side, *, is_last: bool) -> tuple[list[Range], _Side]:
    """What a segment gets from the replica's, and the segment as it is then.

    The bytes of a record that is whole there are taken where the log is damaged here; of a record that
    reaches into what is sound here, these bytes have to be the same. Then it is looked at again, with the
    records that now stand there: they may show that others follow.
    """
    size, found = scanner.size, list[Range]()
    pages: NDArray[np.uint8] | None = None
    if len(side.data) < size:
        pages = _pages(side, size)
        stop = len(theirs.data)
        pages[len(side.data) : stop] = theirs.data[len(side.data) : stop]
        found.append((len(side.data), size))
        side = scanner.scan(side.segment, _read_only(pages), last=is_last)
    for _ in range(_MOST_ROUNDS):
        new = []
        for start, end in _merged([*side.damaged, *([(side.end, size)] if side.end < size else [])]):
            new += [
                part
                for part in _offered(scanner, side, theirs, start, end)
                if not np.array_equal(side.data[slice(*part)], theirs.data[slice(*part)])
            ]
        if not new:
            break
        pages = _pages(side, size) if pages is None else pages
        for start, end in new:
            pages[start:end] = theirs.data[start:end]
        found += new
        side = scanner.scan(side.segment, _read_only(pages), last=is_last)
    return _merged(found), side


def _offered(scanner: _Scanner, side: _Side, theirs: _Side, start: int, end: int) -> Iterator[Range]:
    """The parts of a damaged range that the replica has in whole records."""
    for chain in (*scanner.found(theirs, start, end), *theirs.sound):
        if chain[1] <= start or chain[0] >= end:
            continue
        low = max(start, chain[0])
        first, behind = scanner.next_record(theirs, chain, low)
        if first < low and not _same(side, theirs, first, low):
            low = behind
        high = min(end, chain[1])
        if high < chain[1]:
            first, behind = scanner.next_record(theirs, chain, high)
            if first < high < behind and not _same(side, theirs, high, behind):
                high = first
        if low < high:
            yield low, high


def _same(side: _Side, theirs: _Side, start: int, end: int) -> bool:
    return np.array_equal(side.data[start:end], theirs.data[start:end])


def _reach(scanner: _Scanner, side: _Side, other: _Side) -> None:
    """Count as damaged what damage has of the record before it, behind its body.

    No CRC covers topic and properties, so such a record looks whole. It is told by the other log: there it is
    the same up to the end of its body, other behind that, and sound records follow; or the other log ends
    with it, too, and only here its properties can't be as they were written.
    """
    for number, (start, end) in enumerate(side.sound):
        if end == scanner.size:
            continue
        first, _ = scanner.next_record(side, (start, end), end - 1)
        there = next((chain for chain in other.sound if chain[0] <= first and end <= chain[1]), None)
        if there is None or first >= end or _same(side, other, first, end):
            continue
        if scanner.next_record(other, there, first)[1] != first or _is_blank(other.data, first):
            continue
        record = commitlog.decode(side.data.data, first)
        body = first + commitlog.body_at(record.sys_flag) + len(record.body)
        if end == there[1] and not (
            torn_properties(record.properties) is not None
            and torn_properties(commitlog.decode(other.data.data, first).properties) is None
        ):
            continue
        if _same(side, other, first, body):
            side.sound[number] = start, first
            side.damaged = _merged([*side.damaged, (first, end)])
            if side.end == end:
                side.end = first
                side.damaged = [one for one in side.damaged if one != (first, end)]
    side.sound = [one for one in side.sound if one[0] < one[1]]


def _open(size: int, side: _Side, other: _Side) -> None:
    """Count a closing record right behind damage as damaged, too, where the other log has something else.

    Mending closes what it fills with one at a place of its own.
    """
    start, end = side.sound[-1] if side.sound else (size, size)
    behind = any(high == start for _, high in side.damaged)
    if behind and start < end == size and _is_blank(side.data, start) and not _same(side, other, start, end):
        side.sound.pop()
        side.damaged = _merged([*side.damaged, (start, end)])


def _compare_sound(side: _Side, theirs: _Side, total: _Total) -> None:
    """Compare what is sound in both."""
    ours, others = iter(side.sound), iter(theirs.sound)
    mine, other = next(ours, None), next(others, None)
    while mine is not None and other is not None:
        low, high = max(mine[0], other[0]), min(mine[1], other[1])
        if low < high:
            _compare_range(side, theirs, (mine, other), (low, high), total)
        if mine[1] <= other[1]:
            mine = next(ours, None)
        else:
            other = next(others, None)


def _compare_range(
    side: _Side, theirs: _Side, chains: tuple[Range, Range], both: Range, total: _Total
) -> None:
    base = side.segment.base
    starts = range(both[0], both[1], _BLOCK)
    if all(_same(side, theirs, at, min(at + _BLOCK, both[1])) for at in starts):
        # Closing records are the same in many logs.
        found = Compared(int(not _is_blank(side.data, both[0])), 0, -1, -1, both[0])
    else:
        found = compare(side.data, theirs.data, *chains)
    if found.same:
        total.same += found.same
        total.bytes += both[1] - both[0]
        behind = total.first is not None or (found.different and found.last_same > found.first)
        if behind:
            total.same_behind = base + found.last_same
        else:
            total.last_same = base + found.last_same
    if found.different:
        total.different += found.different
        if total.first is None:
            total.first = side, found.first, theirs, found.other


def _refuse_different(total: _Total) -> None:
    """Refuse a replica that contradicts what is sound here."""
    if total.first is None:
        return
    side, at, theirs, other_at = total.first
    here, there = side.segment.base + at, theirs.segment.base + other_at
    figures = f"{counted(total.different, 'different record')}, {human(total.bytes)} the same"
    if not total.same:
        problem = "the replica is another log: no record that is sound in both is the same"
        step = "Give a slave, a backup or a copy of this very broker's log with --from"
    elif total.same_behind < 0:
        problem = "the replica parted ways with this log, as after a switch of the master"
        figures += f", the last of these at {total.last_same}"
        step = "Whose messages count has to be decided; reput can't merge two logs"
    else:
        problem = "a record is whole in both logs, and yet different"
        figures += f", the last of these at {total.same_behind}"
        step = "Compare both with `reput dump commitlog`: headers and properties have no CRC"
    ours, theirs_ = _differing(side.data, at, theirs.data, other_at)
    raise StoreError(
        problem,
        path=theirs.segment.path,
        offset=there,
        expected=f"{ours} at {here}, as in {side.segment.path}",
        found=f"{theirs_} at {there}; {figures}",
        next_step=step,
    )


def _differing(one: NDArray[np.uint8], at: int, other: NDArray[np.uint8], other_at: int) -> tuple[str, str]:
    """The fields of two records that differ, in words."""
    first, second = _record(one, at), _record(other, other_at)
    if first is None or second is None:
        said = ["the segment's closing record" if each is None else "a message" for each in (first, second)]
        return said[0], said[1]
    names_ = [one.name for one in fields(first) if getattr(first, one.name) != getattr(second, one.name)]
    if not names_:
        return "other bytes", "other bytes"
    pairs = [(name, *_shown(getattr(first, name), getattr(second, name))) for name in names_]
    return ", ".join(f"{name} {one}" for name, one, _ in pairs), ", ".join(
        f"{name} {two}" for name, _, two in pairs
    )


def _record(data: NDArray[np.uint8], at: int) -> commitlog.Record | None:
    """The message at a position; None for a BLANK."""
    return None if _is_blank(data, at) else commitlog.decode(data.data, at)


def _is_blank(data: NDArray[np.uint8], at: int) -> bool:
    magic = data[at + commitlog.MAGIC : at + commitlog.MAGIC + 4].tobytes()
    return int.from_bytes(magic, "big") == commitlog.MAGIC_BLANK


def _shown(one: object, other: object) -> tuple[str, str]:
    """Two values that differ; of long ones, from shortly before that place on."""
    if not (isinstance(one, bytes) and isinstance(other, bytes)):
        return str(one), str(other)
    if max(len(one), len(other)) <= 100:
        return repr(one), repr(other)
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    low = max(at - 20, 0)
    return tuple(f"{each[low : low + 80]!r} at byte {low} of {len(each)}" for each in (one, other))  # type: ignore[return-value]


def _no_common(
    settings: StoreSettings, replica: Path, log: CommitLog, other: CommitLog, found: str
) -> StoreError:
    return StoreError(
        "nothing shows that this is a replica of the store's log",
        path=replica,
        expected=f"records of {log.start} to {log.end}, as in {settings.root}",
        found=f"{other.start} to {other.end}, and not {found}",
        next_step="Give a copy that overlaps with what is sound here",
    )


def _pages(side: _Side, size: int) -> NDArray[np.uint8]:
    """A segment's bytes, to be changed in memory: only changes take any, unless the file is short."""
    length = len(side.data)
    if length < size:
        pages = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        pages[:length] = side.data
        return pages
    try:
        with reading(side.segment.path, by_ranges=True) as fd:
            return np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), np.uint8)
    except (OSError, ValueError) as error:
        raise StoreError("the segment can't be read", path=side.segment.path, found=error) from error


def _read_only(pages: NDArray[np.uint8]) -> NDArray[np.uint8]:
    view = pages.view()
    view.flags.writeable = False
    return view


def _merged(ranges: list[Range]) -> list[Range]:
    """Ranges in order, those that touch as one, without empty ones."""
    return joined(one for one in ranges if one[0] < one[1])


def _without(whole: Range, ranges: list[Range]) -> list[Range]:
    """What is left of a range."""
    left, at = [], whole[0]
    for start, end in ranges:
        if at < start:
            left.append((at, min(start, whole[1])))
        at = max(at, end)
    if at < whole[1]:
        left.append((at, whole[1]))
    return left
