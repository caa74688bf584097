"""One thing that is wrong with a store: where, what comes of it, and its one remedy."""

from __future__ import annotations

from dataclasses import dataclass

from reput.errors import Fact
from reput.format.names import Queue
from reput.newer_python import StrEnum
from reput.verify.report import Difference


class Area(StrEnum):
    """What of the store it is about."""

    LOG = "log"
    QUEUE = "queue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    STORE = "store"


class Effect(StrEnum):
    """What comes of it, from bad to good."""

    BLOCKS = "blocks"  # the broker doesn't start
    UNKNOWN = "unknown"  # it decides what a start does, or what is right, and couldn't be looked at
    LOSES = "loses"  # a start takes away what is still there
    LACKS = "lacks"  # it is wrong now, and no start puts it right
    GONE = "gone"  # nothing in this store brings it back
    HEALS = "heals"  # the start puts it right
    HARMLESS = "harmless"


#: How a section of findings is called.
TITLES = {
    Effect.BLOCKS: "stops at",
    Effect.UNKNOWN: "not known",
    Effect.LOSES: "loses",
    Effect.LACKS: "wrong",
    Effect.GONE: "gone",
    Effect.HEALS: "put right by the start",
    Effect.HARMLESS: "harmless",
}


class Remedy(StrEnum):
    """Who puts it right."""

    MEND = "mend"
    BY_HAND = "by-hand"
    START = "start"
    NONE = "none"


#: What a verdict is made of: the others change nothing.
COUNTS = frozenset({Effect.BLOCKS, Effect.UNKNOWN, Effect.LOSES, Effect.LACKS, Effect.GONE})


PHYSICAL, QUEUE_OFFSET, SLOT, ORDINAL = "physical", "queue", "slot", "ordinal"
_JSON_PLACES = {
    PHYSICAL: ("physical_offset", "physical_end"),
    QUEUE_OFFSET: ("queue_offset", "queue_end"),
    SLOT: ("slot", "slot_end"),
    ORDINAL: ("ordinal", "ordinal_end"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Difference):
    """Something wrong, and what comes of it; docs/findings.md lists the kinds."""

    area: Area
    effect: Effect  # what comes of it
    remedy: Remedy  # who puts it right
    outcome: str = ""  # what a broker makes of it; "" where that goes without saying
    step: str = ""  # what is to be done by hand; "" where nothing is
    span: str | None = None  # what ``first`` and ``end`` are; None without places
    #: messages that are lost, or that nothing leads to; 0 where none is, or nobody can count them
    messages: int = 0
    offset: int | None = None  # byte offset in the file; None where it isn't about one

    @property
    def queue(self) -> Queue | None:
        """The queue, where it is about one."""
        return None if self.topic is None or self.queue_id is None else (self.topic, self.queue_id)

    @property
    def where(self) -> str:
        """Its queue and its range; "" where it has neither."""
        where = "" if self.queue is None else f"{self.topic}:{self.queue_id} "
        if self.span is not None:
            name = {PHYSICAL: "physical offset", QUEUE_OFFSET: "queueOffset", SLOT: "slot", ORDINAL: "entry"}
            place = str(self.first) if self.end <= self.first + 1 else f"{self.first} to {self.end}"
            where += f"{name[self.span]} {place}"
        return where.strip()

    @property
    def said(self) -> str:
        """What was expected and found, and what comes of it."""
        text = f"expected {self.expected}, found {self.found}" if self.expected else self.found
        return f"{text}; {self.outcome}" if self.outcome else text

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`, with area, effect and remedy."""
        facts = {
            **Fact.to_dict(self),
            "area": self.area,
            "effect": self.effect,
            "remedy": self.remedy,
            "file_offset": self.offset,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "count": self.count,
            "messages": self.messages,
            "expected": self.expected or None,
            "found": self.found,
            "outcome": self.outcome or None,
            "cause": self.cause,
            "remark": self.remark,
            "next_steps": [self.step] if self.step else [],
        }
        if self.span is not None:
            first, end = _JSON_PLACES[self.span]
            facts |= {first: self.first, end: self.end}
        return facts

    def __str__(self) -> str:
        where, many = self.where, f" ({self.count:,})" if self.count > 1 else ""
        at = "" if self.offset is None else f" at byte {self.offset}"
        lead = f"{where}{many}: " if where or many else ""
        return f"{lead}{self.said}; {self.path}{at}"
