"""Where a page may be written: nowhere in the store, and over no file that isn't such a page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.report.page import GENERATOR
from reput.store import files
from reput.store.outside import check_file, check_outside

#: A page names its maker within so many bytes.
_HEAD = 512
_MARK = f'<meta name="generator" content="{GENERATOR}'.encode()


def check_target(path: Path, settings: StoreSettings, *, force: bool) -> Path:
    """As :func:`check_page`, for the report of one store."""
    return check_page(path, settings.directories, force=force)


def check_page(path: Path, directories: Iterable[Path], *, force: bool) -> Path:
    """Refuse what a page must not be written to; before anything is read, for that may take long.

    ``directories``: of stores. ``force``: a file that is no report may be replaced.

    Returns:
        Where to write, with links followed.
    """
    target = check_outside("a report", path, directories, "Name another file with --out.")
    check_file(
        target,
        "a report is",
        force=force or (target.is_file() and is_report(target)),
        other=", and it is no report",
        expected="no file, or a page that reput report made",
    )
    return target


def is_report(path: Path) -> bool:
    """Whether a file is a page of reput's, or empty."""
    with files.reporting("the file can't be read", path), open(path, "rb") as file:
        head = file.read(_HEAD)
    return not head or _MARK in head
