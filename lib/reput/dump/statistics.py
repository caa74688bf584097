"""Sums by topic, from columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reput.dump.columns import BYTES, FIRST, LAST, LEAST, MESSAGES, MOST, WIDTH, _add
from reput.dump.commitlog import Block
from reput.scan.table import QueueTable


@dataclass(frozen=True, slots=True)
class TopicSums:
    """What is said of a topic, or of all.

    Attributes:
        topic: None for all.
        messages: how many.
        bytes: of their records.
        least, most: bytes of the smallest and the largest record.
        first, last: storeTimestamp, ms, of the first and the last one in the log.
    """

    topic: str | None
    messages: int
    bytes: int
    least: int
    most: int
    first: int
    last: int

    @property
    def mean(self) -> float:
        """Bytes of a record."""
        return self.bytes / self.messages

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "type": "total" if self.topic is None else "topic",
            **({} if self.topic is None else {"topic": self.topic}),
            "messages": self.messages,
            "bytes": self.bytes,
            "minSize": self.least,
            "meanSize": round(self.mean, 1),
            "maxSize": self.most,
            "firstStoreTimestamp": self.first,
            "lastStoreTimestamp": self.last,
        }


class Statistics:
    """Adds up blocks; memory depends on the number of topics."""

    def __init__(self) -> None:
        self._table = QueueTable()
        self._sums = np.zeros((256, WIDTH), np.int64)
        self._first = self._last = 0

    def add(self, block: Block) -> None:
        """Add a block's records."""
        found, rows, data = block.frames, block.rows, block.data
        at = 0
        while True:
            at = _add(
                data, rows, at, found.topic, found.topic_length, found.size, found.store_timestamp,
                self._table.topics, self._sums,
            )  # fmt: skip
            if at == len(rows):
                break
            start, length = int(found.topic[rows[at]]), int(found.topic_length[rows[at]])
            number = self._table.intern_topic(data[start : start + length].tobytes())
            if number >= len(self._sums):
                self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
        times = found.store_timestamp
        if not self._sums[: len(self._table.topic_names), MESSAGES].sum() - len(rows):
            self._first = int(times[rows[0]])
        self._last = int(times[rows[-1]])

    def topics(self) -> list[TopicSums]:
        """The topics, the one with most bytes first."""
        known = [self._topic(name.decode(), number) for number, name in enumerate(self._table.topic_names)]
        return sorted(known, key=lambda one: (-one.bytes, one.topic or ""))

    def total(self) -> TopicSums | None:
        """All together; None when there is nothing."""
        sums = self._sums[: len(self._table.topic_names)]
        if not len(sums):
            return None
        return TopicSums(
            None,
            int(sums[:, MESSAGES].sum()),
            int(sums[:, BYTES].sum()),
            int(sums[:, LEAST].min()),
            int(sums[:, MOST].max()),
            self._first,
            self._last,
        )

    def _topic(self, name: str, number: int) -> TopicSums:
        sums = self._sums[number]
        return TopicSums(
            name,
            int(sums[MESSAGES]),
            int(sums[BYTES]),
            int(sums[LEAST]),
            int(sums[MOST]),
            int(sums[FIRST]),
            int(sums[LAST]),
        )
