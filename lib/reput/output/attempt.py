"""Where one attempt of a task writes, on a host that doesn't share a page cache with others."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from reput.store import files


def attempt_directory(scratch: Path) -> Path:
    """A new directory for what one attempt of a task writes; nobody has used or looked up its name before.

    Raises:
        OutputError: it can't be made; so it is where the run is over and ``scratch`` gone.
    """
    directory = scratch / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
    with files.reporting("can't make the directory", directory):
        files.system.make_directory(directory)
    return directory
