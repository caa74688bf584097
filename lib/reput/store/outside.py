"""Which path lies in which, and what isn't written into a store: a broker takes what it finds for its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from reput.errors import OutputError
from reput.settings import StoreSettings


def lies_in(one: Path, other: Path) -> bool:
    """Whether a path is a directory or lies in it, with links followed; either may be yet to be made."""
    return Path(os.path.realpath(one)).is_relative_to(os.path.realpath(other))


def check_outside(
    what: str, path: Path, settings: StoreSettings, next_step: str, places: Iterable[Path] | None = None
) -> Path:
    """Refuse a place inside a store.

    Args:
        what: is to be written, e.g. ``"a report"``.
        path: as it was given.
        settings: the store's.
        next_step: what the operator can do now.
        places: directories that it mustn't lie in; None for the whole store and its commit log.

    Returns:
        Where to write, with links followed.

    Raises:
        OutputError: it lies in one of them, or is one of them.
    """
    target = Path(os.path.realpath(path))
    for directory in (settings.root, *settings.commit_log_dirs) if places is None else places:
        if lies_in(target, directory):
            raise OutputError(
                f"{what} isn't written into the store",
                path=path,
                expected=f"a place outside of {os.path.realpath(directory)}",
                found=str(target),
                next_step=next_step,
            )
    return target
