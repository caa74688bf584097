"""Stores as tables, by name: commit logs, consume queues, index files. See docs/sql.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazily import lazily

if TYPE_CHECKING:
    from reput.source.commitlog import NAME, CommitLogDataSource
    from reput.source.derived import INDEX, QUEUES, ConsumeQueueDataSource, IndexDataSource
    from reput.source.tables import read, read_arrow, register

__all__ = [
    "INDEX",
    "NAME",
    "QUEUES",
    "CommitLogDataSource",
    "ConsumeQueueDataSource",
    "IndexDataSource",
    "read",
    "read_arrow",
    "register",
]

# Much below is Spark's only in part: a walk through a log, its end, its parts.
__getattr__ = lazily(
    __name__,
    {
        "INDEX": "derived",
        "NAME": "commitlog",
        "QUEUES": "derived",
        "CommitLogDataSource": "commitlog",
        "ConsumeQueueDataSource": "derived",
        "IndexDataSource": "derived",
        "read": "tables",
        "read_arrow": "tables",
        "register": "tables",
    },
)
