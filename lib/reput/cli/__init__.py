"""The command line."""

from __future__ import annotations

from reput.cli import demo, undo, watch
from reput.cli.app import main

__all__ = ["demo", "main", "undo", "watch"]
