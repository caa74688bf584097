"""Taking back what a batch wrote that was never committed.

After a crash the files may hold more than the journal says: units past a queue's next queueOffset, queues
and index files that it doesn't name, entries past an index file's count and the slots that point to them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from reput.build.index import rebuild_slots
from reput.format import names
from reput.format.indexfile import (
    ENTRY_LENGTH,
    FIRST_ORDINAL,
    HEADER_LENGTH,
    SLOT_LENGTH,
    IndexHeader,
    file_length,
)
from reput.sink.journal import State
from reput.sink.opened import opened
from reput.sink.redo import clear_from
from reput.sink.scan_task import Target
from reput.store import files

_ENTRIES_AT_ONCE = 1 << 20


def roll_back(target: Target, state: State) -> None:
    """Make the output what ``state`` says it is. Nothing happens after a clean end.

    A batch that is under way has a scratch directory; a committed one has none.

    Raises:
        OutputError: a file can't be changed.
    """
    if not target.scratch.exists():
        return
    _roll_back_queues(target, state)
    _roll_back_index(target, state)
    shutil.rmtree(target.scratch)


def _roll_back_queues(target: Target, state: State) -> None:
    root = target.root / names.CONSUME_QUEUE
    known = {
        names.queue_directory(target.root, topic, queue_id): queue.next
        for (topic, queue_id), queue in state.queues.items()
    }
    for topic in _directories(root):
        for queue in _directories(topic):
            clear_from(
                target.root,
                target.settings.consume_queue_file_size,
                topic.name,
                int(queue.name),
                known.get(queue, 0),
            )


def _roll_back_index(target: Target, state: State) -> None:
    known = dict(state.index)
    directory = target.root / names.INDEX
    for path in sorted(directory.glob("*")) if directory.is_dir() else []:
        if path.name not in known:
            files.remove_tree(path)
    if state.index:
        name, header = state.index[-1]
        _truncate_index(target, directory / name, header)


def _truncate_index(target: Target, path: Path, header: IndexHeader) -> None:
    settings = target.settings
    length = file_length(settings.max_hash_slot_num, settings.max_index_num)
    first_entry = HEADER_LENGTH + settings.max_hash_slot_num * SLOT_LENGTH
    slots = np.zeros(settings.max_hash_slot_num, np.int32)
    with opened(path, length, target.owner) as fd:
        for ordinal in range(FIRST_ORDINAL, header.index_count, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, header.index_count - ordinal)
            data = os.pread(fd, count * ENTRY_LENGTH, first_entry + ordinal * ENTRY_LENGTH)
            hashes = np.frombuffer(data, ">i4").reshape(-1, ENTRY_LENGTH // 4)[:, 0]
            rebuild_slots(hashes.astype(np.int32), slots, ordinal)
        on_disk = header
        if header.index_count == FIRST_ORDINAL:
            on_disk = IndexHeader(
                header.begin_timestamp,
                header.end_timestamp,
                header.begin_physical_offset,
                header.end_physical_offset,
                header.slot_count,
                settings.dialect.empty_index_count,
            )
        files.pwrite_all(fd, slots.astype(">i4").view(np.uint8).data, HEADER_LENGTH)
        files.pwrite_all(fd, on_disk.encode(), 0)
        end = first_entry + header.index_count * ENTRY_LENGTH
        files.zero(fd, end, length - end)
        files.fsync_file(fd)


def _directories(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
