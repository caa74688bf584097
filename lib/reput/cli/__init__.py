"""The command line."""

from __future__ import annotations

from reput.cli.crash import ended_by
from reput.cli.early import begin_early

try:
    begin_early()
    from reput.cli import (
        catalog,
        demo,
        digest,
        doctor,
        export,
        lag,
        many,
        migrate,
        pack,
        query,
        recover,
        report,
        resend,
        restore,
        stats,
        topics,
        undo,
        verify,
        watch,
    )
    from reput.cli.app import main
except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Python would end with 1
    raise SystemExit(ended_by(error)) from None

__all__ = [
    "catalog",
    "demo",
    "digest",
    "doctor",
    "export",
    "lag",
    "main",
    "many",
    "migrate",
    "pack",
    "query",
    "recover",
    "report",
    "resend",
    "restore",
    "stats",
    "topics",
    "undo",
    "verify",
    "watch",
]
