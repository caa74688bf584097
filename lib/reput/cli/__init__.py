"""The command line."""

from __future__ import annotations

try:
    from reput.cli.process import begin_early, ended_by
except KeyboardInterrupt:  # before there is anything that says so
    raise SystemExit(130) from None
try:
    begin_early()
    from reput.cli import (  # noqa: F401 - they register their commands
        catalog,
        check,
        dump,
        export,
        lag,
        mend,
        migrate,
        query,
        report,
        restore,
        set_up,
        stats,
        tail,
    )  # fmt: skip
    from reput.cli.app import main
except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Python would end with 1
    raise SystemExit(ended_by(error)) from None

__all__ = ["main"]
