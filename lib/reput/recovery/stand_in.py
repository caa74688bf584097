"""Records that stand where damage was, so that a starting broker's walk goes on behind it.

A stand-in is a message that a broker takes for whole and gives to nobody: its type is that of a transaction
rolled back, which neither a queue nor the index takes (``CommitLogDispatcherBuildConsumeQueue``,
``IndexService.buildIndex``; rocketmq-all-4.9.7, 5.3.3). Its body is the damaged bytes. Its stored place is
one more than its own: no broker compares the two (``checkCommitLogOffsetOnRecover`` asks for the segment
alone), while reput's scan passes over it as the damage that it is, so that a later rebuild or verify still
knows why queueOffsets are missing there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reput.format import commitlog
from reput.format.commitlog import Record

_TOPIC = b"reput"
#: Of a record without a body. A damaged message is never shorter than the first of these.
_LEAST = commitlog.MIN_RECORD_LENGTH + 1
_MOST = 1 << 20


def stand_ins(
    data: NDArray[np.uint8], base: int, start: int, end: int, timestamp: int
) -> Iterator[tuple[int, bytes]]:
    """Records that fill a damaged range, one after the other.

    Args:
        data: uint8[bytes], the segment.
        base: physical offset of its first byte.
        start, end: the range, positions in the segment, half open.
        timestamp: storeTimestamp, ms, of a message next to the range.

    Yields:
        Position in the segment, and the record's bytes.

    Raises:
        ValueError: the range is shorter than a record.
    """
    if end - start < _LEAST:
        raise ValueError(f"{end - start} bytes are no room for a record")
    while start < end:
        size = end - start
        if size > _MOST:
            size = min(_MOST, size - _LEAST)
        topic = _TOPIC[: size - commitlog.MIN_RECORD_LENGTH]
        around = commitlog.MIN_RECORD_LENGTH + len(topic)
        # The body lies where these very bytes lay.
        first = start + commitlog.body_at(commitlog.TRANSACTION_ROLLBACK)
        record = Record(
            topic=topic,
            body=data[first : first + size - around].tobytes(),
            physical_offset=base + start + 1,
            sys_flag=commitlog.TRANSACTION_ROLLBACK,
            born_timestamp=timestamp,
            store_timestamp=timestamp,
        )
        yield start, commitlog.encode(record)
        start += size
