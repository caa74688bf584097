"""Asking a tail to end: a file in its output that it looks for between two batches."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from reput.errors import StoreInUseError
from reput.format import names
from reput.store import files
from reput.store.lock import Holder, output_holder
from reput.store.outside import refuse_links
from reput.watch.output import died, output_at

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Stopped:
    """What came of a request to stop.

    Attributes:
        root: the output.
        holder: who wrote there, None if nobody did.
        seconds: how long it took to end.
        clean: whether what is there now is a committed state; else the last run broke off.
    """

    root: Path
    holder: Holder | None
    seconds: float
    clean: bool


def request(root: Path) -> None:
    """Ask whoever writes to an output to end after the batch under way.

    Raises:
        OutputError: the request can't be written.
    """
    files.write_atomically(_place(root), b"")


def is_requested(root: Path) -> bool:
    """Whether the writer of an output has been asked to end."""
    return os.path.lexists(_place(root))


def clear(root: Path) -> None:
    """Take a request back, or do nothing: for a tail that begins or ends.

    Raises:
        OutputError: it can't be removed.
    """
    files.remove_tree(_place(root))


def stop(directory: Path, timeout: float = 90.0) -> Stopped:
    """Ask the tail of an output to end, and wait until it has.

    Nobody is asked where nobody writes. A request that was not fulfilled in time stands.

    Args:
        directory: the output.
        timeout: seconds to wait.

    Raises:
        OutputError: the directory is no output, or the request can't be written.
        StoreInUseError: it has not ended in time.
    """
    # A tail that waits for the log's first segment has no output yet, and ends all the same.
    root = Path(os.path.abspath(directory))
    refuse_links(root, [names.REPUT])
    holder = _holder(root)
    if holder is None:
        output_at(root)
    if holder is None:
        return Stopped(root, None, 0.0, clean=not died(root))
    began = time.monotonic()
    while output_holder(root) == holder:
        if time.monotonic() - began >= timeout:
            raise StoreInUseError(
                f"the writer has not ended within {timeout:g} s",
                path=root,
                found=holder.what,
                next_step="A tail ends when its batch is done: the request stands, run the same command "
                "again to wait longer. A rebuild ends by itself, or by Ctrl-C. Killing the process does no "
                "harm, either: the next start rolls back what it hadn't committed",
            )
        # Again and again: a tail that just begins takes away what an earlier request may have left.
        if not is_requested(root):
            request(root)
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - began
    clear(root)
    return Stopped(root, holder, seconds, clean=output_holder(root) is not None or not died(root))


def _holder(root: Path) -> Holder | None:
    """Who writes to an output, and not whose note it is that a beginning writer hasn't yet replaced."""
    holder = output_holder(root)
    while holder is not None:
        time.sleep(_POLL_SECONDS)
        before, holder = holder, output_holder(root)
        if holder == before:
            break
    return holder


def _place(root: Path) -> Path:
    return root / names.REPUT / names.STOP
