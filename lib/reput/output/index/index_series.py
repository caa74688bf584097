"""Which index file comes after which: when a new one begins, its name and its first header.

Source: ``IndexService.getAndCreateLastIndexFile`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import time

from reput.format import names
from reput.format.indexfile import IndexHeader


class IndexSeries:
    """The row of an output's index files, while a batch adds to it.

    Args:
        known: the files so far, in order: (name, header).
        max_index_num: ordinals of a file, the unused first one included.

    Attributes:
        name, header: of the last file; None without one.
    """

    def __init__(self, known: list[tuple[str, IndexHeader]], max_index_num: int) -> None:
        self.name: str | None = known[-1][0] if known else None
        self.header: IndexHeader | None = known[-1][1] if known else None
        self._max_index_num = max_index_num
        self._first_timestamp: int | None = None

    def see(self, first_timestamp: int) -> None:
        """Learn the storeTimestamp, ms, of a part's first message; the first part's may name a file."""
        if self._first_timestamp is None:
            self._first_timestamp = first_timestamp

    def is_full(self, header: IndexHeader) -> bool:
        """Whether a file takes no further key."""
        return header.index_count >= self._max_index_num

    def for_next_key(self) -> tuple[str, IndexHeader]:
        """The file that the next key goes to, (name, header): the last one, or one that is to be made."""
        if self.name is None or self.header is None:
            return self.next_name(), IndexHeader()
        if self.is_full(self.header):
            return self.next_name(self.header.end_timestamp), self.header.successor()
        return self.name, self.header

    def for_last_message(self, last_position: int) -> tuple[str, IndexHeader] | None:
        """The empty file that a broker makes for a message without keys: the first, or one after a full one.

        Args:
            last_position: physical offset of the last message dispatched so far, -1 if there was none.
        """
        if last_position < 0:
            return None
        if self.header is None:
            return self.next_name(), IndexHeader()
        if self.is_full(self.header) and last_position > self.header.end_physical_offset:
            return self.next_name(self.header.end_timestamp), self.header.successor()
        return None

    def next_name(self, end_timestamp: int | None = None, than: str | None = None) -> str:
        """The name of the file after the one ``than`` (by default the last) that ends at ``end_timestamp``.

        A broker names a file by its clock when the message after the full file comes, the first one when the
        log begins. Here the log's times stand for the clock, and how the log was cut up leaves no trace: the
        first message's time, then the time at which the file before ends. A broker goes on with the file of
        the greatest name, so that none may lie in its future, whatever a damaged message says.
        """
        timestamp = end_timestamp if end_timestamp is not None else self._first_timestamp or 0
        timestamp = min(max(timestamp, 0), int(time.time() * 1000))
        return names.later_index_name(timestamp, than or self.name)
