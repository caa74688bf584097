"""What the benchmark can't do, and how it says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from reput.errors import ReputError
from tests.compat.jars import JarsUnavailableError
from tests.compat.jvm import JavaError


class BenchError(RuntimeError):
    """A run failed, or what it built isn't what the real store builds: its time doesn't count."""


_P = ParamSpec("_P")


def told(main: Callable[_P, int]) -> Callable[_P, int]:
    """Have a benchmark that fails say so in one line, and return 1."""

    @wraps(main)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except (BenchError, JarsUnavailableError, JavaError, ReputError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1

    return run


def say(text: str) -> None:
    """Tell how far the benchmark is, on stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
