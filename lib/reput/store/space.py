"""How much room a file system has, asked before anything is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from reput.errors import OutputError

_STEP = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, slots=True)
class Room:
    """What an ordinary user can still write to a file system.

    The blocks that a file system keeps for root are not counted, even for root.
    """

    free: int  # bytes
    #: files and directories that can still be made; None where the file system has no such limit
    inodes: int | None


def room(path: Path) -> Room:
    """How much room the file system that holds ``path`` has.

    A path that doesn't exist yet is asked for at its nearest existing parent.
    """
    place = existing_parent(path)
    try:
        figures = os.statvfs(place)
    except OSError as error:
        raise OutputError(
            "can't tell how much space is free", path=place, found=error.strerror or str(error)
        ) from error
    return Room(figures.f_bavail * figures.f_frsize, figures.f_favail if figures.f_files else None)


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user can still write to the file system that holds ``path``."""
    return room(path).free


def check_free(path: Path, needed: int, what: str) -> None:
    """Refuse to begin what doesn't fit; ``path`` needn't exist yet.

    ``what`` needs the space, as the subject of the message, e.g. ``"the rebuilt index"``.
    """
    free = free_bytes(path)
    if free < needed:
        raise OutputError(
            f"no room for {what}",
            path=path,
            expected=f"{human(needed)} free",
            found=f"{human(free)} free",
            next_step=f"Free {human(needed - free)} on the file system that holds {existing_parent(path)}, "
            "or write to another one; then run the same command again.",
        )


def existing_parent(path: Path) -> Path:
    """``path`` itself when it exists, else the nearest of its parents that does."""
    place = Path(os.path.abspath(path))
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place


def human(size: int) -> str:
    """A number of bytes for people: ``"3.8 GiB"``, ``"512 bytes"``."""
    if size < _STEP:
        return f"{size} bytes"
    value, units = size / _STEP, iter(_UNITS)
    unit = next(units)
    while round(value, 1) >= _STEP:  # 1023.97 would print as 1024.0
        value, unit = value / _STEP, next(units)
    return f"{value:.1f} {unit}"
