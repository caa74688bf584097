"""Copies of segments that are changed in the segments' stead.

The commit log itself is never opened for writing. A copy takes its segment's place by a rename, with all else
that is mended, and the segment is kept as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reput.broker.files import StoreFile
from reput.config.settings import StoreSettings
from reput.errors import UnsupportedError
from reput.log.segments import is_zero, map_segment
from reput.store import files
from reput.store.ownership import Owner
from reput.store.reading import unreadable
from reput.store.space import check_free

_CHUNK = 8 << 20


def length_of(path: Path) -> int:
    """Bytes of a segment's file.

    Raises:
        StoreError: it can't be looked at.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable("the segment", path, error) from error


class LogCopies:
    """The copies of one store's segments.

    Args:
        settings: the store's.
        staging: a directory inside it, for the copies.
        segment_size: bytes of a segment.
        owner: for the copies.
    """

    def __init__(self, settings: StoreSettings, staging: Path, segment_size: int, owner: Owner) -> None:
        self._settings = settings
        self._root = settings.root
        self._staging = staging
        self._size = segment_size
        self._owner = owner
        self._originals: dict[Path, Path] = {}
        self._times: dict[Path, Path] = {}  # of segments that are new: whose time they get

    @property
    def names(self) -> list[str]:
        """The segments that have copies, relative to the store, sorted."""
        made = (
            *self._originals.values(),
            *(self._root / one.relative_to(self._staging) for one in self._times),
        )
        return sorted(path.relative_to(self._root).as_posix() for path in made)

    def name(self, path: Path) -> str:
        """A path of the commit log relative to the store.

        Raises:
            UnsupportedError: it lies outside, where nothing can be put in place together with the rest.
        """
        if not path.is_relative_to(self._root):
            rebuild = self._settings.command("rebuild", "--out", "DIR")
            raise UnsupportedError(
                "the commit log must be mended, and it lies outside the store's directory",
                path=path,
                expected=f"a segment below {self._root}",
                next_step=f"`{rebuild}` skips the damage, into a directory of its own.",
            )
        return path.relative_to(self._root).as_posix()

    def of(self, segment: StoreFile) -> StoreFile:
        """A segment's copy, made when it is first asked for; a copy's copy is itself.

        Of a segment that is too short, what it lacks is zeros.

        Raises:
            UnsupportedError: the segment lies outside the store.
            OutputError: it can't be written.
        """
        if segment.path in self._originals or segment.path in self._times:
            return segment
        length = min(length_of(segment.path), self._size)
        data = map_segment(segment.path, length)
        copy = self._made(segment.path)
        with self._open(copy, self._owner) as fd:
            for at in range(0, length, _CHUNK):
                chunk = data[at : at + _CHUNK]
                if not is_zero(chunk):  # stays a hole
                    files.pwrite_all(fd, chunk.data, at)
        self._originals[copy] = segment.path
        return StoreFile(str(copy), segment.base)

    def new(self, name: str, base: int, like: Path) -> StoreFile:
        """A segment that isn't there, of zeros: beside another one, with its time, which it expires by.

        Raises:
            UnsupportedError, OutputError: as for :meth:`of`.
        """
        like = self._originals.get(like) or self._times.get(like) or like
        copy = self._made(like.parent / name)
        with self._open(copy, self._owner):
            pass
        self._times[copy] = like
        return StoreFile(str(copy), base)

    def _made(self, path: Path) -> Path:
        copy = self._staging / self.name(path)
        check_free(self._root, self._size, f"a copy of {path.name}")
        files.make_dirs(copy.parent, self._owner)
        files.remove_tree(copy)
        return copy

    def write(self, copy: StoreFile, position: int, data: bytes) -> None:
        """Change bytes of a copy."""
        with self._open(copy.path) as fd:
            files.pwrite_all(fd, data, position)

    @contextmanager
    def _open(self, path: Path, owner: Owner | None = None) -> Iterator[int]:
        fd = files.create_file(path, self._size, owner)
        try:
            yield fd
        finally:
            files.system.close(fd)

    def flush(self) -> None:
        """Make the copies durable, with their segments' times: a broker lets segments expire by those.

        Raises:
            OutputError: the disk didn't take them.
        """
        for copy, original in (*self._originals.items(), *self._times.items()):
            with self._open(copy) as fd:
                with files.reporting("can't set the file's time", copy):
                    facts = original.stat()
                    os.utime(fd, ns=(facts.st_atime_ns, facts.st_mtime_ns))
                files.fsync_file(fd)
            files.fsync_dir(copy.parent)
