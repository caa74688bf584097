"""What a diagnosis comes to: one of five, with one exit code each, and one line that a pager carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reput.diagnosis.finding import COUNTS, Area, Effect, Finding, Remedy
from reput.newer_python import StrEnum
from reput.words import counted


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


def verdict(
    store: str, release: str, findings: Sequence[Finding], *, filled: int, unread: str, running: bool
) -> Verdict:
    """What findings come to.

    Args:
        store: its directory or URL.
        release: that is going to start.
        findings: all.
        filled: messages that were lost before, and whose places are filled.
        unread: what wasn't read of the store, in words; "" where all was compared.
        running: a broker runs on the store.
    """
    left = [one for one in findings if one.effect in COUNTS]
    sort = _sort(left)
    said = {
        Sort.START: lambda: _nothing_wrong(release, filled, running=running),
        Sort.START_WITH_LOSS: lambda: _gone(left),
        Sort.MEND: lambda: "; ".join(_wrong(left, release)),
        Sort.NO_START: lambda: _stops(left, release),
        Sort.UNKNOWN: lambda: _unknown(left),
    }[sort]()
    words = WORDS[sort]
    if running and sort is Sort.START:
        words = "let it run"
    return Verdict(sort, store, words, f"{said}. Not read: {unread}" if unread else said)


def of_two(store: str, against: str, findings: Sequence[Finding]) -> Verdict:
    """What a comparison with another store comes to; it doesn't say which of them is right."""
    if findings:
        said = f"it isn't the same as {against} ({_kinds(findings)})"
        return Verdict(Sort.UNKNOWN, store, WORDS[Sort.UNKNOWN], said)
    return Verdict(Sort.SAME, store, f"the same as {against}", "nothing that was compared differs")


def _sort(left: Sequence[Finding]) -> Sort:
    effects = {one.effect for one in left}
    if Effect.BLOCKS in effects:
        return Sort.NO_START
    if Effect.UNKNOWN in effects:
        return Sort.UNKNOWN
    if effects & {Effect.LOSES, Effect.LACKS}:
        return Sort.MEND
    return Sort.START_WITH_LOSS if Effect.GONE in effects else Sort.START


def _nothing_wrong(release: str, filled: int, *, running: bool) -> str:
    text = f"nothing is wrong for RocketMQ {release}"
    if running:
        text = f"nothing is wrong, and RocketMQ {release} is running on it"
    lost = counted(filled, "message")
    return f"{text}; the places of {lost} lost earlier are filled" if filled else text


def _gone(left: Sequence[Finding]) -> str:
    messages = sum(one.messages for one in left)
    what = counted(messages, "message") if messages else _kinds(left)
    one = messages == 1 or (not messages and len(left) == 1)
    return f"{what} {_are_gone(one=one)}, and nothing more can be done here"


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
    return sum(one.messages for one in findings if one.effect is Effect.GONE or one.kind == "extra-unit")


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
