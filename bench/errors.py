"""What the benchmark can't do, and how it says so."""

from __future__ import annotations

import sys


class BenchError(RuntimeError):
    """A run failed, or what it built isn't what the real store builds: its time doesn't count."""


def say(text: str) -> None:
    """Tell how far the benchmark is, on stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
