"""Where a rebuild in place makes its files."""

from __future__ import annotations

import os
from pathlib import Path

from reput.format import names
from reput.store import files


def staging_of(store: Path) -> Path:
    """The directory in a store that a rebuild in place writes to."""
    return store / names.REPUT / "staging"


def discard_if_swapped(staging: Path) -> None:
    """Remove a staging directory whose files have been put in place, or that has none yet.

    Its journal would tell of files that aren't there any more: a process can end between the two.

    Raises:
        OutputError: it can't be removed.
    """
    queues = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
    if not any(found for name in queues for _, _, found in os.walk(staging / name)):
        files.remove_tree(staging)
