"""A program with all that it has started: found through /proc, and killed at one moment.

Spark's JVM, the Python daemons that it starts and their workers have process groups of their own, and those
whose parent has died belong to init. All of them have inherited the program's environment: a mark in it finds
them, wherever they are now.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

#: The environment variable with the mark.
MARK = "REPUT_TORTURE_MARK"

_PROC = Path("/proc")
_LONGEST_FREEZE = 10.0


def marked(mark: str) -> set[int]:
    """The processes that were started with this mark, by id, without those that have ended."""
    wanted = f"{MARK}={mark}".encode()
    return {
        int(place.name)
        for place in _PROC.iterdir()
        if place.name.isdecimal() and wanted in _environment(place) and not _has_ended(place)
    }


def kill_marked(mark: str, *, last: int | None = None) -> int:
    """Kill all of them as the death of their machine would: none of them sees another one die.

    Args:
        last: a process that is to go last, because it is the one that does this.

    Returns:
        How many there were.
    """
    stopped: set[int] = set()
    deadline = time.monotonic() + _LONGEST_FREEZE
    # What is stopped starts nothing more; what was started just before shows in the next round.
    while new := marked(mark) - stopped - {last}:
        for process in new:
            _send(process, signal.SIGSTOP)
        stopped |= new
        if time.monotonic() > deadline:
            break
    for process in stopped:
        _send(process, signal.SIGKILL)
    if last is not None:
        _send(last, signal.SIGKILL)
    return len(stopped) + (last is not None)


def wait_gone(mark: str, timeout: float = 60.0) -> None:
    """Wait until none is left.

    Raises:
        TimeoutError: one is.
    """
    deadline = time.monotonic() + timeout
    while left := marked(mark):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there after {timeout:.0f} s: {sorted(left)}")
        time.sleep(0.02)


def _environment(place: Path) -> list[bytes]:
    try:
        return (place / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _has_ended(place: Path) -> bool:
    try:
        return (place / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def name_of(process: int) -> str:
    """What the kernel calls a process, such as ``java``; empty when it is gone."""
    try:
        return (_PROC / str(process) / "comm").read_text().strip()
    except OSError:
        return ""


def kill(process: int) -> None:
    """Kill one process."""
    _send(process, signal.SIGKILL)
