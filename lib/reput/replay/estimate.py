"""How much disk a rebuild will take, from a sample of the log."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from reput.build.bitmaps import BloomFilter
from reput.config.settings import StoreSettings
from reput.format import batchconsumequeue, properties
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.consumequeueext import HEAD_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, HEADER_LENGTH, SLOT_LENGTH
from reput.format.rocksdbindex import MS_AN_HOUR, keys_of
from reput.log.segments import CommitLog, open_segment
from reput.log.walk import Frame, frame
from reput.replay.runs import ROW as RUN_ROW
from reput.replay.spills import ROW

_SAMPLED_SEGMENTS = 8
_SAMPLED_BYTES = 1 << 18
_SPILL_PER_MESSAGE = 20
_SPILL_PER_KEY = 4
#: In a database, a key without what it has in common with the one before it, a value, and their share of what
#: leads to blocks; before compression, which depends on what is in them.
_IN_DATABASE, _KEY_IN_DATABASE = 40, 24
_MARGIN = 1.15
_FIXED = 64 << 20  # journal, ledger, Spark's checkpoint, and blocks that are only partly filled


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a log is likely to need."""

    messages: int  # messages, keys: likely numbers
    keys: int
    output_bytes: int  # disk space of queues of all kinds, index, databases, and what waits for them


def estimate(
    settings: StoreSettings,
    log: CommitLog,
    *,
    index: bool,
    bytes_per_batch: int,
    batch_topics: Set[str] = frozenset(),
    databases: bool = True,
) -> Estimate:
    """Sample the first 256 KiB of up to eight segments.

    ``index`` means files. With ``databases``, those are made that the settings say, with an index only where
    ``index`` is asked for.
    """
    queues_in_rocksdb = databases and settings.rocksdb.queues is not None
    index_in_rocksdb = databases and index and settings.rocksdb.index
    step = max(len(log.segments) // _SAMPLED_SEGMENTS, 1)
    sampled = messages = keys = batched = key_bytes = 0
    for segment in log.segments[::step][:_SAMPLED_SEGMENTS]:
        opened = open_segment(segment.path, segment.length)
        opened.fetch(0, _SAMPLED_BYTES)
        data = opened.data.data
        position = 0
        while position < min(_SAMPLED_BYTES, len(data)):
            opened.fetch_frame(position)
            record = frame(data, segment.base, position, settings.dialect.topic_length_v2, settings.entries)
            if not isinstance(record, Frame):
                break
            messages += 1
            raw = bytes(data[slice(*record.properties)])
            keys += _keys(raw, settings.dialect.index_tags)
            if index_in_rocksdb:
                topic = bytes(data[slice(*record.topic)])
                key_bytes += sum(map(len, keys_of(topic, properties.parse(raw), 0, MS_AN_HOUR, 0)))
            if batch_topics:
                batched += bytes(data[slice(*record.topic)]).decode("utf-8", "replace") in batch_topics
            position += record.size
        sampled += position
    if not messages:
        return Estimate(0, 0, _FIXED)
    share = sum(segment.length for segment in log.segments) / sampled
    all_messages, all_keys = int(messages * share), int(keys * share) if index else 0
    in_batches = int(batched * share)
    batches = max(sum(segment.length for segment in log.segments) / max(bytes_per_batch, 1), 1)
    # As if all topics had filters.
    bit_map = BloomFilter.create(settings.filters).bits // 8 if settings.has_bit_maps else 0
    needed = 0.0
    if settings.rocksdb.files or not queues_in_rocksdb:
        needed += (all_messages - in_batches) * UNIT_LENGTH * _MARGIN
        needed += in_batches * batchconsumequeue.UNIT_LENGTH * _MARGIN
    if queues_in_rocksdb:  # runs stay until the database is there
        needed += all_messages * (RUN_ROW.itemsize + _IN_DATABASE) * _MARGIN
    if index_in_rocksdb:
        needed += (2 * key_bytes + keys * _KEY_IN_DATABASE) * share * _MARGIN
    scratch, waiting = all_messages * _SPILL_PER_MESSAGE + all_keys * _SPILL_PER_KEY, in_batches
    if settings.recovery.queue_ext:
        needed += (all_messages - in_batches) * (HEAD_LENGTH + bit_map) * _MARGIN
        waiting = all_messages
    needed += (scratch + waiting * (ROW.itemsize + bit_map)) / batches
    if index:
        files = all_keys // (settings.max_index_num - 1) + 1
        needed += all_keys * ENTRY_LENGTH * _MARGIN
        needed += files * (HEADER_LENGTH + settings.max_hash_slot_num * SLOT_LENGTH)
    return Estimate(all_messages, all_keys, int(needed) + _FIXED)


def _keys(raw: bytes, tags: bool) -> int:
    values = properties.parse(raw)
    words = sum(1 for word in values.get(properties.KEYS, b"").split(b" ") if word)
    return words + (properties.UNIQ_KEY in values) + (tags and properties.TAGS in values)
