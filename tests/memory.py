"""Where tests put what isn't there to be kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHM = Path("/dev/shm")
#: A container's has 64 MiB, which all tests together outgrow.
_ENOUGH = 1 << 30


def memory() -> Path | None:
    """A directory in memory; None where there is none with room: the one for temporary files will do."""
    return _SHM if _SHM.is_dir() and shutil.disk_usage(_SHM).free >= _ENOUGH else None


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is such a place: what is tested isn't the disk."""
    place = Path(tempfile.mkdtemp(prefix="reput-", dir=memory()))
    try:
        yield place
    finally:
        shutil.rmtree(place)
