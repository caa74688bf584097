"""Finding the commit log's segments, and reading them. They are only ever opened for reading.

Source: ``MappedFileQueue.load``, ``MultiPathMappedFileQueue`` (rocketmq-all-4.9.7, 5.3.3). A broker refuses
to start when a segment's length is wrong; reput takes what is there and says what is missing. Of a log that
DLedger writes, only what its group has committed is taken: what a member has written beyond may be taken
back.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reput.config import broker_conf
from reput.config.log_places import DLedgerSettings
from reput.config.settings import StoreSettings
from reput.errors import Finding, SegmentGoneError, SettingsError, StoreError
from reput.format import commitlog, dledger, names
from reput.remote import remote_store
from reput.scan.rules import Part
from reput.store.reading import (
    extents,
    looked_at,
    read_file,
    reading,
    step_to_read,
    unreadable,
    what_is,
    written,
)

if TYPE_CHECKING:
    from reput.remote.segment import RemoteSegment


# Two files for one place of the log: a broker maps whatever it lists, in the order of names, and takes a name
# for any number that ``Long.parseLong`` reads (``MappedFileQueue.load``, ``DefaultMappedFile``,
# rocketmq-all-4.9.7, 5.3.3).

#: The file of two for one place that can go: the other one is the log's.
SECOND_FILE = "second-file"
#: Of two files for one place it can't be told which one is the log's, or the wrong one has the name.
RIVAL_FILE = "rival-file"
#: A file alone in its place, with another name than a broker gives.
ODD_NAME = "odd-name"
#: Files that a start takes for what they aren't: what it then cuts is there.
MISTAKEN = frozenset({SECOND_FILE, RIVAL_FILE, ODD_NAME})


@dataclass(frozen=True, slots=True)
class Choice:
    """What is known of two files for one place."""

    kind: str  # ``second-file`` or ``rival-file``
    #: stays, goes: the two; of ``rival-file`` either may be the log's, unless ``found`` says which one
    #: is
    stays: Path
    goes: Path
    found: str  # what was found
    next_step: str  # what the operator can do


def is_odd(path: Path, base: int) -> bool:
    """Whether a broker would give the file of this place another name."""
    return path.name != names.offset_name(base)


def is_foreign(path: Path, base: int, length: int, usual: int) -> bool:
    """Whether a file has neither the usual length nor a place among such, and begins with no message.

    ``usual``: bytes; 0 where that isn't sure.
    """
    if not usual or length == usual or not base % usual or remote_store(path) is not None:
        return False
    try:
        with reading(path, by_ranges=True) as fd:
            head = os.pread(fd, dledger.HEADER_LENGTH + commitlog.PHYSICAL_OFFSET + 8, 0)
    except OSError:
        return False
    if dledger.entry_index(head, 0, base) is not None:
        return False
    return head[commitlog.PHYSICAL_OFFSET : commitlog.PHYSICAL_OFFSET + 8] != base.to_bytes(8, "big")


def is_anothers(path: Path, length: int, size: int) -> bool:
    """Whether a log's only segment is of a broker with larger ones, and not one with bytes behind its end.

    ``length``: its bytes. ``size``: bytes that one has by broker.conf.
    """
    if length <= size or length >= 2 * size or remote_store(path) is not None:
        return length > size
    return not is_zero(map_segment(path, length)[size:])


def choose_file(one: Path, other: Path, base: int, *, topic_length_v2: bool, entries: bool = False) -> Choice:
    """Compare two files for one place; the whole of both may be read.

    Where both hold the same, ``one`` stays. ``base`` is that place's physical offset.
    """
    from reput.log.walk_kernel import walk

    first, second = (map_segment(path, _length(path)) for path in (one, other))
    length = min(len(first), len(second))
    if len(first) == len(second) and (first == second).all():
        return Choice(SECOND_FILE, one, other, f"also {one}, with the same bytes", _away(other))
    ends = [
        walk(data, base, 0, 0, topic_length_v2, 0, len(data), entries).position for data in (first, second)
    ]
    differs = next(
        (
            at + int((first[at:end] != second[at:end]).argmax())
            for at, end in _pieces(length)
            if (first[at:end] != second[at:end]).any()
        ),
        length,
    )
    stays, goes = (one, other) if ends[0] >= ends[1] else (other, one)
    found = (
        f"also {stays}; the two differ from byte {differs} on; messages that stand where they say fill the "
        f"first {ends[0]} bytes of {one.name} and {ends[1]} of {other.name}"
    )
    if differs < min(ends) or not max(ends):
        step = "Ask who put one there, and keep a copy of both: move away the one that isn't the log's."
        return Choice(RIVAL_FILE, one, other, found, step)
    if is_odd(stays, base) and stays.parent == goes.parent:
        step = f"Move {goes} elsewhere, then name {stays.name} {goes.name}: it has what is the log's."
        return Choice(RIVAL_FILE, stays, goes, found, step)
    return Choice(SECOND_FILE, stays, goes, found, _away(goes))


def _length(path: Path) -> int:
    elsewhere = remote_store(path)
    return path.stat().st_size if elsewhere is None else elsewhere.file_at(path).size


def _away(path: Path) -> str:
    return f"Move {path} elsewhere: the log has its messages in the other one."


def _pieces(length: int) -> list[tuple[int, int]]:
    return [(at, min(at + (8 << 20), length)) for at in range(0, length, 8 << 20)]


# A leader's entry is committed when most members have it; a new leader cuts what others have beyond its own.
# A broker dispatches committed entries alone. Each member keeps the index of the last one it knows of in
# ``dledger-SELFID/checkpoint``, every three seconds and when it stops. Source:
# ``DLedgerMmapFileStore.persistCheckPoint``, ``updateCommittedIndex`` (dledger 0.3.1.2),
# ``DLedgerCommitLog.getMaxOffset`` (rocketmq-all-4.9.7, 5.3.3).

COMMITTED_FILE = "checkpoint"  # DLedgerMmapFileStore.CHECK_POINT_FILE
_COMMITTED = "committedIndex"  # COMMITTED_INDEX_KEY
#: Positions [start, stop) of a segment.
_Read = Callable[[int, int], bytes]
#: Where the byte of an entry's magic stands that isn't zero.
_ONE_AT = 3
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def committed_index(group: DLedgerSettings) -> int:
    """The index of the last entry that this member knows to be committed, -1 for none."""
    path = group.home / COMMITTED_FILE
    try:
        entry = broker_conf.parse(read_file(path), path).get(_COMMITTED)
    except OSError as error:
        raise _unknown(group, error.strerror) from error
    if entry is None or _NUMBER.fullmatch(entry.value.strip()) is None:
        raise _unknown(group, "no such number" if entry is None else repr(entry.value))
    return int(entry.value)


def committed_end(segments: Sequence[tuple[str, int, int]], index: int) -> int | None:
    """Where the first entry after ``index`` begins, None if missing: the whole log is committed.

    It is looked for by its index and its own place, so that damage before it doesn't matter. ``segments`` are
    (path, base, length) of each that DLedger wrote, in log order.
    """
    for path, base, length in reversed(segments):
        elsewhere = remote_store(path)
        try:
            if elsewhere is not None:
                found = _end_in(partial(elsewhere.read, path), [(0, length)], length, base, index)
            else:
                with reading(path, by_ranges=True) as fd:
                    found = _end_in(_reader(fd), extents(fd, 0, length), length, base, index)
        except OSError as error:
            raise StoreError(
                "the segment can't be read",
                path=path,
                expected=f"{length} bytes",
                found=error.strerror or str(error),
                next_step=step_to_read(error),
            ) from error
        if found is not None:
            return found
    return None


def _reader(descriptor: int) -> _Read:
    return lambda start, stop: os.pread(descriptor, stop - start, start)


def _end_in(
    read: _Read, written: Iterable[tuple[int, int]], length: int, base: int, index: int
) -> int | None:
    head = read(0, min(dledger.HEADER_LENGTH, length))
    first = dledger.entry_index(head, 0, base)
    if first is not None and first > index + 1:
        return None
    for at, stop in written:
        for start in range(at, stop, _LOOK_AT):
            # The magic's zeros may lie in a hole before, and a header reaches into the next piece.
            begin = max(start - _ONE_AT, 0)
            end = min(start + _LOOK_AT, stop)
            data = read(begin, min(end + dledger.HEADER_LENGTH, length))
            for position in candidates(data, end - begin, index + 1):
                if dledger.entry_index(data, position, base + begin) == index + 1:
                    return base + begin + position
    return None


def candidates(data: bytes, end: int, index: int) -> list[int]:
    """Where an entry of an index may begin: its magic stands there, and the index where it belongs.

    An entry's magic ends in the one byte that isn't zero, so that zeros are passed over fast. Entries whose
    magic ends by the position ``end`` are looked for.
    """
    piece = np.frombuffer(data, np.uint8)
    found = np.flatnonzero(piece[:end] == dledger.ENTRY_MAGIC) - _ONE_AT
    found = found[(found >= 0) & (found + dledger.HEADER_LENGTH <= len(piece))]
    wanted = dledger.ENTRY_MAGIC.to_bytes(_ONE_AT + 1, "big"), struct.pack(">q", index)
    for field, expected in zip((dledger.MAGIC, dledger.INDEX), wanted, strict=True):
        for place, byte in enumerate(expected):
            found = found[piece[found + field + place] == byte]
    return found.tolist()


def _unknown(group: DLedgerSettings, found: str | None) -> StoreError:
    return StoreError(
        "it can't be told which entries the group has committed",
        path=group.home / COMMITTED_FILE,
        expected=f"{_COMMITTED}=NUMBER, as every member of a group writes it",
        found=found,
        next_step="Start this broker with its group and stop it, or take the store of another member. If the "
        "group has this one member alone, say so in dLegerPeers of broker.conf",
    )


_LOOK_AT = 1 << 20
#: More than the fixed fields of what begins at a place; most records have less than the second number, and
#: of a store elsewhere as much is read where one begins.
_HEAD, _FRAME = 256, 1 << 16
#: No segment begins behind it: a mapped file has up to 2 GiB, and offsets are longs.
MAX_BASE = (1 << 63) - (1 << 31)

#: The finding of a log of which a DLedger group is known to have committed a part only.
UNCOMMITTED = "uncommitted-entries"


@dataclass(frozen=True, slots=True)
class Segment:
    """One commit-log file."""

    path: Path  # the file
    base: int  # physical offset of its first byte, from its name
    length: int  # bytes in the file that belong to the log, at most the segment size


@dataclass(frozen=True, slots=True)
class CommitLog:
    """The segments of a store in log order."""

    segments: tuple[Segment, ...]  # at least one
    segment_size: int  # bytes that each segment spans in the log
    #: gaps between segments and segments of a wrong length; entries that aren't committed
    findings: tuple[Finding, ...] = ()
    entries: bool = False  # records may stand in DLedger's entries

    @property
    def start(self) -> int:
        """Physical offset of the first segment's first byte; above 0 when the head has expired."""
        return self.segments[0].base

    @property
    def end(self) -> int:
        """Physical offset after the last segment's last byte, written or not."""
        return self.segments[-1].base + self.segments[-1].length

    @property
    def gaps(self) -> list[Finding]:
        """What isn't there of it; bytes that a segment has too many hide nothing."""
        return [finding for finding in self.findings if finding.offset < finding.end]

    def segment_at(self, offset: int) -> Segment | None:
        """The segment that spans a physical offset, None in a gap or outside the log."""
        for segment in self.segments:
            if segment.base <= offset < segment.base + self.segment_size:
                return segment
        return None


def discover(settings: StoreSettings) -> CommitLog:
    """The commit log of a store; of one that DLedger writes, the part that its group has committed.

    Raises SettingsError where broker.conf gives another segment size than every segment has.
    """
    no_files: list[Finding] = []
    files, doubled = _one_for_each_place(settings, list(_files(settings, no_files)))
    if not files:
        raise StoreError(
            "the commit log is empty",
            path=no_files[0].path if no_files else settings.commit_log_dirs[0],
            expected="segments named by 20 digits",
            found=no_files[0].found if no_files else "none",
            next_step="Check the STORE argument and storePathCommitLog in broker.conf",
        )
    if not any(segment.length for segment in files):
        raise StoreError(
            "the commit log is empty",
            path=files[0].path.parent,
            expected="segments with messages",
            found=f"{len(files)} segment{'s' * (len(files) > 1)} without a byte",
            next_step="Check the STORE argument and storePathCommitLog in broker.conf. If they are right, "
            "move these segments away: there is nothing in them",
        )
    while not files[-1].length:
        files.pop()  # made ahead of time, and no more than made: a 5.x broker deletes it
    size = _segment_size(settings, files)
    segments = tuple(replace(segment, length=min(segment.length, size)) for segment in files)
    findings = [*no_files, *doubled, *_wrong_lengths(files, size), *_gaps(files, size)]
    if settings.dledger is not None:
        segments, left_out = _committed(settings, segments)
        findings += left_out
    return CommitLog(segments, size, tuple(findings), settings.entries)


def _committed(
    settings: StoreSettings, segments: tuple[Segment, ...]
) -> tuple[tuple[Segment, ...], list[Finding]]:
    """The segments as far as they are committed, and what is said of the rest."""
    group = settings.dledger
    if group is None or group.alone:
        return segments, []
    index = committed_index(group)
    written = [
        (str(segment.path), segment.base, segment.length)
        for segment in segments
        if segment.path.parent in group.dirs
    ]
    end = committed_end(written, index)
    if end is None:
        return segments, []
    kept = tuple(
        replace(segment, length=min(segment.length, end - segment.base))
        for segment in segments
        if segment.base < end
    )
    if not kept:
        raise StoreError(
            "nothing in this commit log is committed",
            path=group.home / COMMITTED_FILE,
            expected=f"a committedIndex of at least the log's first entry, at {end}",
            found=index,
            next_step="Take the store of another member of the group",
        )
    found = Finding(
        kind=UNCOMMITTED,
        path=next(path for path, base, length in written if base <= end < base + length),
        offset=end,
        end=segments[-1].base + segments[-1].length,
        expected=f"entries up to index {index}, the last that is known to be committed",
        found=f"an entry of index {index + 1}",
        outcome="what follows was left out: a new leader may put other messages in its place",
    )
    return kept, [found]


def without_unwritten_end(log: CommitLog) -> CommitLog:
    """The log without the segments at its end that hold nothing but zeros; the first one always stays.

    A broker creates the next segments ahead of time (``AllocateMappedFileService``), and a crash leaves them.
    Nothing is missing before such a segment: the log ends there, and the broker goes on writing there.
    """
    segments = log.segments
    while len(segments) > 1 and _is_unwritten(segments[-1]):
        segments = segments[:-1]
    dropped = {str(segment.path) for segment in log.segments[len(segments) :]}
    findings = tuple(finding for finding in log.findings if finding.path not in dropped)
    return replace(log, segments=segments, findings=findings)


def likely_end(log: CommitLog) -> int:
    """Near which physical offset the written part of the last segment ends, by a megabyte here and there.

    Only for what need not be exact: messages that hold megabytes of zeros lead it astray.
    """
    last = log.segments[-1]
    segment = open_segment(last.path, last.length)
    written, beyond = 0, -(-last.length // _LOOK_AT)
    while written < beyond:
        middle = (written + beyond) // 2
        if segment.read(middle * _LOOK_AT, (middle + 1) * _LOOK_AT).any():
            written = middle + 1
        else:
            beyond = middle
    return last.base + min(written * _LOOK_AT, last.length)


class SegmentBytes:
    """The first bytes of a segment, uint8[length] and read-only, over its pages.

    Of a store elsewhere only what ``arriving`` has fetched is there, all else is zeros.
    """

    def __init__(self, data: NDArray[np.uint8], elsewhere: RemoteSegment | None = None) -> None:
        self.data = data
        self.arriving = elsewhere

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Positions [start, stop), as far as the segment goes."""
        self.fetch(start, stop)
        return self.data[start:stop]

    def is_zero(self, start: int, stop: int) -> bool:
        """Whether positions [start, stop) hold only zeros; what follows the first others isn't read."""
        pieces = range(start, stop, _LOOK_AT)
        return not any(self.read(at, min(at + _LOOK_AT, stop)).any() for at in pieces)

    def fetch(self, start: int, stop: int) -> None:
        """Have positions [start, stop) in :attr:`data`, as far as the segment goes."""
        if self.arriving is not None:
            self.arriving.fetch(start, stop)

    def fetch_frame(self, position: int) -> None:
        """Have what stands at ``position`` in :attr:`data`: as many bytes as its size says, and some more."""
        if self.arriving is None:
            return
        if not self.arriving.has(position, position + _HEAD):
            self.fetch(position, position + _FRAME)
        if 0 <= position <= len(self.data) - dledger.HEADER_LENGTH:
            size = dledger.frame_size(self.data.data, position)
            end = position + min(max(size, 0), len(self.data)) + _HEAD
            if not self.arriving.has(position, end):
                self.fetch(position, end)


def open_segment(path: str | Path, length: int, *, keeps: bool = True) -> SegmentBytes:
    """The first ``length`` bytes of a segment.

    With ``keeps``, what was read of a store elsewhere stays in memory when a scan has passed it.
    """
    store = remote_store(path)
    if store is None:
        return SegmentBytes(map_segment(path, length))
    copy = store.copy_of(path)
    if copy is not None and copy.exists():
        return SegmentBytes(map_segment(copy, length))
    from reput.remote.segment import RemoteSegment

    elsewhere = RemoteSegment(store, path, length, keeps=keeps)
    return SegmentBytes(elsewhere.data, elsewhere)


def map_segment(path: str | Path, length: int) -> NDArray[np.uint8]:
    """The first ``length`` bytes of a segment as a read-only uint8 array over its pages.

    Of a store elsewhere they are all read, and kept in memory while the array is used.
    """
    if remote_store(path) is not None:
        return open_segment(path, length).read(0, length)
    try:
        with reading(path, by_ranges=True) as fd:
            if not length:
                return np.empty(0, np.uint8)
            mapped = mmap.mmap(fd, length, prot=mmap.PROT_READ)
    except FileNotFoundError as error:
        raise SegmentGoneError(
            "the segment can't be read",
            path=path,
            expected=f"{length} bytes",
            found="no such file: it has expired, or the log was cut",
            next_step="Run the same command again; it begins with the first segment that there is",
        ) from error
    except (OSError, ValueError) as error:
        raise StoreError(
            "the segment can't be read",
            path=path,
            expected=f"{length} bytes",
            found=str(error),
            next_step=step_to_read(error),
        ) from error
    return np.frombuffer(mapped, np.uint8)


def written_ranges(segment: Segment) -> list[tuple[int, int]]:
    """The half-open ranges of positions in a segment that are no holes of its file: all else is zeros."""
    if remote_store(segment.path) is not None:
        return [(0, segment.length)]
    return written("the segment", segment.path, 0, segment.length)


def is_zero(data: NDArray[np.uint8]) -> bool:
    """Whether all bytes are zero; stops at the first megabyte that isn't."""
    return not any(data[at : at + _LOOK_AT].any() for at in range(0, len(data), _LOOK_AT))


def _is_unwritten(segment: Segment) -> bool:
    """Whether a segment holds nothing but zeros; those of a file's holes aren't read."""
    data = open_segment(segment.path, segment.length)
    return all(data.is_zero(start, end) for start, end in written_ranges(segment))


def listed(directory: Path) -> list[os.DirEntry[str]]:
    """What lies in one of a commit log's directories, by name."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise StoreError(
            "the commit log can't be read",
            path=directory,
            expected="a directory of segments",
            found=error.strerror,
            next_step="Check the STORE argument and storePathCommitLog in broker.conf",
        ) from error


def _files(settings: StoreSettings, no_files: list[Finding]) -> Iterator[Segment]:
    """What may be a segment; of what has a segment's name and is no file it is said so."""
    for directory in settings.commit_log_dirs:
        elsewhere = remote_store(directory)
        if elsewhere is not None:
            for file in elsewhere.files_in(directory):
                base = names.number(name := file.name.rpartition("/")[2])
                if base is not None and 0 <= base <= MAX_BASE:
                    yield Segment(directory / name, base, file.size)
            continue
        for entry in listed(directory):
            base = names.number(entry.name)
            if base is None or not 0 <= base <= MAX_BASE:
                continue
            try:
                status = looked_at(entry)
            except OSError as error:
                raise unreadable("the segment", entry.path, error) from error
            if status is not None and stat.S_ISREG(status.st_mode):
                yield Segment(directory / entry.name, base, status.st_size)
            elif status is not None and not is_odd(Path(entry.name), base):
                no_files.append(
                    Finding(
                        kind="not-a-file",
                        path=entry.path,
                        offset=base,
                        end=base,
                        expected="a segment",
                        found=what_is(status.st_mode),
                        outcome="it was passed over",
                    )
                )


def _one_for_each_place(settings: StoreSettings, files: list[Segment]) -> tuple[list[Segment], list[Finding]]:
    """The segments in log order, those of one place told apart, and what is odd about their names.

    Raises StoreError where it isn't proven which of two files for one place is it.
    """
    files.sort(key=lambda segment: (segment.base, is_odd(segment.path, segment.base), segment.path))
    named = Counter(segment.length for segment in files if not is_odd(segment.path, segment.base))
    lengths = named.keys()
    # Cut files are the log's: others are foreign only beside some of a length that is sure.
    (shown, count), *_ = named.most_common(1) or [(0, 0)]
    usual = shown if settings.segment_size in (None, shown) and count > 1 else 0
    kept: list[Segment] = []
    findings: list[Finding] = []
    for segment in files:
        odd = is_odd(segment.path, segment.base)
        if odd and (not segment.length or segment.base % max([*lengths, 1])):
            continue  # it is no segment
        if not odd and is_foreign(segment.path, segment.base, segment.length, usual):
            continue
        if not kept or kept[-1].base != segment.base:
            if odd and segment.length in lengths:
                findings.append(_odd_name(segment))
            if not odd or segment.length in lengths:
                kept.append(segment)
            continue
        choice = choose_file(
            kept[-1].path,
            segment.path,
            segment.base,
            topic_length_v2=settings.dialect.topic_length_v2,
            entries=settings.entries,
        )
        if choice.kind != SECOND_FILE:
            raise StoreError(
                "two files are for one place of the commit log",
                path=choice.goes,
                offset=segment.base,
                expected="one",
                found=choice.found,
                next_step=choice.next_step,
            )
        if choice.stays == segment.path:
            kept[-1] = segment
        findings.append(
            Finding(
                kind=choice.kind,
                path=str(choice.goes),
                offset=segment.base,
                end=segment.base,
                expected="one file for a place of the log",
                found=choice.found,
                outcome="it was left out; a broker takes both, and may delete what lies behind",
            )
        )
    return kept, findings


def _odd_name(segment: Segment) -> Finding:
    return Finding(
        kind=ODD_NAME,
        path=str(segment.path),
        offset=segment.base,
        end=segment.base,
        expected=f"the name {names.offset_name(segment.base)}",
        found=segment.path.name,
        outcome="it was read in its place; a broker takes files in the order of their names, and may delete "
        "what lies behind. Rename it",
    )


def _segment_size(settings: StoreSettings, files: list[Segment]) -> int:
    lengths = Counter(segment.length for segment in files)
    if settings.segment_size is not None:
        # A single file may be cut short, or have some bytes too many.
        sure = len(files) > 1 or is_anothers(files[0].path, files[0].length, settings.segment_size)
        if settings.segment_size not in lengths and len(lengths) == 1 and sure:
            raise SettingsError(
                "mappedFileSizeCommitLog is not this store's",
                path=settings.broker_conf,
                expected=f"{files[0].length}, the length of every segment in {files[0].path.parent}",
                found=settings.segment_size,
                next_step="Use the broker.conf of the broker that wrote this store",
            )
        size = settings.segment_size
    else:
        distances = {other.base - one.base for one, other in pairwise(files)}
        (usual, _), *_ = lengths.most_common(1)
        # With several segments the names tell; gaps only make distances larger. But one file of a wrong name
        # doesn't make all others too long.
        size = usual if usual in distances or not distances else min(distances)
    for one, other in pairwise(files):
        if other.base - one.base < size:
            raise StoreError(
                "two segments overlap",
                path=other.path,
                offset=other.base,
                expected=f"a name of at least {names.offset_name(one.base + size)}",
                found=f"{one.path.name} before it, with segments of {size} bytes",
                next_step="Check mappedFileSizeCommitLog in broker.conf",
            )
    return size


def _wrong_lengths(files: Iterable[Segment], size: int) -> Iterator[Finding]:
    for segment in files:
        if segment.length == size:
            continue
        short = segment.length < size
        yield Finding(
            kind="segment-length",
            path=str(segment.path),
            offset=segment.base + min(segment.length, size),
            end=segment.base + size,
            expected=f"{size} bytes",
            found=f"{segment.length} bytes",
            outcome="what is missing was passed over; no broker starts with it"
            if short
            else "what is beyond was not read; no broker starts with it",
        )


def _gaps(files: list[Segment], size: int) -> Iterator[Finding]:
    for one, other in pairwise(files):
        if other.base > one.base + size:
            yield Finding(
                kind="missing-segments",
                path=str(other.path),
                offset=one.base + size,
                end=other.base,
                expected=f"segment {names.offset_name(one.base + size)}",
                found=f"{other.path.name} as the next one",
                outcome="the gap was passed over",
            )


def part_of(log: CommitLog, segment: Segment, start: int, end: int, *, exact: bool = False) -> Part:
    """The range [start, end) of a segment, physical offsets; a segment's first byte is exact."""
    return Part(
        path=str(segment.path),
        base=segment.base,
        segment_length=segment.length,
        segment_size=log.segment_size,
        start=start,
        end=end,
        exact=exact or start == segment.base,
        last=segment is log.segments[-1],
    )


def cut(log: CommitLog, start: int, end: int, part_bytes: int, exact_start: int | None) -> Iterator[Part]:
    """The parts of [start, end) in log order; stretches without a segment have none.

    Parts end at multiples of ``part_bytes``, counted from their segment's base. At ``exact_start`` a record
    is known to begin.
    """
    for segment in log.segments:
        at = max(start, segment.base)
        stop = min(end, segment.base + segment.length)
        while at < stop:
            cut_at = min(at + part_bytes - (at - segment.base) % part_bytes, stop)
            yield part_of(log, segment, at, cut_at, exact=at == exact_start)
            at = cut_at


def next_place(log: CommitLog, offset: int) -> int:
    """``offset``, or where the log continues after a gap that it lies in; ``offset`` past the log's end."""
    for segment in log.segments:
        if offset < segment.base + segment.length:
            return max(offset, segment.base)
    return offset


def batch_end(log: CommitLog, begin: int, end: int, max_bytes: int | None) -> int:
    """Where a micro-batch that begins at ``begin`` ends, at most at ``end``.

    Its ``max_bytes`` are counted from where there is something, so that a gap is not crossed batch by batch.
    """
    return end if max_bytes is None else min(end, next_place(log, begin) + max(max_bytes, 1))
