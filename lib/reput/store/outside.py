"""Which path lies in which: what isn't written into a store, and what in an output would lead out of it.

A broker takes what it finds in its store for its own. Whatever reput writes to, lists or removes lies in the
directory that was named: this may be a link, but none in it is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from reput.errors import OutputError
from reput.remote.client import check_here
from reput.store import files


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
