"""The command line."""

from __future__ import annotations

from reput.cli import catalog, demo, doctor, lag, many, query, recover, report, stats, undo, verify, watch
from reput.cli.app import main

__all__ = [
    "catalog",
    "demo",
    "doctor",
    "lag",
    "main",
    "many",
    "query",
    "recover",
    "report",
    "stats",
    "undo",
    "verify",
    "watch",
]
