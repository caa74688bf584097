"""Reading stores as Spark's tables, by name. See docs/source.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING

from reput.errors import SettingsError
from reput.source.columns import INDEX_COLUMNS, MESSAGE_COLUMNS, QUEUE_COLUMNS, STORE_COLUMN, spark_schema
from reput.source.commitlog import NAME, CommitLogDataSource
from reput.source.derived import INDEX, QUEUES, ConsumeQueueDataSource, IndexDataSource
from reput.source.where import Condition, text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLES: Mapping[str, Mapping[str, str]] = {
    NAME: {**STORE_COLUMN, **MESSAGE_COLUMNS},
    QUEUES: QUEUE_COLUMNS,
    INDEX: INDEX_COLUMNS,
}


def register(spark: SparkSession) -> None:
    """Let a session know the sources by their names; doing so again changes nothing."""
    from pyspark.errors import AnalysisException

    for source in (CommitLogDataSource, ConsumeQueueDataSource, IndexDataSource):
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
            docs/source.md lists. What can't be wanted isn't read.
        source: :data:`NAME`, :data:`QUEUES` or :data:`INDEX`.
        options: as docs/source.md lists them.

    Raises:
        SettingsError: there is no such source or column, or a condition can't be put.
    """
    register(spark)
    known = _TABLES.get(source)
    if known is None:
        raise SettingsError("there is no such source", expected=f"one of {', '.join(_TABLES)}", found=source)
    reader = spark.read.format(source).options(**{name: _text(value) for name, value in options.items()})
    if conditions := tuple(where):
        reader = reader.option("where", text_of(conditions))
    if columns is not None:
        names = tuple(columns)
        if unknown := [name for name in names if name not in known]:
            raise SettingsError(
                "the source has no such column",
                expected=f"one of {', '.join(known)}",
                found=", ".join(unknown),
            )
        reader = reader.schema(spark_schema({name: known[name] for name in names}))
    return reader.load(fspath(store) if isinstance(store, str | PathLike) else [fspath(one) for one in store])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
