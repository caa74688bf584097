"""Whether tasks share the driver's page cache: only then may several of them write into one file."""

from __future__ import annotations

import platform
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reput.errors import OtherHostError

#: Long enough for every core to get a task of its own.
_SECONDS = 0.1


def page_cache(directory: Path) -> str:
    """What two processes have in common that share the pages of the files in a directory.

    That is the kernel and the mounted file system: two mounts of a network's file system have caches of
    their own even on one host. Empty if the directory isn't there.
    """
    kernel = platform.node()
    with suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        found = directory.stat()
    except OSError:
        return ""
    return f"{kernel} {found.st_dev} {found.st_ino}"


@dataclass(frozen=True, slots=True)
class Look:
    """Finds out, in a task, which page cache it has."""

    directory: Path

    def __call__(self, _item: object) -> tuple[str, str]:
        """The host's name, and its page cache."""
        time.sleep(_SECONDS)
        return socket.gethostname(), page_cache(self.directory)


@dataclass(frozen=True, slots=True)
class OnePageCache:
    """Has each worker show that it shares the driver's page cache.

    Attributes:
        directory: the output.
        expected: the driver's.
    """

    directory: Path
    expected: str

    def show(self) -> None:
        """In a worker.

        Raises:
            OtherHostError: it has another one.
        """
        found = page_cache(self.directory)
        if found != self.expected:
            raise OtherHostError(
                "an executor has come that doesn't share the driver's page cache",
                path=self.directory,
                expected=self.expected,
                found=found,
                next_step="Run the same command again with --several-hosts",
            )

    def see(self, host: str, shown: None) -> None:
        """On the driver: the worker has compared."""
