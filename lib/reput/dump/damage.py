"""What is wrong in a file that is dumped, in its place."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from reput.errors import Finding


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch that holds something else than it should.

    Attributes:
        kind: a hyphenated name; docs/findings.md has those of the commit log, docs/dump.md the others.
        path: the file.
        offset, end: half open; physical offsets in the commit log, bytes of the file elsewhere.
        expected, found: what should be there, and what is.
        outcome: what comes of it.
        topic, queue_id: the queue, where it is one's and known.
        queue_offset, queue_end: half open, the places in the queue.
    """

    kind: str
    path: str
    offset: int
    end: int
    expected: str
    found: str
    outcome: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    queue_end: int | None = None

    @classmethod
    def of(cls, finding: Finding) -> Damage:
        """A finding of the scan."""
        return cls(
            finding.kind,
            finding.path,
            finding.offset,
            finding.end,
            finding.expected,
            finding.found,
            finding.outcome,
        )

    def to_dict(self) -> dict[str, object]:
        """JSON-ready, in the names of a message's columns; what isn't known is left out."""
        names = {"queue_id": "queueId", "queue_offset": "queueOffset", "queue_end": "queueEnd"}
        facts = {names.get(name, name): value for name, value in asdict(self).items() if value is not None}
        return {"type": "damage", **facts}
