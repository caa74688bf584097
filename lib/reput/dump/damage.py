"""What a dump tells: records, whose fields have the names that JSON has, and what is wrong in their place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from reput.errors import Finding


@dataclass(frozen=True, slots=True)
class Record:
    """A record."""

    type: ClassVar[str]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        facts = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in facts.items()}
        return {"type": self.type, **plain}


@dataclass(frozen=True, slots=True)
class Damage(Finding):
    """A stretch that holds something else than it should; docs/look.md has its own kinds.

    Attributes:
        offset, end: half open; physical offsets in the commit log, bytes of the file elsewhere.
        queue_end: queueOffset after the last place in the queue; None as ``queue_offset``.
        in_log: it lies in the commit log.
    """

    queue_end: int | None = None
    in_log: bool = False

    @classmethod
    def of(cls, finding: Finding) -> Damage:
        """A finding of the scan, without the queue."""
        what = finding.expected, finding.found, finding.outcome
        return cls(finding.kind, finding.path, finding.offset, finding.end, *what, in_log=True)

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`."""
        facts = {"type": "damage", **Finding.to_dict(self)}
        if self.in_log:
            return facts
        places = {"physical_offset": None, "physical_end": None}
        return {**facts, **places, "file_offset": self.offset, "file_end": self.end}
