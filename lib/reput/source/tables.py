"""The data sources of what a broker derives from its log, and all sources by name: Spark's, or Arrow's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from reput.errors import SettingsError
from reput.source.columns import (
    INDEX_COLUMNS,
    INDEX_FILTERS,
    MESSAGE_COLUMNS,
    PART_COLUMNS,
    QUEUE_COLUMNS,
    QUEUE_FILTERS,
    STORE_COLUMN,
    among,
    arrow_schema,
    chosen,
    spark_schema,
)
from reput.source.commitlog import NAME, CommitLogDataSource
from reput.source.filters import Condition, FilteredReader, Wanted, parse, text_of
from reput.source.options import QueueOptions, Shared
from reput.source.ranges import ReadStatistics, Sized, gathered, reported
from reput.spark import worker_daemon
from reput.spark.stack import DataSource, InputPartition
from reput.store.witness import FileSeen, file_seen, naming_host
from reput.unforeseen import without_spark
from reput.words import install_step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from reput.config.settings import StoreSettings
    from reput.source.index_entries import EntryRange, HourRange
    from reput.source.queue_units import UnitRange


# What a broker derives is planned from directories and headers, and read file by file. As with
# :mod:`reput.source.commitlog`, planning loads neither numba nor pandas; nor does reading.

#: For ``spark.read.format``.
QUEUES = "rocketmq-consumequeue"
INDEX = "rocketmq-index"

_R = TypeVar("_R", bound=Sized)

worker_daemon.hide_closed_connections_of_planner()


class _FilesDataSource(DataSource):
    """What a broker derived of stores' logs, file by file. docs/data/columns.md lists the options.

    Raises:
        SettingsError: an option can't be used.
        UnsupportedError: the store uses a feature that reput doesn't read.
    """

    _NAME: ClassVar[str]
    _COLUMNS: ClassVar[Mapping[str, str]]

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return cls._NAME

    @property
    def columns(self) -> Mapping[str, str]:
        """All columns, with their types."""
        return self._COLUMNS

    def schema(self) -> StructType:
        """All columns."""
        return spark_schema(self.columns)


class ConsumeQueueDataSource(_FilesDataSource):
    """Consume queues of stores: a row a unit."""

    _NAME, _COLUMNS = QUEUES, QUEUE_COLUMNS

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = QueueOptions.parse(dict(options))
        self._where = parse(self._options.shared.where, QUEUE_FILTERS)

    def reader(self, schema: StructType | Iterable[str]) -> FilteredReader:
        """The batch reader; ``schema`` may name some of the columns, and be these names alone."""
        return _QueueReader(self._options, chosen(schema, QUEUE_COLUMNS), self._where)


class IndexDataSource(_FilesDataSource):
    """The index of stores, in files or in RocksDB: a row an entry."""

    _NAME, _COLUMNS = INDEX, INDEX_COLUMNS

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = Shared.parse(dict(options))
        self._where = parse(self._options.where, INDEX_FILTERS)

    def reader(self, schema: StructType | Iterable[str]) -> FilteredReader:
        """The batch reader; ``schema`` may name some of the columns, and be these names alone."""
        return _IndexReader(self._options, chosen(schema, INDEX_COLUMNS), self._where)


class _SeenPartition(InputPartition):
    """Ranges of files, and what the planner read of the first and of the last one."""

    def __init__(self, ranges: Sequence[Sized], reads: ReadStatistics) -> None:
        super().__init__(ranges)
        self.seen = [file_seen(one.path, *one.span) for one in {*ranges[:1], *ranges[-1:]}]
        for seen in self.seen:
            _count(seen, reads)


def _count(seen: FileSeen, reads: ReadStatistics) -> None:
    reads.files += 1
    reads.passed += seen.read


class _FilesReader(FilteredReader, Generic[_R]):
    """Reads ranges of files, those that are there when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of about ``partBytes`` bytes together."""
        shared = self._shared
        with reported(shared.read_report, tasks=0) as reads:
            planned = self.of_each_store(lambda one: list(self._ranges(shared.stores[one], reads)))
            found = (one for _, ranges in planned for one in ranges)
            return [_SeenPartition(ranges, reads) for ranges in gathered(found, shared.part_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A partition's rows. Spark makes an empty partition up when there are none."""
        with reported(self._shared.read_report, tasks=1) as reads:
            if not isinstance(partition, _SeenPartition):
                return
            with naming_host(partition.seen[0].host):
                for seen in partition.seen:
                    seen.check()
                    _count(seen, reads)
                for one in partition.value:
                    yield from self._rows(one, reads)

    @abstractmethod
    def _ranges(self, settings: StoreSettings, reads: ReadStatistics) -> Iterator[_R]:
        """What of a store can be wanted."""

    @abstractmethod
    def _rows(self, one: _R, reads: ReadStatistics) -> Iterator[Any]:
        """The rows of a range."""


class _QueueReader(_FilesReader["UnitRange"]):
    def __init__(self, options: QueueOptions, names: tuple[str, ...], asked: Wanted) -> None:
        super().__init__(options.shared, QUEUE_FILTERS, asked)
        self._blanks = options.blanks
        self._names = names

    def _ranges(self, settings: StoreSettings, reads: ReadStatistics) -> Iterator[UnitRange]:
        from reput.source.queue_units import ranges

        return ranges(settings, self.wanted, self._shared.part_bytes, blanks=self._blanks, reads=reads)

    def _rows(self, one: UnitRange, reads: ReadStatistics) -> Iterator[pa.RecordBatch]:
        from reput.source import queue_units

        return queue_units.read(one, self._names, self.wanted, reads, blanks=self._blanks)


class _IndexReader(_FilesReader["EntryRange | HourRange"]):
    def __init__(self, shared: Shared, names: tuple[str, ...], asked: Wanted) -> None:
        super().__init__(shared, INDEX_FILTERS, asked)
        self._names = names

    def _ranges(self, settings: StoreSettings, reads: ReadStatistics) -> Iterator[EntryRange | HourRange]:
        from reput.source import index_entries

        yield from index_entries.ranges(
            settings, self.wanted, self._shared.time_slack_ms, self._shared.part_bytes, reads
        )
        yield from index_entries.hour_ranges(settings, self.wanted)

    def _rows(self, one: EntryRange | HourRange, reads: ReadStatistics) -> Iterator[pa.RecordBatch]:
        return one.rows(self._names, self.wanted, reads)


Columns = Mapping[str, str]
#: Each source, and all its columns.
_TABLES: Mapping[
    str, tuple[type[CommitLogDataSource | ConsumeQueueDataSource | IndexDataSource], Columns]
] = {
    NAME: (CommitLogDataSource, {**STORE_COLUMN, **MESSAGE_COLUMNS, **PART_COLUMNS}),
    QUEUES: (ConsumeQueueDataSource, QUEUE_COLUMNS),
    INDEX: (IndexDataSource, INDEX_COLUMNS),
}


def register(spark: SparkSession) -> None:
    """Let a session know the sources by their names; doing so again changes nothing.

    Raises:
        SparkError: this Spark has no data sources in Python.
    """
    from pyspark.errors import AnalysisException

    if not hasattr(spark, "dataSource"):
        raise without_spark("pyspark.sql.datasource")
    for source, _ in _TABLES.values():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:  # Spark 4.0 keeps what it has
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def read(
    spark: SparkSession,
    store: str | PathLike[str] | Iterable[str | PathLike[str]],
    columns: Iterable[str] | None = None,
    where: Iterable[Condition] = (),
    *,
    source: str = NAME,
    **options: object,
) -> DataFrame:
    """A table of one or more stores, with no more columns than are needed.

    Spark tells a Python source nothing of the columns that a query needs; what isn't named isn't made.

    Args:
        spark: the session; the source gets known to it.
        store: a store's directory, several, or what ``.load()`` takes: a pattern, or several with commas.
        columns: their names, in the order wanted; None for all.
        where: conditions that must all hold, e.g. ``("topic", "=", "orders")``, on the columns that
            docs/data/columns.md lists. What can't be wanted isn't read.
        source: :data:`NAME`, :data:`QUEUES` or :data:`INDEX`.
        options: as docs/data/columns.md lists them.

    Raises:
        SettingsError: there is no such source or column, or a condition can't be put.
    """
    register(spark)
    _, known = _table(source)
    reader = spark.read.format(source).options(**_texts(where, options))
    if columns is not None:
        reader = reader.schema(spark_schema({name: known[name] for name in among(columns, known)}))
    return reader.load(fspath(store) if isinstance(store, str | PathLike) else [fspath(one) for one in store])


def read_arrow(
    store: str | PathLike[str],
    columns: Iterable[str] | None = None,
    where: Iterable[Condition] = (),
    *,
    source: str = NAME,
    **options: object,
) -> pa.RecordBatchReader:
    """A store's table without Spark, in this process: Arrow batches of some megabytes, one after another.

    What pandas, Polars and DuckDB read. It is planned at once, and read as they ask for the batches.

    Args:
        store: a store's directory, or what ``.load()`` takes: a pattern, or several with commas.
        columns, where, source, options: as of :func:`read`.

    Raises:
        SettingsError: as of :func:`read`; there is no PyArrow.
        ReputError: the store can't be read; later also from the reader.
    """
    kind, known = _table(source)
    try:
        import pyarrow as pa
    except ImportError as error:
        raise SettingsError(
            "there is no PyArrow", expected="pyarrow", found="none", next_step=install_step("arrow")
        ) from error
    table = kind({"path": fspath(store), **_texts(where, options)})
    names = tuple(table.columns if columns is None else among(columns, known))
    reader = table.reader(names)
    batches = (batch for partition in reader.partitions() for batch in reader.read(partition))
    return pa.RecordBatchReader.from_batches(arrow_schema(names, known), batches)


def _table(
    source: str,
) -> tuple[type[CommitLogDataSource | ConsumeQueueDataSource | IndexDataSource], Columns]:
    if source not in _TABLES:
        raise SettingsError("there is no such source", expected=f"one of {', '.join(_TABLES)}", found=source)
    return _TABLES[source]


def _texts(where: Iterable[Condition], options: Mapping[str, object]) -> dict[str, str]:
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
    conditions = tuple(where)
    return {**texts, "where": text_of(conditions)} if conditions else texts
