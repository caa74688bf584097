"""A last check of an output: before a batch of tasks is committed, and before it replaces a store's files.

This reads what the driver sees. Tasks may have written elsewhere, to a disk that only their host has; or the
disk may have lost what they wrote.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from reput.errors import OutputError
from reput.format import batchconsumequeue, consumequeueext, names
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.format.indexfile import FIRST_ORDINAL, HEADER_LENGTH, IndexHeader, file_length
from reput.replay.state import QueueState, State
from reput.replay.target import Target

_Queue = tuple[str, int]

_NOT_REPLACED = "Nothing was replaced. Check the disk, remove the staging directory and run again"
_NOT_COMMITTED = (
    "Nothing of this batch was committed. See that the disk is sound and all hosts have the output mounted, "
    "then run the same command again"
)


def audit(target: Target, state: State) -> None:
    """Check that every queue ends, and every index file begins, as the journal says.

    This reads a queue's last unit, and the record in consumequeue_ext that it points to.

    Raises:
        OutputError: a file is missing or doesn't end as the journal says.
    """
    _audit(target, state.queues, state.index, _NOT_REPLACED)


def audit_batch(
    target: Target,
    queues: Mapping[_Queue, QueueState],
    ranges: Iterable[tuple[_Queue, tuple[int, int]]],
    index: Sequence[tuple[str, IndexHeader]],
) -> None:
    """Check that what a batch is about to name in the journal is there for this process, too.

    This checks the size of each file that the batch has written to, and reads what :func:`audit` reads.

    Args:
        target: the output.
        queues: those that the batch changed, as they are now.
        ranges: for each consume queue of them the bytes of its files that the batch may have written, from a
            file's first byte on.
        index: the index files that the batch changed, with their headers.

    Raises:
        OutputError: a file is missing or isn't what was written.
    """
    settings = target.settings
    file_size = settings.consume_queue_file_size
    for queue, (start, stop) in ranges:
        # The last file is checked together with its last unit.
        for at in range(start, stop - file_size, file_size):
            _audit_size(names.queue_file(target.root, *queue, at), file_size)
    index_size = file_length(settings.max_hash_slot_num, settings.max_index_num)
    for name, _ in index:
        _audit_size(target.root / names.INDEX / name, index_size)
    _audit(target, queues, index, _NOT_COMMITTED)


def _audit_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise _unseen(path, size, error.strerror or str(error), _NOT_COMMITTED) from error
    if found != size:
        raise _unseen(path, size, f"{found} bytes", _NOT_COMMITTED)


def _unseen(path: Path, size: int, found: str, next_step: str) -> OutputError:
    return OutputError(
        "the driver doesn't see a file that was written",
        path=path,
        expected=f"{size} bytes",
        found=found,
        next_step=next_step,
    )


def _audit(
    target: Target,
    queues: Mapping[_Queue, QueueState],
    index: Iterable[tuple[str, IndexHeader]],
    next_step: str,
) -> None:
    file_size = target.settings.consume_queue_file_size
    for (topic, queue_id), queue in queues.items():
        if queue.is_batch:
            _audit_batch_queue(target, topic, queue_id, queue, next_step)
            continue
        at = (queue.next - 1) * UNIT_LENGTH
        path = names.queue_file(target.root, topic, queue_id, at - at % file_size)
        try:
            length, data = _last_unit(path, at % file_size)
        except OSError as error:
            raise _unseen(path, file_size, error.strerror or str(error), next_step) from error
        if length != file_size:
            raise _unseen(path, file_size, f"{length} bytes", next_step)
        physical_offset, size, tags_code = UNIT.unpack(data) if len(data) == UNIT_LENGTH else (0, 0, 0)
        if physical_offset + size != queue.end:
            raise OutputError(
                "the queue's last unit is not what was written",
                path=path,
                offset=at % file_size,
                expected=f"a message that ends at {queue.end}",
                found=f"one that ends at {physical_offset + size}",
                next_step=next_step,
            )
        place = consumequeueext.place_of(tags_code) if queue.appended else None
        if place is not None:
            _audit_ext(target, topic, queue_id, queue, place, next_step)
    for name, header in index:
        path = target.root / names.INDEX / name
        data = _read(path, 0, HEADER_LENGTH)
        found = IndexHeader.decode(data) if len(data) == HEADER_LENGTH else None
        if header.index_count > FIRST_ORDINAL and found != header:
            raise OutputError(
                "the index file's header is not what was written",
                path=path,
                expected=header,
                found=found,
                next_step=next_step,
            )


def _audit_ext(
    target: Target, topic: str, queue_id: int, queue: QueueState, place: int, next_step: str
) -> None:
    """Check that the record that the queue's last unit points to is whole, and within what was appended."""
    file_size = target.settings.recovery.queue_ext_file_size
    at = place % file_size
    path = names.queue_ext_directory(target.root, topic, queue_id) / names.offset_name(place - at)
    head = _read(path, at, consumequeueext.HEAD_LENGTH).ljust(consumequeueext.HEAD_LENGTH, b"\0")
    size, _tags_code, _timestamp, width = consumequeueext.HEAD.unpack(head)
    if width >= 0 and size == consumequeueext.HEAD_LENGTH + width and place + size <= queue.appended:
        return
    raise OutputError(
        "what the queue's last unit points to is not what was written",
        path=path,
        offset=at,
        expected=f"a record that ends at {queue.appended} of the queue at the latest",
        found=f"a size of {size}, and a bit map of {width} bytes",
        next_step=next_step,
    )


def _audit_batch_queue(target: Target, topic: str, queue_id: int, queue: QueueState, next_step: str) -> None:
    file_size = target.settings.recovery.batch_queue_file_size
    at = queue.appended - batchconsumequeue.UNIT_LENGTH
    directory = names.batch_queue_directory(target.root, topic, queue_id)
    path = directory / names.offset_name(at - at % file_size)
    data = _read(path, at % file_size, batchconsumequeue.UNIT_LENGTH)
    end = sum(batchconsumequeue.UNIT.unpack(data)[:2]) if len(data) == batchconsumequeue.UNIT_LENGTH else 0
    if end == queue.end:
        return
    raise OutputError(
        "the batch queue's last unit is not what was written",
        path=path,
        offset=at % file_size,
        expected=f"a message that ends at {queue.end}",
        found=f"one that ends at {end}",
        next_step=next_step,
    )


def _last_unit(path: Path, offset: int) -> tuple[int, bytes]:
    """A queue file's length, and the unit at a byte offset: 100,000 queues may end in one batch."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_size, os.pread(fd, UNIT_LENGTH, offset)
    finally:
        os.close(fd)


def _read(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError:
        return b""
