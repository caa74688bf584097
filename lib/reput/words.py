"""What people read: numbers with what they count, texts in which all is to be seen, commands to run next."""

from __future__ import annotations

import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from os import PathLike, fspath
from pathlib import Path

from reput.newer_python import UTC

# Whoever is told a command copies it: it names the store, and the broker.conf and release that were given,
# since with others it would look at something else.

#: In an environment that `reput pack` made: what it holds, and what it needs of a host.
MANIFEST = "reput-env.json"


def next_command(
    name: str,
    place: str | PathLike[str],
    *options: str,
    broker_conf: str | PathLike[str] | None = None,
    rocketmq_version: str | None = None,
    last: Iterable[str] = (),
) -> str:
    """A command, quoted for a shell.

    Args:
        name: of the command, e.g. ``"check"``, ``"tail --stop"``.
        place: its argument, a store or an output.
        options: words behind it.
        broker_conf, rocketmq_version: as they were given; None where they weren't.
        last: words behind these, where they may be many.
    """
    words = ["reput", *name.split(), _path(place), *options]
    if broker_conf is not None:
        words += ["--broker-conf", _path(broker_conf)]
    if rocketmq_version is not None:
        words += ["--rocketmq-version", rocketmq_version]
    return shlex.join([*words, *last])


def install_step(extra: str) -> str:
    """How to get what a command lacks: no package registry is asked for a package of this name.

    Args:
        extra: of pyproject.toml, or several with commas between.
    """
    if Path(sys.prefix, MANIFEST).is_file():
        return "Where it was packed, run: reput pack -o reput.tar.gz --with-spark (docs/install.md)"
    step = f"In a clone of reput, run: python3 -m pip install '.[{extra}]'"
    return f"{step} (of a wheel: 'WHEEL[{extra}]'; docs/install.md)"


def _path(path: str | PathLike[str]) -> str:
    """A path that is never taken for an option."""
    text = fspath(path)
    return f"./{text}" if text.startswith("-") else text


#: Categories of Unicode that steer, begin a line, or can't be seen and make two names look like one: control
#: characters, those of formatting (U+202E turns a text around), line and paragraph separators, surrogates.
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
_WORD_BEGINS = re.compile("(?<=[a-z0-9])(?=[A-Z])")


#: Of all JSON documents and lines (docs/interface.md): a field that goes, or means something else, raises it.
SCHEMA_VERSION = 2


@cache
def snake_case(name: str) -> str:
    """A name of RocketMQ's or of a column as JSON has it: ``storeTimestamp`` is ``store_timestamp``."""
    return _WORD_BEGINS.sub("_", name).lower()


def counted(number: int, one: str, several: str | None = None) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def utc(ms: int) -> str:
    """``2026-11-21T11:06:10.676Z``; as it is, where that is no time that a clock may have had."""
    try:
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return text.removesuffix("+00:00") + "Z" if ms > 0 else str(ms)


@cache
def _doubtful(keep: str) -> re.Pattern[str]:
    """What may have to be escaped."""
    return re.compile(f"[^ -~{re.escape(keep)}]")


def visible(text: str, keep: str = "") -> str:
    """A text with escapes in place of characters that aren't seen, or turn what follows.

    Args:
        keep: those that stay as they are, such as a line feed.
    """

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if unicodedata.category(character) not in _UNSEEN:
            return character
        return character.encode("unicode_escape").decode()

    return _doubtful(keep).sub(escaped, text)
