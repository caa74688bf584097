"""Whether a task reads the store that the driver reads: names, sizes, the bytes of first and last records.

A store is only read, so that no nonce can be left in it. A copy that has the same bytes is as good as the
store itself; an older or a newer one, and another store at the same path, are refused before anything is
taken from them.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.errors import ReputError, StoreError
from reput.format import names
from reput.store.reading import extents, reading, stat_of, unreadable

#: A record's header of fixed fields has 88 bytes: these tell records apart.
_LENGTH = 128
_LOOK_AT = 1 << 20
_SHOWN = 8
_SEGMENT = "the segment"
#: So many topics, and index files, are looked at closely.
_MOST = 64
_PROBLEM = "this host doesn't see the store that the driver sees"
_NEXT_STEP = (
    "Mount the store at this path on all hosts, or let everything run on one host: --master 'local[*]'"
)
#: What this process has compared already.
_compared: set[str] = set()


class Stretch(NamedTuple):
    """Some bytes of a file; ``at`` is where."""

    at: int
    data: bytes


def witness(path: str | Path, start: int, stop: int) -> FileSeen:
    """What this host reads of the bytes [start, stop) of a segment."""
    with reading(path, _SEGMENT) as descriptor:
        length, host = os.fstat(descriptor).st_size, socket.gethostname()
        return _seen(host, path, descriptor, length, start, stop, list(extents(descriptor, start, stop)))


def witnesses(path: str | Path, ranges: Sequence[tuple[int, int]]) -> list[FileSeen | None]:
    """What was seen of several ranges of a segment, where zeros that one ends in may be written later.

    None for a range that lies in a hole of the file: no record begins there.
    """
    found: list[FileSeen | None] = []
    with reading(path, _SEGMENT) as descriptor:
        length, host = os.fstat(descriptor).st_size, socket.gethostname()
        written = list(extents(descriptor, 0, length))
        for start, stop in ranges:
            within = [(max(a, start), min(b, stop)) for a, b in written if a < stop and b > start]
            found.append(
                _seen(host, path, descriptor, length, start, stop, within, grows=True) if within else None
            )
    return found


def _seen(
    host: str,
    path: str | Path,
    descriptor: int,
    length: int,
    start: int,
    stop: int,
    written: Sequence[tuple[int, int]],
    *,
    grows: bool = False,
) -> FileSeen:
    end = _written_end(descriptor, start, written)
    last = max(start, end - _LENGTH)
    until = end if grows else min(end + _LENGTH, stop)
    stretches = (
        Stretch(start, os.pread(descriptor, max(min(_LENGTH, until - start), 0), start)),
        # Around the last byte that isn't zero: what is written there ends so.
        Stretch(last, os.pread(descriptor, until - last, last)),
    )
    return FileSeen(host, str(path), length, stretches)


class FileSeen(NamedTuple):
    """What one host read of a file to which bytes are only added."""

    host: str  # which
    path: str  # the file
    length: int  # bytes
    stretches: tuple[Stretch, ...]  # some of its bytes

    @property
    def read(self) -> int:
        """How many bytes that are."""
        return sum(len(stretch.data) for stretch in self.stretches)

    def check(self) -> None:
        """See that this host reads the same.

        Raises SegmentGoneError where the file isn't there any more, or never was on this host.
        """
        with reading(self.path, "the file") as descriptor:
            length = os.fstat(descriptor).st_size
            self._compare(length, lambda one: os.pread(descriptor, len(one.data), one.at))

    def check_mapped(self, data: NDArray[np.uint8], base: int) -> None:
        """See that a segment that is mapped, from the physical offset ``base`` on, is the same."""
        length = stat_of(_SEGMENT, self.path).st_size
        self._compare(length, lambda one: data[one.at : one.at + len(one.data)].tobytes(), base)

    def _compare(self, length: int, read: Callable[[Stretch], bytes], base: int = 0) -> None:
        if length != self.length:
            raise _other(self.path, None, f"{self.length} bytes, as on {self.host}", f"{length} bytes")
        for stretch in self.stretches:
            here = read(stretch)
            if here != stretch.data:
                raise _differing(self.path, stretch, here, self.host, base)


def file_seen(path: str, start: int, stop: int) -> FileSeen:
    """What this host reads of the ends of a file's bytes [start, stop)."""
    places = {start, max(stop - _LENGTH, start)}
    with reading(path, "the file") as descriptor:
        stretches = tuple(
            Stretch(at, os.pread(descriptor, min(_LENGTH, stop - at), at).rstrip(b"\0"))
            for at in sorted(places)
        )
        return FileSeen(socket.gethostname(), path, os.fstat(descriptor).st_size, stretches)


@contextmanager
def naming_host(planner: str) -> Iterator[None]:
    """Have errors of the block name this host, if it isn't the one that made the plan."""
    try:
        yield
    except ReputError as error:
        here = socket.gethostname()
        if here != planner:
            error.host = here
        raise


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """What the driver has seen of a store's files beside the log; workers have to see the same."""

    host: str  # the driver's
    nonce: str  # so that a worker compares once
    #: directories, and the names that have to be in them; ``exactly`` those and no others
    listed: tuple[tuple[str, tuple[str, ...]], ...]
    exactly: bool
    files: tuple[FileSeen, ...]  # what was read of some files

    def show(self) -> None:
        """In a worker, before a task: compare; once in a process."""
        if self.nonce in _compared:
            return
        for directory, known in self.listed:
            found = _listing(directory)
            if found is None:
                raise _other(directory, None, f"a directory, as on {self.host}", "none")
            lacking = sorted(set(known) - set(found))
            if lacking:
                raise missing(Path(directory, lacking[0]), self.host)
            more = sorted(set(found) - set(known))
            if more and self.exactly:
                raise _other(Path(directory, more[0]), None, f"none, as on {self.host}", "a file")
        for file in self.files:
            file.check()
        _compared.add(self.nonce)

    def see(self, host: str, shown: None) -> None:
        """On the driver: nothing was left, for nothing is written to a store."""


def config_seen(paths: Iterable[Path]) -> StoreSeen:
    """Files of config/ that tasks read, as far as they are there; a broker may rewrite them."""
    listed: dict[str, tuple[str, ...]] = {}
    for path in paths:
        if path.is_file():
            listed[str(path.parent)] = (*listed.get(str(path.parent), ()), path.name)
    return StoreSeen(socket.gethostname(), secrets.token_hex(16), tuple(listed.items()), False, ())


def store_seen(root: Path, *, live: bool) -> StoreSeen:
    """What a broker has derived from its log, as this host sees it.

    Looked at are the names of topics and index files, and of some of them, evenly chosen, sizes and bytes. Of
    a ``live`` store, which a broker writes to, only names count, and there may be more.
    """
    listed: list[tuple[str, tuple[str, ...]]] = []
    chosen: list[Path] = []
    for directory in (root / name for name in (*names.QUEUES, names.INDEX)):
        found = _listing(directory)
        if found is None:
            continue
        listed.append((str(directory), found))
        if live:
            continue
        for name in _some(found):
            place = directory / name
            if directory.name == names.INDEX:
                chosen.append(place)
                continue
            for queue in (_listing(place) or ())[-1:]:
                held = _listing(place / queue)
                if held is not None:
                    listed.append((str(place / queue), held))
                    chosen += [place / queue / one for one in {*held[:1], *held[-1:]}]
    files = tuple(file_seen(str(path), 0, path.stat().st_size) for path in chosen if path.is_file())
    # What a live broker makes next is in no listing of now.
    return StoreSeen(socket.gethostname(), secrets.token_hex(16), tuple(listed), not live, files)


def _some(found: Sequence[str]) -> Iterator[str]:
    step = max(len(found) / _MOST, 1.0)
    yield from (found[int(at * step)] for at in range(min(len(found), _MOST)))


def _listing(directory: str | Path) -> tuple[str, ...] | None:
    """The names in a directory, None if missing."""
    try:
        return tuple(sorted(os.listdir(directory)))  # noqa: PTH208 - names, and 100,000 of them
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable("the directory", directory, error) from error


def _written_end(descriptor: int, start: int, written: Sequence[tuple[int, int]]) -> int:
    """Where the zeros begin that a range ends in, whose bytes in ``written`` are no holes."""
    for begin, end in reversed(written):
        stop = end
        while stop > begin:
            at = max(stop - _LOOK_AT, begin)
            block = os.pread(descriptor, stop - at, at).rstrip(b"\0")
            if block:
                return at + len(block)
            stop = at
    return start


def missing(path: str | Path, host: str) -> StoreError:
    """The error where this host doesn't have a file that another host has."""
    return _other(path, None, f"a file, as on {host}", "none")


def _differing(path: str | Path, stretch: Stretch, here: bytes, host: str, base: int) -> StoreError:
    pairs = zip(stretch.data, here, strict=False)
    at = next((number for number, (one, other) in enumerate(pairs) if one != other), len(here))
    there, found = (data[at : at + _SHOWN].hex(" ") or "nothing" for data in (stretch.data, here))
    return _other(path, base + stretch.at + at, f"{there}, as on {host}", found)


def _other(path: str | Path, offset: int | None, expected: str, found: str) -> StoreError:
    return StoreError(
        _PROBLEM, path=path, offset=offset, expected=expected, found=found, next_step=_NEXT_STEP
    )
