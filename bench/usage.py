"""What processes cost while nothing happens: processor time and anonymous memory, from ``/proc``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.memory import status_field

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
#: Of ``/proc/PID/stat``, behind the name: user and system time.
_TIMES = slice(11, 13)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process has used, or used in a while.

    Attributes:
        name: which kind of process it is.
        seconds: processor time.
        anonymous: bytes of ``RssAnon``; what is shared after a fork counts in each.
        own: bytes of anonymous memory; what is shared after a fork counts in parts.
    """

    name: str
    seconds: float
    anonymous: int
    own: int


def look(processes: Iterable[int], root: int) -> dict[int, Usage]:
    """What each of some processes has used; those that are gone are left out."""
    found = {}
    for pid in processes:
        try:
            status = (_PROC / str(pid) / "status").read_text()
            stat = (_PROC / str(pid) / "stat").read_text()
            memory = (_PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        times = stat.rpartition(")")[2].split()[_TIMES]
        program = status.partition("\n")[0].removeprefix("Name:").strip()
        found[pid] = Usage(
            "driver" if pid == root else "JVM" if program == "java" else "Python beside it",
            sum(map(int, times)) / _TICKS,
            status_field(status, "RssAnon") << 10,
            status_field(memory, "Pss_Anon") << 10,
        )
    return found


def over(seconds: float, processes: Iterable[int], root: int) -> dict[str, dict[str, float]]:
    """What a tree of processes uses in a while, by kind and in all: share of a core, and memory at its end.

    Args:
        seconds: how long it is watched.
        processes: the tree.
        root: its first process.
    """
    tree = list(processes)
    before, began = look(tree, root), time.monotonic()
    time.sleep(seconds)
    after, passed = look(tree, root), time.monotonic() - began
    kinds: dict[str, dict[str, float]] = {}
    for pid, now in after.items():
        used = now.seconds - before[pid].seconds if pid in before else now.seconds
        for kind in (now.name, "all"):
            sums = kinds.setdefault(kind, {"processes": 0, "core": 0.0, "anonymous_bytes": 0, "own_bytes": 0})
            sums["processes"] += 1
            sums["core"] += used / passed
            sums["anonymous_bytes"] += now.anonymous
            sums["own_bytes"] += now.own
    return kinds
