"""What an output follows when its log changes: its head expires, or its end went back.

Retention: when the log's head expires, files that only point before its start go, as in the broker.

``DefaultMessageStore.CleanConsumeQueueService`` (in 5.5.0 ``ConsumeQueueStore``'s), whenever the log's first
segment is another one than the last time:

* a queue's files are removed, from the first one on, while their last unit points before the log's start; the
  last file stays (``MappedFileQueue.deleteExpiredFileByOffset``). A queue without a message in the log keeps
  its last file, and with it its next queueOffset;
* then the queue's min offset becomes its first unit at or past the log's start, or its next queueOffset
  when it has none (``ConsumeQueue.correctMinOffset``, 5.3.3; 4.9.7 leaves the old number when it has none);
* index files are removed, from the first one on, while their endPhyOffset is before the log's start; the last
  one stays (``IndexService.deleteExpiredFile``).

Here the state is corrected first: the journal commits it, the ledger follows, then files are removed.
Meanwhile ``.reput/expiring`` exists, so that the next run removes what a crash left. docs/tail.md has
the rest.

* Files of a batch queue are removed as those of a consume queue; its min offset becomes what follows the
  messages of the last unit before the log's start (``BatchConsumeQueue.deleteExpiredFile``,
  ``correctMinOffset``, 5.3.3).
* In consumequeue_ext files are removed that end before the unit to which the queue's first unit points
  (``ConsumeQueueExt.truncateByMinAddress``, 4.9.7).

A log went back: its broker cut it, after a power loss or a switch of masters, and perhaps wrote on. Batches
with messages that are gone are rolled back, to the newest batch whose last message is still in the log as it
was. The messages that replaced them are then placed like any others.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from reput.errors import Finding, OutputError
from reput.format import commitlog, names
from reput.format.batchconsumequeue import UNIT as BATCH_UNIT
from reput.format.batchconsumequeue import UNIT_LENGTH as BATCH_UNIT_LENGTH
from reput.format.commitlog import BLANK_LENGTH
from reput.format.consumequeue import UNIT, UNIT_LENGTH
from reput.format.consumequeueext import place_of
from reput.format.indexfile import FIRST_ORDINAL, HEADER_LENGTH
from reput.format.names import Queue
from reput.log.segments import CommitLog, Segment, map_segment, open_segment
from reput.log.walk import Frame, frame
from reput.log.walk_kernel import walk
from reput.output import index_files
from reput.output.appended_queues import clear_series
from reput.output.journal import Journal
from reput.output.whole_queues import series
from reput.replay.state import Batch, QueueState, State
from reput.replay.target import Target
from reput.scan.kernel import find_record
from reput.scan.part import SKIPPED
from reput.store import files, system
from reput.store.files import opened
from reput.store.listing import names_in, queues_in
from reput.store.places import refuse_links
from reput.store.reading import open_file, reading

Queues = Mapping[Queue, QueueState]

_POSITION_LENGTH = 8  # of a unit's physicalOffset, its first field
_UNITS_AT_ONCE = 200  # about a page


def begin(target: Target, state: State) -> None:
    """At the start of a run: remove files that are no longer part of the state."""
    marker = _marker(target)
    cut_off = marker.exists()
    files.remove_files(_all_gone(target, state) if cut_off else _gone(target, state.queues, {}))
    files.remove_files(list(gone(target, state.queues, {}, state.log_start)))
    if cut_off:
        files.remove_tree(marker)


def follow(
    target: Target, journal: Journal, log: CommitLog, follow_up: Callable[[], None], *, at_start: bool = False
) -> Finding | None:
    """Correct the state for the log's start, and remove files that are before it; between batches.

    Messages that expired before they were read are skipped, and returned as a finding: the cursor moves to
    the log's start. When that has moved, the journal gets a batch without messages, then ``follow_up`` brings
    the ledger up to date. As in a broker, a run's start checks even if it hasn't: an index file that was the
    last one may no longer be.
    """
    state = journal.state
    if log.start <= state.log_start and not at_start:
        return None
    log_start = max(log.start, state.log_start)
    expired = _expired_index(state, log_start)
    if log.start <= state.log_start and not expired:
        return None
    unread = _unread(state, log) if state.cursor < log.start else None
    changed = dict(_emptied(state.queues) if unread else _raised(target, state.queues, log_start))
    going = [
        *_gone(target, state.queues, changed),
        *gone(target, state.queues, changed, log_start),
        *(target.root / names.INDEX / name for name in expired),
    ]
    marker = _marker(target)
    if going:
        files.make_dirs(marker)
    journal.append(
        replace(
            state.without_messages(),
            end=max(state.cursor, log.start),
            queues=changed,
            findings=[unread] if unread else [],
            breaks=[log.start] if unread else [],
            log_start=log_start,
            dropped_index=list(expired),
            dropped_index_timestamp=[0, *expired.values()][-1],
        )
    )
    follow_up()
    if going:
        files.remove_files(going)
        files.remove_tree(marker)
    return unread


def still_gone(before: State, state: State, record: Batch) -> Batch:
    """Keep what retention did when the batches between two states are rolled back: its files are gone.

    Returns ``record``, a batch without messages that will follow ``state``, with it.
    """
    queues = {
        queue: replace(known, first=min(before.queues[queue].first, known.next), units=0, bytes=0)
        for queue, known in state.queues.items()
        if queue in before.queues and before.queues[queue].first > known.first
    }
    oldest = before.index[0][0] if before.index else ""
    return replace(
        record,
        queues=queues,
        log_start=before.log_start,
        dropped_index=[name for name, _ in state.index if name < oldest],
        dropped_index_timestamp=before.dropped_index_timestamp,
    )


def _unread(state: State, log: CommitLog) -> Finding:
    return Finding(
        kind="expired-unread",
        path=str(log.segments[0].path.parent),
        offset=state.cursor,
        end=log.start,
        expected="segments that this output hasn't got yet",
        found="a log that begins after them",
        outcome="skipped; queues that lost messages begin again at their next one",
    )


def _emptied(queues: Queues) -> Iterator[tuple[Queue, QueueState]]:
    """All queues, with no message left; what their next queueOffset depends on is lost, too."""
    for queue, known in queues.items():
        if known.first != known.next or known.shift or known.lone_zero:
            yield queue, replace(known, first=known.next, shift=0, lone_zero=None, units=0, bytes=0)


def _raised(target: Target, queues: Queues, log_start: int) -> Iterator[tuple[Queue, QueueState]]:
    """The queues that have units before the log's start, corrected."""
    for queue, known in queues.items():
        if known.first == known.next:
            continue  # it had no message left before
        look = first_live if known.is_batch else _first_live
        first = known.next if known.end <= log_start else look(target, queue, known, log_start)
        if first != known.first:
            yield queue, replace(known, first=first, units=0, bytes=0)


def _first_live(target: Target, queue: Queue, known: QueueState, log_start: int) -> int:
    """The queueOffset of a queue's first unit at or past the log's start; its last unit is past it.

    Mostly this reads one page: units are in log order, and few expire at once.
    """
    directory = names.queue_directory(target.root, *queue)
    file_size = target.settings.consume_queue_file_size
    units = file_size // UNIT_LENGTH
    start = known.first
    while start < known.next:
        base = start - start % units
        end = min(base + units, known.next)
        path = os.path.join(directory, names.offset_name(base * UNIT_LENGTH))  # noqa: PTH118 - for each queue
        try:
            fd = open_file(path)
        except OSError as error:
            raise system.output_error("the queue's file can't be read", Path(path), error) from error
        try:
            found = _first_in_file(fd, start - base, end - base, log_start)
        finally:
            os.close(fd)
        if found < end - base:
            return base + found
        start = end
    return known.next


def _first_in_file(fd: int, start: int, end: int, log_start: int) -> int:
    """The first place in [start, end) of a file whose unit isn't before the log's start, else ``end``."""

    def position_at(place: int) -> int:
        return _position(_read(fd, place * UNIT_LENGTH, _POSITION_LENGTH), 0)

    page = _read(fd, start * UNIT_LENGTH, min(end - start, _UNITS_AT_ONCE) * UNIT_LENGTH)
    here = range(len(page) // UNIT_LENGTH)
    if _position(page, 0) >= log_start:
        return start
    if _position(page, here[-1]) >= log_start:
        return start + bisect_left(here, log_start, key=lambda place: _position(page, place))
    if position_at(end - 1) < log_start:
        return end
    return bisect_left(range(end), log_start, start + len(here), key=position_at)


def _position(units: bytes, place: int) -> int:
    """The physicalOffset of a unit among others."""
    at = place * UNIT_LENGTH
    return int.from_bytes(units[at : at + _POSITION_LENGTH], "big")


def _read(fd: int, at: int, length: int) -> bytes:
    return files.pread_all(fd, length, at, "the queue's file is shorter than it was written")


def _expired_index(state: State, log_start: int) -> dict[str, int]:
    """The index files to remove, each with its endTimestamp; never the last one."""
    expired = {}
    for name, header in state.index[:-1]:
        if header.end_physical_offset >= log_start:
            break
        expired[name] = header.end_timestamp
    return expired


def _first_file(queue: QueueState, units: int) -> int:
    """The number of a queue's first file: its last one when it has no message left."""
    return min(queue.first, queue.next - 1) // units


def _gone(target: Target, queues: Queues, changed: Queues) -> Iterator[Path]:
    """The files to remove when some queues change; of the others, a file that was its queue's last one.

    A last file stays although none of its messages is in the log. When the queue continues in the next file,
    it is removed at the next check, as in a broker.
    """
    file_size = target.settings.consume_queue_file_size
    units = file_size // UNIT_LENGTH
    for queue, before in queues.items():
        if before.is_batch:
            continue
        now = changed.get(queue, before)
        for number in range(max(before.first - 1, 0) // units, _first_file(now, units)):
            yield names.queue_file(target.root, *queue, number * file_size)


def _all_gone(target: Target, state: State) -> Iterator[Path]:
    """Every file of the output that is no longer part of the state."""
    file_size = target.settings.consume_queue_file_size
    for queue, known in state.queues.items():
        if known.is_batch:
            continue
        first = _first_file(known, file_size // UNIT_LENGTH) * file_size
        for start, path in series(names.queue_directory(target.root, *queue)):
            if start < first:
                yield path
    kept = {name for name, _ in state.index}
    index = target.root / names.INDEX
    yield from (index / name for name in names_in(index) if name not in kept)


def _marker(target: Target) -> Path:
    return target.root / names.REPUT / names.EXPIRING


def first_live(target: Target, queue: Queue, known: QueueState, log_start: int) -> int:
    """The first queueOffset of a batch queue whose message isn't before the log's start."""
    file_size = target.settings.recovery.batch_queue_file_size
    for base, path in series(names.batch_queue_directory(target.root, *queue)):
        stop = min(known.appended - base, file_size)
        is_last = base + file_size >= known.appended
        if stop <= 0 or (_position_in(path, stop - BATCH_UNIT_LENGTH) < log_start and not is_last):
            continue
        units = BATCH_UNIT.iter_unpack(_bytes_of(path, 0, stop))
        first = -1
        for position, _size, _tags, _time, offset, count, _compacted, _reserved in units:
            if position >= log_start:
                return offset if first < 0 else first
            first = offset + count
        return first
    return known.next


def gone(target: Target, queues: Queues, changed: Queues, log_start: int) -> Iterator[Path]:
    """The files to remove when some queues change.

    ``log_start`` is asked for, as a batch queue's queueOffsets don't show it: they may begin again.
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
        if _position_in(path, file_size - BATCH_UNIT_LENGTH) >= log_start:
            return
        yield path


def _gone_ext(target: Target, queue: Queue, now: QueueState) -> Iterator[Path]:
    file_size = target.settings.consume_queue_file_size
    at = now.first * UNIT_LENGTH
    path = names.queue_file(target.root, *queue, at - at % file_size)
    _position, _size, tags_code = UNIT.unpack(_bytes_of(path, at % file_size, UNIT_LENGTH))
    place = place_of(tags_code)
    for base, ext_path in series(names.queue_ext_directory(target.root, *queue)):
        if place is not None and base + target.settings.recovery.queue_ext_file_size < place:
            yield ext_path


def _position_in(path: Path, at: int) -> int:
    """The physicalOffset of a batch queue's unit."""
    return _position(_bytes_of(path, at, _POSITION_LENGTH), 0)


def _bytes_of(path: Path, at: int, length: int) -> bytes:
    with files.reporting("the queue's file can't be read", path), reading(path, by_ranges=True) as fd:
        return _read(fd, at, length)


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
    for name, (_, file_size) in target.settings.queue_file_sizes.items():
        by_offset = name == names.CONSUME_QUEUE  # the others are written in log order
        known = {
            queue: each.next * UNIT_LENGTH if by_offset else each.appended
            for queue, each in state.queues.items()
            if each.is_batch == (name == names.BATCH_CONSUME_QUEUE)
        }
        for topic, queue_id, directory in queues_in(target.root / name):
            clear_series(Path(directory), file_size, known.get((topic, queue_id), 0))


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
#: Older records that are noted of a batch. With more of them its clock shows nothing, then and later.
_MOST_IN_BATCH = 64


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
    kept = journal.first_number <= journal.state.batches
    known_from = journal.batch(journal.first_number).start if kept else journal.state.cursor
    if journal.state.noted_from >= 0:
        known_from = min(known_from, journal.state.noted_from)

    def is_sound(position: int) -> bool:
        """Whether a record is one that the records before it in its segment lead to."""
        segment = log.segment_at(position)
        if segment is None:
            return True
        if segment.base not in sound:
            start = max(segment.base, known_from)
            known = set(journal.state.older)
            findings = journal.state.findings
            sound[segment.base] = _sound_until(
                log, segment, start, findings, known.__contains__, untimed=journal.state.untimed_until
            )
        return position < sound[segment.base]

    for number in range(journal.state.batches, journal.first_number - 1, -1):
        batch = journal.batch(number)
        if stands(log, batch) and is_sound(batch.last_position):
            return number
    state = journal.state_after(journal.first_number - 1)
    return state.batches if stands(log, state) and is_sound(state.last_position) else None


def with_older(log: CommitLog, state: State, batch: Batch) -> Batch:
    """The batch that follows ``state``, with what of its last segment is older than the record before.

    By these a clock that was set back is told from a cut, which looks alike later.
    """
    segment = log.segment_at(batch.last_position)
    older: list[str] = []
    if segment is not None:

        def is_noted(place: str) -> bool:
            older.append(place)
            return len(older) <= _MOST_IN_BATCH

        start = max(state.last_position, segment.base)
        findings = [*state.findings, *batch.findings]
        _sound_until(log, segment, start, findings, is_noted, batch.end)
    if len(older) > _MOST_IN_BATCH:
        return replace(batch, noted=True, untimed_until=batch.end)
    return replace(batch, older=older, noted=True)


def _sound_until(
    log: CommitLog,
    segment: Segment,
    start: int,
    findings: list[Finding],
    is_known: Callable[[str], bool],
    end: int | None = None,
    untimed: int = 0,
) -> int:
    """The physical offset up to which records follow one another from ``start``, none older than the last.

    Where the broker's log ends and old bytes follow, there is no record, or an older one. What was found
    damaged when it was read is passed over, up to the next record in its range: that of many findings that
    became one holds more than damage. What follows must not be older, either. ``is_known`` gets the place of
    an older record, with the mark of the one before it: a cut leaves another one there. Records that begin
    before the physical offset ``untimed`` may be older.
    """
    data = map_segment(segment.path, segment.length)[: None if end is None else max(end - segment.base, 0)]
    at, top, last, trusted = start, _LEAST, -1, untimed - segment.base
    while at < segment.base + len(data):
        found = walk(data, segment.base, at - segment.base, trusted, True, top, len(data), log.entries)
        if found.drop >= 0:
            at, top = segment.base + found.drop, _LEAST
            last = segment.base + found.before_drop if found.before_drop >= 0 else last
            if not is_known(f"{at}:{record_mark(log, last, 0)}"):
                break
            continue
        at, top = segment.base + found.position, found.top
        last = segment.base + found.last if found.last >= 0 else last
        behind = [one.end for one in findings if one.offset <= at < one.end and one.kind in SKIPPED]
        if not behind:
            break
        stop = min(max(behind) - segment.base, len(data))
        inside = find_record(data, segment.base, at + 1 - segment.base, stop, True, log.entries)
        at = segment.base + inside if inside >= 0 else max(behind)
    return at


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
    if read.last_record:
        return found == (read.last_record[:_RECORD_MARK] if grows else read.last_record)
    # Written by a release that kept no fingerprints.
    return bool(found) and _store_timestamp(segment, position) == read.last_timestamp


def _store_timestamp(segment: Segment, position: int) -> int:
    opened = open_segment(segment.path, segment.length)
    opened.fetch_frame(position - segment.base)
    data = opened.data
    return commitlog.decode(data.data, position - segment.base).store_timestamp
