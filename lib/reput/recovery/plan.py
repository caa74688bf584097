"""What a broker's restart does to a store, in an operator's terms, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from reput.broker.begin import SAFETY_MS
from reput.broker.predict import Prediction, predict
from reput.broker.problem import Problem
from reput.broker.rocksdb_queues import QueueLeft, RocksDBModel
from reput.broker.snapshot import Queue, Snapshot
from reput.broker.walk import WRONG_BODY
from reput.config.topics import known_topics
from reput.errors import SettingsError
from reput.format import names
from reput.next_command import next_command
from reput.recovery.losses import (
    DERIVED_GONE,
    LOG_GONE,
    Loss,
    broken_queues,
    index_gaps,
    index_losses,
    log_losses,
    queue_losses,
)
from reput.recovery.past_end import PAST_LOG_END, left_by_a_cut
from reput.recovery.refusals import are_its_own, is_mended
from reput.recovery.rocksdb_losses import broken_in_rocksdb, rocksdb_losses
from reput.recovery.survivors import left_from
from reput.recovery.verdict import CONFIG_GONE, Verdict, config_name, of_plan, settings_not_there
from reput.replay.selection import is_known
from reput.replay.stranded import save_steps
from reput.store.ignored_features import ignored_features
from reput.store.space import human
from reput.words import counted, utc

#: Bytes of log that a broker walks a second with everything in the page cache; see docs/recovery.md.
_RATE_4_9 = 600_000_000
_RATE_5 = 200_000_000
#: Bytes of log that a plan reads unless all is asked for: what a 4.9 broker walks after a stop in good order,
#: three segments of the default size.
MOST_READ = 3 << 30
#: What a rebuild of queues and index mends.
_REBUILT = DERIVED_GONE | {
    "units-missing",
    "units-displaced",
    "queue-begins-late",
    "queue-ends-early",
    "queue-ends-late",
    "broken-rocksdb",
    PAST_LOG_END,
    "delay-tags-hashed",
    "queue-ext-missing",
    "index-missing",
    "index-dropped",
    "index-ahead",
    "index-torn",
    "checkpoint-ahead",
}
#: Where the log ends at damage, or before it.
_CUTS = frozenset({"log-cut", "segment-deleted"})
#: Topics that are named in a sentence.
_MOST_TOPICS = 5
#: The log is elsewhere: what is made without it has to be made again.
_NOT_MOUNTED = {"no-log", "missing-log-directory"}


@dataclass(slots=True)
class Plan:
    """What a restart will do.

    Attributes:
        prediction: the store after it.
        losses: what it takes away.
        unrepaired: what it leaves broken.
        deleted: messages that the walk met by topic, of queues without files whose topic config/topics.json
            doesn't name: it was deleted.
        next_steps: what to do before a start, one step a line; where it loses nothing, what it makes of
            queues and index files that aren't there.
        seconds: roughly how long the broker reads, with ``rate`` bytes a second.
        rate: bytes a second that this is reckoned with.
    """

    prediction: Prediction
    losses: list[Loss] = field(default_factory=list)
    unrepaired: list[Loss] = field(default_factory=list)
    deleted: dict[str, int] = field(default_factory=dict)
    next_steps: list[str] = field(default_factory=list)
    seconds: float = 0.0
    rate: int = _RATE_5

    @property
    def snapshot(self) -> Snapshot:
        """The store before."""
        return self.prediction.snapshot

    @property
    def loses(self) -> bool:
        """The restart loses something of log, queues or index, leaves it broken, or that wasn't read."""
        found = self.prediction.problems or self.losses or self.unrepaired
        return bool(found) or self._unread is not None

    @property
    def lost_config(self) -> list[Problem]:
        """Files below ``config/`` without which it starts; nothing mends them."""
        return [problem for problem in self.snapshot.problems if problem.kind in CONFIG_GONE]

    @property
    def exit_code(self) -> int:
        """0 when the restart loses nothing and leaves nothing broken, 1 when it does or that wasn't read."""
        return int(self.loses or bool(self.lost_config))

    @property
    def _deleted_topics(self) -> str:
        more = len(self.deleted) - _MOST_TOPICS
        return ", ".join(list(self.deleted)[:_MOST_TOPICS]) + (f" and {more} more topics" if more > 0 else "")

    @property
    def _unread(self) -> str | None:
        """How much that decides wasn't read, in words."""
        prediction = self.prediction
        if prediction.unread is not None:
            return f"{human(prediction.unread[1] - prediction.unread[0])} of the log"
        if prediction.rocksdb is not None and prediction.rocksdb.unread:
            return f"about {prediction.rocksdb.kept.units:,} units in RocksDB"
        return None

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        prediction = self.prediction
        return of_plan(
            self.snapshot.settings.release_name,
            str(self.snapshot.settings.root),
            prediction.problems,
            self.losses,
            self.unrepaired,
            self._unread,
            config=[config_name(problem.path) for problem in self.lost_config],
            lost_end=_lost_end(prediction),
            deleted=self._deleted_topics,
        )

    @property
    def not_read(self) -> list[str]:
        """What wasn't read, and which command does."""
        prediction, settings = self.prediction, self.snapshot.settings
        found = []
        if prediction.unread is not None:
            start, end = prediction.unread
            found.append(f"{start} to {end} of the log, which a start reads")
        if self.deleted:
            messages = counted(sum(self.deleted.values()), "message")
            found.append(
                f"whether {self._deleted_topics} was lost or deleted: {messages} in the log, no queues, and "
                f"not in {names.CONFIG}/topics.json"
            )
        cut = [loss for loss in self.losses if loss.kind in (*_CUTS, "queue-cut")]
        timers = [name for name in ignored_features(settings.root) if name.startswith("timer")]
        if cut and timers:
            found.append(f"what {' and '.join(timers)} hold of messages behind {prediction.log_end}")
        verify = settings.command("verify")
        found += _rocksdb_not_read(prediction)
        found += settings_not_there(settings, self.snapshot.problems)
        if any(problem.kind == "no-log" for problem in self.snapshot.problems):
            return [*found, "the log, which isn't there"]
        if prediction.began_at is None:
            return [*found, f"the log: `{verify}` compares everything with it"]
        first = prediction.began_at.base if prediction.dispatched is None else prediction.dispatched.start
        first = min(first, prediction.began_at.base)
        if first > prediction.log_start:
            found.append(
                f"{prediction.log_start} to {first} of the log, which no start reads: "
                f"`{verify}` compares everything with it"
            )
        else:
            found.append(
                f"units within queues, and keys, that the log has no message for: `{verify}` finds them"
            )
        return found

    def to_dict(self) -> dict[str, object]:
        """The plan as a JSON-ready mapping."""
        prediction, snapshot = self.prediction, self.snapshot
        walked, dispatched = prediction.recovered, prediction.dispatched
        return {
            "verdict": self.verdict.sort,
            "summary": self.verdict.text,
            "store": str(snapshot.settings.root),
            "rocketmq_version": snapshot.settings.basis.rocketmq_version,
            "settings": snapshot.settings.basis.to_dict(),
            "clean": snapshot.clean,
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
            "findings": [problem.to_dict() for problem in (*prediction.problems, *self.lost_config)],
            "losses": [loss.to_dict() for loss in self.losses],
            "unrepaired": [loss.to_dict() for loss in self.unrepaired],
            "seconds": round(self.seconds, 3),
            "bytes_per_second": self.rate,
            "not_read": self.not_read,
            "next_steps": self.next_steps,
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


def _rocksdb_not_read(prediction: Prediction) -> list[str]:
    """What of RocksDB wasn't looked at."""
    settings, model = prediction.snapshot.settings, prediction.rocksdb
    found = []
    if model is not None and model.unread:
        full = settings.command("recover", "--plan", "--full")
        found.append(f"about {model.kept.units:,} units in {model.kept.directory}: `{full}` reads them")
    if model is None and settings.rocksdb.queues is not None:
        verify = settings.command("verify")
        both = f"which are kept beside the files: this plan is of the files, `{verify}` compares both"
        why = both if settings.rocksdb.files else "which don't open"
        found.append(f"queues in {settings.rocksdb.queues}/, {why}")
    if settings.rocksdb.index:
        found.append(f"the index in {names.ROCKSDB_STORE}/: `{settings.command('verify')}` compares it")
    return found


def plan(snapshot: Snapshot, most: int | None = None) -> Plan:
    """What the restart of the broker of this release will do. Nothing is changed.

    Args:
        snapshot: the store.
        most: bytes of log to read at most, and a segment more; None for all that the broker reads. Of what
            isn't read nothing is said but where it lies.

    Raises:
        UnsupportedError: the store or broker.conf has what the model doesn't know.
        StoreError: a file can't be read.
    """
    prediction = predict(snapshot, most)
    is_4 = snapshot.settings.dialect.versions[0].startswith("4.")
    result = Plan(prediction, rate=_RATE_4_9 if is_4 else _RATE_5)
    if prediction.began_at is not None or prediction.starts:
        result.losses += [*log_losses(prediction), *queue_losses(prediction), *rocksdb_losses(prediction)]
        result.losses += index_losses(prediction)
        result.unrepaired += _left_alone(snapshot)
        read = sum(walk.bytes for walk in (prediction.recovered, prediction.dispatched) if walk is not None)
        if prediction.unread is None:
            broken, result.deleted = _deleted(
                snapshot, [*broken_queues(prediction), *broken_in_rocksdb(prediction)]
            )
            result.unrepaired += [
                *broken,
                *index_gaps(prediction),
                *_ahead(prediction),
            ]
        else:
            read += prediction.unread[1] - prediction.unread[0]
        result.seconds = read / result.rate
    steps = [problem.next_step for problem in result.lost_config]
    steps += _next_steps(prediction, [*result.losses, *result.unrepaired])
    if not result.loses and not result.lost_config:
        steps += [*_brings_back(prediction), *_makes(prediction)]
    result.next_steps += list(dict.fromkeys(steps))
    return result


def _brings_back(prediction: Prediction) -> Iterator[str]:
    """Messages behind where every queue ended. A log that was cut looks as before to a start.

    Source: ``DefaultMessageStore.truncateFiles``, which moves positions back, not bytes (rocketmq-all-5.3.3).
    """
    end, recovered = prediction.queue_end, prediction.recovered
    if recovered is None or prediction.unread is not None or end < max(prediction.log_start, recovered.start):
        return
    count = prediction.walked.behind(end)
    if count:
        yield (
            f"The start brings back {counted(count, 'message')} behind {end}, where every queue ended: they "
            "were cut off on purpose, or the queues have lost their ends."
        )


def _makes(prediction: Prediction) -> Iterator[str]:
    """What a start that loses nothing makes of queues and index files that aren't there."""
    snapshot = prediction.snapshot
    listings = {**snapshot.queues, **snapshot.batch_queues}
    queues = sum(
        bool(model.files) and not (queue in listings and listings[queue].files)
        for queue, model in prediction.all_queues.items()
    )
    if prediction.rocksdb is not None:
        queues += sum(not _is_kept(snapshot, queue) for queue in prediction.rocksdb.queues)
    index = sum(file.path is None for file in prediction.index.files) if prediction.index.added else 0
    made = [counted(queues, "queue")] if queues else []
    made += [counted(index, "index file")] if index else []
    if not made or snapshot.holder is not None:
        return
    step = f"Start the broker, and it makes {' and '.join(made)}"
    if are_its_own(snapshot.settings):
        in_place = snapshot.settings.command("rebuild", "--in-place")
        step += f"; or make all queues and the index before: `{in_place}`"
    yield f"{step}."


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
    broken: list[Loss] = []
    deleted: dict[str, int] = {}
    for loss in found:
        listing = None if loss.queue is None else listings.get(loss.queue)
        has_files = (listing is not None and listing.files) or _is_kept(snapshot, loss.queue)
        if loss.queue is None or has_files or is_known(loss.queue[0], known):
            broken.append(loss)
        else:
            topic = loss.queue[0]
            deleted[topic] = deleted.get(topic, 0) + loss.count
    return broken, deleted


def _is_kept(snapshot: Snapshot, queue: Queue | None) -> bool:
    return snapshot.kept is not None and queue in snapshot.kept.ends


def _left_alone(snapshot: Snapshot) -> Iterator[Loss]:
    """What a load meets and goes on beside."""
    for problem in snapshot.problems:
        if problem.kind in LOG_GONE or problem.kind in DERIVED_GONE:
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


def _lost_end(prediction: Prediction) -> bool:
    """Whether units past the log's end are of messages that it had, not of what a crash or a cut left."""
    snapshot = prediction.snapshot
    return snapshot.clean and not left_by_a_cut(snapshot, prediction.log_end, left_from(prediction))


def _next_steps(prediction: Prediction, found: list[Loss]) -> list[str]:
    """Steps, one a line, for what a restart loses or leaves broken."""
    kinds = {loss.kind for loss in found}
    steps = [problem.next_step for problem in prediction.problems]
    steps += [problem.next_step for problem in prediction.snapshot.problems if problem.kind in LOG_GONE]
    replica = prediction.snapshot.settings.command("recover", "--from", "REPLICA", "--plan")
    says = f"`{replica}` says what a slave or a backup has of"
    others = _others(prediction, found, kinds)
    if "missing-segments" in kinds:
        steps.append(f"{says} them.")
    if any(loss.count for loss in found if loss.kind in _CUTS):
        steps.append(f"Look for what is damaged first: {says} it.")
        if prediction.recovered is not None and prediction.recovered.why == WRONG_BODY:
            steps.append(
                "Or set checkCRCOnRecover=false in broker.conf, for the broker and for reput: that keeps the "
                f"message at {prediction.recovered.end}, whose body is wrong, and all behind it."
            )
    elif "queue-cut" in kinds and not kinds & {*_CUTS, *LOG_GONE}:
        if _lost_end(prediction):
            steps.append(f"Look for the log's end first: {says} it.")
        elif not prediction.snapshot.clean:
            steps.append(f"Look for the log's end first, unless it was never flushed: {says} it.")
    if (kinds or prediction.problems) and is_mended(prediction, cuts=bool(kinds & _CUTS)):
        apply = prediction.snapshot.settings.command("recover", "--apply")
        steps.append(
            f"With the broker stopped: `{apply}` mends what it can; `{_undo(prediction)}` takes it back."
            + (" Or:" if others else "")
        )
    steps += others
    if found and not are_its_own(prediction.snapshot.settings):
        steps += [one.next_step for one in prediction.snapshot.settings.basis.contradictions]
    # A cut of half a message takes none; what lies before a queue's begin isn't counted.
    stranded = {loss.kind for loss in found if loss.count or loss.kind == "queue-begins-late"}
    stranded |= {problem.kind for problem in prediction.snapshot.problems}
    steps += save_steps(stranded, prediction.snapshot.settings.command)
    if prediction.unread is not None:
        full = prediction.snapshot.settings.command("recover", "--plan", "--full")
        steps.append(f"`{full}` reads all that a start reads.")
    return steps


def _others(prediction: Prediction, found: list[Loss], kinds: set[str]) -> list[str]:
    steps: list[str] = []
    if kinds & _NOT_MOUNTED:
        return steps
    cut = sum(loss.count for loss in found if loss.kind in _CUTS)
    if cut:
        out = prediction.snapshot.settings.command("rebuild", "--out", "DIR")
        steps.append(
            f"Before the broker starts: `{out}` skips the damage and takes the {counted(cut, 'message')} "
            "behind it, which the broker cuts off."
        )
    if kinds & _REBUILT and are_its_own(prediction.snapshot.settings):
        in_place = prediction.snapshot.settings.command("rebuild", "--in-place")
        steps.append(
            f"With the broker stopped: `{in_place}` builds all queues and the index from the log; "
            f"`{_undo(prediction)}` takes it back."
        )
    return steps


def _undo(prediction: Prediction) -> str:
    return next_command("undo", prediction.snapshot.settings.root)
