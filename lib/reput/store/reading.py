"""Reading a file of a store: what of it was written, and why it can't be read.

A segment is made whole, and most file systems keep no zeros of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from reput.errors import SegmentGoneError, StoreError
from reput.format import names
from reput.remote.client import check_here
from reput.remote.store import have
from reput.store.listing import names_seen

#: What ``strerror`` says of these, which differ in what a broker makes of them.
FIFO, DEVICE, SOCKET, LINK = "a FIFO", "a device", "a socket", "a link that leads nowhere"
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: FIFO,
    stat.S_IFSOCK: SOCKET,
    stat.S_IFCHR: DEVICE,
    stat.S_IFBLK: DEVICE,
    stat.S_IFLNK: LINK,
}


def unreadable(what: str, path: str | PathLike[str], error: OSError) -> StoreError:
    """The error for it: SegmentGoneError where the file isn't there any more.

    ``path`` is the file called ``what``, or the directory of several: the error's own file is named where it
    knows one.
    """
    gone = isinstance(error, FileNotFoundError)
    return (SegmentGoneError if gone else StoreError)(
        f"{what} can't be read",
        path=error.filename or path,
        found=error.strerror or str(error),
        next_step="A running broker deletes what has expired: ask the same again"
        if gone
        else step_to_read(error),
    )


def step_to_read(error: OSError | ValueError) -> str:
    """What to do about what is there and can't be read."""
    if isinstance(error, PermissionError):
        return "Run the same command as root, or as the user that the broker runs as"
    if isinstance(error, OSError) and error.strerror in (FIFO, DEVICE, SOCKET):
        return "Move it elsewhere, and bring what was in its place back from a copy"
    return "Check the file and its permissions, then run the same command again"


def stat_of(what: str, path: str | PathLike[str]) -> os.stat_result:
    """What the system knows of a file; an error calls the file ``what``."""
    try:
        return os.stat(path)  # noqa: PTH116 - a text or a path
    except OSError as error:
        raise unreadable(what, path, error) from error


def check_file(path: str | PathLike[str]) -> None:
    """See that something is a regular file before it is opened: a FIFO would wait, a device may act on it.

    An OSError's ``strerror`` names what else it is.
    """
    mode = os.stat(path).st_mode  # noqa: PTH116 - of each file that is opened
    if not stat.S_ISREG(mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, what_is(mode), os.fspath(path))


def open_file(path: str | PathLike[str], flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file; ``flags`` are those of :func:`os.open`."""
    check_file(path)
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def what_is(mode: int) -> str:
    """What something that is no regular file is, in a word."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def looked_at(entry: os.DirEntry[str]) -> os.stat_result | None:
    """What an entry of a directory leads to, or the link itself where it leads nowhere.

    None if it is gone; an OSError where it can't be looked at.
    """
    try:
        return entry.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def read_file(path: str | PathLike[str]) -> bytes:
    """All bytes of a regular file."""
    with open(open_file(path), "rb", buffering=0) as file:
        return file.read()


@contextmanager
def reading(path: str | PathLike[str], what: str | None = None, *, by_ranges: bool = False) -> Iterator[int]:
    """The descriptor of a regular file, to read from.

    An error calls the file ``what``; None leaves the system's error as it is. ``by_ranges``: the block reads
    by :func:`pread` alone; else all of a file elsewhere is had here first.
    """
    if not by_ranges:
        have(path)
    try:
        descriptor = open_file(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        if what is None:
            raise
        raise unreadable(what, path, error) from error


def pread(path: str | PathLike[str], descriptor: int, length: int, at: int) -> bytes:
    """As :func:`os.pread`, of a file that may have been left out where its store was copied."""
    have(path, at, at + length)
    return os.pread(descriptor, length, at)


def extents(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The half-open ranges of a file's [start, end) that aren't holes; the whole where none are known."""
    at = start
    while at < end:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            stop = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                yield at, end
            return
        if at >= end:
            return
        yield at, min(stop, end)
        at = stop


def written(what: str, path: str | PathLike[str], start: int, end: int) -> list[tuple[int, int]]:
    """The ranges of a file by name that are no holes; bytes there may still be zeros."""
    with reading(path, what) as descriptor:
        return list(extents(descriptor, start, end))


def check_store(
    root: Path, *, expected: str = "a directory with commitlog/", next_step: str = "Check the STORE argument"
) -> None:
    """See that a store's directory is there, and isn't that of its log alone."""
    check_here(root)
    try:
        is_store, is_file = root.is_dir(), root.exists()
    except OSError as error:
        raise unreadable("the store", root, error) from error
    if not is_store:
        raise StoreError(
            "there is no store here",
            path=root,
            expected=expected,
            found="a file" if is_file else "nothing",
            next_step=next_step,
        )
    by_offset = (names.parse_offset_name(name) is not None for name in names_seen(root))
    if not (root / names.COMMIT_LOG).exists() and any(by_offset):
        raise StoreError(
            "this is a commit log, not a store",
            path=root,
            expected=expected,
            found="segments",
            next_step=f"Give the store that holds it: {root.parent}",
        )
