"""What a broker's restart does to a store, in an operator's terms, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reput.dialect import Dialect
from reput.format import names, properties
from reput.format.checkpoint import StoreCheckpoint
from reput.format.indexfile import file_length
from reput.recovery.batch import BatchModel
from reput.recovery.begin import SAFETY_MS
from reput.recovery.files import StoreFile
from reput.recovery.predict import LogCut, Prediction, predict
from reput.recovery.problem import Problem
from reput.recovery.queue import QueueModel
from reput.recovery.record import Kind, judge
from reput.recovery.snapshot import Queue, Snapshot
from reput.recovery.survivors import first_whole, left_from, written_behind
from reput.recovery.units import Unreached
from reput.recovery.written import first_written
from reput.scan import kernel
from reput.scan.reference import Frame, frame
from reput.scan.status import Status
from reput.source.written import written_end
from reput.store.segments import map_segment

#: Bytes of log that a broker walks a second with everything in the page cache; see docs/recovery.md.
_RATE_4_9 = 600_000_000
_RATE_5 = 200_000_000
_MOST_LOOKED_AT = 10_000
#: Bytes of log that a plan reads unless all is asked for: what a 4.9 broker walks after a stop in good order,
#: three segments of the default size.
MOST_READ = 3 << 30
#: Problems of a load that stand for messages which nobody can bring back from what is there.
LOG_GONE = frozenset({"missing-log-directory", "no-log", "missing-segments"})
#: Problems of a load that a rebuild from the log takes away, although the broker starts with them.
DERIVED_GONE = frozenset({"missing-queue-files", "index-length"})
#: What a rebuild of queues and index mends.
_REBUILT = DERIVED_GONE | {
    "units-missing",
    "units-displaced",
    "queue-begins-late",
    "delay-tags-hashed",
    "index-missing",
    "index-dropped",
    "index-ahead",
    "index-torn",
    "checkpoint-ahead",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that the restart takes away, or leaves broken.

    Attributes:
        kind: a stable, hyphenated name; docs/recovery.md lists them all.
        path: the file or directory.
        offset, end: physical offsets in the log, or queueOffsets for a queue; half open.
        count: messages, units or keys concerned.
        text: the same for people.
    """

    kind: str
    path: str
    offset: int
    end: int
    count: int
    text: str

    def to_dict(self) -> dict[str, object]:
        """The loss as a JSON-ready mapping."""
        return {
            "kind": self.kind,
            "path": self.path,
            "offset": self.offset,
            "end": self.end,
            "count": self.count,
            "text": self.text,
        }


@dataclass(slots=True)
class Plan:
    """What a restart will do.

    Attributes:
        prediction: the store after it.
        losses: what it takes away.
        unrepaired: what it leaves broken.
        instead: what reput would do, one step a line.
        seconds: roughly how long the broker reads, with ``rate`` bytes a second.
        rate: bytes a second that this is reckoned with.
        release: the release that is going to start.
    """

    prediction: Prediction
    losses: list[Loss] = field(default_factory=list)
    unrepaired: list[Loss] = field(default_factory=list)
    instead: list[str] = field(default_factory=list)
    seconds: float = 0.0
    rate: int = _RATE_5
    release: str = ""

    @property
    def snapshot(self) -> Snapshot:
        """The store before."""
        return self.prediction.snapshot

    @property
    def exit_code(self) -> int:
        """0 when the restart loses nothing and leaves nothing broken, 1 when it does or that wasn't read."""
        found = self.prediction.problems or self.losses or self.unrepaired
        return int(bool(found) or self.prediction.unread is not None)

    def to_dict(self) -> dict[str, object]:
        """The plan as a JSON-ready mapping."""
        prediction, snapshot = self.prediction, self.snapshot
        walked, dispatched = prediction.recovered, prediction.dispatched
        return {
            "store": str(snapshot.settings.root),
            "rocketmq_version": snapshot.settings.dialect.name,
            "clean": snapshot.clean,
            "starts": prediction.starts,
            "problems": [problem.to_dict() for problem in prediction.problems],
            "begins_at": None if prediction.began_at is None else str(prediction.began_at.path),
            "queue_end": prediction.queue_end,
            "unread": None if prediction.unread is None else list(prediction.unread),
            "walked_segments": 0 if walked is None else walked.segments,
            "walked_bytes": 0 if walked is None else walked.bytes,
            "walked_messages": 0 if walked is None else walked.messages,
            "ends_with": None if walked is None else walked.why,
            "dispatched_messages": None if dispatched is None else dispatched.messages,
            "log_start": prediction.log_start,
            "log_end": prediction.log_end,
            "units_added": prediction.units_added,
            "keys_added": prediction.index.added,
            "queues": len(prediction.queues) + len(prediction.batch_queues),
            "next_offsets": {
                f"{topic}:{queue_id}": [queue.min_offset, queue.max_offset]
                for (topic, queue_id), queue in sorted(_all_queues(prediction).items())
            },
            "index_left": [str(file.path) for file in prediction.index.files if file.path is not None],
            "checkpoint": _checkpoint(prediction.checkpoint),
            "losses": [loss.to_dict() for loss in self.losses],
            "unrepaired": [loss.to_dict() for loss in self.unrepaired],
            "seconds": round(self.seconds, 3),
            "bytes_per_second": self.rate,
            "instead": self.instead,
        }


def plan(snapshot: Snapshot, most: int | None = None, release: str | None = None) -> Plan:
    """What the restart of the broker of this release will do. Nothing is changed.

    Args:
        snapshot: the store.
        most: bytes of log to read at most, and a segment more; None for all that the broker reads. Of what
            isn't read nothing is said but where it lies.
        release: the release as the operator named it, for the commands to run next.

    Raises:
        UnsupportedError: the store or broker.conf has what the model doesn't know.
        StoreError: a file can't be read.
    """
    prediction = predict(snapshot, most)
    dialect = snapshot.settings.dialect
    result = Plan(prediction, rate=_rate(dialect), release=release or dialect.versions[-1])
    if prediction.began_at is not None or prediction.starts:
        result.losses += [*_log_losses(prediction), *_queue_losses(prediction), *_index_losses(prediction)]
        result.unrepaired += _left_alone(snapshot)
        read = sum(walk.bytes for walk in (prediction.recovered, prediction.dispatched) if walk is not None)
        if prediction.unread is None:
            result.unrepaired += [
                *_unreached(prediction),
                *_beginning_late(prediction),
                *_hashed(prediction),
                *_without_ext(prediction),
                *_index_gaps(prediction),
                *_ahead(prediction),
            ]
        else:
            read += prediction.unread[1] - prediction.unread[0]
        result.seconds = read / result.rate
    result.instead += _instead(result)
    return result


def _left_alone(snapshot: Snapshot) -> Iterator[Loss]:
    """What a load meets and goes on beside."""
    for problem in snapshot.problems:
        if problem.kind in LOG_GONE or problem.kind in DERIVED_GONE:
            text = f"expected {problem.expected}, found {problem.found}; {problem.outcome}"
            yield Loss(problem.kind, problem.path, 0, 0, 0, text)


def _rate(dialect: Dialect) -> int:
    return _RATE_4_9 if dialect.versions[0].startswith("4.") else _RATE_5


def _checkpoint(checkpoint: StoreCheckpoint) -> dict[str, int]:
    return {name: getattr(checkpoint, name) for name in StoreCheckpoint.__dataclass_fields__}


def _log_losses(prediction: Prediction) -> Iterator[Loss]:
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


def _queue_losses(prediction: Prediction) -> Iterator[Loss]:
    for (topic, queue_id), queue in sorted(prediction.queues.items()):
        if queue.recovered_end <= queue.end and not queue.deleted:
            continue
        lost = (queue.recovered_end - queue.end) // 20
        if lost > 0:
            yield Loss(
                kind="queue-cut",
                path=str(_queue_path(prediction, topic, queue_id)),
                offset=queue.max_offset,
                end=queue.max_offset + lost,
                count=lost,
                text=f"queue {topic}:{queue_id} is cut to {queue.max_offset}: {lost} units go",
            )

    for (topic, queue_id), batch in sorted(prediction.batch_queues.items()):
        lost = batch.recovered_max - batch.max_offset
        if lost > 0:
            yield Loss(
                kind="queue-cut",
                path=str(_queue_path(prediction, topic, queue_id)),
                offset=batch.max_offset,
                end=batch.recovered_max,
                count=lost,
                text=f"batch queue {topic}:{queue_id} is cut to {batch.max_offset}: {lost} messages go",
            )


def _index_losses(prediction: Prediction) -> Iterator[Loss]:
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


def _unreached(prediction: Prediction) -> Iterator[Loss]:
    walked, end = prediction.walked, prediction.log_end
    for one in (
        *walked.unreached(prediction.queues, end),
        *walked.unreached_batches(prediction.batch_queues, end),
    ):
        topic, queue_id = one.queue
        yield Loss(
            kind="units-displaced" if one.displaced == one.count else "units-missing",
            path=str(_queue_path(prediction, topic, queue_id)),
            offset=one.first,
            end=one.last + 1,
            count=one.count,
            text=_unreached_text(one),
        )


def _beginning_late(prediction: Prediction) -> Iterator[Loss]:
    """Queues that the start makes anew behind their first messages, some of which the log may still hold."""
    if prediction.began_at is None:
        return
    unseen = prediction.began_at.base
    if prediction.dispatched is not None:
        unseen = min(unseen, prediction.dispatched.start)
    start = prediction.snapshot.log.files[0].base
    listings = {**prediction.snapshot.queues, **prediction.snapshot.batch_queues}
    for queue, model in sorted(_all_queues(prediction).items()):
        listing = listings.get(queue)
        if (listing is not None and listing.files) or model.min_offset <= 0 or unseen <= start:
            continue
        topic, queue_id = queue
        text = (
            f"queue {topic}:{queue_id} has no file, and is made anew from queueOffset {model.min_offset} on"
        )
        yield Loss(
            kind="queue-begins-late",
            path=str(_queue_path(prediction, topic, queue_id)),
            offset=0,
            end=model.min_offset,
            count=0,
            text=f"{text}, and messages before that may lie in {start} to {unseen} of the log, not walked",
        )


def _hashed(prediction: Prediction) -> Iterator[Loss]:
    for (topic, queue_id), count in sorted(prediction.hashed.items()):
        end = prediction.queues[topic, queue_id].max_offset
        yield Loss(
            kind="delay-tags-hashed",
            path=str(_queue_path(prediction, topic, queue_id)),
            offset=end - count,
            end=end,
            count=count,
            text=f"{count} units of {topic}:{queue_id} get the hash of the tags, not the deliver time: "
            "those messages are delivered at once",
        )


def _without_ext(prediction: Prediction) -> Iterator[Loss]:
    """Units whose record in consumequeue_ext is gone: the next records come to stand in their places."""
    for (topic, queue_id), queue in sorted(prediction.queues.items()):
        first, last, count = queue.without_ext()
        if count:
            yield Loss(
                kind="queue-ext-missing",
                path=str(names.queue_ext_directory(prediction.snapshot.settings.root, topic, queue_id)),
                offset=first,
                end=last + 1,
                count=count,
                text=f"{count} units of {topic}:{queue_id} ({first} to {last}) lead to no record: their "
                "messages are given whatever their tags are, or by those of records that come there",
            )


def _ahead(prediction: Prediction) -> Iterator[Loss]:
    """A checkpoint from which the start after the next crash would begin too late."""
    walked, checkpoint = prediction.recovered, prediction.checkpoint
    if walked is None or not prediction.segments:
        return
    last = left_from(prediction)
    times = checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp
    late, offset = max(times), checkpoint.logics_physical_offset
    path = str(prediction.snapshot.settings.root / names.CHECKPOINT)
    if last and late > last + SAFETY_MS:
        text = f"the checkpoint says {late}, the last message was stored at {last}"
    elif offset > prediction.log_end:
        text = f"the checkpoint says offset {offset}, the log ends at {prediction.log_end}"
    else:
        return
    text += ": after the next crash a start begins too late, and messages stay without units and keys"
    yield Loss("checkpoint-ahead", path, 0, 0, 0, text)


def _unreached_text(one: Unreached) -> str:
    topic, queue_id = one.queue
    where = f"queueOffsets {one.first} to {one.last}, from {one.position} of the log on"
    text = f"queue {topic}:{queue_id} doesn't lead to {one.count} messages ({where})"
    return f"{text}; {one.displaced} of them stand in a wrong place" if one.displaced else text


def _index_gaps(prediction: Prediction) -> Iterator[Loss]:
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
            used, length = file_length(slots, header.index_count), entry.path.stat().st_size
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


def _queue_path(prediction: Prediction, topic: str, queue_id: int) -> Path:
    root = prediction.snapshot.settings.root
    if (topic, queue_id) in prediction.batch_queues:
        return names.batch_queue_directory(root, topic, queue_id)
    return names.queue_directory(root, topic, queue_id)


def _all_queues(prediction: Prediction) -> dict[Queue, QueueModel | BatchModel]:
    return {**prediction.queues, **prediction.batch_queues}


def _instead(plan: Plan) -> list[str]:
    prediction, settings = plan.prediction, plan.snapshot.settings
    steps = [problem.next_step for problem in prediction.problems]
    options = f" --rocketmq-version {plan.release}"
    if settings.broker_conf is not None:
        options = f" --broker-conf {settings.broker_conf}{options}"
    kinds = {loss.kind for loss in (*plan.losses, *plan.unrepaired)}
    gone = dict.fromkeys(problem.next_step for problem in plan.snapshot.problems if problem.kind in LOG_GONE)
    steps += gone
    batch = sorted({topic for topic, _ in prediction.batch_queues})
    if kinds - LOG_GONE and batch:
        steps.append(
            f"reput doesn't write batch consume queues (queue.type=BatchCQ: {', '.join(batch)}). --apply is "
            "refused with them, and a rebuild leaves them as they are:"
        )
    if kinds - LOG_GONE and settings.recovery.queue_ext:
        steps.append(
            "With the broker stopped: set enableConsumeQueueExt=false in broker.conf, and leave it so for "
            "the broker. reput can then build its queues, with the tags in the units; bit maps are gone:"
        )
    if kinds - LOG_GONE:
        steps.append(
            f"With the broker stopped: `reput recover {settings.root} --apply{options}` mends what it can; "
            "`reput undo` takes it back. Or by hand:"
        )
    cut = sum(loss.count for loss in plan.losses if loss.kind in ("log-cut", "segment-deleted"))
    if cut:
        steps.append(
            f"Before the broker starts: `reput rebuild {settings.root} --out DIR{options}` goes around the "
            f"damage and takes the {cut} messages behind it, which the broker cuts off."
        )
    if kinds & _REBUILT:
        steps.append(
            f"With the broker stopped: `reput rebuild {settings.root} --in-place{options}` builds all queues "
            "and the index from the log; `reput undo` takes it back."
        )
    if plan.prediction.unread is not None:
        steps.append(f"`reput recover {settings.root} --plan --full{options}` reads the rest as well.")
    if not steps:
        steps.append("Nothing: this restart loses nothing that the walk can see.")
    return steps


def problems(snapshot: Snapshot) -> list[Problem]:
    """All that a load meets, what a crash costs the index included."""
    found = list(snapshot.problems)
    if snapshot.clean:
        return found
    late = snapshot.checkpoint.index_msg_timestamp
    found += [
        Problem(
            kind="index-unsafe",
            path=str(entry.path),
            expected=f"an endTimestamp up to indexMsgTimestamp, {late}, after a crash",
            found=str(entry.header.end_timestamp),
            outcome="the broker deletes it",
            next_step="Rebuild the index once the log is sound.",
        )
        for entry in snapshot.index
        if entry.header.end_timestamp > late
    ]
    return found
