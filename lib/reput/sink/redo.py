"""Placing irregular queues again, in log order, after the scan tasks have placed what they could."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reput.build.placement import (
    Breaks,
    Oddity,
    Placement,
    giving_way,
    is_unproven,
    last_is_lone_zero,
    place,
)
from reput.errors import Finding, ReputError
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH, unit
from reput.scan.part import Part
from reput.sink.journal import QueueState
from reput.sink.opened import opened
from reput.sink.queue_files import QueueFiles, series
from reput.sink.salvage import hidden_of, salvaged_of
from reput.sink.scan_task import QueueRows, Target, collect
from reput.sink.state import LoneZero, Salvaged
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.system_errors import unwritten

_EXPECTED = "the queueOffset that is due"
_OUTCOMES = {
    "repeated-message": "one unit was kept",
    "repeated-queue-offset": "the first keeps its place; these can only be read by physical offset",
    "queue-restarted": "the topic was created anew: only the newest incarnation is kept",
    "missing-queue-offsets": "the hole was filled with the unit after it, so that consumers lose no message",
    "queue-offset-jump": "appended at the due place, as the broker's dispatch does",
}
_FILL_AT_ONCE = 1 << 16  # units


@dataclass(frozen=True, slots=True)
class Redone:
    """What came of one irregular queue.

    Attributes:
        topic, queue_id: the queue.
        state: as of the end of the batch; None when it has no units at all.
        restarted: it was created anew in this batch.
        findings: what was odd.
        salvaged: holes that were filled, and messages that the queue can't show.
    """

    topic: str
    queue_id: int
    state: QueueState | None
    restarted: bool
    findings: list[Finding]
    salvaged: list[Salvaged] = field(default_factory=list)


def redo(
    target: Target,
    parts: list[Part],
    committed: dict[tuple[str, int], QueueState | None],
    breaks: Breaks,
    *,
    from_zero: bool,
) -> list[Redone] | ReputError:
    """Clear what a batch may have placed in some queues, and place it anew by the rules.

    Args:
        parts: the batch's parts in log order.
        committed: the queues, each with its state before the batch, None if it had none.
        breaks: where the log isn't whole.
        from_zero: the log begins at physical offset 0: nothing of it has expired.
    """
    try:
        rows = collect(target, parts, set(committed))
        result = []
        file_size = target.settings.consume_queue_file_size
        with (
            OutputLock(target.root).shared(),
            QueueFiles(target.root, file_size, target.owner) as queue_files,
        ):
            for (topic, queue_id), state in committed.items():
                found = rows.get((topic, queue_id))
                queue = (topic, queue_id)
                result.append(
                    _redo_queue(target, parts, queue_files, queue, state, found, breaks, from_zero=from_zero)
                )
            if target.flush_in_tasks:
                queue_files.flush()
        return result
    except ReputError as error:
        return error
    except OSError as error:
        return unwritten(error, target.scratch)


def drop_rest(target: Target, queue: tuple[str, int], before: QueueState | None, now: QueueState) -> None:
    """Drop what is left of a queue's old incarnation, once the new one is committed.

    When this is cut off, scratch is there, and the next start does it.

    Raises:
        OutputError: a file can't be changed.
    """
    if before is not None and now.next < before.next:
        clear_from(target.root, target.settings.consume_queue_file_size, *queue, now.next)


def clear_from(root: Path, file_size: int, topic: str, queue_id: int, queue_offset: int) -> None:
    """Make every place of a queue from ``queue_offset`` on as if nothing had been written there."""
    clear_series(names.queue_directory(root, topic, queue_id), file_size, queue_offset * UNIT_LENGTH)


def clear_series(directory: Path, file_size: int, at: int) -> None:
    """Make a queue's files as if nothing had been written from a byte offset on.

    A directory without files then goes, and its topic's with it when that was the last queue.

    Raises:
        OutputError: a file can't be changed.
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


def _redo_queue(
    target: Target,
    parts: list[Part],
    queue_files: QueueFiles,
    queue: tuple[str, int],
    committed: QueueState | None,
    rows: QueueRows | None,
    breaks: Breaks,
    *,
    from_zero: bool,
) -> Redone:
    topic, queue_id = queue
    file_size = target.settings.consume_queue_file_size
    if rows is None:
        clear_from(target.root, file_size, topic, queue_id, committed.next if committed else 0)
        return Redone(topic, queue_id, committed, False, [])
    rows, placement, state, hidden = placed_anew(rows, committed, breaks, from_zero=from_zero)
    # A queue that begins anew keeps what is committed of it until the new one is: see drop_rest.
    begins = committed is None or (placement.restarted and committed.first == committed.next)
    keep = 0 if committed is None or begins else committed.next
    if committed is not None and committed.unproven is not None and placement.runs:
        keep = min(keep, placement.runs[0][0])
    clear_from(target.root, file_size, topic, queue_id, keep)
    for queue_offset, data in pieces(rows, placement):
        queue_files.put(topic, queue_id, queue_offset, data)
    findings = [*findings_of(parts, queue, rows, placement), *unproven_of(parts, queue, hidden)]
    salvaged = [*salvaged_of(queue, rows, placement), *hidden_of(queue, hidden)]
    return Redone(topic, queue_id, state, placement.restarted, findings, salvaged)


class Placed(NamedTuple):
    """Where a queue's units go.

    Attributes:
        rows: those that are placed, with one before them where the committed state asks for it.
        placement: their places.
        state: the queue afterwards.
        hidden: unproven ones, which give way to proven ones.
    """

    rows: QueueRows
    placement: Placement
    state: QueueState | None
    hidden: QueueRows


def placed_anew(rows: QueueRows, committed: QueueState | None, breaks: Breaks, *, from_zero: bool) -> Placed:
    """Where a queue's units go by the rules; nothing is written.

    Args:
        rows: the queue's units in log order.
        committed: its state before them, None for a new queue.
        breaks: where the log isn't whole.
        from_zero: the log begins at physical offset 0: nothing of it has expired.

    """
    rows, hidden, committed = proven_first(rows, committed, breaks)
    if committed is not None and committed.lone_zero is not None:
        rows = _with_unit_before(committed.lone_zero, rows)

    def placed(count: int) -> Placement:
        return place(
            rows.offset[:count],
            rows.position[:count],
            rows.size[:count],
            committed.first if committed else None,
            committed.next if committed else 0,
            committed.end if committed else -1,
            committed.shift if committed else 0,
            breaks.places,
            from_zero=from_zero,
        )

    placement = placed(len(rows.offset))
    runs = [(first, stop) for _offset, first, stop in placement.runs]
    last = runs[-1][1] - 1 if runs else -1
    state = committed
    if placement.first is not None:
        state = QueueState(
            first=placement.first,
            next=placement.next,
            end=int(rows.position[last] + rows.size[last]) if runs else (committed.end if committed else -1),
            units=sum(stop - first for first, stop in runs),
            bytes=sum(int(rows.size[first:stop].sum()) for first, stop in runs),
            shift=placement.shift,
            lone_zero=_lone_zero(rows, placement),
        )
        proven = np.flatnonzero(~is_unproven(rows.position, breaks))
        if not len(proven) and committed is not None:
            state = replace(state, unproven=committed.proven_next)
        elif not len(proven) or proven[-1] + 1 < len(rows.offset):
            before = placed(int(proven[-1]) + 1).next if len(proven) else placement.first
            state = replace(state, unproven=before)
    return Placed(rows, placement, state, hidden)


def proven_first(
    rows: QueueRows, committed: QueueState | None, breaks: Breaks
) -> tuple[QueueRows, QueueRows, QueueState | None]:
    """What is left of a queue where unproven messages give way to proven ones.

    Args:
        rows: units in log order.
        committed: the queue before them.
        breaks: where the log isn't whole.

    Returns:
        The rows to place; those that give way; the queue as these rows find it: without the units at its end
        that were unproven, and that a row contradicts.
    """
    unproven = is_unproven(rows.position, breaks)
    hidden = giving_way(rows.offset, unproven, 0 if committed is None else committed.proven_next)
    left = rows.only(~hidden)
    if (
        committed is not None
        and committed.unproven is not None
        and len(left.offset)
        and committed.unproven <= left.offset[0] < committed.next
    ):
        committed = replace(committed, next=int(left.offset[0]), shift=0, lone_zero=None)
    return left, rows.only(hidden), committed


def findings_of(
    parts: list[Part], queue: tuple[str, int], rows: QueueRows, placement: Placement
) -> list[Finding]:
    """What was odd about a queue."""
    return [_finding(parts, *queue, rows, oddity) for oddity in _grouped(placement.oddities)]


def unproven_of(parts: list[Part], queue: tuple[str, int], hidden: QueueRows) -> Iterator[Finding]:
    """One finding for a queue's unproven messages that gave way to proven ones."""
    if len(hidden.offset):
        first, last = int(hidden.position[0]), int(hidden.position[-1] + hidden.size[-1])
        yield Finding(
            kind="unproven-message",
            path=path_of(parts, first),
            offset=first,
            end=last,
            expected="a queueOffset between those of the proven messages before and behind",
            found=f"{int(hidden.offset[0])}, of what may be part of a message's body",
            outcome="no unit was written; it can only be read by physical offset",
            topic=queue[0],
            queue_id=queue[1],
            queue_offset=int(hidden.offset[0]),
            count=len(hidden.offset),
        )


def path_of(parts: list[Part], position: int) -> str:
    """The segment that holds a physical offset which one of these parts scanned."""
    return next(part.path for part in parts if part.base <= position < part.base + part.segment_size)


def _lone_zero(rows: QueueRows, placement: Placement) -> tuple[int, int, int] | None:
    """The last unit, if :func:`last_is_lone_zero`."""
    if not last_is_lone_zero(placement.next, placement.shift):
        return None
    return int(rows.position[-1]), int(rows.size[-1]), int(rows.tags[-1])


def _with_unit_before(unit_before: LoneZero, rows: QueueRows) -> QueueRows:
    """The rows with the queue's last unit, a lone queueOffset 0, put before them."""
    position, size, tags, *_ = unit_before
    return QueueRows(
        np.concatenate([np.zeros(1, np.int64), rows.offset]),
        np.concatenate([np.array([position], np.int64), rows.position]),
        np.concatenate([np.array([size], np.int32), rows.size]),
        np.concatenate([np.array([tags], np.int64), rows.tags]),
    )


def pieces(rows: QueueRows, placement: Placement) -> Iterator[tuple[int, bytes]]:
    """A placement as bytes: (queueOffset of the first unit, packed units), the fills of holes last."""
    for queue_offset, first, stop in placement.runs:
        packed = np.empty(stop - first, np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")]))
        packed["position"] = rows.position[first:stop]
        packed["size"] = rows.size[first:stop]
        packed["tags"] = rows.tags[first:stop]
        yield queue_offset, packed.tobytes()
    for queue_offset, end, row in placement.fills:
        filler = unit(int(rows.position[row]), int(rows.size[row]), int(rows.tags[row]))
        for start in range(queue_offset, end, _FILL_AT_ONCE):
            yield start, filler * min(_FILL_AT_ONCE, end - start)


def _grouped(oddities: list[Oddity]) -> list[Oddity]:
    """One oddity a kind, with the count of all; holes are told one by one."""
    grouped: dict[str, Oddity] = {}
    holes = []
    for oddity in oddities:
        if oddity.kind == "missing-queue-offsets":
            holes.append(oddity)
        elif oddity.kind in grouped:
            first = grouped[oddity.kind]
            grouped[oddity.kind] = replace(first, count=first.count + oddity.count)
        else:
            grouped[oddity.kind] = oddity
    return [*grouped.values(), *holes]


def _finding(parts: list[Part], topic: str, queue_id: int, rows: QueueRows, oddity: Oddity) -> Finding:
    position = int(rows.position[oddity.row])
    return Finding(
        kind=oddity.kind,
        path=path_of(parts, position),
        offset=position,
        end=position + int(rows.size[oddity.row]),
        expected=f"{_EXPECTED}, {oddity.expected}",
        found=str(int(rows.offset[oddity.row])),
        outcome=_OUTCOMES[oddity.kind],
        topic=topic,
        queue_id=queue_id,
        queue_offset=oddity.queue_offset,
        count=oddity.count,
    )
