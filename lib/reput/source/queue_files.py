"""Which consume queue files hold what a query wants. Only directories are read, and of no file a byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.derived import rocksdb
from reput.derived.files import Entry, in_order, numbered_files
from reput.errors import StoreError
from reput.format import names
from reput.format.dtypes import BATCH, IN_ROCKSDB, PLAIN, Form
from reput.rocksdb import CURRENT
from reput.source.filters import Wanted
from reput.source.ranges import ReadStatistics, opened
from reput.store.reading import check_store, extents

PRE_BLANK, HOLE, DAMAGED = "pre-blank", "hole", "damaged"
_BLOCK = 512
_INT_MAX = 2**31 - 1
#: Of the file that names a RocksDB's MANIFEST: a name of 15 bytes and a line feed.
CURRENT_LENGTH = 16


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Some units of one file."""

    path: str  # the file; in RocksDB the database's CURRENT
    store: str  # the store's directory
    topic: str  # the queue's, as text
    queue_id: int  # the queue's
    form: Form  # the queue's
    base: int = 0  # the ordinal in the queue of the file's first unit
    first: int = 0  # first, last: half-open range of units in the file; in RocksDB of queueOffsets
    last: int = 0
    goes_on: bool = False  # a later file of the queue holds something
    ext: str | None = None  # the queue's directory in consumequeue_ext; None if missing
    weight: int = 0  # bytes on the disk

    @property
    def span(self) -> tuple[int, int]:
        """The units' bytes in the file, half open; in RocksDB those that tell one state from another."""
        if self.form == IN_ROCKSDB:
            return 0, CURRENT_LENGTH
        return self.first * self.form.unit_length, self.last * self.form.unit_length


def ranges(
    settings: StoreSettings, wanted: Wanted, part_bytes: int, *, blanks: bool, reads: ReadStatistics
) -> Iterator[UnitRange]:
    """The units of a store that can be wanted, by topic, queueId and place.

    Args:
        part_bytes: no range has more bytes.
        blanks: places without a unit are wanted, too: it has to be known where a queue ends.
        reads: where files that were opened are counted.
    """
    check_store(settings.root, expected="a directory with consumequeue/", next_step="Check the path")
    if wanted.is_nothing:
        return
    wants_blanks = blanks and any(wanted.wants_text("kind", other) for other in (PRE_BLANK, HOLE, DAMAGED))
    if wanted.wants_text("kind", PLAIN.name):
        yield from _in_rocksdb(settings, wanted, part_bytes)
    for form, directory in ((PLAIN, names.CONSUME_QUEUE), (BATCH, names.BATCH_CONSUME_QUEUE)):
        if form == PLAIN and not settings.rocksdb.files:
            continue
        if wants_blanks or wanted.wants_text("kind", form.name):
            for queue in _queues(settings, directory, wanted, form):
                yield from _of_queue(queue, wanted, part_bytes, blanks, reads)


def _in_rocksdb(settings: StoreSettings, wanted: Wanted, part_bytes: int) -> Iterator[UnitRange]:
    """The units in RocksDB, by the order of their keys."""
    path = rocksdb.database_of(settings)
    if path is None:
        return
    most = max(part_bytes // IN_ROCKSDB.unit_length, 1)
    with rocksdb.open_queues(path) as db:
        for topic, queue_id in rocksdb.queues_with_units(db):
            text = topic.decode("utf-8", "replace")
            if queue_id < 0 or not wanted.wants_text("topic", text):
                continue
            if not rocksdb.is_read_from(settings, text):
                continue
            if wanted.range_of("queueId").clip(queue_id, queue_id) is None:
                continue
            ends = rocksdb.extent(db, topic, queue_id)
            span = None if ends is None else wanted.range_of("queueOffset").clip(ends[0], ends[1] - 1)
            if span is None:
                continue
            for first in range(span[0], span[1] + 1, most):
                last = min(first + most, span[1] + 1)
                weight = (last - first) * IN_ROCKSDB.unit_length
                place = str(path / CURRENT), settings.place, text, queue_id, IN_ROCKSDB
                yield UnitRange(*place, first=first, last=last, weight=weight)


def _queues(settings: StoreSettings, name: str, wanted: Wanted, form: Form) -> Iterator[UnitRange]:
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
            has_ext = not form.has_time and ext.is_dir()
            # Only these know a time.
            if "storeTimestamp" in wanted.columns and not (form.has_time or has_ext):
                continue
            place = str(queue.path), settings.place, text, queue_id, form
            yield UnitRange(*place, ext=str(ext) if has_ext else None)


def _of_queue(
    queue: UnitRange, wanted: Wanted, part_bytes: int, blanks: bool, reads: ReadStatistics
) -> Iterator[UnitRange]:
    unit = queue.form.unit_length
    found = numbered_files(Path(queue.path))
    with_data = [base for path, base, length in found if blanks and _has_data(path, length, reads)]
    most = max(part_bytes // unit, 1)
    for path, base, length in found:
        if base % unit:
            raise StoreError(
                "no unit of the queue begins where this file does",
                path=path,
                expected=f"a name that is a multiple of {unit}",
                found=base,
                next_step="See what the file is; badStores=skip reads the other stores without this one",
            )
        first, last = 0, length // unit
        if queue.form.by_place:
            # Its place is a unit's queueOffset. Those of a batch queue stand in the units.
            span = wanted.range_of("queueOffset").clip(base // unit, base // unit + last - 1)
            if span is None:
                continue
            first, last = span[0] - base // unit, span[1] - base // unit + 1
        weight = min(_on_disk(path), (last - first) * unit)
        for at in range(first, last, most):
            stop = min(at + most, last)
            yield replace(
                queue,
                path=str(path),
                base=base // unit,
                first=at,
                last=stop,
                goes_on=any(other > base for other in with_data),
                weight=weight * (stop - at) // (last - first),
            )


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


def _has_data(path: Path, length: int, reads: ReadStatistics) -> bool:
    """Whether there is a byte in a file that isn't zero."""
    with opened(path, "a consume queue file", reads) as descriptor:
        for begin, end in extents(descriptor, 0, length):
            for at in range(begin, end, 1 << 20):
                data = os.pread(descriptor, min(1 << 20, end - at), at)
                reads.passed += len(data)
                if data.count(0) != len(data):
                    return True
    return False
