"""PySpark's worker daemon with the kernels loaded before it forks.

Set as ``spark.python.daemon.module``. Loading numba and the cached kernels takes a second; done here, once,
every worker begins with them. Daemons for planning run the same module and must not pay for it.

A worker ends without a word when Spark has hung up on it: so ends one that works for a job that is cancelled,
and after Ctrl-C nobody wants to see its stack trace.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace


def _show_error() -> None:
    if not isinstance(sys.exception(), ConnectionError):
        traceback.print_exc()


if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        from reput.sink import warm

        warm.load()
    from pyspark import daemon

    # The module is the one place that says what becomes of a worker's error (manager in PySpark 4.2.0).
    daemon.traceback = SimpleNamespace(print_exc=_show_error, format_exc=traceback.format_exc)  # type: ignore[attr-defined,assignment]
    daemon.manager()
