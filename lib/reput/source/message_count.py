"""How many messages a small part of a live log holds, for Spark's own progress. Nothing else goes by it.

It is counted where the part's row is made: in a task whose result a tail collects beside its own work on the
batch, so that no batch waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format.commitlog import store_timestamp
from reput.format.dledger import record_at
from reput.log.parts import LogPart
from reput.log.segments import map_segment
from reput.scan.status import Status

#: Going over the headers of so many bytes takes some milliseconds.
_MOST_BYTES = 32 << 20


class Counted(NamedTuple):
    """What a part holds; None where it isn't known.

    Attributes:
        messages: records that begin in it.
        first_timestamp: the first one's storeTimestamp, ms.
    """

    messages: int | None = None
    first_timestamp: int | None = None


def count(part: LogPart, settings: StoreSettings) -> Counted:
    """Go over the part's frames. Unknown if it is large or damaged, or cut within a record."""
    if part.end - part.start > _MOST_BYTES:
        return Counted()
    from reput.log import walk_kernel

    start, stop = part.start - part.base, part.end - part.base
    try:
        data = map_segment(part.path, part.segment_length)[:stop]
    except StoreError:
        return Counted()  # whoever takes the part says so
    v2 = settings.dialect.topic_length_v2
    walked = walk_kernel.walk(data, part.base, start, stop, v2, 0, len(data), settings.entries)
    if not walked.records or (walked.position < stop and walked.status != Status.BLANK):
        return Counted()
    first = record_at(data.data, start) if settings.entries else start
    return Counted(walked.records, store_timestamp(data.data, first))
