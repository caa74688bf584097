"""Lets Spark find ``rocketmq-commitlog`` by its name: PySpark imports packages named like it.

It does so in every application of this Python, so that the import must load nothing of reput.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Stands for the source until it is used."""

    def __new__(cls, options: dict[str, str]) -> Any:
        """The source itself."""
        from reput.source import CommitLogDataSource

        return CommitLogDataSource(options)

    @classmethod
    def name(cls) -> str:
        """The source's name."""
        return "rocketmq-commitlog"
