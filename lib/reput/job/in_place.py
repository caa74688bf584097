"""Taking back what a rebuild in place has done; and where such a rebuild writes before its swap."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reput.errors import OutputError, Result
from reput.format import names
from reput.remote.client import check_here
from reput.store import files, swap
from reput.store.lock import OutputLock, StoreLock, check_output_free, check_store_free
from reput.store.ownership import Owner
from reput.store.reading import check_store


@dataclass(frozen=True, slots=True)
class UndoPreview(Result):
    """What an undo would do; ``to_dict`` is what ``--json`` prints."""

    store: str  # the store
    finishes_swap: bool  # a swap that was interrupted would be finished first; then ``kept`` may be another
    kept: str | None  # the directory that it would put back; None when only the swap would be finished
    put_back: list[str]  # put_back, taken_away: names in the store, relative to it
    taken_away: list[str]
    dry_run: bool = True  # nothing was done


@dataclass(frozen=True, slots=True)
class Undone(Result):
    """What was undone; ``to_dict`` is what ``--json`` prints."""

    store: str  # the store
    put_back: list[str]  # what is in place again, relative to the store
    taken_away: list[str]  # what the rebuild had added, relative to the store
    kept: str  # the directory that holds what was in place, the rebuilt files


def undo(store: Path, kept: Path | None = None) -> Undone:
    """Put back what a rebuild in place replaced, under the locks that such a rebuild holds.

    A swap that was interrupted is finished first. If that was an undo, nothing else is done. Without
    ``kept``, one of the store's ``replaced-...`` directories, it is that of the last rebuild not undone. A
    broker that runs, or has run since, makes this refuse, with nothing changed.
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
        discard_leftovers(root)
        if finished is None or not swap.record_in(finished).of_undo:
            finished = swap.undo(root, chosen(root, kept), swap.new_stamp(root), owner=owner)
    done = swap.record_in(finished)
    return Undone(str(root), list(done.names), list(done.remove), str(finished))


def chosen(root: Path, kept: Path | None) -> Path:
    """The directory to put back."""
    if kept is not None:
        directory, is_here = root / kept.name, False
        with suppress(FileNotFoundError, NotADirectoryError):
            named = directory if kept == Path(kept.name) and not kept.exists() else kept
            is_here = named.samefile(directory)
        if not kept.name.startswith(swap.KEPT) or not is_here:
            raise OutputError(
                "this directory doesn't hold what a swap replaced",
                path=kept,
                expected=f"one of those named {swap.KEPT}… in {root}",
            )
        swap.record_in(directory)
        return directory
    for directory in swap.kept_directories(root):
        if not swap.record_in(directory).of_undo:
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


def preview_undo(store: Path, kept: Path | None = None) -> UndoPreview:
    """What :func:`undo` would do. Nothing is changed, and no lock is taken."""
    root = Path(os.path.abspath(store))
    check_store(root)
    pending = swap.is_pending(root)
    Owner.of_store(root, [root / names.COMMIT_LOG]).check_can_apply(root)
    check_store_free(root)
    check_output_free(root)
    if pending:
        swap.check_finishable(root)
        return UndoPreview(str(root), True, None, [], [])
    directory = chosen(root, kept)
    put_back, taken_away = swap.undone_names(root, directory)
    return UndoPreview(str(root), False, str(directory), put_back, taken_away)


def staging_of(store: Path) -> Path:
    """The directory in a store to which a rebuild in place writes."""
    return store / names.REPUT / "staging"


def of_mending(store: Path) -> tuple[Path, Path]:
    """The directories in a store in which a mending works until its swap."""
    return store / names.VIEW, store / names.REPUT / names.MENDING


def finish_swap(store: Path) -> Path | None:
    """Finish a swap that was interrupted; returns what it replaced, None when there is nothing to finish.

    One that can't be finished, since the store has changed, is given up with what it would have put in place.
    """
    try:
        return swap.Swap.resume(store)
    except swap.SwapOvertakenError:
        swap.abandon(store)
        files.remove_tree(staging_of(store))
        return None


def discard_leftovers(root: Path) -> None:
    """Remove, once no swap is pending, what only its beginning needed: a mending's, and empty staging."""
    discard_if_swapped(staging_of(root))
    for path in of_mending(root):
        files.remove_tree(path)


def discard_if_swapped(staging: Path) -> None:
    """Remove a staging directory without queues: they have been put in place, or none were written.

    Its journal would name files that are no longer there: a process can end between the two.
    """
    # What tasks have put aside for a database goes when it is made, before the swap.
    aside = f"{names.REPUT}/{names.ROCKSDB}"
    queues = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB, aside)
    if not any(found for name in queues for _, _, found in os.walk(staging / name)):
        files.remove_tree(staging)
