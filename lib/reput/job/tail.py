"""The tail job: the rebuild's pipeline, kept running on a log that is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.settings import StoreSettings
from reput.config.topics import TopicsNow
from reput.errors import StoreError
from reput.format import names
from reput.job.options import TailOptions
from reput.job.output_directory import output_root
from reput.job.plan import prepare
from reput.job.summary import Summary, summarize
from reput.log.segments import discover
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.reading import check_store
from reput.watch.run import watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.catalog.beside import CatalogBeside
    from reput.output.writer import BatchWriter

#: Seconds between two checks for the first segment of a new broker.
_POLL_SECONDS = 0.1


def tail(
    options: TailOptions,
    start_spark: Callable[[], SparkSession],
    stopping: threading.Event,
    listener: Callable[[BatchWriter], None] = lambda _writer: None,
    announce: Callable[[str], None] = lambda _text: None,
    on_wait: Callable[[Path], None] = lambda _directory: None,
) -> Summary:
    """Follow a log until ``stopping`` is set or there is a stop file in the output.

    Args:
        start_spark: returns the session; only called once the run isn't refused.
        stopping: ends the run at the next batch's end.
        listener: is called after each batch.
        announce: gets what an operator should know, in a few words.
        on_wait: gets the directory where the log's first segment is expected, if the log has none yet.

    Raises:
        ReputError: refused or failed. The output is that of the last committed batch, or becomes so at the
            next start.
    """
    from reput.job.follow import follow

    started = time.perf_counter()
    to_catalog = options.to_catalog()
    table: CatalogBeside | None = None
    if to_catalog is not None:
        from reput.catalog.beside import CatalogBeside

        table = CatalogBeside(to_catalog)
    with ExitStack() as stack:
        watch = stack.enter_context(watching(options.metrics_port, options.metrics_address))
        log = stack.enter_context(first_segment(options, stopping.is_set, on_wait))
        if not log.is_there:
            return Summary(
                store=str(log.settings.root),
                output=str(options.out),
                in_place=False,
                rocketmq_version=log.settings.told_release,
                seconds=time.perf_counter() - started,
                followed=True,
                basis=log.settings.basis,
            )
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
        stages = follow(plan, spark, stopping, watch, listener, went_back, options.max_rate, announce)
        cataloged = None if table is None else table.finish()
        files.remove_tree(stop_file)
        plan.known = TopicsNow(plan.settings.config).known
        seconds = time.perf_counter() - started
        summary = summarize(plan, before, seconds, None, stages)
        return replace(summary, followed=True, catalog=cataloged)


@dataclass(frozen=True, slots=True)
class Awaited:
    """The result of waiting for a log's first segment."""

    settings: StoreSettings  # the store's
    is_there: bool  # there is a segment; otherwise the wait was ended by a request to stop
    lock: OutputLock | None = None  # the output's, held since the wait began; None if there was no wait


@contextmanager
def first_segment(
    options: TailOptions, is_over: Callable[[], bool], on_wait: Callable[[Path], None]
) -> Iterator[Awaited]:
    """Wait until the log has a segment, or ``is_over()``, or there is a stop file in the output.

    The lock stays held while the block runs, so that ``tail --stop`` finds one writer from first to last.

    Args:
        on_wait: called once, before a wait, with the directory where segments are expected.

    Raises:
        ReputError: the tail is refused.
    """
    check_store(options.store)
    settings = StoreSettings.load(
        options.store,
        options.broker_conf,
        options.rocketmq_version,
        rocksdb=True,
        elsewhere=True,
        asked=options.asked,
    )
    if options.out is None or _has_segment(settings):
        yield Awaited(settings, is_there=True)
        return
    root = output_root(options.out, settings)
    files.make_dirs(root / names.REPUT)
    with OutputLock(root) as lock:
        stop_file = root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        on_wait(settings.commit_log_dirs[0])
        while not (is_there := _has_segment(settings)) and not (is_over() or stop_file.exists()):
            time.sleep(_POLL_SECONDS)
        if not is_there:
            files.remove_tree(stop_file)
        yield Awaited(settings, is_there, lock)


def _has_segment(settings: StoreSettings) -> bool:
    """Whether there is a log to read, or anything there but what a broker makes when it starts.

    That is the directory, and with 5.x a first file of no bytes.
    """
    try:
        discover(settings)
    except StoreError:
        return any(map(_has_bytes, settings.commit_log_dirs))
    return True


def _has_bytes(directory: Path) -> bool:
    try:
        return any(path.stat().st_size for path in directory.iterdir() if path.is_file())
    except FileNotFoundError:
        return False  # not made yet, or a file that has just gone
    except OSError:
        return True  # whoever reads it next reports what it is
