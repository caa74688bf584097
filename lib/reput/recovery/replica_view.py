"""A store as it will be once its log has what a replica gives: a directory of links and of new segments.

All that stays is a link to the store's own; the segments that get something are copies. Who reads a store
reads this one as any other, so queues and index are derived from the mended log before anything is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reput.errors import ReputError, StoreInUseError, UnsupportedError
from reput.format import names
from reput.log.segments import Segment, is_zero, map_segment
from reput.recovery.replica import Comparison
from reput.store import files
from reput.store.ownership import Owner
from reput.store.swap import KEPT
from reput.store.system import check_free

_CHUNK = 8 << 20


@dataclass(slots=True)
class ReplicaView:
    """Such a directory."""

    store: Path  # the store's
    root: Path  # its own, in the store
    segments: Path  # the new segments' own, in the store, too; the view has links to them
    copies: list[str]  # the new segments, relative to any of these

    @classmethod
    def make(cls, comparison: Comparison, mending: Path, owner: Owner) -> ReplicaView:
        """Make one in a directory inside the store.

        Raises:
            UnsupportedError: the commit log lies outside the store, where nothing can be put in place.
            OutputError: it can't be written.
            StoreInUseError: a segment isn't what it was when it was compared.
        """
        settings = comparison.settings
        store = settings.root
        for directory in settings.commit_log_dirs:
            if not directory.is_relative_to(store):
                raise UnsupportedError(
                    "the commit log must be mended, and it lies outside the store's directory",
                    path=directory,
                    expected=f"a directory below {store}",
                    next_step="Copy the sound segments there by hand, with the broker stopped",
                )
        view = cls(store, store / names.VIEW, mending / "segments", [])
        ours = {segment.base: segment for segment in comparison.log.segments}
        size, bases = comparison.segment_size, sorted(comparison.sources)
        check_free(store, size * len(bases), f"{len(bases)} copies of segments")
        paths = {}
        for base in bases:
            segment = ours.get(base)
            path = settings.commit_log_dirs[0] / names.offset_name(base) if segment is None else segment.path
            paths[path] = base
        files.make_dirs(view.root, owner)
        view._link(store, view.root, settings.commit_log_dirs, set(paths), owner)
        for path, base in paths.items():
            name = path.relative_to(store).as_posix()
            view._copy(view.segments / name, ours.get(base), comparison, base, owner)
            with files.reporting("the segment can't be linked", view.root / name):
                (view.root / name).symlink_to(view.segments / name)
            view.copies.append(name)
        return view

    def _link(self, place: Path, into: Path, logs: tuple[Path, ...], copied: set[Path], owner: Owner) -> None:
        """Link what a directory holds, but for what is copied and what no broker reads."""
        with files.reporting("the store can't be linked", place):
            for path in sorted(place.iterdir()):
                if path in copied or (
                    place == self.store
                    and (path.name in (names.REPUT, names.LOCK, names.VIEW) or path.name.startswith(KEPT))
                ):
                    continue
                if any(log.is_relative_to(path) for log in logs):
                    files.make_dirs(into / path.name, owner)
                    self._link(path, into / path.name, logs, copied, owner)
                else:
                    (into / path.name).symlink_to(path)

    def _copy(
        self, target: Path, ours: Segment | None, comparison: Comparison, base: int, owner: Owner
    ) -> None:
        """A segment with what is taken, and with its file's time: a broker lets it expire by that."""
        source, size = comparison.sources[base], comparison.segment_size
        theirs = map_segment(source.path, source.length)
        kept = theirs if ours is None else map_segment(ours.path, ours.length)
        files.make_dirs(target.parent, owner)
        fd = files.create_file(target, size, owner)
        try:
            for at in range(0, len(kept), _CHUNK):
                chunk = kept[at : at + _CHUNK]
                if not is_zero(chunk):  # stays a hole
                    files.pwrite_all(fd, chunk.data, at)
            for one in comparison.taken:
                if ours is None or not base <= one.offset < base + size:
                    continue
                end = min(one.end - base, len(theirs))
                for at in range(one.offset - base, end, _CHUNK):
                    files.pwrite_all(fd, np.ascontiguousarray(theirs[at : min(at + _CHUNK, end)]).data, at)
            facts = (source if ours is None else ours).path.stat()
            with files.reporting("can't set the file's time", target):
                os.utime(fd, ns=(facts.st_atime_ns, facts.st_mtime_ns))
            files.fsync_file(fd)
        finally:
            files.system.close(fd)
        files.fsync_dir(target.parent)
        if comparison.changed(source.path):
            raise StoreInUseError(
                "the replica was written while it was copied",
                path=source.path,
                next_step="Stop what writes it, or copy its commit log and give the copy",
            )

    def move(self, staging: Path, other: list[str]) -> list[str]:
        """Move the copies to where a swap takes them from, but for those that others stand in for.

        Returns:
            Those that were moved, relative to the store.
        """
        moved = [name for name in self.copies if name not in other]
        for name in moved:
            files.make_dirs((staging / name).parent)
            files.rename(self.segments / name, staging / name)
        return moved

    def told(self, text: str) -> str:
        """A text about the view, as one about the store."""
        return text.replace(str(self.root), str(self.store)).replace(str(self.segments), str(self.store))

    @contextmanager
    def reported(self) -> Iterator[None]:
        """What is wrong with the view is said of the store, which the operator knows."""
        try:
            yield
        except ReputError as error:
            for name in ("problem", "path", "expected", "found", "next_step"):
                value = getattr(error, name)
                if value is not None:
                    setattr(error, name, self.told(value))
            raise
