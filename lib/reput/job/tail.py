"""The tail job: the rebuild's pipeline, kept running behind a log that is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.topics import TopicsNow
from reput.format import names
from reput.job.cataloging import catalog_options
from reput.job.first_segment import first_segment
from reput.job.options import TailOptions
from reput.job.plan import prepare
from reput.job.summary import Summary, nothing_followed, summarize
from reput.store import files
from reput.watch.run import watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.catalog.beside import CatalogBeside
    from reput.output.writer import BatchWriter


def tail(
    options: TailOptions,
    start_spark: Callable[[], SparkSession],
    stopping: threading.Event,
    listener: Callable[[BatchWriter], None] = lambda _writer: None,
    announce: Callable[[str], None] = lambda _text: None,
    on_wait: Callable[[Path], None] = lambda _directory: None,
) -> Summary:
    """Follow a log until ``stopping`` is set or somebody puts a stop file into the output.

    Args:
        start_spark: gives the session; only called when nothing speaks against the run.
        stopping: ends the run at the next batch's end.
        listener: is told after each batch.
        announce: is told what an operator should know, in a few words.
        on_wait: is told where the log's first segment is waited for, if there is none yet.

    Raises:
        ReputError: refused or failed. The output is that of the last committed batch, or becomes so at the
            next start.
    """
    from reput.job.follow import follow

    started = time.perf_counter()
    to_catalog = catalog_options(options)
    table: CatalogBeside | None = None
    if to_catalog is not None:
        from reput.catalog.beside import CatalogBeside

        table = CatalogBeside(to_catalog)
    with ExitStack() as stack:
        watch = stack.enter_context(watching(options.metrics_port, options.metrics_address))
        log = stack.enter_context(first_segment(options, stopping.is_set, on_wait))
        if not log.is_there:
            return nothing_followed(log.settings, options.out, time.perf_counter() - started)
        plan = stack.enter_context(prepare(options, follows=True, lock=log.lock))
        if table is not None:
            stack.enter_context(table).check()
        before = replace(plan.journal.state)
        stop_file = plan.root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        watch.begin(plan.settings, plan.root, plan.journal.state)
        if watch.url is not None:
            announce(f"metrics are at {watch.url}")
        spark = start_spark()
        if table is not None:
            journal = plan.journal
            table.start(spark, lambda: journal.state.cursor, watch.table(table.path, table.reached))
        went_back = None if table is None else table.went_back
        stages = follow(plan, spark, stopping, watch, listener, went_back)
        cataloged = None if table is None else table.finish()
        files.remove_tree(stop_file)
        plan.known = TopicsNow(plan.settings.topics_json).known
        seconds = time.perf_counter() - started
        summary = summarize(plan, before, seconds, None, stages)
        return replace(summary, followed=True, catalog=cataloged)
