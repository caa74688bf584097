"""The tail job: the rebuild's pipeline, kept running behind a log that is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from reput.format import names
from reput.job.options import TailOptions
from reput.job.plan import prepare
from reput.job.summary import Summary, summarize
from reput.store import files
from reput.watch.run import watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.sink.writer import BatchWriter


def tail(
    options: TailOptions,
    start_spark: Callable[[], SparkSession],
    stopping: threading.Event,
    listener: Callable[[BatchWriter], None] = lambda _writer: None,
    announce: Callable[[str], None] = lambda _text: None,
) -> Summary:
    """Follow a log until ``stopping`` is set or somebody puts a stop file into the output.

    Args:
        start_spark: gives the session; only called when nothing speaks against the run.
        stopping: ends the run at the next batch's end.
        listener: is told after each batch.
        announce: is told what an operator should know, in a few words.

    Raises:
        ReputError: refused or failed. The output is that of the last committed batch, or becomes so at the
            next start.
    """
    from reput.job.follow import follow

    started = time.perf_counter()
    with (
        watching(options.metrics_port, options.metrics_address) as watch,
        prepare(options, follows=True) as plan,
    ):
        before = replace(plan.journal.state)
        stop_file = plan.root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        watch.begin(plan.settings, plan.root, plan.journal.state)
        if watch.url is not None:
            announce(f"metrics are at {watch.url}")
        spark = start_spark()
        stages = follow(plan, spark, stopping, watch, listener)
        files.remove_tree(stop_file)
        seconds = time.perf_counter() - started
        return replace(summarize(plan, before, seconds, None, stages), followed=True)
