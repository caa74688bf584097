"""A daemon of Spark's Python workers that ends when nobody has needed it for a while.

A local session starts one for each kind of worker: to look a data source up, to make one, to plan a read, to
run a stream's source, and to run tasks. While a tail follows a log, only the stream's source is needed; the
others would keep some 60 MiB each. Spark starts a daemon again where it can't connect to the one that it
knows (``PythonWorkerFactory.createThroughDaemon``, Spark 4.2).
"""

from __future__ import annotations

import os
import select
import socket
import time
from types import ModuleType, SimpleNamespace

#: Without a worker for this long, it ends. Spark itself ends workers that were idle for a minute.
IDLE_SECONDS = 30.0
#: How often it is looked whether there are workers: PySpark's daemon would look at nothing once a second.
_LOOK_SECONDS = 10.0


def end_when_idle(daemon: ModuleType) -> None:
    """Have PySpark's daemon end when it is idle; only one that listens at a path, and only in this process.

    Args:
        daemon: the module. Its manager waits by ``select.poll`` for connections and for the end of its stdin
            (PySpark 4.2.0).
    """
    daemon.select = SimpleNamespace(  # type: ignore[attr-defined]
        poll=_Poll, select=select.select, POLLIN=select.POLLIN, POLLHUP=select.POLLHUP
    )


class _Poll:
    """``select.poll()``, but waiting ends the process when there is no worker for a while."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._path: str | None = None
        self._busy = time.monotonic()

    def register(self, file: int | socket.socket, events: int) -> None:
        """As that of ``select.poll``."""
        self._poll.register(file, events)
        if isinstance(file, socket.socket) and file.family == socket.AF_UNIX:
            self._path = file.getsockname()

    def unregister(self, file: int | socket.socket) -> None:
        """As that of ``select.poll``."""
        self._poll.unregister(file)

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        """Wait; returns what is ready, if anything is.

        Raises:
            SystemExit: it has been idle for long enough.
        """
        if self._path is None:
            return self._poll.poll(milliseconds)
        while not (ready := self._poll.poll(_LOOK_SECONDS * 1000)):
            if _has_children():
                self._busy = time.monotonic()
            elif time.monotonic() - self._busy >= IDLE_SECONDS:
                ready = self._end(self._path)
                if ready:
                    break
        self._busy = time.monotonic()
        return ready

    def _end(self, path: str) -> list[tuple[int, int]]:
        """End, unless somebody has connected before there was no name to connect to."""
        aside = f"{path}.idle"
        os.rename(path, aside)  # noqa: PTH104 - strings
        ready = self._poll.poll(0)
        if ready:
            os.rename(aside, path)  # noqa: PTH104
            return ready
        os.unlink(aside)  # noqa: PTH108
        raise SystemExit(0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
