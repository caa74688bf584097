"""``reput stats --topics``: topics and queues by their files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reput.cli.output import at_most, listed, settings_lines, step_lines, table
from reput.cli.times import second, zone_name
from reput.store.listing import nearest_queue
from reput.words import counted

if TYPE_CHECKING:
    from reput.report.topics import Topic, TopicList

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
