"""What a broker's restart takes away from a store, or leaves broken: one fact at a time."""

from __future__ import annotations

from dataclasses import dataclass

#: Problems of a load that stand for messages which nobody can bring back from what is there.
LOG_GONE = frozenset({"missing-log-directory", "no-log", "missing-segments"})
#: Problems of a load that a rebuild from the log takes away, although the broker starts with them.
DERIVED_GONE = frozenset({"missing-queue-files", "index-length", "not-a-directory"})


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that the restart takes away, or leaves broken.

    Attributes:
        kind: a stable, hyphenated name; docs/recovery.md lists them all.
        path: the file or directory.
        offset, end: physical offsets in the log, or queueOffsets for a queue; half open.
        count: messages, units or keys concerned.
        text: the same for people.
    """

    kind: str
    path: str
    offset: int
    end: int
    count: int
    text: str

    def to_dict(self) -> dict[str, object]:
        """The loss as a JSON-ready mapping."""
        return {
            "kind": self.kind,
            "path": self.path,
            "offset": self.offset,
            "end": self.end,
            "count": self.count,
            "text": self.text,
        }
