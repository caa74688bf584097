"""What stands for a Spark session where only files and commits are of interest."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace


class Here:
    """Stands for a session: what would be a job's tasks is done here, one after the other.

    Args:
        before: is called before each job.
    """

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self.sparkContext, self.master, self.defaultParallelism = self, "local[1]", 1

    def addJobTag(self, _: str) -> None:  # noqa: N802 - Spark's
        pass

    def cancelJobsWithTag(self, _: str) -> None:  # noqa: N802 - Spark's
        pass

    def parallelize(self, items: list[object], _: int) -> SimpleNamespace:
        def mapped(function: Callable[[object], object]) -> SimpleNamespace:
            def collect() -> list[object]:
                self._before()
                return [function(item) for item in items]

            return SimpleNamespace(collect=collect)

        return SimpleNamespace(map=mapped)
