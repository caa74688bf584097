"""Two stores' queues and index side by side: a master's and its slave's, or a store's and a rebuilt one's.

A slave has its master's log byte for byte, so that what is derived of what both have is the same, wherever
their logs begin and end, and whatever their index files are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError
from reput.format import names
from reput.log.segments import discover, without_unwritten_end
from reput.replay.runner import Runner, on_this_host
from reput.replay.target import Selection
from reput.statistics import Listener
from reput.store.witness import store_seen
from reput.verify.batch import compare_batch_queues
from reput.verify.index import compare_index
from reput.verify.plan import VerifyOptions, may_be_running, no_such_queue, open_store, queues_on_disk
from reput.verify.queue_files import compare_queues
from reput.verify.report import Note, Report
from reput.verify.rocksdb_index import compare_indexes
from reput.verify.rocksdb_queues import compare_databases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Pair:
    """Two stores to compare."""

    options: VerifyOptions
    first: StoreSettings  # first, second: their settings
    second: StoreSettings
    start: int  # start, end: physical offsets that both logs have, half open
    end: int
    running: bool  # somebody writes to one of them
    #: a tagsCode may be an address in consumequeue_ext, which each broker gives by itself
    queue_ext: bool

    @property
    def stores(self) -> tuple[StoreSettings, StoreSettings]:
        """The settings of both."""
        return self.first, self.second

    def parts(self) -> Iterator[tuple[int, int]]:
        """What both logs have, in half-open ranges of physical offsets that a task takes."""
        step = self.options.part_bytes
        for start in range(self.start, self.end, step):
            yield start, min(start + step, self.end)


def verify_against(
    pair: Pair,
    start_spark: Callable[[], SparkSession] | None,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Report:
    """Compare a store's derived files with another's.

    Args:
        start_spark: gives the session; only called when nothing speaks against the run. None: on processes of
            this host, without Spark.
        listener: gets bytes of queue files that were compared, units, and 0, since their sum is not known.
    """
    if start_spark is None:
        elsewhere = any(settings.remote is not None for settings in pair.stores)
        with on_this_host(pair.end - pair.start, elsewhere=elsewhere) as runner:
            return compare_pair(pair, runner, listener)
    from reput.spark.runner import SparkRunner
    from reput.spark.sessions import converting_spark_errors

    with converting_spark_errors():
        runner = SparkRunner(start_spark().sparkContext)
        if not runner.is_local:
            runner.demand(*(store_seen(settings.root, live=pair.running) for settings in pair.stores))
        return compare_pair(pair, runner, listener)


def prepare_pair(options: VerifyOptions) -> Pair:
    """Look at what there is; a second store without a commit log is taken to have the first one's.

    Raises:
        ReputError: they can't be compared.
    """
    from reput.log.end import LogEnd

    if options.against is None:
        raise SettingsError("there is nothing to compare with", expected="--against DIR")
    stores = [open_store(root, options) for root in (options.store, options.against)]
    bounds: list[tuple[int, int]] = []
    for settings in stores:
        try:
            log = without_unwritten_end(discover(settings))
        except StoreError:
            if not bounds:
                raise
            continue
        bounds.append((log.start, LogEnd(settings).find(log)))
    start, end = max(low for low, _ in bounds), min(high for _, high in bounds)
    if stores[0].rocksdb.files:
        _refuse_unknown(stores, Selection.parse(options.queues))
    return Pair(
        options=options,
        first=stores[0],
        second=stores[1],
        start=start,
        end=max(start, end),
        running=any(may_be_running(settings.root) for settings in stores),
        queue_ext=any((settings.root / names.CONSUME_QUEUE_EXT).is_dir() for settings in stores),
    )


def _refuse_unknown(stores: list[StoreSettings], selection: Selection) -> None:
    """See that one of the stores has what was asked for: two that don't have it are the same."""
    kinds = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
    for topic, queue_id in sorted(selection.queues, key=str):
        one = Selection(frozenset({(topic, queue_id)}))
        if not any(queues_on_disk(each.root / kind, one) for each in stores for kind in kinds):
            expected = "a queue that has files in one of the stores"
            raise no_such_queue(stores[0].root, (topic, queue_id), expected)


def compare_pair(
    pair: Pair,
    runner: Runner,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Report:
    """Compare two stores, with tasks run by ``runner``.

    Raises:
        ReputError: something can't be read.
    """
    selection = Selection.parse(pair.options.queues)
    report = Report(against=pair.second.place, start=pair.start, end=pair.end, broker_running=pair.running)
    ext = compare_queues(pair, runner, selection, report, listener)
    compare_batch_queues(pair, runner, selection, report)
    if pair.first.rocksdb.queues is not None:
        compare_databases(pair, runner, selection, report)
    if selection.is_all and pair.options.index:
        compare_index(pair, runner, report)
        if pair.first.rocksdb.index or pair.second.rocksdb.index:
            compare_indexes(pair, runner, report)
    else:
        report.not_checked.append(Note("index", "the index: queues were chosen, or --no-index"))
    if ext:
        text = (
            f"the bit maps of {ext:,} units in {names.CONSUME_QUEUE_EXT}, and where there their records stand"
        )
        report.not_checked.append(Note("queue-ext", text, count=ext))
    return report
