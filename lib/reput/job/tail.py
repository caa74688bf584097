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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.sink.writer import BatchWriter


def tail(
    options: TailOptions,
    start_spark: Callable[[], SparkSession],
    stopping: threading.Event,
    listener: Callable[[BatchWriter], None] = lambda _writer: None,
) -> Summary:
    """Follow a log until ``stopping`` is set or somebody puts a stop file into the output.

    Args:
        start_spark: gives the session; only called when nothing speaks against the run.
        stopping: ends the run at the next batch's end.
        listener: is told after each batch.

    Raises:
        ReputError: refused or failed. The output is that of the last committed batch, or becomes so at the
            next start.
    """
    from reput.job.follow import follow

    started = time.perf_counter()
    with prepare(options, follows=True) as plan:
        before = replace(plan.journal.state)
        stop_file = plan.root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        spark = start_spark()
        stages = follow(plan, spark, stopping, listener)
        files.remove_tree(stop_file)
        seconds = time.perf_counter() - started
        return replace(summarize(plan, before, seconds, None, stages), followed=True)
