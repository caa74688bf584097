"""The files of one queue, which have one size and follow one another: listed, and read at any place.

Nothing is mapped, for a broker may cut a file meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reput.format import names
from reput.format.names import Queue
from reput.newer_python import Self
from reput.remote.store import may_lack
from reput.store.listing import entries_in, names_seen
from reput.store.reading import looked_at, open_file, what_is
from reput.verify.report import QUEUE, Difference

_MOST_OPEN = 256


def place_in(directory: Path, file_size: int, at: int) -> tuple[Path, int]:
    """The file of a queue that has its byte ``at``, and the byte offset there."""
    return directory / names.offset_name(at - at % file_size), at % file_size


def files_of(root: Path, topic: str, queue_id: int) -> set[int]:
    """The first bytes of a plain queue's files, by their names."""
    found = map(names.parse_offset_name, names_seen(names.queue_directory(root, topic, queue_id)))
    return {base for base in found if base is not None}


@dataclass(slots=True)
class SeriesListed:
    """The files of one size that follow one another in a directory."""

    #: (byte offset of its first byte, file), in order: those that have places
    files: list[tuple[int, Path]] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)  # what is wrong with the others, and with these
    fitting: int = 0  # files of the right length


def series_files(
    directory: Path, queue: Queue, file_size: int, unit_length: int | None = None
) -> SeriesListed:
    """List the files of a queue."""
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


class SeriesReader:
    """Keeps files of a store's queues open. A context manager.

    Attributes:
        opened: how many files were opened.
    """

    def __init__(
        self, root: Path, file_size: int, directory: Callable[[Path, str, int], Path], most_open: int
    ) -> None:
        self._root = root
        self._file_size = file_size
        self._directory = directory
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
        return f"{self._directory(self._root, topic, queue_id)}/{names.offset_name(base)}"

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
