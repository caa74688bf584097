"""A file of a set size, open for writing, in a ``with`` statement."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reput.store import files
from reput.store.ownership import Owner


@contextmanager
def opened(path: Path, size: int, owner: Owner | None) -> Iterator[int]:
    """A descriptor of the file ``path`` of ``size`` bytes; file and directories are made if missing.

    Raises:
        OutputError: it can't be made, or has another size.
    """
    files.make_dirs(path.parent, owner)
    fd = files.create_file(path, size, owner)
    try:
        yield fd
    finally:
        os.close(fd)
