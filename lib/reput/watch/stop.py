"""Stopping a tail: by a stop file in its output, which it looks for between two batches."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from reput.errors import StoreInUseError
from reput.format import names
from reput.remote.place import check_here
from reput.store import files
from reput.store.lock import Holder, output_holder
from reput.store.outside import refuse_links
from reput.watch.status import died, output_at

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of a request to stop."""

    root: Path  # the output
    holder: Holder | None  # the process that wrote there, None if there was none
    seconds: float  # how long it took to end
    clean: bool  # the output is a committed state; otherwise the last run was cut off


def stop(directory: Path, timeout: float = 90.0) -> Stopped:
    """Ask the tail of an output to stop, and wait until it has.

    Does nothing if no process writes there. A request that was not fulfilled in time stays in place.

    Args:
        directory: the output.
        timeout: seconds to wait.

    Raises:
        OutputError: the directory isn't an output, or the stop file can't be written.
        StoreInUseError: the tail has not stopped in time.
    """
    # A tail that waits for the log's first segment has no output yet, and stops all the same.
    check_here(directory)
    root = Path(os.path.abspath(directory))
    refuse_links(root, [names.REPUT])
    holder = _holder(root)
    if holder is None:
        output_at(root)
        return Stopped(root, None, 0.0, clean=not died(root))
    stop_file = root / names.REPUT / names.STOP
    began = time.monotonic()
    while output_holder(root) == holder:
        if time.monotonic() - began >= timeout:
            raise StoreInUseError(
                f"the writer has not ended within {timeout:g} s",
                path=root,
                found=holder.what,
                next_step="A tail ends when its batch is done: the request stays in place, run the same "
                "command again to wait longer. A rebuild ends by itself, or by Ctrl-C. Killing the process "
                "is safe, too: the next start rolls back what it hadn't committed",
            )
        # Repeatedly: a tail that is just starting removes a stop file that an earlier request may have left.
        if not os.path.lexists(stop_file):
            files.write_atomically(stop_file, b"")
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - began
    files.remove_tree(stop_file)
    return Stopped(root, holder, seconds, clean=output_holder(root) is not None or not died(root))


def _holder(root: Path) -> Holder | None:
    """Who writes to an output; not the writer before, whose note a starting one hasn't yet replaced."""
    holder = output_holder(root)
    while holder is not None:
        time.sleep(_POLL_SECONDS)
        before, holder = holder, output_holder(root)
        if holder == before:
            break
    return holder
