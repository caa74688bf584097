"""PySpark's worker daemon with the kernels loaded before it forks, and processes that end quietly.

Set as ``spark.python.daemon.module``. Loading numba and the cached kernels takes a second; done here, once,
every worker begins with them. Daemons for planning don't pay for it: Spark starts PySpark's own for
them whatever that setting says (``SparkEnv.createPythonWorker`` in 4.2.0), and worker_python.sh starts this
in their place.

A process of Spark's prints no stack trace when Spark has closed its connection. That is how a worker ends
whose job is cancelled, or whose last bytes come when Spark has read all that it wants. It is also how the
process ends that runs the stream reader of a query that is stopped: it treats the end of its input as an
error and writes it to the connection (python_streaming_source_runner in PySpark 4.2.0). Mostly that works;
when the other end was closed a moment before, it fails, and an operator who only pressed Ctrl-C would see
three tracebacks.

A local session starts one for each kind of worker: to look a data source up, to make one, to plan a read, to
run a stream's source, and to run tasks. While a tail follows a log, only the stream's source is needed; the
others would keep some 60 MiB each. Spark starts a daemon again where it can't connect to the one that it
knows (``PythonWorkerFactory.createThroughDaemon``, Spark 4.2).
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace, TracebackType

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


def hide_closed_connections(daemon: ModuleType) -> None:
    """Have workers of PySpark's daemon print nothing when Spark closed the connection.

    Args:
        daemon: the module, whatever its name is. It alone decides what is done with a worker's error: output
            that could not be written, and what ended it (worker and manager in PySpark 4.2.0). Other errors
            are shown as before.
    """
    daemon.traceback = SimpleNamespace(print_exc=_show_error, format_exc=traceback.format_exc)  # type: ignore[attr-defined]
    daemon.print = _show  # type: ignore[attr-defined]


def hide_closed_connections_of_planner() -> None:
    """The same for a process that plans a read, if it is a worker of PySpark's own daemon.

    In a local session it is a worker of this daemon (worker_python.sh), and other processes stay as they are.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == "pyspark.daemon":
        hide_closed_connections(main)


def tell_in_a_sentence(kind: type[BaseException]) -> None:
    """Have a process of Spark's tell its JVM such errors without the stack, and others as before.

    What a worker and a planner do with an error is in ``pyspark.util.handle_worker_exception``, which they
    have by that name: planners in ``pyspark.sql.worker.utils`` in PySpark 4.2.0, before in a module of each.
    """
    planners = [name for name in sys.modules if name.startswith("pyspark.sql.worker.")]
    for name in ("__main__", "pyspark.worker", *planners):
        module = sys.modules.get(name)
        tell = getattr(module, "handle_worker_exception", None)
        if tell is not None:
            module.handle_worker_exception = partial(_tell, tell, kind)  # type: ignore[union-attr]


def _tell(
    tell: Callable[..., None], kind: type[BaseException], error: BaseException, *arguments: object
) -> None:
    tell(error, *arguments, **({"hide_traceback": True} if isinstance(error, kind) else {}))


def hide_closed_connections_at_exit() -> None:
    """From now on this process prints nothing when it ends because a connection is closed.

    Every other error is shown as before. The exit code stays what it is.
    """
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ConnectionError):
            shown(kind, error, trace)

    sys.excepthook = show


def _show_error() -> None:
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


def _show(*values: object, **options: object) -> None:
    if not isinstance(sys.exc_info()[1], ConnectionError):
        print(*values, **options)  # type: ignore[call-overload] # noqa: T201 - as the daemon does


def run() -> None:
    """Be the daemon of the kind of workers that the first argument names, until Spark ends it."""
    if sys.argv[1:2] == ["pyspark.worker"]:
        from reput.replay.runner import load_kernels

        load_kernels()
    from pyspark import daemon

    if hasattr(daemon, "worker_main"):  # before 4.2 it is chosen when the module loads: perhaps too early
        daemon.worker_main = importlib.import_module(sys.argv[1]).main
    hide_closed_connections(daemon)
    end_when_idle(daemon)
    daemon.manager()


if __name__ == "__main__":
    run()
