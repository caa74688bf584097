"""What ``reput check`` says: what a load meets, what a crash costs the index, what leads past the log's end.

It stays quick whatever the store holds. Of each queue the last unit is read, and of the log the one record
that the furthest of them leads to, or the last key, or the checkpoint. Nearly always it is there. Only if it
isn't, the log's end is looked for in the frames of its last segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from reput.broker.batch_queue import BatchModel
from reput.broker.files import Listing, segment_at
from reput.broker.last_place import last_place
from reput.broker.problem import Problem
from reput.broker.queue import QueueModel
from reput.broker.record import Kind, judge
from reput.broker.snapshot import Queue, Snapshot
from reput.config.dialect import dialect
from reput.errors import OutputError
from reput.format import batchconsumequeue, commitlog, consumequeue, names, properties
from reput.log.end import LastMessage, of_any_release
from reput.log.segments import discover, map_segment, without_unwritten_end
from reput.recovery.past_end import (
    CHECKPOINT_AHEAD,
    INDEX_AHEAD,
    MOST_NAMED,
    PAST_LOG_END,
    CutBefore,
    keys_past,
    last_unit,
    left_by_a_cut,
    named,
    units_past,
)
from reput.recovery.rocksdb_check import index_database_problems, rocksdb_problems
from reput.recovery.verdict import Verdict, of_check, settings_not_there
from reput.rocksdb import traces
from reput.rocksdb.installed import is_installed
from reput.scan.reference import Frame, frame
from reput.store.ignored_features import ignored_features
from reput.store.reading import unreadable
from reput.words import counted, utc


@dataclass(frozen=True, slots=True)
class Check:
    """What ``reput check`` says of a store; ``to_dict`` is what ``--json`` prints.

    Attributes:
        snapshot: the store.
        problems: all that was found.
        unread: what couldn't be looked at, with the reason, for people.
    """

    snapshot: Snapshot
    problems: list[Problem]
    unread: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when nothing was found."""
        return int(bool(self.problems))

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        settings, clean = self.snapshot.settings, self.snapshot.clean
        return of_check(settings.release_name, str(settings.root), self.problems, clean=clean)

    @property
    def queue_files(self) -> int:
        """How many files plain and batch queues have."""
        queues = (*self.snapshot.queues.values(), *self.snapshot.batch_queues.values())
        return sum(len(one.files) for one in queues)

    @property
    def next_steps(self) -> list[str]:
        """What to do about what was found, each once."""
        return list(dict.fromkeys(problem.next_step for problem in self.problems))

    @property
    def not_read(self) -> list[str]:
        """What a check doesn't look at, and which command does."""
        settings = self.snapshot.settings
        plan = settings.command("recover", "--plan")
        reads = f"`{plan}` reads what a start reads, reput verify with the same options everything"
        found = [f"the log, and all units but each queue's last: {reads}"]
        if settings.rocksdb.queues is not None and settings.rocksdb.files:
            found.append(f"what is in {settings.rocksdb.queues}/ beside the files, but that it opens")
        found += self.unread
        of_index = any(line.startswith(f"{names.ROCKSDB_STORE}/") for line in self.unread)
        if traces(settings.root / names.ROCKSDB_STORE) and not of_index:
            opens = "but that it opens" if is_installed() else "for reput[rocksdb] isn't installed"
            verify = settings.command("verify")
            found.append(f"what is in {names.ROCKSDB_STORE}/, {opens}: `{verify}` compares an index in it")
        found += settings_not_there(settings, self.problems)
        return found

    def to_dict(self) -> dict[str, object]:
        """The facts as a JSON-ready mapping."""
        snapshot, settings = self.snapshot, self.snapshot.settings
        kept = snapshot.kept
        return {
            "verdict": self.verdict.sort,
            "summary": self.verdict.text,
            "store": str(settings.root),
            "rocketmq_version": settings.basis.rocketmq_version,
            "settings": settings.basis.to_dict(),
            "clean": snapshot.clean,
            "in_use_by": None if snapshot.holder is None else snapshot.holder.what,
            "starts": snapshot.starts,
            "segment_size": snapshot.segment_size,
            "segment_size_known": snapshot.segment_size_known,
            "segments": len(snapshot.log.files),
            "queues": len(snapshot.queues) + len(snapshot.batch_queues) + len(kept.ends if kept else ()),
            "rocksdb": None
            if kept is None
            else {"directory": str(kept.directory), "exists": kept.exists, "checkpoint": kept.checkpoint},
            "queue_files": self.queue_files,
            "index_files": len(snapshot.index),
            "left_alone": ignored_features(settings.root),
            "checkpoint": asdict(snapshot.checkpoint) if snapshot.checkpoint_exists else None,
            "findings": [problem.to_dict() for problem in self.problems],
            "not_read": self.not_read,
            "next_steps": self.next_steps,
        }


def check_snapshot(snapshot: Snapshot, heads: dict[str, bytes] | None = None) -> Check:
    """Look at what a broker loads.

    Args:
        heads: gets what was read of queues, see :func:`reput.broker.last_place.last_place`.

    Raises:
        ReputError: a file can't be read, or the segments contradict each other.
    """
    found = [*snapshot.problems, *not_derived(snapshot), *past_end(snapshot, heads)]
    unread: list[str] = []
    for name, problems in (
        (snapshot.settings.rocksdb.queues, rocksdb_problems(snapshot)),
        (names.ROCKSDB_STORE, index_database_problems(snapshot.settings)),
    ):
        try:
            found += problems
        except OutputError as error:  # no room for links or copies, without which a database isn't opened
            unread.append(f"{name}/, whether it opens and what is in it: {error}")
    return Check(snapshot, [*found, *_unsafe_index_files(snapshot)], tuple(unread))


class _QueueEnd(NamedTuple):
    """A queue: its files, and the physical offset in its last unit, -1 without one."""

    queue: Queue
    listing: Listing
    is_batch: bool
    place: int

    def directory(self, root: Path) -> Path:
        """Where it is in a store."""
        of_kind = names.batch_queue_directory if self.is_batch else names.queue_directory
        return of_kind(root, *self.queue)


def not_derived(snapshot: Snapshot) -> Iterator[Problem]:
    """Queues or index that are missing altogether, though the log begins with a message that belongs there.

    Raises:
        SegmentGoneError, StoreError: the first segment can't be read.
    """
    settings, files = snapshot.settings, snapshot.log.files
    kept = snapshot.kept
    has_queues = bool(
        snapshot.queues or snapshot.batch_queues or (kept is not None and (kept.ends or kept.units))
    )
    if not files or snapshot.log.unloadable is not None or (has_queues and snapshot.index):
        return
    data = map_segment(files[0].path, snapshot.segment_size).data
    first = frame(data, files[0].base, 0, settings.dialect.topic_length_v2)
    if not isinstance(first, Frame):
        return
    sys_flag = int.from_bytes(data[commitlog.SYS_FLAG : commitlog.SYS_FLAG + 4], "big")
    transaction = sys_flag & commitlog.TRANSACTION_MASK
    known = {problem.path for problem in snapshot.problems}  # a file in the directory's place, say
    steps = (
        f"`{settings.command('recover', '--plan')}` says which of them a start makes, and how to make all."
    )
    queues = str(settings.root / names.CONSUME_QUEUE if kept is None else kept.directory)
    index = str(settings.root / names.INDEX)
    broken = any(problem.kind == "broken-rocksdb" for problem in snapshot.problems)
    gets_unit = transaction in (commitlog.TRANSACTION_NONE, commitlog.TRANSACTION_COMMIT)
    if not has_queues and gets_unit and queues not in known and not broken:
        yield Problem(
            kind="no-queues",
            path=queues,
            expected="queues, for the log has messages",
            found="none" if kept is None or kept.exists else "no RocksDB there",
            outcome="consumers get nothing until they are made",
            next_step=steps,
        )
    has_keys = properties.has_keys(properties.parse(bytes(data[slice(*first.properties)])))
    in_rocksdb = settings.rocksdb.index and settings.broker_conf is None
    if (
        not snapshot.index
        and settings.message_index_enable
        and not in_rocksdb
        and has_keys
        and index not in known
    ):
        yield Problem(
            kind="no-index",
            path=index,
            expected="index files, for the log has messages with keys",
            found="none",
            outcome="a search by key finds nothing until they are made",
            next_step=steps,
        )


def _unsafe_index_files(snapshot: Snapshot) -> Iterator[Problem]:
    late = snapshot.checkpoint.index_msg_timestamp
    if snapshot.clean or snapshot.holder is not None:  # a broker that runs is always ahead of its checkpoint
        return
    for entry in snapshot.index:
        if entry.header.end_timestamp > late:
            yield Problem(
                kind="index-unsafe",
                path=str(entry.path),
                expected=f"an endTimestamp up to indexMsgTimestamp, {utc(late)}, after a crash",
                found=utc(entry.header.end_timestamp),
                outcome="the broker deletes it, and makes it again as far as its walk reads",
                next_step=f"`{snapshot.settings.command('recover', '--plan')}` says whether keys stay away.",
            )


def past_end(snapshot: Snapshot, heads: dict[str, bytes] | None = None) -> Iterator[Problem]:
    """What leads past the log's end; nothing while somebody uses the store, who may add to it meanwhile.

    Args:
        heads: gets what was read of queues, see :func:`reput.broker.last_place.last_place`.

    Raises:
        ReputError: a file can't be read, or the segments contradict each other.
    """
    files = snapshot.log.files
    if not files or snapshot.log.unloadable is not None or snapshot.holder is not None:
        return
    ends = list(_ends(snapshot, heads))
    keys = [entry.header.end_physical_offset for entry in keys_past(snapshot.index, 0)]
    furthest = max([last_unit(snapshot), *keys, *(one.place for one in ends)])
    if furthest < files[0].base or _stands_at(snapshot, furthest):
        return
    end = of_any_release(snapshot.settings, without_unwritten_end(discover(snapshot.settings)))
    yield from _queues_past(snapshot, [one for one in ends if one.place >= end.end], end)
    marks = [
        (INDEX_AHEAD, entry.path, entry.header.end_physical_offset)
        for entry in keys_past(snapshot.index, end.end)[-1:]
    ]
    if last_unit(snapshot) >= end.end:
        marks.append((CHECKPOINT_AHEAD, snapshot.settings.root / names.CHECKPOINT, last_unit(snapshot)))
    for kind, path, offset in marks:
        expected = f"physical offsets below {end.end}, where the log ends"
        yield _problem(snapshot, kind, path, expected, str(offset))


def _queues_past(snapshot: Snapshot, ends: list[_QueueEnd], end: LastMessage) -> Iterator[Problem]:
    after_cut = left_by_a_cut(snapshot, end.end, end.timestamp)
    before = CutBefore(snapshot, end.end, end.timestamp)
    # Of a queue with a hole it may be a unit that doesn't count: those that are named are looked at again.
    past = iter(sorted(ends, key=lambda one: one.queue))
    sure = (one for one in past if _units_past(snapshot, one, end.end, after_cut, before))
    first = list(islice(sure, MOST_NAMED))
    if not first:
        return
    queues = [one.queue for one in (*first, *past)]
    yield _problem(
        snapshot,
        PAST_LOG_END,
        first[0].directory(snapshot.settings.root),
        f"units of messages before {end.end}, where the log ends",
        f"{counted(len(queues), 'queue that leads', 'queues that lead')} past it: {named(queues)}",
    )


def _problem(snapshot: Snapshot, kind: str, path: Path, expected: str, found: str) -> Problem:
    lost = "the broker starts without the messages that were there"
    if kind == PAST_LOG_END:
        lost += ", and cuts the queues"
    elif kind == INDEX_AHEAD:
        lost += ", to which keys still lead"
    if not snapshot.clean:
        lost = f"after a crash, these may be messages that were never flushed: {lost}"
    return Problem(
        kind=kind,
        path=str(path),
        expected=expected,
        found=found,
        outcome=lost,
        next_step="Before a broker starts, look for the log's end, on a replica or in a backup; "
        f"`{snapshot.settings.command('recover', '--plan')}` says what a start takes away.",
    )


def _ends(snapshot: Snapshot, heads: dict[str, bytes] | None) -> Iterator[_QueueEnd]:
    """The last unit of each queue that a broker can load."""
    settings = snapshot.settings
    size = settings.consume_queue_file_size
    for queue, listing in snapshot.queues.items():
        if listing.unloadable is None:
            place = last_place(listing.files, size, consumequeue.UNIT_LENGTH, heads)
            yield _QueueEnd(queue, listing, False, place)
    size = settings.recovery.batch_queue_file_size
    for queue, listing in snapshot.batch_queues.items():
        if listing.unloadable is None and not size % batchconsumequeue.UNIT_LENGTH:
            place = last_place(listing.files, size, batchconsumequeue.UNIT_LENGTH)
            yield _QueueEnd(queue, listing, True, place)


def _units_past(snapshot: Snapshot, ends: _QueueEnd, end: int, after_cut: bool, before: CutBefore) -> int:
    """How many of the units that count for a broker lead past the log's end."""
    settings, files = snapshot.settings, ends.listing.files
    model: QueueModel | BatchModel
    try:
        if ends.is_batch:
            model = BatchModel(files, settings.recovery.batch_queue_file_size)
        else:
            model = QueueModel(files, settings.consume_queue_file_size)
        model.recover()
        return units_past(model, end, after_cut=after_cut, before=before)
    except (IndexError, ValueError):
        return 0  # such as a file that begins between two units: what a broker makes of it isn't known
    except OSError as error:
        raise unreadable("this queue", ends.directory(settings.root), error) from error


def _stands_at(snapshot: Snapshot, place: int) -> bool:
    """Whether a message stands at a physical offset, of any release and whatever its CRC.

    Raises:
        SegmentGoneError, StoreError: the segment can't be read.
    """
    size = snapshot.segment_size
    segment = segment_at(snapshot.log.files, size, place)
    if segment is None:
        return False
    judged = judge(map_segment(segment.path, size), place - segment.base, dialect(None), check_crc=False)
    return judged.kind is Kind.MESSAGE and judged.physical_offset == place
