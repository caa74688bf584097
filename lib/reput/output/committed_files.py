"""Whether what was committed is still there: nobody stops a user from removing files of an output.

A file that is gone would be made anew, with zeros in the places of committed units. So a queue's last
committed unit is looked at before a batch that adds to it is committed, and all are when a run begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from reput.errors import OutputError
from reput.format import batchconsumequeue, consumequeueext, names
from reput.format.consumequeue import UNIT_LENGTH
from reput.output.index import index_file
from reput.replay.state import QueueState, State
from reput.replay.target import Target
from reput.store.listing import names_in

_NEXT_STEP = "Put it back and run the same command again, or remove the output and start anew"


def check_queues(
    target: Target, known: Mapping[tuple[str, int], QueueState], queues: Iterable[tuple[str, int]]
) -> None:
    """See that queues still have their last committed unit.

    Args:
        known: queues as of the last commit.
        queues: those of them to look at; others are passed over.

    Raises:
        OutputError: one hasn't.
    """
    file_size = target.settings.consume_queue_file_size
    for topic, queue_id in queues:
        state = known.get((topic, queue_id))
        if state is None:
            continue
        if state.appended and state.first != state.next:
            _check_appended(target, topic, queue_id, state)
        # What is unproven may have given way in the batch that is about to be committed.
        if state.first == state.proven_next or state.is_batch:
            continue
        at = (state.proven_next - 1) * UNIT_LENGTH
        directory = names.queue_directory(target.root, topic, queue_id)
        path = directory / names.offset_name(at - at % file_size)
        if not any(_read(path, at % file_size)):
            raise _gone("a consume queue's last committed unit is gone", path, at % file_size)


def _check_appended(target: Target, topic: str, queue_id: int, state: QueueState) -> None:
    """See that what was last appended in log order is still there."""
    recovery = target.settings.recovery
    if state.is_batch:
        directory = names.batch_queue_directory(target.root, topic, queue_id)
        file_size, least = recovery.batch_queue_file_size, batchconsumequeue.UNIT_LENGTH
    else:
        directory = names.queue_ext_directory(target.root, topic, queue_id)
        file_size, least = recovery.queue_ext_file_size, consumequeueext.HEAD_LENGTH
    at = state.appended - 1
    path = directory / names.offset_name(at - at % file_size)
    # A unit ends before: its bit map may be all zeros, what stands before it isn't.
    begin = max(at % file_size + 1 - least, 0)
    if state.is_batch and not any(_read(path, begin)):
        raise _gone("a batch queue's last committed unit is gone", path, begin)
    if not state.is_batch and len(_read(path, begin)) < 1:
        raise _gone("a queue's last file in consumequeue_ext is gone", path)


def check_all(target: Target, state: State) -> None:
    """See that every file is there that a state names, and that every queue has its last unit.

    Raises:
        OutputError: one isn't.
    """
    file_size = target.settings.consume_queue_file_size
    for (topic, queue_id), queue in state.queues.items():
        if queue.first == queue.next or queue.is_batch:
            continue
        directory = names.queue_directory(target.root, topic, queue_id)
        found = set(names_in(directory))
        start, stop = queue.first * UNIT_LENGTH, queue.next * UNIT_LENGTH
        for base in range(start - start % file_size, stop, file_size):
            if names.offset_name(base) not in found:
                raise _gone("a consume queue's file is gone", directory / names.offset_name(base))
    check_queues(target, state.queues, state.queues)
    for name, header in state.index:
        index_file.check_there(target.root / names.INDEX / name, header)


def _read(path: Path, offset: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, UNIT_LENGTH, offset)
    finally:
        os.close(fd)


def _gone(problem: str, path: Path, offset: int | None = None) -> OutputError:
    return OutputError(problem, path=path, offset=offset, next_step=_NEXT_STEP)
