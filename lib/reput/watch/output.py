"""Whether a directory is an output of reput, and who writes there."""

from __future__ import annotations

import os
from pathlib import Path

from reput.errors import OutputError
from reput.format import names
from reput.store.lock import output_holder


def output_at(directory: Path) -> Path:
    """The absolute path of an output.

    Raises:
        OutputError: the directory is none.
    """
    root = Path(os.path.abspath(directory))
    if not has_begun(root):
        raise OutputError(
            "there is no output of reput here",
            path=root,
            expected=f"{names.REPUT}/{names.JOURNAL} in a directory",
            found=_what(root),
            next_step="Name the DIR that reput tail or reput rebuild was given with --out",
        )
    return root


def has_begun(root: Path) -> bool:
    """Whether there is anything committed, be it nothing; not so while a tail waits for a log's beginning."""
    return os.path.lexists(root / names.REPUT / names.JOURNAL)


def died(root: Path) -> bool:
    """Whether the last run broke off, if nobody writes now: its files may hold more than the journal says."""
    return os.path.lexists(root / names.REPUT / names.SCRATCH)


def _what(root: Path) -> str:
    if not os.path.lexists(root):
        return "nothing"
    if (holder := output_holder(root)) is not None:
        return f"{holder.what}, which begins, or waits for the log's first segment"
    return "a directory without it" if root.is_dir() else "a file"
