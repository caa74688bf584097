"""What a restart takes away from the commit log."""

from __future__ import annotations

from collections.abc import Iterator

from reput.broker.files import StoreFile
from reput.broker.predict import LogCut, Prediction
from reput.broker.record import Kind, judge
from reput.broker.snapshot import Snapshot
from reput.broker.written import first_written
from reput.format import commitlog
from reput.log.segments import map_segment
from reput.log.walk_kernel import walk
from reput.log.written import written_end
from reput.recovery.loss import Loss
from reput.recovery.survivors import first_whole, left_from, written_behind

_MAGICS = (commitlog.MAGIC_V1, commitlog.MAGIC_V2)


def log_losses(prediction: Prediction) -> Iterator[Loss]:
    """Cuts of segments that hold something, and segments that go."""
    snapshot = prediction.snapshot
    for cut in prediction.cuts:
        segment = StoreFile(cut.path, cut.end - snapshot.segment_size)
        position = cut.start - segment.base
        last = not written_behind(snapshot, segment.base)
        count, written = messages_in(snapshot, segment, position, left_from(prediction) if last else 0)
        if not written:
            continue  # made ahead of time, and nothing was written there
        if not count and _is_closing(prediction, cut):
            continue  # no segment follows it: the broker closes the segment again
        if not count and last and not cut.deleted and _is_left_over(snapshot, segment, position):
            continue
        what = "the segment is deleted" if cut.deleted else "the log ends here"
        yield Loss(
            kind="segment-deleted" if cut.deleted else "log-cut",
            path=str(cut.path),
            offset=cut.start,
            end=cut.end,
            count=count,
            text=f"{what}: {written} bytes with {count} whole messages from {cut.start} on are lost",
        )


def _is_closing(prediction: Prediction, cut: LogCut) -> bool:
    size, settings = prediction.snapshot.segment_size, prediction.snapshot.settings
    position = cut.start - (cut.end - size)
    judged = judge(map_segment(cut.path, size), position, settings.dialect, check_crc=False)
    return judged.kind is Kind.BLANK


def _is_left_over(snapshot: Snapshot, segment: StoreFile, position: int) -> bool:
    """Whether no record begins here, and whole ones lie behind, none of which is part of the log any more.

    ``MappedFileQueue.truncateDirtyFiles`` moves a position back, and the bytes stay; what is written then
    ends anywhere in them (rocketmq-all-4.9.7, 5.3.3).
    """
    data = map_segment(segment.path, snapshot.segment_size)
    magic = data[position + commitlog.MAGIC : position + commitlog.MAGIC + 4].tobytes()
    begins = int.from_bytes(magic, "big") in _MAGICS  # a record that was written in part
    return not begins and first_whole(snapshot, segment, position, 0) >= 0


def messages_in(snapshot: Snapshot, segment: StoreFile, position: int, not_before: int) -> tuple[int, int]:
    """(whole messages from a position of a segment on, bytes up to the last of them).

    Without one, the bytes are those up to the last that isn't zero.

    Args:
        not_before: storeTimestamp, ms, that the first message behind damage has at least.

    Raises:
        SegmentGoneError, StoreError: the segment can't be read.
    """
    size, v2 = snapshot.segment_size, snapshot.settings.dialect.topic_length_v2
    data = map_segment(segment.path, size)
    if first_written(segment, size, position) == size:
        return 0, 0
    count, start, end = 0, position, position
    while position < size:
        found = first_whole(snapshot, segment, position, not_before)
        if found < 0:
            break
        walked = walk(data, segment.base, found, 0, v2, 0, size)
        count, end = count + walked.records, walked.position
        position = max(end, found + 1)
    if not count:
        with open(segment.path, "rb") as file:
            end = written_end(file.fileno(), data, start)
    return count, end - start
