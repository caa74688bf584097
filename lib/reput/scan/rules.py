"""What a scan is asked for: a part of the log, and the settings as plain numbers that numba takes.

No kernel is loaded here: who plans reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput.config.settings import StoreSettings
from reput.format import commitlog

if TYPE_CHECKING:
    from reput.store.witness import FileSeen


@dataclass(frozen=True, slots=True)
class Part:
    """A range of one segment."""

    path: str  # the segment
    base: int  # physical offset of the segment's first byte
    segment_length: int  # bytes of the segment that hold log data (the file's length, at most the set size)
    segment_size: int  # bytes that the segment spans in the log
    start: int  # start, end: half-open range of record starts, physical offsets
    end: int
    exact: bool = True  # ``start`` is a record's first byte, or the record that begins there is damaged
    last: bool = False  # no segment follows
    after_timestamp: int = 0  # storeTimestamp (ms) of the record before, 0 if not known
    #: what the driver reads there, to be compared by a task on another host; None here
    witness: FileSeen | None = None


class Rules(NamedTuple):
    """The scan's switches."""

    topic_length_v2: bool  # magic v2 records are known (5.x)
    index_keys: bool  # UNIQ_KEY and KEYS are wanted for the index
    index_tags: bool  # TAGS go to the index as ``topic#T#tags`` (5.4+)
    multi_dispatch: bool  # INNER_MULTI_DISPATCH adds units to other queues
    lmq_queue_zero: bool  # queues named ``%LMQ%…`` get queue id 0 instead of the message's own
    lmq_rejects_slash: bool  # queue names with ``/`` are passed over (5.1.2+)
    inner_batch: bool  # INNER_BASE and INNER_NUM must be numbers where both are present (5.x)
    check_crc: bool  # body CRC and, where present, the appended property CRC are checked
    property_crc_only: bool  # the appended CRC replaces the body CRC (``forceVerifyPropCRC``)
    delay_levels: NDArray[np.int64]  # int64[levels], ms by ``DELAY`` level; index 0 is level 1
    #: records may be in DLedger's entries (``enableDLegerCommitLog``); None if they can't, so that the
    #: kernel is compiled without them
    entries: bool | None = None
    #: bytes that no record exceeds; see :mod:`reput.scan.extent`
    largest_record: int = commitlog.LARGEST_RECORD


def rules(settings: StoreSettings, *, index: bool = True) -> Rules:
    """The rules of a store's settings and dialect; ``index`` False leaves the index keys out."""
    dialect = settings.dialect
    indexed = index and settings.message_index_enable
    return Rules(
        topic_length_v2=dialect.topic_length_v2,
        index_keys=indexed,
        index_tags=indexed and dialect.index_tags,
        multi_dispatch=settings.enable_multi_dispatch,
        lmq_queue_zero=settings.enable_lmq,
        lmq_rejects_slash=dialect.lmq_rejects_slash,
        inner_batch=dialect.inner_batch_properties,
        check_crc=True,
        property_crc_only=settings.force_verify_prop_crc,
        delay_levels=np.array(settings.delay_levels_ms, dtype=np.int64),
        entries=settings.entries or None,
        largest_record=settings.largest_record,
    )
