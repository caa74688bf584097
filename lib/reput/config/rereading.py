"""What a file of the broker's configuration says at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from reput.errors import SettingsError

_Said = TypeVar("_Said")
_Stamp = tuple[tuple[int, int, int] | None, ...]

_TRIES = 10
_WRITING_SECONDS = 0.02


class Rereading(Generic[_Said]):
    """Reads a file again when it has changed, or the copy beside it has that stands in for it.

    Args:
        path: the file, as ``ConfigManager`` keeps it; its copy is beside it with ``.bak`` after the name.
        read: says what they hold; it may raise SettingsError.
    """

    def __init__(self, path: Path, read: Callable[[], _Said]) -> None:
        self._paths = (path, path.with_name(path.name + ".bak"))
        self._read = read
        self._stamps: _Stamp | None = None
        self._said: _Said

    def now(self) -> _Said:
        """What is said now.

        Raises:
            SettingsError: as ``read``, several times.
        """
        for tries_left in reversed(range(_TRIES)):
            stamps = self._look()
            if stamps == self._stamps:
                break
            try:
                said = self._read()
            except SettingsError:
                # A broker writes it in place, and the copy beside it just before: both may be half there.
                if not tries_left:
                    raise
                time.sleep(_WRITING_SECONDS)
                continue
            self._said = said
            if stamps == self._look():
                self._stamps = stamps
                break
        return self._said

    def _look(self) -> _Stamp:
        return tuple(map(stamp_of, self._paths))


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """By what a changed file is told; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
