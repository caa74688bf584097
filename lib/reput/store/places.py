"""Which path lies in which: what isn't written into a store, and what in an output would lead out of it.

A broker takes what it finds in its store for its own. Whatever reput writes to, lists or removes lies in the
directory that was named: this may be a link, but none in it is followed.

And temporary files and directories, with what killed processes have left of them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reput.errors import OutputError
from reput.remote.client import check_here
from reput.store import files


@contextmanager
def beside(path: Path, *, directory: bool = False, mode: int = 0o666, wait: bool = False) -> Iterator[Path]:
    """``.NAME.tmp`` beside a place, empty, to be filled and renamed; what is still there goes with the block.

    It is held by a lock (``flock``), so that what a killed run left is told from what another one fills now.
    With ``wait``, that one is waited for rather than refused. ``mode`` is a file's, less the umask.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with files.reporting("it can't be written", temporary):
        while (held := _held(temporary, directory=directory, mode=mode, wait=wait)) is None:
            pass
    try:
        yield temporary
    finally:
        with suppress(OutputError, OSError):
            if _is(held, temporary):
                files.remove_tree(temporary)
        os.close(held)


def write_alone(path: Path, data: bytes) -> None:
    """Replace a file that several runs may write at once: it holds what one of them wrote, as a whole."""
    with beside(path, wait=True) as temporary, files.reporting("it can't be written", path):
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        files.rename(temporary, path)


def _held(temporary: Path, *, directory: bool, mode: int, wait: bool) -> int | None:
    """A descriptor with the lock on what was made; None where something was in the way: try again."""
    is_new = True
    try:
        if directory:
            temporary.mkdir()
        else:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    except FileExistsError:
        is_new = False
    try:
        held = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None  # another run has just renamed or removed it
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            step = "Wait until it has ended, or name another place"
            raise OutputError("another run is writing this", path=temporary, next_step=step) from None
        except OSError:
            pass  # no such locks here (NFS): then nothing tells two runs apart
        is_ours = _is(held, temporary)
        if is_ours and is_new:
            return held
        if is_ours:  # a killed run's
            files.remove_tree(temporary)
    except BaseException:
        os.close(held)
        raise
    os.close(held)
    return None


def _is(held: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(held), path.lstat())
    except FileNotFoundError:
        return False


def attempt_directory(scratch: Path) -> Path:
    """A new directory for what one attempt of a task writes; nobody has used or looked up its name before."""
    directory = scratch / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
    with files.reporting("can't make the directory", directory):
        files.system.make_directory(directory)
    return directory


def lies_in(one: Path, other: Path) -> bool:
    """Whether a path is a directory or lies in it, with links followed; either may be yet to be made."""
    return Path(os.path.realpath(one)).is_relative_to(os.path.realpath(other))


def refuse_links(root: Path, parts: Iterable[str]) -> None:
    """See that there is no symbolic link in an output: what it leads to would be changed, or removed.

    The output may be a link itself. Looked at are the names ``parts`` in it, directories with all that is in
    them.
    """
    left = [root / name for name in parts]
    if any(path.is_symlink() for path in left):
        raise _link(next(path for path in left if path.is_symlink()))
    while left:
        directory = left.pop()
        # While a tail runs here, files and directories come and go.
        with files.reporting("the output can't be looked at", directory), suppress(FileNotFoundError):
            if not directory.is_dir():
                continue
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        raise _link(Path(entry.path))
                    if entry.is_dir(follow_symlinks=False):
                        left.append(Path(entry.path))


def _link(path: Path) -> OutputError:
    return OutputError(
        "a symbolic link is in the way: what it leads to isn't the output's",
        path=path,
        expected="a file or a directory of the output's own",
        found=f"a link to {path.readlink()}",
        next_step="Remove it, or put what it leads to in its place, and run the same command again. Only the "
        "output's directory itself may be a link",
    )


def check_outside(what: str, path: Path, places: Iterable[Path], next_step: str) -> Path:
    """Refuse a place inside one of a store's ``places``; returns where to write, with links followed.

    ``what`` is to be written, e.g. ``"a report"``.
    """
    check_here(path)
    target = Path(os.path.realpath(path))
    for directory in places:
        if lies_in(target, directory):
            raise OutputError(
                f"{what} isn't written into the store",
                path=path,
                expected=f"a place outside of {os.path.realpath(directory)}",
                found=str(target),
                next_step=next_step,
            )
    return target


def check_file(
    target: Path, what: str, *, force: bool, other: str = "", expected: str = "no such file"
) -> None:
    """Refuse what a file must not be written to; links of ``target`` are followed already.

    ``what`` is to be written, e.g. ``"a report is"``. ``other`` keeps a file that is there from being
    replaced, if not that it is there.
    """
    if not target.parent.is_dir():
        problem, path = "the directory isn't there", target.parent
        raise OutputError(problem, path=path, next_step="Make it, or name another file with --out.")
    if target.exists() and not target.is_file():
        found = "a directory" if target.is_dir() else "no regular file"
        raise OutputError(f"{what} a file", path=target, found=found, next_step="Name a file with --out.")
    if target.exists() and not force:
        problem = f"there is a file already{other}"
        step = "Name another file with --out, or give --force to replace it."
        raise OutputError(problem, path=target, expected=expected, next_step=step)
