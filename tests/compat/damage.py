"""What goes wrong with a store: each damage is a function that changes a copy of one."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reput.format import commitlog, names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.consumequeue import UNIT_LENGTH, unit
from reput.format.indexfile import HEADER_LENGTH


@dataclass(frozen=True, slots=True)
class Record:
    """A message in the log: where it lies, and when it was stored (ms)."""

    segment: Path
    position: int
    offset: int
    size: int
    timestamp: int


@dataclass(slots=True)
class Copy:
    """A copy of a store, to be damaged."""

    root: Path
    segment_size: int
    queue_file_size: int

    @property
    def segments(self) -> list[Path]:
        return sorted((self.root / names.COMMIT_LOG).iterdir())

    def records(self) -> list[Record]:
        found = []
        for path in self.segments:
            data, at = path.read_bytes(), 0
            while at + 8 <= len(data):
                size, magic = struct.unpack_from(">iI", data, at)
                if magic not in (commitlog.MAGIC_V1, commitlog.MAGIC_V2):
                    break
                record = commitlog.decode(data, at)
                found.append(Record(path, at, int(path.name) + at, size, record.store_timestamp))
                at += size
        return found

    def queue(self, topic: str = "Orders", queue_id: int = 0) -> list[Path]:
        return sorted((self.root / names.CONSUME_QUEUE / topic / str(queue_id)).iterdir())

    def index(self) -> list[Path]:
        return sorted((self.root / names.INDEX).iterdir())

    def set_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        (self.root / names.CHECKPOINT).write_bytes(checkpoint.encode())

    def checkpoint(self) -> StoreCheckpoint:
        return StoreCheckpoint.decode((self.root / names.CHECKPOINT).read_bytes()[:48])


def write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def nothing(_copy: Copy) -> None:
    """No damage at all."""


def torn_last_message(copy: Copy) -> None:
    """The end of the last message was never written."""
    last = copy.records()[-1]
    write(last.segment, last.position + last.size - 60, bytes(60))


def torn_in_the_body(copy: Copy) -> None:
    """The last message was written up to the middle of its body."""
    last = copy.records()[-1]
    body = commitlog.BORN_HOST + 8 + 8 + 8 + commitlog.BODY_AFTER_STORE_HOST
    write(last.segment, last.position + body + 2, bytes(last.size - body - 2))


def zeroed_tail(copy: Copy) -> None:
    """The last messages were never written."""
    for record in copy.records()[-9:]:
        write(record.segment, record.position, bytes(record.size))


def bad_crc(copy: Copy) -> None:
    """A byte of a body in the last segment but one isn't what it was."""
    record = _in_segment(copy, -2)
    body = record.position + commitlog.BORN_HOST + 8 + 8 + 8 + commitlog.BODY_AFTER_STORE_HOST
    write(record.segment, body + 3, b"?")


def bad_magic(copy: Copy) -> None:
    """The magic in the middle of the last segment is none."""
    record = _in_segment(copy, -1)
    write(record.segment, record.position + commitlog.MAGIC, b"oops")


def bad_magic_early(copy: Copy) -> None:
    """The same, in the second segment."""
    record = _in_segment(copy, 1)
    write(record.segment, record.position + commitlog.MAGIC, b"oops")


def _in_segment(copy: Copy, number: int) -> Record:
    records = copy.records()
    segments = list(dict.fromkeys(record.segment for record in records))
    inside = [record for record in records if record.segment == segments[number]]
    return inside[len(inside) // 2]


def no_blank(copy: Copy) -> None:
    """The closing record of the last segment but one isn't there."""
    records = copy.records()
    segments = list(dict.fromkeys(record.segment for record in records))
    last = [record for record in records if record.segment == segments[-2]][-1]
    end = last.position + last.size
    write(last.segment, end, bytes(copy.segment_size - end))


def misplaced_record(copy: Copy) -> None:
    """A record in the last segment says that it lies elsewhere."""
    record = _in_segment(copy, -1)
    write(record.segment, record.position + commitlog.PHYSICAL_OFFSET, struct.pack(">q", record.offset + 7))


def log_shorter(copy: Copy) -> None:
    """The last two segments are gone: the queues know more than the log has."""
    written = list(dict.fromkeys(record.segment for record in copy.records()))
    for path in copy.segments:
        if path >= written[-2]:
            path.unlink()


def no_log(copy: Copy) -> None:
    """There are no segments."""
    for path in copy.segments:
        path.unlink()


def zeroed_units(copy: Copy) -> None:
    """The last units of one queue were never written."""
    _zero_units(copy.queue()[-1], 3, copy)


def all_queues_shorter(copy: Copy) -> None:
    """The last units of every queue were never written."""
    for topic in (copy.root / names.CONSUME_QUEUE).iterdir():
        for queue in topic.iterdir():
            _zero_units(sorted(queue.iterdir())[-1], 3, copy)


def _zero_units(path: Path, count: int, copy: Copy) -> None:
    data = path.read_bytes()
    used = copy.queue_file_size
    while used and not any(data[used - UNIT_LENGTH : used]):
        used -= UNIT_LENGTH
    start = max(used - count * UNIT_LENGTH, 0)
    write(path, start, bytes(used - start))


def last_queue_file_gone(copy: Copy) -> None:
    """The last file of one queue is gone."""
    copy.queue()[-1].unlink()


def topic_gone(copy: Copy) -> None:
    """One topic's queues are gone."""
    shutil.rmtree(copy.root / names.CONSUME_QUEUE / "Orders")


def queues_gone(copy: Copy) -> None:
    """All queues are gone."""
    shutil.rmtree(copy.root / names.CONSUME_QUEUE)


def queue_hole(copy: Copy) -> None:
    """Zeros in the middle of a queue's third-last file."""
    write(copy.queue()[-3], 5 * UNIT_LENGTH, bytes(2 * UNIT_LENGTH))


def empty_last_queue_file(copy: Copy) -> None:
    """The last file of a queue holds no unit."""
    path = copy.queue()[-1]
    write(path, 0, bytes(copy.queue_file_size))


def empty_queue_file_behind(copy: Copy) -> None:
    """No queue reaches the log's end, and the last file of one holds no unit."""
    path = copy.queue("Payments", 2)[-1]
    write(path, 0, bytes(copy.queue_file_size))
    all_queues_shorter(copy)


def index_gone(copy: Copy) -> None:
    """All index files are gone."""
    shutil.rmtree(copy.root / names.INDEX)


def index_torn(copy: Copy) -> None:
    """The last index file is cut short."""
    path = copy.index()[-1]
    path.write_bytes(path.read_bytes()[: HEADER_LENGTH + 77])


def index_header_zero(copy: Copy) -> None:
    """The last index file's header was never written."""
    write(copy.index()[-1], 0, bytes(HEADER_LENGTH))


def checkpoint_gone(copy: Copy) -> None:
    """There is no checkpoint."""
    (copy.root / names.CHECKPOINT).unlink()


def checkpoint_from_the_future(copy: Copy) -> None:
    """Every field of the checkpoint lies decades, and a terabyte, ahead."""
    late = 4_000_000_000_000
    copy.set_checkpoint(StoreCheckpoint(late, late, late, 0, 1 << 40, 1 << 40))


def expired_head(copy: Copy) -> None:
    """The log's first three segments have expired; queues and index still know them."""
    for path in copy.segments[:3]:
        path.unlink()


def missing_segment(copy: Copy) -> None:
    """A segment in the middle is gone."""
    copy.segments[4].unlink()


def missing_segment_without_queues(copy: Copy) -> None:
    """The same, and all queues are gone: 4.9 dispatches from the log's start."""
    missing_segment(copy)
    queues_gone(copy)


def stray_in_log(copy: Copy) -> None:
    """A text file lies among the segments."""
    (copy.root / names.COMMIT_LOG / "notes.txt").write_text("hello")


def stray_of_right_length(copy: Copy) -> None:
    """A file as long as a segment lies among them, and its name is no number."""
    (copy.root / names.COMMIT_LOG / "segment.bak").write_bytes(bytes(copy.segment_size))


def stray_directory_in_log(copy: Copy) -> None:
    """A directory lies among the segments."""
    (copy.root / names.COMMIT_LOG / "old").mkdir()


def stray_in_queue(copy: Copy) -> None:
    """A text file lies among the files of a queue."""
    (copy.root / names.CONSUME_QUEUE / "Orders" / "0" / "notes.txt").write_text("hello")


def stray_in_index(copy: Copy) -> None:
    """A text file lies among the index files."""
    (copy.root / names.INDEX / "notes.txt").write_text("hello")


def directory_in_index(copy: Copy) -> None:
    """A directory named like an index file lies among them."""
    (copy.root / names.INDEX / "20990101000000000").mkdir()


def short_segment(copy: Copy) -> None:
    """A segment lacks its last byte."""
    path = copy.segments[2]
    path.write_bytes(path.read_bytes()[:-1])


def empty_last_segment(copy: Copy) -> None:
    """The last segment is a file without a byte."""
    (copy.root / names.COMMIT_LOG / names.offset_name(1 << 40)).touch()


def short_queue_file(copy: Copy) -> None:
    """The first file of a queue lacks its last unit."""
    path = copy.queue()[0]
    path.write_bytes(path.read_bytes()[:-20])


def unit_of_a_cut(copy: Copy) -> None:
    """A start has cut the log before its last message, one unit was left, and another message came there."""
    last = copy.records()[-1]
    for queue in sorted((copy.root / names.CONSUME_QUEUE).glob("*/*")):
        path = sorted(queue.iterdir())[-1]
        data = path.read_bytes()
        used = -(-len(data.rstrip(b"\0")) // UNIT_LENGTH) * UNIT_LENGTH
        (position,) = struct.unpack_from(">q", data, max(used - UNIT_LENGTH, 0))
        if used and position != last.offset and used < copy.queue_file_size:
            write(path, used, unit(last.offset, last.size + 8, 0))
            return
    raise AssertionError("no queue has room for a unit")


def longer_size(copy: Copy) -> None:
    """The size of a record in the last segment is more than its lengths add up to."""
    record = _in_segment(copy, -1)
    write(record.segment, record.position, struct.pack(">i", record.size + 3))


def shorter_size(copy: Copy) -> None:
    """The size of the last record is less."""
    record = copy.records()[-1]
    write(record.segment, record.position, struct.pack(">i", record.size - 3))


def stray_in_front(copy: Copy) -> None:
    """A text file lies among the segments, and its name sorts before theirs."""
    (copy.root / names.COMMIT_LOG / ".notes").write_text("hello")


def stray_in_front_of_queue(copy: Copy) -> None:
    """The same, in a queue."""
    (copy.root / names.CONSUME_QUEUE / "Orders" / "0" / ".notes").write_text("hello")


def short_last_segment(copy: Copy) -> None:
    """The last segment that messages were written to lacks its last byte."""
    path = copy.records()[-1].segment
    path.write_bytes(path.read_bytes()[:-1])


def second_segment(copy: Copy) -> None:
    """The second segment lies there twice, once under a number without zeros before it."""
    shutil.copy(copy.segments[1], _beside(copy.segments[1], str(int(copy.segments[1].name))))


def second_segment_of_zeros(copy: Copy) -> None:
    """A file of zeros has a name of 19 digits, which is that of the second segment."""
    _beside(copy.segments[1], copy.segments[1].name[1:]).write_bytes(bytes(copy.segment_size))


def second_segment_in_front(copy: Copy) -> None:
    """The last segment but one lies there twice, once under a name that sorts before all others."""
    shutil.copy(copy.segments[-2], _beside(copy.segments[-2], f"+{int(copy.segments[-2].name)}"))


def second_segment_in_other_digits(copy: Copy) -> None:
    """The fifth segment lies there twice, once in the digits of another script."""
    other = "".join(chr(0x660 + int(digit)) for digit in copy.segments[4].name)
    shutil.copy(copy.segments[4], _beside(copy.segments[4], other))


def short_second_segment(copy: Copy) -> None:
    """Half of a copy of the second segment, under another number for its place."""
    _beside(copy.segments[1], str(int(copy.segments[1].name))).write_bytes(
        copy.segments[1].read_bytes()[:2000]
    )


def renamed_segment(copy: Copy) -> None:
    """The fifth segment has a name of 21 digits."""
    copy.segments[4].rename(_beside(copy.segments[4], f"0{copy.segments[4].name}"))


def segment_of_zeros(copy: Copy) -> None:
    """A segment in the middle holds nothing but zeros."""
    write(copy.segments[4], 0, bytes(copy.segment_size))


def last_segment_of_zeros(copy: Copy) -> None:
    """The last segment that messages were written to holds nothing but zeros."""
    write(copy.records()[-1].segment, 0, bytes(copy.segment_size))


def second_queue_file(copy: Copy) -> None:
    """A queue's second file lies there twice, once under a number without zeros before it."""
    path = copy.queue()[1]
    shutil.copy(path, _beside(path, str(int(path.name))))


def second_index_file(copy: Copy) -> None:
    """The first index file lies there twice, once with a sign before its name."""
    path = copy.index()[0]
    shutil.copy(path, _beside(path, f"+{path.name}"))


def fifo_in_log(copy: Copy) -> None:
    """A FIFO is in the place of a segment."""
    path = copy.segments[4]
    path.unlink()
    os.mkfifo(path)


def fifo_behind_the_log(copy: Copy) -> None:
    """A FIFO lies behind the segments."""
    os.mkfifo(_beside(copy.segments[0], "zzz"))


def link_to_nothing_in_log(copy: Copy) -> None:
    """A link that leads nowhere is in the place of a segment."""
    _link(copy.segments[4], "nowhere")


def loop_behind_the_log(copy: Copy) -> None:
    """A link to itself lies behind the segments."""
    _link(_beside(copy.segments[0], "zzz"), "zzz")


def device_in_queue(copy: Copy) -> None:
    """A device is in the place of a queue's first file."""
    _link(copy.queue()[0], "/dev/null")


def fifo_in_index(copy: Copy) -> None:
    """A FIFO is in the place of the last index file."""
    path = copy.index()[-1]
    path.unlink()
    os.mkfifo(path)


def loop_in_index(copy: Copy) -> None:
    """A link to itself is in the place of the last index file."""
    path = copy.index()[-1]
    _link(path, path.name)


def link_to_nothing_in_index(copy: Copy) -> None:
    """A link that leads nowhere is in the place of the first index file."""
    _link(copy.index()[0], "nowhere")


def fifo_as_checkpoint(copy: Copy) -> None:
    """A FIFO is in the checkpoint's place."""
    (copy.root / names.CHECKPOINT).unlink()
    os.mkfifo(copy.root / names.CHECKPOINT)


def directory_as_lock(copy: Copy) -> None:
    """A directory is in the place of ``lock``."""
    (copy.root / names.LOCK).unlink(missing_ok=True)
    (copy.root / names.LOCK).mkdir()


def fifo_as_lock(copy: Copy) -> None:
    """A FIFO is in the place of ``lock``."""
    (copy.root / names.LOCK).unlink(missing_ok=True)
    os.mkfifo(copy.root / names.LOCK)


def directory_as_abort(copy: Copy) -> None:
    """A directory is in the place of ``abort``."""
    (copy.root / names.ABORT).unlink(missing_ok=True)
    (copy.root / names.ABORT).mkdir()


def loop_as_abort(copy: Copy) -> None:
    """A link to itself is in the place of ``abort``."""
    _link(copy.root / names.ABORT, names.ABORT)


def device_as_abort(copy: Copy) -> None:
    """A device is in the place of ``abort``."""
    _link(copy.root / names.ABORT, "/dev/null")


def _beside(path: Path, name: str) -> Path:
    return path.with_name(name)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


Damage = Callable[[Copy], None]

#: Files under another name, of zeros, and what is no file: tests/compat/test_recovery.py alone tries them.
ODD_FILES: tuple[Damage, ...] = (
    second_segment,
    second_segment_of_zeros,
    second_segment_in_front,
    second_segment_in_other_digits,
    short_second_segment,
    renamed_segment,
    segment_of_zeros,
    last_segment_of_zeros,
    second_queue_file,
    second_index_file,
    fifo_in_log,
    fifo_behind_the_log,
    link_to_nothing_in_log,
    loop_behind_the_log,
    device_in_queue,
    fifo_in_index,
    loop_in_index,
    link_to_nothing_in_index,
    fifo_as_checkpoint,
    directory_as_lock,
    fifo_as_lock,
    directory_as_abort,
    loop_as_abort,
    device_as_abort,
)

#: What releases up to 4.4.0 take otherwise than later ones: likewise.
OF_SIZES: tuple[Damage, ...] = (
    longer_size,
    shorter_size,
    stray_in_front,
    stray_in_front_of_queue,
    short_last_segment,
)

#: The damages that every run of the tests looks at.
DAMAGES: tuple[Damage, ...] = (
    nothing,
    torn_last_message,
    torn_in_the_body,
    zeroed_tail,
    bad_crc,
    bad_magic,
    log_shorter,
    zeroed_units,
    all_queues_shorter,
    topic_gone,
    queues_gone,
    index_gone,
    index_torn,
    checkpoint_gone,
    checkpoint_from_the_future,
    expired_head,
    empty_last_queue_file,
    empty_queue_file_behind,
    stray_in_log,
    short_segment,
    bad_magic_early,
    no_blank,
    misplaced_record,
    no_log,
    last_queue_file_gone,
    queue_hole,
    index_header_zero,
    missing_segment,
    missing_segment_without_queues,
    stray_of_right_length,
    stray_directory_in_log,
    stray_in_queue,
    stray_in_index,
    directory_in_index,
    empty_last_segment,
    short_queue_file,
)
