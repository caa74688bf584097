"""What a verification found, for people and programs. docs/findings.md has the kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.errors import STAND_IN, Fact, Finding
from reput.format import names
from reput.remote import with_urls
from reput.remote.client import Spent
from reput.words import counted

LOG, QUEUE, INDEX, CHECKPOINT = "log", "queue", "index", "checkpoint"
#: What is odd about a queue's messages and just as a live broker left it.
LEGAL = frozenset({"repeated-message", "queue-offset-jump", "queue-restarted", "unproven-message"})
#: How two stores differ.
ONLY_FIRST, ONLY_SECOND, DIFFERS = "only-in-first", "only-in-second", "differs"
#: Their logs have no part that both have, and nothing was compared.
NOTHING_IN_COMMON = "nothing-in-common"
#: Notes on what no verification can look at, or has nothing to look at.
NOT_IN_LOG, SWITCHED_OFF = "not-in-log", "switched-off"
#: The settings aren't those of the store's files, and nothing was compared.
OTHER_SETTINGS = "other-settings"


@dataclass(frozen=True, slots=True)
class Difference(Fact):
    """Something in the store that isn't what its log says, told by the first place that differs.

    Attributes:
        path: the file of the first one, or of the queue, the index or the checkpoint as a whole.
        area: "log", "queue", "index" or "checkpoint".
        expected, found: of the first one.
        first, end: half open: queueOffsets for a queue, physical offsets for the log and for keys that are
            missing from the index, ordinals for entries, slot numbers for slots; 0, 0 where it has none.
        count: how many of the range differ.
        offset: byte offset of the first one in its file; None in a database.
        topic, queue_id: of area "queue".
        cause: a stable, hyphenated name where it can be told, else None.
        remark: the cause in words, and what to know of it.
    """

    area: str
    expected: str
    found: str
    first: int = 0
    end: int = 0
    count: int = 1
    offset: int | None = 0
    topic: str | None = None
    queue_id: int | None = None
    cause: str | None = None
    remark: str | None = None

    @classmethod
    def of_log(cls, finding: Finding) -> Difference:
        """What a scan says of the log."""
        base = names.parse_offset_name(Path(finding.path).name) or 0
        return cls(
            area=LOG,
            kind=finding.kind,
            first=finding.offset,
            end=finding.end,
            count=finding.count,
            path=finding.path,
            offset=max(finding.offset - base, 0),
            expected=finding.expected,
            found=finding.found,
            topic=finding.topic,
            queue_id=finding.queue_id,
        )

    @property
    def is_stand_in(self) -> bool:
        """Whether damage was there, and reput has put a record in its place that brokers pass over."""
        return self.area == LOG and self.found.endswith(STAND_IN)

    @property
    def said(self) -> str:
        """What was expected and found."""
        return f"expected {self.expected}, found {self.found}"


def which_of_two(first: object, second: object) -> str:
    """How two stores differ in what at least one of them has."""
    return ONLY_SECOND if first is None else ONLY_FIRST if second is None else DIFFERS


def of_two(
    kind: str,
    paths: Sequence[Path | str],
    area: str,
    said: Sequence[str],
    span: tuple[int, int, int] = (0, 0, 1),
    **facts: Any,
) -> Difference:
    """How two stores differ, told in the first one unless the second alone has it.

    ``said`` is what each of them has; ``span`` what ``first``, ``end`` and ``count`` are.
    """
    expected, found = f"{said[0]} (first store)", f"{said[1]} (second store)"
    first, end, count = span
    path = str(paths[kind == ONLY_SECOND])
    return Difference(kind, path, area, expected, found, first=first, end=end, count=count, **facts)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is odd and legal, or that wasn't looked at."""

    kind: str  # a stable, hyphenated name
    text: str  # a sentence
    topic: str | None = None  # topic, queue_id: where it is about a queue
    queue_id: int | None = None
    count: int = 1  # how many units or entries

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a verification didn't read again, for it was proven before (:mod:`reput.verify.proofs`)."""

    segments: int  # segments, skipped: how many segments there are, and how many weren't read
    skipped: int
    #: of log that was verified, and of log and files that were read to see that they are as they were
    bytes_read: int
    bytes_skipped: int  # of log
    since: str | None  # when the verification before this one was, ISO 8601; None if there was none
    first_seen: dict[str, str]  # when each finding was first there, by :func:`key_of`
    whole: str | None = None  # why all of the store is read each time, in words; None where it isn't
    spent: Spent | None = None  # what the server of a store elsewhere was asked in all; None for a store here

    def to_dict(self) -> dict[str, object]:
        """JSON-ready; findings have their own first_seen."""
        return {
            "segments": self.segments,
            "segments_skipped": self.skipped,
            "bytes_read": self.bytes_read,
            "bytes_skipped": self.bytes_skipped,
            "since": self.since,
            "whole": self.whole,
            "requests": None if self.spent is None else self.spent.requests,
            "bytes_fetched": None if self.spent is None else self.spent.fetched,
        }

    @property
    def text(self) -> str:
        """What wasn't read, and why that is believed, or why all was; nothing where it can change."""
        if self.whole is not None:
            return f"nothing, each time: {self.whole}"
        if not self.skipped:
            return ""
        return (
            f"{self.skipped:,} of {counted(self.segments, 'segment')} as they were when they were verified "
            f"before: by size, inode and times of files here, by the ETag elsewhere"
        )


#: What was compared, by the names of :class:`Report`.
MEASURES = ("against", "start", "end", "messages", "bytes", "queues", "units", "index_files", "index_entries")


def key_of(one: Any) -> str:
    """What tells a finding, of a comparison or a diagnosis, from others, also the next day."""
    facts = [one.kind, with_urls(one.path), one.topic, one.queue_id, one.first]
    return json.dumps(facts, separators=(",", ":"))


@dataclass(slots=True)
class Report:
    """What came of a verification, or of a comparison of two stores."""

    start: int  # start, end: physical offsets, half open: what of the log was looked at
    end: int
    broker_running: bool  # somebody wrote to the store meanwhile; the end was fixed when the run began
    against: str | None = None  # the other store's, None where the log was compared with
    messages: int = 0  # messages, bytes: whole records in that range
    bytes: int = 0
    queues: int = 0  # queues, units: what the log has, and was compared
    units: int = 0
    index_files: int = 0  # index_files, index_entries: in the store; 0 where the index wasn't looked at
    index_entries: int = 0
    seconds: float = 0.0  # wall time
    findings: list[Difference] = field(default_factory=list)  # what is wrong
    notes: list[Note] = field(default_factory=list)  # what is odd and legal
    not_checked: list[Note] = field(default_factory=list)  # what wasn't looked at
    remembered: Remembered | None = None  # what wasn't read again; None where nothing is remembered

    def facts(self) -> dict[str, object]:
        """What was compared, JSON-ready."""
        facts = {name: getattr(self, name) for name in MEASURES}
        remembered = None if self.remembered is None else self.remembered.to_dict()
        return {**facts, "remembered": remembered}
