"""Where a starting broker begins to walk the log.

Source: ``CommitLog.recoverNormally``, ``recoverAbnormally``, ``isMappedFileMatchedRecover``,
``StoreCheckpoint.getMinTimestamp`` (rocketmq-all-4.9.7, 5.3.3), ``ConsumeQueueStore`` and
``IndexService.isMappedFileMatchedRecover`` (5.5.0 by its bytecode).
"""

from __future__ import annotations

import struct

from reput.broker.record import Kind, judge
from reput.broker.snapshot import Snapshot
from reput.config.dialect import CleanStart, CrashStart
from reput.derived.files import StoreFile
from reput.format import commitlog
from reput.log.segments import map_segment

_LAST_SEGMENTS = 3
#: Of a checkpoint's times, ms: what was stored so shortly before may not be flushed.
SAFETY_MS = 3000


def begin(snapshot: Snapshot, queue_end: int) -> int:
    """The number of the first segment that is walked.

    Args:
        snapshot: the store; it has segments.
        queue_end: the greatest physical offset that a queue knows of, -1 if none does; the checkpoint key of
            queues in RocksDB.
    """
    if snapshot.clean:
        return _after_a_stop(snapshot, queue_end)
    return _after_a_crash(snapshot, queue_end)


def _after_a_stop(snapshot: Snapshot, queue_end: int) -> int:
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
                if record is not None and record[0] <= queue_end and _index_allows(snapshot, record[1]):
                    break
                left -= 1
                if left <= 0:
                    break
                last -= 1
            return last


def _after_a_crash(snapshot: Snapshot, queue_end: int) -> int:
    files = snapshot.log.files
    left = snapshot.settings.recovery.most_segments
    limited = snapshot.settings.dialect.recovery.limits_segments
    for number in range(len(files) - 1, -1, -1):
        if _matches(snapshot, files[number], queue_end):
            return number
        left -= 1
        if limited and left <= 0:
            return number
    return 0


def _matches(snapshot: Snapshot, segment: StoreFile, queue_end: int) -> bool:
    """``isMappedFileMatchedRecover`` after a crash."""
    checkpoint = snapshot.checkpoint
    if snapshot.kept is not None:  # the checkpoint key alone counts, and no time
        record = _first_record(snapshot, segment)
        return record is not None and record[0] <= queue_end
    rule = snapshot.settings.dialect.recovery.crash_start
    if rule is CrashStart.TIMESTAMP:
        timestamp = _raw_timestamp(snapshot, segment)
        return timestamp != 0 and timestamp <= _oldest(snapshot)
    record = _first_record(snapshot, segment)
    if record is None:
        return False
    physical, timestamp = record
    if rule is CrashStart.RECORD_AND_TIMESTAMP:
        return timestamp <= _oldest(snapshot)
    if checkpoint.logics_physical_offset <= 0:
        fits = timestamp <= checkpoint.logics_msg_timestamp
    else:
        fits = physical <= checkpoint.logics_physical_offset
    return fits and _index_allows(snapshot, timestamp)


def _oldest(snapshot: Snapshot) -> int:
    """Up to which time (ms) all is known to be flushed."""
    checkpoint = snapshot.checkpoint
    oldest = max(min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) - SAFETY_MS, 0)
    if _index_counts(snapshot):
        oldest = min(oldest, checkpoint.index_msg_timestamp)
    return oldest


def _index_counts(snapshot: Snapshot) -> bool:
    return snapshot.settings.message_index_enable and snapshot.settings.recovery.index_safe


def _index_allows(snapshot: Snapshot, timestamp: int) -> bool:
    return not _index_counts(snapshot) or timestamp <= snapshot.checkpoint.index_msg_timestamp


def _first_record(snapshot: Snapshot, segment: StoreFile) -> tuple[int, int] | None:
    """(stored physical offset, storeTimestamp) of a segment's first record; None unless it is a message."""
    data = map_segment(segment.path, snapshot.segment_size)
    judged = judge(data, 0, snapshot.settings.dialect, check_crc=snapshot.settings.recovery.check_crc)
    if judged.kind is not Kind.MESSAGE or judged.store_timestamp == 0:
        return None
    return judged.physical_offset, judged.store_timestamp


def _raw_timestamp(snapshot: Snapshot, segment: StoreFile) -> int:
    """StoreTimestamp where the first record has it, whatever else it holds; 0 without a known magic."""
    data = map_segment(segment.path, snapshot.segment_size).data
    try:
        (magic,) = struct.unpack_from(">I", data, commitlog.MAGIC)
        if magic != commitlog.MAGIC_V1 and not (
            magic == commitlog.MAGIC_V2 and snapshot.settings.dialect.topic_length_v2
        ):
            return 0
        (sys_flag,) = struct.unpack_from(">i", data, commitlog.SYS_FLAG)
        (timestamp,) = struct.unpack_from(">q", data, commitlog.store_timestamp_at(sys_flag))
    except struct.error:
        return 0  # a segment shorter than a record's head
    return int(timestamp)
