"""Temporary directories that killed processes have left."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path


def sweep(place: Path, prefix: str, old_seconds: float) -> None:
    """Remove what nobody holds any more: a process that needs one holds a lock on it (``flock``).

    Args:
        place: where to look; what isn't this user's is left.
        prefix: their names begin so.
        old_seconds: younger ones are left, since their lock may not have been taken yet.
    """
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with suppress(OSError):  # somebody else is removing it
                if not entry.name.startswith(prefix) or entry.is_symlink() or not entry.is_dir():
                    continue
                facts = entry.stat()
                if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < old_seconds:
                    continue
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(descriptor)
