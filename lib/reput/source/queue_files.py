"""Which consume queue files hold what a query wants. Only directories are read, and of no file a byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.derived.files import Entry, in_order
from reput.errors import StoreError
from reput.format import batchconsumequeue, consumequeue, names
from reput.source.filters import Wanted
from reput.source.ranges import ReadStatistics, opened
from reput.store.reading import check_store, extents

PLAIN, BATCH = "plain", "batch"
PRE_BLANK, HOLE, DAMAGED = "pre-blank", "hole", "damaged"
_BLOCK = 512
_INT_MAX = 2**31 - 1
#: Of the file that names a RocksDB's MANIFEST: a name of 15 bytes and a line feed.
CURRENT_LENGTH = 16


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Some units of one file."""

    path: str
    store: str  # the store's directory
    topic: str  # the queue's, as text
    queue_id: int  # the queue's
    is_batch: bool  # it is a batch queue
    base: int  # the ordinal in the queue of the file's first unit
    first: int  # first, last: half-open range of units in the file
    last: int
    goes_on: bool  # a later file of the queue holds something
    ext: str | None  # the queue's directory in consumequeue_ext; None if missing
    weight: int  # bytes on the disk
    #: the RocksDB that has the queue; ``path`` is its CURRENT then, and ``first`` and ``last`` are
    #: queueOffsets
    database: str | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The units' bytes in the file, half open; in RocksDB those that tell one state from another."""
        if self.database is not None:
            return 0, CURRENT_LENGTH
        unit = batchconsumequeue.UNIT_LENGTH if self.is_batch else consumequeue.UNIT_LENGTH
        return self.first * unit, self.last * unit


def ranges(
    settings: StoreSettings, wanted: Wanted, part_bytes: int, *, blanks: bool, reads: ReadStatistics
) -> Iterator[UnitRange]:
    """The units of a store that can be wanted, by topic, queueId and place.

    Args:
        part_bytes: no range has more bytes.
        blanks: places without a unit are wanted, too: it has to be known where a queue ends.
        reads: where files that were opened are counted.

    Raises:
        StoreError: a directory can't be read, or a file has a name that no unit begins at.
    """
    from reput.source import queue_keys

    check_store(settings.root, expected="a directory with consumequeue/", next_step="Check the path")
    if wanted.is_nothing:
        return
    for kind, directory in ((PLAIN, names.CONSUME_QUEUE), (BATCH, names.BATCH_CONSUME_QUEUE)):
        wants_kind = wanted.wants_text("kind", kind) or (
            blanks and any(wanted.wants_text("kind", other) for other in (PRE_BLANK, HOLE, DAMAGED))
        )
        if kind == PLAIN and wanted.wants_text("kind", PLAIN):
            yield from queue_keys.ranges(settings, wanted, part_bytes)
        if wants_kind and not (kind == PLAIN and not settings.rocksdb.files):
            for queue in _queues(settings, directory, wanted, is_batch=kind == BATCH):
                yield from _of_queue(queue, wanted, part_bytes, blanks, reads)


def _queues(settings: StoreSettings, name: str, wanted: Wanted, *, is_batch: bool) -> Iterator[UnitRange]:
    """A range of no units of each queue of a kind that can be wanted; its path is the queue's directory."""
    root = settings.root
    for topic in in_order(root / name):
        text = os.fsencode(topic.path.name).decode("utf-8", "replace")
        if not topic.is_dir or not wanted.wants_text("topic", text):
            continue
        for queue in in_order(topic.path):
            queue_id = _queue_id(queue)
            if queue_id is None or wanted.range_of("queueId").clip(queue_id, queue_id) is None:
                continue
            ext = root / names.CONSUME_QUEUE_EXT / topic.path.name / queue.path.name
            has_ext = not is_batch and ext.is_dir()
            # Only these know a time.
            if "storeTimestamp" in wanted.columns and not (is_batch or has_ext):
                continue
            yield UnitRange(
                path=str(queue.path),
                store=settings.place,
                topic=text,
                queue_id=queue_id,
                is_batch=is_batch,
                base=0,
                first=0,
                last=0,
                goes_on=False,
                ext=str(ext) if has_ext else None,
                weight=0,
            )


def _of_queue(
    queue: UnitRange, wanted: Wanted, part_bytes: int, blanks: bool, reads: ReadStatistics
) -> Iterator[UnitRange]:
    unit = batchconsumequeue.UNIT_LENGTH if queue.is_batch else consumequeue.UNIT_LENGTH
    found = based_files(Path(queue.path))
    with_data = [base for base, entry in found if blanks and _has_data(entry, reads)]
    most = max(part_bytes // unit, 1)
    for base, entry in found:
        if base % unit:
            raise StoreError(
                "no unit of the queue begins where this file does",
                path=entry.path,
                expected=f"a name that is a multiple of {unit}",
                found=base,
                next_step="See what the file is; badStores=skip reads the other stores without this one",
            )
        first, last = 0, entry.length // unit
        if not queue.is_batch:
            # Its place is a unit's queueOffset. Those of a batch queue stand in the units.
            span = wanted.range_of("queueOffset").clip(base // unit, base // unit + last - 1)
            if span is None:
                continue
            first, last = span[0] - base // unit, span[1] - base // unit + 1
        weight = min(_on_disk(entry.path), (last - first) * unit)
        for at in range(first, last, most):
            stop = min(at + most, last)
            yield replace(
                queue,
                path=str(entry.path),
                base=base // unit,
                first=at,
                last=stop,
                goes_on=any(other > base for other in with_data),
                weight=weight * (stop - at) // (last - first),
            )


def based_files(directory: Path) -> list[tuple[int, Entry]]:
    """The files whose names say where they begin: (byte offset of the first byte, file), in order."""
    return [
        (base, entry)
        for entry in in_order(directory)
        if not entry.is_dir and (base := names.parse_offset_name(entry.path.name)) is not None
    ]


def _queue_id(entry: Entry) -> int | None:
    text = entry.path.name
    if not entry.is_dir or not (text.isascii() and text.isdigit()) or int(text) > _INT_MAX:
        return None
    return int(text)


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * _BLOCK
    except OSError:
        return 0  # gone just now; who reads it says so


def _has_data(entry: Entry, reads: ReadStatistics) -> bool:
    """Whether there is a byte in a file that isn't zero."""
    with opened(entry.path, "a consume queue file", reads) as descriptor:
        for begin, end in extents(descriptor, 0, entry.length):
            for at in range(begin, end, 1 << 20):
                data = os.pread(descriptor, min(1 << 20, end - at), at)
                reads.passed += len(data)
                if data.count(0) != len(data):
                    return True
    return False
