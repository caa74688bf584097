"""How large the files of a day's stores are, and how much of the log is kept: less for a short run."""

from __future__ import annotations

from dataclasses import dataclass

from reput.format.consumequeue import UNIT_LENGTH
from reput.newer_python import Self

TOPICS, QUEUES = 4, 4
#: About what a message of FeedWriter.java takes in the log.
_RECORD = 230
_PAGE = 4096
#: Hours after which a segment expires; those that are to go are made older than that.
RESERVED_HOURS = 48


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a store's files.

    Attributes:
        segment: bytes of a commit log file.
        kept: bytes of log above which its oldest segments expire.
        queue_units: units in a consume queue file.
        index_entries, index_slots: maxIndexNum and maxHashSlotNum.
    """

    segment: int
    kept: int
    queue_units: int
    index_entries: int
    index_slots: int

    @classmethod
    def of(cls, messages: int) -> Self:
        """So that segments expire, and files of all kinds roll, in a run of so many messages.

        A day keeps 1 GiB of log in segments of 64 MiB; a run of a minute 30 MB in segments of 2 MiB.
        """
        log = messages * _RECORD
        segment = min(max(log // 320, 2 << 20), 64 << 20)
        segment -= segment % _PAGE
        entries = min(max(messages // 20, 10_000), 2_000_000)
        return cls(
            segment=segment,
            kept=max(min(log // 4, 1 << 30), 8 * segment),
            queue_units=min(max(messages // 160, 1000), 300_000),
            index_entries=entries,
            index_slots=entries // 4,
        )

    @property
    def config(self) -> dict[str, object]:
        """As properties of broker.conf."""
        return {
            "mappedFileSizeCommitLog": self.segment,
            "mappedFileSizeConsumeQueue": self.queue_units * UNIT_LENGTH,
            "maxHashSlotNum": self.index_slots,
            "maxIndexNum": self.index_entries,
            "fileReservedTime": RESERVED_HOURS,
            "deleteCommitLogFilesInterval": 0,
            "deleteConsumeQueueFilesInterval": 0,
            "cleanFileForciblyEnable": False,  # or a full disk of the machine decides
        }
