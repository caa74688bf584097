"""Putting back what a rebuild in place replaced."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from reput.errors import OutputError
from reput.format import names
from reput.job.output_directory import discard_if_swapped, staging_of
from reput.remote.place import check_here
from reput.store import files, swap
from reput.store.lock import OutputLock, StoreLock
from reput.store.ownership import Owner
from reput.store.reading import check_store


@dataclass(frozen=True, slots=True)
class Undone:
    """What was undone; ``to_dict`` is what ``--json`` prints.

    Attributes:
        store: the store.
        put_back: what is in place again, relative to the store.
        taken_away: what the rebuild had added, relative to the store.
        kept: the directory that holds what was in place, the rebuilt files.
    """

    store: str
    put_back: list[str]
    taken_away: list[str]
    kept: str

    def to_dict(self) -> dict[str, object]:
        """The facts as a JSON-ready mapping."""
        return asdict(self)


def undo(store: Path, kept: Path | None = None) -> Undone:
    """Put back what a rebuild in place replaced, under the locks that such a rebuild holds.

    A swap that was interrupted is finished first. If that was an undo, nothing else is done.

    Args:
        kept: one of the store's ``replaced-...`` directories; None for that of the last rebuild not undone.

    Raises:
        ReputError: refused, with nothing changed: a broker runs, or has run since; there is nothing to undo.
    """
    check_here(store)
    root = Path(os.path.abspath(store))
    check_store(root)
    if not swap.is_pending(root):
        swap.undone_names(root, chosen(root, kept))  # refused before a lock is written
    owner = Owner.of_store(root, [root / names.COMMIT_LOG])
    owner.check_can_apply(root)
    with StoreLock(root, owner), OutputLock(root, owner):
        finished = swap.Swap.resume(root)
        discard_if_swapped(staging_of(root))
        files.remove_tree(root / names.VIEW)
        if finished is None or not swap.Record.read(finished).of_undo:
            finished = swap.undo(root, chosen(root, kept), swap.new_stamp(root), owner=owner)
    done = swap.Record.read(finished)
    return Undone(str(root), list(done.names), list(done.removed), str(finished))


def chosen(root: Path, kept: Path | None) -> Path:
    """The directory to put back.

    Args:
        root: the store.
        kept: as in :func:`undo`.

    Raises:
        OutputError: there is none, or it doesn't hold what a swap replaced.
    """
    if kept is not None:
        directory = root / kept.name
        if not kept.name.startswith(swap.KEPT) or (kept.exists() and not kept.samefile(directory)):
            raise OutputError(
                "this directory doesn't hold what a swap replaced",
                path=kept,
                expected=f"one of those named {swap.KEPT}… in {root}",
            )
        swap.Record.read(directory)
        return directory
    for directory in swap.kept_directories(root):
        if not swap.Record.read(directory).of_undo:
            return directory
    raise OutputError(
        "there is nothing to undo",
        path=root,
        expected=f"a directory {swap.KEPT}…, as a rebuild in place leaves it",
        found="none, but what earlier undos left" if swap.kept_directories(root) else "none",
        next_step="To put back what an undo took away, name its directory by --kept"
        if swap.kept_directories(root)
        else None,
    )
