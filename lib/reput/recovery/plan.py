"""What a broker's restart does to a store, in an operator's terms, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from reput.broker.predict import Prediction, predict
from reput.broker.rocksdb_queues import QueueLeft, RocksDBModel
from reput.broker.snapshot import Snapshot
from reput.broker.walk import SAFETY_MS
from reput.config.kept import known_topics
from reput.errors import SettingsError
from reput.format import names
from reput.format.names import Queue
from reput.log.segments import MISTAKEN
from reput.recovery.losses import (
    DERIVED_GONE,
    LOG_GONE,
    Loss,
    broken_in_rocksdb,
    broken_queues,
    index_gaps,
    index_losses,
    left_by_a_cut,
    log_losses,
    log_misread,
    queue_losses,
    queues_left,
    queues_lost,
    rocksdb_losses,
)
from reput.recovery.refusals import left_from
from reput.replay.target import is_known
from reput.store.system import human
from reput.words import counted, utc

#: Bytes of log that a broker walks a second with everything in the page cache; see docs/starts.md.
_RATE_4_9 = 600_000_000
_RATE_5 = 200_000_000
#: Bytes of log that a plan reads unless all is asked for: what a 4.9 broker walks after a stop in good order,
#: three segments of the default size.
MOST_READ = 3 << 30
#: Where the log ends at damage, or before it.
_CUTS = frozenset({"log-cut", "segment-deleted"})
#: Topics that are named in a sentence.
_MOST_TOPICS = 5


@dataclass(slots=True)
class Plan:
    """What a restart will do."""

    prediction: Prediction  # the store after it
    losses: list[Loss] = field(default_factory=list)  # what it takes away
    unrepaired: list[Loss] = field(default_factory=list)  # what it leaves broken
    #: messages that the walk met by topic, of queues without files whose topic config/topics.json
    #: doesn't name: it was deleted
    deleted: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # roughly how long the broker reads, with ``rate`` bytes a second
    rate: int = _RATE_5  # bytes a second that this is reckoned with

    @property
    def snapshot(self) -> Snapshot:
        """The store before."""
        return self.prediction.snapshot

    @property
    def loses(self) -> bool:
        """Whether it loses something of log, queues or index, leaves it broken, or that wasn't read."""
        found = self.prediction.problems or self.losses or self.unrepaired
        return bool(found) or self.unread is not None

    @property
    def cuts_messages(self) -> bool:
        """The restart takes whole messages off the log."""
        return any(loss.count for loss in self.losses if loss.kind in _CUTS)

    @property
    def deleted_topics(self) -> str:
        """Those of ``deleted``, for people."""
        more = len(self.deleted) - _MOST_TOPICS
        return ", ".join(list(self.deleted)[:_MOST_TOPICS]) + (f" and {more} more topics" if more > 0 else "")

    @property
    def is_whole(self) -> bool:
        """The broker starts, and all that it reads was read."""
        return self.prediction.starts and self.unread is None

    def changes_queue(self, queue: Queue) -> bool:
        """Whether the start adds units to a queue, or takes some away; of one in RocksDB it may."""
        snapshot, prediction = self.snapshot, self.prediction
        listing = snapshot.queues.get(queue) or snapshot.batch_queues.get(queue)
        if listing is None or not listing.files:
            return True
        model = prediction.all_queues.get(queue)
        return model is None or model.is_changed

    @property
    def unread(self) -> str | None:
        """How much that decides wasn't read, in words."""
        prediction = self.prediction
        if prediction.unread is not None:
            return f"{human(prediction.unread[1] - prediction.unread[0])} of the log"
        if prediction.rocksdb is not None and prediction.rocksdb.unread:
            return f"about {prediction.rocksdb.kept.units:,} units in RocksDB"
        return None

    def adds(self, to_index: bool) -> bool:
        """Whether it adds keys to the index, else units to queues."""
        return bool(self.prediction.index.added if to_index else self.prediction.units_added)

    @property
    def left_by_a_cut(self) -> bool:
        """Whether units past the log's end may be what an earlier start cut off, and none was lost since."""
        return left_by_a_cut(self.snapshot, self.prediction.log_end, left_from(self.prediction))

    @property
    def first_read(self) -> int:
        """Physical offset of the first byte of the log that it walks or dispatches; its end without one."""
        prediction = self.prediction
        begins = [] if prediction.began_at is None else [prediction.began_at.base]
        begins += [] if prediction.dispatched is None else [prediction.dispatched.start]
        return min(begins, default=prediction.log_end)

    def facts(self) -> dict[str, object]:
        """What the start does, JSON-ready."""
        prediction = self.prediction
        walked, dispatched = prediction.recovered, prediction.dispatched
        return {
            "starts": prediction.starts,
            "begins_at": None if prediction.began_at is None else str(prediction.began_at.path),
            "queues_physical_end": prediction.queue_end,
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
            "queues": prediction.queue_count,
            "rocksdb": None if prediction.rocksdb is None else _rocksdb_facts(prediction.rocksdb),
            "next_offsets": {
                f"{topic}:{queue_id}": [queue.min_offset, queue.max_offset]
                for (topic, queue_id), queue in sorted(prediction.all_queues.items())
            }
            | {
                f"{topic}:{queue_id}": [left.first, left.following]
                for (topic, queue_id), left in _known_places(prediction)
            },
            "index_left": [str(file.path) for file in prediction.index.files if file.path is not None],
            "checkpoint": asdict(prediction.checkpoint),
            "seconds": round(self.seconds, 3),
            "bytes_per_second": self.rate,
        }


def _known_places(prediction: Prediction) -> list[tuple[Queue, QueueLeft]]:
    """The queues in RocksDB, by name; none where units can't be read, for that decides where they begin."""
    model = prediction.rocksdb
    return [] if model is None or model.unreadable is not None else sorted(model.queues.items())


def _rocksdb_facts(model: RocksDBModel) -> dict[str, object]:
    kept = model.kept
    return {
        "directory": str(kept.directory),
        "exists": kept.exists,
        "checkpoint": kept.checkpoint,
        "checkpoint_afterwards": model.checkpoint,
        "units_read": not model.unread and model.unreadable is None,
    }


def plan(snapshot: Snapshot, most: int | None = None) -> Plan:
    """What the restart of the broker of this release will do. Nothing is changed.

    ``most``: bytes of log to read at most, and a segment more; None for all that the broker reads. Of what
    isn't read nothing is said but where it lies. UnsupportedError where the store or broker.conf has what the
    model doesn't know. StoreError where a file can't be read.
    """
    prediction = predict(snapshot, most)
    is_4 = snapshot.settings.dialect.versions[0].startswith("4.")
    result = Plan(prediction, rate=_RATE_4_9 if is_4 else _RATE_5)
    if prediction.began_at is not None or prediction.starts:
        result.losses += [*log_losses(prediction), *log_misread(prediction, most)]
        result.losses += [*queue_losses(prediction), *queues_left(prediction), *rocksdb_losses(prediction)]
        result.losses += index_losses(prediction)
        result.unrepaired += _left_alone(snapshot)
        read = sum(walk.bytes for walk in (prediction.recovered, prediction.dispatched) if walk is not None)
        if prediction.unread is None:
            broken, result.deleted = _deleted(
                snapshot, [*broken_queues(prediction), *broken_in_rocksdb(prediction)]
            )
            result.losses += queues_lost(prediction, broken)
            result.unrepaired += [
                *broken,
                *index_gaps(prediction),
                *_ahead(prediction),
            ]
        else:
            read += prediction.unread[1] - prediction.unread[0]
        result.seconds = read / result.rate
    return result


def brings_back(prediction: Prediction) -> Iterator[str]:
    """Messages behind where every queue ended. A log that was cut looks as before to a start.

    Source: ``DefaultMessageStore.truncateFiles``, which moves positions back, not bytes (rocketmq-all-5.3.3).
    """
    end, recovered = prediction.queue_end, prediction.recovered
    if recovered is None or prediction.unread is not None or end < max(prediction.log_start, recovered.start):
        return
    known = prediction.snapshot.settings.dialect.recovery.knows_message_ends
    count = prediction.walked.behind(end if known else end + 1)
    if count:
        yield (
            f"The start brings back {counted(count, 'message')} behind {end}, where every queue ended: they "
            "were cut off on purpose, or the queues have lost their ends."
        )


def _deleted(snapshot: Snapshot, found: Iterable[Loss]) -> tuple[list[Loss], dict[str, int]]:
    """What is broken of queues, and messages by topic where the topic was deleted: that isn't broken."""
    try:
        topics = known_topics(snapshot.settings.config)
    except SettingsError:
        topics = None
    if topics is None:
        return list(found), {}
    known = frozenset(topics)
    listings = {**snapshot.queues, **snapshot.batch_queues}
    kept = () if snapshot.kept is None else snapshot.kept.ends
    broken: list[Loss] = []
    deleted: dict[str, int] = {}
    for loss in found:
        listing = None if loss.queue is None else listings.get(loss.queue)
        has_files = (listing is not None and listing.files) or loss.queue in kept
        if loss.queue is None or has_files or is_known(loss.queue[0], known):
            broken.append(loss)
        else:
            topic = loss.queue[0]
            deleted[topic] = deleted.get(topic, 0) + loss.count
    return broken, deleted


def _left_alone(snapshot: Snapshot) -> Iterator[Loss]:
    """What a load meets and goes on beside."""
    for problem in snapshot.problems:
        if problem.kind in LOG_GONE | DERIVED_GONE | MISTAKEN:
            text = f"expected {problem.expected}, found {problem.found}; {problem.outcome}"
            yield Loss(problem.kind, problem.path, 0, 0, 0, text)


def _ahead(prediction: Prediction) -> Iterator[Loss]:
    """A checkpoint from which the start after the next crash would begin too late.

    That is asked of the store after this restart, with another log's end and another checkpoint than now. One
    that leads to just that end makes the start begin at the next message, which is right.
    """
    walked, checkpoint = prediction.recovered, prediction.checkpoint
    if walked is None or not prediction.segments:
        return
    last = left_from(prediction)
    times = checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp
    late, offset = max(times), checkpoint.logics_physical_offset
    path = str(prediction.snapshot.settings.root / names.CHECKPOINT)
    if last and late > last + SAFETY_MS:
        text = f"the checkpoint says {utc(late)}, the last message was stored at {utc(last)}"
    elif offset > prediction.log_end:
        text = f"the checkpoint says offset {offset}, the log ends at {prediction.log_end}"
    else:
        return
    text += ": after the next crash a start begins too late, and messages stay without units and keys"
    yield Loss("checkpoint-ahead", path, 0, 0, 0, text)
