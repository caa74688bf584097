"""The package that reads and writes RocksDB, which comes with ``reput[rocksdb]`` and not with reput alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reput.errors import UnsupportedError
from reput.next_command import install_step

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


def is_installed() -> bool:
    """Whether it is."""
    try:
        installed()
    except UnsupportedError:
        return False
    return True


def not_installed(directory: Path | None = None) -> UnsupportedError:
    """The error where it isn't."""
    return UnsupportedError(
        "this needs RocksDB, and reput was installed without it",
        path=directory,
        expected="reput[rocksdb]",
        found=f"no module {PACKAGE}",
        next_step=install_step("rocksdb"),
    )
