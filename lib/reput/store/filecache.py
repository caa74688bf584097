"""Writing to more files than a process may have open."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import OutputError
from reput.store import file_system, files
from reput.store.file_system import FileSystem

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from reput.store.ownership import Owner


class FileCache:
    """Open files of fixed size, written at any place in any order, then flushed together.

    At most ``max_open`` descriptors are open; the file that wasn't used for longest is closed for the next. A
    file that was closed unflushed is opened again by :meth:`flush_all`: Linux keeps a write error until
    somebody was told. Not for use by several threads.

    Args:
        whole: the file system that the files are on, to be flushed as a whole where they are many; opened
            before anything is written, and closed here.

    Attributes:
        owner: for new files and directories.
        max_open: bound of open descriptors.
    """

    def __init__(
        self, owner: Owner | None = None, max_open: int = 256, whole: FileSystem | None = None
    ) -> None:
        self.owner = owner
        self.max_open = max(1, max_open)
        self._whole = whole
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._dirty: dict[Path, bool] = {}  # True: the file is new, so more than its bytes is to be flushed
        self._dirty_directories: dict[Path, None] = {}
        self._failure: OutputError | None = None

    def write(self, path: Path, data: Buffer, offset: int, size: int) -> None:
        """Write into the file ``path`` of ``size`` bytes, which is created, with its directories, if missing.

        Args:
            path: the file.
            data: see :func:`~reput.store.files.pwrite_all`.
            offset: byte offset; ``data`` ends within the file.
            size: bytes that the file has.

        Raises:
            OutputError: see :func:`~reput.store.files.create_file` and :func:`~reput.store.files.pwrite_all`.
            ValueError: the data would make the file longer.
        """
        length = memoryview(data).nbytes
        if offset < 0 or offset + length > size:
            raise ValueError(f"{length} bytes at {offset} don't fit in {path} of {size} bytes")
        fd = self.descriptor(path, size)
        files.pwrite_all(fd, data, offset)

    def descriptor(self, path: Path, size: int) -> int:
        """A descriptor for writing to ``path``, which counts as written to; good until the next call."""
        if self._failure is not None:
            raise self._failure
        fd = self._open.get(path)
        if fd is None:
            # Room first: when opening fails, no descriptor is left over.
            while len(self._open) >= self.max_open:
                files.system.close(self._open.popitem(last=False)[1])
            fd = self._open[path] = self._open_file(path, size)
        else:
            self._open.move_to_end(path)
        self._dirty.setdefault(path, False)
        return fd

    def _open_file(self, path: Path, size: int) -> int:
        with files.reporting("can't open the file for writing", path):
            try:
                fd, created = files.open_or_create(path, size, self.owner)
            except FileNotFoundError:
                fd, created = None, False
        if fd is None:
            for directory in self._make_directory(path.parent):
                self._dirty_directories[directory] = None
            fd, created = files.open_sized(path, size, self.owner)
        if created:
            self._dirty[path] = True
            self._dirty_directories[path.parent] = None
        return fd

    def _make_directory(self, path: Path) -> list[Path]:
        """As ``files.make_dirs``. Mostly only this one is missing, and to look first takes as long again."""
        try:
            files.make_directory(path, self.owner)
        except OSError:
            return files.make_dirs(path, self.owner, flush=False)
        return [path.parent]

    def flush_all(self) -> int:
        """Make everything written since the last flush durable: bytes, new files, new directories.

        Returns:
            How many files were flushed.

        Raises:
            OutputError: and again at every later use: a second try can't make it good.
        """
        if self._failure is not None:
            raise self._failure
        try:
            dirty, directories = self._dirty, list(self._dirty_directories)
            if self._whole is not None and len(dirty) >= file_system.MANY and self._whole.why_not() is None:
                dirty = {path: dirty[path] for path in self._whole.flush(dirty)}
                directories = directories if dirty else []
            files.flush_together(self._flush_file, list(dirty.items()))
            files.flush_together(files.fsync_dir, directories)
        except OutputError as error:
            self._failure = error
            raise
        count = len(self._dirty)
        self._dirty.clear()
        self._dirty_directories.clear()
        return count

    def _flush_file(self, item: tuple[Path, bool]) -> None:
        path, new = item
        fd = self._open.get(path)
        if fd is not None:
            files.fsync_file(fd, data_only=not new)
            return
        with files.reporting("can't open the file to flush it", path):
            fd = files.system.open(path, os.O_RDWR)
        try:
            files.fsync_file(fd, data_only=not new)
        finally:
            files.system.close(fd)

    def close(self) -> None:
        """Close the descriptors; nothing is flushed."""
        if self._whole is not None:
            self._whole.close()
        while self._open:
            files.system.close(self._open.popitem()[1])

    def __enter__(self) -> FileCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
