"""Which store a file belongs to, by where it lies: for commands that are run on a store."""

from __future__ import annotations

from pathlib import Path

from reput.format import names

#: How far up a file of a store is: a file of a queue lies deepest.
_DEEPEST = 4


def store_of(path: Path) -> Path | None:
    """The store that a path is, or lies in; None where that isn't clear, as for a file that was copied away.

    Args:
        path: absolute.
    """
    parts = (*names.QUEUES, names.INDEX, names.COMMIT_LOG, names.CHECKPOINT)
    above = [path, *path.parents][: _DEEPEST + 1]
    for below, root in zip([None, *above], above, strict=False):
        if (below is None or below.name in parts) and (root / names.COMMIT_LOG).is_dir():
            return root
    return None
