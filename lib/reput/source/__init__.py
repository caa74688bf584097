"""The Spark data source ``rocketmq-commitlog``: a commit log as a table. docs/source.md lists its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.source.commitlog import NAME, CommitLogDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NAME", "CommitLogDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Let a session know the source by its name; doing so again changes nothing."""
    spark.dataSource.register(CommitLogDataSource)
