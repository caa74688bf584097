"""Checks of an output's files against the journal, by what the driver sees; and what damage leaves behind.

Before a batch of tasks is committed, and before an output replaces a store's files: tasks may have written
elsewhere, to a disk that only their host has; or the disk may have lost what they wrote.

Before a batch adds to a queue, and of all queues when a run begins: a user may have removed committed files.
These would be created again, with zeros in the places of committed units.

After a batch that met damage, the bytes of each range that was skipped go to ``lost-and-found/`` in the
output, a file each, before the journal's record that names them. A file is written beside its place and
renamed, and written again by a batch that is repeated. reput never removes one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.errors import Finding, OutputError
from reput.format import consumequeueext, names
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.format.dtypes import BATCH, PLAIN, Form
from reput.format.indexfile import FIRST_ORDINAL, HEADER_LENGTH, IndexHeader, file_length
from reput.format.names import Queue
from reput.log.segments import CommitLog, is_zero, open_segment
from reput.output import index_files
from reput.replay.state import HIDDEN, KEPT, QueueState, Salvaged, State
from reput.replay.target import Target
from reput.store import files
from reput.store.listing import names_in
from reput.store.reading import open_file, reading
from reput.store.system import check_free

_NOT_REPLACED = "Nothing was replaced. Check the disk, remove the staging directory and run again"
_NOT_COMMITTED = (
    "Nothing of this batch was committed. See that the disk is sound and all hosts have the output mounted, "
    "then run the same command again"
)
_NOT_CONTINUED = "Put it back and run the same command again, or remove the output and start again"


def audit(target: Target, state: State) -> None:
    """Check that every queue ends, and every index file begins, as the journal says.

    This reads a queue's last unit, and the record in consumequeue_ext that it points to.
    """
    _audit(target, state.queues, state.index, _NOT_REPLACED)


def audit_batch(
    target: Target,
    queues: Mapping[Queue, QueueState],
    ranges: Iterable[tuple[Queue, tuple[int, int]]],
    index: Sequence[tuple[str, IndexHeader]],
    device: int | None = None,
) -> list[Path]:
    """Check that what a batch is about to name in the journal is there for this process, too.

    This checks the size of each file that the batch has written to, and reads what :func:`audit` reads.
    ``ranges`` are bytes of a queue's files from a file's first byte on. Returns the files that aren't, or may
    not be, on ``device`` (``st_dev``).
    """
    settings = target.settings
    file_size = settings.consume_queue_file_size
    elsewhere: list[Path] = []
    for queue, (start, stop) in ranges if target.queue_files else ():
        # The last file is checked together with its last unit.
        for at in range(start, stop - file_size, file_size):
            path = names.queue_file(target.root, *queue, at)
            if _audit_size(path, file_size) != device:
                elsewhere.append(path)
    index_size = file_length(settings.max_hash_slot_num, settings.max_index_num)
    for name, _ in index:
        path = target.root / names.INDEX / name
        if _audit_size(path, index_size) != device:
            elsewhere.append(path)
    return elsewhere + _audit(target, queues, index, _NOT_COMMITTED, device)


def _audit_size(path: Path, size: int) -> int:
    """Check it; returns the file's device."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unseen(path, size, error.strerror or str(error), _NOT_COMMITTED) from error
    if found.st_size != size:
        raise _unseen(path, size, f"{found.st_size} bytes", _NOT_COMMITTED)
    return found.st_dev


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
    queues: Mapping[Queue, QueueState],
    index: Iterable[tuple[str, IndexHeader]],
    next_step: str,
    device: int | None = None,
) -> list[Path]:
    """Check queues and index files; returns the consume queue files that aren't on a device."""
    sizes = target.settings.queue_file_sizes
    elsewhere: list[Path] = []
    for (topic, queue_id), queue in queues.items() if target.queue_files else ():
        form, at = _last_place(queue, queue.next)
        _, file_size = sizes[form.directory]
        path = f"{target.root}/{form.directory}/{topic}/{queue_id}/{names.offset_name(at - at % file_size)}"
        try:
            facts, data = _last_unit(path, at % file_size)
        except OSError as error:
            raise _unseen(Path(path), file_size, error.strerror or str(error), next_step) from error
        if facts.st_size != file_size:
            raise _unseen(Path(path), file_size, f"{facts.st_size} bytes", next_step)
        if facts.st_dev != device and form is PLAIN:  # the others are flushed when they are written
            elsewhere.append(Path(path))
        physical_offset, size, tags_code = UNIT.unpack(data) if len(data) == UNIT_LENGTH else (0, 0, 0)
        if physical_offset + size != queue.end:
            raise OutputError(
                "the queue's last unit is not what was written",
                path=Path(path),
                offset=at % file_size,
                expected=f"a message that ends at {queue.end}",
                found=f"one that ends at {physical_offset + size}",
                next_step=next_step,
            )
        place = consumequeueext.place_of(tags_code) if queue.appended and form is PLAIN else None
        if place is not None:
            _audit_ext(target, topic, queue_id, queue, place, next_step)
    for name, header in index:
        index_path = target.root / names.INDEX / name
        data = _read(index_path, 0, HEADER_LENGTH)
        written = header.encode(counts_keys=target.settings.dialect.counts_keys)
        if header.index_count > FIRST_ORDINAL and data != written:
            raise OutputError(
                "the index file's header is not what was written",
                path=index_path,
                expected=IndexHeader.decode(written),
                found=IndexHeader.decode(data) if len(data) == HEADER_LENGTH else None,
                next_step=next_step,
            )
    return elsewhere


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


def _last_place(queue: QueueState, end: int) -> tuple[Form, int]:
    """A queue's form, and the byte offset in its files of the unit before the queueOffset ``end``."""
    if queue.is_batch:
        return BATCH, queue.appended - BATCH.unit_length
    return PLAIN, (end - 1) * UNIT_LENGTH


def _last_unit(path: str, offset: int) -> tuple[os.stat_result, bytes]:
    """A queue file's facts, and what a unit of either form begins with: position, size and tags.

    100,000 queues may end in one batch.
    """
    fd = open_file(path)
    try:
        return os.fstat(fd), os.pread(fd, UNIT_LENGTH, offset)
    finally:
        os.close(fd)


def _read(path: Path, offset: int, length: int) -> bytes:
    try:
        with reading(path, by_ranges=True) as fd:
            return os.pread(fd, length, offset)
    except OSError:
        return b""


def check_queues(target: Target, known: Mapping[Queue, QueueState], queues: Iterable[Queue]) -> None:
    """Check that queues still have their last committed unit.

    Those that aren't in ``known``, as of the last commit, are skipped.
    """
    sizes = target.settings.queue_file_sizes
    for topic, queue_id in queues if target.queue_files else ():
        state = known.get((topic, queue_id))
        if state is None:
            continue
        if state.appended and not state.is_batch and state.first != state.next:
            _check_ext(target, topic, queue_id, state)
        # Unproven units may have been replaced by the batch that is about to be committed.
        if state.first == (state.next if state.is_batch else state.proven_next):
            continue
        form, at = _last_place(state, state.proven_next)
        _, file_size = sizes[form.directory]
        path = form.place(target.root, topic, queue_id) / names.offset_name(at - at % file_size)
        if not any(_read_unit(path, at % file_size)):
            what = "batch" if state.is_batch else "consume"
            raise _gone(f"a {what} queue's last committed unit is gone", path, at % file_size)


def _check_ext(target: Target, topic: str, queue_id: int, state: QueueState) -> None:
    """Check that the file is there in which a queue's last unit in consumequeue_ext ends."""
    file_size = target.settings.recovery.queue_ext_file_size
    at = state.appended - 1
    directory = names.queue_ext_directory(target.root, topic, queue_id)
    path = directory / names.offset_name(at - at % file_size)
    # Its bit map may be all zeros.
    if not _read_unit(path, at % file_size):
        raise _gone("a queue's last file in consumequeue_ext is gone", path)


def check_all(target: Target, state: State) -> None:
    """Check that every file that a state names is there, and that every queue has its last unit."""
    file_size = target.settings.consume_queue_file_size
    for (topic, queue_id), queue in state.queues.items() if target.queue_files else ():
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
        index_files.check_there(target.root / names.INDEX / name, header)


def _gone(problem: str, path: Path, offset: int | None = None) -> OutputError:
    return OutputError(problem, path=path, offset=offset, next_step=_NOT_CONTINUED)


def _read_unit(path: Path, offset: int) -> bytes:
    try:
        fd = open_file(path)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, UNIT_LENGTH, offset)
    finally:
        os.close(fd)


#: Messages of all queues of a batch that are listed one by one; beyond that a queue's are one row.
MOST_HIDDEN_IN_BATCH = 1 << 16


def keep_ranges(
    target: Target, log: CommitLog, findings: Iterable[Finding], breaks: Collection[int]
) -> list[Salvaged]:
    """Keep the bytes that a scan has skipped; on return they are on disk.

    They go from the segment's map to the file, whatever their length; where there is no room for all, none is
    written. Zeros alone are listed, not kept. ``breaks`` are physical offsets where something was skipped.
    """
    passed = set(breaks)
    result = []
    kept: list[tuple[str, NDArray[np.uint8]]] = []
    for finding in findings:
        segment = log.segment_at(finding.offset)
        if finding.offset not in passed or finding.topic is not None or segment is None:
            continue
        end = min(finding.end, segment.base + segment.length)
        if end <= finding.offset:
            continue
        opened = open_segment(segment.path, segment.length)
        data = opened.read(finding.offset - segment.base, end - segment.base)
        name = None
        if not is_zero(data):
            name = f"{names.offset_name(finding.offset)}-{end - finding.offset}"
            kept.append((name, data))
        result.append(Salvaged(KEPT, finding.offset, end, file=name))
    if kept:
        directory = target.root / names.LOST_AND_FOUND
        check_free(directory, sum(len(data) for _, data in kept), "what is damaged in the log, kept aside")
        files.make_dirs(directory, target.owner)
        for name, data in kept:
            files.write_atomically(directory / name, data.data, target.owner)
    return result


def bounded(salvaged: Iterable[list[Salvaged]]) -> Iterator[Salvaged]:
    """What was salvaged of a batch's queues, given as a list each, in as many rows as a journal can take."""
    left = MOST_HIDDEN_IN_BATCH
    for rows in salvaged:
        hidden = [one for one in rows if one.kind == HIDDEN]
        yield from (one for one in rows if one.kind != HIDDEN)
        if len(hidden) <= left:
            left -= len(hidden)
            yield from hidden
        elif hidden:
            yield replace(hidden[0], end=hidden[-1].end, count=sum(one.count for one in hidden))
