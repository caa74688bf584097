"""Whether the driver and every executor see one output: proven by a nonce, both ways.

If a path leads to another directory on every host, all writes succeed, but no host has them all. So the
driver puts a file with a new name into the output, which each worker has to read before its first task; and
each worker puts one there, which the driver has to read before it accepts anything from that worker.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from reput.errors import OutputError
from reput.format import names
from reput.store import files
from reput.store.ownership import Owner
from reput.store.system_errors import output_error

_DRIVER = "driver"
_NEXT_STEP = (
    "Give a directory that all hosts have mounted at this path, or let everything run on one host: "
    "--master 'local[*]'"
)
#: The files that this process has left, by the nonce that they answer.
_left: dict[str, Left] = {}


@dataclass(frozen=True, slots=True)
class Left:
    """What a worker has left for the driver.

    Attributes:
        name: the file's, never looked up before: a host may cache that there was no such file.
        text: what it holds.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class SharedOutput:
    """What a worker needs to prove that it sees the driver's output; made by :func:`shared_output`.

    Attributes:
        root: the output.
        nonce: the run's.
        driver: the host that made it.
    """

    root: Path
    nonce: str
    driver: str

    @property
    def _directory(self) -> Path:
        return self.root / names.REPUT / f"{names.SHARED}{self.nonce}"

    @property
    def _text(self) -> str:
        return f"{self.nonce} {self.driver}\n"

    def show(self) -> Left:
        """In a worker, before a task: read what the driver left, and leave something; once in a process.

        Raises:
            OutputError: what the driver left isn't there, or this process can't leave anything.
        """
        left = _left.get(self.nonce)
        if left is None:
            found = _read(self._directory / _DRIVER)
            if found != self._text:
                raise OutputError(
                    "this host doesn't see the output that the driver sees",
                    path=self.root,
                    expected=f"what the driver on {self.driver} left in {self._directory}",
                    found="nothing" if found is None else "something else",
                    next_step=_NEXT_STEP,
                )
            host, word = socket.gethostname(), secrets.token_hex(16)
            left = Left(f"{host}-{os.getpid()}-{word}", f"{word} {host}\n")
            _write(self._directory / left.name, left.text, None)
            _left[self.nonce] = left
        return left

    def see(self, host: str, left: Left) -> None:
        """On the driver: read what a worker left.

        Raises:
            OutputError: it isn't there.
        """
        found = _read(self._directory / left.name)
        if found != left.text:
            raise OutputError(
                "the driver doesn't see what this host writes to the output",
                path=self._directory / left.name,
                expected=f"what a task on {host} left there",
                found="nothing" if found is None else "something else",
                next_step=_NEXT_STEP,
                host=host,
            )


@contextmanager
def shared_output(root: Path, owner: Owner | None) -> Iterator[SharedOutput]:
    """A run's proof, for as long as it has tasks.

    Args:
        root: the output; its lock is held.
        owner: of what is made; None for the process's own.

    Raises:
        OutputError: nothing can be written there.
    """
    _clear(root)  # a run that was killed leaves its own
    shared = SharedOutput(root, secrets.token_hex(16), socket.gethostname())
    files.make_dirs(shared._directory, owner)
    _write(shared._directory / _DRIVER, shared._text, owner)
    try:
        yield shared
    finally:
        # What stays is removed by the next run; it is no reason for this one to fail.
        with suppress(OutputError):
            _clear(root)


def _clear(root: Path) -> None:
    for path in (root / names.REPUT).glob(f"{names.SHARED}*"):
        files.remove_tree(path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise output_error("the output can't be read", path, error) from error


def _write(path: Path, text: str, owner: Owner | None) -> None:
    """Write a new file, flushed with its name: other hosts find all of it from now on."""
    fd = files.create_file(path, None, owner)
    try:
        files.pwrite_all(fd, text.encode(), 0)
        files.fsync_file(fd)
    finally:
        files.system.close(fd)
    files.fsync_dir(path.parent)
