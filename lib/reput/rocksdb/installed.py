"""The package that reads and writes RocksDB, which comes with ``reput[rocksdb]`` and not with reput alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reput.errors import UnsupportedError

PACKAGE = "rocksdict"


def installed(directory: Path | None = None) -> Any:
    """The module.

    Args:
        directory: the database that it is wanted for.

    Raises:
        UnsupportedError: it isn't installed.
    """
    try:
        import rocksdict
    except ImportError as error:
        raise not_installed(directory) from error
    return rocksdict


def not_installed(directory: Path | None = None) -> UnsupportedError:
    """The error where it isn't."""
    return UnsupportedError(
        "this needs RocksDB, and reput was installed without it",
        path=directory,
        expected="reput[rocksdb]",
        found=f"no module {PACKAGE}",
        next_step="Run: pip install 'reput[rocksdb]' (docs/install.md)",
    )
