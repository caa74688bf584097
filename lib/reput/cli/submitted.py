"""A stderr of one's own under spark-submit.

In client mode spark-submit starts Python with stderr joined to stdout (``PythonRunner`` in
``org.apache.spark.deploy``, Spark 4.2), so that ``--json`` would print a document among other lines. What was
meant for stderr therefore goes to the stderr of spark-submit's own JVM.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from py4j.protocol import Py4JError


def part_stderr() -> None:
    """Give this process a ``sys.stderr`` apart from stdout, where spark-submit has joined them."""
    if "PYSPARK_GATEWAY_PORT" in os.environ and os.path.sameopenfile(1, 2):
        sys.stderr = _JvmStderr(sys.stderr)


class _JvmStderr(io.TextIOBase):
    """Writes to ``System.err`` of the JVM that started this process.

    Args:
        otherwise: written to when the JVM is gone.
    """

    def __init__(self, otherwise: TextIO) -> None:
        self._otherwise = otherwise
        self._stream: Any = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._otherwise.encoding

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        try:
            if self._stream is None:
                from pyspark import SparkContext

                SparkContext._ensure_initialized()
                self._stream = getattr(SparkContext._jvm, "System").err  # noqa: B009
            # "print" is a method of PrintStream; a string keeps its line ends.
            self._stream.print(text)
        except (Py4JError, OSError, AttributeError):
            self._otherwise.write(text)
        return len(text)
