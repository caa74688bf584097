"""The one layer through which every output byte goes: create, write, flush, rename, remove.

Callers keep to the functions here, and these reach the operating system through :data:`system` alone.

What is durable when:

* bytes and a file's size: after :func:`fsync_file`;
* a new, renamed or removed name: after :func:`fsync_dir` of its directory. :func:`make_dirs`, :func:`rename`,
  :func:`exchange`, :func:`write_atomically` and :func:`remove_tree` do that themselves, :func:`create_file`
  doesn't, since many files share a directory;
* all of a file system's: after :func:`sync_file_system`, where :mod:`reput.store.file_system` allows it.

A flush that failed can't be tried again: Linux takes the pages for clean once it has told of the error. The
run has to end, and the next one writes the same bytes anew.

Every failure is an :class:`~reput.errors.OutputError`.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reput.errors import OutputError
from reput.remote.client import check_here
from reput.store.reading import check_file
from reput.store.system import StrPath, System, advice, human, may_write, output_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from reput.store.ownership import Owner

#: Told by a file system that doesn't know a request, not by one that failed at it.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_ZEROS = 1 << 20

_T = TypeVar("_T")

#: What all functions of this module use; replaced only by tests.
system = System()


def create_file(path: Path, size: int | None, owner: Owner | None = None) -> int:
    """Open a file for reading and writing, a new one where there is none; the caller closes the descriptor.

    A new file is sparse: it has its size and takes no space. An empty one counts as new: a crash between
    creating and sizing leaves it, and another task may be between the two. ``size`` None takes a file as it
    is, and empty when new; one of another size is an error.

    The directory exists. The new name is durable after ``fsync_dir(path.parent)``.
    """
    return open_sized(path, size, owner)[0]


def open_sized(path: Path, size: int | None, owner: Owner | None) -> tuple[int, bool]:
    """As :func:`create_file`; also tells whether the file is new, so that its directory has to be flushed."""
    with reporting("can't open the file for writing", path):
        return open_or_create(path, size, owner)


def open_or_create(path: StrPath, size: int | None, owner: Owner | None) -> tuple[int, bool]:
    """:func:`open_sized` with the system's errors: that a directory is missing may be no failure yet.

    A file of another size in the way is an OutputError all the same.
    """
    try:
        fd, created = system.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), True
    except FileExistsError:
        if not os.path.islink(path):  # noqa: PTH114 - for each file; O_NOFOLLOW refuses a link
            check_file(path)
        fd, created = system.open(path, os.O_RDWR | os.O_NOFOLLOW), False
    try:
        found = None if created else os.fstat(fd)
        if found is None or (size and not found.st_size and stat.S_ISREG(found.st_mode)):
            created = True
            if size:
                system.truncate(fd, size)
            _give(path, owner, directory=False)
        elif size is not None and found.st_size != size:
            raise OutputError(
                "a file of another size is in the way",
                path=path,
                expected=f"{size} bytes",
                found=f"{found.st_size} bytes",
                next_step="Give the broker.conf that it was written with, or take an empty directory.",
            )
    except BaseException:
        system.close(fd)
        raise
    return fd, created


def pwrite_all(fd: int, data: Buffer, offset: int) -> None:
    """Write all of ``data`` at byte ``offset``, however many calls it takes.

    ``data`` is contiguous; a numpy array of another type than uint8 is to be viewed as uint8 before. An error
    has the offset of the first byte that wasn't written.
    """
    view = memoryview(data)
    if not view.nbytes:
        return
    view = view.cast("B")
    done = 0
    try:
        while done < len(view):
            count = system.pwrite(fd, view[done:], offset + done)
            if count <= 0:
                raise OSError(errno.EIO, "a write that wrote nothing")
            done += count
    except OSError as error:
        raise output_error(f"can't write {len(view)} bytes", path_of(fd), error, offset + done) from error


def pread_all(fd: int, length: int, offset: int, problem: str) -> bytes:
    """Read ``length`` bytes of a file that were written; ``problem`` is what is wrong where it has fewer."""
    data = os.pread(fd, length, offset)
    if len(data) < length:
        raise OutputError(
            problem,
            path=path_of(fd),
            offset=offset,
            expected=f"{length} bytes",
            found=f"{len(data)} bytes",
            next_step="Put the file back, or remove the output and run again",
        )
    return data


def zero(fd: int, offset: int, length: int) -> None:
    """Make a range read as zeros; its space is given back where the file system can do that."""
    if length <= 0:
        return
    try:
        system.punch_hole(fd, offset, length)
        return
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise output_error(f"can't clear {length} bytes", path_of(fd), error, offset) from error
    zeros = bytes(min(length, _ZEROS))
    for start in range(0, length, _ZEROS):
        pwrite_all(fd, memoryview(zeros)[: length - start], offset + start)


def fallocate(fd: int, offset: int, length: int) -> None:
    """Reserve the space of a range, so that writing to it through a map can't meet a full disk (a SIGBUS)."""
    with reporting(f"can't reserve {human(length)}", fd, offset):
        system.allocate(fd, offset, length)


def map_for_writing(fd: int, length: int, *, reserve: int | None = None) -> mmap.mmap:
    """Map the first ``length`` bytes of a file for reading and writing, their space reserved.

    With ``reserve``, only so many bytes of space; nothing may be written through the map behind them.
    """
    fallocate(fd, 0, length if reserve is None else reserve)
    with reporting(f"can't map {human(length)}", fd):
        return mmap.mmap(fd, length)


def store_in_map(mapped: NDArray[Any], at: NDArray[np.intp], values: NDArray[Any]) -> None:
    """Write single values of a mapped file, ``mapped[at] = values``. A reader sees each one old or new.

    The map is for writing, over reserved space. Indices that repeat have the same value; ``values`` are of
    ``mapped``'s type.
    """
    system.store_in_map(mapped, at, values)


def flush_map(fd: int, mapping: mmap.mmap, offset: int, length: int) -> None:
    """Flush a range of a mapped file, widened to whole pages, however it was written; the size, too."""
    if length <= 0:
        return
    start = offset - offset % mmap.PAGESIZE
    with reporting(f"can't flush {length} bytes", fd, offset):
        system.sync_map(fd, mapping, start, offset + length - start)


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Have the disk begin with a range that is flushed later; a hint, never an error, and nothing durable."""
    with suppress(OSError):
        system.start_writeback(fd, offset, length)


def fsync_file(fd: int, *, data_only: bool = False) -> None:
    """Make a file's bytes and size durable; ``data_only`` (fdatasync) leaves out its times and owner.

    After an error what was written since the last flush may be lost; see the module's text.
    """
    with reporting("can't flush the file", fd):
        system.sync(fd, data_only)


def fsync_path(path: Path) -> None:
    """:func:`fsync_file` of a file that a library has written and closed."""
    with reporting("can't open the file to flush it", path):
        fd = os.open(path, os.O_RDONLY)
    try:
        fsync_file(fd)
    finally:
        os.close(fd)


def fsync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    with reporting("can't flush the directory", path):
        system.sync_directory(path)


def fsync_dirs(root: Path) -> None:
    """Make every name under ``root`` durable: after a process died between creating files and flushing."""
    with reporting("can't read the directory", root):
        tree = [Path(place) for place, _, _ in os.walk(root, onerror=_raise)]
    in_threads(fsync_dir, tree, 16)


def sync_file_system(fd: int) -> None:
    """Make everything durable that was written on a file system since ``fd`` was opened.

    It fails for whoever's bytes couldn't be written; see :mod:`reput.store.file_system`.
    """
    with reporting("can't flush the file system", fd):
        system.sync_file_system(fd)


def make_directory(path: StrPath, owner: Owner | None) -> None:
    """Make one directory; its name is durable after ``fsync_dir(path.parent)``.

    Errors are the system's own: it is there, or the one above it isn't.
    """
    system.make_directory(path)
    _give(path, owner, directory=True)


def make_dirs(path: Path, owner: Owner | None = None, *, flush: bool = True) -> list[Path]:
    """Make a directory and the missing ones above it; returns those that got a new name.

    They may exist, or be made by another process meanwhile; those that were there keep their owner. ``flush``
    False leaves the flushing of the returned directories to the caller.
    """
    with reporting("can't make the directory", path):
        missing = []
        place = path
        while not place.is_dir():
            missing.append(place)
            place = place.parent
        for directory in reversed(missing):
            try:
                make_directory(directory, owner)
            except FileExistsError:
                if not directory.is_dir():
                    raise
                _give(directory, owner, directory=True)
    changed = [directory.parent for directory in reversed(missing)]
    if flush:
        for directory in changed:
            fsync_dir(directory)
    return changed


def rename(source: Path, target: Path) -> None:
    """Rename, durably; a file of the target's name is replaced.

    After an error nothing was renamed, or it was and isn't durable yet.
    """
    try:
        system.rename(source, target)
    except OSError as error:
        raise _unmoved(f"can't rename to {target}", error, source, target) from error
    _flush_parents(target, source)


def exchange(left: Path, right: Path) -> None:
    """Let two existing names change places at once, durably.

    Raises OSError with errno ENOTSUP when this system or file system can't: rename one by one instead.
    """
    try:
        system.exchange(left, right)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise OSError(errno.ENOTSUP, "names can't be exchanged here", str(left)) from error
        raise _unmoved(f"can't exchange it with {right}", error, left, right) from error
    _flush_parents(left, right)


def _unmoved(problem: str, error: OSError, path: Path, other: Path) -> OutputError:
    """The error of a rename; one without the right names the directory that is closed, mostly one above."""
    told = output_error(problem, path, error)
    if error.errno == errno.EACCES:
        changed = (path.parent, other.parent, path, other)
        closed = (one for one in changed if one.is_dir() and not may_write(one))
        told.next_step = advice(error.errno, next(closed, path))
    return told


def new_file(path: Path, root: Path | None, *, force: bool | None = None) -> Path:
    """The absolute path of a file that a command is to make, outside of the store ``root``, links followed.

    Unless ``force``, no file may be there; None for a command that has no such option.
    """
    check_here(path)
    path = Path(os.path.abspath(path))
    if root is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise OutputError("nothing is written into a store", path=path, next_step="Name a file elsewhere")
    is_other = os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 - no error of a closed directory
    if is_other or (os.path.lexists(path) and not force):
        step = "Name a new one" if force is None or is_other else "Name a new one, or add --force"
        what = "something else than a file" if is_other else "the file"
        raise OutputError(f"{what} is there already", path=path, next_step=step)
    path = Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114
    if not os.path.isdir(path.parent):  # noqa: PTH112
        raise OutputError(
            "the directory isn't there", path=path.parent, next_step="Make it, or name another file"
        )
    return path


def write_atomically(path: Path, data: Buffer, owner: Owner | None = None) -> None:
    """Replace a whole file: after a crash it holds either what it held before or ``data``.

    The temporary file is ``.NAME.tmp`` beside it, so no directory whose file names a broker reads as numbers
    (commitlog, a consume queue, index) may be given. After an error the file is as it was before.
    """
    Replacement(path, data, owner).flushed().put_in_place()


class Replacement:
    """:func:`write_atomically` step by step, so that what must come first can be flushed beside it.

    Every method may raise OutputError; the file is then as it was before.
    """

    def __init__(self, path: Path, data: Buffer, owner: Owner | None = None) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        remove_tree(self._temporary)
        self._fd = create_file(self._temporary, None, owner)
        try:
            pwrite_all(self._fd, data, 0)
        except OutputError:
            self.give_up()
            raise
        except BaseException:
            self._close()
            raise

    def flushed(self) -> Replacement:
        """Make its bytes durable, once, under their temporary name."""
        try:
            fsync_file(self._fd)
        except OutputError:
            self.give_up()
            raise
        finally:
            self._close()
        return self

    def put_in_place(self) -> None:
        """Rename it, durably."""
        try:
            rename(self._temporary, self._path)
        except OutputError:
            self.give_up()
            raise

    def put_in_place_beside(self) -> Future[None]:
        """Rename it; that is durable when the result is there."""
        with reporting("can't rename the file", self._temporary):
            system.rename(self._temporary, self._path)
        return flush_beside(partial(fsync_dir, self._path.parent))

    def give_up(self) -> None:
        """Remove it."""
        self._close()
        with suppress(OutputError):
            remove_tree(self._temporary)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            system.close(fd)


def remove_tree(path: Path) -> None:
    """Remove a file, a symbolic link (not what it leads to) or a whole directory, durably; or nothing."""
    if not os.path.lexists(path):
        return
    with reporting("can't remove it", path):
        if path.is_dir() and not path.is_symlink():
            for place, directories, plain in os.walk(path, topdown=False, onerror=_raise):
                for name in plain:
                    system.unlink(Path(place, name))
                for name in directories:
                    inner = Path(place, name)
                    if inner.is_symlink():
                        system.unlink(inner)
                    else:
                        system.remove_directory(inner)
            system.remove_directory(path)
        else:
            system.unlink(path)
    fsync_dir(path.parent)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove those of the files that are there; on return that is durable."""
    directories: dict[Path, None] = {}
    for path in paths:
        with reporting("can't remove it", path), suppress(FileNotFoundError):
            system.unlink(path)
            directories[path.parent] = None
    in_threads(fsync_dir, list(directories), 16)


def give_tree(root: Path, owner: Owner) -> None:
    """Give a directory and all that is in it to an owner."""
    with reporting("can't change owner or mode", root):
        for place, _, found in os.walk(root, onerror=_raise):
            _give(Path(place), owner, directory=True)
            for name in found:
                _give(Path(place, name), owner, directory=False)


def in_threads(work: Callable[[_T], object], items: Sequence[_T], threads: int) -> None:
    """Do ``work`` for every item, some at a time, all before this returns; the first error is raised."""
    if len(items) < 2 or threads < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        for _ in pool.map(work, items):
            pass


_flushers: tuple[int, ThreadPoolExecutor] | None = None


def flush_together(flush: Callable[[_T], object], items: Sequence[_T]) -> None:
    """Flush every item, up to 16 at a time, all before this returns; the first error is raised.

    The threads stay: to start and end them took six times as long as the flushes of a tail's small batch.
    ``flush`` calls nothing that calls this.
    """
    if len(items) < 2:
        for item in items:
            flush(item)
        return
    done: list[Future[object]] = []
    try:
        for item in items:
            done.append(flush_beside(partial(flush, item)))
    finally:
        wait(done)  # whatever happens: the caller closes what they flush
    for one in done:
        one.result()


def flush_beside(flush: Callable[[], _T]) -> Future[_T]:
    """Begin a flush, in a thread; the caller waits for its result."""
    global _flushers
    known = _flushers
    if known is None or known[0] != os.getpid():  # a forked process has none of the threads
        known = _flushers = os.getpid(), ThreadPoolExecutor(16, "reput-flush")
    return known[1].submit(flush)


@contextmanager
def reporting(problem: str, where: StrPath | int, offset: int | None = None) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError.

    ``problem`` is what couldn't be done, e.g. ``"can't flush the file"``; ``where`` a path, or a descriptor
    of it.
    """
    try:
        yield
    except OSError as error:
        path = path_of(where) if isinstance(where, int) else Path(where)
        raise output_error(problem, path, error, offset) from error


def path_of(fd: int) -> Path:
    """The path of an open file, for messages."""
    try:
        return Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:
        return Path(f"file descriptor {fd}")


def _give(path: StrPath, owner: Owner | None, *, directory: bool) -> None:
    """Set owner and mode where they differ."""
    if owner is None:
        return
    mode = owner.dir_mode if directory else owner.file_mode
    found = os.stat(path)  # noqa: PTH116 - may be a str
    uid = -1 if owner.uid is None or owner.uid == found.st_uid else owner.uid
    gid = -1 if owner.gid is None or owner.gid == found.st_gid else owner.gid
    if (uid, gid) != (-1, -1):
        system.own(path, uid, gid)
        found = os.stat(path)  # noqa: PTH116 - giving a file away may clear bits of its mode
    if mode is not None and stat.S_IMODE(found.st_mode) != mode:
        system.set_mode(path, mode)


def _flush_parents(*paths: Path) -> None:
    for parent in dict.fromkeys(path.parent for path in paths):
        fsync_dir(parent)


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def opened(path: Path, size: int, owner: Owner | None) -> Iterator[int]:
    """A descriptor of the file ``path`` of ``size`` bytes; file and directories are made if missing."""
    make_dirs(path.parent, owner)
    fd = create_file(path, size, owner)
    try:
        yield fd
    finally:
        os.close(fd)
