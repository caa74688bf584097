"""What a range of differing units means: what it points to, the cause, and the cause in words."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reput.errors import Finding, StoreError
from reput.format import commitlog, javastring
from reput.format.names import Queue
from reput.log.segments import open_segment
from reput.log.walk import Frame, frame
from reput.replay.state import QueueState
from reput.replay.target import is_known
from reput.verify.plan import Plan
from reput.verify.report import QUEUE, Difference
from reput.verify.units import Range

#: The cause where a unit leads to what a scan has skipped.
LOG_DAMAGED = "log-damaged"
#: The cause where a unit knows more of a message than the log.
TAGS_LOST = "tags-lost"
#: The cause where all that differs is the time at which a delayed message is due.
DELAY_LEVELS = "delay-levels"
#: Causes of a unit in the place of a message that nothing leads to. What leads to damage stood for another.
LEADS_AWAY = frozenset({"before-log-start", "past-log-end", "no-message", "other-message"})
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
    LOG_DAMAGED: "it points into a part of the log that can't be read",
    "repeated-queue-offset": "two messages have this queueOffset",
    "altered-message": "a byte of the message's topic, queue or queueOffset in the log isn't what it was",
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
    """What is known of the log, and of the store, when all has been looked at."""

    plan: Plan
    queues: Mapping[Queue, QueueState]  # those of the log
    end: int  # physical offset after the log's last message
    damaged: Sequence[tuple[int, int]]  # [start, end) of what couldn't be read, ascending
    holes: Sequence[Finding]  # findings of queues whose queueOffsets have gaps or repeats
    restarts: Mapping[str, int]  # by topic, the physical offset where a queue of it begins anew

    def deleted(self, topic: str, end: int) -> str | None:
        """Why a queue, whose last message ends at a physical offset, may be gone; None if it mayn't."""
        if self.restarts.get(topic, -1) >= end:
            return "the topic was deleted and created again since"
        known = self.plan.known
        if known is not None and not is_known(topic, known):
            return "config/topics.json doesn't name the topic, so it was deleted"
        return None

    def odd(self, queue: Queue, one: Range) -> str | None:
        """What is odd about the messages of such a range in the log itself."""
        for hole in self.holes:
            if (hole.topic, hole.queue_id) != queue or hole.queue_offset is None:
                continue
            if hole.queue_offset < one.end and one.first < hole.queue_offset + hole.count:
                return "log-gap" if hole.kind == "missing-queue-offsets" else hole.kind
        return None

    def target(self, position: int) -> tuple[str, str]:
        """What lies at a physical offset that a unit points to: a cause, and in words."""
        if position < self.plan.log.start:
            return "before-log-start", "before the log's start"
        if position >= self.end:
            return "past-log-end", "past the log's end"
        at = bisect_right(self.damaged, (position, 1 << 63)) - 1
        if at >= 0 and self.damaged[at][0] <= position < self.damaged[at][1]:
            return LOG_DAMAGED, "a part of the log that can't be read"
        message = self.message(position)
        if message is None:
            return "no-message", "no message begins there"
        topic, queue_id, queue_offset = message
        return "other-message", f"message {queue_offset} of {topic}:{queue_id}"

    def message(self, position: int) -> tuple[str, int, int] | None:
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


def of_range(
    queue: Queue, one: Range, place: tuple[Path, int | None], said: tuple[str, str], cause: str | None
) -> Difference:
    """A range of a queue that differs, told by what is expected and found at its begin.

    ``place`` is a file and the byte offset there, None in a database.
    """
    return Difference(
        one.kind,
        str(place[0]),
        QUEUE,
        *said,
        first=one.first,
        end=one.end,
        count=one.count,
        offset=place[1],
        topic=queue[0],
        queue_id=queue[1],
        cause=cause,
        remark=None if cause is None else REMARKS[cause],
    )
