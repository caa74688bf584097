"""Load the classes of Java that a rebuild loads, and end: ``python -m reput.demo.training``.

``reput.spark.class_archive`` runs this with a JVM that keeps in an archive what it has loaded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from reput.demo import run
from reput.source import read
from reput.spark.sessions import session


def train() -> None:
    """Rebuild the demonstration's store, read its log as a table, and wait for the JVM's end."""
    spark = session("reput training", "local[*]")
    gateway: Any = SparkContext._gateway
    try:
        with tempfile.TemporaryDirectory(prefix="reput-training-") as scratch:
            summary, _ = run(Path(scratch), lambda: spark, lambda _progress, _total: None)
            read(spark, str(summary.store), ["topic"]).groupBy("topic").count().collect()
            spark.stop()
    except BaseException:
        gateway.proc.kill()  # which then keeps nothing
        raise
    gateway.shutdown()
    gateway.proc.stdin.close()  # it takes that for this process's end
    gateway.proc.wait()


if __name__ == "__main__":
    train()
