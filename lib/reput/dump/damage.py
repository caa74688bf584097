"""What is wrong in a file that is dumped, in its place."""

from __future__ import annotations

from dataclasses import dataclass

from reput.errors import Finding


@dataclass(frozen=True, slots=True)
class Damage(Finding):
    """A stretch that holds something else than it should; docs/dump.md has its own kinds.

    Attributes:
        offset, end: half open; physical offsets in the commit log, bytes of the file elsewhere.
        queue_end: queueOffset after the last place in the queue; None as ``queue_offset``.
    """

    queue_end: int | None = None

    @classmethod
    def of(cls, finding: Finding) -> Damage:
        """A finding of the scan, without the queue."""
        what = finding.expected, finding.found, finding.outcome
        return cls(finding.kind, finding.path, finding.offset, finding.end, *what)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready, in the names of a message's columns; what isn't known is left out."""
        names = {"queue_id": "queueId", "queue_offset": "queueOffset", "queue_end": "queueEnd"}
        facts = Finding.to_dict(self)
        del facts["count"]
        known = {names.get(name, name): value for name, value in facts.items() if value is not None}
        return {"type": "damage", **known}
