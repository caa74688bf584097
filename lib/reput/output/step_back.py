"""A log that went back: its broker cut it, after a power loss or a switch of masters, and perhaps wrote on.

Batches with messages that are gone are rolled back, to the newest batch whose last message is still in the
log as it was. The messages that replaced them are then placed like any others.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from reput.errors import Finding, OutputError
from reput.format import names
from reput.format.commitlog import BLANK_LENGTH
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import FIRST_ORDINAL, HEADER_LENGTH
from reput.log.segments import CommitLog, Segment, map_segment, open_segment
from reput.log.walk import Frame, frame
from reput.log.walk_kernel import walk
from reput.output import index_files
from reput.output.appended_queues import clear_series
from reput.output.journal import Journal
from reput.output.retention import still_gone
from reput.replay.state import Batch, State
from reput.replay.target import Target
from reput.store import files
from reput.store.files import opened
from reput.store.listing import names_in, queues_in
from reput.store.outside import refuse_links

# After a crash the files may hold more than the journal says: units past a queue's next queueOffset, queues
# and index files that it doesn't name, entries past an index file's count and the slots that point to them.


def roll_back(target: Target, state: State) -> None:
    """Make the output what ``state`` says it is. Does nothing after a clean end.

    A batch that is under way has a scratch directory; a committed one has none. Where a symbolic link leads
    out of the output, nothing is changed, and OutputError raised.
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
    length = index_files.full_length(settings)
    index_files.check_there(path, header)
    with opened(path, length, target.owner) as fd:
        with files.reporting("the index can't be read back", path):
            slots = index_files.slots_of_entries(fd, settings.max_hash_slot_num, header.index_count)
        empty = header.index_count == FIRST_ORDINAL
        on_disk = index_files.empty_header(settings, header) if empty else header
        files.pwrite_all(fd, index_files.slot_bytes(slots), HEADER_LENGTH)
        files.pwrite_all(fd, on_disk.encode(counts_keys=settings.dialect.counts_keys), 0)
        end = index_files.entry_offset(settings.max_hash_slot_num, header.index_count)
        files.zero(fd, end, length - end)
        files.fsync_file(fd)


_LEAST = -(1 << 63)
_RECORD_MARK = 16  # hexadecimal digits of a mark that are the last record's own


def record_mark(log: CommitLog, position: int, end: int) -> str:
    """A mark by which to recognize the log that was read up to ``end``; empty without a record there.

    The length of the last record and the CRC-32 of its bytes; and, if more was read behind it, the eight
    bytes there: those of the BLANK. Without a BLANK, a broker continues in the same segment.
    """
    segment = log.segment_at(position)
    if segment is None or position < 0:
        return ""
    opened = open_segment(segment.path, segment.length)
    opened.fetch_frame(position - segment.base)
    data = opened.data
    found = frame(data.data, segment.base, position - segment.base, topic_length_v2=True)
    if not isinstance(found, Frame):
        return ""
    behind = found.position + found.size
    text = f"{found.size:08x}{crc32(data.data[found.position : behind]):08x}"
    if segment.base + behind < end:
        text += bytes(data[behind : behind + BLANK_LENGTH]).hex()
    return text


def last_standing(journal: Journal, log: CommitLog) -> int | None:
    """The number of the newest batch up to which the log is as it was; 0: before the first.

    A batch's last message has to be there, and so do the records that lead to it: a broker that cuts its log
    erases nothing, so that old messages stay behind what it writes next, until they are overwritten.

    A message that has expired can't be checked, and counts as present: a log isn't cut before its start.
    """
    sound: dict[int, int] = {}
    for number in range(journal.state.batches, journal.first_number - 1, -1):
        batch = journal.batch(number)
        if not stands(log, batch):
            continue
        segment = log.segment_at(batch.last_position)
        if segment is None:
            return number
        if segment.base not in sound:
            sound[segment.base] = _sound_until(segment, _after_breaks(journal, number, segment), log.entries)
        if batch.last_position < sound[segment.base]:
            return number
    state = journal.state_after(journal.first_number - 1)
    return state.batches if stands(log, state) else None


def _after_breaks(journal: Journal, number: int, segment: Segment) -> int:
    """Physical offset of a record in a segment, with no known damage from there to a batch's end.

    Batches that the journal can't step back to don't matter.
    """
    known = [at for at in journal.state.breaks if at >= segment.base]
    if not known:
        return max(segment.base, journal.batch(journal.first_number).start)
    while number > journal.first_number:
        batch = journal.batch(number)
        if batch.breaks or batch.start <= known[-1]:
            return batch.end
        number -= 1
    return journal.batch(number).end


def _sound_until(segment: Segment, start: int, entries: bool) -> int:
    """The physical offset up to which records follow one another from ``start``, none older than the last.

    Where the broker's log ends and old bytes follow, there is no record, or an older one.
    """
    data = map_segment(segment.path, segment.length)
    if start >= segment.base + len(data):
        return start
    found = walk(data, segment.base, start - segment.base, 0, True, _LEAST, len(data), entries)
    return segment.base + (found.position if found.drop < 0 else found.drop)


def step_back(target: Target, journal: Journal, log: CommitLog, number: int) -> Finding:
    """Roll back the batches after ``number``; the journal records it by a batch without messages.

    The caller must hold the output alone: no task may be running. After an error the next start completes
    what was begun.
    """
    before, state = journal.state, journal.state_after(number)
    segment = log.segment_at(state.cursor) or log.segments[-1]
    finding = Finding(
        kind="log-went-back",
        path=str(segment.path),
        offset=state.cursor,
        end=before.cursor,
        expected=f"a message stored at {before.last_timestamp} ms, at physical offset {before.last_position}",
        found="another one, or none",
        outcome="what the log held before was rolled back, and what it holds now is placed",
        count=before.messages - state.messages,
    )
    record = replace(state.without_messages(), findings=[finding])
    # Before the journal drops these batches: after a crash in between, scratch says that files hold more.
    files.make_dirs(target.scratch)
    roll_back(target, journal.step_back(number, still_gone(before, state, record)))
    return finding


def too_far(journal: Journal, log: CommitLog) -> OutputError:
    """The error when the log went back further than the batches that the journal keeps."""
    state = journal.state
    return OutputError(
        "the log isn't the one that this output was made from: it went back too far, or is another one",
        path=journal.path.parent.parent,
        expected=f"a message stored at {state.last_timestamp} ms, at physical offset {state.last_position}, "
        f"or one of the {state.batches + 1 - journal.first_number} batches before it",
        found=f"other messages in {log.segments[-1].path.parent}",
        next_step="Remove the output and run again, for a rebuild from the log's start",
    )


def stands(log: CommitLog, read: Batch | State, *, grows: bool = False) -> bool:
    """Whether the log still is as it was when it was read up to the end of ``read``.

    ``grows``: a BLANK behind the last record may have come since.
    """
    position = read.last_position
    if position < log.start:
        return True
    segment = log.segment_at(position)
    if segment is None:
        return position < log.end  # damage that came later
    end = read.end if isinstance(read, Batch) else read.cursor
    found = record_mark(log, position, 0 if grows else end)
    return bool(found) and found == (read.last_record[:_RECORD_MARK] if grows else read.last_record)
