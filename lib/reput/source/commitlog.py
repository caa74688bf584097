"""The data source ``rocketmq-commitlog`` itself: planning here, reading in :mod:`reput.source.messages`.

Spark plans in Python processes of its own and pickles what they return. This module therefore loads neither
numba nor pandas: parts are planned by arithmetic, and kernels load where the log is read.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reput.errors import LogWentBackError, SegmentGoneError, SettingsError, StoreError
from reput.format import dledger
from reput.format.commitlog import store_timestamp
from reput.log import walk
from reput.log.segments import CommitLog, Segment, batch_end, cut, discover, map_segment, next_place
from reput.remote import is_elsewhere
from reput.scan.output import Status
from reput.scan.rules import Part
from reput.source.columns import (
    MESSAGE_COLUMNS,
    MESSAGE_FILTERS,
    PART_COLUMNS,
    STORE_COLUMN,
    arrow_schema,
    chosen,
    spark_schema,
)
from reput.source.filters import ALL, FilteredReader, Range, Wanted, parse
from reput.source.options import MESSAGES, PARTS, Options
from reput.source.ranges import ReadStatistics, reported
from reput.spark import worker_daemon
from reput.spark.stack import (
    LIMITS_READS,
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SimpleDataSourceStreamReader,
    SupportsTriggerAvailableNow,
)
from reput.store.witness import FileSeen, missing, naming_host, witnesses

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from reput.config.settings import StoreSettings
    from reput.log.end import LogEnd
    from reput.log.live import LiveLog
    from reput.log.record_walk import RecordWalk
    from reput.source.proven import ProvenQueues
    from reput.verify.proven import QueueUnits

_LOG = logging.getLogger(__name__)
_OFFSET = "offset"
_STORE_TIMESTAMP = "storeTimestamp"
_EXPIRED = "expiredBytes"
#: A call that finds nothing new in a live log waits for it this long: Spark takes some milliseconds to ask.
_WAIT_SECONDS = 1.0
#: How long the end of a live log is given to settle before a run to that end begins.
_SETTLE_SECONDS = 2.5
#: With a limited rate, a batch takes what there is or at least this part of a second's worth.
_LEAST_OF_SECOND = 10
#: Bytes of a record and its entry's header that tell its time, at the most.
_HEAD = 144
#: Going over the headers of so many bytes takes some milliseconds.
_MOST_COUNTED = 32 << 20
#: As many are counted while the kernel isn't loaded, in some tens of milliseconds.
_FEW_RECORDS = 2000

#: For ``spark.read.format`` and ``spark.readStream.format``.
NAME = "rocketmq-commitlog"

worker_daemon.hide_closed_connections_of_planner()


class CommitLogDataSource(DataSource):
    """Commit logs of stores: a row a message, or a part of the log. docs/data/columns.md lists the options.

    Raises:
        SettingsError: an option can't be used.
        UnsupportedError: the store uses a feature that reput doesn't read.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = Options.parse(dict(options))
        is_messages = self._options.content == MESSAGES
        self._columns = MESSAGE_COLUMNS if is_messages else PART_COLUMNS
        self._filters: Mapping[str, str] = MESSAGE_FILTERS if is_messages else {}
        self._where = parse(self._options.shared.where, self._filters).in_queues(self._options.queues)

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return NAME

    @property
    def columns(self) -> Mapping[str, str]:
        """All columns of the content, and ``store`` where ``storeColumn`` asks for it, with their types."""
        return {**(STORE_COLUMN if self._options.store_column else {}), **self._columns}

    def schema(self) -> StructType:
        """These, as Spark has them."""
        return spark_schema(self.columns)

    def reader(self, schema: StructType | Iterable[str]) -> FilteredReader:
        """The batch reader; ``schema`` may name some of the columns, and be these names alone."""
        return _BatchReader(self._options, self._chosen(schema), self._filters, self._where)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The stream reader; ``schema`` may name some of the columns.

        Raises:
            PySparkNotImplementedError: :meth:`simpleStreamReader` is for these options.
        """
        if self._options.content == PARTS and (self._options.live or not LIMITS_READS):
            from pyspark.errors import PySparkNotImplementedError

            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED", messageParameters={"feature": "streamReader"}
            )
        options = self._options
        limits = {
            "maxBytesPerTrigger": options.max_bytes_per_trigger,
            "maxMessagesPerTrigger": options.max_messages_per_trigger,
            "maxBytesPerSecond": options.max_bytes_per_second,
        }
        if not LIMITS_READS and any(limits.values()):
            raise SettingsError(
                "Spark before 4.2 asks a stream for all that is there, and can't limit a batch",
                expected=f"a stream of messages without {', '.join(limits)}",
                next_step="Leave them out, or use Spark 4.2",
            )
        return CommitLogStreamReader(options, self._chosen(schema), self._where)

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802 - Spark's name
        """The stream reader for parts; ``schema`` may name some of the columns."""
        return PartsReader(CommitLogStreamReader(self._options, self._chosen(schema), self._where))

    def _chosen(self, schema: StructType | Iterable[str]) -> tuple[str, ...]:
        # A part's path tells its store.
        store = STORE_COLUMN if self._options.content == MESSAGES else {}
        return chosen(schema, {**self._columns, **store})


class Counted(NamedTuple):
    """What a part holds; None where it isn't known."""

    messages: int | None = None  # records that begin in it
    first_timestamp: int | None = None  # the first one's storeTimestamp, ms
    log_end: int | None = None  # the log's end when it was planned, whatever the limits
    log_timestamp: int | None = None  # the storeTimestamp of the last record before that, ms


class _Plan:
    """What both readers do with a store: find its log and the end, cut ranges into partitions, read."""

    def __init__(self, options: Options, settings: StoreSettings, names: tuple[str, ...]) -> None:
        self._options = options
        self._settings = settings
        self._names = names
        self._log_end: LogEnd | None = None
        self._live: LiveLog | None = None
        self._records: RecordWalk | None = None
        self._proven: ProvenQueues | None = None

    def __getstate__(self) -> dict[str, object]:
        # Tasks get the reader, too; what it remembers of the log's end is the planner's alone.
        return {**self.__dict__, "_log_end": None, "_live": None, "_records": None, "_proven": None}

    def start(self, log: CommitLog) -> int:
        """Where reading begins.

        Raises:
            SettingsError: startOffset lies behind the log.
            StoreError: a segment can't be read.
        """
        options = self._options
        if options.starts_at_end or options.start_timestamp is not None:
            end = self.live.settle(_SETTLE_SECONDS) if options.live else self.end(log)
            return end if options.start_timestamp is None else self._since(log, end, options.start_timestamp)
        start = options.start_offset
        if start is None:
            return log.start
        most = log.segments[-1].base + log.segment_size
        if start > most:
            raise SettingsError(
                "startOffset lies behind the commit log",
                path=log.segments[-1].path,
                expected=f"at most {most}",
                found=start,
            )
        return start

    def _since(self, log: CommitLog, end: int, timestamp: int) -> int:
        """Where the first record of a time or later stands; the end where there is none yet."""
        wanted = Wanted(ranges={"storeTimestamp": Range(low=timestamp)})
        kept = segments_within(log, wanted, self._options.shared.time_slack_ms, ReadStatistics())
        start = kept[0].base if kept else end
        found = self.records.first_since(log, start, end, timestamp)
        return end if found is None else found

    @property
    def records(self) -> RecordWalk:
        """What counts them."""
        if self._records is None:
            from reput.log.record_walk import RecordWalk

            self._records = RecordWalk(self._settings)
        return self._records

    def end(self, log: CommitLog) -> int:
        """Where reading ends: endOffset or the file's end if that comes first, else after the last record."""
        if self._options.end_offset is not None:
            return min(self._options.end_offset, log.end)
        if self._log_end is None:
            from reput.log.end import LogEnd

            self._log_end = LogEnd(self._settings)
        return self._log_end.find(log)

    @property
    def end_time(self) -> dict[str, int]:
        """The last record's storeTimestamp, ms, as a stream's progress has it, if the end was looked for."""
        return {} if self._log_end is None else {_STORE_TIMESTAMP: self._log_end.timestamp}

    def end_after(self, log: CommitLog, kept: Sequence[Segment], reads: ReadStatistics) -> int:
        """What :meth:`end` says; not looked for when nothing of the log's last part is wanted.

        Args:
            kept: its segments that are wanted.
        """
        if not kept:
            return log.start
        # Behind a segment that begins with a record, the end can't lie before it.
        behind = [segment for segment in log.segments if segment.base > kept[-1].base]
        if self._options.end_offset is None and not any(first_time(log, one, reads) for one in behind[:1]):
            end = self.end(log)
            walked = [segment for segment in log.segments if segment.base + segment.length >= end]
            # Each is opened for what was written of it, and to be walked.
            reads.files += len(walked) * (1 if self._settings.remote is not None else 2)
            reads.passed += min(max(end - walked[0].base, 0), walked[0].length) if walked else 0
            return end
        end = log.end if self._options.end_offset is None else self.end(log)
        return min(end, kept[-1].base + kept[-1].length)

    @property
    def live(self) -> LiveLog:
        """The log as one that a broker is writing."""
        if self._live is None:
            from reput.log.live import LiveLog

            options = self._options
            self._live = LiveLog(self._settings, options.start_offset, options.after_timestamp or 0)
        return self._live

    def partitions(
        self,
        log: CommitLog,
        start: int,
        end: int,
        kept: Sequence[Segment] | None = None,
        wanted: Wanted | None = None,
        reads: ReadStatistics | None = None,
        *,
        follows: bool = False,
    ) -> list[InputPartition]:
        """A partition a part for messages, one for all parts else: those are a few bytes each.

        Args:
            start, end: physical offsets.
            kept: the segments that are wanted; None for all.
            wanted: which messages; None for all.
            follows: for a stream.

        Raises:
            SegmentGoneError: what a stream was to read has expired, and that is to be its end.
        """
        options = self._options
        if start < min(log.start, end):
            if follows and options.fails_on_loss:
                raise _expired(log.segments[0].path.parent, start, f"one that begins at {log.start}")
            _LOG.warning(
                "%s: the commit log begins at offset %d; messages from %d on have expired and are left out",
                log.segments[0].path.parent,
                log.start,
                start,
            )
        if follows and options.fails_on_loss:
            for one, after in pairwise(log.segments):
                gap = one.base + log.segment_size
                if max(start, gap) < min(end, after.base):
                    raise _expired(
                        one.path.parent,
                        max(start, gap),
                        f"none between {one.path.name} and {after.path.name}",
                    )
        part_bytes = options.shared.part_bytes
        if self._settings.remote is not None and options.content == MESSAGES:
            part_bytes = log.segment_size  # each part's reader goes over its segment from the first byte
        parts = list(cut(log, start, end, part_bytes, options.start_offset))
        if kept is not None:
            paths = {str(segment.path) for segment in kept}
            parts = [part for part in parts if part.path in paths]
        if wanted is not None and wanted.range_of("physicalOffset") != ALL:
            # A part's records are those whose frames begin in it; an entry's header stands before the record.
            lead = dledger.HEADER_LENGTH if log.entries else 0
            parts = list(_clipped(parts, wanted.range_of("physicalOffset"), lead))
        if options.content == MESSAGES:
            units = self._units(log, wanted or Wanted())
            parts = [part for part in parts if units.get(part.path) != ()]
            newest = str(log.segments[-1].path)
            return list(_message_partitions(parts, newest, units, reads or ReadStatistics()))
        return [InputPartition(parts)] if parts else []

    def _units(self, log: CommitLog, wanted: Wanted) -> dict[str, tuple[QueueUnits, ...] | None]:
        """By segment, the units of all messages that are wanted; None where they aren't known."""
        if self._options.proofs is None or "topic" not in wanted.texts:
            return {}
        from reput.source.proven import ProvenQueues

        self._proven = self._proven or ProvenQueues.load(self._options.proofs, self._settings)
        return {str(segment.path): self._proven.units(segment, wanted) for segment in log.segments}

    def discover(self) -> CommitLog:
        """The log as it is now."""
        return discover(self._settings)

    def read(
        self,
        partition: InputPartition | None,
        wanted: Wanted | None = None,
        reads: ReadStatistics | None = None,
        *,
        follows: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """A partition's rows. When there are none, Spark makes an empty partition up, or gives None (4.1).

        Args:
            wanted: which messages; None for all.
            follows: for a stream, which may leave out a segment that has expired since it was planned.
        """
        if isinstance(partition, _MessagePartition):
            from reput.source import messages

            part = partition.part
            try:
                with naming_host(partition.host), partition.expiring():
                    yield from messages.read(
                        part,
                        self._settings,
                        self._names,
                        wanted,
                        reads,
                        partition.witness,
                        units=partition.units,
                    )
            except SegmentGoneError as error:
                if not follows:
                    raise
                if self._options.fails_on_loss:
                    path = Path(part.path)
                    raise _expired(path.parent, part.start, f"one without {path.name}") from error
                _LOG.warning(
                    "%s has expired; messages from %d to %d are left out", part.path, part.start, part.end
                )
            return
        parts: list[Part] = (partition and partition.value) or []
        if parts:
            yield self.rows(parts)

    def rows(self, parts: list[Part], seen: Mapping[str, int] | None = None) -> pa.RecordBatch:
        """The rows of parts.

        Args:
            parts: at least one.
            seen: the log's end when they were planned, as Spark is told of it; None if it isn't known.
        """
        counted = [Counted()] * len(parts)
        if self._options.live:
            end = {} if seen is None else {"log_end": seen[_OFFSET], "log_timestamp": seen[_STORE_TIMESTAMP]}
            counted = [_count(part, self._settings)._replace(**end) for part in parts]
        return _part_rows(parts, counted, self._names)


class _MessagePartition(InputPartition):
    """A part whose messages are to be read, and what the planner read there.

    Attributes:
        store: which of several stores it is of.
        newest: path of the log's last segment, which doesn't expire.
        host: where the query is planned.
        witness: of the part; None where its segment has expired since the log was listed, or isn't a file.
        units: those that lead to all messages of the segment that are wanted; None where it has to be walked.
    """

    def __init__(
        self,
        part: Part,
        newest: str,
        host: str,
        seen: FileSeen | None,
        units: tuple[QueueUnits, ...] | None,
    ) -> None:
        super().__init__([part])
        self.part = part
        self.store = 0
        self.newest = newest
        self.host = host
        self.witness = seen
        self.units = units

    @contextmanager
    def expiring(self) -> Iterator[None]:
        """See that a segment which the block doesn't find has expired: not so on a host without the log.

        Raises:
            StoreError: the log's last segment isn't there either.
        """
        try:
            yield
        except SegmentGoneError:
            if not Path(self.newest).exists():
                raise missing(self.newest, self.host) from None
            raise


class _BatchReader(FilteredReader):
    """Reads what is there when the query is planned."""

    def __init__(
        self, options: Options, names: tuple[str, ...], filters: Mapping[str, str], asked: Wanted
    ) -> None:
        super().__init__(options.shared, filters, asked)
        self._plans = [_Plan(options, settings, names) for settings in options.shared.stores]

    def partitions(self) -> Sequence[InputPartition]:
        """From startOffset or the log's start to endOffset or its last whole record, of each store."""
        with reported(self._shared.read_report, tasks=0) as reads:
            found = []
            for number, partitions in self.of_each_store(lambda one: self._planned(self._plans[one], reads)):
                for partition in partitions:
                    if isinstance(partition, _MessagePartition):
                        partition.store = number
                    found.append(partition)
            return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A partition's rows."""
        with reported(self._shared.read_report, tasks=1) as reads:
            plan = self._plans[partition.store if isinstance(partition, _MessagePartition) else 0]
            yield from plan.read(partition, self.wanted, reads)

    def _planned(self, plan: _Plan, reads: ReadStatistics) -> list[InputPartition]:
        log = plan.discover()
        kept = segments_within(log, self.wanted, self._shared.time_slack_ms, reads)
        start, end = plan.start(log), plan.end_after(log, kept, reads)
        return plan.partitions(log, start, end, kept, self.wanted, reads)


class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log. An offset is ``{"offset": N}``: records that begin before N have been read."""

    def __init__(self, options: Options, names: tuple[str, ...], asked: Wanted) -> None:
        if len(options.shared.stores) > 1:
            raise SettingsError(
                "a stream follows one store",
                expected="one path",
                found=", ".join(str(settings.root) for settings in options.shared.stores),
                next_step="Start a query for each store; union joins their frames",
            )
        self._plan = _Plan(options, options.shared.stores[0], names)
        self._wanted = asked
        self._options = options
        self._rate = None if options.max_bytes_per_second is None else Rate(options.max_bytes_per_second)
        self._fixed_end: int | None = None
        self._seen: dict[str, int] | None = None
        self._log: CommitLog | None = None
        self._planned: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """As the options say, or the first segment's first byte; 0 while a live log has no segment."""
        if self._options.live and self._plan.live.segments() is None:
            return {_OFFSET: self._options.start_offset or 0}
        return {_OFFSET: self._plan.start(self._plan.discover())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As maxBytesPerTrigger and maxMessagesPerTrigger say, or everything."""
        bytes_, messages = self._options.max_bytes_per_trigger, self._options.max_messages_per_trigger
        if bytes_ is not None:
            return ReadMaxBytes(bytes_)
        return ReadAllAvailable() if messages is None else ReadMaxRows(messages)

    def latestOffset(  # noqa: N802
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """The end of the next micro-batch: of the last whole record, or as far as ``limit`` and rate allow.

        For a live log: of what is settled, see docs/internals/live-log.md. A call that finds nothing waits.
        Spark before 4.2 gives neither argument: the stream then goes on from what was planned last.

        Raises:
            LogWentBackError: the log ends before ``start``, or isn't what it was: it was cut.
            StoreError: it can't be read.
        """
        start = start or self._planned or self.initialOffset()
        self._planned = start
        if self._is_stopped():
            return start
        found = self._look(start[_OFFSET])
        if found is None:
            return start
        log, end = found
        if self._fixed_end is not None:
            end = min(end, self._fixed_end)
        if end <= start[_OFFSET]:
            return start
        begin = next_place(log, start[_OFFSET])
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            end = batch_end(log, begin, end, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)
            if (most := self._options.max_messages_per_trigger) is not None:
                end = self._plan.records.after(log, begin, end, most)
        self._planned = {**start, _OFFSET: self._within_rate(begin, end)}
        if (expired := min(log.start, self._planned[_OFFSET]) - start[_OFFSET]) > 0:
            self._planned[_EXPIRED] = start.get(_EXPIRED, 0) + expired
        return self._planned

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end: what is written from now on is for the next run."""
        if self._options.live:
            self._fixed_end = self._plan.live.settle(_SETTLE_SECONDS)
        else:
            self._fixed_end = self._plan.end(self._plan.discover())

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """The log's end as last seen, whatever the limits, and of messages what is left after this batch.

        For the query's progress: nothing else goes by it.
        """
        # Who reads parts counts for himself, and shouldn't load what walks over records.
        if self._seen is None or self._planned is None or self._options.content == PARTS:
            return self._seen
        at, end = self._planned[_OFFSET], self._seen[_OFFSET]
        found = {**self._seen, "lagBytes": max(end - at, 0)}
        if self._log is not None:
            with suppress(StoreError):  # whoever takes these bytes says so
                left = self._plan.records.left(self._log, at, end)
                if left.messages is not None:
                    found["lagMessages"] = left.messages
                last = self._seen.get(_STORE_TIMESTAMP)
                if left.messages == 0:
                    found["lagSeconds"] = 0
                elif left.first_timestamp is not None and last is not None:
                    found["lagSeconds"] = max(last - left.first_timestamp, 0) // 1000
        return found

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The partitions of a micro-batch; none when it is empty."""
        self._planned = self._planned or end  # of a batch that an earlier run has planned
        if start[_OFFSET] >= end[_OFFSET]:
            return []
        # Segments that a broker has made ahead of time are no successors of the one that it writes.
        log = self._plan.live.written(end[_OFFSET]) if self._options.live else None
        if log is None:
            log = self._plan.discover()
        wanted = self._wanted if self._wanted.columns else None
        return self._plan.partitions(log, start[_OFFSET], end[_OFFSET], wanted=wanted, follows=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A partition's rows."""
        return self._plan.read(partition, self._wanted, follows=True)

    def rows(self, start: dict[str, int], end: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """The rows of a micro-batch of parts; none when it is empty."""
        # A list's iterator: Spark copies it.
        return iter(
            [self._plan.rows(one.value, self._seen) for one in self.partitions(start, end) if one.value]
        )

    def commit(self, end: dict[str, int]) -> None:
        """What an earlier run has read isn't planned again."""
        self._planned = self._planned or end

    def stop(self) -> None:
        """Nothing is held; but Spark may be gone already, which isn't worth a traceback."""
        worker_daemon.hide_closed_connections_at_exit()

    def _look(self, begin: int) -> tuple[CommitLog, int] | None:
        """The log and its end; None while a live log has no segment."""
        if not self._options.live:
            log = self._log = self._plan.discover()
            end = self._plan.end(log)
            self._seen = {_OFFSET: end, **self._plan.end_time}
            if end < begin and self._options.end_offset is None:
                raise _shrunk(log, begin, end)
            return log, end
        live = self._plan.live
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            found = live.look(begin)
            if found is not None:
                log, (end, store_timestamp) = found
                self._log = log
                self._seen = {_OFFSET: end, _STORE_TIMESTAMP: store_timestamp}
                if end > begin or self._fixed_end is not None:
                    return log, end
            left = deadline - time.monotonic()
            if left <= 0 or not live.wait(left, self._is_stopped):
                return None if found is None else (found[0], found[1].offset)

    def _within_rate(self, at: int, end: int) -> int:
        if self._rate is None:
            return end
        least = min(end - at, self._rate.bytes_per_second // _LEAST_OF_SECOND + 1)
        if (seconds := self._rate.seconds_until(least)) > 0:
            time.sleep(seconds)
        end = min(end, at + max(self._rate.available(), 1))
        self._rate.take(end - at)
        return end

    def _is_stopped(self) -> bool:
        stop_file = self._options.stop_file
        return stop_file is not None and stop_file.exists()


class PartsReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a log by its parts, whose few rows go to Spark from the process that plans them.

    Otherwise each micro-batch would need a task in a Python worker for them, which takes longer than a small
    batch, and workers that stay for it.
    """

    def __init__(self, following: CommitLogStreamReader) -> None:
        self._following = following
        self._is_quiet = False

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """See :meth:`CommitLogStreamReader.initialOffset`."""
        return self._following.initialOffset()

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        """The next micro-batch and its end; waits where there is nothing new.

        Raises:
            LogWentBackError: the log ends before ``start``, or isn't what it was: it was cut.
            StoreError: it can't be read.
        """
        if not self._is_quiet:
            # Spark may be gone when this process ends, which isn't worth a traceback.
            worker_daemon.hide_closed_connections_at_exit()
            self._is_quiet = True
        end = self._following.latestOffset(start, self._following.getDefaultReadLimit())
        return self._following.rows(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:  # noqa: N802
        """A micro-batch that an earlier run of the query has planned."""
        return self._following.rows(start, end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end: what is written from now on is for the next run."""
        self._following.prepareForTriggerAvailableNow()


def first_time(log: CommitLog, segment: Segment, reads: ReadStatistics) -> int | None:
    """The storeTimestamp, ms, of the record that a segment begins with; None if it begins with none."""
    reads.files += 1
    reads.passed += min(_HEAD, segment.length)
    time = walk.first_time(segment, topic_length_v2=True, entries=log.entries)
    return time if time is not None and time > 0 else None


def segments_within(log: CommitLog, wanted: Wanted, slack_ms: int, reads: ReadStatistics) -> list[Segment]:
    """The segments that can hold a wanted message.

    Records are taken to lie between the first record of their segment and that of the next one, give and
    take ``slack_ms``. Where first records themselves go back further than that, times tell nothing.
    """
    if wanted.is_nothing:
        return []
    offsets, times = wanted.range_of("physicalOffset"), wanted.range_of("storeTimestamp")
    spans = [(segment.base, segment.base + segment.length - 1) for segment in log.segments]
    kept = [offsets.clip(*span) is not None for span in spans]
    if times != ALL and any(kept):
        firsts = [first_time(log, segment, reads) for segment in log.segments]
        known = [time for time in firsts if time is not None]
        if all(other >= one - slack_ms for one, other in pairwise(known)):
            before: int | None = None
            # Up to the next segment's first record; where that isn't known, there is no bound.
            for at, (first, after) in enumerate(zip(firsts, [*firsts[1:], None], strict=True)):
                before = before if first is None else first
                low = times.low if before is None else before - slack_ms
                high = times.high if after is None else after + slack_ms
                kept[at] &= times.clip(low, high) is not None
    return [segment for segment, is_kept in zip(log.segments, kept, strict=True) if is_kept]


class Rate:
    """How much may be read by now: bytes a second, with a second's worth in hand at most.

    Args:
        bytes_per_second: at least 1.
        clock: seconds that only go up.
    """

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._left = float(bytes_per_second)
        self._at = clock()

    def available(self) -> int:
        """Bytes that may be taken now; below 0 while what was taken ahead is being made up for."""
        now = self._clock()
        self._left = min(self._left + (now - self._at) * self.bytes_per_second, float(self.bytes_per_second))
        self._at = now
        return int(self._left)

    def take(self, size: int) -> None:
        """Count ``size`` bytes as taken."""
        self._left -= size

    def seconds_until(self, size: int) -> float:
        """How long until ``size`` bytes, or as many as can ever be in hand, may be taken."""
        return max(min(size, self.bytes_per_second) - self.available(), 0) / self.bytes_per_second


def _message_partitions(
    parts: Sequence[Part],
    newest: str,
    units: Mapping[str, tuple[QueueUnits, ...] | None],
    reads: ReadStatistics,
) -> Iterator[_MessagePartition]:
    """One for each part of which something is written."""
    host = socket.gethostname()
    for path, found in groupby(parts, lambda part: part.path):
        of_segment: list[tuple[Part, FileSeen | None]] = [(part, None) for part in found]
        if not is_elsewhere(path):  # else it is pinned, and the same from everywhere
            with suppress(SegmentGoneError):
                ranges = [(part.start - part.base, part.end - part.base) for part, _ in of_segment]
                seen = zip(of_segment, witnesses(path, ranges), strict=True)
                written = [(part, one) for (part, _), one in seen if one is not None]
                reads.files += 1
                reads.passed += sum(one.read for _, one in written)
                of_segment = [*written]
        yield from (_MessagePartition(part, newest, host, one, units.get(path)) for part, one in of_segment)


def _clipped(parts: list[Part], offsets: Range, lead: int) -> Iterator[Part]:
    """The parts, cut down to what can be wanted: records lie up to ``lead`` bytes behind their frames."""
    for part in parts:
        span = offsets.clip(part.start, part.end - 1 + lead)
        if span is not None:
            yield replace(part, start=max(part.start, span[0] - lead), end=min(part.end, span[1] + 1))


def _count(part: Part, settings: StoreSettings) -> Counted:
    """Go over a part's frames, for Spark's own progress: nothing else goes by it.

    It is counted where the part's row is made, some tenths of a millisecond for a tail's small batch. Unknown
    if it is large or damaged, or cut within a record, or if the kernel isn't loaded yet.
    """
    if part.end - part.start > _MOST_COUNTED:
        return Counted()
    start, stop = part.start - part.base, part.end - part.base
    try:
        data = map_segment(part.path, part.segment_length)[:stop]
    except StoreError:
        return Counted()  # whoever takes the part says so
    v2 = settings.dialect.topic_length_v2
    if "reput.log.walk_kernel" in sys.modules:
        from reput.log import walk_kernel

        walked = walk_kernel.walk(data, part.base, start, stop, v2, 0, len(data), settings.entries)
    else:
        walked = walk.walk(data.data, part.base, start, stop, v2, 0, _FEW_RECORDS, settings.entries)
    if not walked.records or (walked.position < stop and walked.status != Status.BLANK):
        return Counted()
    first = dledger.record_at(data.data, start) if settings.entries else start
    return Counted(walked.records, store_timestamp(data.data, first))


def _part_rows(parts: list[Part], counted: list[Counted], names: tuple[str, ...]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    from reput.source import arrow

    make: dict[str, Callable[[Any], pa.Array]] = {
        "string": arrow.strings,
        "bigint": lambda values: arrow.numbers(
            np.array([value or 0 for value in values], np.int64),
            present=np.array([value is not None for value in values]),
        ),
        "boolean": arrow.booleans,
    }
    own = len(PART_COLUMNS) - len(Counted._fields)
    rows = [(*astuple(part)[:own], *found) for part, found in zip(parts, counted, strict=True)]
    values = dict(zip(PART_COLUMNS, zip(*rows, strict=True), strict=True))
    arrays = [make[PART_COLUMNS[name]](values[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names, PART_COLUMNS))


def _expired(directory: Path, start: int, found: str) -> SegmentGoneError:
    return SegmentGoneError(
        "messages are gone that the stream hasn't read",
        path=directory,
        offset=start,
        expected="a segment with this offset",
        found=found,
        next_step="Let the stream leave them out, with the option failOnDataLoss=false, or start a new one",
    )


def _shrunk(log: CommitLog, begin: int, end: int) -> LogWentBackError:
    return LogWentBackError(
        "the commit log ends before the offset that this query has reached: it was cut, or is another one",
        path=log.segments[-1].path,
        offset=end,
        expected=f"an end of at least {begin}",
        found=end,
        next_step="Start the query with a new checkpoint, and with startOffset where it is to go on",
    )
