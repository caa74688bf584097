"""How a database gets into its place.

A broker takes a directory with a file CURRENT for a database. That name comes last, when all else is on disk,
and is the commit: without it, whatever lies there is made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from reput.replay.target import Target
from reput.rocksdb import CURRENT
from reput.store import files
from reput.store.listing import names_in


class Tasks(Protocol):
    """Runs a function of a target and an item in tasks."""

    def run(self, function: Callable[..., object], items: list[object]) -> list[Any]:
        """The function's results in the items' order."""
        ...


def is_whole(directory: Path) -> bool:
    """Whether a database is there."""
    return (directory / CURRENT).is_file()


def name_files(made: Path, directory: Path, target: Target) -> None:
    """Move a database's files into their directory, in which queues' files may lie; CURRENT is the last."""
    files.make_dirs(directory, target.owner)
    for name in names_in(directory):
        if not (directory / name).is_dir():
            files.remove_tree(directory / name)  # of a try that got no further
    for name in names_in(made):
        if name != CURRENT:
            with files.reporting("can't rename it", made / name):
                files.system.rename(made / name, directory / name)
    files.fsync_dir(directory)
    files.rename(made / CURRENT, directory / CURRENT)
