"""The tail job: the rebuild's pipeline, kept running behind a log that is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from reput.format import names
from reput.job.options import TailOptions
from reput.job.plan import Plan, prepare
from reput.job.summary import Summary, summarize
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.segments import discover

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
    started = time.perf_counter()
    with prepare(options, follows=True) as plan:
        before = replace(plan.journal.state)
        stop_file = plan.root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        spark = start_spark()
        writer = _follow(plan, spark, stopping, listener)
        files.remove_tree(stop_file)
        seconds = time.perf_counter() - started
        return replace(summarize(plan, before, seconds, None, writer.stages.seconds), followed=True)


def _follow(
    plan: Plan, spark: SparkSession, stopping: threading.Event, listener: Callable[[BatchWriter], None]
) -> BatchWriter:
    from reput.sink.following import Following
    from reput.sink.rollback import roll_back
    from reput.sink.streaming import SparkRunner
    from reput.sink.writer import BatchWriter

    runner = SparkRunner(spark.sparkContext)
    runner.warm_up()
    target = plan.target(flush_in_tasks=not runner.is_local)
    with OutputLock(plan.root, plan.owner).exclusive():
        roll_back(target, plan.journal.state)
    writer = BatchWriter(
        target,
        plan.journal,
        plan.log,
        runner,
        abort_present=plan.abort_present,
        look=lambda: discover(plan.settings),
    )
    writer.begin()  # may move the cursor, past what expired unread
    checkpoint = plan.root / names.REPUT / names.SPARK_CHECKPOINT
    files.remove_tree(checkpoint)
    following = Following(spark, writer, checkpoint, _source(plan), lambda _batch_id: listener(writer))
    following.run(stopping)
    writer.finish()
    writer.close()
    return writer


def _source(plan: Plan) -> dict[str, str]:
    """The source's options."""
    options = plan.options
    source = {
        "path": str(plan.settings.root),
        "content": "parts",
        "startOffset": str(plan.journal.state.cursor),
        "partBytes": str(options.part_bytes),
        "maxBytesPerTrigger": str(options.max_bytes_per_trigger),
        "stopFile": str(plan.root / names.REPUT / names.STOP),
    }
    if plan.settings.broker_conf:
        source["brokerConf"] = str(plan.settings.broker_conf)
    if options.rocketmq_version:
        source["rocketmqVersion"] = options.rocketmq_version
    return source
