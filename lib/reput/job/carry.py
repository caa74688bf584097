"""Queues that a store rebuilt in place, or restored, has, but whose messages have all expired from its log.

A broker keeps the last file of such a queue. It is copied into the rebuilt store as it is, so that consumers'
offsets stay valid; so is its last file in consumequeue_ext, so that addresses continue where they were.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.format import names
from reput.store import files
from reput.store.last_file import LastFile, last_ext_file, last_file
from reput.store.listing import queues_in

if TYPE_CHECKING:
    from reput.job.plan import Plan


@dataclass(frozen=True, slots=True)
class Gone:
    """A queue in the store that the log has no message of."""

    topic: str  # topic, queue_id: the queue
    queue_id: int
    last: LastFile | str  # its last file, which can be carried over, or why it can't
    is_batch: bool = False  # it is a batch queue

    def __str__(self) -> str:
        return f"{self.topic}:{self.queue_id}"


def gone_queues(plan: Plan, store: Path) -> Iterator[Gone]:
    """Those of :func:`queues_without_messages` whose files may be carried over; none where none are made."""
    if plan.settings.rocksdb.files:
        yield from queues_without_messages(plan, store)


def queues_without_messages(plan: Plan, store: Path) -> Iterator[Gone]:
    """The queues and batch queues of ``store`` that are wanted and that the journal doesn't name, sorted.

    Nothing where queues were chosen: the others aren't replaced.

    Args:
        store: has consumequeue and batchconsumequeue: the store, or the directory of what was replaced.
    """
    if not plan.selection.is_all:
        return
    log = plan.log.start, plan.journal.state.cursor
    for is_batch, root in ((False, names.CONSUME_QUEUE), (True, names.BATCH_CONSUME_QUEUE)):
        for topic, queue_id, directory in _queues(store / root):
            if (topic, queue_id) in plan.journal.state.queues or plan.selection.is_batch(topic) != is_batch:
                continue
            wanted = plan.selection.wants_topic(topic.encode("utf-8", "surrogateescape"))
            if wanted and any(directory.iterdir()):
                size = plan.settings.consume_queue_file_size
                size = plan.settings.recovery.batch_queue_file_size if is_batch else size
                last = last_file(directory, size, *log, is_batch=is_batch)
                yield Gone(topic, queue_id, last, is_batch)


def carry_over(plan: Plan, store: Path) -> None:
    """Copy the last files of such queues of ``store`` into the output, flushed.

    Where nothing at all is left of the store's queues of a kind, or of its index, the output gets an empty
    directory, which takes the old one's place: else units and keys of a lost log would stay.

    Raises:
        OutputError: one can't be read or written.
    """
    recovery = plan.settings.recovery
    if plan.selection.is_all:
        of_files = plan.settings.rocksdb.files
        made = {
            names.CONSUME_QUEUE: of_files,
            names.CONSUME_QUEUE_EXT: of_files and recovery.queue_ext,
            names.BATCH_CONSUME_QUEUE: of_files and bool(plan.selection.batch),
            names.INDEX: plan.index,
        }
        for name, is_made in made.items():
            if is_made and (store / name).is_dir():
                files.make_dirs(plan.root / name, plan.owner)
    for gone in gone_queues(plan, store):
        if isinstance(gone.last, str):
            continue
        queue = gone.topic, gone.queue_id
        if gone.is_batch:
            directory = names.batch_queue_directory(plan.root, *queue)
            _put(plan, directory, gone.last, recovery.batch_queue_file_size)
            continue
        _put(plan, names.queue_directory(plan.root, *queue), gone.last, plan.settings.consume_queue_file_size)
        if recovery.queue_ext:
            found = names.queue_ext_directory(store, *queue)
            ext = last_ext_file(found, recovery.queue_ext_file_size)
            if ext is not None:
                last = LastFile(ext[0], ext[1], 0, 0, -1, gone.last.modified)
                directory = names.queue_ext_directory(plan.root, *queue)
                _put(plan, directory, last, recovery.queue_ext_file_size)


def _put(plan: Plan, directory: Path, last: LastFile, file_size: int) -> None:
    path = directory / last.path.name
    with files.opened(path, file_size, plan.owner) as fd:
        files.pwrite_all(fd, last.units, 0)
        with files.reporting("can't set the file's time", path):
            os.utime(fd, ns=(last.modified, last.modified))
        files.fsync_file(fd)
    files.fsync_dir(path.parent)


def drop_carried(plan: Plan) -> None:
    """Remove what a run carried over that ended before the swap: the log may have grown since."""
    for root in names.QUEUES:
        for topic, queue_id, directory in _queues(plan.root / root):
            if (topic, queue_id) not in plan.journal.state.queues:
                files.remove_tree(directory)
                if not any(directory.parent.iterdir()):
                    files.remove_tree(directory.parent)


def missing_queues(plan: Plan, store: Path) -> set[str]:
    """The directories, relative to ``store``, of queues that the journal doesn't name, by name alone."""
    return {
        path.relative_to(store).as_posix()
        for root in names.QUEUES
        for topic, queue_id, path in _queues(store / root)
        if (topic, queue_id) not in plan.journal.state.queues
    }


def _queues(root: Path) -> list[tuple[str, int, Path]]:
    with files.reporting("the queues can't be listed", root):
        return sorted((topic, queue_id, Path(path)) for topic, queue_id, path in queues_in(root))
