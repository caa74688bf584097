"""What a tail leaves in its output about itself: where its metrics are, and which broker.conf it reads by."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

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
        files.write_atomically(_place(root), json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, root: Path) -> RunNote | None:
        """The note of the last tail, or None: there was none, or the note can't be read."""
        try:
            note = cls(**json.loads(_place(root).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return note if note._is_sound() else None

    def _is_sound(self) -> bool:
        """Whether the fields are what they are declared to be, which JSON doesn't say."""
        facts = asdict(self)
        numbers = isinstance(facts["pid"], int) and isinstance(facts["started_ms"], int)
        return numbers and all(
            text is None or (isinstance(text, str) and "\0" not in text)
            for text in (facts["broker_conf"], facts["metrics"])
        )


def _place(root: Path) -> Path:
    return root / names.REPUT / names.RUN
