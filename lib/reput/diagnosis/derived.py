"""What queues, index and checkpoint lack against the whole log, as findings beside those of a start.

Of what both know, one finding is left: that of the comparison, for it has file, offset and figures. What a
start puts right by itself is told from what it leaves by what it is foretold to make (:class:`Plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reput.broker.snapshot import Snapshot
from reput.config.settings import StoreSettings
from reput.derived.files import MISSING_SEGMENTS
from reput.derived.plain import QueueModel
from reput.diagnosis.start import LOG_CUTS, QUEUE_CUT, mending
from reput.diagnosis.verdict import (
    ORDINAL,
    PHYSICAL,
    QUEUE_OFFSET,
    SLOT,
    Area,
    Effect,
    Finding,
    Remedy,
)
from reput.format import commitlog
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from reput.log.segments import MISTAKEN
from reput.recovery.plan import Plan
from reput.verify.explain import DELAY_LEVELS, TAGS_LOST
from reput.verify.report import (
    CHECKPOINT,
    DIFFERS,
    INDEX,
    LOG,
    ONLY_FIRST,
    ONLY_SECOND,
    QUEUE,
    Difference,
    Report,
)

#: Findings of a scan that are damage; what is odd about a message isn't.
TORN_TAIL = "torn-tail"
#: A file that isn't what it should be, by the names that a load and a comparison give it.
_OF_A_FILE = frozenset(
    {
        "wrong-length",
        "stray-file",
        "stray-directory",
        "stray-index-file",
        "index-directory",
        "index-length",
        "not-a-directory",
        "not-a-file",
    }
)
_FILE_IS_WRONG = frozenset(
    {
        "segment-length",
        "not-a-file",
        "queue-file-length",
        "queue-file-name",
        "queue-stray-directory",
        "index-file-length",
        "index-stray-directory",
        "file-length",
    }
)
#: Findings of a scan whose ranges hold nothing that can be read, and that records can stand in for.
_CLOSED = frozenset(
    {
        "bad-size",
        "bad-magic",
        "bad-physical-offset",
        "bad-lengths",
        "unwritten-range",
        "segment-length",
        MISSING_SEGMENTS,
    }
)
_LEAST = commitlog.MIN_RECORD_LENGTH + 1
#: What a start leaves wrong of queues and index; where the comparison finds nothing, the start makes it so.
_BY_THE_START = frozenset({"missing-unit", "misplaced-unit", "missing-entry", "queue-begins-late"})


def merged(
    start: list[Finding],
    report: Report,
    snapshot: Snapshot | None,
    plan: Plan | None,
    settings: StoreSettings,
) -> Iterator[Finding]:
    """All findings, each once.

    Args:
        start: what was found about the start.
        report: the comparison with the whole log.
        snapshot, plan: the store as a start finds it, and what it does; None where that isn't foretold.
    """
    healing = _Healing(plan)
    # Files that are mistaken for the log's are known from the start, where one can be made.
    found = (one for one in report.findings if snapshot is None or one.kind not in MISTAKEN)
    compared = [_of_difference(one, settings, healing, snapshot) for one in found]
    deleted = {(one.topic, one.queue_id) for one in report.notes if one.kind == "deleted-queue"}
    compared = [
        replace(one, effect=Effect.HARMLESS, messages=0, outcome="the topic was deleted")
        if one.kind == "missing-queue-offsets" and one.queue in deleted
        else one
        for one in compared
    ]
    start, compared = _joined_cuts(start, compared)
    start = [one for one in start if not _is_said(one, start, compared, plan)]
    for one in start:
        # Right as it lies there, and wrong after the start.
        is_made = plan is not None and one.effect is Effect.LACKS and one.kind in _BY_THE_START
        yield replace(one, effect=Effect.LOSES) if is_made else one
    said = {(one.path, one.kind) for one in start}
    files = {one.path for one in start if one.kind in _OF_A_FILE}
    yield from (
        one
        for one in compared
        if (one.path, one.kind) not in said and not (one.path in files and one.kind in _FILE_IS_WRONG)
    )


class _Healing:
    """What a start puts right."""

    def __init__(self, plan: Plan | None) -> None:
        self._plan = plan if plan is not None and plan.is_whole else None
        self._broken = set()
        if self._plan is not None:
            found = (*self._plan.losses, *self._plan.unrepaired)
            self._broken = {one.queue if one.queue is not None else one.kind for one in found}

    def heals(self, one: Difference) -> bool:
        """Whether what differs now is right after the start."""
        plan = self._plan
        if plan is None:
            return False
        if one.area == QUEUE:
            return self._heals_queue(plan, one)
        if one.area == INDEX:
            return self._heals_index(plan, one)
        if one.area == CHECKPOINT:
            return one.kind == "checkpoint-ahead" and "checkpoint-ahead" not in self._broken
        return one.kind == TORN_TAIL and not (plan.snapshot.clean or self.keeps(one))

    def keeps(self, one: Difference) -> bool:
        """Whether the start takes a torn end for a message."""
        plan = self._plan
        return plan is not None and one.kind == TORN_TAIL and one.first < plan.prediction.log_end

    def _heals_queue(self, plan: Plan, one: Difference) -> bool:
        queue = (str(one.topic), one.queue_id or 0)
        model = plan.prediction.queues.get(queue)
        if one.kind == "extra-unit" and model is not None:
            return one.first >= model.max_offset and all(loss.queue != queue for loss in plan.unrepaired)
        if one.kind != "missing-unit" or queue in self._broken or not isinstance(model, QueueModel):
            return False
        begin = model.recovered_end // UNIT_LENGTH
        return begin <= one.first and one.end <= model.max_offset and model.puts_in_place

    def _heals_index(self, plan: Plan, one: Difference) -> bool:
        if self._broken & {"missing-entry", "index-dropped", "index-torn", "index-ahead"}:
            return False
        if Path(one.path) in plan.prediction.index_dropped:
            return True
        if one.kind != "missing-entry":
            return False
        dropped = plan.prediction.index_dropped
        there = [entry for entry in plan.snapshot.index if entry.path not in dropped]
        before = [entry.header for entry in there if entry.header.index_count > 1]
        after = [file.header for file in plan.prediction.index.files if file.header.index_count > 1]
        places = one.first, max(one.end - 1, one.first)
        return not any(_covers(before, place) for place in places) and all(
            _covers(after, place) for place in places
        )


def _covers(headers: Iterable[IndexHeader], place: int) -> bool:
    return any(one.begin_physical_offset <= place <= one.end_physical_offset for one in headers)


def torn_end(found: Iterable[Difference]) -> int:
    """Physical offset of the torn message that the log ends with; -1 where none is."""
    return next((one.first for one in found if one.kind == TORN_TAIL and not one.is_stand_in), -1)


def closable(found: Iterable[Difference], segment_size: int) -> list[tuple[int, int]]:
    """Ranges of the log, physical offsets, half open, that records can stand in for."""
    return [(one.first, one.end) for one in found if _is_closable(one, segment_size)]


def _is_closable(one: Difference, segment_size: int) -> bool:
    if one.area != LOG or one.kind not in _CLOSED or one.is_stand_in:
        return False
    if one.kind in ("segment-length", MISSING_SEGMENTS):
        return True
    # What is too small for a record has to reach up to its segment's end, for the closing one.
    return one.end - one.first >= _LEAST or (
        one.end % segment_size == 0 and one.end - one.first >= commitlog.BLANK_LENGTH
    )


def _is_lost(one: Difference) -> bool:
    """Whether its units are all that is left of messages in a part of the log that can't be read."""
    return one.kind == "extra-unit" and one.cause == "log-damaged"


#: Nothing in a store shows them; units made by others would be wrong.
GIVE_DELAY_LEVELS = "Give the broker's broker.conf, for its messageDelayLevel: -c FILE"


def _of_difference(
    one: Difference, settings: StoreSettings, healing: _Healing, snapshot: Snapshot | None
) -> Finding:
    remedy, step = mending(settings)
    effect, messages, outcome = Effect.LACKS, 0, ""
    if one.area == LOG:
        effect, remedy, step = Effect.GONE, Remedy.NONE, ""
        if one.is_stand_in:
            effect = Effect.HARMLESS
            outcome = "damage that was closed: a broker passes over it"
        elif one.kind == "missing-queue-offsets":
            messages = one.count
        elif snapshot is not None and _is_closable(one, snapshot.segment_size):
            effect, outcome = Effect.LACKS, "a start that comes by here cuts the log"
            remedy, step = mending(settings, one.path)
        elif healing.keeps(one):
            effect, outcome = Effect.LACKS, "a start takes it for a message"
            remedy, step = mending(settings, one.path)
    if one.cause == TAGS_LOST:
        effect, remedy, step = Effect.GONE, Remedy.NONE, ""
    elif one.cause == DELAY_LEVELS and settings.broker_conf is None:
        remedy, step = Remedy.BY_HAND, GIVE_DELAY_LEVELS
    elif healing.heals(one):
        effect, remedy, step = Effect.HEALS, Remedy.START, ""
        outcome = "the start puts it right"
    elif one.area == QUEUE and (one.kind == "missing-unit" or _is_lost(one)):
        messages = one.count
    return judged(one, effect, remedy, outcome=outcome, step=step, messages=messages)


def judged(one: Difference, effect: Effect, remedy: Remedy, **more: Any) -> Finding:
    """What differs, with what comes of it."""
    facts = asdict(one) | {"area": Area(one.area), "span": _span(one)}
    return Finding(**facts, effect=effect, remedy=remedy, **more)


def _span(one: Difference) -> str | None:
    """What its ``first`` and ``end`` are."""
    if one.end <= one.first and one.area != LOG:
        return None
    if one.area == QUEUE:
        return QUEUE_OFFSET
    if one.area == INDEX and one.kind not in ("missing-entry", ONLY_FIRST, ONLY_SECOND, DIFFERS):
        return SLOT if one.kind == "index-slot" else ORDINAL
    return PHYSICAL


def _joined_cuts(start: list[Finding], compared: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Where a start cuts the log at damage, that is one finding: the damage, and what goes with it.

    The segments that a start deletes behind a cut go with the cut, too.
    """
    cuts = [one for one in start if one.kind in LOG_CUTS]
    if not cuts:
        return start, compared
    first = cuts[0]
    messages = sum(one.messages for one in cuts)
    deleted = sum(one.kind == "segment-deleted" for one in cuts[1:])
    outcome = first.found + (f", and {deleted} segments behind are deleted" if deleted else "")
    spanning = [
        one
        for one in compared
        if one.area is Area.LOG and one.first <= first.first <= max(one.end, one.first)
    ]
    damage = max(spanning, key=lambda one: one.first, default=None)  # that which begins there comes first
    rest = [one for one in start if one not in cuts]
    if damage is None:
        return [replace(first, messages=messages, found=outcome), *rest], compared
    joined = replace(
        damage,
        effect=first.effect,
        remedy=first.remedy,
        step=first.step,
        messages=messages,
        outcome=f"a start cuts the log here: {outcome}",
    )
    return rest, [joined if one is damage else one for one in compared]


def _is_said(one: Finding, start: list[Finding], compared: list[Finding], plan: Plan | None) -> bool:
    """Whether the comparison says better what was found about the start, or that there is nothing."""
    if one.effect is not Effect.LACKS or one.kind == QUEUE_CUT or one.kind in _OF_A_FILE:
        return False
    if one.queue is not None:
        known = any(other.queue == one.queue for other in compared)
        return known or (plan is not None and not plan.changes_queue(one.queue))
    if one.area is Area.INDEX:
        known = any(other.area is Area.INDEX for other in compared)
        known = known or (one.kind == "missing-entry" and any(x.kind == "index-dropped" for x in start))
        if known or plan is None:
            return known
        changes = plan.prediction.index.added or plan.prediction.index_dropped
        return not changes and all(problem.path != one.path for problem in plan.snapshot.problems)
    if one.kind == "missing-queue-files":
        return any(other.area is Area.QUEUE for other in compared)
    return False
