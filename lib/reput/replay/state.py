"""A batch, and the state to which batches add up.

The size of a :class:`State` depends on the store (its queues, index files and topics), not on how many
batches came before: see :meth:`State.add`.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from operator import itemgetter

from reput.errors import Finding
from reput.format.batchconsumequeue import UNIT_LENGTH as BATCH_UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue

#: When a state has more findings than this, the older half of them becomes one for each kind.
MAX_FINDINGS = 4096

#: A state keeps the newest of each kind of what was salvaged, up to this many.
MAX_SALVAGED = 4096

#: A state keeps the newest places of older records, up to this many.
MAX_OLDER = 256

#: Kinds of what was salvaged.
KEPT, FILLED, HIDDEN = "kept", "filled", "hidden"

_name_of = itemgetter(0)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let Python's collector of cycles rest while many objects are made.

    As their number grows it looks at all of them again and again, which of a million queues takes longer than
    the work itself; and they have no cycles.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


LoneZero = tuple[int, int, int] | tuple[int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as of the end of a batch."""

    #: first, next: queueOffset of its first unit, and after its last. ``first`` rises when the log's
    #: head expires, without a unit being added
    first: int
    next: int
    end: int  # physical offset after its last message
    units: int = 0  # units, bytes: added by the batch that wrote this
    bytes: int = 0
    shift: int = 0  # how far its last message's queueOffset is above its place; see reput.build.placement
    #: the last unit, (physicalOffset, size, tagsCode), where that message is a lone queueOffset 0,
    #: else None: a batch that finds that the queue was created again with it drops it from the files
    #: before it is committed, and may be repeated. With ConsumeQueueExt, the fields of its unit there
    #: follow: storeTimestamp (-1 if it has no unit there), the bit map in hexadecimal digits
    lone_zero: LoneZero | None = None
    #: bytes of what is written in log order: of a batch queue's files, else of the queue's files in
    #: consumequeue_ext; 0 where there are none
    appended: int = 0
    is_batch: bool = False  # it is a batch queue, without consume queue files
    #: queueOffset from which on its units may not be of messages, so that proven ones replace them;
    #: None if all are proven. See reput.scan.extent
    unproven: int | None = None

    @property
    def proven_next(self) -> int:
        """The queueOffset after its last proven unit."""
        return self.next if self.unproven is None else self.unproven

    @property
    def held(self) -> int:
        """How many units the queue has; of a batch queue those that have expired count as well."""
        return self.appended // BATCH_UNIT_LENGTH if self.is_batch else self.next - self.first


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was done about damage, or about a message that no queue can show."""

    #: KEPT: a range of the log that was skipped. FILLED: places of a queue whose messages were lost,
    #: which got the unit after them. HIDDEN: a message whose queueOffset another one already has
    kind: str
    #: begin, end: physical offsets, half open: the range; where the lost messages must have been; the
    #: message, or what spans ``count`` of them
    begin: int
    end: int
    topic: str | None = None  # topic, queue_id: the queue; None for KEPT
    queue_id: int | None = None
    queue_offset: int | None = None  # the first one concerned; None for KEPT
    count: int = 1  # places, or messages
    #: name of the file below lost-and-found/ that has the range's bytes; None where it holds zeros
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """The store and settings with which the output was begun."""

    store: str  # the store's path
    fingerprint: str  # of everything that changes output bytes
    start: int  # physical offset of the first record to read
    #: what the fingerprint was made of, for people; JSON-ready
    settings: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed batch."""

    start: int  # start, end: physical offsets, half open; ``end`` is the cursor
    end: int
    batch_id: int  # Spark's, for people; it identifies nothing
    messages: int  # messages, bytes: of the records in the range
    bytes: int
    last_position: int  # physical offset of the last record so far, -1 if none
    last_timestamp: int  # its storeTimestamp, ms
    last_unit_timestamp: int  # storeTimestamp of the last message with a unit so far, ms
    #: the queues that changed, by (topic, queue id)
    queues: dict[Queue, QueueState] = field(default_factory=dict)
    #: the index files that changed: (name, header)
    index: list[tuple[str, IndexHeader]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # what was skipped
    without_unit: dict[str, int] = field(default_factory=dict)  # messages that got no unit, by topic
    #: physical offsets where something was skipped, so that messages may be missing
    breaks: list[int] = field(default_factory=list)
    last_unit_position: int = -1  # physical offset of the last message with a unit, -1 if none
    #: where the log began when retention last followed it, physical offset; see
    #: reput.output.log_changes. 0: as before
    log_start: int = 0
    dropped_index: list[str] = field(default_factory=list)  # names of the index files that retention removed
    dropped_index_timestamp: int = 0  # endTimestamp of the last one of them, ms; 0: as before
    last_record: str = (
        ""  # the mark of the last record so far, see reput.output.log_changes; empty: as before
    )
    salvaged: list[Salvaged] = field(default_factory=list)  # what was kept, filled and found hidden
    unproven_until: int = 0  # physical offset: records that begin before it are unproven; 0: as before
    #: where a record is older than the one before it: physical offset, colon, the mark of that one
    older: list[str] = field(default_factory=list)
    noted: bool = False  # ``older`` is all that there is to tell from a cut
    #: physical offset: which records are older is no longer known of those that begin before it; 0: as before
    untimed_until: int = 0


@dataclass(slots=True)
class State:
    """All batches of the journal, added up."""

    cursor: int  # physical offset up to which the log has been processed
    messages: int = 0
    bytes: int = 0
    batches: int = 0  # how many were added up; the number of the last one
    last_position: int = -1
    last_timestamp: int = 0
    last_unit_timestamp: int = 0
    last_unit_position: int = -1
    queues: dict[Queue, QueueState] = field(default_factory=dict)  # every queue
    #: every index file in order: (name, header), without those that retention removed
    index: list[tuple[str, IndexHeader]] = field(default_factory=list)
    #: at most :data:`MAX_FINDINGS`; older ones are summed up, one a kind with their count
    findings: list[Finding] = field(default_factory=list)
    without_unit: dict[str, int] = field(default_factory=dict)
    #: the last one, which is enough to see whether there is a break past a queue's end
    breaks: list[int] = field(default_factory=list)
    log_start: int = 0  # where the log began when the output was begun, or when retention last followed it
    #: endTimestamp of the last index file that retention removed, ms; 0 if none
    dropped_index_timestamp: int = 0
    last_record: str = ""  # the mark of the last record so far
    salvaged: list[Salvaged] = field(default_factory=list)  # the newest, at most :data:`MAX_SALVAGED`
    unproven_until: int = 0  # physical offset: records that begin before it are unproven
    older: list[str] = field(default_factory=list)  # the newest, at most :data:`MAX_OLDER`
    noted_from: int = -1  # physical offset from which on all batches are noted; -1: the last one isn't
    #: physical offset: records that begin before it may be older than the ones before, which ``older`` lacks
    untimed_until: int = 0

    @property
    def units(self) -> int:
        """Units of all queues."""
        return sum(queue.held for queue in self.queues.values())

    @property
    def index_entries(self) -> int:
        """Entries of all index files."""
        return sum(header.index_count - 1 for _, header in self.index)

    def without_messages(self) -> Batch:
        """A batch that places nothing, at the cursor: for what else is to be in the journal."""
        return Batch(
            start=self.cursor,
            end=self.cursor,
            batch_id=-1,
            messages=0,
            bytes=0,
            last_position=self.last_position,
            last_timestamp=self.last_timestamp,
            last_unit_timestamp=self.last_unit_timestamp,
            last_unit_position=self.last_unit_position,
            last_record=self.last_record,
            noted=self.noted_from >= 0,
        )

    def add(self, batch: Batch) -> None:
        """Add the next batch, in time proportional to what it changed."""
        self.cursor = batch.end
        self.messages += batch.messages
        self.bytes += batch.bytes
        self.batches += 1
        self.last_position = batch.last_position
        self.last_timestamp = batch.last_timestamp
        self.last_unit_timestamp = batch.last_unit_timestamp
        self.last_unit_position = batch.last_unit_position
        self.queues.update(batch.queues)
        for name, header in batch.index:
            at = bisect_left(self.index, name, key=_name_of)
            known = at < len(self.index) and self.index[at][0] == name
            self.index[at : at + known] = [(name, header)]
        for name in batch.dropped_index:
            at = bisect_left(self.index, name, key=_name_of)
            if at < len(self.index) and self.index[at][0] == name:
                del self.index[at]
        self.findings += batch.findings
        if len(self.findings) > MAX_FINDINGS:
            self.findings = fewer(self.findings)
        if batch.salvaged:
            self.salvaged = newest([*self.salvaged, *batch.salvaged])
        if batch.breaks:
            self.breaks = [max(*self.breaks, *batch.breaks)] if self.breaks else [max(batch.breaks)]
        for topic, count in batch.without_unit.items():
            self.without_unit[topic] = self.without_unit.get(topic, 0) + count
        self.log_start = batch.log_start or self.log_start
        self.dropped_index_timestamp = batch.dropped_index_timestamp or self.dropped_index_timestamp
        self.last_record = batch.last_record or self.last_record
        self.unproven_until = max(self.unproven_until, batch.unproven_until)
        self.untimed_until = max(self.untimed_until, batch.untimed_until)
        self.older += batch.older
        if dropped := self.older[:-MAX_OLDER]:
            self.untimed_until = max(self.untimed_until, int(dropped[-1].partition(":")[0]) + 1)
            del self.older[: len(dropped)]
        if not batch.noted or self.noted_from < 0:
            self.noted_from = batch.start if batch.noted else -1

    def copy(self) -> State:
        """An independent copy."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        copies = {name: fact.copy() for name, fact in facts.items() if isinstance(fact, dict | list)}
        return State(**{**facts, **copies})


def newest(salvaged: list[Salvaged]) -> list[Salvaged]:
    """The last :data:`MAX_SALVAGED` of each kind, in their order."""
    if len(salvaged) <= MAX_SALVAGED:
        return salvaged
    left = Counter(dict.fromkeys((KEPT, FILLED, HIDDEN), MAX_SALVAGED))
    kept = []
    for one in reversed(salvaged):
        left[one.kind] -= 1
        if left[one.kind] >= 0:
            kept.append(one)
    return kept[::-1]


def fewer(findings: list[Finding]) -> list[Finding]:
    """The newer half of :data:`MAX_FINDINGS` as they are, and before them one a kind for the older ones.

    That one says what the first of its kind said and how many it stands for, but names no queue, and between
    them may lie what is sound. What is said of the log itself stays as it is, up to a quarter of that many,
    but for stand-ins.
    """
    older, newer = findings[: -MAX_FINDINGS // 2], findings[-MAX_FINDINGS // 2 :]
    of_queues = {one.kind for one in older if one.topic is not None}
    apart = [one for one in older if one.kind not in of_queues and not one.is_stand_in]
    if len(apart) > MAX_FINDINGS // 4:
        apart = []
    else:
        older = [one for one in older if one.kind in of_queues or one.is_stand_in]
    summed: dict[tuple[str, bool], Finding] = {}
    for finding in older:
        key = finding.kind, finding.is_stand_in
        first = summed.get(key)
        if first is None:
            summed[key] = replace(finding, topic=None, queue_id=None, queue_offset=None)
        else:
            end = max(first.end, finding.end)
            summed[key] = replace(first, end=end, count=first.count + finding.count)
    return [*summed.values(), *apart, *newer]
