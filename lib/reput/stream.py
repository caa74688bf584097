"""The streaming queries: a tail's, until it is stopped, and a rebuild's, until all there is is committed."""

from __future__ import annotations

import ctypes
import gc
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from reput.errors import LogWentBackError, OutputError, ReputError, SparkError
from reput.log.segments import CommitLog
from reput.output.writer import BatchWriter, part_of
from reput.source import CommitLogDataSource, register
from reput.spark.sessions import scratch_places, spark_error
from reput.spark.stack import LIMITS_READS
from reput.store import files
from reput.store.system import unwritten

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from pyspark import SparkContext
    from pyspark.sql.streaming.query import StreamingQuery


def give_back(context: SparkContext) -> None:
    """Have the driver's JVM and this process give back free memory: for a moment when nothing is to be done.

    The JVM collects garbage, which stops it for a tenth of a second or two, and it collects none by itself
    while it makes none.
    """
    context._jvm.System.gc()  # type: ignore[union-attr]
    gc.collect()
    with suppress(OSError, AttributeError):  # the C library isn't GNU's
        ctypes.CDLL(None).malloc_trim(0)


# Spark gets a short error for that batch. It looks for the name of an interruption in the text of a batch's
# error, by a regular expression that recurses for each character (StreamExecution.PROXY_ERROR in 4.2.0).
# py4j's error for a cancelled job begins with that name, but continues with two stack traces, which at times
# overflow the thread's stack. An operator who only pressed Ctrl-C would see a thousand lines of
# StackOverflowError.


@contextmanager
def in_few_words(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Wraps the function that Spark calls for a batch.

    Raises InterruptedError, without the original error, where it failed after the query was stopped.
    """
    try:
        yield
    except Exception:
        if is_stopped():
            raise InterruptedError("the query was stopped") from None
        raise


def until_it_ends(spark: SparkSession, query: StreamingQuery, stopped: threading.Event) -> None:
    """Wait for a query's end; Ctrl-C ends the waiting, but no call into the JVM halfway, and stops the query.

    ``stopped`` is set before that, for :func:`in_few_words`. Raises what the query failed with.
    """
    try:
        _await(query)
    except BaseException:
        stopped.set()
        stop(spark.sparkContext, query)
        raise


def ended(query: StreamingQuery) -> tuple[threading.Event, list[BaseException]]:
    """An event that a thread sets when the query has ended, and then what it failed with, if it did.

    Asking again and again would cost a call into the JVM each time.
    """
    over = threading.Event()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            query.awaitTermination()
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            failures.append(error)
        finally:
            over.set()

    threading.Thread(target=wait, name="reput-await", daemon=True).start()
    return over, failures


def stop(context: SparkContext, query: StreamingQuery) -> None:
    """Stop a query, also in the middle of a batch; does nothing if the session is gone.

    Spark and Delta Lake log each commit and fetch that is cut off as an error; here that is expected.
    """
    with suppress(PySparkException, Py4JError, ConnectionError), _without_logging(context):
        query.stop()


@contextmanager
def _without_logging(context: SparkContext) -> Iterator[None]:
    level = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().name()  # type: ignore[union-attr]
    context.setLogLevel("OFF")
    try:
        yield
    finally:
        context.setLogLevel(level)


def _await(query: StreamingQuery) -> None:
    over, failures = ended(query)
    over.wait()
    if failures:
        raise failures[0]


# Spark doesn't flush it, so a power loss may leave it empty, torn or behind, and an empty file in it stops a
# query for good. It decides nothing: the journal's cursor does. A checkpoint that can't be used is set aside.

_OFFSETS, _COMMITS, _METADATA = "offsets", "commits", "metadata"
_ASIDE = ".aside"
#: Errors that reading and parsing a file raises that Spark didn't write this way.
_UNLIKE = (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Planned:
    """The last batch that a stream planned."""

    batch_id: int  # its number
    end: int  # the physical offset that it was to reach


def last_planned(checkpoint: Path) -> Planned | None:
    """The last batch that a checkpoint says was planned.

    None if a file that Spark would read is missing, torn or not as Spark 4.2 writes it.
    """
    try:
        json.loads((checkpoint / _METADATA).read_bytes())["id"]
        offsets, commits = _numbered(checkpoint / _OFFSETS), _numbered(checkpoint / _COMMITS)
        if not offsets or offsets[-1] - (commits[-1] if commits else -1) not in (0, 1):
            return None
        # At its start a query reads the newest two of either.
        ends = [_end(checkpoint / _OFFSETS / str(number)) for number in offsets[-2:]]
        for number in commits[-2:]:
            version, _, facts = (checkpoint / _COMMITS / str(number)).read_text().partition("\n")
            _is_version(version)
            json.loads(facts)
        return Planned(offsets[-1], ends[-1])
    except _UNLIKE:
        return None


def planned_end(checkpoint: Path, batch_id: int) -> int | None:
    """The physical offset that a planned batch is to reach; None where that can't be read."""
    try:
        return _end(checkpoint / _OFFSETS / str(batch_id))
    except _UNLIKE:
        return None


def set_aside(checkpoint: Path) -> None:
    """Make room for a new checkpoint; one that was set aside before is removed."""
    if not checkpoint.exists():
        return
    aside = checkpoint.with_name(checkpoint.name + _ASIDE)
    files.remove_tree(aside)
    files.rename(checkpoint, aside)


def _numbered(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def _end(path: Path) -> int:
    """The end offset of a planned batch: version, the batch's metadata, one line for our one source."""
    version, facts, source = path.read_text().split("\n")
    _is_version(version)
    json.loads(facts)
    return int(json.loads(source)["offset"])


def _is_version(line: str) -> None:
    if line not in ("v1", "v2"):
        raise ValueError(line)


# Spark knows the rows of a micro-batch, which are parts of the log, and the offsets of its source. More facts
# are added to its progress as observed metrics of the stream: a few sums over these rows, which Spark
# computes while the batch is read, under the name :data:`NAME`. They are right if the batch is read once;
# reading the batch's data frame again adds to them.
#
# A listener in Python isn't used. It is called over a socket for each batch: on two cores that slowed a batch
# from 75 ms to 107 ms, and the calls fell behind. Reading ``query.lastProgress`` now and then doesn't slow
# batches down.

#: The name of the observed metrics, in the progress's ``observedMetrics``.
NAME = "reput"


def observed(parts: DataFrame) -> DataFrame:
    """The source's parts, with their sums observed in Spark's progress; to be used before ``writeStream``."""
    from pyspark.sql import functions as sql

    return parts.observe(
        NAME,
        sql.count(sql.lit(1)).alias("parts"),
        sql.sum(sql.col("end") - sql.col("start")).alias("bytes"),
        sql.sum("messages").alias("messages"),
        sql.min("firstTimestamp").alias("firstTimestamp"),
        sql.max("logEnd").alias("logEnd"),
        sql.max("logTimestamp").alias("logTimestamp"),
    )


class TriggerCollector(Collector):
    """How long Spark's last trigger took, at the moment of each scrape, by its progress, if there is one."""

    def __init__(self, last: Callable[[], StreamingQueryProgress | None]) -> None:
        self._last = last

    def describe(self) -> Iterable[Metric]:
        """The name, for the registry, without a value."""
        return [self._family({})]

    def collect(self) -> Iterable[Metric]:
        """The values; none when the query's session is gone."""
        steps: Mapping[str, int] = {}
        with suppress(PySparkException, Py4JError, ConnectionError):
            progress = self._last()
            # Before the first batch there is no end, or the text "null".
            if (
                progress is not None
                and progress.sources
                and progress.sources[0].endOffset not in (None, "null")
            ):
                steps = progress.durationMs
        return [self._family(steps)]

    def _family(self, steps: Mapping[str, int]) -> Metric:
        family = GaugeMetricFamily(
            "reput_trigger_duration_seconds", "Spark's last trigger, by what it did", labels=["step"]
        )
        for step, duration in sorted(steps.items()):
            family.add_metric([step], duration / 1000)
        return family


_POLL_SECONDS = 0.05
#: How often the log's start is checked while no batch comes.
_RETENTION_SECONDS = 5.0
#: After so long without a batch, memory that the last ones needed is given back.
_REST_SECONDS = 20.0
#: The query counts as idle when it was so at this many checks in a row.
_IDLE_CHECKS = 3
#: For a stream of which a batch has a row or two, some twenty times a second. To generate code for each takes
#: longer than to do without, and so does a plan in many words; and Spark lists the batches on disk each time.
_SMALL_BATCHES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.optimizer.maxIterations": "1",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.streaming.minBatchesToRetain": "10",
}
#: A batch that takes longer than this after a request to stop is cut off, as by a crash.
_STOP_SECONDS = 60.0


class TailQuery:
    """A query over the parts of a log that grows, each batch written by a :class:`BatchWriter`.

    ``checkpoint`` is Spark's own, absolute, on a file system that the driver has mounted; ``options`` are the
    source's, ``stopFile`` among them; ``listener`` is called after each batch. ``settled`` gives the log's
    settled end by now, at least the physical offset that it is given. A small batch is written up to there:
    what came while Spark planned it needn't wait for the next one. Raises SparkError where the query doesn't
    start.
    """

    def __init__(
        self,
        spark: SparkSession,
        writer: BatchWriter,
        checkpoint: Path,
        options: dict[str, str],
        listener: Callable[[BatchWriter], None] = lambda _writer: None,
        settled: Callable[[int], int] = lambda end: end,
    ) -> None:
        self._writer = writer
        self._settled = settled
        self._listener = listener
        self._stop_file = Path(options["stopFile"])
        self._gate = threading.Lock()
        self._closed = False
        self._failure: ReputError | None = None
        self._root = checkpoint.parent
        self._checkpoint = checkpoint
        self._context = spark.sparkContext
        self._pool = ThreadPoolExecutor(1, "reput-rows")
        self._active = time.monotonic()
        self._is_at_rest = False
        try:
            register(spark)
            stream = spark.readStream.format(CommitLogDataSource.name()).options(**options).load()
            with _set(spark, _SMALL_BATCHES):  # a query keeps the settings of its start
                self._query = (
                    observed(stream)
                    .writeStream.foreachBatch(in_few_words(lambda: self._closed)(self._write))
                    .option("checkpointLocation", f"file://{checkpoint}")
                    .start()
                )
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise spark_error(error, checkpoint, checkpoint.parent) from None

    def run(self, stopping: threading.Event) -> None:
        """Follow until ``stopping`` is set or the stop file is there; return when no batch is under way.

        Raises ReputError where a batch failed, or didn't end; the committed state is as it was. Of them
        LogWentBackError says that the log's broker cut it.
        """
        try:
            looked = time.monotonic()
            is_over, _ = ended(self._query)
            while not (stopping.wait(_POLL_SECONDS) or self._stop_file.exists()):
                if is_over.is_set():
                    self._check()
                if time.monotonic() - looked > _RETENTION_SECONDS:
                    self._retain()
                    looked = time.monotonic()
                    self._rest()
            self._wait_until_idle()
            self._close()
            if self._failure is not None:
                raise self._failure
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise self._failure or _error(error, self._checkpoint) from None
        finally:
            self._end()

    def last_progress(self) -> StreamingQueryProgress | None:
        """Spark's own account of the last micro-batch; None before the first one.

        Raises Py4JError or ConnectionError where the session is gone.
        """
        return self._query.lastProgress

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        # Spark has already written the batch's end to its offset log. Collecting the rows, which give the
        # same end, takes a job of 50 ms: a small batch is written meanwhile.
        end = planned_end(self._checkpoint, batch_id)
        collected = self._pool.submit(rows.collect)
        if end is not None:
            with self._open_gate():
                if self._writer.is_small(end):
                    by_now = self._settled(end)
                    self._writer.write_to(by_now if self._writer.is_small(by_now) else end, batch_id)
        parts = [part_of(row) for row in collected.result()]
        with self._open_gate():
            self._writer.write(parts, batch_id)
        self._listener(self._writer)
        self._active, self._is_at_rest = time.monotonic(), False

    @contextmanager
    def _open_gate(self) -> Iterator[None]:
        """Exclude other writers, and keep an error for the thread that waits for the query's end."""
        with self._gate:
            if self._closed:
                raise InterruptedError("the tail has ended")
            try:
                yield
            except ReputError as error:
                self._failure = error
                raise
            except ConnectionError:  # an OSError that says nothing of files: the session is gone
                raise
            except OSError as error:
                self._failure = unwritten(error, self._root, *scratch_places())
                raise

    def _retain(self) -> None:
        """Follow the log's start while there is no batch that would."""
        if self._gate.locked():
            return
        try:
            with self._open_gate():
                self._writer.write([], -1)
        except OSError as error:
            raise self._failure or error from error

    def _rest(self) -> None:
        """Give memory back, once, when the log has been silent for a while."""
        if not self._is_at_rest and time.monotonic() - self._active > _REST_SECONDS:
            self._is_at_rest = True
            give_back(self._context)

    def _check(self) -> None:
        """Raise what ended the query."""
        if self._query.isActive:
            return
        error = self._query.exception()
        raise self._failure or (
            OutputError(
                "the stream has ended by itself",
                path=self._root,
                next_step="Start it again: it goes on there",
            )
            if error is None
            else _error(error, self._checkpoint)
        )

    def _wait_until_idle(self) -> None:
        """Wait until the last batch of the source, which sees the stop file, is done."""
        if not self._stop_file.exists():
            files.write_atomically(self._stop_file, b"")
        deadline = time.monotonic() + _STOP_SECONDS
        checks = 0
        while checks < _IDLE_CHECKS and time.monotonic() < deadline:
            self._check()
            time.sleep(_POLL_SECONDS)
            idle = not self._gate.locked() and not self._query.status["isDataAvailable"]
            checks = checks + 1 if idle else 0

    def _close(self) -> None:
        """Let no batch begin any more; SparkError where one doesn't end."""
        if not self._gate.acquire(timeout=_STOP_SECONDS):
            raise SparkError(
                "the batch under way doesn't end",
                path=self._root,
                next_step="Check Spark's executors; the next start rolls back what this batch has written",
            )
        self._closed = True
        self._gate.release()

    def _end(self) -> None:
        """Stop the query; on return nothing writes any more, unless a batch is stuck."""
        self._closed = True
        if self._gate.locked():
            with suppress(PySparkException, Py4JError, ConnectionError):
                self._context.cancelAllJobs()
        stop(self._context, self._query)
        if self._gate.acquire(timeout=_STOP_SECONDS):
            self._gate.release()
        self._pool.shutdown(wait=False)


@contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Meanwhile the session has these settings."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def _error(error: BaseException, checkpoint: Path) -> ReputError:
    """The error that ended a query, in reput's terms."""
    offset = LogWentBackError.in_text(str(error))
    failed = spark_error(error, checkpoint, checkpoint.parent)
    return failed if offset is None else LogWentBackError(str(failed.found), offset=offset)


#: Each query needs a source that was registered for it: one that starts changes the environment in its source
#: (StreamingPythonRunner in Spark 4.2.0), of which a task of another could then get half.
_own_source = threading.Lock()


def run_available(
    spark: SparkSession, writer: BatchWriter, checkpoint: Path, log: CommitLog, options: dict[str, str]
) -> int:
    """Run a query over the parts of the log until everything available is committed.

    ``checkpoint`` is absolute, on a file system that the driver has mounted; ``log``, as the run sees it, may
    leave out segments that the source still lists. Returns the physical offset up to which Spark delivered
    parts, -1 if it delivered none. Raises the writer's error, when it failed, or SparkError.
    """
    failures: list[ReputError] = []
    asked = -1
    last = log.segments[-1].base
    stopped = threading.Event()

    @in_few_words(stopped.is_set)
    def write(rows: DataFrame, batch_id: int) -> None:
        nonlocal asked
        try:
            parts = [part_of(row) for row in rows.collect()]
            asked = max([asked, *(part.end for part in parts)])
            writer.write([replace(part, last=part.base == last) for part in parts], batch_id)
        except ReputError as error:
            failures.append(error)
            raise
        except ConnectionError:  # an OSError that says nothing of files: the session is gone
            raise
        except OSError as error:
            failures.append(unwritten(error, checkpoint.parent, *scratch_places()))
            raise

    try:
        while True:
            before = asked
            with _own_source:
                register(spark)
                stream = spark.readStream.format(CommitLogDataSource.name()).options(**options).load()
            query = (
                stream.writeStream.foreachBatch(write)
                # With its scheme: otherwise the path would be on Hadoop's default file system.
                .option("checkpointLocation", f"file://{checkpoint}")
                .trigger(availableNow=True)
                .start()
            )
            until_it_ends(spark, query, stopped)
            # Before 4.2, Spark takes one batch of a limited stream for all that is available.
            if LIMITS_READS or asked == before:
                break
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise failures[0] if failures else spark_error(error, checkpoint, checkpoint.parent) from None
    return asked
