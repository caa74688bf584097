"""``reput lag``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reput.cli.arguments import LOOK, Broker, OfTopic, OnStore, Shown, command, groups, option
from reput.cli.output import Output, age, settings_lines, step_lines, table
from reput.cli.times import moment
from reput.config.stand_in import here
from reput.words import counted

if TYPE_CHECKING:
    from reput.lag import DelayLag, GroupLag, LagReport, QueueLag

_EXAMPLES = """Examples:
  All groups, the one that is furthest behind first:
    reput lag /data/store --broker-conf broker.conf
  One group, queue by queue:
    reput lag /data/store --group readers --by queue --broker-conf broker.conf
  A file of offsets with none outside of its queue, to be put in the place of the broker's:
    reput lag /data/store --corrected corrected.json --broker-conf broker.conf
  Of a copy of the offsets, for a program:
    reput lag /data/store --offsets /data/backup/consumerOffset.json --json
"""


@dataclass(kw_only=True)
class _Words(OnStore, OfTopic, Broker, Shown):
    group: str | None = option("--group G", "Only this group.", autocompletion=groups)
    by: Literal["topic", "queue"] = option("--by", "A line for each group and topic, or queue.", "topic")
    offsets: Path | None = option(
        "--offsets FILE", "Committed offsets (default: config/consumerOffset.json)."
    )
    corrected: Path | None = option(
        "--corrected FILE",
        "Write the offsets to this new file, those outside of their queue moved to its nearest end.",
    )


@command("lag", _EXAMPLES, LOOK)
def lag_command(given: _Words) -> None:
    """Report how far consumers are behind: their committed offsets against the queues and the log.

    Nothing is changed, and a broker may run on the store. Lag counts messages that can still be read; expired
    ones are counted apart. The age is that of the first message: up to now where a broker uses the store,
    else up to the log's last message. The greatest lag comes first.

    Exit code 0: every offset lies in its queue. 1: an offset lies before the queue's first message or past
    its end, or its queue is missing. 2: refused or failed.
    """
    from reput.lag import lag, write_corrected

    with Output(given.as_json, interrupted="nothing was changed") as output:
        given.store = here(given.store, derived=True)
        report = lag(given.settings(given.store), group=given.group, topic=given.topic, offsets=given.offsets)
        if given.corrected is not None:
            report = write_corrected(report, given.corrected)
    output.show(report, _lines(report, given.by))


_GROUPS = ("group", "topic", "queues", "lag", "expired", "oldest", "flags")
_QUEUES = ("group", "topic", "queue", "committed", "min", "max", "lag", "expired", "oldest", "flags")
_DELAYS = ("level", "delay", "offset", "min", "max", "waiting", "next due", "flags")
_NUMBERS = frozenset({*_QUEUES, *_DELAYS}) - {"group", "topic", "flags"} | {"queues"}


def _lines(report: LagReport, by: str) -> Iterator[str]:
    yield f"Lag in {report.store}, by {report.offsets}"
    yield from settings_lines(report.basis)
    if not report.rows:
        yield "  no group has committed anything"
    elif by == "topic":
        yield from table(_GROUPS, [_group(one, report) for one in report.groups], _NUMBERS)
    else:
        yield from table(_QUEUES, [_queue(row, report) for row in report.rows], _NUMBERS)
    if report.rows:
        yield f"  {_sums(report)}"
    if report.delays:
        yield "  delayed messages:"
        yield from table(_DELAYS, [_delay(level, report.reference) for level in report.delays], _NUMBERS)
    if any(row.oldest_stored is not None for row in report.rows) or any(
        level.due_ms is not None for level in report.delays
    ):
        yield f"  ages       {_reference(report)}"
    if report.corrected is not None:
        yield f"  corrected  {counted(report.moved, 'offset')}: {report.corrected}"
    yield from step_lines((), report.next_steps)


def _reference(report: LagReport) -> str:
    from reput.lag import AgesTo

    at = moment(report.reference)
    if report.ages_to is AgesTo.NOW:
        return f"up to now, {at}"
    return f"up to the log's last message, {at}: no broker uses the store"


def _sums(report: LagReport) -> str:
    groups = len({row.group for row in report.rows})
    behind, expired = sum(row.lag for row in report.rows), sum(row.expired for row in report.rows)
    said = f"{counted(groups, 'group')} on {counted(len(report.rows), 'queue')}: lag {behind:,}"
    return f"{said}, expired unread {expired:,}"


def _delay(level: DelayLag, now: int) -> tuple[str, ...]:
    due = (
        "-"
        if level.due_ms is None
        else f"{age(now - level.due_ms)} ago"
        if level.due_ms <= now
        else f"in {age(level.due_ms - now)}"
    )
    return (
        str(level.level),
        "?" if level.delay_ms is None else age(level.delay_ms),
        "-" if level.offset is None else str(level.offset),
        str(level.min_offset),
        str(level.max_offset),
        f"{level.waiting:,}",
        due,
        level.flag or "",
    )


def _group(one: GroupLag, report: LagReport) -> tuple[str, ...]:
    flags = ", ".join(flag if count == 1 else f"{flag} ({count:,})" for flag, count in one.flags.items())
    oldest = _age(report.age(one.oldest_stored))
    return one.group, one.topic, f"{one.queues:,}", f"{one.lag:,}", f"{one.expired:,}", oldest, flags


def _queue(row: QueueLag, report: LagReport) -> tuple[str, ...]:
    return (
        row.group,
        row.topic,
        str(row.queue_id),
        "-" if row.committed is None else str(row.committed),
        str(row.min_offset),
        str(row.max_offset),
        f"{row.lag:,}",
        f"{row.expired:,}",
        _age(report.age(row.oldest_stored)),
        ", ".join(row.flags),
    )


def _age(ms: int | None) -> str:
    return "-" if ms is None else age(ms)
