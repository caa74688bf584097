"""Which databases an output has, and the making of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from reput.format import names
from reput.format.names import QueueBytes
from reput.format.rocksdbqueue import QueueEnd
from reput.output.journal import Journal
from reput.output.rocksdb import index, queues
from reput.output.rocksdb.manifest import Tasks, is_whole
from reput.replay.target import Target
from reput.store import files


def directories(target: Target) -> list[Path]:
    """Where the databases go that are wanted."""
    wanted = [queues.directory_of(target)] if target.queues_in_rocksdb else []
    return wanted + [target.root / names.ROCKSDB_STORE] * target.index_in_rocksdb


def are_made(target: Target) -> bool:
    """Whether all of them are there and whole."""
    return all(map(is_whole, directories(target)))


def make(
    target: Target,
    journal: Journal,
    tasks: Tasks,
    slots: int,
    carried: Callable[[], Mapping[QueueBytes, QueueEnd]],
    ended: Callable[[str], None] = lambda _stage: None,
) -> None:
    """Make those that aren't there, of all that the journal has committed.

    ``slots`` tasks run at once. ``carried`` gives the last message of queues that the log has no message of,
    by topic and queueId. After an error the same command makes it anew.
    """
    if target.queues_in_rocksdb:
        queues.make(target, journal, tasks, slots, carried)
        ended("queue database")
    if target.index_in_rocksdb:
        index.make(target, journal, tasks, slots)
        ended("index database")
    files.remove_tree(target.runs)
