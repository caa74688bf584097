"""What a program or library says of the libraries that it needs, and where the loader looks for them.

Source: ld.so(8); the System V ABI's "Dynamic Section".
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

MAGIC = b"\x7fELF"
#: Libraries of glibc itself. They go with the host's loader and kernel, and every host has them.
_GLIBC = re.compile(
    r"ld(?:-linux[^/]*|64)\.so\.[0-9]+"
    r"|lib(?:BrokenLocale|anl|c|dl|m|mvec|pthread|resolv|rt|thread_db|util)\.so\.[0-9.]+|libnsl\.so\.1"
)
_VERSION = re.compile(r"GLIBC_([0-9.]+)")
_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?=/|$)")


@dataclass(frozen=True, slots=True)
class Elf:
    """An ELF file that the loader takes.

    Attributes:
        machine: what it runs on.
        needed: names of the libraries that it needs.
        paths: its RPATH or RUNPATH, entry by entry.
        is_runpath: it is a RUNPATH: then the program's own RPATH doesn't count for it.
        glibc: the newest version of glibc that it asks for; empty if it asks for none.
    """

    machine: str
    needed: tuple[str, ...]
    paths: tuple[str, ...]
    is_runpath: bool
    glibc: tuple[int, ...]

    def directories(self, place: str) -> list[str | None]:
        """Where the loader looks, relative to the archive's root; None for what lies outside of it.

        Args:
            place: of the file in the archive.
        """
        return [_inside(path, posixpath.dirname(place)) for path in self.paths]


def read(path: Path) -> Elf | None:
    """The facts of a file; None if it isn't an ELF file."""
    with path.open("rb") as file:
        return _read(file) if file.read(len(MAGIC)) == MAGIC else None


def is_glibc(name: str) -> bool:
    """Whether a library is glibc's, and so the host's."""
    return _GLIBC.fullmatch(name) is not None


def _inside(path: str, here: str) -> str | None:
    if _ORIGIN.match(path) is None:
        return None
    directory = posixpath.normpath(posixpath.join(here, "." + _ORIGIN.sub("", path, count=1)))
    return None if "$" in directory or directory.split("/", 1)[0] == ".." else directory


def _read(file: BinaryIO) -> Elf:
    whole = ELFFile(file)
    # pyelftools gives an entry's text a name of its kind.
    texts: dict[str, list[str]] = {"needed": [], "rpath": [], "runpath": []}
    for segment in whole.iter_segments():
        if isinstance(segment, DynamicSegment):
            for tag in segment.iter_tags():
                name = tag.entry.d_tag.removeprefix("DT_").lower()
                if name in texts:
                    texts[name].append(getattr(tag, name))
    runpath = [path for text in texts["runpath"] for path in text.split(":")]
    rpath = [path for text in texts["rpath"] for path in text.split(":")]
    versions = [
        tuple(map(int, found[1].split(".")))
        for section in whole.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, names in section.iter_versions()
        for one in names
        if (found := _VERSION.fullmatch(one.name)) is not None
    ]
    return Elf(
        whole["e_machine"],
        tuple(texts["needed"]),
        tuple(runpath or rpath),
        bool(runpath),
        max(versions, default=()),
    )
