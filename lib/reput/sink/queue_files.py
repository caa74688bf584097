"""Writing runs of units into consume-queue files."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from reput.format import names
from reput.format.consumequeue import PRE_BLANK, UNIT_LENGTH
from reput.store.filecache import FileCache
from reput.store.ownership import Owner

_MAX_OPEN = 512


class QueueFiles:
    """The consume-queue files under one root; a file is made when its first unit comes.

    Args:
        root: holds or gets ``consumequeue/``.
        file_size: bytes of a queue file, a multiple of 20.
        owner: of new files; None for the process's own.
    """

    def __init__(self, root: Path, file_size: int, owner: Owner | None) -> None:
        self._root = root
        self._file_size = file_size
        self._cache = FileCache(owner, _MAX_OPEN)
        # Putting a path together takes longer than writing a chunk's units.
        self._paths: dict[tuple[str, int, int], Path] = {}

    def __enter__(self) -> QueueFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cache.close()

    def put(self, topic: str, queue_id: int, queue_offset: int, data: memoryview | bytes) -> None:
        """Write consecutive units from ``queue_offset`` on.

        Raises:
            OutputError: no space, no permission.
        """
        data = memoryview(data)
        at, done = queue_offset * UNIT_LENGTH, 0
        while done < len(data):
            start = at - at % self._file_size
            length = min(start + self._file_size - at, len(data) - done)
            path = self._path(topic, queue_id, start)
            self._cache.write(path, data[done : done + length], at - start, self._file_size)
            at, done = at + length, done + length

    def _path(self, topic: str, queue_id: int, start: int) -> Path:
        path = self._paths.get((topic, queue_id, start))
        if path is None:
            path = names.queue_file(self._root, topic, queue_id, start)
            self._paths[topic, queue_id, start] = path
        return path

    def put_pre_blank(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Fill the places before a queue's first unit in its first file (``ConsumeQueue.fillPreBlank``)."""
        units = self._file_size // UNIT_LENGTH
        blanks = queue_offset % units
        if blanks:
            self.put(topic, queue_id, queue_offset - blanks, PRE_BLANK * blanks)

    def flush(self) -> None:
        """Return when everything that was put is on disk."""
        self._cache.flush_all()
