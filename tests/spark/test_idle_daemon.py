"""Spark goes on where a daemon of its Python workers has ended because nobody needed it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

#: The daemon ends as it does when it is idle: its socket is gone before it is. Workers aren't kept, as when
#: Spark has ended those that were idle.
PROGRAM = """
import os, signal, time
from pathlib import Path
from reput.spark.sessions import session

def daemons():
    found = []
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes().split(b"\\0")
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"pyspark.worker" in words and int(parent) == jvm:
            found.append(int(place.name))
    return found

spark = session("reput test", "local[1]", {"spark.python.worker.reuse": "false"})
jvm = spark.sparkContext._gateway.proc.pid
squares = spark.sparkContext.parallelize(range(3), 1).map(lambda number: number * number)
first = squares.collect()
(before,) = daemons()
os.kill(before, signal.SIGTERM)
while before in daemons():
    time.sleep(0.05)
assert squares.collect() == first == [0, 1, 4]
(after,) = daemons()
assert after != before
print("started again")
"""


def test_spark_starts_a_daemon_again_that_has_ended(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "started again\n", done.stderr
