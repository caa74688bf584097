"""Ranges of equally long pieces of files: how they are gathered into partitions, and read."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reput.errors import SettingsError, StoreError
from reput.store.reading import extents, reading

# With the option ``readReport`` the planner and every task leave a JSON file in that directory;
# :func:`total` adds them up. An attempt of a task that is made again counts again, for it has read again.

_SUFFIX = ".read.json"


@dataclass(slots=True)
class ReadStatistics:
    """Counts of one planner or task."""

    tasks: int = 0  # 1 for a task, 0 for the planner
    files: int = 0  # files opened
    read: int = 0  # bytes whose records, units or entries were taken apart
    #: bytes that were gone over by headers alone: to find where a part begins, or the log's end
    passed: int = 0
    copied: int = 0  # bytes of texts, hosts, properties and bodies that were copied out of the log
    rows: int = 0  # rows handed to Spark


@contextmanager
def reported(directory: Path | None, *, tasks: int) -> Iterator[ReadStatistics]:
    """Counts for the block to keep, written down when it ends, however it ends.

    Args:
        directory: where to; made when missing. None: nowhere.
        tasks: 1 for a task, 0 for the planner.

    Raises:
        SettingsError: they can't be written.
    """
    reads = ReadStatistics(tasks)
    try:
        yield reads
    finally:
        if directory is not None:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                path = directory / f"{uuid.uuid4().hex}{_SUFFIX}"
                path.write_text(json.dumps(asdict(reads)), encoding="utf-8")
            except OSError as error:
                raise SettingsError(
                    "readReport can't be written",
                    path=directory,
                    expected="a directory that planner and tasks can write to",
                    found=error.strerror or str(error),
                ) from error


def total(directory: str | Path) -> ReadStatistics:
    """The counts of all planners and tasks that reported into a directory so far."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in Path(directory).glob(f"*{_SUFFIX}")]
    return ReadStatistics(
        **{one.name: sum(counts[one.name] for counts in found) for one in fields(ReadStatistics)}
    )


#: Pieces in one batch of rows.
BATCH = 1 << 16
#: What opening a file is worth, in bytes: a partition shall not have thousands of them.
_FILE = 64 << 10


class Sized(Protocol):
    """Something that goes into a partition."""

    @property
    def path(self) -> str:
        """The file."""

    @property
    def span(self) -> tuple[int, int]:
        """Its bytes in the file, half open."""

    @property
    def weight(self) -> int:
        """Bytes to be read."""


_S = TypeVar("_S", bound=Sized)


def gathered(pieces: Iterable[_S], part_bytes: int) -> Iterator[list[_S]]:
    """Pieces one after another in lists of about ``part_bytes`` bytes; each counts for 64 KiB at least."""
    found: list[_S] = []
    weight = 0
    for piece in pieces:
        more = max(piece.weight, _FILE)
        if found and weight + more > part_bytes:
            yield found
            found, weight = [], 0
        found.append(piece)
        weight += more
    if found:
        yield found


@contextmanager
def opened(path: str | Path, what: str, reads: ReadStatistics) -> Iterator[int]:
    """A file's descriptor, for reading.

    Args:
        what: what is read, for the error.
    """
    with reading(path, what) as descriptor:
        reads.files += 1
        yield descriptor


def check_whole(what: str, path: str | Path, length: int, expected: int) -> None:
    """Raise StoreError where a file hasn't the bytes that a broker gives it: rows would be missing."""
    if length != expected:
        raise StoreError(
            f"the {what} file has another length than it should",
            path=path,
            expected=f"{expected} bytes",
            found=f"{length} bytes",
            next_step="`reput check` says what else is wrong, and what mends it; badStores=skip reads other "
            "stores without this one",
        )


def stretches(
    descriptor: int, kind: np.dtype[np.void], first: int, last: int, start: int, reads: ReadStatistics
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """The elements [first, last) of a file that begin with ``start`` bytes of something else, in batches.

    Elements in holes of the file, which are zeros, are left out. Yields the ordinal of a batch's first
    element and the elements, kind[up to BATCH].
    """
    size = kind.itemsize
    done = first
    for begin, end in extents(descriptor, start + first * size, start + last * size):
        at = max(done, (begin - start) // size)
        stop = min(last, -(-(end - start) // size))
        while at < stop:
            count = min(BATCH, stop - at)
            data = os.pread(descriptor, count * size, start + at * size)
            reads.read += len(data)
            if len(data) < size:
                return  # shorter than it was
            yield at, np.frombuffer(data, kind, len(data) // size)
            at += count
        done = max(done, stop)
