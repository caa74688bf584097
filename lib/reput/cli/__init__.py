"""The command line."""

from __future__ import annotations

from reput.cli.crash import ended_by
from reput.cli.early import begin_early

try:
    begin_early()
    from reput.cli import (
        catalog,
        check,
        demo,
        doctor,
        export,
        lag,
        mend,
        migrate,
        pack,
        query,
        report,
        resend,
        restore,
        stats,
        undo,
    )
    from reput.cli.app import main
except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Python would end with 1
    raise SystemExit(ended_by(error)) from None

__all__ = [
    "catalog",
    "check",
    "demo",
    "doctor",
    "export",
    "lag",
    "main",
    "mend",
    "migrate",
    "pack",
    "query",
    "report",
    "resend",
    "restore",
    "stats",
    "undo",
]
