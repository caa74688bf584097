"""Options that several of the commands have, and what their words mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reput.cli.times import time_of
from reput.errors import SettingsError

PathArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A store, a directory in it, or a single file, wherever it lies."),
]
AsLines = Annotated[bool, typer.Option("--json", help="Print JSON lines: one object per record.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but damage.")]


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
