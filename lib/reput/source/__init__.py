"""Stores as tables, by name: commit logs, consume queues, index files. See docs/sql.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput.lazily import lazily

if TYPE_CHECKING:
    from reput.source.commitlog import NAME, CommitLogDataSource
    from reput.source.tables import (
        INDEX,
        QUEUES,
        ConsumeQueueDataSource,
        IndexDataSource,
        read,
        read_arrow,
        register,
    )

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
__getattr__ = lazily(__name__, dict.fromkeys(__all__, "tables"))
