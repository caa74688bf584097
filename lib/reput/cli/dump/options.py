"""Options that several of the commands have, and what their words mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.arguments import queues, size, topics
from reput.cli.times import time_of
from reput.errors import SettingsError

if TYPE_CHECKING:
    from reput.dump.wanted import Wanted

PathArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A store, a directory in it, or a single file, wherever it lies."),
]
AsLines = Annotated[bool, typer.Option("--json", help="Print JSON lines: one object per record.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but damage.")]

# Which records of a commit log: :func:`wanted_of` makes one condition of them.
End = Annotated[
    int | None,
    typer.Option(
        "--end", "-e", metavar="N", min=0, help="Only records that begin before this physical offset."
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="T",
        autocompletion=topics,
        help="Only this topic; repeat it, or add --queue, for several.",
    ),
]
QueuesOfLog = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="TOPIC[:ID]",
        autocompletion=queues,
        help="Only this queue; repeat it, or add --topic, for several.",
    ),
]
QueueStart = Annotated[
    int | None, typer.Option("--queue-start", metavar="N", help="With --queue: start at this queueOffset.")
]
QueueEnd = Annotated[
    int | None, typer.Option("--queue-end", metavar="N", help="With --queue: stop before this queueOffset.")
]
Tags = Annotated[
    str | None,
    typer.Option("--tags", metavar="EXPR", help="Only with one of these tags: 'A || B', or '*' for all."),
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only with this key, or this UNIQ_KEY.")
]
UniqKey = Annotated[str | None, typer.Option("--uniq-key", metavar="ID", help="Only with this UNIQ_KEY.")]
TransactionState = Annotated[
    str | None,
    typer.Option("--transaction", metavar="STATE", help="Only prepared, commit, rollback or none of these."),
]
BodySizeOver = Annotated[
    str | None,
    typer.Option(
        "--body-size-over",
        metavar="SIZE",
        help="Only with a body of more bytes than this, as stored (bodySize), e.g. 100000, 64k or 1m.",
    ),
]


def queue_of(text: str) -> tuple[str, int | None]:
    """Topic and queueId of TOPIC:ID; of TOPIC alone None for the queueId.

    Raises:
        SettingsError: it is neither.
    """
    filled("--queue", text)
    topic, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    if not topic or not (number.isascii() and number.isdecimal()) or len(number) > 10:
        raise SettingsError(
            "a queue can't be understood", expected="TOPIC or TOPIC:ID, e.g. orders:3", found=text
        )
    return topic, int(number)


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


def wanted_of(
    *,
    topics: list[str] | None,
    queues: list[str] | None,
    queue_start: int | None,
    queue_end: int | None,
    tags: str | None,
    key: str | None,
    uniq_key: str | None,
    transaction: str | None,
    body_size_over: str | None,
    since: str | None,
    until: str | None,
) -> Wanted:
    """Which records the options of those names ask for.

    Raises:
        SettingsError: one can't be understood, or they don't go together; names the options.
    """
    from reput.dump.wanted import Transaction, Wanted
    from reput.query.pull import TagFilter

    chosen = tuple(queue_of(text) for text in queues or ())
    if queue_start is not None or queue_end is not None:
        if len(chosen) != 1 or chosen[0][1] is None:
            raise unclear("--queue-start or --queue-end without it", "one --queue TOPIC:ID beside them")
        if topics:
            raise unclear("--queue-start or --queue-end with --topic", "one --queue TOPIC:ID and no --topic")
    in_order("--queue-start", queue_start, "--queue-end", queue_end)
    for option, text in (("--tags", tags), ("--key", key), ("--uniq-key", uniq_key)):
        filled(option, text)
    for one in topics or ():
        filled("--topic", one)
    states = [state.value for state in Transaction]
    if transaction is not None and transaction not in states:
        raise SettingsError(
            "--transaction can't be understood", expected=f"one of {', '.join(states)}", found=transaction
        )
    begin, stop = times_of(since, until)
    return Wanted(
        topics=tuple(topics or ()),
        queues=chosen,
        queue_start=queue_start,
        queue_end=queue_end,
        tags=TagFilter.parse(tags).tags,
        key=key,
        uniq_key=uniq_key,
        transaction=None if transaction is None else Transaction(transaction),
        body_size_over=None if body_size_over is None else size("--body-size-over", body_size_over, least=0),
        since=begin,
        until=stop,
    )
