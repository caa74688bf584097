"""Functions run by Spark's executors."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from reput.errors import ReputError
from reput.spark.hosts import Elsewhere, Proof
from reput.spark.page_cache import Look, OnePageCache, page_cache
from reput.spark.sessions import converting_spark_errors
from reput.spark.shared_output import shared_output
from reput.store.ownership import Owner
from reput.store.witness import config_seen


def is_local(context: SparkContext) -> bool:
    """Whether tasks run on this host, as children of this process's JVM."""
    return str(context.master).startswith("local")


class SparkRunner:
    """Runs functions over items as Spark tasks, one an item.

    Attributes:
        is_local: tasks run on this host, as children of its JVM, which see the same file systems. Then
            nothing has to be proven, and no host is named.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._tag = f"reput-{uuid.uuid4()}"
        self.is_local = is_local(context)
        self._proofs: tuple[Proof, ...] = ()
        self._elsewhere = None if self.is_local else Elsewhere(())

    def demand(self, *proofs: Proof) -> None:
        """From now on, have every worker prove what it sees before its first function."""
        self._proofs = proofs
        if not self.is_local:
            self._elsewhere = Elsewhere(proofs)

    def other_hosts(self, output: Path) -> list[str]:
        """The hosts of executors so far that don't share this process's page cache of the output.

        Raises:
            ReputError: a worker doesn't see what this process sees, or Spark failed.
        """
        if self.is_local:
            return []
        ours = page_cache(output)
        with converting_spark_errors():  # its first job: a cluster may have nothing to run it on
            found: list[Any] = self.map(Look(output), list(range(self.slots)))
        for one in found:
            if isinstance(one, ReputError):
                raise one
        return sorted({host for host, theirs in found if theirs != ours})

    @contextmanager
    def sharing_pages(self, output: Path) -> Iterator[None]:
        """While the block runs, refuse workers that don't share this process's page cache of the output."""
        proofs = self._proofs
        self.demand(*proofs, OnePageCache(output, page_cache(output)))
        try:
            yield
        finally:
            self.demand(*proofs)

    @contextmanager
    def shared(self, output: Path, owner: Owner | None, config: Sequence[Path]) -> Iterator[None]:
        """Have every worker prove that it sees an output, and the same configuration, while the block runs.

        That it sees the log it proves with each part: see :mod:`reput.store.witness`.

        Args:
            output: its lock is held.
            owner: of the files that prove it; None for the process's own.
            config: files that this process has read.

        Raises:
            OutputError: nothing can be written to the output.
        """
        if self.is_local:
            yield
            return
        with shared_output(output, owner) as proof:
            self.demand(proof, config_seen(config))
            yield

    @property
    def slots(self) -> int:
        """Tasks that run at once, as of now: a cluster's executors start after the session, one by one."""
        return max(int(self._context.defaultParallelism), 1)

    def warm_up(self) -> None:
        """Have the workers started and the kernels loaded while Spark plans the query; returns at once."""
        items: list[object] = list(range(self.slots))
        threading.Thread(target=self._warm_up, args=(items,), name="reput-warm-up", daemon=True).start()

    def _warm_up(self, items: list[object]) -> None:
        # Cancelled, or an error that the query reports, too.
        with suppress(PySparkException, Py4JError, ConnectionError):
            self._run(abs, items)

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The results in the items' order; a function's errors are results.

        Raises:
            ReputError: a worker doesn't see what this process sees.
        """
        elsewhere = self._elsewhere
        if elsewhere is None:
            return self._run(function, items)
        return elsewhere.results(self._run(elsewhere.task(function), items))

    def _run(self, function: Callable[..., Any], items: list[object]) -> list[Any]:
        if not items:
            return []
        self._context.addJobTag(self._tag)
        return self._context.parallelize(items, len(items)).map(function).collect()

    def cancel(self) -> None:
        """Stop waiting for functions, since tasks may never get an executor; those that run end later."""
        with suppress(PySparkException, Py4JError, ConnectionError):  # a session that is gone runs nothing
            self._context.cancelJobsWithTag(self._tag)
