"""Options that several of the commands have, and what their words mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.cli.arguments import InTime, InZone, Words, argument, flag, option, queues, size, topics
from reput.cli.times import time_of
from reput.errors import SettingsError
from reput.format.names import parse_queue

if TYPE_CHECKING:
    from reput.dump.wanted import Wanted

TAGS = "--tags EXPR", "Only with one of these tags: 'A || B', or '*' for all."


@dataclass(kw_only=True)
class OnPath(Words):
    """A store, or a part of one."""

    path: Path = argument("PATH", "A store, a directory in it, or a single file, wherever it lies.")


@dataclass(kw_only=True)
class AsLines(InZone):
    """For people or programs, line by line."""

    quiet: bool = flag("--quiet -q", "Print nothing but damage.")
    as_json: bool = flag("--json", "Print JSON lines: one object per record.")


@dataclass(kw_only=True)
class Conditions(InTime):
    """Which records of a commit log: :func:`wanted_of` makes one condition of them."""

    topic: list[str] | None = option("--topic T", "Only this topic; repeatable.", autocompletion=topics)
    queue: list[str] | None = option(
        "--queue TOPIC[:ID]", "Only this queue; repeatable.", autocompletion=queues
    )
    queue_start: int | None = option("--queue-start N", "With --queue: start at this queueOffset.")
    queue_end: int | None = option("--queue-end N", "With --queue: stop before this queueOffset.")
    tags: str | None = option(*TAGS)
    key: str | None = option("--key KEY", "Only with this key, or this UNIQ_KEY.")
    uniq_key: str | None = option("--uniq-key ID", "Only with this UNIQ_KEY.")
    transaction: str | None = option("--transaction STATE", "Only prepared, commit, rollback or none.")
    body_size_over: str | None = option(
        "--body-size-over SIZE", "Only with a larger body as stored, e.g. 64k."
    )
    end: int | None = option("--end -e N", "Only records that begin before this physical offset.", min=0)


def filled(option: str, text: str | None) -> None:
    """Refuse an empty text to look for, which an unset variable of a script may be.

    Raises:
        SettingsError: it is one; names the option.
    """
    if text == "":
        raise SettingsError(
            f"{option} is empty: an empty text finds nothing", expected="a text", found="nothing"
        )


def times_of(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """The times of --since and --until, ms.

    Raises:
        SettingsError: one can't be understood, or no time is between them.
    """
    begin, stop = time_of("--since", since), time_of("--until", until)
    if begin is not None and stop is not None and begin >= stop:
        raise unclear(f"--since {since}, which isn't before --until {until}", "--since before --until")
    return begin, stop


def in_order(one: str, first: int | None, other: str, last: int | None) -> None:
    """Refuse a range in which nothing can be.

    Raises:
        SettingsError: its end isn't behind its beginning; names both options.
    """
    if first is not None and last is not None and first >= last:
        raise unclear(f"{one} {first}, which isn't before {other} {last}", f"{one} before {other}")


def unclear(found: str, expected: str) -> SettingsError:
    """Why options don't go together."""
    return SettingsError("what to show is not clear", expected=expected, found=found)


def wanted_of(texts: Conditions) -> Wanted:
    """Which records are asked for.

    Raises:
        SettingsError: one can't be understood, or they don't go together; names the options.
    """
    from reput.dump.wanted import Transaction, Wanted
    from reput.query.store import TagFilter

    for name in ("queue", "tags", "key", "uniq_key", "topic"):
        given = getattr(texts, name)
        for text in given if isinstance(given, list) else (given,):
            filled(f"--{name.replace('_', '-')}", text)
    chosen = tuple(map(parse_queue, texts.queue or ()))
    if texts.queue_start is not None or texts.queue_end is not None:
        if len(chosen) != 1 or chosen[0][1] is None:
            raise unclear("--queue-start or --queue-end without it", "one --queue TOPIC:ID beside them")
        if texts.topic:
            raise unclear("--queue-start or --queue-end with --topic", "one --queue TOPIC:ID and no --topic")
    in_order("--queue-start", texts.queue_start, "--queue-end", texts.queue_end)
    states = [state.value for state in Transaction]
    if texts.transaction is not None and texts.transaction not in states:
        raise SettingsError(
            "--transaction can't be understood",
            expected=f"one of {', '.join(states)}",
            found=texts.transaction,
        )
    begin, stop = times_of(texts.since, texts.until)
    over = texts.body_size_over
    return Wanted(
        topics=tuple(texts.topic or ()),
        queues=chosen,
        queue_start=texts.queue_start,
        queue_end=texts.queue_end,
        tags=TagFilter.parse(texts.tags).tags,
        key=texts.key,
        uniq_key=texts.uniq_key,
        transaction=None if texts.transaction is None else Transaction(texts.transaction),
        body_size_over=None if over is None else size("--body-size-over", over, least=0),
        since=begin,
        until=stop,
    )
