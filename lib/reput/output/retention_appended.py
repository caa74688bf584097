"""Retention of what is written in log order: batch queues, and files in consumequeue_ext.

* Files of a batch queue are removed as those of a consume queue; its min offset becomes what follows the
  messages of the last unit before the log's start (``BatchConsumeQueue.deleteExpiredFile``,
  ``correctMinOffset``, 5.3.3).
* In consumequeue_ext files are removed that end before the unit to which the queue's first unit points
  (``ConsumeQueueExt.truncateByMinAddress``, 4.9.7).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from reput.errors import OutputError
from reput.format import names
from reput.format.batchconsumequeue import UNIT, UNIT_LENGTH
from reput.format.consumequeue import UNIT as QUEUE_UNIT
from reput.format.consumequeue import UNIT_LENGTH as QUEUE_UNIT_LENGTH
from reput.format.consumequeueext import place_of
from reput.format.names import Queue
from reput.output.queues.queue_files import series
from reput.replay.state import QueueState
from reput.replay.target import Target
from reput.store import files
from reput.store.reading import reading

Queues = Mapping[Queue, QueueState]

_NEXT_STEP = "Put the file back, or remove the output and run again"


def first_live(target: Target, queue: Queue, known: QueueState, log_start: int) -> int:
    """The first queueOffset of a batch queue whose message isn't before the log's start."""
    file_size = target.settings.recovery.batch_queue_file_size
    for base, path in series(names.batch_queue_directory(target.root, *queue)):
        stop = min(known.appended - base, file_size)
        is_last = base + file_size >= known.appended
        if stop <= 0 or (_position(path, stop - UNIT_LENGTH) < log_start and not is_last):
            continue
        units = UNIT.iter_unpack(_read(path, 0, stop))
        first = -1
        for position, _size, _tags, _time, offset, count, _compacted, _reserved in units:
            if position >= log_start:
                return offset if first < 0 else first
            first = offset + count
        return first
    return known.next


def gone(target: Target, queues: Queues, changed: Queues, log_start: int) -> Iterator[Path]:
    """The files to remove when some queues change.

    Args:
        log_start: where the log begins; a batch queue's queueOffsets don't show it, for they may begin again.
    """
    for queue, before in queues.items():
        now = changed.get(queue, before)
        if not now.appended:
            continue
        if now.is_batch:
            yield from _gone_batch(target, queue, now, log_start)
        elif now.first < now.next:
            yield from _gone_ext(target, queue, now)


def _gone_batch(target: Target, queue: Queue, now: QueueState, log_start: int) -> Iterator[Path]:
    file_size = target.settings.recovery.batch_queue_file_size
    for base, path in series(names.batch_queue_directory(target.root, *queue)):
        if base + file_size >= now.appended:
            return
        if _position(path, file_size - UNIT_LENGTH) >= log_start:
            return
        yield path


def _gone_ext(target: Target, queue: Queue, now: QueueState) -> Iterator[Path]:
    file_size = target.settings.consume_queue_file_size
    at = now.first * QUEUE_UNIT_LENGTH
    path = names.queue_file(target.root, *queue, at - at % file_size)
    _position, _size, tags_code = QUEUE_UNIT.unpack(_read(path, at % file_size, QUEUE_UNIT_LENGTH))
    place = place_of(tags_code)
    for base, ext_path in series(names.queue_ext_directory(target.root, *queue)):
        if place is not None and base + target.settings.recovery.queue_ext_file_size < place:
            yield ext_path


def _position(path: Path, at: int) -> int:
    """The physicalOffset of a batch queue's unit."""
    return int(UNIT.unpack(_read(path, at, UNIT_LENGTH))[0])


def _read(path: Path, at: int, length: int) -> bytes:
    with files.reporting("the queue's file can't be read", path), reading(path, by_ranges=True) as fd:
        data = os.pread(fd, length, at)
    if len(data) < length:
        raise OutputError(
            "the queue's file is shorter than it was written",
            path=path,
            offset=at,
            expected=f"{length} bytes",
            found=f"{len(data)}",
            next_step=_NEXT_STEP,
        )
    return data
