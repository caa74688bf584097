"""What a restart takes away from the index, and which keys it leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from reput.broker.predict import Prediction
from reput.format import names, properties
from reput.format.indexfile import file_length
from reput.log.segments import map_segment
from reput.recovery.loss import Loss
from reput.scan.reference import Frame, frame

_MOST_LOOKED_AT = 10_000


def index_losses(prediction: Prediction) -> Iterator[Loss]:
    """Index files that are deleted, and whose keys the walk doesn't put again."""
    headers = {entry.path: entry.header for entry in prediction.snapshot.index}
    again = prediction.log_end if prediction.began_at is None else prediction.began_at.base
    for path in prediction.index_dropped:
        header = headers[path]
        if header.begin_physical_offset >= again:
            continue  # the walk puts its keys again
        end = min(header.end_physical_offset + 1, again)
        yield Loss(
            kind="index-dropped",
            path=str(path),
            offset=header.begin_physical_offset,
            end=end,
            count=0,
            text=f"the index file is deleted, for it may be unsafe; keys of messages before {end} stay away",
        )


def index_gaps(prediction: Prediction) -> Iterator[Loss]:
    """Keys that the index doesn't lead to after the restart."""
    settings = prediction.snapshot.settings
    if not settings.message_index_enable or not prediction.segments:
        return
    yield from _torn_index_files(prediction)
    files = [file for file in prediction.index.files if file.header.index_count > 1]
    start, end = prediction.log_start, prediction.log_end
    path = str(settings.root / names.INDEX)
    if not files:
        if end > start:
            yield Loss("index-missing", path, start, end, 0, f"no key of {start} to {end} is indexed")
        return
    headers = [file.header for file in files]
    missing = prediction.walked.unindexed(headers, end)
    begin = headers[0].begin_physical_offset
    first = _first_keyed(prediction, begin)
    if first is not None and not (len(missing) and int(missing[0]) <= first):
        text = f"no key of {first} to {begin} is indexed"
        yield Loss("index-missing", path, first, begin, 0, text)
    if len(missing):
        low, high = int(missing[0]), int(missing[-1])
        text = f"the keys of {len(missing)} messages from {low} to {high} aren't indexed"
        yield Loss("index-missing", path, low, high + 1, len(missing), text)
    # A broker compares new messages with its last file alone, and takes the one that lies just there.
    late = headers[-1].end_physical_offset
    if late > end:
        text = f"the index ends at {late}, past the log's end: no new message below that will be indexed"
        yield Loss("index-ahead", path, end, late, 0, text)


def _torn_index_files(prediction: Prediction) -> Iterator[Loss]:
    slots = prediction.snapshot.settings.max_hash_slot_num
    dropped = set(prediction.index_dropped)
    for entry in prediction.snapshot.index:
        header = entry.header
        if header.index_count > 1 and entry.path not in dropped:
            used, length = file_length(slots, header.index_count), entry.length
            if length < used:
                text = f"the index file is filled up with zeros: {used - length} bytes of keys aren't there"
                low, high = header.begin_physical_offset, header.end_physical_offset
                yield Loss("index-torn", str(entry.path), low, high + 1, 0, text)


def _first_keyed(prediction: Prediction, before: int) -> int | None:
    """The first message of the first segment that has keys, if it lies before an offset."""
    settings, segment = prediction.snapshot.settings, prediction.segments[0]
    data = map_segment(segment.path, prediction.snapshot.segment_size).data
    position = 0
    for _ in range(_MOST_LOOKED_AT):
        record = frame(data, segment.base, position, settings.dialect.topic_length_v2)
        if not isinstance(record, Frame) or segment.base + position >= before:
            return None
        values = properties.parse(bytes(data[slice(*record.properties)]))
        if values.get(properties.KEYS, b"").strip(b" ") or properties.UNIQ_KEY in values:
            return segment.base + position
        position += record.size
    return None
