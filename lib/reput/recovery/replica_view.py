"""A store as it will be once its log has what a replica gives: a directory of links and of new segments.

All that stays is a link to the store's own; the segments that get something are copies. Who reads a store
reads this one as any other, so queues and index are derived from the mended log before anything is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reput.derived.files import StoreFile
from reput.errors import ReputError, StoreInUseError
from reput.format import names
from reput.log.segments import is_zero, map_segment
from reput.recovery.mend_log import LogCopies
from reput.recovery.refusals import refuse_outside
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
    log: LogCopies  # the new segments

    @property
    def copies(self) -> list[str]:
        """The new segments, relative to any of these."""
        return self.log.names

    @classmethod
    def make(cls, comparison: Comparison, mending: Path, owner: Owner) -> ReplicaView:
        """Make one in a directory inside the store.

        UnsupportedError where the commit log lies outside the store, where nothing can be put in place.
        OutputError where it can't be written. StoreInUseError where a segment isn't what it was when it was
        compared.
        """
        settings = comparison.settings
        store = settings.root
        for directory in settings.commit_log_dirs:
            refuse_outside(settings, directory)
        staging, size = mending / "segments", comparison.segment_size
        view = cls(store, store / names.VIEW, staging, LogCopies(settings, staging, size, owner))
        ours = {segment.base: segment.path for segment in comparison.log.segments}
        check_free(store, size * len(comparison.sources), f"{len(comparison.sources)} copies of segments")
        paths = {
            ours.get(base, settings.commit_log_dirs[0] / names.offset_name(base)): base
            for base in sorted(comparison.sources)
        }
        files.make_dirs(view.root, owner)
        view._link(store, view.root, settings.commit_log_dirs, set(paths), owner)
        for path, base in paths.items():
            view._copy(path, base, comparison, is_new=base not in ours)
            name = path.relative_to(store).as_posix()
            with files.reporting("the segment can't be linked", view.root / name):
                (view.root / name).symlink_to(view.segments / name)
        view.log.flush()
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

    def _copy(self, path: Path, base: int, comparison: Comparison, *, is_new: bool) -> None:
        """A segment with what is taken, and with its file's time: a broker lets it expire by that."""
        source, size = comparison.sources[base], comparison.segment_size
        theirs = map_segment(source.path, source.length)
        if is_new:
            copy, taken = self.log.new(path, base, source.path), [(0, len(theirs))]
        else:
            copy = self.log.of(StoreFile(str(path), base))
            of_it = (one for one in comparison.taken if base <= one.offset < base + size)
            taken = [(one.offset - base, min(one.end - base, len(theirs))) for one in of_it]
        for start, end in taken:
            for at in range(start, end, _CHUNK):
                chunk = theirs[at : min(at + _CHUNK, end)]
                if not (is_new and is_zero(chunk)):  # stays a hole
                    self.log.write(copy, at, np.ascontiguousarray(chunk).data)
        if comparison.changed(source.path):
            raise StoreInUseError(
                "the replica was written while it was copied",
                path=source.path,
                next_step="Stop what writes it, or copy its commit log and give the copy",
            )

    def move(self, staging: Path, other: list[str]) -> list[str]:
        """Move the copies to where a swap takes them from, but for those that others stand in for.

        Returns those that were moved, relative to the store.
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
