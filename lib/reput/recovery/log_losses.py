"""What a restart takes away from the commit log."""

from __future__ import annotations

from collections.abc import Iterator

from reput.recovery.files import StoreFile
from reput.recovery.loss import Loss
from reput.recovery.predict import LogCut, Prediction
from reput.recovery.record import Kind, judge
from reput.recovery.survivors import first_whole, left_from, written_behind
from reput.recovery.written import first_written
from reput.scan import kernel
from reput.scan.status import Status
from reput.source.written import written_end
from reput.store.segments import map_segment


def log_losses(prediction: Prediction) -> Iterator[Loss]:
    """Cuts of segments that hold something, and segments that go."""
    for cut in prediction.cuts:
        last = not written_behind(prediction.snapshot, cut.end - prediction.snapshot.segment_size)
        count, written = _messages_in(prediction, cut, left_from(prediction) if last else 0)
        if not written:
            continue  # made ahead of time, and nothing was written there
        if not count and _is_closing(prediction, cut):
            continue  # no segment follows it: the broker closes the segment again
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


def _messages_in(prediction: Prediction, cut: LogCut, not_before: int) -> tuple[int, int]:
    """(whole messages stored at ``not_before`` or later, bytes up to the last of them) in a cut range.

    Without one, the bytes are those up to the last that isn't zero.
    """
    size = prediction.snapshot.segment_size
    base = cut.end - size
    data = map_segment(cut.path, size)
    v2 = prediction.snapshot.settings.dialect.topic_length_v2
    position = cut.start - base
    segment = StoreFile(cut.path, base)
    if first_written(segment, size, position) == size:
        return 0, 0
    count, start, end = 0, position, position
    while position < size:
        found = first_whole(prediction.snapshot, segment, position, not_before)
        if found < 0:
            break
        stop = found
        while stop < size:
            length = int.from_bytes(data[stop : stop + 4].tobytes(), "big")
            if kernel.walk(data, base, stop, stop + 1, v2).status is not Status.END:
                break
            count, stop = count + 1, stop + length
        position, end = max(stop, found + 1), stop
    if not count:
        with open(cut.path, "rb") as file:
            end = written_end(file.fileno(), data, start)
    return count, end - start
