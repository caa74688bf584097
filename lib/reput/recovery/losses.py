"""What a broker's restart takes away from log, queues and index, and what of them it leaves broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reput.broker.predict import LogCut, Prediction
from reput.broker.queues import Unreached
from reput.broker.record import Kind, judge
from reput.broker.rocksdb_queues import QueueLeft
from reput.broker.snapshot import Snapshot
from reput.broker.walk import first_written
from reput.derived.batch import BatchModel
from reput.derived.files import StoreFile, records_of, segment_at
from reput.derived.last_file import nowhere
from reput.derived.plain import QueueModel
from reput.errors import Fact
from reput.format import commitlog, names, properties
from reput.format.checkpoint import LOGICS_FIELDS
from reput.format.consumequeue import PRE_BLANK_SIZE, UNIT_LENGTH
from reput.format.dtypes import UNIT_DTYPE, UnitKind, classify
from reput.format.indexfile import file_length
from reput.format.names import Queue
from reput.log.end import written_end
from reput.log.segments import map_segment
from reput.log.walk import Frame, frame
from reput.log.walk_kernel import walk
from reput.recovery.refusals import first_whole, left_from, written_behind
from reput.replay.placing import ALTERED
from reput.scan import kernel
from reput.scan.output import Status
from reput.scan.part import begins_record
from reput.store.reading import reading
from reput.words import counted

# Source: ``CommitLog.recoverNormally``, ``recoverAbnormally``, ``ConsumeQueue.truncateDirtyLogicFiles``,
# ``IndexService.buildIndex`` (rocketmq-all-4.9.7, 5.3.3).

#: Queues that one finding names.
MOST_NAMED = 5


class CutBefore:
    """What stands behind the log's end of a log that was longer, and was cut on purpose.

    ``DefaultMessageStore.truncateFiles``, which a controller asks for, moves positions back: whole messages
    stay behind the log's end, and units of them in the queues' files (rocketmq-all-5.3.3). They are older
    than the message before the end. Later segments are deleted.

    ``end``: where the log ends. ``last_time``: storeTimestamp of its last message, ms; 0 without one.
    """

    def __init__(self, snapshot: Snapshot, end: int, last_time: int) -> None:
        self._data, self._base = np.empty(0, np.uint8), end
        self._had_more, self._last_time = False, last_time
        size, files = snapshot.segment_size, snapshot.log.files
        segment = segment_at(files, size, end)
        if segment is None or not last_time:
            return
        v2, array = snapshot.settings.dialect.topic_length_v2, map_segment(segment.path, size)
        at = first_written(segment, size, end - segment.base)
        found = kernel.find_record(array, segment.base, at, size, v2)
        if found < 0 or commitlog.store_timestamp(array.data, found) >= last_time:
            return
        self._data, self._base = array, segment.base
        # Only a segment that was filled had others behind it.
        closed = walk(array, segment.base, found, 0, v2, 0, size).status == Status.BLANK
        later = [one for one in files if one.base > segment.base]
        self._had_more = closed and all(first_written(one, size, 0) == size for one in later)

    def holds(self, position: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[units], which of some units that lead past the log's end are of what was cut.

        ``position``, ``size``: int64[units], physical offset and bytes.
        """
        if not len(self._data):
            return np.zeros(len(position), bool)
        at = position - self._base
        held = (at >= len(self._data)) & self._had_more
        most = len(self._data) - commitlog.MIN_RECORD_LENGTH
        for number in np.flatnonzero((at >= 0) & (at <= most)).tolist():
            place, view = int(at[number]), self._data.data
            length = int.from_bytes(view[place : place + 4], "big")
            stored = view[place + commitlog.PHYSICAL_OFFSET : place + commitlog.PHYSICAL_OFFSET + 8]
            known = length == size[number] and int.from_bytes(stored, "big") == position[number]
            held[number] = known and commitlog.store_timestamp(view, place) < self._last_time
        return held


def left_by_a_cut(snapshot: Snapshot, end: int, last_time: int) -> bool:
    """Whether units past the log's end may be what an earlier start cut off.

    A start after a crash cuts queues by moving a position back: the units stay in the file until new ones are
    written over them, also through a stop in good order. That stop writes down the time of the last message
    with a unit. If it is the log's last one, the log has lost nothing since. (5.5 sometimes writes down an
    earlier one, which tells nothing.)

    ``end``: where the log ends. ``last_time``: storeTimestamp of its last message, ms; 0 without one.
    """
    known = snapshot.checkpoint.logics_msg_timestamp
    return snapshot.clean and _last_unit(snapshot) < end and 0 < known == last_time


def _last_unit(snapshot: Snapshot) -> int:
    """Physical offset of the last message with a unit, by the checkpoint; -1 before 5.5, and without one."""
    known = snapshot.settings.dialect.checkpoint_fields >= LOGICS_FIELDS
    offset = snapshot.checkpoint.logics_physical_offset
    return offset if known and offset > 0 else -1


def named(queues: Sequence[Queue]) -> str:
    """``A:0, B:1``, and how many more there are."""
    names = ", ".join(f"{topic}:{queue_id}" for topic, queue_id in queues[:MOST_NAMED])
    more = len(queues) - MOST_NAMED
    return f"{names} and {more:,} more" if more > 0 else names


#: Problems of a load that stand for messages which nobody can bring back from what is there.
LOG_GONE = frozenset({"missing-log-directory", "no-log", "missing-segments"})
#: Problems of a load that a rebuild from the log takes away, although the broker starts with them.
DERIVED_GONE = frozenset({"queue-file-missing", "index-length", "not-a-directory"})
_MOST_LOOKED_AT = 10_000
#: Units at a queue's end that are looked at: those of a cut of several megabytes.
_MOST_UNITS = 8192


@dataclass(frozen=True, slots=True)
class Loss(Fact):
    """Something that the restart takes away, or leaves broken; docs/findings.md lists the kinds."""

    offset: int  # offset, end: physical offsets in the log, or queueOffsets for a queue; half open
    end: int
    count: int  # messages, units or keys concerned
    text: str  # the same for people
    queue: Queue | None = None  # topic and queue id, where ``offset`` and ``end`` are queueOffsets

    @property
    def said(self) -> str:
        """What is lost, or broken."""
        return self.text


def log_losses(prediction: Prediction) -> Iterator[Loss]:
    """Cuts of segments that hold something, and segments that go."""
    snapshot = prediction.snapshot
    for cut in prediction.cuts:
        segment = StoreFile(str(cut.path), cut.end - snapshot.segment_size)
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
            text=f"{what}: {written:,} bytes with {counted(count, 'whole message')} "
            f"from {cut.start} on are lost",
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
    begins = begins_record(data, segment.base, position)  # it was written in part, or is damaged
    return not begins and first_whole(snapshot, segment, position, 0) >= 0


def log_misread(prediction: Prediction, most: int | None) -> Iterator[Loss]:
    """What releases up to 4.4.0 make of files that aren't as long as they should be, and of records.

    ``most``: bytes of segments whose messages are counted, at most; None for all.
    """
    snapshot, walked = prediction.snapshot, prediction.recovered
    if walked is not None and walked.moved:
        path = prediction.segments[-1].place
        where = f"{abs(walked.moved):,} bytes {'behind' if walked.moved > 0 else 'before'} where reading ends"
        text = (
            f"a record whose lengths don't add up is counted by its size: the log's end comes to lie {where}"
        )
        start, end = sorted((walked.end - walked.moved, walked.end))
        yield Loss("log-end-moved", path, start, end, 0, text)
    files = snapshot.log.unloaded
    if not files:
        return
    size = snapshot.segment_size
    is_read = most is None or len(files) * size <= most
    count = sum(_whole_in(snapshot, file) for file in files) if is_read else 0
    over = counted(count, "whole message") if is_read else "their messages"
    text = (
        f"{counted(len(files), 'segment')} from {files[0].base} on will not be loaded: new messages are "
        f"written over {over}"
    )
    yield Loss("unloaded-files", files[0].place, files[0].base, files[-1].base + size, count, text)


def _whole_in(snapshot: Snapshot, segment: StoreFile) -> int:
    """Messages from the start of a segment of any length on."""
    length = min(segment.path.stat().st_size, snapshot.segment_size)
    if not length:
        return 0
    v2, data = snapshot.settings.dialect.topic_length_v2, map_segment(segment.path, length)
    return int(walk(data, segment.base, 0, 0, v2, 0, length).records)


def messages_in(snapshot: Snapshot, segment: StoreFile, position: int, not_before: int) -> tuple[int, int]:
    """(whole messages from a position of a segment on, bytes up to the last of them).

    Without one, the bytes are those up to the last that isn't zero.

    ``not_before``: storeTimestamp, ms, that the first message behind damage has at least.
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
        with reading(segment.path, by_ranges=True) as fd:
            end = written_end(fd, data, start)
    return count, end - start


def queue_losses(prediction: Prediction) -> Iterator[Loss]:
    """Units that are cut off with the log, but for those of a log that was cut before."""
    cut = [one for one in prediction.all_queues.items() if one[1].cut_off > 0]
    before = CutBefore(prediction.snapshot, prediction.log_end, left_from(prediction)) if cut else None
    forms: tuple[tuple[Mapping[Queue, QueueModel | BatchModel], str, tuple[str, str]], ...] = (
        (prediction.queues, "queue", ("unit goes", "units go")),
        (prediction.batch_queues, "batch queue", ("message goes", "messages go")),
    )
    for form, kind, go in forms:
        for queue, model in sorted(form.items()):
            lost = model.cut_off
            if lost > 0 and before is not None and isinstance(model, QueueModel):
                lost -= _cut_before(prediction, queue, model, before)
            if lost > 0:
                text = f"{kind} {named([queue])} is cut to {model.max_offset}: {lost} {go[lost > 1]}"
                places = model.max_offset, model.max_offset + lost
                yield _loss(prediction, queue, "queue-cut", places, lost, text)


def queues_left(prediction: Prediction) -> Iterator[Loss]:
    """Queues that a start leaves as no other release does: up to 4.4.0, and of 5.0.0 to 5.3.1 the last one.

    Source: ``DefaultMessageStore.start``, ``CommitLog.recoverNormally``, ``MappedFileQueue.load``,
    ``ConsumeQueue.putMessagePositionInfo`` (rocketmq-all-4.3.1, 4.4.0).
    """
    snapshot = prediction.snapshot
    for queue, model in sorted(prediction.queues.items()):
        files = snapshot.queues[queue].unloaded if queue in snapshot.queues else ()
        if not files:
            continue
        end, more = files[-1].base + model.file_size, counted(len(files), "file")
        text = (
            f"queue {queue[0]}:{queue[1]} ends at {model.max_offset}, and {more} behind that "
            "will not be loaded: new messages get queueOffsets of older ones, and their units' places"
        )
        places = model.max_offset, end // UNIT_LENGTH
        yield _loss(prediction, queue, "unloaded-files", places, 0, text)
    for queue, model in sorted(prediction.queues.items()):
        count = model.units_from(prediction.log_end) if prediction.segments else 0
        if count:
            text = (
                f"queue {queue[0]}:{queue[1]} goes {counted(count, 'unit')} past the log's end, and isn't "
                f"cut: new messages get no unit until the log has passed {model.max_physical}"
            )
            places = model.max_offset - count, model.max_offset
            yield _loss(prediction, queue, "past-log-end", places, count, text)


def queues_lost(prediction: Prediction, broken: Sequence[Loss]) -> Iterator[Loss]:
    """All queues, where they are gone and a start makes none.

    ``broken``: what is wrong with queues whose topics weren't deleted.
    """
    messages = sum(loss.count for loss in broken if loss.kind == "missing-unit")
    if (
        not messages
        or prediction.rocksdb is not None
        or any(one.files for one in prediction.all_queues.values())
    ):
        return
    text = (
        "there is no queue, and this start makes none: new messages get queueOffsets from 0 on, as the "
        f"{counted(messages, 'message')} that it reads have, and a rebuild after that keeps the new alone"
    )
    path = str(prediction.snapshot.settings.root / names.CONSUME_QUEUE)
    yield Loss("queues-stay-lost", path, 0, 0, messages, text)


def _cut_before(prediction: Prediction, queue: Queue, model: QueueModel, before: CutBefore) -> int:
    """How many of the units that a start cuts off a queue are of a log that was cut on purpose."""
    count = 0
    for file in prediction.snapshot.queues[queue].files:
        start, stop = max(model.end - file.base, 0), min(model.recovered_end - file.base, model.file_size)
        if start < stop:
            units = records_of(file.place, UNIT_DTYPE, (stop - start) // UNIT_LENGTH, start)
            position, size = units["position"].astype(np.int64), units["size"].astype(np.int64)
            count += int(before.holds(position, size).sum())
    return count


def broken_queues(prediction: Prediction) -> Iterator[Loss]:
    """What is wrong with queues after the restart, as far as its walk went through their messages."""
    yield from _unreached(prediction)
    yield from _beginning_late(prediction)
    yield from _ending_late(prediction)
    yield from _hashed(prediction)
    yield from _without_ext(prediction)


def _unreached(prediction: Prediction) -> Iterator[Loss]:
    for one in prediction.walked.unreached(prediction.all_queues, prediction.log_end):
        if one.altered is not None:
            yield _altered(prediction, one, one.altered)
            continue
        kind = "misplaced-unit" if one.displaced == one.count else "missing-unit"
        yield _loss(prediction, one.queue, kind, (one.first, one.last + 1), one.count, _unreached_text(one))


def _altered(prediction: Prediction, one: Unreached, queue: Queue) -> Loss:
    """Messages whose records don't name any more the queue that has their units."""
    segment = segment_at(prediction.segments, prediction.snapshot.segment_size, one.position)
    path = str(prediction.place_of(one.queue)) if segment is None else segment.place
    messages = counted(one.count, "message")
    text = (
        f"queue {named([queue])} leads to {messages} of {named([one.queue])}, from {one.position} of the log "
        "on: a byte that says the queue was altered there"
    )
    return Loss(ALTERED, path, one.position, one.position, one.count, text)


def _beginning_late(prediction: Prediction) -> Iterator[Loss]:
    """Queues that the start makes anew behind their first messages, some of which the log may still hold."""
    if prediction.began_at is None:
        return
    unseen = prediction.began_at.base
    if prediction.dispatched is not None:
        unseen = min(unseen, prediction.dispatched.start)
    start = prediction.snapshot.log.files[0].base
    listings = {**prediction.snapshot.queues, **prediction.snapshot.batch_queues}
    for queue, model in sorted(prediction.all_queues.items()):
        listing = listings.get(queue)
        if (listing is not None and listing.files) or model.min_offset <= 0 or unseen <= start:
            continue
        text = (
            f"queue {queue[0]}:{queue[1]} has no file, and is made anew from queueOffset {model.min_offset} "
            f"on, and messages before that may lie in {start} to {unseen} of the log, not walked"
        )
        yield _loss(prediction, queue, "queue-begins-late", (0, model.min_offset), 0, text)


def _ending_late(prediction: Prediction) -> Iterator[Loss]:
    """Queues with units at their end of messages that the log had before it was cut.

    A start that cuts a queue moves a position back, and the units stay in the file. The next start takes
    those again whose place the log has reached since, whatever message stands there now
    (``ConsumeQueue.recover``, ``truncateDirtyLogicFiles``: rocketmq-all-4.9.7, 5.3.3).
    """
    for queue, model in sorted(prediction.queues.items()):
        last = model.last_unit() or (-1, 0, 0)
        position = last[0]
        blanks = last == (0, PRE_BLANK_SIZE, 0) and prediction.log_end < PRE_BLANK_SIZE
        # Most queues end with a message before the walk, or with one that it went through.
        is_walked = prediction.began_at is not None and position >= prediction.began_at.base
        count = _left_units(prediction, queue, model) if is_walked and not blanks else 0
        if blanks:
            text = (
                f"queue {queue[0]}:{queue[1]} ends with a blank at {model.max_offset - 1}: a broker gives "
                "its new messages no unit as long as the log ends below 2 GiB"
            )
            places = model.max_offset - 1, model.max_offset
            yield _loss(prediction, queue, "queue-ends-late", places, 0, text)
        elif count:
            text = (
                f"queue {queue[0]}:{queue[1]} ends {counted(count, 'place')} behind its last message, with "
                "units of none of its messages: consumers get other messages or none, and new ones leave "
                "a hole"
            )
            places = model.max_offset - count, model.max_offset
            yield _loss(prediction, queue, "queue-ends-late", places, count, text)


def _left_units(prediction: Prediction, queue: Queue, model: QueueModel) -> int:
    """How many units at a queue's end lead into the walk, and to no message of the queue."""
    began_at = prediction.began_at
    if began_at is None:
        return 0
    count = 0
    for many in (1, _MOST_UNITS):  # most queues end with a message of theirs
        found = [units for _, units in model.units(max(model.end - many * UNIT_LENGTH, 0))]
        if not found:
            return 0
        units = np.concatenate(found)
        position = units["position"].astype(np.int64)
        left = (position >= began_at.base) & (position < prediction.log_end)
        left &= (classify(units) == UnitKind.MESSAGE) & ~prediction.walked.holds(queue, position)
        # Places of lost messages that a mending has kept.
        left &= units != np.frombuffer(nowhere(prediction.snapshot.segment_size), UNIT_DTYPE)[0]
        others = np.flatnonzero(~left)
        count = len(left) - (int(others[-1]) + 1 if len(others) else 0)
        if not count:
            return 0
    # A broker with other settings has given a unit to a light queue, or to a message that none is due to.
    for number, place in enumerate(position[::-1][:count].tolist()):
        if _may_have_unit(prediction, queue, place):
            return number
    return count


def _may_have_unit(prediction: Prediction, queue: Queue, physical: int) -> bool:
    """Whether a message of this queue, or one with light queues, begins at a physical offset."""
    snapshot = prediction.snapshot
    segment = segment_at(prediction.segments, snapshot.segment_size, physical)
    if segment is None:
        return False
    data = map_segment(segment.path, snapshot.segment_size).data
    at = physical - segment.base
    record = frame(data, segment.base, at, snapshot.settings.dialect.topic_length_v2)
    if not isinstance(record, Frame):
        return False
    queue_id = int.from_bytes(data[at + commitlog.QUEUE_ID : at + commitlog.QUEUE_ID + 4], "big", signed=True)
    if (bytes(data[slice(*record.topic)]).decode("utf-8", "replace"), queue_id) == queue:
        return True
    return properties.INNER_MULTI_DISPATCH in properties.parse(bytes(data[slice(*record.properties)]))


def _hashed(prediction: Prediction) -> Iterator[Loss]:
    for (topic, queue_id), count in sorted(prediction.hashed.items()):
        end = prediction.queues[topic, queue_id].max_offset
        text = (
            f"{count} units of {topic}:{queue_id} get the hash of the tags, not the deliver time: "
            "those messages are delivered at once"
        )
        yield _loss(prediction, (topic, queue_id), "delay-tags-hashed", (end - count, end), count, text)


def _without_ext(prediction: Prediction) -> Iterator[Loss]:
    """Units whose record in consumequeue_ext is gone: the next records come to stand in their places."""
    for (topic, queue_id), queue in sorted(prediction.queues.items()):
        first, last, count = queue.without_ext(prediction.log_start)
        if count:
            yield Loss(
                kind="queue-ext-missing",
                path=str(names.queue_ext_directory(prediction.snapshot.settings.root, topic, queue_id)),
                offset=first,
                end=last + 1,
                count=count,
                text=f"{count} units of {topic}:{queue_id} ({first} to {last}) lead to no record: their "
                "messages are given whatever their tags are, or by those of records that come there",
                queue=(topic, queue_id),
            )


def _unreached_text(one: Unreached) -> str:
    topic, queue_id = one.queue
    where = f"queueOffsets {one.first} to {one.last}, from {one.position} of the log on"
    if one.displaced == one.count:
        # A light queue may be as its broker wrote it: a message that names it twice has two queueOffsets.
        there = f"messages stand at other places of queue {topic}:{queue_id} than their own"
        return f"{one.count:,} {there} ({where})"
    text = f"queue {topic}:{queue_id} doesn't lead to {counted(one.count, 'message')} ({where})"
    return f"{text}; {one.displaced:,} of them stand in a wrong place" if one.displaced else text


def _loss(
    prediction: Prediction, queue: Queue, kind: str, places: tuple[int, int], count: int, text: str
) -> Loss:
    """What a queue loses, by the queueOffsets of its first place and after its last one."""
    return Loss(kind, str(prediction.place_of(queue)), *places, count, text, queue)


# --- queues in RocksDB ---------------------------------------------------------------------------------


def rocksdb_losses(prediction: Prediction) -> Iterator[Loss]:
    """Queues whose end is moved back with the log's."""
    for queue, left in _queues(prediction):
        if left.cut > 0:
            text = f"queue {named([queue])} is cut to {left.following}: {counted(left.cut, 'place')} less"
            places = left.following, left.following + left.cut
            yield _loss(prediction, queue, "queue-cut", places, left.cut, text)


def broken_in_rocksdb(prediction: Prediction) -> Iterator[Loss]:
    """What is wrong with them after the restart."""
    model = prediction.rocksdb
    if model is None:
        return
    if model.unreadable is not None:
        error = model.unreadable
        path = str(error.path or model.kept.directory)
        text = f"units can't be read ({error.problem}; {error.found}): consumers don't get their messages"
        yield Loss("broken-rocksdb", path, 0, 0, 0, text)
    for queue, left in _queues(prediction):
        yield from _of_queue(prediction, queue, left)


def _of_queue(prediction: Prediction, queue: Queue, left: QueueLeft) -> Iterator[Loss]:
    name, places = named([queue]), (left.first, left.following)
    if left.missing:
        text = f"queue {name} has {counted(left.missing, 'place')} without a unit"
        if left.position >= 0:
            text += f", from {left.position} of the log on"
            places = left.missing_first, left.missing_last + 1
        text += ": a consumer that comes to such a place gets no further, or misses others"
        yield _loss(prediction, queue, "missing-unit", places, left.missing, text)
    if left.wrong:
        text = f"{counted(left.wrong, 'unit')} of queue {name} lead to other messages than their own"
        yield _loss(prediction, queue, "misplaced-unit", (left.first, left.following), left.wrong, text)
    if left.nowhere:
        units = f"{counted(left.nowhere, 'unit')} of queue {name}"
        text = f"{units} lead past the log's end: a consumer gets nothing there, and may miss others"
        yield _loss(prediction, queue, "past-log-end", (left.first, left.following), left.nowhere, text)
    if left.behind:
        seems = "looks empty" if not left.following else f"ends at {left.following}"
        text = (
            f"queue {name} {seems}, and {counted(left.behind, 'message')} behind, with units, aren't found: "
            "new messages are put over them"
        )
        places = left.following, left.following + left.behind
        yield _loss(prediction, queue, "queue-ends-early", places, left.behind, text)
    if left.late:
        text = (
            f"queue {name} ends {counted(left.late, 'place')} behind its last message: new ones leave a hole"
        )
        yield _loss(
            prediction, queue, "queue-ends-late", (left.following - left.late, left.following), 0, text
        )
    if left.before:
        text = (
            f"queue {name} begins at {left.first}, and {counted(left.before, 'message')} before aren't found"
        )
        yield _loss(prediction, queue, "queue-begins-late", (0, left.first), left.before, text)
    elif left.anew and left.first > 0 and _unseen(prediction) > prediction.snapshot.log.files[0].base:
        start = prediction.snapshot.log.files[0].base
        text = (
            f"queue {name} has no unit, and is made anew from queueOffset {left.first} on, and messages "
            f"before that may lie in {start} to {_unseen(prediction)} of the log, not walked"
        )
        yield _loss(prediction, queue, "queue-begins-late", (0, left.first), 0, text)


def _unseen(prediction: Prediction) -> int:
    return 0 if prediction.began_at is None else prediction.began_at.base


def _queues(prediction: Prediction) -> list[tuple[Queue, QueueLeft]]:
    return [] if prediction.rocksdb is None else sorted(prediction.rocksdb.queues.items())


# --- the index -----------------------------------------------------------------------------------------


def index_losses(prediction: Prediction) -> Iterator[Loss]:
    """Index files that are deleted, and whose keys the walk doesn't put again."""
    headers = {entry.path: entry.header for entry in prediction.snapshot.index}
    again = prediction.log_end if prediction.began_at is None else prediction.began_at.base
    for path in prediction.index_dropped:
        header = headers[path]
        if header.begin_physical_offset >= again:
            continue  # the walk puts its keys again
        start = max(header.begin_physical_offset, prediction.log_start)
        end = min(header.end_physical_offset + 1, again)
        if start >= end:
            continue  # its messages have expired
        yield Loss(
            kind="index-dropped",
            path=str(path),
            offset=start,
            end=end,
            count=0,
            text="the index file is deleted, for not all of its keys may have been flushed before the crash; "
            f"keys of messages before {end} stay away",
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
        # A log without a message with keys has no index.
        if len(prediction.walked.unindexed([], end)) or _first_keyed(prediction, end) is not None:
            yield Loss("missing-entry", path, start, end, 0, f"no key of {start} to {end} is indexed")
        return
    headers = [file.header for file in files]
    missing = prediction.walked.unindexed(headers, end)
    for file, (before, header) in zip(files[1:], pairwise(headers), strict=True):
        begin, known = header.begin_physical_offset, before.end_physical_offset
        if begin < known:
            text = f"it begins at {begin} of the log, and the file before it ends at {known}"
            yield Loss("index-header", str(file.path), begin, known, 0, text)
    begin = min(header.begin_physical_offset for header in headers)
    first = _first_keyed(prediction, begin)
    if first is not None and not (len(missing) and int(missing[0]) <= first):
        text = f"no key of {first} to {begin} is indexed"
        yield Loss("missing-entry", path, first, begin, 0, text)
    if len(missing):
        low, high = int(missing[0]), int(missing[-1])
        text = f"the keys of {counted(len(missing), 'message')} from {low} to {high} aren't indexed"
        yield Loss("missing-entry", path, low, high + 1, len(missing), text)
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
                yield Loss("missing-entry", str(entry.path), low, high + 1, 0, text)


def _first_keyed(prediction: Prediction, before: int) -> int | None:
    """The first message of the first segment that has keys, if it lies before an offset."""
    settings, segment = prediction.snapshot.settings, prediction.segments[0]
    data = map_segment(segment.path, prediction.snapshot.segment_size).data
    position = 0
    for _ in range(_MOST_LOOKED_AT):
        record = frame(data, segment.base, position, settings.dialect.topic_length_v2)
        if not isinstance(record, Frame) or segment.base + position >= before:
            return None
        if properties.has_keys(properties.parse(bytes(data[slice(*record.properties)]))):
            return segment.base + position
        position += record.size
    return None
