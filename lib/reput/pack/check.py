"""The proof that nothing in an unpacked archive leads out of it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

from reput.errors import PackError
from reput.pack import elf


def check(root: Path, program: str) -> tuple[int, ...]:
    """See that files below a directory need nothing that isn't there, but glibc.

    Args:
        root: the directory.
        program: the interpreter's place below it.

    Returns:
        The version of glibc that they need.

    Raises:
        PackError: a symbolic link, an RPATH or a needed library leads out, or a .pth file may.
    """
    places = set(_places(root))
    facts = {place: found for place in sorted(places) if (found := elf.read(root / place)) is not None}
    if program not in facts:
        raise PackError("the interpreter is no program that the loader takes", path=program, expected="ELF")
    main = facts[program]
    shared = [] if main.is_runpath else main.directories(program)
    newest: tuple[int, ...] = ()
    for place, found in facts.items():
        if found.machine != main.machine:
            continue
        own = found.directories(place)
        for path, directory in zip(found.paths, own, strict=True):
            if directory is None:
                raise _out(place, "RPATH", path)
        looked = own if found.is_runpath else [*own, *shared]
        for name in found.needed:
            if not elf.is_glibc(name) and not any(
                posixpath.join(one or "", name) in places for one in looked
            ):
                raise _out(place, "needed library", name)
        newest = max(newest, found.glibc)
    return newest


def _places(root: Path) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory, name)
            place = path.relative_to(root).as_posix()
            if path.is_symlink():
                target = path.readlink().as_posix()
                end = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
                if target.startswith("/") or end.split("/", 1)[0] == "..":
                    raise _out(place, "symbolic link", target)
            if name.endswith(".pth"):
                raise _out(place, ".pth file", name)
        yield from (Path(directory, name).relative_to(root).as_posix() for name in files)


def _out(place: str, what: str, found: str) -> PackError:
    return PackError(
        f"a {what} leads out of the archive",
        path=place,
        expected="what is in the archive, or glibc's",
        found=found,
        next_step="This is a fault of reput, or a package that it doesn't know: report it with this line",
    )
