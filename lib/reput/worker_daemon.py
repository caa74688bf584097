"""PySpark's worker daemon with the kernels loaded before it forks.

Set as ``spark.python.daemon.module``. Loading numba and the cached kernels takes a second; done here, once,
every worker begins with them. Daemons for planning run the same module and must not pay for it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        from reput.sink import warm

        warm.load()
    from pyspark.daemon import manager

    manager()
