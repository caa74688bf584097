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
    """A range of one segment.

    Attributes:
        path: the segment.
        base: physical offset of the segment's first byte.
        segment_length: bytes of the segment that hold log data (the file's length, at most the set size).
        segment_size: bytes that the segment spans in the log.
        start, end: half-open range of record starts, physical offsets.
        exact: ``start`` is a record's first byte, or the record that begins there is damaged.
        last: no segment follows.
        after_timestamp: storeTimestamp (ms) of the record before, 0 if not known.
        witness: what the driver reads there, to be compared by a task on another host; None here.
    """

    path: str
    base: int
    segment_length: int
    segment_size: int
    start: int
    end: int
    exact: bool = True
    last: bool = False
    after_timestamp: int = 0
    witness: FileSeen | None = None


class Rules(NamedTuple):
    """The scan's switches.

    Attributes:
        topic_length_v2: magic v2 records are known (5.x).
        index_keys: UNIQ_KEY and KEYS are wanted for the index.
        index_tags: TAGS go to the index as ``topic#T#tags`` (5.4+).
        multi_dispatch: INNER_MULTI_DISPATCH adds units to other queues.
        lmq_queue_zero: queues named ``%LMQ%…`` get queue id 0 instead of the message's own.
        lmq_rejects_slash: queue names with ``/`` are passed over (5.1.2+).
        inner_batch: INNER_BASE and INNER_NUM must be numbers where both are present (5.x).
        check_crc: body CRC and, where present, the appended property CRC are checked.
        property_crc_only: the appended CRC replaces the body CRC (``forceVerifyPropCRC``).
        delay_levels: int64[levels], ms by ``DELAY`` level; index 0 is level 1.
        entries: records may be in DLedger's entries (``enableDLegerCommitLog``); None if they can't, so that
            the kernel is compiled without them.
        largest_record: bytes that no record exceeds; see :mod:`reput.scan.extent`.
    """

    topic_length_v2: bool
    index_keys: bool
    index_tags: bool
    multi_dispatch: bool
    lmq_queue_zero: bool
    lmq_rejects_slash: bool
    inner_batch: bool
    check_crc: bool
    property_crc_only: bool
    delay_levels: NDArray[np.int64]
    entries: bool | None = None
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
