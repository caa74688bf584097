"""A file system of its own for an output, that can be filled up: ext4 in a file, mounted by root."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType

from reput.newer_python import Self

_BALLAST = "ballast"
_UMOUNT_SECONDS = 30.0


class DiskError(RuntimeError):
    """There can't be a file system of its own here."""


class Disk:
    """A context manager that mounts it, empty, and unmounts it.

    Args:
        image: the file that it lies in; grows with what is written.
        place: the directory on which it is mounted.
        size: bytes.

    Raises:
        DiskError: it can't be made or mounted: the caller isn't root, or loop devices are missing.
    """

    def __init__(self, image: Path, place: Path, size: int) -> None:
        self.place = place
        self._image, self._size = image, size

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        for command in (
            ["truncate", "-s", str(self._size), self._image],
            # No blocks that root alone may have: a full disk is to be full.
            ["mkfs.ext4", "-q", "-F", "-m", "0", self._image],
            ["mount", "-o", "loop", self._image, self.place],
        ):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise DiskError(f"{command[0]}: {getattr(error, 'stderr', '') or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unmount(self.place)

    @property
    def used(self) -> int:
        """Bytes in use, the ballast included."""
        found = os.statvfs(self.place)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def fill(self, left: int = 0) -> int:
        """Let a file take all room but so many bytes; returns the file's bytes. May be called again."""
        path = self.place / _BALLAST
        with path.open("ab") as file:
            step = max(self._room() - left, 0)
            while step >= 4096:
                at = os.fstat(file.fileno()).st_size
                try:
                    os.posix_fallocate(file.fileno(), at, step)
                except OSError as failure:
                    if failure.errno != errno.ENOSPC:
                        raise
                    os.ftruncate(file.fileno(), at)
                    step //= 2
                else:
                    step = max(self._room() - left, 0)
            return os.fstat(file.fileno()).st_size

    def make_room(self) -> None:
        """Remove that file."""
        (self.place / _BALLAST).unlink(missing_ok=True)

    def _room(self) -> int:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize


def unmount(place: Path) -> None:
    """Unmount what is mounted there, if anything is.

    Raises:
        DiskError: it stays in use.
    """
    deadline = time.monotonic() + _UMOUNT_SECONDS
    while os.path.ismount(place):
        told = subprocess.run(["umount", place], check=False, capture_output=True, text=True)
        if told.returncode and time.monotonic() > deadline:
            raise DiskError(f"umount {place}: {told.stderr}")
        if told.returncode:
            time.sleep(0.5)
