"""A log that went back: its broker cut it, after a power loss or a switch of masters, and perhaps wrote on.

What was placed of the messages that are gone is taken back, as far as the newest batch whose last message
still stands in the log as it was. The messages that took their places are then placed like any others.
"""

from __future__ import annotations

from zlib import crc32

from reput.errors import Finding, OutputError
from reput.format import commitlog
from reput.scan.part import Part
from reput.scan.reference import Frame, frame
from reput.sink.journal import Batch, Journal
from reput.sink.retention import still_gone
from reput.sink.rollback import roll_back
from reput.sink.scan_task import Target
from reput.store import files
from reput.store.segments import CommitLog, map_segment


def fingerprint_at(part: Part, position: int) -> str:
    """The fingerprint of the record at a physical offset that begins in ``part``.

    Raises:
        StoreError: the segment can't be read.
    """
    view = map_segment(part.path, part.segment_length).data
    at = position - part.base
    return fingerprint(view, at, int.from_bytes(view[at : at + 4], "big"))


def fingerprint(view: memoryview, position: int, size: int) -> str:
    """By what a record is known again: its length and the CRC-32 of all its bytes.

    Args:
        view: a segment.
        position: where the record begins in it, bytes.
        size: bytes of the record.
    """
    return f"{size:08x}{crc32(view[position : position + size]):08x}"


def last_standing(journal: Journal, log: CommitLog) -> int | None:
    """The number of the newest batch whose last message the log still holds as it was; 0: before the first.

    A message that has expired can't be looked at, and counts as standing: a log isn't cut before its start.

    Raises:
        StoreError: a segment can't be read.
    """
    for number in range(journal.state.batches, journal.first_number - 1, -1):
        batch = journal.batch(number)
        if stands(log, batch.last_position, batch.last_record, batch.last_timestamp):
            return number
    state = journal.state_after(journal.first_number - 1)
    if stands(log, state.last_position, state.last_record, state.last_timestamp):
        return state.batches
    return None


def step_back(target: Target, journal: Journal, log: CommitLog, number: int) -> Finding:
    """Take back the batches after ``number``; the journal tells of it by a batch without messages.

    Whoever is to see the output must hold it alone: no task may be running.

    Returns:
        What happened, for people.

    Raises:
        OutputError: the output can't be written; the next start finishes what was begun.
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
        outcome="what the log held before was taken back, and what it holds now is placed",
        count=before.messages - state.messages,
    )
    told = Batch(
        start=state.cursor,
        end=state.cursor,
        batch_id=-1,
        messages=0,
        bytes=0,
        last_position=state.last_position,
        last_timestamp=state.last_timestamp,
        last_unit_timestamp=state.last_unit_timestamp,
        last_unit_position=state.last_unit_position,
        last_record=state.last_record,
        findings=[finding],
    )
    # Before the journal forgets what it wrote: a crash in between must find that there is more in the files.
    files.make_dirs(target.scratch)
    roll_back(target, journal.step_back(number, still_gone(before, state, told)))
    return finding


def too_far(journal: Journal, log: CommitLog) -> OutputError:
    """The refusal when the log went back further than the journal remembers."""
    state = journal.state
    return OutputError(
        "the log isn't the one that this output was made from: it went back too far, or is another one",
        path=journal.path.parent.parent,
        expected=f"a message stored at {state.last_timestamp} ms, at physical offset {state.last_position}, "
        f"or one of the {state.batches + 1 - journal.first_number} batches before it",
        found=f"other messages in {log.segments[-1].path.parent}",
        next_step="Remove the output and run again, for a rebuild from the log's start",
    )


def stands(log: CommitLog, position: int, record: str, timestamp: int) -> bool:
    """Whether the log holds a record as it was.

    Args:
        position: its physical offset, -1 for none.
        record: its fingerprint, empty if it was written by a release that kept none.
        timestamp: its storeTimestamp, ms; decides without a fingerprint.

    Raises:
        StoreError: a segment can't be read.
    """
    if position < log.start:
        return True
    segment = log.segment_at(position)
    if segment is None:
        return position < log.end  # damage that came later
    data = map_segment(segment.path, segment.length)
    found = frame(data.data, segment.base, position - segment.base, topic_length_v2=True)
    if not isinstance(found, Frame):
        return False
    view = data.data
    if record:
        return fingerprint(view, found.position, found.size) == record
    return commitlog.decode(view, found.position).store_timestamp == timestamp
