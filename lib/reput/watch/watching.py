"""What a tail does to be watched: notes in its output, and metrics if they are wanted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reput.format import names
from reput.store import files
from reput.watch.table import RunNote, TableWatch

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from reput.config.settings import StoreSettings
    from reput.replay.state import State
    from reput.watch.metrics import Metrics, MetricsServer


class Watch:
    """Reports on a running tail; without an endpoint (``url`` None) only by the note."""

    def __init__(self, endpoint: MetricsServer | None = None) -> None:
        self._endpoint = endpoint
        self._metrics: Metrics | None = None
        self._root: Path | None = None
        self._last: Callable[[], StreamingQueryProgress | None] = lambda: None
        self.url = None if endpoint is None else endpoint.url

    def begin(self, settings: StoreSettings, root: Path, state: State) -> None:
        """Before the first batch, with the output's lock held."""
        conf = None if settings.broker_conf is None else str(settings.broker_conf)
        RunNote(os.getpid(), int(time.time() * 1000), conf, self.url).write(root)
        files.remove_tree(root / names.REPUT / names.TABLE)  # an earlier tail's
        self._root = root
        if self._endpoint is not None:
            from reput.stream import TriggerCollector
            from reput.watch.lag import LagProbe
            from reput.watch.metrics import Metrics

            registry, dialect = self._endpoint.registry, settings.dialect.name
            self._metrics = Metrics(registry, settings.root, root, dialect, state, LagProbe(settings))
            registry.register(TriggerCollector(self._last_progress))

    def table(self, table: Path, reached: Callable[[], int]) -> TableWatch:
        """Watch the table of messages, too; after :meth:`begin`.

        ``reached`` returns the physical offset up to which it holds the log.
        """
        if self._root is None:
            raise ValueError("it has not begun")
        metrics = None
        if self._metrics is not None and self._endpoint is not None:
            from reput.watch.metrics import TableMetrics

            metrics = TableMetrics(self._endpoint.registry, self._metrics, reached)
        return TableWatch(self._root, table, metrics)

    def follow(self, last: Callable[[], StreamingQueryProgress | None]) -> None:
        """Report a query's triggers from now on; ``last`` returns its last progress."""
        self._last = last

    def batch(self, state: State, stages: Mapping[str, float]) -> None:
        """After each batch; see :meth:`reput.watch.metrics.Metrics.batch`."""
        if self._metrics is not None:
            self._metrics.batch(state, stages)

    def restarted(self, reason: str) -> None:
        """When the pipeline is restarted; see :meth:`reput.watch.metrics.Metrics.restarted`."""
        if self._metrics is not None:
            self._metrics.restarted(reason)

    def _last_progress(self) -> StreamingQueryProgress | None:
        return self._last()


@contextmanager
def watching(metrics_port: int | None, metrics_address: str = "127.0.0.1") -> Iterator[Watch]:
    """Serve a tail's metrics while the block runs, before anything else begins.

    Port 0 stands for one that is free, None for no metrics.
    """
    with ExitStack() as stack:
        endpoint = None
        if metrics_port is not None:
            from reput.watch.metrics import served

            endpoint = stack.enter_context(served(metrics_port, metrics_address))
        yield Watch(endpoint)
