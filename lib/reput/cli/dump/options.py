"""Options that several of the commands have, and what their words mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from reput.cli.arguments import Since, Until, queues, size, topics
from reput.cli.times import time_of
from reput.errors import SettingsError
from reput.format.names import parse_queue

if TYPE_CHECKING:
    from reput.dump.wanted import Wanted

PathArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A store, a directory in it, or a single file, wherever it lies."),
]
AsLines = Annotated[bool, typer.Option("--json", help="Print JSON lines: one object per record.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but damage.")]

End = Annotated[
    int | None,
    typer.Option(
        "--end", "-e", metavar="N", min=0, help="Only records that begin before this physical offset."
    ),
]
Tags = Annotated[
    str | None,
    typer.Option("--tags", metavar="EXPR", help="Only with one of these tags: 'A || B', or '*' for all."),
]
#: Which records of a commit log: :func:`wanted_of` makes one condition of them.
CONDITIONS: dict[str, Any] = {
    "since": Since,
    "until": Until,
    "topic": Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="T",
            autocompletion=topics,
            help="Only this topic; repeat it, or add --queue, for several.",
        ),
    ],
    "queue": Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="TOPIC[:ID]",
            autocompletion=queues,
            help="Only this queue; repeat it, or add --topic, for several.",
        ),
    ],
    "queue_start": Annotated[
        int | None,
        typer.Option("--queue-start", metavar="N", help="With --queue: start at this queueOffset."),
    ],
    "queue_end": Annotated[
        int | None,
        typer.Option("--queue-end", metavar="N", help="With --queue: stop before this queueOffset."),
    ],
    "tags": Tags,
    "key": Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only with this key, or this UNIQ_KEY.")
    ],
    "uniq_key": Annotated[
        str | None, typer.Option("--uniq-key", metavar="ID", help="Only with this UNIQ_KEY.")
    ],
    "transaction": Annotated[
        str | None,
        typer.Option(
            "--transaction", metavar="STATE", help="Only prepared, commit, rollback or none of these."
        ),
    ],
    "body_size_over": Annotated[
        str | None,
        typer.Option(
            "--body-size-over",
            metavar="SIZE",
            help="Only with a body of more bytes than this, as stored (bodySize), e.g. 100000, 64k or 1m.",
        ),
    ],
}
#: What was given for each of them.
Conditions = dict[str, Any]


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


def with_conditions(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of :data:`CONDITIONS` in place of its parameter ``conditions``."""
    hints = get_type_hints(command, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        if one.name == "conditions":
            parameters += [
                inspect.Parameter(name, kind, default=None, annotation=hint)
                for name, hint in CONDITIONS.items()
            ]
        else:
            parameters.append(one.replace(kind=kind, annotation=hints[one.name]))

    def run(*arguments: Any, **given: Any) -> None:
        conditions = {name: given.pop(name, None) for name in CONDITIONS}
        command(*arguments, conditions=conditions, **given)

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def wanted_of(conditions: Conditions) -> Wanted:
    """Which records the options of :data:`CONDITIONS` ask for.

    Raises:
        SettingsError: one can't be understood, or they don't go together; names the options.
    """
    from reput.dump.wanted import Transaction, Wanted
    from reput.query.pull import TagFilter

    texts = SimpleNamespace(**conditions)
    for option in ("queue", "tags", "key", "uniq_key", "topic"):
        given = conditions[option]
        for text in given if isinstance(given, list) else (given,):
            filled(f"--{option.replace('_', '-')}", text)
    queues = tuple(map(parse_queue, texts.queue or ()))
    if texts.queue_start is not None or texts.queue_end is not None:
        if len(queues) != 1 or queues[0][1] is None:
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
        queues=queues,
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
