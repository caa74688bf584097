"""Flushing a whole file system with one call (syncfs), where thousands of files would be flushed one by one.

syncfs makes bytes, sizes and names durable of everything on a file system that was written before the call.
It keeps the promises of :mod:`reput.store.files` only

* on Linux 5.17 or later: since 5.8 it tells of pages that couldn't be written, since 5.17 also of a journal
  that couldn't be;
* to a descriptor that was opened before the writing began: an error is told once, and a descriptor that is
  opened after somebody else was told doesn't learn of it;
* on a file system of its own that tells its errors by itself (ext4, XFS): not on overlayfs, a network file
  system, or below a directory on which something else is mounted.

It also writes the pages of everybody else on that file system. A broker there would wait for its flushes, so
none may run there, as far as ``/proc`` shows all processes of this machine. Wherever one of this isn't known
for sure, files are flushed one by one.
"""

from __future__ import annotations

import os
import platform
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reput.errors import OutputError, StoreError
from reput.newer_python import Self
from reput.store import files
from reput.store.lock import broker_on, is_broker_running

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from reput.store.ownership import Owner

#: From so many files on one call is faster, on a disk where a flush takes 0.2 ms.
MANY = 500

_KERNEL = (5, 17)
_TRUSTED = frozenset({"ext4", "xfs"})
#: The number of the first process namespace's inode (linux/proc_ns.h): in it all processes can be seen.
_ALL_PROCESSES = 0xEFFFFFFC
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``."""

    device: int  # as in ``st_dev``
    place: str  # where it is mounted
    kind: str  # of file system
    options: tuple[str, ...]  # of the file system


class FileSystem:
    """The file system of a directory, to be opened before the first byte that :meth:`flush` is to flush.

    A context manager that closes the descriptor. ``store`` is one whose broker may run; ``device`` is as in
    ``st_dev``.
    """

    def __init__(self, root: Path, store: Path | None = None) -> None:
        self._root = root
        self._store = store
        with files.reporting("can't open the directory", root):
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.device = os.fstat(self._fd).st_dev

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; it may be closed before."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def why_not(self) -> str | None:
        """Why it mustn't be flushed as a whole now; None if it may."""
        if kernel_version() < _KERNEL:
            return f"Linux {platform.release()} doesn't tell of all errors"
        mounts = mounted()
        if mounts is None:
            return "what is mounted isn't known"
        here = [mount for mount in mounts if mount.device == self.device]
        if not here or any(mount.kind not in _TRUSTED for mount in here):
            return f"no file system of which it is known: {here[0].kind if here else 'none'}"
        inside = os.path.realpath(self._root) + "/"
        for mount in mounts:
            if mount.place.startswith(inside):
                return f"another file system is mounted on {mount.place}"
        if not _sees_all_processes(mounts):
            return "a broker in another container couldn't be seen"
        try:
            if self._store is not None and self._is_here(self._store) and is_broker_running(self._store):
                return "a broker runs on this file system"
        except StoreError:
            return "whether a broker runs isn't known"
        holder = broker_on(self.device)
        return None if holder is None else f"a broker may write here: {holder.what}"

    def flush(self, written: Iterable[Path]) -> list[Path]:
        """Make durable all that was written on this file system before.

        Returns those of the files that aren't on it, and aren't flushed. OutputError where something couldn't
        be written, maybe of another process; see the text of :mod:`reput.store.files`.
        """
        elsewhere = [path for path in written if not self._is_here(path)]
        files.sync_file_system(self._fd)
        return elsewhere

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Do :meth:`flush` beside the block, which writes nothing; at its end what came before is durable."""
        with ThreadPoolExecutor(1, "reput-flush") as pool:
            flushing = pool.submit(files.sync_file_system, self._fd)
            try:
                yield
            finally:
                flushing.exception()
            flushing.result()

    def _is_here(self, path: Path) -> bool:
        try:
            return os.stat(path).st_dev == self.device  # noqa: PTH116 - 100,000 of them
        except OSError:
            return False


def kernel_version() -> tuple[int, ...]:
    """The running kernel's version, (0,) where there is no Linux."""
    found = re.match(r"([0-9]+)\.([0-9]+)", platform.release())
    return (int(found[1]), int(found[2])) if found and platform.system() == "Linux" else (0,)


def mounted() -> list[Mount] | None:
    """What is mounted for this process; None if that isn't known."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    return [_mount(line) for line in lines]


def _mount(line: str) -> Mount:
    # proc(5): id, parent, major:minor, root, place, options, tags ..., "-", kind, source, options
    before, _, behind = line.partition(" - ")
    facts, (kind, _, options) = before.split(), behind.split(" ", 2)
    major, minor = map(int, facts[2].split(":"))
    place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), facts[4])
    return Mount(os.makedev(major, minor), place, kind, tuple(options.split(",")))


def _sees_all_processes(mounts: list[Mount]) -> bool:
    """Whether ``/proc`` shows each process of this machine, whoever's it is."""
    try:
        if Path("/proc/self/ns/pid").stat().st_ino != _ALL_PROCESSES:
            return False
    except OSError:
        return False
    proc = [mount for mount in mounts if mount.kind == "proc" and mount.place == "/proc"]
    return bool(proc) and not any(
        option.startswith("hidepid=") and option not in ("hidepid=0", "hidepid=off")
        for option in proc[-1].options
    )


class FileCache:
    """Open files of fixed size, written at any place in any order, then flushed together.

    At most ``max_open`` descriptors are open; the file that wasn't used for longest is closed for the next. A
    file that was closed unflushed is opened again by :meth:`flush_all`: Linux keeps a write error until
    somebody was told. Not for use by several threads.

    ``whole`` is the file system that the files are on, to be flushed as a whole where they are many; opened
    before anything is written, and closed here.
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

        ``data`` is as for :func:`~reput.store.files.pwrite_all`, and ends within the file, else ValueError.
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
        """Look first, since mostly only this one is missing: ``files.make_dirs`` takes as long again."""
        try:
            files.make_directory(path, self.owner)
        except OSError:
            return files.make_dirs(path, self.owner, flush=False)
        return [path.parent]

    def flush_all(self) -> int:
        """Make everything written since the last flush durable: bytes, new files, new directories.

        Returns how many files were flushed. OutputError comes again at every later use: a second try can't
        make it good.
        """
        if self._failure is not None:
            raise self._failure
        try:
            dirty, directories = self._dirty, list(self._dirty_directories)
            if self._whole is not None and len(dirty) >= MANY and self._whole.why_not() is None:
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
