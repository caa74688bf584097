"""The index files of one batch: which file comes after which, when a new one begins, its name and header.

Source: ``IndexService.getAndCreateLastIndexFile`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from reput.format import names
from reput.format.indexfile import IndexHeader
from reput.output.index import index_file
from reput.replay.key_spill import Spill
from reput.replay.target import Target


class BatchIndex(ABC):
    """Takes the index keys of one batch and puts them into index files.

    Args:
        target: where and what; says whether files are flushed here.
        known: the index files so far, in order: (name, header).

    Attributes:
        name, header: of the last file; None without one.
        changed: the files that were written: their headers by name.
    """

    def __init__(self, target: Target, known: list[tuple[str, IndexHeader]]) -> None:
        self.name: str | None = known[-1][0] if known else None
        self.header: IndexHeader | None = known[-1][1] if known else None
        self.changed: dict[str, IndexHeader] = {}
        self._target = target
        self._settings = target.settings
        self._waiting: list[Spill] = []
        self._first_timestamp: int | None = None

    def offer(self, spill: Spill | None, first_timestamp: int) -> None:
        """Take the next part's keys, in log order.

        Args:
            spill: the keys, None where the part has none.
            first_timestamp: storeTimestamp of the part's first message, ms; the first part's may name a file.
                Parts without messages are not offered.
        """
        if self._first_timestamp is None:
            self._first_timestamp = first_timestamp
        if spill is not None:
            self._waiting.append(spill)

    def finish(self, last_position: int) -> None:
        """Write what was taken, and the empty file that the broker makes for a message without keys.

        It makes one for the first message, and for the message after a full file.

        Args:
            last_position: physical offset of the last message dispatched so far, -1 if there was none.
        """
        self._put_waiting()
        header = self.header
        if last_position >= 0 and (
            header is None or (self.is_full(header) and last_position > header.end_physical_offset)
        ):
            empty = self.for_next_key()
            index_file.create_empty(self._target, *empty)
            self.moved(*empty)

    @abstractmethod
    def _put_waiting(self) -> None:
        """Write the keys that wait."""

    @abstractmethod
    def give_up(self) -> None:
        """Write no more, and return when nothing does: the batch has failed."""

    def moved(self, name: str, header: IndexHeader) -> None:
        """Record that a file is the last one now, with this header."""
        self.name, self.header = name, header
        self.changed[name] = header

    def is_full(self, header: IndexHeader) -> bool:
        """Whether a file takes no further key."""
        return header.index_count >= self._settings.max_index_num

    def for_next_key(self) -> tuple[str, IndexHeader]:
        """The file that the next key goes to, (name, header): the last one, or one that is to be made."""
        if self.name is None or self.header is None:
            return self.next_name(), IndexHeader()
        if self.is_full(self.header):
            return self.next_name(self.header.end_timestamp), self.header.successor()
        return self.name, self.header

    def next_name(self, end_timestamp: int | None = None, than: str | None = None) -> str:
        """The name of the file after the one ``than`` (by default the last) that ends at ``end_timestamp``.

        A broker names a file by its clock when the message after the full file comes, the first one when the
        log begins. Here the log's times stand for the clock, so that names don't depend on how the log was
        cut into parts: the first message's time, then the time at which the file before ends. A broker
        continues with the file of the greatest name, so none may be in its future, whatever the time in a
        damaged message.
        """
        timestamp = end_timestamp if end_timestamp is not None else self._first_timestamp or 0
        timestamp = min(max(timestamp, 0), int(time.time() * 1000))
        return names.later_index_name(timestamp, than or self.name)
