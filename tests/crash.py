"""Ends a run at any of its calls to the operating system, as a kill does, or as a power loss does."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.store.system import StrPath, System


class KilledError(BaseException):
    """The process is gone. No handler of the code under test is to see this as a failure to deal with."""


class Dying(System):
    """Dies at the ``last``-th call that changes or flushes something, after half of it where that can be."""

    def __init__(self, last: int = 1 << 60) -> None:
        self.calls = 0
        self._last = last

    def tick(self) -> None:
        """Count a call; from the last one on, everything dies."""
        self.calls += 1
        if self.calls >= self._last:
            raise KilledError

    @property
    def is_dead(self) -> bool:
        return self.calls >= self._last

    def open(self, path: StrPath, flags: int) -> int:
        self.tick()
        return super().open(path, flags)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        try:
            self.tick()
        except KilledError:
            if self.calls == self._last:
                super().pwrite(fd, data[: len(data) // 2], offset)
            raise
        return super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self.tick()
        super().truncate(fd, size)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self.tick()
        super().allocate(fd, offset, length)

    def punch_hole(self, fd: int, offset: int, length: int) -> None:
        self.tick()
        super().punch_hole(fd, offset, length)

    def sync(self, fd: int, data_only: bool) -> None:
        self.tick()

    def store_in_map(self, mapped: NDArray[Any], at: NDArray[np.intp], values: NDArray[Any]) -> None:
        try:
            self.tick()
        except KilledError:
            if self.calls == self._last:
                super().store_in_map(mapped, at[: len(at) // 2], values[: len(at) // 2])
            raise
        super().store_in_map(mapped, at, values)

    def sync_map(self, fd: int, mapping: mmap.mmap, offset: int, length: int) -> None:
        self.tick()

    def sync_directory(self, path: Path) -> None:
        self.tick()

    def sync_file_system(self, fd: int) -> None:
        self.tick()

    def make_directory(self, path: StrPath) -> None:
        self.tick()
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.tick()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.tick()
        super().unlink(path)

    def remove_directory(self, path: Path) -> None:
        self.tick()
        super().remove_directory(path)


class Failing(Dying):
    """As :class:`Dying`, but one call is refused by the system, and the process lives on to clean up."""

    def tick(self) -> None:
        self.calls += 1
        if self.calls == self._last:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def store_in_map(self, mapped: NDArray[Any], at: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Nobody refuses what is stored in memory."""
        System.store_in_map(self, mapped, at, values)


class LosingPower(Dying):
    """As :class:`Dying`; then whatever was not flushed may be on the disk, or not, or in part.

    What it knows of a file's bytes is what they were at its last flush, of a directory's names what they were
    at its last flush. Everything below ``root`` counts as flushed at the beginning.
    """

    def __init__(self, root: Path, last: int = 1 << 60) -> None:
        super().__init__(last)
        self._root = root
        self._bytes: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._kept: list[int] = []
        self._all_is_flushed()

    def _all_is_flushed(self) -> None:
        for place, _, plain in os.walk(self._root):
            self._names[Path(place)] = _names(Path(place))
            for name in plain:
                path = Path(place, name)
                self._bytes[path.stat().st_ino] = path.read_bytes()

    def open(self, path: StrPath, flags: int) -> int:
        fd = super().open(path, flags)
        if flags & os.O_EXCL:
            # The number of an open file isn't given to another one.
            self._kept.append(os.open(path, os.O_RDONLY))
        return fd

    def make_directory(self, path: StrPath) -> None:
        super().make_directory(path)
        self._names[Path(path)] = {}

    def sync(self, fd: int, data_only: bool) -> None:
        super().sync(fd, data_only)
        self._bytes[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def sync_map(self, fd: int, mapping: mmap.mmap, offset: int, length: int) -> None:
        super().sync_map(fd, mapping, offset, length)
        inode, now = os.fstat(fd).st_ino, Path(f"/proc/self/fd/{fd}").read_bytes()
        flushed = bytearray(self._bytes.get(inode, b"").ljust(len(now), b"\0"))
        flushed[offset : offset + length] = now[offset : offset + length]
        self._bytes[inode] = bytes(flushed)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._names[path] = _names(path)

    def sync_file_system(self, fd: int) -> None:
        """All that was written until now; had it died in here, any of that might be missing."""
        super().sync_file_system(fd)
        self._all_is_flushed()

    def lose(self, random: Random) -> None:
        """Leave below ``root`` what a disk might hold now."""
        rest = self._root.with_name(self._root.name + ".rest")
        self._leave(self._root, rest, random)
        for fd in self._kept:
            os.close(fd)
        shutil.rmtree(self._root)
        rest.rename(self._root)

    def _leave(self, path: Path, rest: Path, random: Random) -> None:
        rest.mkdir()
        flushed = self._names.get(path, {})
        now = _names(path) if path.is_dir() else {}
        for name in sorted(flushed.keys() | now.keys()):
            inode = random.choice([flushed.get(name), now.get(name)])
            if inode is None:
                continue
            place = path / name
            is_now = now.get(name) == inode
            if place in self._names or (is_now and place.is_dir()):
                self._leave(place, rest / name, random)
            else:
                content = place.read_bytes() if is_now else None
                (rest / name).write_bytes(self._some(inode, content, random))

    def _some(self, inode: int, now: bytes | None, random: Random) -> bytes:
        """A file's bytes, of some pages the flushed ones, of others the present ones."""
        flushed = self._bytes.get(inode, b"")
        if now is None:
            return flushed
        page = random.choice([16, 4096])
        size = random.choice([len(flushed), len(now)])
        mixed = bytearray()
        for at in range(0, size, page):
            mixed += random.choice([flushed, now])[at : at + page].ljust(page, b"\0")
        return bytes(mixed[:size])


def _names(path: Path) -> dict[str, int]:
    with os.scandir(path) as entries:
        return {entry.name: entry.inode() for entry in entries}


#: Index files are built by a thread, which needs fewer calls where it takes several parts' keys at once.
FEWER = 50


def died(run: Callable[[], object]) -> bool:
    """Whether ``run`` was ended."""
    try:
        run()
    except KilledError:
        return True
    return False
