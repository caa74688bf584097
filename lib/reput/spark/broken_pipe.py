"""What a process of Spark's prints when Spark no longer listens to it.

A query that is stopped closes its connection to the process that runs the stream reader. That process takes
the end of its input for an error and writes it to the connection (python_streaming_source_runner in PySpark
4.2.0). Mostly the system takes that in; when the other end was closed the moment before, it fails, and three
tracebacks stand in the terminal of somebody who only pressed Ctrl-C.
"""

from __future__ import annotations

import sys
from types import TracebackType

from reput.spark.worker_daemon import leave_without_a_word


def say_nothing_to_nobody() -> None:
    """From now on this process ends without a word when it ends for a connection that is closed.

    Every other error is shown as before. The exit code stays what it is.
    """
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ConnectionError):
            shown(kind, error, trace)

    sys.excepthook = show


def leave_a_planner_without_a_word() -> None:
    """The same for a process that plans a read, if it is a worker of PySpark's own daemon.

    In a local session it is one of reput's (worker_python.sh), and other processes stay as they are.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == "pyspark.daemon":
        leave_without_a_word(main)
