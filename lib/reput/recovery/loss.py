"""What a broker's restart takes away from a store, or leaves broken: one fact at a time."""

from __future__ import annotations

from dataclasses import dataclass

from reput.errors import Fact

#: Problems of a load that stand for messages which nobody can bring back from what is there.
LOG_GONE = frozenset({"missing-log-directory", "no-log", "missing-segments"})
#: Problems of a load that a rebuild from the log takes away, although the broker starts with them.
DERIVED_GONE = frozenset({"missing-queue-files", "index-length", "not-a-directory"})


@dataclass(frozen=True, slots=True)
class Loss(Fact):
    """Something that the restart takes away, or leaves broken; docs/recovery.md lists the kinds.

    Attributes:
        offset, end: physical offsets in the log, or queueOffsets for a queue; half open.
        count: messages, units or keys concerned.
        text: the same for people.
    """

    offset: int
    end: int
    count: int
    text: str

    @property
    def said(self) -> str:
        """What is lost, or broken."""
        return self.text
