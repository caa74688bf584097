"""A store's files as Spark's tables, named as docs/sql.md names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from explore.workspace import Store

#: The tables of a store, and what a notebook needs of each; docs/data/columns.md have all columns.
COLUMNS = {
    "commitlog": (
        "topic string, queueId int, queueOffset bigint, physicalOffset bigint, size int, sysFlag int, "
        "storeTimestamp timestamp"
    ),
    "consumequeue": (
        "topic string, queueId int, queueOffset bigint, physicalOffset bigint, size int, batchSize int"
    ),
    "index": "file string, ordinal int, keyHash int, physicalOffset bigint",
}


def table(spark: SparkSession, store: Store, name: str, columns: str | None = None) -> DataFrame:
    """The log of a store, the units of its consume queues, or the entries of its index.

    It shows the files as they are when it is first used: call this again after a change of the store.

    Args:
        name: one of :data:`COLUMNS`.
        columns: those that are wanted, in SQL; None for those of :data:`COLUMNS`. No others are read.
    """
    from reput.source import register

    register(spark)
    reader = spark.read.schema(columns or COLUMNS[name]).format(f"rocketmq-{name}")
    if store.broker_conf is not None:
        reader = reader.option("brokerConf", str(store.broker_conf))
    if store.version is not None:
        reader = reader.option("rocketmqVersion", store.version)
    return reader.load(str(store.root))


def views(spark: SparkSession, store: Store, suffix: str = "") -> None:
    """Let SQL know the three tables of a store by their names, in place of views of these names.

    Args:
        suffix: appended to each name, for queries of more than one store.
    """
    for name in COLUMNS:
        table(spark, store, name).createOrReplaceTempView(f"{name}{suffix}")
