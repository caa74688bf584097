"""PySpark's worker daemon with the kernels loaded before it forks.

Set as ``spark.python.daemon.module``. Loading numba and the cached kernels takes a second; done here, once,
every worker begins with them. Daemons for planning don't pay for it: Spark starts PySpark's own for
them whatever that setting says (``SparkEnv.createPythonWorker`` in 4.2.0), and worker_python.sh puts this in
their place.

A worker ends without a word when Spark has hung up on it: so ends one that works for a job that is cancelled,
and one whose last bytes come when Spark has read all that it wants. Nobody wants to see its stack trace.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType, SimpleNamespace


def leave_without_a_word(daemon: ModuleType) -> None:
    """Have workers of PySpark's daemon say nothing when Spark has hung up; other errors are shown as before.

    Args:
        daemon: the module, whatever its name is. It is the one place that says what becomes of a worker's
            error: what was left to be written, and what it ended with (worker and manager in PySpark 4.2.0).
    """
    daemon.traceback = SimpleNamespace(print_exc=_show_error, format_exc=traceback.format_exc)  # type: ignore[attr-defined]
    daemon.print = _show  # type: ignore[attr-defined]


def _show_error() -> None:
    if not isinstance(sys.exception(), ConnectionError):
        traceback.print_exc()


def _show(*values: object, **options: object) -> None:
    if not isinstance(sys.exception(), ConnectionError):
        print(*values, **options)  # type: ignore[call-overload] # noqa: T201 - as the daemon does


if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        from reput.spark import kernels

        kernels.load()
    from pyspark import daemon

    leave_without_a_word(daemon)
    daemon.manager()
