"""Where an output may go."""

from __future__ import annotations

import os
import re
from pathlib import Path

from reput.errors import OutputError
from reput.format import names
from reput.settings import StoreSettings
from reput.store.space import existing_parent

# What deltalake 1.6 takes for something else wherever a table lies: it decodes an escape once more than it
# encodes it, also in a file:// URL and by way of a link; a backslash separates names to it; the rest it
# refuses as no part of a URL, some by a panic.
_NOT_FOR_DELTA = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]^|\x00-\x1f\x7f\ud800-\udfff]")


def output_root(out: Path, settings: StoreSettings) -> Path:
    """The output directory, absolute, if it may be one.

    Raises:
        OutputError: it may not.
    """
    root = Path(os.path.abspath(out))
    if root.exists() and root.samefile(settings.root):
        raise OutputError(
            "the output is the store itself",
            path=root,
            next_step="Use --in-place to replace the store's files, or another directory",
        )
    real = root.resolve()
    for directory in settings.commit_log_dirs:
        if real.is_relative_to(directory.resolve()):
            raise OutputError(
                "the output lies inside the commit log",
                path=root,
                found=directory,
                next_step="Choose a directory elsewhere",
            )
    for name in (names.CONSUME_QUEUE, names.INDEX):
        if real.is_relative_to((settings.root / name).resolve()):
            raise OutputError(
                "the output lies where a broker looks for its own files",
                path=root,
                found=settings.root / name,
                next_step="Choose a directory elsewhere",
            )
    _check_empty_or_ours(root)
    return root


def check_ledger_path(root: Path) -> None:
    """See that the ledger's writer takes the path, with all links followed, as it is.

    Raises:
        OutputError: it doesn't.
    """
    found = _NOT_FOR_DELTA.search(str(root.resolve()))
    if found is not None:
        raise OutputError(
            "the Delta ledger can't be written below a path with this in it",
            path=root,
            expected="no percent escape, backslash, bracket, ^, |, control character or broken UTF-8",
            found=ascii(found[0]),
            next_step="Choose a directory without it",
        )


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
    if place != root or (root / names.REPUT).is_dir():
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
