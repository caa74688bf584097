"""``reput stats``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from reput.cli.arguments import (
    LOOK,
    Broker,
    InTime,
    OfTopic,
    OnStore,
    Shown,
    command,
    flag,
    in_order,
    option,
    times_of,
)
from reput.cli.output import Output, ProgressDisplay, age, at_most, listed, settings_lines, step_lines, table
from reput.cli.times import asked_times, held_times, moment, second, zone_name
from reput.config.stand_in import here
from reput.errors import SettingsError
from reput.store.listing import nearest_queue
from reput.store.system import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.report.queues import Topic, TopicList
    from reput.statistics import Gap, Group, Statistics

_EXAMPLES = """Examples:
  Topics, the one with the most bytes first:
    reput stats /data/store --broker-conf broker.conf
  The tags of one topic, in an hour:
    reput stats /data/store --topic orders --by tag --since 2026-11-21T10:00 --until 2026-11-21T11:00
  Topics and queues with the offsets that consumers get, without reading the log:
    reput stats /data/store --topics --by queue --broker-conf broker.conf
  Who sent what, from a physical offset on, for a program:
    reput stats /data/store --by host --start 1073741824 --json
"""


@dataclass(kw_only=True)
class _Words(OnStore, InTime, OfTopic, Broker, Shown):
    topics: bool = flag(
        "--topics",
        "Don't read the log: list topics (--by queue: queues) with the offsets that consumers get.",
    )
    by: Literal["topic", "queue", "tag", "hour", "host"] = option("--by", "What to count by.", "topic")
    start: int | None = option("--start N", "Start at this physical offset.", min=0)
    end: int | None = option("--end N", "Stop before this physical offset.", min=1)
    limit: int = option("--limit -n N", "Show at most N lines; --json has all.", 40, min=1)


@command("stats", _EXAMPLES, LOOK)
def stats_command(given: _Words) -> None:
    """Count what a commit log holds: messages, bytes, sizes, times, by topic, queue, tag, hour or host.

    The log is read once, and nothing is changed; a broker may run on the store. Sizes are those of whole
    records. Percentiles are approximate (at most 7 % off); everything else is exact.

    With --topics the log isn't read: messages are those between min and max offset of each queue.

    Exit code 0: counted. 1: counted, and segments are missing or too short; with --topics: a queue can't be
    read, or all are missing. 2: refused or failed.
    """
    from reput.query.log import LogReader
    from reput.statistics import By, Span, count

    if given.topics:
        _show_topics(given)
    topic = given.topic
    with Output(given.as_json, interrupted="nothing was changed") as output:
        given.store = here(given.store, derived=False)
        in_order("--start", given.start, "--end", given.end)
        span = Span(given.start, given.end, *times_of(given.since, given.until))
        settings = given.settings(given.store)
        with ProgressDisplay("counting") as display:
            found = count(settings, By(given.by), topic=topic, span=span, listener=display.update)
        in_time = span.since is not None or span.until is not None
        if found.total is None and in_time:
            found = replace(found, log_times=LogReader(settings).times)
    meant = nearest_queue(settings.root, topic) if topic is not None and found.total is None else None
    asked = asked_times(span.since, span.until)
    output.show(found, _lines(found, given.limit, meant, asked))


def _show_topics(given: _Words) -> NoReturn:
    """List topics and queues, and end."""
    from reput.report.queues import topic_list

    with Output(given.as_json, interrupted="nothing was changed", command="stats --topics") as output:
        of_log = {"--since": given.since, "--until": given.until, "--start": given.start, "--end": given.end}
        unfit = [name for name, value in of_log.items() if value is not None]
        unfit += [f"--by {given.by}"] if given.by not in ("topic", "queue") else []
        if unfit:
            raise SettingsError(
                "--topics doesn't read the log",
                expected="--topics with --by topic or queue, for all of the store",
                found=", ".join(unfit),
            )
        given.store = here(given.store, derived=True)
        found = topic_list(given.settings(given.store), given.topic)
    output.show(found, topic_lines(found, given.by, given.limit, given.topic))


#: Columns that say nothing when all are 0.
_COUNTS = ("keys", "tags", "transactions", "delayed", "retries")
_HEADS = {
    "topic": ("topic",),
    "queue": ("topic", "queue"),
    "tag": ("topic", "tag"),
    "hour": ("hour",),
    "host": ("host",),
}


def _lines(found: Statistics, top: int, meant: str | None, asked: str) -> Iterator[str]:
    total = found.total
    yield f"Counted {found.store}, {found.start} to {found.end}, by {found.by}"
    yield from settings_lines(found.basis, files=False)
    if total is None:
        said = f"  no message {asked}; {held_times(found.log_times)}" if asked else "  no message"
        yield said if meant is None else f"{said}; did you mean {meant}?"
    else:
        counts = tuple(name for name in _COUNTS if getattr(total, name))
        zone = zone_name()
        heads = tuple(f"hour {zone}" if head == "hour" else head for head in _HEADS[found.by])
        columns = (
            *heads,
            *(
                "messages",
                "bytes",
                "share",
                "msg/s",
                "min",
                "~p50",
                "~p99",
                "max",
                f"first {zone}",
                f"last {zone}",
            ),
            *counts,
        )
        shown = found.groups[:top]
        rows = [("all", *("",) * (len(heads) - 1), *_facts(total, total, counts))]
        rows += [(*_names(group, found.by), *_facts(group, total, counts)) for group in shown]
        yield from table(columns, rows, set(columns) - {"topic", "tag", "host", f"hour {zone}"})
        if len(found.groups) > top:
            yield f"  and {len(found.groups) - top:,} more; --limit {len(found.groups)} or --json has all"
        yield from (f"  gap     {_gap(gap)}" for gap in found.gaps)
        if found.steps_back:
            steps = counted(found.steps_back, "step")
            yield f"  back    {steps} back in time, up to {age(found.most_back_ms)}"
    if found.findings:
        yield f"  missing {counted(len(found.findings), 'finding')}"
        yield from (f"    {finding}" for finding in found.findings)
    yield f"  took    {found.seconds:.1f} s"


def _names(group: Group, by: str) -> tuple[str, ...]:
    if group.rest:
        return ("(others)", *("",) * (len(_HEADS[by]) - 1))
    if by == "queue":
        return group.topic or "", str(group.queue_id)
    if by == "tag":
        return group.topic or "", "-" if group.tag is None else group.tag
    if by == "hour":
        return (second(group.hour_ms or 0)[:-3],)
    return ((group.host if by == "host" else group.topic) or "",)


def _facts(group: Group, total: Group, counts: tuple[str, ...]) -> tuple[str, ...]:
    rate = group.rate
    return (
        f"{group.messages:,}",
        human(group.bytes),
        f"{100 * group.bytes / total.bytes:.1f}%",
        "-" if rate is None else f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}",
        *(f"{size:,}" for size in (group.least, group.p50, group.p99, group.most)),
        *(second(ms) for ms in (group.first_time, group.last_time)),
        *(f"{getattr(group, name):,}" for name in counts),
    )


def _gap(gap: Gap) -> str:
    before, after = moment(gap.before_store_timestamp), moment(gap.after_store_timestamp)
    places = gap.before_physical_offset, gap.after_physical_offset
    return f"{age(gap.gap_ms)} without a message, from {before} (at {places[0]}) to {after} (at {places[1]})"


_NUMBERS = ("queues", "messages", "skew", "read", "write", "perm", "queue", "min", "max", "files")


def topic_lines(found: TopicList, by: str, limit: int, asked: str | None) -> Iterator[str]:
    """A list of topics, for people.

    Args:
        by: ``"topic"`` or ``"queue"``: a line for each.
        limit: so many lines at most.
        asked: the only topic that was asked for.
    """
    yield f"Topics of {found.settings.root}"
    yield from settings_lines(found.settings.basis, files=False)
    if not found.topics:
        what = "  no topic" if asked is None else f"  no topic {asked}"
        meant = None if asked is None else nearest_queue(found.settings.root, asked, None)
        yield what if meant is None else f"{what}; did you mean {meant}?"
        yield from _lacking(found)
        return
    last = f"last stored {zone_name()}"
    if by == "topic":
        heads: tuple[str, ...] = ("topic", "queues", "messages", "skew", "read", "write", "perm", last)
        rows = [_row(one) for one in found.topics]
    else:
        heads = ("topic", "queue", "min", "max", "messages", "files", last)
        rows = [row for one in found.topics for row in _queue_rows(one)]
    yield from table(heads, rows[:limit], _NUMBERS)
    if len(rows) > limit:
        yield f"  and {len(rows) - limit:,} more; --limit {len(rows)} or --json has all"
    queues, messages = sum(len(one.queues) for one in found.topics), sum(one.messages for one in found.topics)
    yield (
        f"  {counted(len(found.topics), 'topic')} with {counted(queues, 'queue')}: "
        f"{counted(messages, 'message')}"
    )
    unknown = [one.name for one in found.topics if one.config is None]
    if found.has_config and unknown:
        yield f"  not in config/topics.json: {listed(unknown)}"
    elif not found.has_config:
        yield "  there is no config/topics.json: read, write and perm aren't known"
    empty = [one.name for one in found.topics if not one.queues]
    if empty:
        yield f"  without queue files: {listed(empty)}"
    problems = [f"{row.topic}:{row.queue_id}: {row.problem}" for row in found.unreadable]
    yield from at_most("  unreadable ", problems, "             and {} more; --json has all")
    yield from _lacking(found)


def _lacking(found: TopicList) -> Iterator[str]:
    for problem in found.lacking:
        yield f"  {problem.kind:<10} {problem.path}: {problem.said}"
    yield from step_lines((), found.next_steps)


def _row(topic: Topic) -> tuple[str, ...]:
    config = topic.config
    settings = ("", "", "") if config is None else (config.read_queues, config.write_queues, config.perm)
    numbers = tuple("" if one is None else str(one) for one in settings)
    skew = "" if topic.skew is None else f"{topic.skew:.2f}"
    counts = f"{len(topic.queues):,}", f"{topic.messages:,}", skew
    return (topic.name, *counts, *numbers, _time(topic.last_time))


def _queue_rows(topic: Topic) -> Iterator[tuple[str, ...]]:
    for row in topic.queues:
        offsets = ["?" if one is None else str(one) for one in (row.min_offset, row.max_offset)]
        held = "?" if row.min_offset is None or row.max_offset is None else row.max_offset - row.min_offset
        shown = held if isinstance(held, str) else f"{held:,}"
        yield row.topic, str(row.queue_id), *offsets, shown, f"{row.files:,}", _time(row.last_time)


def _time(ms: int | None) -> str:
    return "" if ms is None else second(ms)
