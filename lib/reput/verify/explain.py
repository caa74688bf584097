"""From ranges to what an operator reads: file and byte, what a unit points to, and the cause."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reput.errors import Finding, StoreError
from reput.format import commitlog, javastring, names, rocksdbqueue
from reput.format.commitlog import SCHEDULE_TOPIC
from reput.format.consumequeue import PHYSICAL_OFFSET, SIZE, TAGS_CODE, UNIT_LENGTH
from reput.format.consumequeueext import FIRST_ADDRESS, MAX_ADDRESS
from reput.log.segments import open_segment
from reput.replay.selection import is_known
from reput.replay.state import QueueState
from reput.scan.reference import Frame, frame
from reput.verify.batch_files import BatchFiles
from reput.verify.batch_units import BLANK, REPEATED, BatchRange, BatchUnit
from reput.verify.batch_units import UNORDERED as UNORDERED_UNIT
from reput.verify.entries import KeyRange
from reput.verify.index_file import IndexInfo, gap_of, path_for
from reput.verify.outside import place_in, series_files
from reput.verify.plan import Plan, files_of
from reput.verify.report import INDEX, QUEUE, Difference, Note
from reput.verify.rocksdb_units import StoredRange
from reput.verify.units import (
    DANGLING,
    EXTRA,
    MISPLACED,
    MISSING,
    UNORDERED,
    WRONG_EXT,
    QueueRange,
    Unit,
    UnitRange,
)

_LMQ_PREFIX = "%LMQ%"

#: The cause where a unit knows more of a message than the log.
TAGS_LOST = "tags-lost"
#: The cause where all that differs is the time at which a delayed message is due.
DELAY_LEVELS = "delay-levels"
#: What each cause means; docs/findings.md has more about some.
REMARKS = {
    "queue-lost": "the queue has no file at all",
    "keys-lost": "the database has no key of this queue",
    "queue-file-lost": "the file is gone",
    "queue-short": "the queue ends before the log does",
    "zeroed": "nothing is written there, though the queue goes on behind it",
    "pre-blanked": "a broker took it for a place before the queue's start",
    "before-first": "places before the queue's first message in the log; no rebuild brings them back",
    "delay-tags-hashed": "tags' hashes in place of deliver times, as a 4.9 broker's recovery leaves them: "
    "delayed messages come at once",
    TAGS_LOST: "the message in the log has no tags any more: the unit, which has their hash, is kept",
    DELAY_LEVELS: "another deliver time: broker.conf has other delay levels than the broker had",
    "queue-ext": "an address in consumequeue_ext, which isn't there, or which queues of this kind don't use",
    "queue-ext-lost": "the queue has no file in consumequeue_ext",
    "queue-ext-file-lost": "the file in consumequeue_ext is gone",
    "queue-ext-broken": "no record begins there",
    "repeated-unit": "the message's unit stands there twice",
    "queue-begins-late": "the queue's files begin after its messages in the log",
    "shifted": "the units lie in other places than their messages say",
    "log-gap": "messages of this queue are missing from the log",
    "log-damaged": "it points into a part of the log that can't be read",
    "repeated-queue-offset": "two messages have this queueOffset",
    "past-log-end": "it points past the log's end",
    "before-log-start": "it points before the log's start",
    "no-message": "it points to no message's first byte",
    "other-message": "it points to another message",
    "multi-dispatch-off": "a light message queue, though broker.conf has no enableMultiDispatch=true",
    "light-queues-off": "a light message queue, though broker.conf has no enableLmq=true",
    "index-lost": "there is no index file",
    "index-short": "the index ends before the log does",
    "index-begins-late": "the index begins after the log: a broker that starts after a crash deletes "
    "the file that isn't full, and doesn't index all anew",
    "index-file-missing": "no file has the keys between {} and {}",
}


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains ranges of one store, by what is known when all has been looked at.

    Attributes:
        queues: those of the log.
        end: physical offset after the log's last message.
        damaged: [start, end) of what couldn't be read, ascending.
        holes: findings of queues whose queueOffsets have gaps or repeats.
        restarts: by topic, the physical offset where a queue of it begins anew.
    """

    plan: Plan
    queues: Mapping[tuple[str, int], QueueState]
    end: int
    damaged: Sequence[tuple[int, int]]
    holes: Sequence[Finding]
    restarts: Mapping[str, int]
    infos: Sequence[IndexInfo]

    def queue(
        self, queue: tuple[str, int], ranges: Sequence[UnitRange]
    ) -> tuple[list[Difference], list[Note]]:
        """A queue's ranges, ascending; a queue that was deleted with its topic is a note."""
        topic, queue_id = queue
        bases = files_of(self.plan.settings.root, topic, queue_id)
        state = self.queues.get(queue)
        if state is not None and not bases:
            reason = self.deleted(topic, state.end)
            if reason is not None:
                count = state.next - state.first
                text = f"{topic}:{queue_id} has no files, and {count:,} messages in the log: {reason}"
                return [], [Note("deleted-queue", text, topic, queue_id, count)]
        last = max((one.end for one in ranges), default=0)
        return [
            self._record(queue, one)
            if one.kind in (DANGLING, WRONG_EXT)
            else self._unit(queue, one, bases, state, one.end == last)
            for one in ranges
        ], []

    def stored(
        self,
        queue: tuple[str, int],
        one: StoredRange,
        database: Path,
        due: int | None,
        *,
        is_lost: bool,
    ) -> Difference:
        """A range of a queue in a database.

        Args:
            due: queueOffset after the queue's last message; None where the log has none.
            is_lost: the database has no key of the queue.
        """
        found, cause = _plainly(one.found), self._odd(queue, one)
        if one.kind == MISSING:
            if is_lost:
                cause = "keys-lost"
            elif cause is None and one.end == due:
                cause = "queue-short"
        elif isinstance(one.found, rocksdbqueue.Unit) and (one.kind == EXTRA or one.field == "message"):
            target, said = self._target(Unit(*one.found[:3]))
            found += f" ({said})"
            cause = target if cause is None or target == "log-damaged" else cause
            if queue[0].startswith(_LMQ_PREFIX) and not self.plan.settings.rocksdb.lmq:
                cause = "light-queues-off"
        elif one.field == "tagsCode" and queue[0] == SCHEDULE_TOPIC.decode():
            cause = DELAY_LEVELS
        expected = _plainly(one.expected)
        return replace(of_range(queue, one, (database, 0), expected, found, cause), offset=None)

    def _record(self, queue: tuple[str, int], one: UnitRange) -> Difference:
        """Where an address leads to the wrong thing."""
        settings = self.plan.settings
        directory = names.queue_ext_directory(settings.root, *queue)
        file_size = settings.recovery.queue_ext_file_size
        place = place_in(directory, file_size, one.found.tags - FIRST_ADDRESS)
        cause = None
        if one.kind == DANGLING:
            files = series_files(directory, queue, file_size).files
            lost = "queue-ext-file-lost" if files else "queue-ext-lost"
            cause = lost if one.field == "file" else "queue-ext-broken"
        wanted = f"a record of tagsCode {0 if one.expected is None else one.expected.tags}"
        found = "no such file" if one.field == "file" else "none"
        if one.record is not None:
            wanted, found = map(str, one.record)
        return of_range(queue, one, place, wanted, found, cause)

    def batch(self, queue: tuple[str, int], one: BatchRange, files: BatchFiles) -> Difference:
        """A range of a batch queue."""
        settings, cause = self.plan.settings, self._batch_cause(one, files)
        place = batch_place(settings.root, settings.recovery.batch_queue_file_size, queue, one)
        found = "nothing" if one.found is None else str(one.found)
        expected = "nothing" if one.expected is None else str(one.expected)
        if one.kind == EXTRA and one.found is not None:
            found += f" ({self._target(_plain_unit(one.found))[1]})"
        elif one.kind == UNORDERED_UNIT:
            expected = "a unit of a later message than those before"
        elif one.kind == BLANK:
            expected = "a unit"
        return of_range(queue, one, place, expected, found, cause)

    def _batch_cause(self, one: BatchRange, files: BatchFiles) -> str | None:
        if one.kind == EXTRA and one.found is not None:
            return REPEATED if one.field == REPEATED else self._target(_plain_unit(one.found))[0]
        if one.kind == MISSING:
            if not files.count:
                return "queue-lost"
            if one.position > files.greatest:
                return "queue-short"
            if one.position < files.least:
                return "queue-begins-late"
            return "zeroed" if files.blanks else None
        return "zeroed" if one.kind == BLANK else None

    def deleted(self, topic: str, end: int) -> str | None:
        """Why a queue, whose last message ends at a physical offset, may be gone; None if it mayn't."""
        if self.restarts.get(topic, -1) >= end:
            return "the topic was deleted and created again since"
        known = self.plan.known
        if known is not None and not is_known(topic, known):
            return "config/topics.json doesn't name the topic, so it was deleted"
        return None

    def _unit(
        self,
        queue: tuple[str, int],
        one: UnitRange,
        bases: set[int],
        state: QueueState | None,
        is_last: bool,
    ) -> Difference:
        settings = self.plan.settings
        directory = names.queue_directory(settings.root, *queue)
        path, at = place_in(directory, settings.consume_queue_file_size, one.first * UNIT_LENGTH)
        field_at = {"size": SIZE, "tagsCode": TAGS_CODE}.get(one.field or "", PHYSICAL_OFFSET)
        cause = self._cause(queue, one, bases, state, one.first * UNIT_LENGTH - at, is_last)
        found = self._found(one)
        if one.kind == MISPLACED:
            found += f"; it lies at queueOffset {one.first + one.shift}"
        return of_range(queue, one, (path, at + field_at), self._expected(one), found, cause)

    def _expected(self, one: UnitRange) -> str:
        if one.kind == UNORDERED:
            return "an address above the one of the unit before"
        if one.expected is not None:
            return str(one.expected)
        if one.kind == MISSING:
            return "a unit of a message that has expired"
        return "nothing"

    def _found(self, one: UnitRange) -> str:
        is_blank = one.found.is_zero or one.found.is_pre_blank
        if not is_blank and (one.kind == EXTRA or one.field == "message"):
            return f"{one.found} ({self._target(one.found)[1]})"
        return str(one.found)

    def _cause(
        self,
        queue: tuple[str, int],
        one: UnitRange,
        bases: set[int],
        state: QueueState | None,
        base: int,
        is_last: bool,
    ) -> str | None:
        topic = queue[0]
        odd = self._odd(queue, one)
        if one.kind == MISSING:
            if not bases:
                return "queue-lost"
            if state is not None and one.first < state.first:
                return "before-first"
            if odd is not None:
                return odd
            if base not in bases and base < max(bases):
                return "queue-file-lost"
            if one.found.is_pre_blank:
                return "pre-blanked"
            at_end = state is not None and one.end == state.next
            return "queue-short" if at_end and is_last else "zeroed"
        if one.kind == UNORDERED:
            return None
        if one.kind == MISPLACED:
            return odd or "shifted"
        if one.field is not None and one.field != "message":
            if one.found.tags <= MAX_ADDRESS:
                return "queue-ext"
            if topic == SCHEDULE_TOPIC.decode() and one.field == "tagsCode":
                return "delay-tags-hashed" if one.is_hash() else DELAY_LEVELS
            return TAGS_LOST if one.field == "tagsCode" and one.has_lost_tags() else None
        if topic.startswith(_LMQ_PREFIX) and not self.plan.settings.enable_multi_dispatch:
            return "multi-dispatch-off"
        target = self._target(one.found)[0]
        return odd if odd is not None and target != "log-damaged" else target

    def _odd(self, queue: tuple[str, int], one: QueueRange) -> str | None:
        for hole in self.holes:
            if (hole.topic, hole.queue_id) != queue or hole.queue_offset is None:
                continue
            if hole.queue_offset < one.end and one.first < hole.queue_offset + hole.count:
                return "log-gap" if hole.kind == "missing-queue-offsets" else hole.kind
        return None

    def _target(self, unit: Unit) -> tuple[str, str]:
        """What a unit points to: a cause, and in words."""
        position = unit.position
        if position < self.plan.log.start:
            return "before-log-start", "before the log's start"
        if position >= self.end:
            return "past-log-end", "past the log's end"
        at = bisect_right(self.damaged, (position, 1 << 63)) - 1
        if at >= 0 and self.damaged[at][0] <= position < self.damaged[at][1]:
            return "log-damaged", "a part of the log that can't be read"
        message = self._message(position)
        if message is None:
            return "no-message", "no message begins there"
        topic, queue_id, queue_offset = message
        return "other-message", f"message {queue_offset} of {topic}:{queue_id}"

    def _message(self, position: int) -> tuple[str, int, int] | None:
        """(topic, queue id, queueOffset) of the message that begins at a physical offset."""
        segment = self.plan.log.segment_at(position)
        if segment is None:
            return None
        try:
            opened = open_segment(segment.path, segment.length)
            opened.fetch_frame(position - segment.base)
        except StoreError:
            return None
        view = opened.data.data
        found = frame(view, segment.base, position - segment.base, self.plan.settings.dialect.topic_length_v2)
        if not isinstance(found, Frame):
            return None
        topic = javastring.decode(bytes(view[slice(*found.topic)]))
        (queue_id,) = struct.unpack_from(">i", view, position - segment.base + commitlog.QUEUE_ID)
        (queue_offset,) = struct.unpack_from(">q", view, position - segment.base + commitlog.QUEUE_OFFSET)
        return topic, queue_id, queue_offset

    def missing_keys(self, keys: KeyRange) -> Difference:
        """Keys without entry."""
        infos = self.infos
        cause = remark = None
        gap = gap_of(infos, keys.first, keys.end)
        if not infos:
            cause = "index-lost"
        elif keys.first >= infos[-1].header.end_physical_offset:
            cause = "index-short"
        elif keys.end <= infos[0].header.begin_physical_offset:
            cause = "index-begins-late"
        elif gap is not None:
            cause = "index-file-missing"
            remark = REMARKS[cause].format(*(Path(one.path).name for one in gap))
        message = self._message(keys.first)
        whose = "" if message is None else f" of message {message[2]} of {message[0]}:{message[1]}"
        directory = self.plan.settings.root / names.INDEX
        nowhere = infos[-1].path if infos else str(directory)
        return Difference(
            "missing-entry",
            str(directory) if cause == "index-file-missing" else path_for(infos, keys.first, nowhere),
            INDEX,
            f"an entry of hash {keys.hash}{whose}",
            "none",
            first=keys.first,
            end=keys.end,
            count=keys.count,
            cause=cause,
            remark=remark or _remark(cause),
        )


def _plainly(found: rocksdbqueue.Unit | bytes | None) -> str:
    """What a database has, in words."""
    if found is None:
        return "nothing"
    if isinstance(found, bytes):
        return f"{len(found)} bytes"
    return f"{Unit(*found[:3])}, storeTimestamp {found.timestamp}"


def _plain_unit(unit: BatchUnit) -> Unit:
    return Unit(unit.position, unit.size, unit.tags)


def of_range(
    queue: tuple[str, int],
    one: QueueRange,
    place: tuple[Path, int],
    expected: str,
    found: str,
    cause: str | None = None,
) -> Difference:
    """A range of a queue that differs, told by what stands at its begin."""
    path, offset = place
    return Difference(
        one.kind,
        str(path),
        QUEUE,
        expected,
        found,
        first=one.first,
        end=one.end,
        count=one.count,
        offset=offset,
        topic=queue[0],
        queue_id=queue[1],
        cause=cause,
        remark=_remark(cause),
    )


def _remark(cause: str | None) -> str | None:
    return None if cause is None else REMARKS[cause]


def batch_place(root: Path, file_size: int, queue: tuple[str, int], one: BatchRange) -> tuple[Path, int]:
    """The file in which a range of a batch queue begins, and where there; the directory if none is known."""
    directory = names.batch_queue_directory(root, *queue)
    return (directory, 0) if one.place < 0 else place_in(directory, file_size, one.place)
