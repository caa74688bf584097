"""What `reput check`, `reput verify` and a reading of the log say, as rows of one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from reput.broker.problem import Problem
from reput.broker.snapshot import Snapshot
from reput.errors import Finding, ReputError
from reput.recovery.check import check_snapshot
from reput.recovery.verdict import loses
from reput.report.facts import ATTENTION, BROKEN, SOUND, Check, Found
from reput.words import counted

if TYPE_CHECKING:
    from reput.verify import Report

CHECK, LOG, QUEUES, VERIFY = "reput check", "the log itself", "queues beside the log", "reput verify"

#: Findings about the log that mean no lost message, and no file that keeps a broker from starting.
_MILD = frozenset(
    {"torn-tail", "uncommitted-entries", "lmq-counts", "bad-lmq-offset", "unsafe-topic", "bad-queue-offset"}
)


def checked(
    snapshot: Snapshot, asks: str, heads: dict[str, bytes] | None = None
) -> tuple[Check, list[Found], tuple[str, ...]]:
    """What ``reput check`` says, and what it couldn't look at.

    ``heads`` is as for :func:`reput.recovery.check.check_snapshot`.

    Raises:
        ReputError: a file can't be read, or the segments contradict each other.
    """
    result = check_snapshot(snapshot, heads)
    found = [
        Found(
            source=CHECK,
            level=BROKEN if _is_loss(problem, snapshot) else ATTENTION,
            kind=problem.kind,
            where="keeps the broker from starting" if problem.stops else "",
            path=problem.path,
            expected=problem.expected,
            found=problem.found,
            outcome=problem.outcome,
            next=problem.next_step,
        )
        for problem in result.problems
    ]
    stops = sum(problem.stops for problem in snapshot.problems)
    if stops:
        answer = f"no: {counted(stops, 'thing')} to see to first"
    else:
        odd = "and finds nothing odd in what it could read" if result.unread else "and finds nothing odd"
        odd = f"with {counted(len(found), 'finding')}" if found else odd
        answer = f"it starts, {odd}"
    level = worst(found) or (ATTENTION if result.unread else SOUND)
    return Check(CHECK, asks, True, level, answer, len(found)), found, result.unread


def told(name: str, asks: str, answer: str, found: Sequence[Found]) -> Check:
    """What was run, and what came of it."""
    return Check(name, asks, True, worst(found) or SOUND, answer, len(found))


def worst(found: Iterable[Found]) -> str | None:
    """The level of the worst finding; None without one."""
    levels = {one.level for one in found}
    return BROKEN if BROKEN in levels else ATTENTION if levels else None


def _is_loss(problem: Problem, snapshot: Snapshot) -> bool:
    # After a clean stop no start makes a lost index anew.
    return loses(problem, clean=snapshot.clean) or (problem.kind == "no-index" and snapshot.clean)


def unreadable(error: ReputError) -> Found:
    """What keeps ``reput check`` from saying anything."""
    return Found(
        source=CHECK,
        level=ATTENTION,
        kind="unreadable",
        where="",
        path=error.path or "",
        expected=error.expected or "a file that can be read",
        found=error.found or error.problem,
        outcome=error.problem,
        next=error.next_step or "",
    )


def findings_of(source: str, findings: Iterable[Finding]) -> list[Found]:
    """Findings of a scan."""
    return [
        Found(
            source=source,
            level=ATTENTION if one.kind in _MILD else BROKEN,
            kind=one.kind,
            where=_where(one),
            path=one.path,
            expected=one.expected,
            found=one.found,
            outcome=one.outcome,
            count=one.count,
        )
        for one in findings
    ]


def _where(finding: Finding) -> str:
    where = f"log {finding.offset:,}"
    if finding.end > finding.offset:
        where += f" to {finding.end:,}"
    if finding.topic is not None:
        where += f", queue {finding.topic}:{finding.queue_id}"
    return where


def verified(report: Report, asks: str, *, log_known: bool) -> tuple[Check, list[Found]]:
    """What ``reput verify`` says.

    Args:
        log_known: what is wrong in the log was found already.
    """
    found = [
        Found(
            source=VERIFY,
            level=ATTENTION if one.kind in _MILD else BROKEN,
            kind=one.kind,
            where=_range(one.area, one.topic, one.queue_id, one.first, one.end),
            path=one.path,
            expected=one.expected,
            found=one.found,
            outcome=one.remark or "",
            count=one.count,
        )
        for one in report.findings
        if not (log_known and one.area == "log")
    ]
    looked = f"{counted(report.messages, 'message')}, {counted(report.units, 'unit')}"
    looked += f" and {counted(report.index_entries, 'key')} compared"
    answer = f"{looked}: {counted(len(found), 'finding')}" if found else f"{looked}: all as the log says"
    return told(VERIFY, asks, answer, found), found


def _range(area: str, topic: str | None, queue_id: int | None, first: int, end: int) -> str:
    span = f"{first:,} to {end:,}" if end > first + 1 else f"{first:,}"
    if topic is None:
        return f"{area} {span}" if end > first else area
    return f"queue {topic}:{queue_id}" + (f", offset {span}" if end > first else "")
