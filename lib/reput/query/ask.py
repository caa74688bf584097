"""The queries of ``reput query``, with complete answers: each asks a store once or several times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from reput.derived.index import MOST_OFFSETS
from reput.derived.times import Boundary
from reput.format.commitlog import LMQ_PREFIX
from reput.query.message import Batch, Message, MessageId
from reput.query.store import ALWAYS, MOST_MESSAGES, Found, QueryStore, Status, TagFilter, Verdict

#: After these a consumer continues at the next offset that the broker names.
_CONTINUES = (
    Status.FOUND,
    Status.NO_MATCHED_MESSAGE,
    Status.MESSAGE_WAS_REMOVING,
    Status.OFFSET_FOUND_NULL,
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A message of an answer."""

    message: Message
    verdict: str = "MATCH"  # whether it really is what was queried
    remark: str | None = None  # the verdict in words; None if it is


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer."""

    found: bool  # whether there is what was queried
    why: str | None = None  # the reason if there isn't
    facts: dict[str, object] = field(default_factory=dict)  # what else is known, by JSON names
    messages: tuple[Shown, ...] = ()  # what was found, including hash collisions
    #: the answers of a topic's queues, which these are of, by queue id
    by_queue: dict[int, Answer] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 when found, 1 when not."""
        return 0 if self.found else 1


def by_offset(store: QueryStore, physical_offset: int) -> Answer:
    """The message at a physical offset."""
    message = store.message_at(physical_offset)
    if message is None:
        around, facts = _around(store, physical_offset)
        return Answer(False, f"no message begins at physical offset {physical_offset}{around}", facts)
    return Answer(True, messages=(_sound(message),))


def _around(store: QueryStore, offset: int) -> tuple[str, dict[str, object]]:
    """The messages near a physical offset where none begins, and the log's range: as text and as JSON."""
    before, after = store.log.before(offset), store.log.after(offset)
    places = [one.record.physical_offset for one in (before, after) if one is not None]
    start, end = store.log.start, store.log.end
    facts: dict[str, object] = {
        "min_physical_offset": start,
        "max_physical_offset": end,
        "before": None if before is None else before.record.physical_offset,
        "after": None if after is None else after.record.physical_offset,
    }
    text = f"; the log begins at {start}, and its last message ends at {end}"
    if store.log.is_uncommitted(offset):
        text = f": {store.log.why_not(offset)}{text}"
    elif before is not None and offset < before.record.physical_offset + before.size:
        text = f": it is inside the one at {before.record.physical_offset}, of {before.size} bytes{text}"
    elif places:
        text += f"; the nearest message{'s begin' if len(places) > 1 else ' begins'} at "
        text += " and ".join(map(str, places))
    return text, facts


def by_id(store: QueryStore, text: str, topic: str | None) -> Answer:
    """The message of an id, the broker's or (with its topic) the client's.

    SettingsError where it isn't a broker's id, and no topic was given. StoreError where a file can't be read.
    """
    found = store.by_id(text, topic)
    facts: dict[str, object] = {"by_key": found.by_key}
    if found.message is None:
        if found.by_key:
            return Answer(False, f"the index has no message of {topic} with it", facts)
        offset = MessageId.decode(text).physical_offset
        around, more = _around(store, offset)
        hint = ". If it is the id that the client printed, give --topic, too"
        why = f"no message begins at its physical offset, {offset}{around}{hint}"
        return Answer(False, why, {**facts, **more})
    shown = _sound(found.message)
    if not found.host_fits and found.message.body_is_sound:
        shown = Shown(found.message, "OTHER_HOST", "stored by another broker than the id names")
    return Answer(True, facts=facts, messages=(shown,))


def by_key(
    store: QueryStore,
    topic: str,
    key: str,
    begin: int | None,
    end: int | None,
    most: int = MOST_OFFSETS,
    *,
    index_type: str | None = None,
) -> Answer:
    """Messages by key, including those that the index gave only because hashes are equal.

    SettingsError where an index of this type doesn't exist. StoreError where a file can't be read.
    """
    begin = ALWAYS[0] if begin is None else begin
    end = ALWAYS[1] if end is None else end
    # A broker's own limit protects the broker.
    hits = store.by_key(topic, key, begin, end, most, index_type=index_type, limit=max(most, MOST_OFFSETS))
    shown = tuple(
        _sound(hit.message)
        if hit.verdict is Verdict.MATCH
        else Shown(hit.message, hit.verdict.name, hit.verdict.value)
        for hit in hits
        if hit.message is not None
    )
    counts = {verdict: sum(hit.verdict is verdict for hit in hits) for verdict in Verdict}
    facts: dict[str, object] = {
        "matches": counts[Verdict.MATCH],
        "collisions": counts[Verdict.COLLISION],
        "gone": [hit.physical_offset for hit in hits if hit.verdict is Verdict.GONE],
    }
    why = None
    if not counts[Verdict.MATCH]:
        why = "the index has no message with this key in this time"
        gone = (hit.physical_offset for hit in hits if hit.verdict is Verdict.GONE)
        why += "".join(f"; {store.log.why_not(at)}" for at in gone if store.log.is_uncommitted(at))
    return Answer(why is None, why, facts, shown)


def by_queue(
    store: QueryStore, topic: str, queue_id: int, at: int, count: int | None, expression: str | None
) -> Answer:
    """Messages of a queue.

    ``at``: queue offset. ``count``: how many from there on, as a consumer gets them; None without an
    expression: just this one. A batch queue may give more, since its messages come in whole batches.
    ``expression``: tags. SettingsError where the expression or the topic can't be used. StoreError where a
    file can't be read.
    """
    if count is None and expression is None:
        status, taken, following, missing_at = _just(store, topic, queue_id, at)
    else:
        status, taken, following, missing_at = _consumed(store, topic, queue_id, at, count or 1, expression)
    queue = store.queue(topic, queue_id)
    shown = _in_place(topic, queue_id, [one for one in taken if one.tag_fits], batches=queue.holds_batches)
    facts = {
        "status": status.name,
        "next_begin_offset": following,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "roll_next_file": queue.roll_next_file(at),
        "tag_collisions": sum(one.message is not None and not one.tag_fits for one in taken),
        "unreadable": [one.queue_offset for one in taken if one.message is None],
    }
    if shown:
        return _leading(facts, shown)
    if facts["unreadable"]:
        return Answer(False, "no whole message is where the queue points", facts)
    reason = "their tags have only the hash in common" if taken else _reason(store, status, missing_at)
    return Answer(False, f"{reason}; {held(queue.min_offset, queue.max_offset)}", facts)


def queue_range(store: QueryStore, topic: str, queue_id: int) -> Answer:
    """The min and max offset of a queue.

    SettingsError, StoreError: see :func:`by_queue`.
    """
    queue = store.queue(topic, queue_id)
    facts: dict[str, object] = {"min_offset": queue.min_offset, "max_offset": queue.max_offset}
    return Answer(queue.exists, None if queue.exists else "there is no such queue", facts)


def by_time(
    store: QueryStore, topic: str, queue_id: int, timestamp: int, boundary: Boundary | None
) -> Answer:
    """The queue offset of a time, with its message; not found when no message is there.

    SettingsError, StoreError: see :func:`by_queue`; or the release has no boundaries.
    """
    offset = store.offset_by_time(topic, queue_id, timestamp, boundary)
    queue = store.queue(topic, queue_id)
    facts: dict[str, object] = {
        "queue_offset": offset,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
    }
    if not queue.exists:
        return Answer(False, "there is no such queue", facts)
    status, own, _, missing_at = _just(store, topic, queue_id, offset)
    shown = _in_place(topic, queue_id, own, batches=queue.holds_batches)
    if shown:
        return _leading(facts, shown)
    reason = _reason(store, status, missing_at) if not own else "no whole message is where the queue points"
    why = f"a broker answers with queueOffset {offset}, but {reason}"
    return Answer(False, f"{why}; {held(queue.min_offset, queue.max_offset)}", facts)


def by_time_in_all(store: QueryStore, topic: str, timestamp: int, boundary: Boundary | None) -> Answer:
    """As :func:`by_time`, of each queue of a topic; found when one of them has a message there.

    SettingsError, StoreError: see :func:`by_time`.
    """
    found = {number: by_time(store, topic, number, timestamp, boundary) for number in store.queue_ids(topic)}
    queues = [
        {"queue_id": number, "found": one.found, "why": one.why, **one.facts} for number, one in found.items()
    ]
    messages = tuple(shown for one in found.values() for shown in one.messages)
    why = "none of the topic's queues has a message there" if found else "there is no such topic"
    is_found = any(one.found for one in found.values())
    return Answer(is_found, None if is_found else why, {"queues": queues}, messages, found)


def held(min_offset: int, max_offset: int) -> str:
    """Which queue offsets a queue has, in words."""
    if min_offset >= max_offset:
        return f"the queue holds no message, the next one gets {max_offset}"
    return f"the queue holds {min_offset} to {max_offset - 1}"


def _just(
    store: QueryStore, topic: str, queue_id: int, at: int
) -> tuple[Status, list[Found], int, int | None]:
    """The unit with the message at a queue offset, and no other; as :func:`_consumed` says it."""
    pulled = store.pull(topic, queue_id, at, 1)
    own = [one for one in pulled.found if one.has(at)]
    is_other = pulled.status is Status.FOUND and not own
    status = Status.MESSAGE_WAS_REMOVING if is_other else pulled.status
    return status, own, pulled.next_begin_offset, pulled.missing_at


def _consumed(
    store: QueryStore, topic: str, queue_id: int, at: int, count: int, expression: str | None
) -> tuple[Status, list[Found], int, int | None]:
    """Pull after pull, as a consumer does it.

    Returns:
        How the first pull ended, what was taken, the next offset, and what the first pull missed in the log.
    """
    tags = TagFilter.parse(expression)
    taken: list[Found] = []
    first: Status | None = None
    missing_at: int | None = None
    kept = 0
    while kept < count:
        pulled = store.pull(topic, queue_id, at, min(count - kept, MOST_MESSAGES), tags)
        if first is None:
            first, missing_at = pulled.status, pulled.missing_at
        taken += pulled.found
        kept += sum(max(one.messages, 1) for one in pulled.found if one.tag_fits)
        if pulled.status not in _CONTINUES or pulled.next_begin_offset <= at:
            break
        at = pulled.next_begin_offset
    return (Status.FOUND if kept else first or Status.NO_MESSAGE_IN_QUEUE), taken, at, missing_at


def _reason(store: QueryStore, status: Status, missing_at: int | None) -> str:
    """A status in words; a broker has one status for all that isn't in the log, whatever the reason."""
    if status is Status.MESSAGE_WAS_REMOVING and missing_at is not None:
        return store.log.why_not(missing_at)
    return status.value


def _in_place(topic: str, queue_id: int, taken: list[Found], *, batches: bool) -> tuple[Shown, ...]:
    """The messages that units point to; a broker gives those of another place, too, here with a remark."""
    light = topic.startswith(LMQ_PREFIX.decode())  # its messages are other topics'
    shown = []
    for one in taken:
        if one.message is None:
            continue
        record = one.message.record
        own = (one.message.batch if batches else None) or (record.queue_offset, 1)
        place = (one.message.topic, record.queue_id, *own)
        fits = light or place == (topic, queue_id, one.queue_offset, one.messages)
        remark = f"the queue's unit at {one.queue_offset} points to it, but its own place is another one"
        shown.append(_sound(one.message) if fits else Shown(one.message, "OTHER_PLACE", remark))
    return tuple(shown)


def _leading(facts: dict[str, object], shown: tuple[Shown, ...]) -> Answer:
    """Found, unless the queue points only to messages of other places."""
    if all(one.verdict == "OTHER_PLACE" for one in shown):
        return Answer(False, "the queue points to messages of other places", facts, shown)
    return Answer(True, facts=facts, messages=shown)


def _held_in(batch: Batch) -> str:
    if batch.messages < 1:
        return f"of {batch.messages} messages, queueOffset {batch.base_offset}"
    if batch.messages == 1:
        return f"of 1 message, queueOffset {batch.base_offset}"
    return f"of {batch.messages} messages, {batch.base_offset} to {batch.base_offset + batch.messages - 1}"


def _sound(message: Message) -> Shown:
    if message.body_is_sound:
        return Shown(message)
    return Shown(message, "BAD_CRC", "the body doesn't have its CRC")


def lines(shown: Shown) -> Iterator[tuple[str, str]]:
    """A message in words: (what, its text)."""
    message, record = shown.message, shown.message.record
    yield "queue", f"{message.topic}:{record.queue_id} at queueOffset {record.queue_offset}"
    if message.batch is not None:
        yield "batch", _held_in(message.batch)
    yield "place", f"physical offset {record.physical_offset}, {message.size} bytes"
    if message.tags is not None:
        yield "tags", message.tags
    if message.keys:
        yield "keys", " ".join(message.keys)
    if message.uniq_key is not None:
        yield "uniqKey", message.uniq_key
    yield "id", message.offset_msg_id
    yield "body", f"{len(record.body)} bytes"
    if shown.remark is not None:
        yield "but", shown.remark
