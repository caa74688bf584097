"""What is wrong with a store, and what a diagnosis comes to: one of five, with one exit code each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reput.errors import Fact, Result
from reput.format.names import Queue
from reput.newer_python import StrEnum
from reput.verify.report import NOTHING_IN_COMMON, Difference
from reput.words import counted


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
            "messages": self.messages,
            "expected": self.expected or None,
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


class Sort(StrEnum):
    """The five, in the order of their exit codes."""

    START = "start"
    START_WITH_LOSS = "start-with-loss"
    MEND = "mend"
    NO_START = "no-start"
    UNKNOWN = "unknown"
    #: Of a comparison with another store, which says nothing of a start.
    SAME = "same"


#: 2 is for a wrong call, and for a failure of reput itself: it says nothing of the store.
EXIT_CODES = {
    Sort.START: 0,
    Sort.START_WITH_LOSS: 1,
    Sort.MEND: 3,
    Sort.NO_START: 4,
    Sort.UNKNOWN: 5,
    Sort.SAME: 0,
}
#: What to do, in few words.
WORDS = {
    Sort.START: "start it",
    Sort.START_WITH_LOSS: "start it",
    Sort.MEND: "mend it first",
    Sort.NO_START: "it will not start",
    Sort.UNKNOWN: "can't be told",
}
_AREAS = {
    Area.LOG: "the log is damaged",
    Area.QUEUE: "queues are wrong",
    Area.INDEX: "the index is wrong",
    Area.CHECKPOINT: "the checkpoint is wrong",
    Area.CONFIG: "settings are missing",
    Area.STORE: "files are in the way",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first line of a diagnosis."""

    sort: Sort  # for programs
    store: str  # its directory or URL
    words: str  # what to do about it, in a few words
    said: str  # why

    @property
    def text(self) -> str:
        """The line."""
        return f"{self.store}: {self.words}: {self.said}"

    @property
    def exit_code(self) -> int:
        """By :data:`EXIT_CODES`."""
        return EXIT_CODES[self.sort]


class Judged(Result):
    """A result that has a verdict, with the exit code of that."""

    __slots__ = ()

    @property
    def exit_code(self) -> int:
        """See :data:`EXIT_CODES`."""
        of: Any = self
        return int(of.verdict.exit_code)

    def to_dict(self) -> dict[str, object]:
        """The verdict, and the facts."""
        of: Any = self
        return {"verdict": of.verdict.sort, "summary": of.verdict.text, **Result.to_dict(self)}


def verdict(
    store: str,
    release: str,
    findings: Sequence[Finding],
    *,
    filled: int,
    otherwise: str,
    unread: str,
    running: bool,
) -> Verdict:
    """What findings come to.

    Args:
        store: its directory or URL.
        release: that is going to start.
        filled: messages that are lost, and whose places are filled.
        otherwise: what the store shows of another release, in words; "" where it shows none.
        unread: what wasn't read of the store, in words; "" where all was compared.
        running: a broker runs on the store.
    """
    left = [one for one in findings if one.effect in COUNTS]
    sort = _sort(left)
    said = {
        Sort.START: lambda: _nothing_wrong(release, running=running),
        Sort.START_WITH_LOSS: lambda: _gone(left),
        Sort.MEND: lambda: "; ".join(_wrong(left, release)),
        Sort.NO_START: lambda: _stops(left, release),
        Sort.UNKNOWN: lambda: _unknown(left),
    }[sort]()
    if filled and sort in (Sort.START, Sort.START_WITH_LOSS):
        said += f"; {_filled(filled)}"
    if otherwise:
        said += f". But the store shows {otherwise}"
    words = WORDS[sort]
    if running and sort is Sort.START:
        words = "let it run"
    return Verdict(sort, store, words, f"{said}. Not read: {unread}" if unread else said)


def of_two(store: str, against: str, findings: Sequence[Finding], *, unread: str) -> Verdict:
    """What a comparison with another store comes to; it doesn't say which of them is right.

    ``unread`` is what wasn't compared, in words; "" where all was.
    """
    if findings and findings[0].kind == NOTHING_IN_COMMON:
        both = f"{findings[0].expected} and {findings[0].found}"
        said = f"nothing of {against} could be compared, for the logs have no part in common: {both}"
        return Verdict(Sort.UNKNOWN, store, WORDS[Sort.UNKNOWN], said)
    if findings:
        said = f"it isn't the same as {against} ({_kinds(findings)})"
        return Verdict(Sort.UNKNOWN, store, WORDS[Sort.UNKNOWN], said)
    said = "nothing that was compared differs"
    said = f"{said}. Not read: {unread}" if unread else said
    return Verdict(Sort.SAME, store, f"the same as {against}", said)


def _sort(left: Sequence[Finding]) -> Sort:
    effects = {one.effect for one in left}
    if Effect.BLOCKS in effects:
        return Sort.NO_START
    if Effect.UNKNOWN in effects:
        return Sort.UNKNOWN
    if effects & {Effect.LOSES, Effect.LACKS}:
        return Sort.MEND
    return Sort.START_WITH_LOSS if Effect.GONE in effects else Sort.START


def _nothing_wrong(release: str, *, running: bool) -> str:
    if running:
        return f"nothing is wrong, and RocketMQ {release} is running on it"
    return f"nothing is wrong for RocketMQ {release}"


def _filled(messages: int) -> str:
    if messages == 1:
        return "the place of 1 message that is lost is filled"
    return f"the places of {counted(messages, 'message')} that are lost are filled"


def _gone(left: Sequence[Finding]) -> str:
    messages = sum(one.messages for one in left)
    if not messages:
        return f"what is damaged is gone for good ({_kinds(left)})"
    return f"{counted(messages, 'message')} {_are_gone(one=messages == 1)}"


def _are_gone(*, one: bool) -> str:
    return "is gone for good" if one else "are gone for good"


def _wrong(left: Sequence[Finding], release: str) -> Iterable[str]:
    loses = [one for one in left if one.effect is Effect.LOSES]
    messages = sum(one.messages for one in loses)
    if messages:
        yield f"a start of RocketMQ {release} loses {counted(messages, 'message')}"
    elif loses:
        yield f"a start of RocketMQ {release} loses data ({_kinds(loses)})"
    lacks = [one for one in left if one.effect is Effect.LACKS]
    unreached = sum(one.messages for one in lacks if one.area is Area.QUEUE and one.kind != "extra-unit")
    if unreached:
        yield f"no queue leads to {counted(unreached, 'message')}"
    for area, said in _AREAS.items():
        missing = area is Area.QUEUE
        kinds = [
            one
            for one in lacks
            if one.area is area and not (missing and one.messages and one.kind != "extra-unit")
        ]
        if kinds:
            yield f"{said} ({_kinds(kinds)})"
    gone = lost(left)
    if gone:
        yield f"{counted(gone, 'message')} {_are_gone(one=gone == 1)}"


def lost(findings: Iterable[Finding]) -> int:
    """How many messages nothing in the store brings back; units of some lead into damage of the log."""
    gone = [one for one in findings if one.effect is Effect.GONE or one.kind == "extra-unit"]
    # A queue in files and in RocksDB is one.
    places: dict[tuple[object, int, int], int] = {}
    for number, one in enumerate(gone):
        place = one.queue or number, one.first, one.end
        places[place] = max(places.get(place, 0), one.messages)
    return sum(places.values())


def _stops(left: Sequence[Finding], release: str) -> str:
    stops = [one for one in left if one.effect is Effect.BLOCKS]
    can = (
        "" if all(one.remedy is Remedy.MEND for one in stops) else ", and not all of that can be mended here"
    )
    return f"RocketMQ {release} stops at {_kinds(stops)}{can}"


def _unknown(left: Sequence[Finding]) -> str:
    first = next(one for one in left if one.effect is Effect.UNKNOWN)
    return f"{first.kind}: {first.said}"


def _kinds(found: Iterable[Finding]) -> str:
    """Each kind once, with how often it was found."""
    kinds = Counter(one.kind for one in found)
    return ", ".join(kind if number == 1 else f"{number:,} {kind}" for kind, number in kinds.items())
