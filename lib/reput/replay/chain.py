"""Joining scanned parts: each must begin where the one before it ended.

Parts in the middle of a segment begin at a guess (the first whole record that names its own place). It is
right unless a message's body, or the bytes behind a BLANK, hold a record that names that same place. A part
that doesn't fit is scanned again from where the log really continues; what it placed is placed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from reput.errors import Finding
from reput.log.segments import open_segment
from reput.scan.output import Status
from reput.scan.part import PartOutcome, wrong_end
from reput.scan.rules import Part


@dataclass(slots=True)
class ScannedPart:
    """A part, and what the scan says of its records."""

    part: Part  # the part
    outcome: PartOutcome  # where it began and ended, and the findings
    messages: int  # how many records it has
    last_timestamp: int  # storeTimestamp of the last one, ms; the part's ``after_timestamp`` without records


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a part's result."""

    accepted: bool  # the result counts
    again: Part | None = None  # the part to scan instead, None if nothing is missing


class Chain:
    """The log as far as its parts have been joined.

    Args:
        cursor: physical offset where the batch begins.
        last_timestamp: storeTimestamp of the record before it, ms.

    Attributes:
        cursor: physical offset up to which parts have been joined.
        last_timestamp: storeTimestamp of the last record that was taken, ms.
        newest: storeTimestamp of the last whole record, ms, dispatchable or not.
    """

    def __init__(self, cursor: int, last_timestamp: int) -> None:
        self.cursor = cursor
        self.last_timestamp = self.newest = last_timestamp
        self.findings: list[Finding] = []
        self.breaks: list[int] = []
        self.unproven: list[tuple[int, int]] = []
        self._part: Part | None = None
        self._status = Status.END
        self._rest_is_zero = False
        self._entries = False

    def judge(self, result: ScannedPart) -> Verdict:
        """Whether ``result`` fits; an accepted one advances the chain."""
        part, outcome = result.part, result.outcome
        if self._part is None or part.base != self._part.base:
            if part.last and outcome.breaks and part.after_timestamp != self.newest:
                # What a truncation left over is recognized by the time of the record before the damage.
                return Verdict(False, replace(part, after_timestamp=self.newest))
            self._close()
            self.cursor = part.start
            self._take(result)
            return Verdict(True)
        if self._status is Status.BLANK:
            # Bytes after a BLANK mean nothing, even where they look like records.
            return Verdict(False)
        nothing = outcome.first < 0
        if self._status is Status.END:
            if outcome.first == self.cursor and (not part.exact or part.start == self.cursor):
                self._take(result)
                return Verdict(True)
            if nothing and self.cursor >= part.end:
                return Verdict(True)
        elif self._status is Status.UNWRITTEN and self._rest_is_zero and nothing and outcome.rest_is_zero:
            self._part = part
            return Verdict(True)
        if part.exact and part.start == self.cursor:
            self._take(result)
            return Verdict(True)
        again = replace(part, start=self.cursor, exact=True, after_timestamp=self.newest)
        return Verdict(False, again if again.start < again.end else None)

    def finish(self) -> int:
        """End the batch; returns the physical offset that it reaches."""
        self._close()
        return self.cursor

    def _take(self, result: ScannedPart) -> None:
        outcome = result.outcome
        self._part = result.part
        self._status = outcome.status
        self._rest_is_zero = outcome.rest_is_zero
        self._entries = outcome.entries
        self.cursor = outcome.end
        if result.messages:
            self.last_timestamp = result.last_timestamp
        if outcome.newest is not None:
            self.newest = outcome.newest
        self.findings += outcome.findings
        self.breaks += outcome.breaks
        self.unproven += outcome.unproven

    def _close(self) -> None:
        """Leave a segment. Its end is only checked if the batch reaches it."""
        part = self._part
        if part is None or part.end < part.base + part.segment_length:
            return
        end = part.base + part.segment_size
        if self._status is Status.BLANK or self.cursor >= end:
            self.cursor = end
            return
        segment = open_segment(part.path, part.segment_length)
        # All of what is wrong is told by what stands at the cursor.
        segment.fetch_frame(self.cursor - part.base)
        data = segment.data
        finding = wrong_end(
            part, data, self.cursor, self._status, rest_is_zero=self._rest_is_zero, entries=self._entries
        )
        if finding is not None:
            self.findings.append(finding)
        if not part.last:
            self.breaks.append(self.cursor)
            self.cursor = end
