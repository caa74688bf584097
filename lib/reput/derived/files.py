"""Loading a directory of files of one length, as a broker does it for segments and queues.

Source: ``MappedFileQueue.load``, ``MultiPathMappedFileQueue.load``, ``MappedFile`` (rocketmq-all-4.9.7,
5.1.0, 5.1.3, 5.3.3).
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reput.config.dialect import Recovery
from reput.config.settings import StoreSettings
from reput.errors import Problem, StoreError
from reput.format import names
from reput.log.segments import MISTAKEN, ODD_NAME, SECOND_FILE, Choice, is_foreign
from reput.newer_python import Self
from reput.remote import remote_store
from reput.remote.store import have, may_lack
from reput.store.listing import entries_in
from reput.store.reading import LINK, looked_at, open_file, pread, reading, step_to_read, what_is, written

_LONG_MAX = 2**63 - 1
#: What can't be read, in errors.
WHAT = "the queue"
#: The problem of a file that isn't the broker's; one that stops no start is taken for a file all the same.
STRAY = "stray-file"
#: The problem of a file of the broker's that is cut, or otherwise not as long as all others.
WRONG_LENGTH = "wrong-length"
#: What lies in the place of a file and is none: a FIFO, a socket, a device, a link that leads nowhere.
NO_FILE = "not-a-file"
_BY_NAME = "in the order of the names, and may delete what lies behind, or write over it"
#: Segments that aren't there, between others.
MISSING_SEGMENTS = "missing-segments"
#: So many of them; a name farther off is taken for another file's.
MOST_MISSING = 1000
#: Only some of the log has been copied here.
UNFINISHED_RESTORE = "unfinished-restore"
#: Files of a queue that a recovery looks at, the last ones (``ConsumeQueue.recover``, and that of batches).
LAST_FILES = 3


class StoreFile(NamedTuple):
    """A file that a broker maps."""

    place: str  # its path: a store may have 100,000, and few are looked at further
    base: int  # offset of its first byte, from its name

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.place)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a broker makes of some directories."""

    #: what it maps, in the order of their names; what a problem hides from it, too
    files: tuple[StoreFile, ...] = ()
    problems: tuple[Problem, ...] = ()  # what it stumbles over
    #: of :attr:`loaded`, what it doesn't map, with the files of another length that hide it
    unloaded: tuple[StoreFile, ...] = ()

    @property
    def unloadable(self) -> Problem | None:
        """Why no broker loads these files, or takes them for what they are; None as a rule."""
        odd = MISTAKEN | {STRAY}
        return next((one for one in self.problems if one.unloads or one.kind in odd), None)

    @property
    def loaded(self) -> Listing:
        """These files but for those that something in the directory hides from a broker."""
        hiding = [one for one in self.problems if one.hides]
        if not hiding:
            return self
        first = Path(hiding[0].path).name
        files = tuple(one for one in self.files if one.path.name < first)
        others = [
            StoreFile(one.path, names.number(Path(one.path).name) or 0)
            for one in hiding
            if one.kind == WRONG_LENGTH and one.found != "0 bytes"
        ]
        unloaded = sorted([*self.files[len(files) :], *others], key=attrgetter("base"))
        return replace(self, files=files, unloaded=tuple(unloaded))


class Entry(NamedTuple):
    """A name in a directory, looked at once."""

    directory: str  # where it is
    name: str  # the name
    is_dir: bool  # a directory
    length: int  # bytes; 0 of what is no file, as ``File.length`` has it
    what: str | None = None  # what it is; None of a file

    @property
    def place(self) -> str:
        """Its path as a text: there are many."""
        return f"{self.directory}/{self.name}"

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.directory, self.name)


def in_order(directory: str | Path) -> list[Entry]:
    """What a directory holds, by name; nothing when it isn't there or is no directory."""
    place = os.fspath(directory)
    try:
        result = []
        for entry in entries_in(place):
            if entry.is_dir(follow_symlinks=False):
                result.append(Entry(place, entry.name, True, 0, what_is(stat.S_IFDIR)))
            elif (facts := looked_at(entry)) is not None:
                mode = facts.st_mode
                if stat.S_ISREG(mode):
                    result.append(Entry(place, entry.name, False, facts.st_size))
                else:
                    result.append(Entry(place, entry.name, stat.S_ISDIR(mode), 0, what_is(mode)))
        elsewhere = remote_store(place)
        if elsewhere is not None:
            for file in elsewhere.files_in(Path(place)):
                result.append(Entry(place, file.name.rpartition("/")[2], False, file.size))
            result.sort(key=attrgetter("name"))
        return result
    except OSError as error:
        raise StoreError(
            "this directory can't be read",
            path=Path(directory),
            found=error.strerror,
            next_step=step_to_read(error),
        ) from error


def listed(
    directories: Iterable[str | Path],
    file_size: int,
    rules: Recovery,
    setting: str,
    step: str,
    choose: Callable[[Path, Path, int], Choice] | None = None,
) -> Listing:
    """Load directories.

    Args:
        directories: as broker.conf lists them.
        file_size: bytes that each file must have.
        rules: the release's.
        setting: the setting that says so, for the messages.
        step: what is to be done about a file of another length, if the setting is right.
        choose: says of two files for one place which one is right; None takes the one with the right name.
    """
    found = [entry for directory in directories for entry in in_order(directory)]
    if len(found) > 1:
        found.sort(key=attrgetter("name"))
    files: list[StoreFile] = []
    problems: list[Problem] = []
    by_name = {entry.name: entry for entry in reversed(found) if entry.length}
    usual = file_size if sum(entry.length == file_size for entry in found) > 1 else 0
    for place, entry in enumerate(found):
        base = names.number(entry.name)
        twin = None if base is None else by_name.get(names.offset_name(base))
        if not rules.refuses_wrong_length and _java_length(entry) != file_size:
            problems.append(_hiding(entry, file_size, setting, step, usual))
        elif twin is not None and twin is not entry and entry.length:
            problems.append(_second(entry, twin, base or 0, choose, stops=entry.length != file_size))
            if entry.length == file_size:
                files.append(StoreFile(entry.place, base or 0))
        elif entry.is_dir and rules.skips_directories and base is not None and not base % file_size:
            outcome = "the broker passes over it, and can't make the file of this place"
            problems.append(replace(_no_file(entry), outcome=outcome, stops=False))
        elif entry.is_dir and rules.skips_directories:
            problems.append(_stray(entry, "the broker passes over it", stops=False))
        elif entry.is_dir:
            problems.append(_stray(entry, "the broker doesn't start", stops=True))
        elif not entry.length and place == len(found) - 1 and rules.drops_empty_last_file:
            problems.append(_empty(entry) if entry.what != LINK else _lost(entry))
        elif entry.what is not None:
            problems.append(_no_file(entry))
        elif entry.length != file_size:
            problems.append(_wrong_length(entry, file_size, setting, step, usual))
        elif base is None or base < 0 or base % file_size or base > _LONG_MAX - file_size:
            problems.append(_misnamed(entry, base, file_size, setting))
        else:
            files.append(StoreFile(entry.place, base))
            if entry.name != names.offset_name(base):
                problems.append(_odd_name(entry, base))
    hiding = [number for number, one in enumerate(problems) if one.hides][:1]
    for number in range(hiding[0] + 1 if hiding else len(problems), len(problems)):
        problems[number] = replace(problems[number], stops=False)  # it doesn't come so far
    return Listing(tuple(files), tuple(problems))


def gaps(
    files: tuple[StoreFile, ...],
    file_size: int,
    kind: str,
    step: str,
    there: Container[int | None] = frozenset(),
) -> Iterator[Problem]:
    """Files whose names don't follow one another: a broker logs them and goes on.

    ``there`` has bases of files that lie between, and have a problem of their own.
    """
    in_log = {file.base: file for file in files}
    for before, file in pairwise(in_log[base] for base in sorted(in_log)):
        following = before.base + file_size
        while following in there and following < file.base:
            following += file_size
        if file.base != following:
            far = kind == MISSING_SEGMENTS and file.base > following + MOST_MISSING * file_size
            yield Problem(
                kind=ODD_NAME if far else kind,
                path=str(file.path),
                expected=f"a name of {following:020d} after {before.path.name}",
                found=file.path.name,
                outcome="the broker starts, and what lies between is missing",
                next_step=f"Bring back what lies between, or move {file.path} elsewhere." if far else step,
            )


def _stray(entry: Entry, outcome: str, *, stops: bool) -> Problem:
    return Problem(
        kind="stray-directory",
        path=str(entry.path),
        expected="files only",
        found="a directory",
        outcome=outcome,
        next_step="Move it elsewhere.",
        stops=stops,
    )


def _java_length(entry: Entry) -> int:
    """What ``File.length`` says."""
    return entry.path.stat().st_size if entry.is_dir else entry.length


def _hiding(entry: Entry, file_size: int, setting: str, step: str, usual: int) -> Problem:
    """``MappedFileQueue.load`` goes no further, and calls that a success (rocketmq-all-4.4.0)."""
    outcome = "the broker starts, loads neither it nor what lies behind, and writes its new files over them"
    if entry.is_dir:
        problem = _stray(entry, outcome, stops=False)
    else:
        is_file = entry.what is None
        problem = _wrong_length(entry, file_size, setting, step, usual) if is_file else _no_file(entry)
    return replace(problem, outcome=outcome, stops=False, hides=True)


def _second(
    entry: Entry,
    twin: Entry,
    base: int,
    choose: Callable[[Path, Path, int], Choice] | None,
    *,
    stops: bool,
) -> Problem:
    kind, path, found = SECOND_FILE, entry.path, f"also {twin.path}"
    step = f"Move {path} elsewhere: a broker never gives a file this name."
    if choose is not None:
        choice = choose(twin.path, path, base)
        kind, path, found, step = choice.kind, choice.goes, choice.found, choice.next_step
    return Problem(
        kind=kind,
        path=str(path),
        expected="one file for a place",
        found=found,
        outcome="the broker doesn't start" if stops else f"the broker takes both {_BY_NAME}",
        next_step=step,
        stops=stops,
    )


def _odd_name(entry: Entry, base: int) -> Problem:
    name = names.offset_name(base)
    return Problem(
        kind=ODD_NAME,
        path=str(entry.path),
        expected=f"the name {name}",
        found=entry.name,
        outcome=f"the broker takes it {_BY_NAME}",
        next_step=f"Rename it to {name}.",
    )


def _no_file(entry: Entry) -> Problem:
    return Problem(
        kind=NO_FILE,
        path=str(entry.path),
        expected="a file",
        found=entry.what or "",
        outcome="the broker doesn't start",
        next_step="Move it elsewhere; if a file of the store was in its place, bring that back from a copy.",
        stops=True,
    )


def _empty(entry: Entry) -> Problem:
    return Problem(
        kind="empty-file",
        path=str(entry.path),
        expected="a file of the set length",
        found=entry.what or "0 bytes",
        outcome="the broker deletes it",
        next_step="Nothing has to be done.",
    )


def _lost(entry: Entry) -> Problem:
    step = f"{entry.path} is {LINK}: bring back what it led to, or move it elsewhere."
    return replace(_no_file(entry), outcome="the broker deletes it", next_step=step, stops=False)


def _wrong_length(entry: Entry, file_size: int, setting: str, step: str, usual: int) -> Problem:
    # All that a broker makes has 20 digits, and begins at a multiple of the length that all have.
    base = names.parse_offset_name(entry.path.name)
    named = base is not None and not is_foreign(entry.path, base, entry.length, usual)
    if named:
        step = f"If that is the broker's {setting}: {step}"
    else:
        step = "Move it elsewhere: it is no file of the store."
    restoring = entry.name == names.RESTORING
    if restoring:
        step = "Run the same `reput restore` again: it copies what is missing, and takes this file away."
    return Problem(
        kind=WRONG_LENGTH if named else UNFINISHED_RESTORE if restoring else STRAY,
        path=str(entry.path),
        expected=f"{file_size} bytes ({setting})",
        found=f"{entry.length} bytes",
        outcome="the broker doesn't start",
        next_step=step,
        stops=True,
    )


def _misnamed(entry: Entry, base: int | None, file_size: int, setting: str) -> Problem:
    """A broker takes any number for a place, but gives its files no others than multiples of their size."""
    expected, outcome = "a number as its name", "the broker doesn't start"
    if base is not None:
        expected = f"a name of 20 digits, a multiple of {file_size} ({setting})"
        outcome = (
            f"the broker takes it for one that begins at {base}: what it makes of the others isn't known"
        )
    return Problem(
        kind=STRAY,
        path=str(entry.path),
        expected=expected,
        found=entry.path.name,
        outcome=outcome,
        next_step="Move it elsewhere: it is no file of the store.",
        stops=base is None,
    )


@dataclass(slots=True)
class ModelFile:
    """A file of a queue, as a start leaves it."""

    base: int  # byte offset of its first byte in the queue
    place: str | None  # its path, as a text: there may be 100,000; None when the broker makes it
    wrote: int  # bytes from its start on that count

    @property
    def path(self) -> Path | None:
        """Where it is; None when the broker makes it."""
        return None if self.place is None else Path(self.place)


_File = TypeVar("_File", bound=ModelFile)


class MappedFiles(Generic[_File]):
    """The files of a queue, changed as a broker changes them; what is on disk stays as it is.

    Attributes:
        file_size: bytes of a file.
        files: in the order of their offsets; each but the last is full.
        deleted: files that the broker deletes.
    """

    def __init__(self, files: list[_File], file_size: int) -> None:
        self.file_size = file_size
        self.files = files
        self.deleted: list[Path] = []

    @property
    def start(self) -> int:
        """Byte offset of the first byte; 0 without files."""
        return self.files[0].base if self.files else 0

    @property
    def end(self) -> int:
        """Byte offset after the last byte that counts; 0 without files."""
        return self.files[-1].base + self.files[-1].wrote if self.files else 0

    def cut(self, end: int) -> None:
        """End the files at a byte offset (``MappedFileQueue.truncateDirtyFiles``)."""
        for file in list(self.files):
            if file.base + self.file_size > end:
                if end >= file.base:
                    file.wrote = end % self.file_size
                else:
                    self.delete(file)

    def delete(self, file: _File) -> None:
        """Delete one of them."""
        self.files.remove(file)
        if file.path is not None:
            self.deleted.append(file.path)

    def destroy(self) -> None:
        """Delete all of them."""
        for file in list(self.files):
            self.delete(file)


def segment_at(segments: Sequence[StoreFile], size: int, offset: int) -> StoreFile | None:
    """The segment that spans a physical offset, of those that have ``size`` bytes each; None if missing."""
    return next((one for one in segments if one.base <= offset < one.base + size), None)


def records_of(
    path: str | Path, kind: np.dtype[Any], count: int, offset: int, what: str | None = None
) -> NDArray[Any]:
    """Whole records of a file, for reading: ``kind``[rows], rows <= count, from a byte offset on.

    As ``numpy.fromfile``, which takes several times as long for a few of them. ``what``: see :func:`reading`.
    """
    with reading(path, what, by_ranges=True) as fd:
        data = pread(path, fd, count * kind.itemsize, offset)
    return np.frombuffer(data, kind, len(data) // kind.itemsize)


def mapped(path: str | Path, size: int) -> NDArray[np.uint8]:
    """uint8[size]: a file, mapped to be read."""
    have(path, 0, size)
    with reading(path, by_ranges=True) as fd:
        return np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)


_PIECE = 1 << 13  # items
MOST_OPEN = 128  # files of queues, by one reader


def pieces(
    what: str, path: Path, kind: np.dtype[Any], size: int, *, backwards: bool = False
) -> Iterator[tuple[int, NDArray[Any]]]:
    """A file's whole items in pieces, without those that lie in holes of the file, which are zeros.

    Each with the number of items before it; it may be empty where the file was cut.
    """
    width, cuts = kind.itemsize, []
    done = 0
    for start, end in written(what, path, 0, size):
        at, stop = max(start // width, done), min(-(-end // width), size // width)
        cuts += [(one, min(one + _PIECE, stop)) for one in range(at, stop, _PIECE)]
        done = max(done, stop)
    for first, stop in reversed(cuts) if backwards else cuts:
        yield first, records_of(path, kind, stop - first, first * width, what)


def read_bytes(what: str, path: Path, offset: int, count: int) -> bytes:
    """Up to ``count`` bytes from a byte on; fewer where the file, called ``what``, ends."""
    return records_of(path, np.dtype("u1"), count, offset, what).tobytes()


def loaded(settings: StoreSettings, kind: str, topic: str, queue_id: int, what: str = WHAT) -> Listing:
    """The files of a queue in ``kind``, one of the store's directories of queues; there may be none.

    StoreError where no broker could load them, or not all of them: the first problem.
    """
    setting, file_size = settings.queue_file_sizes[kind]
    place = f"{settings.root}/{kind}/{topic}/{queue_id}"
    step = f"`{settings.command('check')}` says what puts it right."
    listing = listed([place], file_size, settings.dialect.recovery, setting, step)
    for problem in listing.problems:
        if problem.unloads:
            raise problem.error(StoreError, f"{what} can't be read")
    return listing


def numbered_files(directory: Path) -> list[tuple[Path, int, int]]:
    """The files that are named by an offset: (path, that offset, bytes), in order."""
    return [
        (entry.path, base, entry.length)
        for entry in in_order(directory)
        if (base := names.parse_offset_name(entry.path.name)) is not None and not entry.is_dir
    ]


def place_in(directory: Path, file_size: int, at: int) -> tuple[Path, int]:
    """The file of a queue that has its byte ``at``, and the byte offset there."""
    return directory / names.offset_name(at - at % file_size), at % file_size


class SeriesReader:
    """Keeps files of a store's queues open, those of ``kind``, a directory below its root. A context manager.

    Attributes:
        opened: how many files were opened.
    """

    def __init__(self, root: Path, file_size: int, kind: str, most_open: int) -> None:
        self._directory = f"{root}/{kind}"
        self._file_size = file_size
        self._most_open = most_open
        self._may_lack = may_lack(root)
        self._open: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self.opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            _close(self._open.popitem()[1])

    def path(self, topic: str, queue_id: int, base: int) -> str:
        """Of the file whose first byte is ``base``."""
        return f"{self._directory}/{topic}/{queue_id}/{names.offset_name(base)}"

    def descriptor(self, topic: str, queue_id: int, base: int) -> int:
        """A file's descriptor, -1 where there is no such file; closed when more are open than may be."""
        key = (topic, queue_id, base)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        try:
            path = self.path(topic, queue_id, base)
            fd = open_file(path)
            self.opened += 1
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            fd = -1
        self._open[key] = fd
        if len(self._open) > self._most_open:
            _close(self._open.popitem(last=False)[1])
        return fd


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
