"""Where an output may go."""

from __future__ import annotations

import os
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.errors import OutputError
from reput.format import names
from reput.remote.place import check_here
from reput.store import files
from reput.store.outside import check_outside, refuse_links
from reput.store.space import existing_parent


def output_root(out: Path, settings: StoreSettings) -> Path:
    """The output directory, absolute, if it may be one.

    Raises:
        OutputError: it may not.
    """
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
    """Check that a path can be passed to Spark.

    Raises:
        OutputError: it isn't UTF-8.
    """
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
