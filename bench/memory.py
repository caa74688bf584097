"""How much memory a tree of processes takes, sampled from ``/proc``."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from reput.newer_python import Self

INTERVAL = 0.2
"""Seconds between samples."""
#: What is shared is looked at, which takes longer, when the sum has grown by so much, or after so long.
_GROWTH, _SHARED_SECONDS = 1.05, 1.0

_PROC = Path("/proc")


class MemorySampler:
    """The peak of the anonymous memory of a process and all its descendants; a context manager.

    Anonymous resident memory is what a process can't give back: heaps and stacks. Mapped files lie in the
    page cache and aren't counted. The peak counts a page once that forked processes still share
    (``Pss_Anon``, looked at once a second or when the sum has grown); all else counts it in each of them
    (``RssAnon``), and is an upper bound.

    A descendant that has lost its parent still counts, when it was seen before.

    Args:
        root: process id of the tree's root.
        proc: where the kernel shows processes.
        interval: seconds between samples.
    """

    def __init__(self, root: int, proc: Path = _PROC, interval: float = INTERVAL) -> None:
        self._proc = proc
        self._interval = interval
        self._tree = {root}
        self._others: set[int] = set()
        self._peak = self._last = 0
        self._looked = 0.0
        self._seen: list[tuple[float, Counter[str]]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-memory", daemon=True)

    @property
    def processes(self) -> frozenset[int]:
        """The tree's processes at the last look."""
        return frozenset(self._tree)

    @property
    def peak_bytes(self) -> int:
        """The greatest sum seen so far, each page counted once."""
        return self._peak

    def peak_between(self, begin: float, end: float) -> int:
        """The greatest sum, bytes, seen in [begin, end), seconds of ``time.time``; 0 if none was.

        Shared pages count in each process.
        """
        return max((by_name.total() for at, by_name in self._seen if begin <= at < end), default=0)

    def median_between(self, begin: float, end: float) -> dict[str, int]:
        """By the name of the program: the median of the sums, bytes, seen in [begin, end); none that is 0."""
        seen = [by_name for at, by_name in self._seen if begin <= at < end]
        names = sorted({name for by_name in seen for name in by_name})
        medians = {name: int(statistics.median(by_name[name] for by_name in seen)) for name in names}
        return {name: median for name, median in medians.items() if median}

    def sample(self) -> int:
        """Look once; returns the sum in bytes, shared pages counted in each process.

        Only processes that weren't there before are asked for their parent, so that a sample costs the
        measured run next to nothing.
        """
        present = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}  # noqa: PTH208 - faster
        self._tree &= present
        self._others &= present
        parents = {
            pid: status_field(self._status(pid), "PPid") for pid in present - self._tree - self._others
        }
        while found := {pid for pid, parent in parents.items() if parent in self._tree}:
            self._tree |= found
            for pid in found:
                del parents[pid]
        self._others |= parents.keys()
        by_name: Counter[str] = Counter()
        for pid in self._tree:
            status = self._status(pid)
            name = status.partition("\n")[0].removeprefix("Name:").strip()
            by_name[name] += status_field(status, "RssAnon") << 10
        total, now = by_name.total(), time.monotonic()
        if total > self._last * _GROWTH or now - self._looked > _SHARED_SECONDS:
            self._peak = max(self._peak, sum(map(self._unshared, self._tree)))
            self._last, self._looked = total, now
        self._seen.append((time.time(), by_name))
        return total

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            self.sample()
            self._done.wait(self._interval)

    def _unshared(self, pid: int) -> int:
        """Anonymous memory of a process, a page that others share as a part of one."""
        shares = status_field(self._read(pid, "smaps_rollup"), "Pss_Anon")
        return (shares or status_field(self._status(pid), "RssAnon")) << 10

    def _status(self, pid: int) -> str:
        return self._read(pid, "status")

    def _read(self, pid: int, name: str) -> str:
        """A file of ``/proc/PID``; empty when the process is gone."""
        try:
            return (self._proc / str(pid) / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def status_field(status: str, name: str) -> int:
    """The number that a line of ``/proc/PID/status`` starts with (kB for memory); 0 without such a line."""
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0
