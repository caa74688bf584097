"""What a tail leaves in its output about itself, and about the table of messages that it keeps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reput.format import names
from reput.store import files


@dataclass(frozen=True, slots=True)
class RunNote:
    """A note for people and for ``reput status``; no run depends on it.

    Attributes:
        pid: the tail's process.
        started_ms: when it began, ms since the epoch.
        broker_conf: the broker.conf that it was given, absolute, or None.
        metrics: the URL of its metrics, or None.
    """

    pid: int
    started_ms: int
    broker_conf: str | None = None
    metrics: str | None = None

    def write(self, root: Path) -> None:
        """Leave the note in an output; it stays there after the run.

        Raises:
            OutputError: it can't be written.
        """
        files.write_atomically(root / names.REPUT / names.RUN, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, root: Path) -> RunNote | None:
        """The note of the last tail, or None: there was none, or the note can't be read."""
        try:
            note = cls(**_facts(root / names.REPUT / names.RUN))
        except TypeError:
            return None
        sound = _are(int, note.pid, note.started_ms) and _are_texts(note.broker_conf, note.metrics)
        return note if sound else None


@dataclass(frozen=True, slots=True)
class TableNote:
    """What became of the table of messages beside the last tail; no run depends on it.

    Attributes:
        table: its directory, absolute.
        failures: how often it could not be brought up to date, or not be kept up, since the tail began.
        last_success_ms: when it was brought up to date last, ms since the epoch; None before the first time.
        last_failure: what was said of the last failure; None without one.
    """

    table: str
    failures: int = 0
    last_success_ms: int | None = None
    last_failure: str | None = None

    def write(self, root: Path) -> None:
        """Leave the note in an output; it stays there after the run.

        Raises:
            OutputError: it can't be written.
        """
        files.write_atomically(root / names.REPUT / names.TABLE, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, root: Path) -> TableNote | None:
        """The note of the last tail, or None: it kept no table, or the note can't be read."""
        try:
            note = cls(**_facts(root / names.REPUT / names.TABLE))
        except TypeError:
            return None
        numbers = (note.failures, note.last_success_ms or 0)
        sound = _are(str, note.table) and _are(int, *numbers) and _are_texts(note.last_failure)
        return note if sound and _is_place(note.table) else None

    @staticmethod
    def remove(root: Path) -> None:
        """Take the note of an earlier tail away, or do nothing.

        Raises:
            OutputError: it can't be removed.
        """
        files.remove_tree(root / names.REPUT / names.TABLE)


def _facts(path: Path) -> dict[str, Any]:
    """What a note says; nothing if it can't be read. Whether that is what it should be, JSON doesn't say."""
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _is_place(text: str) -> bool:
    """Whether it is an absolute path that Delta Lake can be told."""
    try:
        return Path(text).is_absolute() and bool(text.encode())
    except UnicodeEncodeError:
        return False


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) and (kind is not str or "\0" not in str(value)) for value in values)


def _are_texts(*values: object) -> bool:
    return all(value is None or _are(str, value) for value in values)
