"""The operating system's calls that change or flush files: what :mod:`reput.store.files` stands on.

A test puts another object in the place of :data:`reput.store.files.system`, to fail any call, or to record
them and ask what a power loss would have left.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Where there are many, putting a Path together takes longer than the system's call.
StrPath = str | Path

# linux/fs.h, linux/falloc.h, linux/prctl.h: Python has no names for them.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_SYNC_FILE_RANGE_WRITE = 2
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_PR_SET_PDEATHSIG = 1


class System:
    """The operating system's calls that change or flush files, one method each; they raise OSError."""

    def open(self, path: StrPath, flags: int) -> int:
        """A descriptor of ``path``; it isn't handed on to programs that this process starts."""
        return os.open(path, flags, 0o666)

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write some of ``data`` at ``offset``; returns how many bytes."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Set a file's size; what is new reads as zeros and takes no space."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Reserve the space of a range; elsewhere than on Linux none is reserved."""
        if sys.platform == "linux":
            os.posix_fallocate(fd, offset, length)

    def punch_hole(self, fd: int, offset: int, length: int) -> None:
        """Make a range zero and give its space back."""
        _libc_call("fallocate", fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, *_long(offset, length))

    def start_writeback(self, fd: int, offset: int, length: int) -> None:
        """Begin to write a range to the disk, without waiting."""
        _libc_call("sync_file_range", fd, *_long(offset, length), _SYNC_FILE_RANGE_WRITE)

    def sync(self, fd: int, data_only: bool) -> None:
        """Flush a file; ``data_only`` leaves out what isn't needed to read the bytes back (times, owner)."""
        if sys.platform == "linux" and data_only:
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def store_in_map(self, mapped: NDArray[Any], at: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Write single values of a mapped file."""
        mapped[at] = values

    def sync_map(self, fd: int, mapping: mmap.mmap, offset: int, length: int) -> None:  # noqa: ARG002
        """Flush whole pages of ``fd``, which ``mapping`` maps; ``offset`` is a multiple of the page size."""
        mapping.flush(offset, length)

    def sync_directory(self, path: Path) -> None:
        """Flush the names in a directory."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, fd: int) -> None:
        """Flush all that is dirty on the file system of ``fd``; see :mod:`reput.store.file_system`."""
        _libc_call("syncfs", fd)

    def make_directory(self, path: StrPath) -> None:
        """One new directory."""
        os.mkdir(path)  # noqa: PTH102 - 100,000 of them

    def own(self, path: StrPath, uid: int, gid: int) -> None:
        """Give a file or directory to a user and group; -1 leaves one as it is."""
        os.chown(path, uid, gid)

    def set_mode(self, path: StrPath, mode: int) -> None:
        """Set permission bits."""
        os.chmod(path, mode)  # noqa: PTH101 - the path may be a str

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name; a file of that name is replaced."""
        source.rename(target)

    def exchange(self, left: Path, right: Path) -> None:
        """Let two names change places at once."""
        _libc_call("renameat2", _AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()


def end_with_parent(parent: int) -> None:
    """Have this process be killed when its parent ends; where the system can't do that, nothing is done."""
    with suppress(OSError):
        _libc_call("prctl", *_long(_PR_SET_PDEATHSIG, signal.SIGKILL))
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)


@cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _long(*values: int) -> list[Any]:
    """Offsets as the 64-bit integers that the C functions take."""
    import ctypes

    return [ctypes.c_int64(value) for value in values]


def _libc_call(name: str, *arguments: object) -> None:
    """Call a C function that Python has no name for; ENOSYS where it doesn't exist."""
    import ctypes

    function = getattr(_libc(), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while function(*arguments) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
