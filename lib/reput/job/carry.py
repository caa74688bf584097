"""Queues of a store that is rebuilt in place and whose log has no message of them any more.

What a broker keeps of such a queue, its last file, goes into the rebuilt store as it is, so that consumers'
offsets stay valid.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.format import names
from reput.store import files
from reput.store.last_file import LastFile, last_file

if TYPE_CHECKING:
    from reput.job.plan import Plan


@dataclass(frozen=True, slots=True)
class Gone:
    """A queue that the store has and the log has no message of.

    Attributes:
        topic, queue_id: the queue.
        last: what can be carried over of it, or why nothing can.
    """

    topic: str
    queue_id: int
    last: LastFile | str

    def __str__(self) -> str:
        return f"{self.topic}:{self.queue_id}"


def gone_queues(plan: Plan, consume_queues: Path) -> Iterator[Gone]:
    """The queues below ``consume_queues`` that are wanted and that the journal doesn't name, sorted.

    None where queues were chosen: the others aren't replaced.

    Raises:
        OutputError: something there can't be read.
    """
    if not plan.selection.is_all:
        return
    for topic, queue_id, directory in _queues(consume_queues):
        if (topic, queue_id) in plan.journal.state.queues:
            continue
        if plan.selection.wants_topic(topic.encode("utf-8", "surrogateescape")) and any(directory.iterdir()):
            yield Gone(topic, queue_id, last_file(directory, plan.settings.consume_queue_file_size))


def carry_over(plan: Plan) -> None:
    """Copy the last files of queues that are gone into the staged output, flushed.

    Raises:
        OutputError: one can't be read or written.
    """
    for gone in gone_queues(plan, plan.settings.root / names.CONSUME_QUEUE):
        if isinstance(gone.last, str):
            continue
        path = names.queue_directory(plan.root, gone.topic, gone.queue_id) / gone.last.path.name
        files.make_dirs(path.parent, plan.owner)
        fd = files.create_file(path, plan.settings.consume_queue_file_size, plan.owner)
        try:
            files.pwrite_all(fd, gone.last.units, 0)
            with files.reporting("can't set the file's time", path):
                os.utime(fd, ns=(gone.last.modified, gone.last.modified))
            files.fsync_file(fd)
        finally:
            files.system.close(fd)
        files.fsync_dir(path.parent)


def drop_carried(plan: Plan) -> None:
    """Remove what a run that ended before the swap carried over: the log may have grown since.

    Raises:
        OutputError: it can't be removed.
    """
    for topic, queue_id, directory in _queues(plan.root / names.CONSUME_QUEUE):
        if (topic, queue_id) not in plan.journal.state.queues:
            files.remove_tree(directory)
            if not any(directory.parent.iterdir()):
                files.remove_tree(directory.parent)


def _queues(consume_queues: Path) -> list[tuple[str, int, Path]]:
    with files.reporting("the queues can't be listed", consume_queues):
        return sorted(
            (path.parent.name, int(path.name), path)
            for path in consume_queues.glob("*/*")
            if path.name.isascii() and path.name.isdecimal() and path.is_dir()
        )
