"""The operating system's calls that change or flush files: what :mod:`reput.store.files` stands on.

A test puts another object in the place of :data:`reput.store.files.system`, to fail any call, or to record
them and ask what a power loss would have left.

Python raises an error with a number, a Python worker of Spark sends its text, Java keeps the text without the
number or says nothing (``File.mkdirs``), and a JVM that doesn't start prints what it likes. All of it comes
down to the system's own numbers here.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import signal
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.errors import OutputError, ReputError
from reput.words import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# How much room there is is asked before anything is written.

_STEP = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, slots=True)
class Room:
    """What an ordinary user can still write to a file system.

    The blocks that a file system keeps for root are not counted, even for root.
    """

    free: int  # bytes
    #: files and directories that can still be made; None where the file system has no such limit
    inodes: int | None


def room(path: Path) -> Room:
    """How much room the file system that holds ``path`` has.

    A path that doesn't exist yet is asked for at its nearest existing parent.
    """
    place = existing_parent(path)
    try:
        figures = os.statvfs(place)
    except OSError as error:
        raise OutputError(
            "can't tell how much space is free", path=place, found=error.strerror or str(error)
        ) from error
    return Room(figures.f_bavail * figures.f_frsize, figures.f_favail if figures.f_files else None)


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user can still write to the file system that holds ``path``."""
    return room(path).free


def check_free(path: Path, needed: int, what: str) -> None:
    """Refuse to begin what doesn't fit; ``path`` needn't exist yet.

    ``what`` needs the space, as the subject of the message, e.g. ``"the rebuilt index"``.
    """
    free = free_bytes(path)
    if free < needed:
        raise OutputError(
            f"no room for {what}",
            path=path,
            expected=f"{human(needed)} free",
            found=f"{human(free)} free",
            next_step=f"Free {human(needed - free)} on the file system that holds {existing_parent(path)}, "
            "then run the same command again.",
        )


def check_can_make(path: Path) -> None:
    """Refuse a directory that can't be made or written to; nothing is."""
    place = existing_parent(path)
    if not may_write(place):
        code = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        raise output_error("can't write there", path, OSError(code, os.strerror(code)))


def may_write(directory: Path) -> bool:
    """Whether this process may make, rename and remove what is in a directory."""
    return os.access(directory, os.W_OK | os.X_OK, effective_ids=True)


def existing_parent(path: Path) -> Path:
    """``path`` itself when it exists, else the nearest of its parents that does."""
    place = Path(os.path.abspath(path))
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place


def human(size: int) -> str:
    """A number of bytes for people: ``"3.8 GiB"``, ``"512 bytes"``."""
    if size < _STEP:
        return f"{size} bytes"
    value, units = size / _STEP, iter(_UNITS)
    unit = next(units)
    while round(value, 1) >= _STEP:  # 1023.97 would print as 1024.0
        value, unit = value / _STEP, next(units)
    return f"{value:.1f} {unit}"


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


_AGAIN = "then run the same command again."
#: Room and inodes below which a file system is the one that ran out.
_NO_BYTES, _NO_INODES = 64 << 10, 8
#: Named by a path, which a text needn't have.
_OF_A_FILE_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
#: What Java, Python and C say besides the system's own words, which are tried first.
_SAID = (
    (errno.EAGAIN, r"can't start new thread|unable to create (?:new )?native thread|pthread_create failed"),
    (
        errno.ENOMEM,
        (
            "OutOfMemoryError|Java heap space|insufficient memory for the Java Runtime|MemoryError"
            "|Could not reserve enough space|failed to map segment from shared object|Unable to allocate"
            "|Failed to reserve memory"
        ),
    ),
)
_STRERROR = (
    errno.ENFILE,  # begins with the words of the next one
    errno.EMFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.ENOMEM,
)
#: A path before Java's ``(No space left on device)``, or behind Python's words.
_JAVA_PATH, _PYTHON_PATH = r"(?:file:)?(/[^\n:]*?) \({}\)", r"{}: '(/[^'\n]*)'"
#: Java's words for what it doesn't tell the cause of.
_MUTE = re.compile(r"(?:Mkdirs failed|Failed|Unable|[Cc]annot|Couldn't)(?: to)? create")


def output_error(problem: str, path: Path, error: OSError, offset: int | None = None) -> OutputError:
    """An OutputError that says what the system said, and what the operator can do about it."""
    return OutputError(
        problem,
        path=path,
        offset=offset,
        found=_name(error.errno, error.strerror or str(error)),
        next_step=advice(error.errno, path),
    )


def unwritten(error: OSError, *places: Path) -> OutputError:
    """What a batch or a task failed with, which wrote to ``places``: for an error that names no path."""
    path = Path(error.filename) if error.filename else short_of(error.errno, places) or places[0]
    return output_error("the output can't be written", path, error)


def shortage(error: BaseException, places: Iterable[Path] = ()) -> ReputError | None:
    """An error in a sentence, if it is one of the system's, or of memory; else None.

    ``places``, where it may have been written to, are asked for where the error names no path.
    """
    if isinstance(error, OSError) and error.errno is not None:
        named = error.filename if isinstance(error.filename, str) else None
        path = Path(os.path.abspath(named)) if named else short_of(error.errno, places)
        return ReputError(
            "the system refused what the command needs",
            path=path,
            found=_name(error.errno, error.strerror or str(error)),
            next_step=advice(error.errno, path),
        )
    if isinstance(error, MemoryError | ImportError | RuntimeError | OSError):
        found = shortage_in(f"{type(error).__name__}: {error}", places)
        cause = error.__cause__ or error.__context__  # who can't load a library may say that it isn't there
        return found or (None if cause is None else shortage(cause, places))
    return None


def shortage_in(text: str, places: Iterable[Path] = ()) -> OutputError | None:
    """What ran out by what another process said of it, in a sentence; None if it says nothing of the kind.

    ``text`` are messages, with stack traces or without.
    """
    places = list(places)
    code, words = _code_in(text)
    if code is None:
        return _tried(places) if _MUTE.search(text) else None
    path = None
    if code in _OF_A_FILE_SYSTEM:
        found = [re.search(form.format(re.escape(words)), text) for form in (_JAVA_PATH, _PYTHON_PATH)]
        path = next((Path(one[1]) for one in found if one is not None), None) or short_of(code, places)
    return OutputError(
        "the system refused what the command needs",
        path=path,
        found=_name(code, os.strerror(code) if words == os.strerror(code) else words),
        next_step=advice(code, path),
    )


def short_of(code: int | None, places: Iterable[Path]) -> Path | None:
    """The place whose file system has run out of what an error is about, else the first; None without any."""
    places = list(places)
    if code == errno.ENOSPC:
        for place in places:
            with suppress(OutputError):
                left = room(place)
                if left.free < _NO_BYTES or (left.inodes is not None and left.inodes < _NO_INODES):
                    return place
    return next(iter(places), None)


def advice(code: int | None, path: Path | None) -> str | None:
    """What the operator can do about an error of the system; None where nothing is known."""
    if code in _OF_A_PROCESS:
        return f"{_OF_A_PROCESS[code]}, {_AGAIN}"
    if code == errno.EXDEV:
        return "The two are on different file systems: put both on one."
    if code == errno.EIO:
        return "The disk failed: see the kernel's log (dmesg), and write to another one."
    if path is None:
        return None
    if code == errno.ELOOP:
        return f"{path} is a link that isn't followed here: move it elsewhere, {_AGAIN}"
    place = existing_parent(path)
    if code == errno.ENOSPC:
        return _make_room(place)
    if code == errno.EDQUOT:
        return f"The user's quota is used up: free space under {place} or raise it, {_AGAIN}"
    if code in (errno.EACCES, errno.EPERM):
        if not os.access(place, os.R_OK):
            return f"{_who(place)}: run as root, or as a user that may read there, {_AGAIN}"
        return f"{_who(place)}: run as a user that may write there, or change owner or mode, {_AGAIN}"
    if code == errno.EROFS:
        return f"{place} is mounted read-only: mount it for writing, {_AGAIN}"
    return None


_OF_A_PROCESS = {
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f), or use a file system that takes such files",
    errno.EMFILE: "Raise the limit on open files (ulimit -n)",
    errno.ENFILE: "Raise the system's limit on open files (sysctl fs.file-max)",
    errno.ENOMEM: (
        "Give it more memory: free some, raise the container's limit, or that on address space "
        "(ulimit -v, spark.executor.pyspark.memory)"
    ),
    errno.EAGAIN: "Raise the limit on threads (ulimit -u, the container's pids), or free memory",
}


def _make_room(place: Path) -> str | None:
    try:
        left = room(place)
    except OutputError:
        return None
    if left.inodes is None:
        return f"Free space on the file system that holds {place} ({human(left.free)} left), {_AGAIN}"
    both = f"({human(left.free)} and {counted(left.inodes, 'inode')} left)"
    if left.inodes < _NO_INODES and left.free >= _NO_BYTES:
        return f"Free inodes on the file system that holds {place} {both} by removing files, {_AGAIN}"
    return f"Free space on the file system that holds {place} {both}, {_AGAIN}"


def _name(code: int | None, words: str) -> str:
    return f"{words} ({errno.errorcode.get(code or 0, 'no errno')})"


def _code_in(text: str) -> tuple[int | None, str]:
    """The system's number for what a text tells, and the words that tell it."""
    for code in _STRERROR:
        words = os.strerror(code)
        if words in text:
            return code, words
    for code, pattern in _SAID:
        found = re.search(pattern, text)
        if found is not None:
            return code, found[0]
    return None, ""


def _tried(places: Iterable[Path]) -> OutputError | None:
    """Why nothing can be written to one of the places, by trying; None if all take a file and a directory."""
    for place in places:
        probe = existing_parent(place) / f".reput-{os.getpid()}-probe"
        try:
            probe.mkdir()
            try:
                (probe / "file").write_bytes(bytes(1 << 12))
            finally:
                (probe / "file").unlink(missing_ok=True)
                probe.rmdir()
        except FileExistsError:
            continue
        except OSError as error:
            return output_error("can't be written to", place, error)
    return None


def _who(place: Path) -> str:
    me = f"This process is user {_user(os.geteuid())}"
    try:
        found = place.stat()
    except OSError:
        return me
    return f"{me}, {place} belongs to {_user(found.st_uid)} and has mode {stat.S_IMODE(found.st_mode):04o}"


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
