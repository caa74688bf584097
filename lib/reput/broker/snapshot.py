"""What a broker finds when it loads a store, up to where recovery begins.

Source: ``DefaultMessageStore.load``, ``ConsumeQueueStore.load``, ``IndexService.load``, ``StoreCheckpoint``,
``ConfigManager.load``, ``BrokerController`` (rocketmq-all-4.9.7, 5.3.3; 5.5.0 by its bytecode).
"""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from reput.broker.config_files import (
    MISSING_CONFIG,
    config_problems,
    missing_config,
    missing_config_problem,
)
from reput.config.broker_conf import SETTINGS
from reput.config.dialect import CleanStart, CrashStart
from reput.config.kept import BATCH_TYPE, PLAIN_TYPE, Kind, queue_types
from reput.config.settings import StoreSettings
from reput.derived.files import (
    MISSING_SEGMENTS,
    NO_FILE,
    WRONG_LENGTH,
    Entry,
    Listing,
    StoreFile,
    gaps,
    in_order,
    listed,
)
from reput.derived.index import read_header
from reput.derived.rocksdb import KeptQueues, open_index, read_kept
from reput.errors import OutputError, Problem, ReputError, SegmentGoneError, SettingsError, StoreError
from reput.format import commitlog, names, properties, rocksdbindex
from reput.format.checkpoint import LENGTH, StoreCheckpoint
from reput.format.dtypes import BATCH, PLAIN, Form
from reput.format.indexfile import IndexHeader, file_length
from reput.format.names import Queue
from reput.log.segments import ODD_NAME, choose_file, is_anothers, map_segment
from reput.log.walk import Frame, frame
from reput.rocksdb import CURRENT, is_database, traces
from reput.store.listing import queues_in
from reput.store.lock import Holder, store_holder
from reput.store.reading import DEVICE, FIFO, check_file, check_store, read_file, reading, stat_of, unreadable
from reput.words import counted

_DEFAULT_SEGMENT = 1 << 30  # MessageStoreConfig.mappedFileSizeCommitLog

#: Bytes of a timer wheel, whatever the settings: a slot of 32 for each second of twice 7 days.
_TIMER_WHEEL = 2 * 7 * 86_400 * 32
#: When a message of the wheel is due, ms, in its record.
_TIMER_OUT = re.compile(properties.TIMER_OUT_MS + rb"\x01(\d{1,19})")
#: Bytes of log that are looked through for one.
_MOST_FOR_TIMERS = 3 << 30
#: Problems that every file of a kind has where the settings are another store's.
_OF_LENGTHS = frozenset({WRONG_LENGTH, "index-length"})

#: Of a checkpoint that isn't there.
NO_CHECKPOINT = "no-checkpoint"
#: Of segments that are older by their files' times than by their messages.
OLD_TIMES = "old-times"
#: Messages of a segment, to see whether clients have sent any.
_MOST_LOOKED_AT = 64

#: ``ConsumeQueue.putMessagePositionInfoWrapper`` tries thirty times, then marks the store not writable.
_REFUSES = "once it has tried for 30 s, it takes no message any more"
#: ``IndexService.getAndCreateLastIndexFile`` unlocks what it hasn't locked, and the dispatch begins again.
_STAYS = "its dispatch stays at the next message with keys, and those behind it get no unit"

#: ``MappedFileQueue.findMappedFileByOffset`` counts segments from the first one (rocketmq-all-4.2.0).
_BY_COUNT = (
    "the broker starts, reads other segments in place of those behind the gap, and gives new messages no unit"
)

#: Names in a directory of queues, each with what is in it.
Topics = Sequence[tuple[Entry, Sequence[Entry]]]


#: There was no room for links to a database's files.
NO_ROOM = -2


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An index file as the broker loads it."""

    path: Path  # the file
    header: IndexHeader  # its header
    length: int  # its bytes before the broker fills it up


@dataclass(slots=True)
class Snapshot:
    """A store as a broker loads it, before it recovers."""

    settings: StoreSettings  # what it was read with
    clean: bool  # there is no ``abort``: the last broker stopped in good order
    segment_size: int  # bytes of a segment
    log: Listing  # the segments
    queues: dict[Queue, Listing]  # queues, batch_queues: consume queue files, by queue
    batch_queues: dict[Queue, Listing]
    checkpoint: StoreCheckpoint  # its values, zeros when there is no file
    checkpoint_exists: bool  # there is one
    index: tuple[IndexEntry, ...]  # index files in the order in which they are loaded
    holder: Holder | None  # who uses the store now
    #: files of consumequeue_ext, by queue; empty unless broker.conf switches them on
    ext_queues: dict[Queue, Listing] = field(default_factory=dict)
    #: queues in RocksDB, where they are there alone; else None: one beside files isn't read
    kept: KeptQueues | None = None
    #: the checkpoint key of queues in RocksDB beside those in files; None where it decides nothing
    beside: int | None = None
    #: physicalOffset of the last message in an index in RocksDB, 0 of an empty one, -1 of one that doesn't
    #: open, :data:`NO_ROOM` where it couldn't be tried; None without one
    index_mark: int | None = None
    #: what the broker stumbles over, in the order in which it does
    problems: list[Problem] = field(default_factory=list)

    @property
    def all_queues(self) -> dict[str, dict[Queue, Listing]]:
        """The files of all kinds of queues, by their directory."""
        return {
            names.CONSUME_QUEUE: self.queues,
            names.CONSUME_QUEUE_EXT: self.ext_queues,
            names.BATCH_CONSUME_QUEUE: self.batch_queues,
        }

    @property
    def by_form(self) -> dict[Form, dict[Queue, Listing]]:
        """The files of queues that have units."""
        return {PLAIN: self.queues, BATCH: self.batch_queues}

    @property
    def loaded(self) -> Snapshot:
        """The store with those files alone that a broker loads."""
        if self.settings.dialect.recovery.refuses_wrong_length:
            return self
        plain, batch, ext = (
            {queue: listing.loaded for queue, listing in queues.items()}
            for queues in (self.queues, self.batch_queues, self.ext_queues)
        )
        return replace(self, log=self.log.loaded, queues=plain, batch_queues=batch, ext_queues=ext)

    @property
    def has_derived(self) -> bool:
        """Whether there are queues, an index or a checkpoint."""
        kept = self.kept is not None and self.kept.exists
        return bool(self.queues or self.batch_queues or self.index or self.checkpoint_exists or kept)

    @property
    def starts(self) -> bool:
        """Whether a broker gets as far as recovering."""
        return not any(problem.stops for problem in self.problems)


def take(settings: StoreSettings) -> Snapshot:
    """Look at a store. Nothing is changed."""
    check_store(settings.root)
    rules = settings.dialect.recovery
    size = _segment_size(settings)
    chosen = partial(choose_file, topic_length_v2=settings.dialect.topic_length_v2, entries=settings.entries)
    setting, step = "mappedFileSizeCommitLog", _segment_step(settings)
    log = listed(settings.commit_log_dirs, size, rules, setting, step, chosen)
    in_files = settings.rocksdb.files
    topics = {name: _topics(settings.root / name) for name in queue_directories(settings)}
    queues, batch = (
        _queues(settings, name, topics.get(name, ()))
        for name in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
    )
    with_ext = in_files and settings.recovery.queue_ext
    ext_topics: Topics = _topics(settings.root / names.CONSUME_QUEUE_EXT) if with_ext else ()
    ext = _queues(settings, names.CONSUME_QUEUE_EXT, ext_topics)
    kept, rocksdb_problems = _rocksdb(settings)
    index, index_problems = _index(settings)
    checkpoint = settings.root / names.CHECKPOINT
    own = list(_own_files(settings))
    is_file = str(checkpoint) not in (problem.path for problem in own)
    stored, checkpoint_length = read_checkpoint(checkpoint) if is_file else (StoreCheckpoint(), LENGTH)
    snapshot = Snapshot(
        settings=settings,
        clean=not (settings.root / names.ABORT).exists(),
        segment_size=size,
        log=log,
        queues=queues,
        batch_queues=batch,
        checkpoint=stored,
        checkpoint_exists=checkpoint_length is not None,
        index=index,
        holder=store_holder(settings.root),
        ext_queues={queue: one for queue, one in ext.items() if queue in queues},  # as ConsumeQueue.load
        kept=None if settings.rocksdb.files else kept,
        beside=_beside(settings, kept),
        index_mark=_index_mark(settings),
    )
    if not log.files and not _has_anything(snapshot):
        raise StoreError(
            "there is no store here",
            path=settings.root,
            expected="a directory with commitlog/, consumequeue/, checkpoint or config/",
            found="none of them",
            next_step="Check the STORE argument, and storePathRootDir and storePathCommitLog in broker.conf",
        )
    met = [
        *_log_directory_problems(snapshot),
        *_no_directories(settings, topics),
        *rocksdb_problems,
        *(_compaction_problems(settings) if snapshot.holder is None else ()),  # it writes both in turn
        *_log_problems(settings, log, size),
        *_log_gaps(settings, log, size),
        *_old_times(settings, log, size),
        *(problem for directory in names.QUEUES for problem in _queue_problems(snapshot, directory)),
        *type_problems(snapshot),
        *index_problems,
        *_checkpoint_problems(snapshot, checkpoint_length),
        *own,
        *config_problems(settings),
        *_timer_problems(snapshot),
        *_lost_settings(snapshot),
    ]
    snapshot.problems += _one_for_one_cause(met, settings)
    return snapshot


#: A start then takes them from the log.
_WITHOUT_TIMERS = (
    "Without one, move timerwheel with each timerwheel.N, timerlog and config/timercheck away: all timed "
    "messages of the log are taken again, and those that were due are delivered once more."
)


def _timer_problems(snapshot: Snapshot) -> Iterator[Problem]:
    """``TimerWheel``, ``TimerLog.load`` (5.0.0 to 5.5.1): a file of another length ends a start.

    Without a broker.conf the files of the timer log are compared with each other alone.
    """
    settings = snapshot.settings
    size, step = settings.recovery.timer_log_file_size, f"Bring the file back from a copy. {_WITHOUT_TIMERS}"
    if not size or settings.remote is not None:
        return  # of a store elsewhere only what the rest needs is here
    wheel, log = settings.root / "timerwheel", settings.root / "timerlog"
    if settings.recovery.timer_snapshots:  # TimerWheel.getMaxSnapshotFlag (5.4.0, 5.5.0 by their bytecode)
        flags = (path.suffix[1:] for path in settings.root.glob("timerwheel.*"))
        newest = max((int(one) for one in flags if one.isascii() and one.isdigit()), default=None)
        wheel = wheel if newest is None else wheel.with_name(f"timerwheel.{newest}")
    length = wheel.stat().st_size if wheel.is_file() else 0
    if length not in (0, _TIMER_WHEEL):
        yield Problem(
            kind=WRONG_LENGTH,
            path=str(wheel),
            expected=f"{_TIMER_WHEEL} bytes",
            found=f"{length} bytes",
            outcome="the broker doesn't start",
            next_step=step,
            stops=True,
        )
    lengths = Counter(entry.length for entry in in_order(log))
    if settings.broker_conf is None and lengths:
        size = lengths.most_common(1)[0][0]
    found = listed([log], size, settings.dialect.recovery, "mappedFileSizeTimerLog", step)
    yield from (one for one in found.problems if one.stops)
    due, flushed, *taken = _timer_checkpoint(settings)
    if found.files and (length or found.files[0].base >= (flushed - size) // size * size):
        return  # TimerMessageStore.recover makes the wheel anew from there on
    if min(taken) > 0 and _may_wait(snapshot, due):
        yield Problem(
            kind=MISSING_CONFIG,
            path=str(wheel if found.files else log),
            expected="the timed messages that the broker has taken, by config/timercheck",
            found="nothing",
            outcome="the broker starts without them, and never delivers those that are still to come",
            next_step="With the broker stopped, copy timerwheel and timerlog from a backup. "
            + _WITHOUT_TIMERS,
        )


def _timer_checkpoint(settings: StoreSettings) -> tuple[int, ...]:
    """``TimerCheckpoint`` (rocketmq-all-5.3.3); zeros without a file.

    lastReadTimeMs, lastTimerLogFlushPos, and two queueOffsets: a start takes messages from the lower one on.
    """
    try:
        data = read_file(settings.root / names.CONFIG / "timercheck")
    except OSError:
        data = b""
    return struct.unpack(">4q", data[:32].ljust(32, b"\0"))


def _may_wait(snapshot: Snapshot, due: int) -> bool:
    """Whether the log has a timed message that is due at ``due``, ms, or later; yes if that takes too long.

    A message of the wheel that is rolled on comes into the log again, with the time that it is due.
    """
    last = -(-_MOST_FOR_TIMERS // snapshot.segment_size)
    for entry in reversed(snapshot.log.files[-last:]):
        try:
            data = map_segment(entry.path, snapshot.segment_size).data
        except ReputError:
            continue  # whoever reads the log says so
        if any(int(one[1]) >= due for one in _TIMER_OUT.finditer(data)):
            return True
    return len(snapshot.log.files) > last


def _compaction_problems(settings: StoreSettings) -> Iterator[Problem]:
    """``CompactionStore.load``, ``TopicPartitionLog.sanityCheck``: logs and their queues have the same files.

    Nothing is told of a queue without a directory, nor of files of several lengths: the broker passes over
    both. Files of the log behind the last one of a queue that has units are deleted before
    (rocketmq-all-5.1.0, 5.3.3; tried with the stores of 5.3.3 and 5.5.0).
    """
    root = settings.root / "compaction"
    if not settings.recovery.compaction:
        return
    for topic, queue_id, path in queues_in(root / "compactionLog"):
        queue = root / "compactionCq" / topic / str(queue_id)
        if not queue.is_dir():
            continue
        log, own = ([one for one in in_order(place) if not one.is_dir] for place in (path, queue))
        if any(
            len({one.length for one in files}) > 1 or not all(one.length for one in files)
            for files in (log, own)
        ):
            continue
        names_of, known = {one.name for one in log}, {one.name for one in own}
        if own and read_file(own[-1].path).count(0) != own[-1].length:
            names_of = {name for name in names_of if name <= own[-1].name}
        if names_of != known:
            yield Problem(
                kind="compaction-mismatch",
                path=str(path),
                expected=f"files of the same names as in {queue}",
                found=f"{min(names_of ^ known)} in one of them alone",
                outcome="the broker doesn't start",
                next_step=f"Bring {path} and {queue} back from one copy.",
                stops=True,
            )


def _one_for_one_cause(problems: list[Problem], settings: StoreSettings) -> list[Problem]:
    """Where the settings aren't the files', that alone is said, and not of each file how long it is."""
    found = []
    for cause in settings.basis.hiding:
        directory = settings.root / cause.directory
        of_lengths = [
            problem
            for problem in problems
            if problem.kind in _OF_LENGTHS and Path(problem.path).is_relative_to(directory)
        ]
        if not of_lengths:
            continue
        stops = any(problem.stops for problem in of_lengths)
        found.append(
            Problem(
                kind="other-settings",
                path=str(directory),
                expected=cause.used,
                found=cause.shown,
                outcome="the broker doesn't start" if stops else of_lengths[0].outcome,
                next_step=f"{cause.next_step}.",
                stops=stops,
            )
        )
        problems = [problem for problem in problems if problem not in of_lengths]
    return [*found, *problems]


def _has_anything(snapshot: Snapshot) -> bool:
    root = snapshot.settings.root
    places = (*snapshot.settings.commit_log_dirs, root / names.CONFIG)
    return snapshot.has_derived or not snapshot.clean or any(place.is_dir() for place in places)


def _log_problems(settings: StoreSettings, log: Listing, size: int) -> Iterator[Problem]:
    """Those of its files; where all have one other length, that once: it is another broker's broker.conf."""
    wrong = [one for one in log.problems if one.kind == WRONG_LENGTH and one.unloads]
    alone = Path(wrong[0].path) if len(wrong) == 1 else None
    is_mended = alone is not None and not is_anothers(alone, alone.stat().st_size, size)
    if log.files or not wrong or is_mended or len({one.found for one in wrong}) > 1:
        yield from log.problems
        return
    yield Problem(
        kind="other-settings",
        path=str(settings.commit_log_dirs[0]),
        expected=f"mappedFileSizeCommitLog={size}"
        + ("" if settings.segment_size is not None else ", RocketMQ's default"),
        found=wrong[0].found if alone else f"{len(wrong):,} segments of {wrong[0].found}",
        outcome="the broker doesn't start",
        next_step="Give the broker.conf that this store was written with: -c FILE.",
        stops=True,
    )
    yield from (one for one in log.problems if one not in wrong)


def _log_gaps(settings: StoreSettings, log: Listing, size: int) -> Iterator[Problem]:
    files, step = _up_to_gap(log.files, size), _from_elsewhere(settings)
    for problem in gaps(files, size, MISSING_SEGMENTS, step, _wrong_files(log)):
        finds = settings.dialect.recovery.finds_across_gaps or problem.kind != MISSING_SEGMENTS
        yield problem if finds else replace(problem, outcome=_BY_COUNT)


def _old_times(settings: StoreSettings, log: Listing, size: int) -> Iterator[Problem]:
    """Segments that a copy has given times before those of their messages, for which they will be deleted.

    ``MappedFileQueue.deleteExpiredFileByTime`` goes by the file's time alone, from the first file up to one
    that is young enough, and leaves the last (rocketmq-all-4.9.7, 5.3.3). What is as old by its messages goes
    by right.
    """
    if settings.remote is not None:
        return  # no broker runs there
    hours, now = settings.recovery.reserved_hours, time.time_ns() // 1_000_000
    since, old = now - hours * 3_600_000, []
    for segment in log.files[:-1]:
        try:
            changed = stat_of("the segment", segment.path).st_mtime_ns // 1_000_000
            if changed > since:
                break
            data = map_segment(segment.path, size).data
        except SegmentGoneError:
            continue  # a running broker deletes what has expired
        whole = isinstance(frame(data, segment.base, 0, settings.dialect.topic_length_v2), Frame)
        if whole and max(changed, since) < commitlog.store_timestamp(data, 0):
            old.append(segment)
    for first in old[:1]:
        yield Problem(
            kind=OLD_TIMES,
            path=first.place,
            expected="a time behind that of its first message",
            found=f"an older one; so of {counted(len(old), 'segment')}",
            outcome=f"the broker deletes such files at its next deleteWhen, as older than {hours:,} hours "
            "(fileReservedTime)",
            next_step=f"Before the broker starts, `touch` each segment from {first.place} on.",
        )


def _up_to_gap(files: tuple[StoreFile, ...], size: int) -> tuple[StoreFile, ...]:
    """Segments, without those behind the last gap that nothing was written to.

    A broker makes a segment ahead of time, and one that it cuts its log before stays
    (``AllocateMappedFileService``, ``MappedFileQueue.truncateDirtyFiles``; rocketmq-all-5.3.3).
    """
    from reput.broker.walk import first_written

    behind = [at for at in range(1, len(files)) if files[at].base > files[at - 1].base + size][-1:]
    for at in behind:
        if all(first_written(segment, size, 0) == size for segment in files[at:]):
            return files[:at]
    return files


def _log_directory_problems(snapshot: Snapshot) -> Iterator[Problem]:
    """A log that isn't where broker.conf says: ``MappedFileQueue.load`` takes that for an empty one."""
    directories = snapshot.settings.commit_log_dirs
    for directory in directories:
        if not directory.is_dir() and (len(directories) > 1 or snapshot.queues):
            yield Problem(
                kind="missing-log-directory",
                path=str(directory),
                expected="a directory of the commit log",
                found="nothing" if not directory.exists() else "no directory",
                outcome="the broker starts without the segments that belong there",
                next_step="Mount this directory, or mend storePathCommitLog in broker.conf.",
            )
    kept = snapshot.kept is not None and snapshot.kept.ends
    is_empty = not snapshot.log.files and not any(
        one.kind == WRONG_LENGTH and one.unloads for one in snapshot.log.problems
    )
    dated = snapshot.checkpoint != StoreCheckpoint()  # a broker writes one of zeros before its first message
    if is_empty and (snapshot.queues or snapshot.index or dated or kept):
        yield Problem(
            kind="no-log",
            path=str(directories[0]),
            expected="segments, for there are files derived from them",
            found="none",
            outcome=f"the broker starts with an empty log, and {_without_log(snapshot)}",
            next_step="Bring the commit log back before a broker starts, or copy a slave's whole store here. "
            "Without either, move the store away, and begin with an empty one.",
        )


def _without_log(snapshot: Snapshot) -> str:
    if snapshot.settings.dialect.recovery.destroys_after_clean or not snapshot.clean:
        return "deletes all queues"
    return "gives its new messages no unit until the log reaches as far as the queues do"


def queue_directories(settings: StoreSettings) -> Iterator[str]:
    """The directories in which a broker looks for files of queues."""
    if settings.rocksdb.files:
        yield names.CONSUME_QUEUE
        if settings.dialect.recovery.switches_queue_types:
            yield names.BATCH_CONSUME_QUEUE


def _no_directories(settings: StoreSettings, topics: Mapping[str, Topics]) -> Iterator[Problem]:
    """Files that lie where a broker has directories: ``File.listFiles`` gives null, and a load goes on.

    Source: ``ConsumeQueueStore.load``, ``DefaultMessageStore.loadConsumeQueue``, ``IndexService.load``,
    ``MappedFileQueue.load``, ``UtilAll.ensureDirOK``, ``RunningFlags.isWriteable`` (rocketmq-all-4.9.7,
    5.3.3). What becomes of them was tried with the stores of 4.9.7, 5.3.3 and 5.5.0.
    """
    root = settings.root
    for name, listed_topics in topics.items():
        if _is_no_directory(root / name):
            yield _no_directory(root / name, f"finds no queue and can't write any: {_REFUSES}")
        holds_rocksdb = traces(root / name)
        for topic, inside in listed_topics:
            if not topic.is_dir and holds_rocksdb:
                continue
            if not topic.is_dir:
                yield _no_directory(topic.path, f"can't write queues of a topic of this name: {_REFUSES}")
            for queue in inside:
                # 007 is queue 7, and its directory lies beside.
                named = names.is_queue_id(queue.name) and str(int(queue.name)) == queue.name
                if not queue.is_dir and named:
                    yield _no_directory(
                        queue.path, f"takes it for an empty queue and can't write it: {_REFUSES}"
                    )
    if settings.message_index_enable and _is_no_directory(root / names.INDEX):
        yield _no_directory(root / names.INDEX, f"finds no index file and can't write any: {_STAYS}")


def _rocksdb(settings: StoreSettings) -> tuple[KeptQueues | None, list[Problem]]:
    """Queues in RocksDB, and what is wrong about where they are.

    Source: ``RocksDBConsumeQueueStore`` (rocketmq-all-5.3.3; 5.5.0 by its bytecode), and what both do.
    """
    used = settings.rocksdb.queues
    problems = list(_other_forms(settings))
    if used is None:
        return None, problems
    directory = settings.root / used
    kept = KeptQueues(directory)
    if traces(directory):
        try:
            kept = read_kept(directory)
        except StoreError as error:
            problems.append(_broken_rocksdb(settings, error, directory))
    return kept, problems


def _beside(settings: StoreSettings, kept: KeptQueues | None) -> int | None:
    """The end of queues in RocksDB beside those in files, where a start goes back for it.

    Source: ``CombineConsumeQueueStore.isMappedFileMatchedRecover`` (5.4.0, 5.5.0 by their bytecode).
    """
    rules = settings.dialect.recovery
    if kept is None or not settings.rocksdb.files or rules.clean_start is not CleanStart.FIRST_RECORD:
        return None
    end = kept.checkpoint or 0
    # 5.5 passes over a database that no broker has begun.
    return None if end <= 0 and rules.crash_start is CrashStart.PHYSICAL_OFFSET else end


def _index_mark(settings: StoreSettings) -> int | None:
    """``MessageRocksDBStorage.getLastOffsetPy`` (5.5.0 by its bytecode)."""
    directory = settings.root / names.ROCKSDB_STORE
    if not (settings.rocksdb.index or settings.recovery.index_in_rocksdb):
        return None
    if not traces(directory):
        return 0
    try:
        with open_index(directory) as database:
            value = database.get(rocksdbindex.ENTRIES, rocksdbindex.LAST_POSITION)
    except StoreError:
        return -1
    except OutputError:
        return NO_ROOM
    if value is None:
        return 0
    return int.from_bytes(value[:8], "big", signed=True) if len(value) >= rocksdbindex.VALUE_LENGTH else -1


def _broken_rocksdb(settings: StoreSettings, error: StoreError, directory: Path) -> Problem:
    rebuild = settings.command("rebuild", "--in-place")
    return Problem(
        kind="broken-rocksdb",
        path=str(error.path or directory),
        expected=str(error.expected or "a RocksDB that opens"),
        found=str(error.found or error.problem),
        outcome=f"{error.problem}: the broker doesn't start",
        next_step=f"Bring the whole directory back from a copy, or let `{rebuild}` derive it from the log.",
        stops=True,
    )


def _other_forms(settings: StoreSettings) -> Iterator[Problem]:
    """Queues that are there in a form, or at a place, that the broker doesn't use."""
    used, root = settings.rocksdb.queues, settings.root
    asks_both = SETTINGS["useSeparateStorePathForRocksdbCQ"].is_known(settings.dialect)
    places = (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB)
    for name in places:
        if name == used or not is_database(root / name):
            continue
        if used is None:
            expected = "consume queue files alone, by storeType"
            outcome = "the broker leaves it alone, and makes files of what its walk reads"
        elif not asks_both:
            expected, outcome = f"a RocksDB in {used}/", "the broker leaves it alone"
        else:
            expected = f"a RocksDB in {used}/ alone, by useSeparateStorePathForRocksdbCQ"
            outcome = "the broker doesn't start with one here"
        yield Problem(
            kind="rocksdb-elsewhere",
            path=str(root / name / CURRENT),
            expected=expected,
            found="a RocksDB",
            outcome=outcome,
            next_step="Give the broker's own broker.conf. If this is it, mend it: storeType and "
            "useSeparateStorePathForRocksdbCQ have to say where the queues are; or move away what is old.",
            stops=used is not None and asks_both,
        )
    if not settings.rocksdb.files and any(queues_in(root / names.CONSUME_QUEUE)):
        yield Problem(
            kind="unused-queue-files",
            path=str(root / names.CONSUME_QUEUE),
            expected="queues in RocksDB alone, by storeType",
            found="directories of consume queue files",
            outcome="the broker doesn't read them",
            next_step="If they aren't old, mend storeType in broker.conf; else take them away.",
        )


def _is_no_directory(path: Path) -> bool:
    return os.path.lexists(path) and not path.is_dir()  # also a link that leads nowhere


def _no_directory(path: Path, outcome: str) -> Problem:
    return Problem(
        kind="not-a-directory",
        path=str(path),
        expected="a directory",
        found="no directory",
        outcome=f"the broker starts, {outcome}",
        next_step="Move it elsewhere.",
    )


def _segment_size(settings: StoreSettings) -> int:
    if settings.segment_size is not None:
        return settings.segment_size
    lengths = Counter(
        entry.length
        for directory in settings.commit_log_dirs
        for entry in in_order(directory)
        if not entry.is_dir and entry.length and names.parse_offset_name(entry.name) is not None
    )
    # A broker.conf that leaves it out has the default; of a single segment it proves nothing.
    if not lengths or (settings.broker_conf is not None and sum(lengths.values()) > 1):
        return _DEFAULT_SEGMENT
    return lengths.most_common(1)[0][0]


def _topics(directory: Path) -> Topics:
    """What lies in a directory of queues, and in each of its topics."""
    return [(topic, in_order(topic.place)) for topic in in_order(directory)]


def _from_elsewhere(settings: StoreSettings) -> str:
    replica = settings.command("mend", "--from", "REPLICA")
    return f"Take what is missing from a replica (begin with `{replica}`), or bring it back from a copy."


def _segment_step(settings: StoreSettings) -> str:
    """What is to be done about a segment of another length."""
    saves = settings.command("export", "--start", "N", "-o", "FILE")
    return (
        f"{_from_elsewhere(settings)} If there is neither, save its messages before you move it elsewhere: "
        f"`{saves}`, N being the number in its name."
    )


def _queues(settings: StoreSettings, directory: str, topics: Topics) -> dict[Queue, Listing]:
    """The files of the queues in one of the store's three directories of queues."""
    setting, file_size = settings.queue_file_sizes[directory]
    rules, mends = settings.dialect.recovery, settings.command("mend", "--apply")
    step = (
        f"`{mends}` makes the queues anew from the log, with the broker stopped. "
        "Or bring the file back from a copy."
    )
    return {
        (topic.name, int(queue.name)): listed([queue.place], file_size, rules, setting, step)
        for topic, inside in topics
        for queue in inside
        if names.is_queue_id(queue.name)
    }


def _queue_problems(snapshot: Snapshot, directory: str) -> Iterator[Problem]:
    _, file_size = snapshot.settings.queue_file_sizes[directory]
    rebuilds = snapshot.settings.command("rebuild", "--in-place")
    step = f"`{rebuilds}` makes the queues anew from the log, with the broker stopped."
    for listing in snapshot.all_queues[directory].values():
        yield from listing.problems
        yield from gaps(listing.files, file_size, "queue-file-missing", step, _wrong_files(listing))


def _wrong_files(listing: Listing) -> set[int | None]:
    """Where the files begin that have a problem of their own, and aren't missing."""
    wrong = (one for one in listing.problems if one.kind in (WRONG_LENGTH, NO_FILE))
    return {names.number(Path(one.path).name) for one in wrong}


def type_problems(snapshot: Snapshot) -> Iterator[Problem]:
    """``ConsumeQueueStore.queueTypeShouldBe``."""
    settings = snapshot.settings
    if not settings.dialect.recovery.switches_queue_types:
        return
    try:
        types = queue_types(settings.config)
    except SettingsError:
        return  # said of the file itself
    where = settings.config.where(Kind.TOPICS)
    for form, queues in snapshot.by_form.items():
        for topic in dict.fromkeys(topic for topic, _ in queues):
            said = types.get(topic, PLAIN_TYPE)
            right = PLAIN_TYPE if form.by_place else BATCH_TYPE
            if said == right:
                continue
            entry = f'"{topic}":{{"topicName":"{topic}","attributes":{{"queue.type":"{right}"}}}}'
            step = (
                f"Set queue.type of the topic to what its files are, {entry} in topicConfigTable, or move "
                "them elsewhere."
            )
            if said not in (PLAIN_TYPE, BATCH_TYPE):  # no files are of RocksDBCQ, and CQType has no other
                yield Problem(
                    kind="broken-config",
                    path=str(where),
                    expected=f"queue.type={right} for {topic}, as its files are",
                    found=f"queue.type={said}",
                    outcome="the broker doesn't start",
                    next_step=step,
                    stops=True,
                )
            else:
                yield Problem(
                    kind="queue-type",
                    path=str(settings.root / form.directory / topic),
                    expected=f"queues of the type that {where} says",
                    found=f"{form.name} queues",
                    outcome="the broker doesn't start",
                    next_step=step,
                    stops=True,
                )


def read_checkpoint(path: Path) -> tuple[StoreCheckpoint, int | None]:
    """The checkpoint and how many bytes it has, None if missing."""
    try:
        with reading(path, by_ranges=True) as fd:
            return StoreCheckpoint.decode(os.read(fd, 48)), os.fstat(fd).st_size
    except FileNotFoundError:
        return StoreCheckpoint(), None
    except OSError as error:
        raise unreadable("the checkpoint", path, error) from error


def _own_files(settings: StoreSettings) -> Iterator[Problem]:
    """The store's own files, where there is something else in their place.

    Source: ``StoreCheckpoint``, ``DefaultMessageStore.start``, ``createTempFile``, ``MixAll.string2File``
    (rocketmq-all-4.9.7, 5.3.3); tried with the stores of 4.9.7, 5.3.3 and 5.5.0.
    """
    recovery = settings.dialect.recovery
    for name in (names.CHECKPOINT, names.ABORT, *([names.LOCK] if recovery.takes_lock else [])):
        path = settings.root / name
        try:
            check_file(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            found = error.strerror or str(error)
            is_replaced = recovery.replaces_abort and error.errno == errno.ELOOP
            if name != names.ABORT:
                outcome = "the broker doesn't start"
            elif not recovery.switches_queue_types or found == DEVICE or is_replaced:
                continue
            elif found == FIFO:
                outcome = "the broker waits for ever for what comes out of it, and doesn't finish its start"
            else:
                outcome = "the broker recovers, and then doesn't finish its start"
            yield Problem(
                kind=NO_FILE,
                path=str(path),
                expected="a file",
                found=found,
                outcome=outcome,
                next_step="Move it elsewhere.",
                stops=True,
            )


def _checkpoint_problems(snapshot: Snapshot, length: int | None) -> Iterator[Problem]:
    """``StoreCheckpoint`` maps a page, which makes a missing or shorter file that long."""
    path = snapshot.settings.root / names.CHECKPOINT
    plan = snapshot.settings.command("check")
    if length is None and snapshot.log.files and (snapshot.queues or snapshot.batch_queues):
        yield Problem(
            kind=NO_CHECKPOINT,
            path=str(path),
            expected="a checkpoint, for there are queues",
            found="no such file",
            outcome="the broker makes a new one" if snapshot.clean else _without_checkpoint(snapshot),
            next_step=f"Nothing has to be done, for the stop was clean; `{plan}` says what a start does."
            if snapshot.clean
            else f"See with `{plan}` how far that goes, and whether keys stay away.",
        )
    elif length is not None and length != LENGTH:
        yield Problem(
            kind="checkpoint-length",
            path=str(path),
            expected=f"{LENGTH} bytes",
            found=f"{length} bytes",
            outcome="the broker fills it up with zeros, and takes those for times and offsets"
            if length < LENGTH
            else "the broker reads its start",
            next_step=f"Before a start after a crash see with `{plan}` how far that goes back.",
        )


def _without_checkpoint(snapshot: Snapshot) -> str:
    """What a start after a crash does: no segment is from before the times of a new checkpoint, all zero."""
    settings, begin = snapshot.settings, "from its first segment on"
    most = settings.recovery.most_segments
    if settings.dialect.recovery.limits_segments and most < len(snapshot.log.files):
        begin = f"from the {most:,} last segments on (commitLogRecoverMaxNum)"
    return (
        f"after a crash the broker reads the log {begin}, deletes the index files, and makes them anew as "
        "far as it reads"
    )


def _lost_settings(snapshot: Snapshot) -> Iterator[Problem]:
    """Settings that aren't there of a broker that must have had some.

    Nothing of a log that somebody has copied alone, of a store that no broker has written, or while a broker
    uses the store, which may have started this moment.
    """
    if not snapshot.has_derived or not snapshot.log.files or snapshot.holder is not None:
        return
    missing = [one for one in missing_config(snapshot.settings) if one.is_sure]
    if missing and (any(one.is_empty for one in missing) or _is_of_a_broker(snapshot)):
        yield from map(missing_config_problem, missing)


def _is_of_a_broker(snapshot: Snapshot) -> bool:
    """Whether one of the first messages of the log, or of its last segment, came through a broker.

    Source: ``AbstractSendMessageProcessor.buildMsgContext`` puts MSG_REGION into what clients send, and
    nothing in the store does (rocketmq-all-4.9.0, 4.9.7, 5.0.0, 5.1.0, 5.3.3; 5.5.0 by what it wrote).
    """
    files, rules = snapshot.log.files, snapshot.settings.dialect
    for entry in (files[0], files[-1])[: len(files)]:
        try:
            data = map_segment(entry.path, snapshot.segment_size).data
        except ReputError:
            continue  # whoever reads the log says so
        position = 0
        for _ in range(_MOST_LOOKED_AT):
            found = frame(data, entry.base, position, rules.topic_length_v2)
            if not isinstance(found, Frame):
                break
            if properties.MSG_REGION in properties.parse(bytes(data[slice(*found.properties)])):
                return True
            position = found.position + found.size
    return False


def _index(settings: StoreSettings) -> tuple[tuple[IndexEntry, ...], list[Problem]]:
    """``IndexService.load`` without what a crash drops."""
    found: list[IndexEntry] = []
    problems: list[Problem] = []
    length = file_length(settings.max_hash_slot_num, settings.max_index_num)
    refuses = settings.dialect.recovery.index_failure_refuses
    for entry in in_order(settings.root / names.INDEX):
        if names.number(entry.name) is None:
            problems.append(
                Problem(
                    kind="stray-index-file",
                    path=str(entry.path),
                    expected="a name of 17 digits",
                    found=entry.name,
                    outcome="the broker passes over it",
                    next_step="Move it elsewhere.",
                )
            )
        elif entry.what is not None and not _is_made(entry.path):
            problems.append(
                Problem(
                    kind="index-directory" if entry.is_dir else NO_FILE,
                    path=str(entry.path),
                    expected="a file",
                    found=entry.what,
                    outcome="the broker doesn't start"
                    if refuses
                    else "the broker loads no index file from here on",
                    next_step="Move it elsewhere.",
                    stops=refuses,
                )
            )
            break
        else:
            if not names.is_index_name(entry.name):
                problems.append(_odd_index_name(entry))
            if entry.length != length:
                problems.append(_wrong_index_length(entry, length))
            try:
                header = read_header(entry.path) if entry.what is None else IndexHeader(index_count=1)
                found.append(IndexEntry(entry.path, header, entry.length))
            except OSError as error:
                raise unreadable("this index file", entry.path, error) from error
    return tuple(found), problems


def _odd_index_name(entry: Entry) -> Problem:
    return Problem(
        kind=ODD_NAME,
        path=str(entry.path),
        expected="a name of 17 digits",
        found=entry.name,
        outcome="the broker takes it for an index file, in the order of the names: keys may be found twice",
        next_step="Move it elsewhere; `reput check` says whether keys are missing then.",
    )


def _is_made(path: Path) -> bool:
    """Whether a link leads nowhere: ``RandomAccessFile`` makes what it leads to, a file of zeros."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _wrong_index_length(entry: Entry, length: int) -> Problem:
    short = entry.length < length
    return Problem(
        kind="index-length",
        path=str(entry.path),
        expected=f"{length} bytes (maxHashSlotNum, maxIndexNum)",
        found=f"{entry.length} bytes",
        outcome="the broker fills it up with zeros: keys are missing"
        if short
        else "the broker reads its start",
        next_step="If both settings are the broker's, rebuild the index.",
    )
