"""Where an output may go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.errors import OutputError, Result
from reput.format import names
from reput.remote.client import check_here
from reput.store import files, swap
from reput.store.lock import OutputLock, StoreLock
from reput.store.outside import check_outside, refuse_links
from reput.store.ownership import Owner
from reput.store.reading import check_store
from reput.store.space import existing_parent


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
        discard_if_swapped(staging_of(root))
        files.remove_tree(root / names.VIEW)
        if finished is None or not swap.Record.read(finished).of_undo:
            finished = swap.undo(root, chosen(root, kept), swap.new_stamp(root), owner=owner)
    done = swap.Record.read(finished)
    return Undone(str(root), list(done.names), list(done.removed), str(finished))


def chosen(root: Path, kept: Path | None) -> Path:
    """The directory to put back."""
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


def output_root(out: Path, settings: StoreSettings) -> Path:
    """The output directory, absolute, if it may be one."""
    check_here(out)
    root = Path(os.path.abspath(out))
    with files.reporting("the output can't be looked at", out):
        if root.exists() and root.samefile(settings.root):
            raise OutputError(
                "the output is the store itself",
                path=root,
                next_step="Use --in-place to replace the store's files, or another directory",
            )
        # Anywhere else in the store is fine: that is where a user has room on the same disk.
        own = [settings.root / name for name in (*names.QUEUES, names.INDEX)]
        check_outside("the output", root, [*settings.commit_log_dirs, *own], "Choose a directory elsewhere")
        refuse_links(root, (*names.OUTPUT, names.REPUT))
        _check_empty_or_ours(root)
    check_utf8(settings.root)
    check_utf8(root)
    return root


def check_utf8(path: Path) -> None:
    """Check that a path is in UTF-8, else it can't be passed to Spark."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise OutputError(
            "this path can't be passed to Spark, since it is not UTF-8",
            path=path,
            next_step="Rename the directory, or choose another one",
        ) from None


def _check_empty_or_ours(root: Path) -> None:
    place = existing_parent(root)
    if not place.is_dir():
        raise OutputError(
            "there is a file where the output is to go",
            path=root,
            expected="a directory, or nothing yet",
            found=place,
            next_step="Choose another directory",
        )
    if place != root:
        return
    if (root / names.REPUT).is_dir():
        _check_has_journal(root)
        return
    found = next(root.iterdir(), None)
    if found is not None:
        raise OutputError(
            "the output directory is not empty",
            path=root,
            expected="an empty directory, or one that reput began",
            found=found.name,
            next_step="Choose another directory",
        )


def _check_has_journal(root: Path) -> None:
    """Refuse to begin among files of an output whose journal is missing."""
    if (root / names.REPUT / names.JOURNAL).exists():
        return
    for name in (*names.QUEUES, names.INDEX, names.LEDGER):
        if (root / name).exists():
            raise OutputError(
                "the output's journal is gone",
                path=root / names.REPUT / names.JOURNAL,
                found=f"{name}/ without it",
                next_step="Put it back, or remove the output and start again",
            )


def staging_of(store: Path) -> Path:
    """The directory in a store to which a rebuild in place writes."""
    return store / names.REPUT / "staging"


def discard_if_swapped(staging: Path) -> None:
    """Remove a staging directory without queues: they have been put in place, or none were written.

    Its journal would name files that are no longer there: a process can end between the two.
    """
    # What tasks have put aside for a database goes when it is made, before the swap.
    aside = f"{names.REPUT}/{names.ROCKSDB}"
    queues = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB, aside)
    if not any(found for name in queues for _, _, found in os.walk(staging / name)):
        files.remove_tree(staging)
