"""What the dump of a queue consists of, whatever kind of queue it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reput.derived.ext import ExtRecord
from reput.dump.damage import Damage
from reput.dump.places import QueuePlace
from reput.format import commitlog
from reput.format.consumequeueext import MAX_ADDRESS

UNWRITTEN, ZEROS = "unwritten", "zeros"


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """One unit."""

    place: QueuePlace  # its queue
    queue_offset: int  # by its place in the file; of a batch the first message's, as it says itself
    position: int  # position, size, tags_code: as stored
    size: int
    tags_code: int
    repeats: bool = False  # the next unit leads to the same message: this one stands in for one that was lost
    #: of a batch queue: storeTimestamp in ms, messages, compacted offset
    batch: tuple[int, int, int] | None = None
    #: what the tagsCode leads to; None where it is no address, or leads to nothing
    ext: ExtRecord | None = None
    stored: int | None = None  # storeTimestamp in ms, which units in RocksDB have

    @property
    def is_address(self) -> bool:
        """Whether the tagsCode is an address in consumequeue_ext."""
        return self.batch is None and self.stored is None and self.tags_code <= MAX_ADDRESS

    @property
    def delivery(self) -> int | None:
        """In the topic of delayed messages: when this one is due, ms."""
        code = self.ext.tags_code if self.ext is not None else self.tags_code
        is_delayed = self.place.topic == commitlog.SCHEDULE_TOPIC.decode()
        return code if is_delayed and code > 0x7FFFFFFF else None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready, in the names of a message's columns."""
        facts: dict[str, object] = {
            "type": "unit",
            "topic": self.place.topic,
            "queue_id": self.place.queue_id,
            "queue_offset": self.queue_offset,
            "physical_offset": self.position,
            "size": self.size,
            "tags_code": self.tags_code,
        }
        if self.batch is not None:
            timestamp, messages, compacted = self.batch
            facts |= {"store_timestamp": timestamp, "messages": messages, "compacted_offset": compacted}
        if self.stored is not None:
            facts["store_timestamp"] = self.stored
        if self.is_address:
            facts["ext"] = None if self.ext is None else self.ext.to_dict()
        if self.delivery is not None:
            facts["deliverTimestamp"] = self.delivery
        return {**facts, "repeats_next": True} if self.repeats else facts


@dataclass(frozen=True, slots=True)
class Run:
    """Places in a queue that hold no unit, and needn't."""

    place: QueuePlace  # the queue
    #: ``pre-blank``: before the first message; ``unwritten``: zeros up to the queue's end; ``zeros``:
    #: up to the end of what was asked for, so that it isn't known what follows
    kind: str
    start: int  # start, end: queueOffsets, half open; of a batch queue numbers of units
    end: int

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "type": self.kind,
            "topic": self.place.topic,
            "queue_id": self.place.queue_id,
            "queue_offset": self.start,
            "queue_end": self.end,
        }


Event = QueueUnit | Run | Damage


@dataclass(slots=True)
class Open:
    """A run that may go on in the next chunk: of pre-blanks, or of zeros that may turn out to be a hole."""

    kind: int  # what its units are; zeros, unless the queue has others
    start: int  # start, end: queueOffsets, half open; of a batch queue numbers of units
    end: int
    path: Path  # the file in which it begins
    offset: int  # byte of that file where it begins


def damage(
    place: QueuePlace,
    kind: str,
    path: Path,
    offset: int,
    end: int,
    *,
    expected: str,
    found: str,
    outcome: str = "a broker's start ends the queue here",
    queue_offsets: tuple[int, int] | None = None,
) -> Damage:
    """What is damaged in a file of a queue.

    Args:
        offset, end: bytes of the file, half open.
        queue_offsets: of the places concerned, half open; None in a batch queue, whose units say theirs.
    """
    first, after = queue_offsets or (None, None)
    where = place.topic, place.queue_id, first
    return Damage(kind, str(path), offset, end, expected, found, outcome, *where, queue_end=after)


def file_length(place: QueuePlace, path: Path, size: int, length: int) -> Damage:
    """A file that ends within a unit of ``length`` bytes."""
    return damage(
        place,
        "file-length",
        path,
        size - size % length,
        size,
        expected=f"a multiple of {length} bytes",
        found=f"{size} bytes",
        outcome="the last ones are no whole unit, and were passed over",
    )
