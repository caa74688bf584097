"""Queues that are written in log order: batch queues, and those with units in consumequeue_ext.

The place of a unit there isn't known from its message. So scan tasks only put units aside, in the files of
:mod:`reput.replay.spills`, and they are written here when all parts of the batch are known, some queues
a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.build import ext, units
from reput.build.placement import Breaks, giving_way, is_unproven
from reput.build.units import BatchRows
from reput.errors import Finding
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.consumequeueext import HEAD_LENGTH
from reput.format.names import Queue
from reput.output.whole_queues import MAX_OPEN, QueueFiles, SeriesFiles, series
from reput.replay.altered import Altered
from reput.replay.part_result import PartResult, QueueRows, collect
from reput.replay.placing import (
    QueueOutcome,
    findings_of,
    hidden_of,
    path_of,
    pieces,
    placed_anew,
    salvaged_of,
    unproven_of,
)
from reput.replay.spills import ROW, BitMaps, Rows, SpillFiles, Stretch
from reput.replay.state import LoneZero, QueueState
from reput.replay.target import Target
from reput.scan.rules import Part
from reput.store import files
from reput.store.file_system import FileSystem
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

    ``committed`` names the queues, each with its state before the batch. ``from_zero``: nothing of the log
    has expired.
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
    rows, placement, state, hidden = placed_anew(
        target.settings, queue, rows, committed, breaks, from_zero=from_zero
    )
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


#: Open files of each of the three kinds. A queue is written at once, so that few are needed for long.
_OPEN = MAX_OPEN // 4

_Block = tuple[Rows, BitMaps]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a batch has for one queue."""

    topic: str  # topic, queue_id: the queue
    queue_id: int
    is_batch: bool  # it is a batch queue
    committed: QueueState | None  # its state before the batch, None if it had none
    stretches: tuple[Stretch, ...]  # its units in log order


def waiting(
    target: Target, accepted: Sequence[PartResult], committed: Mapping[Queue, QueueState]
) -> list[Waiting]:
    """The units that some parts, in log order, have put aside, by queue."""
    stretches: dict[Queue, list[Stretch]] = {}
    for result in accepted:
        for queue, found in result.waiting.items():
            stretches.setdefault(queue, []).extend(found)
    return [
        Waiting(*queue, _is_batch(target, queue[0]), committed.get(queue), tuple(found))
        for queue, found in stretches.items()
    ]


def _is_batch(target: Target, topic: str) -> bool:
    # Without consumequeue_ext only batch queues are put aside, whatever topics.json says by now.
    return not target.queue_ext or target.selection.is_batch(topic)


def shares(queues: list[Waiting], count: int) -> list[list[Waiting]]:
    """Queues for at most ``count`` tasks, with about as many units each."""
    sized = [(sum(each.count for each in queue.stretches), queue) for queue in queues]
    heap: list[tuple[int, int]] = []
    found: list[list[Waiting]] = [[] for _ in range(min(count, len(queues)))]
    for number in range(len(found)):
        heappush(heap, (0, number))
    sized.sort(key=itemgetter(0))
    for weight, queue in reversed(sized):
        load, number = heappop(heap)
        found[number].append(queue)
        heappush(heap, (load + weight, number))
    return found


def write(
    target: Target, queues: list[Waiting], parts: list[Part], breaks: Breaks, *, from_zero: bool
) -> list[QueueOutcome]:
    """Append the units that wait for some queues; on return they are on disk.

    Running it again from the same committed states writes the same bytes. ``from_zero``: nothing of the log
    has expired.
    """
    recovery, root, owner = target.settings.recovery, target.root, target.owner
    ext_of, batch_of = names.queue_ext_directory, names.batch_queue_directory
    whole = partial(FileSystem, root, target.settings.root)
    with (
        QueueFiles(
            root, target.settings.consume_queue_file_size, owner, max_open=_OPEN, whole=whole()
        ) as queue_files,
        SeriesFiles(
            root, recovery.queue_ext_file_size, owner, ext_of, max_open=_OPEN, whole=whole()
        ) as ext_files,
        SeriesFiles(
            root, recovery.batch_queue_file_size, owner, batch_of, max_open=_OPEN, whole=whole()
        ) as batch_files,
        SpillFiles() as spills,
    ):
        result = []
        for queue in queues:
            blocks = spills.blocks(queue.stretches)
            if queue.is_batch:
                result.append(_append(queue, blocks, batch_files, parts, breaks))
            else:
                outcome = _write_both(
                    target, queue, blocks, queue_files, ext_files, parts, breaks, from_zero=from_zero
                )
                result.append(outcome)
        for series in (ext_files, batch_files, queue_files):
            series.flush()
    return result


def _append(
    queue: Waiting, blocks: list[_Block], batch_files: SeriesFiles, parts: list[Part], breaks: Breaks
) -> QueueOutcome:
    """Append to a batch queue."""
    rows = _rows(blocks)
    gives_way = _gives_way(rows, "base_offset", queue.committed, breaks)
    hidden = _queue_rows(rows[gives_way])
    rows = rows[~gives_way]
    all_rows = BatchRows(*(rows[name] for name in BatchRows._fields))
    given = all_rows.dispatched()
    before = queue.committed
    state = before
    if len(given.position):
        data = units.pack_batch(given)
        at = 0 if before is None else before.appended
        batch_files.put_bytes(queue.topic, queue.queue_id, at, data)
        state = QueueState(
            first=int(given.base_offset[0])
            if before is None or before.first == before.next
            else before.first,
            next=int(given.base_offset[-1]) + int(given.batch_size[-1]),
            end=int(given.position[-1]) + int(given.size[-1]),
            units=len(given.position),
            bytes=int(given.size.sum()),
            appended=at + len(data),
            is_batch=True,
        )
    key = queue.topic, queue.queue_id
    findings = [*_passed_over(queue, all_rows, parts), *unproven_of(parts, key, hidden)]
    return QueueOutcome(
        *key, state, restarted=False, findings=findings, salvaged=list(hidden_of(key, hidden))
    )


def _gives_way(rows: Rows, offset: str, committed: QueueState | None, breaks: Breaks) -> NDArray[np.bool_]:
    """Which rows of a queue are dropped in favour of proven ones: bool[rows]; ``offset`` names a field."""
    proven_next = 0 if committed is None else committed.proven_next
    return giving_way(rows[offset], is_unproven(rows["position"], breaks), proven_next)


def _passed_over(queue: Waiting, rows: BatchRows, parts: list[Part]) -> Iterator[Finding]:
    """One finding for a queue's messages that got no unit."""
    bad = np.flatnonzero((rows.base_offset < 0) | (rows.batch_size < 0))
    if len(bad):
        position = int(rows.position[bad[0]])
        yield Finding(
            kind="bad-inner-batch",
            path=path_of(parts, position),
            offset=position,
            end=position + int(rows.size[bad[0]]),
            expected="INNER_BASE and INNER_NUM of 0 or more",
            found=f"{int(rows.base_offset[bad[0]])} and {int(rows.batch_size[bad[0]])}",
            outcome="no unit was written, as by the broker",
            topic=queue.topic,
            queue_id=queue.queue_id,
            count=len(bad),
        )


def _write_both(
    target: Target,
    queue: Waiting,
    blocks: list[_Block],
    queue_files: QueueFiles,
    ext_files: SeriesFiles,
    parts: list[Part],
    breaks: Breaks,
    *,
    from_zero: bool,
) -> QueueOutcome:
    """Place a queue's units, and append those in consumequeue_ext to which they point."""
    key, before = (queue.topic, queue.queue_id), queue.committed
    blocks, hidden = _proven_first(queue, blocks, breaks)
    findings = list(unproven_of(parts, key, hidden))
    salvaged = list(hidden_of(key, hidden))
    if not blocks:
        return QueueOutcome(*key, before, False, findings, salvaged)
    last_row = blocks[-1][0][-1]
    last_map = blocks[-1][1][-1] if last_row["mapped"] else blocks[-1][1][-1, :0]
    rows, placement, state, _ = placed_anew(
        target.settings, key, _queue_rows(_rows(blocks)), before, breaks, from_zero=from_zero
    )
    begin, start = 0, 0 if before is None else before.appended
    if before is not None and before.lone_zero is not None:
        blocks = [_of_lone_zero(before.lone_zero), *blocks]
        begin = 1  # its unit is already there
    ext_size = target.settings.recovery.queue_ext_file_size
    if placement.restarted:
        begin, start = placement.runs[0][1], 0
        # The old incarnation; drop_rest removes its files after the commit.
        for _, path in series(names.queue_ext_directory(target.root, *key)):
            with opened(path, ext_size, None) as fd:
                files.zero(fd, 0, ext_size)
                files.fsync_file(fd)
    appended = _put_ext(queue, ext_files, blocks, rows, begin, start, ext_size)
    if before is not None and before.unproven is not None and placement.runs:
        clear_from(target.root, target.settings.consume_queue_file_size, *key, placement.runs[0][0])
    for queue_offset, data in pieces(rows, placement):
        queue_files.put(*key, queue_offset, data)
    if state is not None:
        lone_zero = state.lone_zero
        if lone_zero is not None:
            timestamp = int(last_row["timestamp"]) if last_row["own"] else -1
            lone_zero = (*lone_zero[:3], timestamp, last_map.tobytes().hex())
        state = replace(state, appended=appended, lone_zero=lone_zero)
    return QueueOutcome(
        *key,
        state,
        placement.restarted,
        [*findings_of(parts, key, rows, placement), *findings],
        [*salvaged_of(key, rows, placement), *salvaged],
    )


def _proven_first(queue: Waiting, blocks: list[_Block], breaks: Breaks) -> tuple[list[_Block], QueueRows]:
    """The blocks without rows that are dropped in favour of proven ones, and these rows."""
    given = _rows(blocks)
    gives_way = _gives_way(given, "offset", queue.committed, breaks)
    if not gives_way.any():
        return blocks, _queue_rows(given[:0])
    left, at = [], 0
    for rows, maps in blocks:
        stays = ~gives_way[at : at + len(rows)]
        at += len(rows)
        if stays.any():
            left.append((rows[stays], maps[stays]))
    return left, _queue_rows(given[gives_way])


def _put_ext(
    queue: Waiting,
    ext_files: SeriesFiles,
    blocks: list[_Block],
    rows: QueueRows,
    begin: int,
    start: int,
    file_size: int,
) -> int:
    """Append the units of ``rows`` from the row ``begin`` on, and put their addresses in the tags' place.

    Returns where the next one goes.
    """
    end, at = start, 0
    for block, bit_maps in blocks:
        first, at = at, at + len(block)
        own = np.flatnonzero(block["own"] & (np.arange(first, at) >= begin))
        # Units of one length at a time: with a bit map, or without.
        for chosen in np.split(own, np.flatnonzero(np.diff(block["mapped"][own])) + 1):
            if not len(chosen):
                continue
            tags, timestamps = block["tags"][chosen], block["timestamp"][chosen]
            maps = bit_maps[chosen] if block["mapped"][chosen[0]] else bit_maps[chosen, :0]
            layout = ext.lay_out(end, len(chosen), HEAD_LENGTH + maps.shape[1], file_size)
            for place, data in ext.pack(layout, tags, timestamps, maps):
                ext_files.put_bytes(queue.topic, queue.queue_id, place, data)
            rows.tags[first + chosen] = layout.addresses(tags)
            end = layout.end
    return end


def _rows(blocks: list[_Block]) -> Rows:
    # Joining arrays of records takes far longer than joining bytes, and nearly always there is only one.
    return blocks[0][0] if len(blocks) == 1 else np.concatenate([block for block, _ in blocks])


def _queue_rows(rows: Rows) -> QueueRows:
    return QueueRows(*(rows[name].copy() for name in ("offset", "position", "size", "tags")))


def _of_lone_zero(lone_zero: LoneZero) -> _Block:
    """The message in :attr:`QueueState.lone_zero`, as a block of its own."""
    row = np.zeros(1, ROW)
    row["position"], row["size"], row["tags"] = lone_zero[:3]
    timestamp, bit_map = (-1, "") if len(lone_zero) == 3 else (lone_zero[3], lone_zero[4])
    row["timestamp"], row["own"], row["mapped"] = timestamp, timestamp >= 0, bool(bit_map)
    return row, np.frombuffer(bytes.fromhex(bit_map), np.uint8).reshape(1, -1)
