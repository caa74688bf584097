"""Rolling back what a batch wrote that was never committed.

After a crash the files may hold more than the journal says: units past a queue's next queueOffset, queues
and index files that it doesn't name, entries past an index file's count and the slots that point to them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import FIRST_ORDINAL, HEADER_LENGTH
from reput.output.index import index_file
from reput.output.queues.irregular_queues import clear_series
from reput.replay.state import State
from reput.replay.target import Target
from reput.store import files
from reput.store.files import opened
from reput.store.listing import names_in, queues_in
from reput.store.outside import refuse_links


def roll_back(target: Target, state: State) -> None:
    """Make the output what ``state`` says it is. Does nothing after a clean end.

    A batch that is under way has a scratch directory; a committed one has none.

    Raises:
        OutputError: a file can't be changed; or a symbolic link leads out of the output, and nothing was
            changed.
    """
    if not target.scratch.exists():
        return
    refuse_links(target.root, (*names.OUTPUT, names.REPUT))
    if target.queue_files:
        _roll_back_queues(target, state)
    _roll_back_index(target, state)
    # A task that outlived the last run, on another host, may still write there, to what nobody reads.
    shutil.rmtree(target.scratch, ignore_errors=True)


def _roll_back_queues(target: Target, state: State) -> None:
    recovery, queue_file_size = target.settings.recovery, target.settings.consume_queue_file_size
    for name, directory_of, file_size, is_batch in (
        (names.CONSUME_QUEUE, names.queue_directory, queue_file_size, False),
        (names.CONSUME_QUEUE_EXT, names.queue_ext_directory, recovery.queue_ext_file_size, False),
        (names.BATCH_CONSUME_QUEUE, names.batch_queue_directory, recovery.batch_queue_file_size, True),
    ):
        by_offset = name == names.CONSUME_QUEUE  # the others are written in log order
        known = {
            directory_of(target.root, *queue): each.next * UNIT_LENGTH if by_offset else each.appended
            for queue, each in state.queues.items()
            if each.is_batch == is_batch
        }
        for _, _, queue in queues_in(target.root / name):
            clear_series(Path(queue), file_size, known.get(Path(queue), 0))


def _roll_back_index(target: Target, state: State) -> None:
    known = dict(state.index)
    directory = target.root / names.INDEX
    for gone in names_in(directory):
        if gone not in known:
            files.remove_tree(directory / gone)
    if not state.index:
        return
    name, header = state.index[-1]
    path, settings = directory / name, target.settings
    length = index_file.file_length(settings)
    index_file.check_there(path, header)
    with opened(path, length, target.owner) as fd:
        with files.reporting("the index can't be read back", path):
            slots = index_file.slots_of_entries(fd, settings.max_hash_slot_num, header.index_count)
        empty = header.index_count == FIRST_ORDINAL
        on_disk = index_file.empty_header(settings, header) if empty else header
        files.pwrite_all(fd, index_file.slot_bytes(slots), HEADER_LENGTH)
        files.pwrite_all(fd, on_disk.encode(counts_keys=settings.dialect.counts_keys), 0)
        end = index_file.entry_offset(settings.max_hash_slot_num, header.index_count)
        files.zero(fd, end, length - end)
        files.fsync_file(fd)
