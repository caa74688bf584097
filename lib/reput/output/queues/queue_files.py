"""Writing a queue's bytes into its files."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from reput.format import names
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH
from reput.store.file_system import FileSystem
from reput.store.filecache import FileCache
from reput.store.listing import names_in
from reput.store.ownership import Owner

#: By default a process may have 1024 open.
MAX_OPEN = 512


def series(directory: Path) -> list[tuple[int, Path]]:
    """A queue's files, each with the byte offset at which it begins, in order; none without a directory."""
    found = ((names.parse_offset_name(name), directory / name) for name in names_in(directory))
    return [(base, path) for base, path in found if base is not None]


class SeriesFiles:
    """Files of one size that follow one another, in a directory for each queue.

    A file is created when its first byte is written.

    Args:
        root: directory of the queues' directories.
        file_size: bytes of a file.
        owner: of new files; None for the process's own.
        directory: of a queue below the root: a function of :mod:`reput.format.names`.
        max_open: limit of open descriptors.
        whole: see :class:`~reput.store.filecache.FileCache`.
    """

    def __init__(
        self,
        root: Path,
        file_size: int,
        owner: Owner | None,
        directory: Callable[[Path, str, int], Path] = names.queue_directory,
        *,
        max_open: int = MAX_OPEN,
        whole: FileSystem | None = None,
    ) -> None:
        self._root = root
        self._file_size = file_size
        self._directory = directory
        self._cache = FileCache(owner, max_open, whole)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cache.close()

    def put_bytes(self, topic: str, queue_id: int, at: int, data: memoryview | bytes) -> None:
        """Write from a byte offset of the series on."""
        data = memoryview(data)
        done = 0
        while done < len(data):
            start = at - at % self._file_size
            length = min(start + self._file_size - at, len(data) - done)
            path = _path(self._directory, self._root, topic, queue_id, start)
            self._cache.write(path, data[done : done + length], at - start, self._file_size)
            at, done = at + length, done + length

    def flush(self) -> None:
        """Return when everything that was put is on disk."""
        self._cache.flush_all()

    def __enter__(self) -> SeriesFiles:
        return self


@lru_cache(maxsize=1 << 17)
def _path(
    directory: Callable[[Path, str, int], Path], root: Path, topic: str, queue_id: int, start: int
) -> Path:
    """Putting it together takes longer than writing a chunk's units; a tail's next batch needs it again."""
    return directory(root, topic, queue_id) / names.offset_name(start)


class QueueFiles(SeriesFiles):
    """The consume queue files under one root; ``file_size`` is a multiple of 20."""

    def __enter__(self) -> QueueFiles:
        return self

    def put(self, topic: str, queue_id: int, queue_offset: int, data: memoryview | bytes) -> None:
        """Write consecutive units from ``queue_offset`` on."""
        self.put_bytes(topic, queue_id, queue_offset * UNIT_LENGTH, data)

    def put_pre_blank(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Fill the places before a queue's first unit in its first file (``ConsumeQueue.fillPreBlank``)."""
        units = self._file_size // UNIT_LENGTH
        blanks = queue_offset % units
        if blanks:
            self.put(topic, queue_id, queue_offset - blanks, PRE_BLANK * blanks)
