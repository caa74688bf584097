"""Reading stores as tables, by name: Spark's, or Arrow's. See docs/sql.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING

from reput.errors import SettingsError
from reput.next_command import install_step
from reput.source.columns import (
    INDEX_COLUMNS,
    MESSAGE_COLUMNS,
    PART_COLUMNS,
    QUEUE_COLUMNS,
    STORE_COLUMN,
    among,
    arrow_schema,
    spark_schema,
)
from reput.source.commitlog import NAME, CommitLogDataSource
from reput.source.derived import INDEX, QUEUES, ConsumeQueueDataSource, IndexDataSource
from reput.source.where import Condition, text_of
from reput.unforeseen import without_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

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
    """The same table without Spark, in this process: Arrow batches of some megabytes, one after another.

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
