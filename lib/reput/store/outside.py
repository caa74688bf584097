"""What isn't written into a store: a broker takes what it finds there for its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from reput.errors import OutputError
from reput.settings import StoreSettings


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
        inside = Path(os.path.realpath(directory))
        if target.is_relative_to(inside):
            raise OutputError(
                f"{what} isn't written into the store",
                path=path,
                expected=f"a place outside of {inside}",
                found=str(target),
                next_step=next_step,
            )
    return target
