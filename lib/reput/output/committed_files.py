"""Checks that committed files are still there: a user may have removed files of an output.

A missing file would be created again, with zeros in the places of committed units. So a queue's last
committed unit is checked before a batch that adds to it is committed, and all queues' when a run begins.
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

_NEXT_STEP = "Put it back and run the same command again, or remove the output and start again"


def check_queues(
    target: Target, known: Mapping[tuple[str, int], QueueState], queues: Iterable[tuple[str, int]]
) -> None:
    """Check that queues still have their last committed unit.

    Args:
        known: queues as of the last commit.
        queues: those to check; any that aren't known are skipped.

    Raises:
        OutputError: one lacks it.
    """
    file_size = target.settings.consume_queue_file_size
    for topic, queue_id in queues:
        state = known.get((topic, queue_id))
        if state is None:
            continue
        if state.appended and state.first != state.next:
            _check_appended(target, topic, queue_id, state)
        # Unproven units may have been replaced by the batch that is about to be committed.
        if state.first == state.proven_next or state.is_batch:
            continue
        at = (state.proven_next - 1) * UNIT_LENGTH
        directory = names.queue_directory(target.root, topic, queue_id)
        path = directory / names.offset_name(at - at % file_size)
        if not any(_read(path, at % file_size)):
            raise _gone("a consume queue's last committed unit is gone", path, at % file_size)


def _check_appended(target: Target, topic: str, queue_id: int, state: QueueState) -> None:
    """Check that what was last appended in log order is still there."""
    recovery = target.settings.recovery
    if state.is_batch:
        directory = names.batch_queue_directory(target.root, topic, queue_id)
        file_size, least = recovery.batch_queue_file_size, batchconsumequeue.UNIT_LENGTH
    else:
        directory = names.queue_ext_directory(target.root, topic, queue_id)
        file_size, least = recovery.queue_ext_file_size, consumequeueext.HEAD_LENGTH
    at = state.appended - 1
    path = directory / names.offset_name(at - at % file_size)
    # A unit ends there: its bit map may be all zeros, the fields before it aren't.
    begin = max(at % file_size + 1 - least, 0)
    if state.is_batch and not any(_read(path, begin)):
        raise _gone("a batch queue's last committed unit is gone", path, begin)
    if not state.is_batch and len(_read(path, begin)) < 1:
        raise _gone("a queue's last file in consumequeue_ext is gone", path)


def check_all(target: Target, state: State) -> None:
    """Check that every file that a state names is there, and that every queue has its last unit.

    Raises:
        OutputError: one is missing.
    """
    file_size = target.settings.consume_queue_file_size
    for (topic, queue_id), queue in state.queues.items():
        if queue.first == queue.next or queue.is_batch:
            continue
        directory = names.queue_directory(target.root, topic, queue_id)
        found = _listing(directory)
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


def _listing(directory: Path) -> set[str]:
    try:
        return {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return set()


def _gone(problem: str, path: Path, offset: int | None = None) -> OutputError:
    return OutputError(problem, path=path, offset=offset, next_step=_NEXT_STEP)
