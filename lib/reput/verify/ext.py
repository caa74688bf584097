"""The records in consumequeue_ext that a store's units lead to, read for many units at a time.

Source: ``ConsumeQueueExt.get``, ``CqExtUnit.read`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.format import consumequeueext, names
from reput.format.consumequeueext import FIRST_ADDRESS, HEAD_LENGTH, MAX_ADDRESS
from reput.verify.queue_reader import SeriesReader
from reput.verify.units import (
    DANGLING,
    MOST_RANGES,
    UNORDERED,
    WRONG_EXT,
    Record,
    Unit,
    UnitRange,
    pieces,
    span,
    units_of,
)

WHOLE, NO_FILE, NO_RECORD = range(3)

_KINDS = {
    1: (DANGLING, "file"),
    2: (DANGLING, "record"),
    3: (WRONG_EXT, "tagsCode"),
    4: (WRONG_EXT, "storeTimestamp"),
    5: (WRONG_EXT, "tagsCode and storeTimestamp"),
    6: (UNORDERED, None),
}
_HEAD = consumequeueext.HEAD_DTYPE
_MOST_OPEN = 128
#: Records further apart are read one by one, so that addresses that lead anywhere cost no long reads.
_APART = 1 << 16
_AT_ONCE = 1 << 24


class Records(NamedTuple):
    """What addresses lead to.

    Attributes:
        state: int8[n], WHOLE, NO_FILE or NO_RECORD: bytes that are none.
        tags, timestamp: int64[n], tagsCode and storeTimestamp in ms; where WHOLE.
    """

    state: NDArray[np.int8]
    tags: NDArray[np.int64]
    timestamp: NDArray[np.int64]


class ExtReader(SeriesReader):
    """Reads records of a store's queues.

    Args:
        file_size: ``mappedFileSizeConsumeQueueExt``, bytes.
    """

    def __init__(self, root: Path, file_size: int) -> None:
        super().__init__(root, file_size, names.queue_ext_directory, _MOST_OPEN)

    def read(self, topic: str, queue_id: int, addresses: NDArray[np.int64]) -> Records:
        """What some addresses lead to.

        Args:
            addresses: int64[n], none above MAX_ADDRESS.

        Raises:
            OSError: a file can't be read.
        """
        count = len(addresses)
        found = Records(
            np.full(count, NO_FILE, np.int8), np.zeros(count, np.int64), np.zeros(count, np.int64)
        )
        places = addresses ^ np.int64(FIRST_ADDRESS)
        order = np.argsort(places, kind="stable")
        places = places[order]
        near = (np.diff(places) > _APART) | (np.diff(places // self._file_size) != 0)
        near |= np.diff(places // _AT_ONCE) != 0
        cuts = [0, *(np.flatnonzero(near) + 1).tolist(), count]
        for first, stop in pairwise(cuts):
            if first < stop:
                self._read(topic, queue_id, places[first:stop], order[first:stop], found)
        return found

    def _read(
        self,
        topic: str,
        queue_id: int,
        places: NDArray[np.int64],
        rows: NDArray[np.int64],
        found: Records,
    ) -> None:
        """Records in one file that are near one another, their places ascending."""
        low, high = int(places[0]), int(places[-1])
        base = low - low % self._file_size
        fd = self.descriptor(topic, queue_id, base)
        if fd < 0:
            return
        length = min(high + HEAD_LENGTH, base + self._file_size) - low
        data = os.pread(fd, length, low - base)
        # A record that isn't all there is none; behind the end there are zeros, which are none either.
        buffer = np.frombuffer(data.ljust(high - low + HEAD_LENGTH, b"\0"), np.uint8)
        heads = buffer[(places - low)[:, None] + np.arange(HEAD_LENGTH)].reshape(-1).view(_HEAD)
        size = heads["size"].astype(np.int64)
        whole = (heads["width"] >= 0) & (size == HEAD_LENGTH + heads["width"].astype(np.int64))
        whole &= places - base + size <= self._file_size
        found.state[rows] = np.where(whole, WHOLE, NO_RECORD)
        found.tags[rows] = heads["tags"]
        found.timestamp[rows] = heads["timestamp"]


class OfMessages(NamedTuple):
    """What the records of some units have to hold.

    Attributes:
        own: bool[units], whether a unit has a record: those of light queues have none.
        timestamp: int64[units], storeTimestamp of the message in ms, -1 where it isn't known.
    """

    own: NDArray[np.bool_]
    timestamp: NDArray[np.int64]


def compare_records(
    reader: ExtReader,
    queue: tuple[str, int],
    first: int,
    expected: bytes | memoryview,
    found: bytes,
    before: bytes,
    messages: OfMessages,
) -> tuple[list[UnitRange], int]:
    """Compare what the addresses of units lead to with what the messages say.

    Looked at are units that are sound but for the address that stands for their tagsCode.

    Args:
        first: queueOffset of the first place.
        expected, found: packed units: by the log, and as they lie there.
        before: the unit in the place before them; zeros where there is none.
        messages: what the records have to hold.

    Returns:
        What differs; how many units hold their plain tagsCode.

    Raises:
        OSError: a file can't be read.
    """
    right, there = units_of(expected), units_of(found)
    same = (right["position"] == there["position"]) & (right["size"] == there["size"]) & messages.own
    tags = there["tags"].astype(np.int64)
    plain = int((same & (tags == right["tags"])).sum())
    rows = np.flatnonzero(same & (tags <= MAX_ADDRESS))
    if not len(rows):
        return [], plain
    records = reader.read(*queue, tags[rows])
    wanted = right["tags"][rows].astype(np.int64)
    whole = records.state == WHOLE
    wrong_tags = whole & (records.tags != wanted)
    timestamp = messages.timestamp[rows]
    wrong_time = whole & (records.timestamp != timestamp) & (timestamp >= 0)
    earlier = units_of(before + found)[:-1][rows]
    below = (earlier["tags"] <= MAX_ADDRESS) & (earlier["tags"].astype(np.int64) >= tags[rows])
    # What fills a hole is the unit of the next message, address and all.
    below &= (earlier["size"] > 0) & (earlier["position"] != there["position"][rows])
    ways = np.zeros(len(rows), np.int8)
    ways[below] = 6
    ways[wrong_tags] = 3
    ways[wrong_time] = 4
    ways[wrong_tags & wrong_time] = 5
    ways[records.state == NO_FILE] = 1
    ways[records.state == NO_RECORD] = 2
    ranges = []
    for way in np.unique(ways[ways > 0]).tolist():
        kind, field = _KINDS[way]
        chosen = np.flatnonzero(ways == way)
        for piece in pieces(chosen, rows[chosen], MOST_RANGES):
            at = int(piece[0])
            row = int(rows[at])
            record = None
            if kind == WRONG_EXT:
                record = (
                    Record(int(wanted[at]), int(timestamp[at])),
                    Record(int(records.tags[at]), int(records.timestamp[at])),
                )
            units = Unit(*right[row].tolist()), Unit(*there[row].tolist())
            ranges.append(UnitRange(kind, field, *span(first, rows[piece]), *units, record=record))
    return ranges, plain
