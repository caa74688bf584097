"""The columns of the sources' tables, and which of them a reader was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from reput.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: One row for each part of the log: the first fields of :class:`reput.scan.rules.Part`, then
#: those of :class:`reput.source.commitlog.Counted`.
PART_COLUMNS: Mapping[str, str] = {
    "path": "string",
    "base": "bigint",
    "segmentLength": "bigint",
    "segmentSize": "bigint",
    "start": "bigint",
    "end": "bigint",
    "exact": "boolean",
    "last": "boolean",
    "messages": "bigint",
    "firstTimestamp": "bigint",
    "logEnd": "bigint",
    "logTimestamp": "bigint",
}

#: One row for each message, named as in ``MessageExt`` (rocketmq-all-5.3.3); see docs/data/columns.md.
MESSAGE_COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "physicalOffset": "bigint",
    "size": "int",
    "storeTimestamp": "timestamp",
    "bornTimestamp": "timestamp",
    "bornHost": "string",
    "storeHost": "string",
    "sysFlag": "int",
    "flag": "int",
    "reconsumeTimes": "int",
    "preparedTransactionOffset": "bigint",
    "bodyCRC": "int",
    "tags": "string",
    "keys": "string",
    "uniqKey": "string",
    "properties": "map<string,string>",
    "body": "binary",
}

#: One that every table can have; messages only when it is asked for.
STORE_COLUMN: Mapping[str, str] = {"store": "string"}

#: What a query's filters can ask of a message, and have decided before anything else is made of it.
MESSAGE_FILTERS: Mapping[str, str] = {
    **STORE_COLUMN,
    "topic": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "physicalOffset": "bigint",
    "storeTimestamp": "timestamp",
}

#: One row for each unit of a consume queue.
QUEUE_COLUMNS: Mapping[str, str] = {
    **STORE_COLUMN,
    "topic": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "kind": "string",
    "physicalOffset": "bigint",
    "size": "int",
    "tagsCode": "bigint",
    "storeTimestamp": "timestamp",
    "extTagsCode": "bigint",
    "bitMap": "binary",
    "baseOffset": "bigint",
    "batchSize": "int",
    "compactedOffset": "int",
}

#: The same of a unit. Its other columns can be null.
QUEUE_FILTERS: Mapping[str, str] = {**MESSAGE_FILTERS, "kind": "string"}

#: One row for each entry of an index file, or of an index in RocksDB.
INDEX_COLUMNS: Mapping[str, str] = {
    **STORE_COLUMN,
    "file": "string",
    "ordinal": "int",
    "slot": "int",
    "keyHash": "int",
    "physicalOffset": "bigint",
    "storeTimestamp": "timestamp",
    "previous": "int",
    "topic": "string",
    "kind": "string",
    "key": "string",
    "uniqKey": "string",
}

#: The same of an entry.
INDEX_FILTERS: Mapping[str, str] = {
    name: INDEX_COLUMNS[name] for name in ("store", "file", "keyHash", "physicalOffset", "storeTimestamp")
}


def spark_schema(columns: Mapping[str, str]) -> StructType:
    """The columns as Spark's schema."""
    from pyspark.sql import types as spark

    of: Mapping[str, spark.DataType] = {
        "string": spark.StringType(),
        "int": spark.IntegerType(),
        "bigint": spark.LongType(),
        "boolean": spark.BooleanType(),
        "binary": spark.BinaryType(),
        "timestamp": spark.TimestampType(),
        "map<string,string>": spark.MapType(spark.StringType(), spark.StringType()),
    }
    return spark.StructType([spark.StructField(name, of[kind]) for name, kind in columns.items()])


def among(names: Iterable[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """The names.

    Raises:
        SettingsError: one isn't of ``columns``.
    """
    found = tuple(names)
    if unknown := [name for name in found if name not in columns]:
        raise SettingsError(
            "the source has no such column",
            expected=f"one of {', '.join(columns)}",
            found=", ".join(unknown),
        )
    return found


def chosen(schema: StructType | Iterable[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the columns that ``schema`` asks for: some of ``columns``, in any order.

    Args:
        schema: as Spark has it, or their names.

    Raises:
        SettingsError: there is no such column, or it has another type.
    """
    fields = getattr(schema, "fields", None)
    if fields is None:
        return among(cast("Iterable[str]", schema), columns)
    for field in fields:
        kind = columns.get(field.name)
        found = f"{field.name} {field.dataType.simpleString()}"
        if kind is None:
            raise SettingsError(
                "the source has no such column", expected=f"one of {', '.join(columns)}", found=found
            )
        if field.dataType.simpleString() != kind or not field.nullable:
            raise SettingsError(
                "the column has another type",
                expected=f"{field.name} {kind}, nullable",
                found=found if field.nullable else f"{found} not null",
            )
    return tuple(field.name for field in fields)


def arrow_schema(names: tuple[str, ...], columns: Mapping[str, str]) -> pa.Schema:
    """What Spark expects in Arrow's terms; each batch of a reader is built from one of these."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        # An instant: UTC, whatever zone a session shows it in.
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, types[columns[name]]) for name in names])
