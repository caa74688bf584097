"""What a day has shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reput.store.system import human


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a day in which nothing was wrong.

    Attributes:
        facts: for the file of results.
    """

    facts: dict[str, Any]

    @property
    def is_flat(self) -> bool | None:
        """Whether memory stayed as it was; None if no tail lived for long enough to say."""
        flat = self.facts["memory"]["longest_life"]["flat"]
        return None if flat is None else bool(flat)

    def lines(self) -> list[str]:
        """For people."""
        facts = self.facts
        events = ", ".join(f"{count} times {kind}" for kind, count in sorted(facts["events"].items()))
        memory, flat = (
            facts["memory"],
            {True: "flat", False: "NOT FLAT", None: "too short to say"}[self.is_flat],
        )
        compared, end = facts["compared"], facts["compared_at_the_end"]
        return [
            (
                f"fed: {facts['messages']:,} messages, {facts['log_bytes']:,} bytes of log, in "
                f"{facts['fed_seconds']:,} s; the writer was {facts['late_seconds']} s late"
            ),
            (
                f"happened: {events or 'nothing'}; {facts['expired_segments']} segments expired; "
                f"{facts['tails']} tails, {facts['stores']} starts of the store; restarts within tails: "
                f"{facts['restarts'] or 'none'}"
            ),
            (
                f"kept: {facts['kept']:,} messages, by the log and by the writer's count; lost by cuts: "
                f"{facts['lost_by_cuts']:,}; each queue ends there"
            ),
            (
                f"compared on the way, all before it expired: {compared['units']:,} units, "
                f"{compared['entries']:,} index entries: 0 bytes differ"
            ),
            (
                f"compared at the end: {end['queue_bytes']:,} bytes of queues, {end['index_bytes']:,} of "
                f"index files, {end['queue_bytes_of_the_fed_store']:,} of the fed store's queues: "
                "0 bytes differ"
            ),
            f"the checks themselves: {'; '.join(facts['proofs'])}",
            f"memory, the whole day: {_change(memory['day'])}",
            f"memory, the longest life of one tail: {_change(memory['longest_life'])}: {flat}",
        ]


def _change(part: dict[str, Any]) -> str:
    first, last = human(part["first_bytes"]), human(part["last_bytes"])
    window = f"{part['window_seconds']:,} s"
    return (
        f"{first} in the first {window}, {last} in the last, of {part['seconds']:,} s, {part['change']:+.1%}"
    )
