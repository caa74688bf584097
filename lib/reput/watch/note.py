"""The notes that a tail leaves in its output, about itself and about the table of messages that it keeps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from reput.format import names
from reput.newer_python import Self
from reput.store import files
from reput.store.reading import read_file


@dataclass(frozen=True, slots=True)
class _Note:
    """A file in an output, for people and for ``reput tail --status``; no run depends on it."""

    name: ClassVar[str]

    def write(self, root: Path) -> None:
        """Leave the note in an output; it stays there after the run."""
        files.write_atomically(root / names.REPUT / self.name, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, root: Path) -> Self | None:
        """The note of the last tail; None if there is no such note, or it can't be read."""
        try:
            note = cls(**_facts(root / names.REPUT / cls.name))
        except TypeError:
            return None
        kinds = get_type_hints(cls)
        # JSON doesn't ensure that each value is of its type.
        are_typed = all(
            isinstance(value, kinds[name]) and "\0" not in str(value) for name, value in asdict(note).items()
        )
        return note if are_typed and note.is_sound else None

    @property
    def is_sound(self) -> bool:
        """Whether what its values say can be."""
        return True


@dataclass(frozen=True, slots=True)
class RunNote(_Note):
    """What the last tail was run with.

    Attributes:
        pid: the tail's process.
        started_ms: when it began, ms since the epoch.
        broker_conf: the broker.conf that it was given, absolute, or None.
        metrics: the URL of its metrics, or None.
    """

    name = names.RUN

    pid: int
    started_ms: int
    broker_conf: str | None = None
    metrics: str | None = None


@dataclass(frozen=True, slots=True)
class TableNote(_Note):
    """The state of the table of messages that the last tail kept up to date.

    Attributes:
        table: its directory, absolute.
        failures: how often it could not be brought up to date since the tail began.
        last_success_ms: when it was last brought up to date, ms since the epoch; None before the first time.
        last_failure: the message of the last failure; None without one.
    """

    name = names.TABLE

    table: str
    failures: int = 0
    last_success_ms: int | None = None
    last_failure: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether the table's directory is an absolute path that Delta Lake can take."""
        try:
            return Path(self.table).is_absolute() and bool(self.table.encode())
        except UnicodeEncodeError:
            return False


def _facts(path: Path) -> dict[str, Any]:
    """The facts of a note; none if it can't be read."""
    try:
        facts = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
