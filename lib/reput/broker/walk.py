"""Going through the log as a broker does: when it recovers, and when it dispatches what is behind.

Where it begins, what it makes of each place, and what it meets. The scan of :mod:`reput.scan` does the work;
where it stops, :mod:`reput.broker.record` says what the broker makes of the place. Source:
``CommitLog.recoverNormally``, ``recoverAbnormally``, ``DefaultMessageStore.ReputMessageService.doReput``
(rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.broker.record import Kind, judge
from reput.broker.snapshot import Snapshot
from reput.config.dialect import CleanStart, CrashStart
from reput.config.settings import StoreSettings
from reput.derived.files import StoreFile, segment_at
from reput.errors import StoreError
from reput.format import commitlog, javastring, properties
from reput.log.segments import map_segment
from reput.newer_python import Self
from reput.scan import kernel, output
from reput.scan.output import OutputArrays, Status
from reput.scan.rules import Rules
from reput.scan.rules import rules as scan_rules
from reput.scan.table import QueueTable
from reput.store.reading import written

# Source: ``CommitLog.recoverNormally``, ``recoverAbnormally``, ``isMappedFileMatchedRecover``,
# ``StoreCheckpoint.getMinTimestamp`` (rocketmq-all-4.9.7, 5.3.3), ``ConsumeQueueStore`` and
# ``IndexService.isMappedFileMatchedRecover`` (5.5.0 by its bytecode).

_LAST_SEGMENTS = 3
#: Of a checkpoint's times, ms: what was stored so shortly before may not be flushed.
SAFETY_MS = 3000


def begin(snapshot: Snapshot, queue_end: int) -> int:
    """The number of the first segment that is walked.

    ``snapshot``: the store; it has segments. ``queue_end``: the greatest physical offset that a queue knows
    of, -1 if none does; the checkpoint key of queues in RocksDB.
    """
    beside = _Beside(snapshot)
    if snapshot.clean:
        return _after_a_stop(snapshot, queue_end, beside)
    return _after_a_crash(snapshot, queue_end, beside)


class _Beside:
    """Queues in RocksDB beside those in files, which a start goes back for, too.

    Source: ``CombineConsumeQueueStore.isMappedFileMatchedRecover`` (5.4.0, 5.5.0 by their bytecode).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._end = snapshot.beside
        self._left = snapshot.settings.recovery.extra_segments
        self._has_light = snapshot.settings.recovery.light_in_rocksdb

    def match(self, physical: int) -> bool:
        """Whether a walk may begin where the queues in files say; asked from behind, segment by segment."""
        if self._end is None or physical <= self._end:
            return True
        if self._has_light:
            return False
        self._left -= 1
        return self._left < 0


def _after_a_stop(snapshot: Snapshot, queue_end: int, beside: _Beside) -> int:
    files = snapshot.log.files
    last = len(files) - 1
    match snapshot.settings.dialect.recovery.clean_start:
        case CleanStart.THIRD_LAST:
            return max(len(files) - _LAST_SEGMENTS, 0)
        case CleanStart.QUEUE_END:
            while last > 0 and files[last].base > queue_end:
                last -= 1
            return last
        case CleanStart.FIRST_RECORD:
            left = snapshot.settings.recovery.most_segments
            while last > 0:
                record = _first_record(snapshot, files[last])
                if (
                    record is not None
                    and record[0] <= queue_end
                    and beside.match(record[0])
                    and _index_allows(snapshot, *record)
                ):
                    break
                left -= 1
                if left <= 0:
                    break
                last -= 1
            return last


def _after_a_crash(snapshot: Snapshot, queue_end: int, beside: _Beside) -> int:
    files = snapshot.log.files
    left = snapshot.settings.recovery.most_segments
    limited = snapshot.settings.dialect.recovery.limits_segments
    for number in range(len(files) - 1, -1, -1):
        if _matches(snapshot, files[number], queue_end, beside):
            return number
        left -= 1
        if limited and left <= 0:
            return number
    return 0


def _matches(snapshot: Snapshot, segment: StoreFile, queue_end: int, beside: _Beside) -> bool:
    """``isMappedFileMatchedRecover`` after a crash."""
    checkpoint = snapshot.checkpoint
    rule = snapshot.settings.dialect.recovery.crash_start
    if rule is CrashStart.TIMESTAMP:
        physical, timestamp = _raw_record(snapshot, segment)
        if snapshot.kept is not None:  # the checkpoint key alone counts, and no time
            return 0 <= physical <= queue_end
        return timestamp != 0 and timestamp <= _oldest(snapshot)
    record = _first_record(snapshot, segment)
    if record is None:
        return False
    physical, timestamp = record
    if snapshot.kept is not None:
        fits = physical <= queue_end
    elif rule is CrashStart.RECORD_AND_TIMESTAMP:
        fits = timestamp <= _oldest(snapshot)
    elif checkpoint.logics_physical_offset <= 0:
        fits = timestamp <= checkpoint.logics_msg_timestamp
    else:
        fits = physical <= checkpoint.logics_physical_offset
    return fits and beside.match(physical) and _index_allows(snapshot, *record)


def _oldest(snapshot: Snapshot) -> int:
    """Up to which time (ms) all is known to be flushed."""
    checkpoint = snapshot.checkpoint
    oldest = max(min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) - SAFETY_MS, 0)
    if snapshot.settings.recovery.index_safe:
        oldest = min(oldest, checkpoint.index_msg_timestamp)
    return oldest


def _index_allows(snapshot: Snapshot, physical: int, timestamp: int) -> bool:
    """Whether the index has what stands before: that in files by time, that in RocksDB by its last message.

    Source: ``IndexService.isMappedFileMatchedRecover``, ``IndexRocksDBStore.isMappedFileMatchedRecover``
    (5.5.0 by its bytecode).
    """
    if snapshot.index_mark is not None and physical > snapshot.index_mark:
        return False
    return not snapshot.settings.recovery.index_safe or timestamp <= snapshot.checkpoint.index_msg_timestamp


def _first_record(snapshot: Snapshot, segment: StoreFile) -> tuple[int, int] | None:
    """(stored physical offset, storeTimestamp) of a segment's first record; None unless it is a message."""
    data = map_segment(segment.path, snapshot.segment_size)
    judged = judge(data, 0, snapshot.settings.dialect, check_crc=snapshot.settings.recovery.check_crc)
    if judged.kind is not Kind.MESSAGE or judged.store_timestamp == 0:
        return None
    return judged.physical_offset, judged.store_timestamp


def _raw_record(snapshot: Snapshot, segment: StoreFile) -> tuple[int, int]:
    """Stored offset and storeTimestamp where the first record has them, whatever else it holds.

    -1 and 0 without a known magic.
    """
    data = map_segment(segment.path, snapshot.segment_size).data
    try:
        (magic,) = struct.unpack_from(">I", data, commitlog.MAGIC)
        if magic != commitlog.MAGIC_V1 and not (
            magic == commitlog.MAGIC_V2 and snapshot.settings.dialect.topic_length_v2
        ):
            return -1, 0
        (physical,) = struct.unpack_from(">q", data, commitlog.PHYSICAL_OFFSET)
        (sys_flag,) = struct.unpack_from(">i", data, commitlog.SYS_FLAG)
        (timestamp,) = struct.unpack_from(">q", data, commitlog.store_timestamp_at(sys_flag))
    except struct.error:
        return -1, 0  # a segment shorter than a record's head
    return int(physical), int(timestamp)


def written_ranges(segment: StoreFile, start: int, end: int) -> list[tuple[int, int]]:
    """The half-open ranges of positions in [start, end) that aren't holes; bytes there may still be zeros."""
    try:
        return written("the segment", segment.path, start, end)
    except StoreError:
        return [(start, end)]  # mapping it says what is wrong


def first_written(segment: StoreFile, size: int, start: int) -> int:
    """Position of the first byte from ``start`` on that isn't zero, else ``size``."""
    data = map_segment(segment.path, size)
    for first, stop in written_ranges(segment, start, size):
        found = kernel.first_written(data, first, stop)
        if found < stop:
            return found
    return size


def last_written(snapshot: Snapshot) -> tuple[StoreFile, int]:
    """The last segment that something was written to, and up to which physical offset there may be something.

    The first segment, and its base, when nothing was written. The store has segments.
    """
    size = snapshot.segment_size
    for segment in reversed(snapshot.log.files):
        if first_written(segment, size, 0) < size:
            return segment, segment.base + written_ranges(segment, 0, size)[-1][1]
    return snapshot.log.files[0], snapshot.log.files[0].base


# A walk goes from record to record, so it can't begin in the middle. But where a segment is sound, a scan
# that begins at some whole record further on finds what the walk will find there. The walk takes such a piece
# only when it arrives at the very place where the piece begins; else it goes on by itself.

#: Bytes of a segment. A piece with what it yields is in memory at once.
PIECE = 64 << 20
_MOST_THREADS = 4


class Range(NamedTuple):
    """A part of a segment that is going to be walked; positions in the segment, half open."""

    segment: StoreFile
    start: int
    end: int


class Piece(NamedTuple):
    """What a scan found."""

    start: int  # position in the segment where it began, -1 if no record begins in the piece
    status: Status  # status, position: where it stopped, and why
    position: int
    found: list[OutputArrays]  # what it yields, in log order
    table: QueueTable  # numbers of topics and queues in that


class Ahead:
    """Scans pieces before they are asked for; a context manager.

    ``ranges``: what will be walked, in order. ``rules``: what the walk scans with. ``new_table``: gives an
    empty table.
    """

    def __init__(self, ranges: Sequence[Range], rules: Rules, new_table: Callable[[], QueueTable]) -> None:
        self._rules = rules
        self._new_table = new_table
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        wanted = sum(one.end - one.start for one in ranges) >= 2 * PIECE
        self._todo = [(one, number) for one in ranges for number in _pieces(one)] if wanted else []
        self._place = {(one.segment.base, number): at for at, (one, number) in enumerate(self._todo)}
        self._begun: dict[int, Future[Piece]] = {}
        self._next = 0
        self._window = threads + 1
        self._pool = ThreadPoolExecutor(threads, "reput-scan")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def at(self, base: int, position: int) -> Piece | None:
        """The piece that begins at a position of the segment at ``base``; it is given once."""
        at = self._place.get((base, position // PIECE))
        if at is None:
            return None
        for passed in [one for one in self._begun if one < at]:
            self._begun.pop(passed).cancel()
        self._next = max(self._next, at)
        while self._next < min(at + self._window, len(self._todo)):
            self._begun[self._next] = self._pool.submit(self._scan, *self._todo[self._next])
            self._next += 1
        future = self._begun.pop(at, None)
        piece = None if future is None else future.result()
        return piece if piece is not None and piece.start == position else None

    def _scan(self, wanted: Range, number: int) -> Piece:
        data = map_segment(wanted.segment.path, wanted.end)
        base, stop = wanted.segment.base, min((number + 1) * PIECE, len(data))
        start = max(number * PIECE, wanted.start)
        if start > wanted.start:
            start = kernel.find_record(data, base, start, stop, self._rules.topic_length_v2)
        piece = Piece(start, Status.END, start, [], self._new_table())
        while start >= 0:
            piece.found.append(output.output())
            status, start = kernel.scan(data, base, start, stop, self._rules, piece.table, piece.found[-1])
            if status is not Status.FULL:
                return piece._replace(status=status, position=start)
        return piece


def _pieces(wanted: Range) -> list[int]:
    """Numbers of the pieces of a range in which something was written."""
    found: set[int] = set()
    for start, end in written_ranges(wanted.segment, wanted.start, wanted.end):
        found.update(range(start // PIECE, -(-end // PIECE)))
    return sorted(found)


#: Takes the units and keys of some records, in log order, and the table that has their topics and queues.
#: The arrays are reused afterwards.
Sink = Callable[[OutputArrays, QueueTable], None]

#: :attr:`Walked.why` where a message's frame is whole, and its body isn't.
WRONG_BODY = "a body that doesn't have its CRC"
_SCHEDULE_TOPIC = commitlog.SCHEDULE_TOPIC


@dataclass(slots=True)
class Walked:
    """What a walk met."""

    start: int  # where it began
    end: int  # where it ended: the first bad place, or the last BLANK
    segments: int = 0  # segments that it went into
    bytes: int = 0  # bytes of the records that it took
    messages: int = 0  # how many
    last_valid: int = -1  # physical offset of the last message, -1 if there was none
    why: str = ""  # what stood at the end
    #: how far ``end`` lies behind the place where reading ended, for records whose size was counted
    moved: int = 0
    #: where the dispatch waits for ever: no segment is there, or a slave can't read on; None as a rule
    stuck_at: int | None = None


class LogWalk:
    """Walks over the segments of one store."""

    def __init__(self, settings: StoreSettings, segments: Sequence[StoreFile], segment_size: int) -> None:
        self._settings = settings
        self._dialect = settings.dialect
        self._segments = segments
        self._size = segment_size
        self._rules: Rules = scan_rules(settings)
        self._out = output.output()
        self._table = self._new_table()

    def _new_table(self) -> QueueTable:
        return QueueTable(
            excludes_lmq=lambda topic: self._dialect.lmq_excludes(topic.decode("utf-8", "replace"))
        )

    def recover(
        self,
        index: int,
        sink: Sink,
        bad: Callable[[int], None] | None = None,
        *,
        check_offsets: bool = False,
    ) -> Walked:
        """Walk from the segment of number ``index`` on, up to where the log ends for a broker.

        ``bad``: takes the size of a record whose lengths don't add up, which is counted, and reading goes on
        behind what those say; None ends the log there (4.3.1 CommitLog.recoverAbnormally). ``check_offsets``:
        a record whose stored place lies outside of its segment ends it, too.
        """
        recovery = self._settings.recovery
        rules = self._rules._replace(check_crc=recovery.check_crc)
        base = self._segments[index].base
        walked = Walked(base, base)
        if not self._dialect.recovery.knows_delay_levels:
            sink = self._without_delay_levels(sink)
        ranges = [Range(segment, 0, self._size) for segment in self._segments[index:]]
        with Ahead(ranges, rules, self._new_table) as ahead:
            for segment in self._segments[index:]:
                data = map_segment(segment.path, self._size)
                walked.segments += 1
                walked.end = segment.base
                position = walked.moved = 0
                while True:
                    kind, position, walked.why = self._segment(
                        data, segment, position, rules, ahead, sink, walked,
                        check_offsets=check_offsets,
                    )  # fmt: skip
                    walked.end = segment.base + position + walked.moved
                    if kind is Kind.BLANK or bad is None:
                        break
                    found = judge(data, position, self._dialect, check_crc=rules.check_crc)
                    if not found.consumed:
                        break
                    bad(found.size)
                    position += found.consumed
                    walked.moved += found.size - found.consumed
                if kind is not Kind.BLANK:
                    return walked
        walked.why = "the last segment's closing record"
        return walked

    def dispatch(self, start: int, end: int, sink: Sink) -> Walked:
        """Dispatch from ``start`` to the log's end, as a running broker does: no CRC, around bad places.

        A slave doesn't go around them (``brokerId`` isn't 0).
        """
        rules = self._rules._replace(check_crc=False)
        walked = Walked(start, start)
        ranges = [
            Range(segment, max(start - segment.base, 0), min(self._size, end - segment.base))
            for segment in self._segments
            if segment.base < end and segment.base + self._size > start
        ]
        with Ahead(ranges, rules, self._new_table) as ahead:
            while walked.end < end and walked.stuck_at is None:
                segment = segment_at(self._segments, self._size, walked.end)
                if segment is None:
                    walked.stuck_at = walked.end
                    return walked
                self._dispatch_segment(segment, end, rules, ahead, sink, walked)
        return walked

    def _dispatch_segment(
        self, segment: StoreFile, end: int, rules: Rules, ahead: Ahead, sink: Sink, walked: Walked
    ) -> None:
        data = map_segment(segment.path, min(self._size, end - segment.base))
        walked.segments += 1
        position = walked.end - segment.base
        said = moved = 0  # sizes of records whose lengths don't add up, and how far they move the place
        while True:
            kind, position, walked.why = self._segment(data, segment, position, rules, ahead, sink, walked)
            if kind is not Kind.BAD or position >= len(data):
                break
            judged = judge(data, position, self._dialect, check_crc=False)
            if not judged.consumed:
                break
            position += judged.consumed  # it goes on behind what it has read
            said, moved = said + judged.size, moved + judged.size - judged.consumed
        place = segment.base + position + moved  # reputFromOffset
        if kind is Kind.BLANK:
            walked.end = place + self._size - place % self._size  # CommitLog.rollNextFile
        elif self._settings.recovery.passes_unreadable or (position >= len(data) and not said):
            walked.end = segment.base + len(data) + said  # these aren't in its readSize
        else:
            walked.end = place
            walked.stuck_at = None if said else place  # it tries again and again

    def _segment(
        self,
        data: NDArray[np.uint8],
        segment: StoreFile,
        position: int,
        rules: Rules,
        ahead: Ahead,
        sink: Sink,
        walked: Walked,
        *,
        check_offsets: bool = False,
    ) -> tuple[Kind, int, str]:
        """Take the records from ``position`` on.

        Returns why it ended (BLANK or BAD), where, and the same for people.
        """
        out = self._out
        out.counts.fill(0)
        while True:
            piece = ahead.at(segment.base, position)
            if piece is not None:
                for found in piece.found:
                    self._give(found, piece.table, sink, walked)
                status, position = piece.status, piece.position
            else:
                stop = min((position // PIECE + 1) * PIECE, len(data))
                status, position = kernel.scan(data, segment.base, position, stop, rules, self._table, out)
                self._give(out, self._table, sink, walked)
            if status is Status.FULL or (status is Status.END and position < len(data)):
                continue
            if status is Status.END:
                return Kind.BAD, position, "the segment's end, without a closing record"
            if status in (Status.BAD_DELAY, Status.BAD_INNER_BATCH):
                return Kind.BAD, position, "a property that must be a number and isn't"
            judged = judge(data, position, self._dialect, check_crc=rules.check_crc)
            if judged.kind is Kind.BLANK:
                return Kind.BLANK, position, "the segment's closing record"
            if judged.kind is Kind.BAD:
                return Kind.BAD, position, _said(status)
            place = judged.physical_offset
            if check_offsets and not segment.base <= place <= segment.base + self._size:
                return Kind.BAD, position, "a record whose stored place lies outside its segment"
            problem = self._take_unplaced(data, segment.base, position, judged.size, place, rules)
            if problem is not None:
                return Kind.BAD, position, _said(problem)
            self._give(out, self._table, sink, walked)
            position += judged.size

    def _take_unplaced(
        self,
        data: NDArray[np.uint8],
        base: int,
        position: int,
        size: int,
        place: int,
        rules: Rules,
    ) -> Status | None:
        """Take a record that isn't where it says, or whose property CRC is wrong: brokers don't look."""
        record = data[position : position + size].copy()
        own = base + position
        record[commitlog.PHYSICAL_OFFSET : commitlog.PHYSICAL_OFFSET + 8] = np.frombuffer(
            struct.pack(">q", own), np.uint8
        )
        out = self._out
        status, at = kernel.scan(
            record, own, 0, size, rules._replace(check_crc=False), self._table, out, accept=0
        )
        if status is not Status.END or at != size:
            return status
        # Units and keys hold what the record says.
        out.unit_position[: out.counts[output.UNITS]] = place
        out.row_position[: out.counts[output.ROWS]] = place
        return None

    def _give(self, out: OutputArrays, table: QueueTable, sink: Sink, walked: Walked) -> None:
        if out.counts[output.MESSAGES]:
            walked.messages += int(out.counts[output.MESSAGES])
            walked.bytes += int(out.counts[output.BYTES])
            walked.last_valid = int(out.counts[output.LAST_POSITION])
            sink(out, table)
        out.counts[: output.BYTES + 1] = 0

    def _without_delay_levels(self, sink: Sink) -> Sink:
        """4.9 reads its delay levels after recovering: the schedule topic's units get the tags' hash."""

        def changed(out: OutputArrays, table: QueueTable) -> None:
            schedule = table.intern_topic(_SCHEDULE_TOPIC)
            units = int(out.counts[output.UNITS])
            topics = table.queues.topic[out.unit_queue[:units]]
            for row in np.flatnonzero(topics == schedule).tolist():
                record = _record_at(self._segments, self._size, int(out.unit_position[row]))
                tags = (
                    b"" if record is None else properties.parse(record.properties).get(properties.TAGS, b"")
                )
                out.unit_tags[row] = javastring.hash_code(tags)
            sink(out, table)

        return changed


def store_timestamp(segments: Sequence[StoreFile], size: int, physical: int) -> int:
    """StoreTimestamp of the message at a physical offset, ms; 0 where none is there, or no segment."""
    record = _record_at(segments, size, physical)
    return 0 if record is None else record.store_timestamp


def _record_at(segments: Sequence[StoreFile], size: int, physical: int) -> commitlog.Record | None:
    """What a physical offset leads to, which may be one that a record has stored, and wrong."""
    segment = segment_at(segments, size, physical)
    if segment is None:
        return None
    try:
        return commitlog.decode(map_segment(segment.path, size).data, physical - segment.base)
    except (struct.error, IndexError):
        return None  # nothing whole stands there


def _said(status: Status) -> str:
    return {
        Status.UNWRITTEN: "bytes that were never written",
        Status.BAD_SIZE: "a record whose size can't be",
        Status.BAD_MAGIC: "no magic of a record",
        Status.BAD_LENGTHS: "a record whose lengths don't add up",
        Status.BAD_CRC: WRONG_BODY,
        Status.BAD_PHYSICAL_OFFSET: "no whole record",
        Status.BLANK: "a closing record whose size can't be",
    }.get(status, "no whole record")
