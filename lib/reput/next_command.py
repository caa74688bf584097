"""Commands that reput tells people to run next, as a shell takes them.

Whoever is told one copies it: it names the store, and the broker.conf and release that were given, since with
others it would look at something else.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path

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
