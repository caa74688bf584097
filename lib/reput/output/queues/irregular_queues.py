"""Placing irregular queues again, in log order, after the scan tasks have placed what they could."""

from __future__ import annotations

from pathlib import Path

from reput.build.placement import Breaks
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.names import Queue
from reput.output.queues.queue_files import QueueFiles, series
from reput.replay.altered import Altered
from reput.replay.part_result import QueueRows, collect
from reput.replay.placing import (
    QueueOutcome,
    findings_of,
    hidden_of,
    pieces,
    placed_anew,
    salvaged_of,
    unproven_of,
)
from reput.replay.state import QueueState
from reput.replay.target import Target
from reput.scan.rules import Part
from reput.store import files
from reput.store.files import opened


def place_again(
    target: Target,
    parts: list[Part],
    committed: dict[Queue, QueueState | None],
    breaks: Breaks,
    altered: Altered,
    *,
    from_zero: bool,
) -> list[QueueOutcome]:
    """Clear what a batch may have placed in some queues, and place it again by the rules.

    Args:
        parts: the batch's parts in log order.
        committed: the queues, each with its state before the batch, None if it had none.
        breaks: where the log isn't whole.
        altered: messages that belong to other queues than they say.
        from_zero: the log begins at physical offset 0: nothing of it has expired.

    Raises:
        ReputError, OSError: a segment can't be read, or the output can't be written.
    """
    rows = altered.put_right(collect(target, parts, set(committed)))
    file_size = target.settings.consume_queue_file_size
    with QueueFiles(target.root, file_size, target.owner, whole=target.file_system()) as queue_files:
        result = [
            _place_queue(
                target,
                parts,
                queue_files,
                queue,
                state,
                rows.get(queue),
                altered.breaks_of(queue, breaks),
                from_zero=from_zero,
            )
            for queue, state in committed.items()
        ]
        if target.flush_in_tasks:
            queue_files.flush()
    return result


def drop_rest(target: Target, queue: Queue, before: QueueState | None, now: QueueState) -> None:
    """Remove what is left of a queue's old incarnation, once the new one is committed.

    When this is interrupted, the scratch directory is still there, and the next start does it.
    """
    if before is None:
        return
    if now.next < before.next:
        clear_from(target.root, target.settings.consume_queue_file_size, *queue, now.next)
    if not now.is_batch and now.appended < before.appended:
        directory = names.queue_ext_directory(target.root, *queue)
        clear_series(directory, target.settings.recovery.queue_ext_file_size, now.appended)


def clear_from(root: Path, file_size: int, topic: str, queue_id: int, queue_offset: int) -> None:
    """Make every place of a queue from ``queue_offset`` on as if nothing had been written there."""
    clear_series(names.queue_directory(root, topic, queue_id), file_size, queue_offset * UNIT_LENGTH)


def clear_series(directory: Path, file_size: int, at: int) -> None:
    """Make a queue's files as if nothing had been written from a byte offset on.

    A directory without files is then removed, and with the last queue the topic's directory.
    """
    for start, path in series(directory):
        if start >= at:
            files.remove_tree(path)
        elif start + file_size > at:
            with opened(path, file_size, None) as fd:
                files.zero(fd, at - start, start + file_size - at)
                files.fsync_file(fd)
    for empty in (directory, directory.parent):
        if empty.is_dir() and not any(empty.iterdir()):
            files.remove_tree(empty)


def _place_queue(
    target: Target,
    parts: list[Part],
    queue_files: QueueFiles,
    queue: Queue,
    committed: QueueState | None,
    rows: QueueRows | None,
    breaks: Breaks,
    *,
    from_zero: bool,
) -> QueueOutcome:
    topic, queue_id = queue
    file_size = target.settings.consume_queue_file_size
    if rows is None:
        clear_from(target.root, file_size, topic, queue_id, committed.next if committed else 0)
        return QueueOutcome(topic, queue_id, committed, False, [])
    rows, placement, state, hidden = placed_anew(rows, committed, breaks, from_zero=from_zero)
    # A queue that begins again keeps what is committed of it until the new one is: see drop_rest.
    begins = committed is None or (placement.restarted and committed.first == committed.next)
    keep = 0 if committed is None or begins else committed.next
    if committed is not None and committed.unproven is not None and placement.runs:
        keep = min(keep, placement.runs[0][0])
    clear_from(target.root, file_size, topic, queue_id, keep)
    for queue_offset, data in pieces(rows, placement):
        queue_files.put(topic, queue_id, queue_offset, data)
    findings = [*findings_of(parts, queue, rows, placement), *unproven_of(parts, queue, hidden)]
    salvaged = [*salvaged_of(queue, rows, placement), *hidden_of(queue, hidden)]
    return QueueOutcome(topic, queue_id, state, placement.restarted, findings, salvaged, placement.gaps)
