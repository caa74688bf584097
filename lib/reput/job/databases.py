"""What of a rebuild goes into RocksDB: what is refused, what is carried over, and the making of it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.config.stand_in import with_queues
from reput.derived.last_file import NO_UNIT
from reput.derived.rocksdb import stored_ends
from reput.errors import Finding, OutputError, StoreError, UnsupportedError
from reput.format import names, rocksdbindex
from reput.format.names import QueueBytes
from reput.format.rocksdbqueue import QueueEnd
from reput.job.summary import missing_queues, queues_without_messages
from reput.rocksdb import Database, is_database, opened, traces
from reput.rocksdb.reader import installed

if TYPE_CHECKING:
    from reput.config.settings import StoreSettings
    from reput.job.options import RebuildOptions
    from reput.job.plan import Plan
    from reput.output.writer import BatchWriter
    from reput.replay.runner import Runner
    from reput.replay.selection import Selection
    from reput.replay.target import Target

#: Keys in the column families of timers and half messages that are no message's (``MessageRocksDBStorage``).
_DELIVERY_MARKS = (rocksdbindex.LAST_POSITION, b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint")

#: The kind of a finding: of these queues it isn't known where they ended.
EXPIRED_QUEUES = "expired-queues"


def check(options: RebuildOptions, settings: StoreSettings, selection: Selection) -> None:
    """Refuse what can't be done with what is in RocksDB."""
    rocksdb = settings.rocksdb
    index = rocksdb.index and options.index and selection.is_all
    if rocksdb.queues is None and not index:
        return
    if not selection.is_all:
        if rocksdb.files:
            return  # the chosen queues' files are made, and the database stays as it is
        raise UnsupportedError(
            "chosen queues can't be put into a database, which has the queues of the whole store",
            path=settings.root / str(rocksdb.queues),
            expected="a rebuild of all queues",
            found=f"--queue {options.queues[0]}",
            next_step="Leave --queue out. For files of these queues, set storeType=default in a copy of "
            "broker.conf, and rebuild with --out",
        )
    installed(settings.root)
    if options.out is None and index:
        _check_delivery(settings)


def _check_delivery(settings: StoreSettings) -> None:
    """Refuse to replace what the log can't give back: timers and half messages that a broker has noted."""
    directory = settings.root / names.ROCKSDB_STORE
    try:
        family = with_delivery_state(directory)
    except StoreError as error:
        raise StoreError(
            f"it can't be told whether timers or half messages are in this database: {error.problem}",
            path=error.path or directory,
            offset=error.offset,
            expected=error.expected,
            found=error.found,
            next_step="Rebuild with --no-index, which leaves it as it is; or if none are awaited, move "
            f"{directory} away, and run the same command again",
        ) from error
    if family is not None:
        raise UnsupportedError(
            "this database also says which messages are still to be delivered, which the log doesn't",
            path=directory,
            expected=f"no entry in column family {family}",
            found=f"{family} has entries"
            if with_delivery_state(directory, marks=False) is not None
            else f"{family} has marks alone, of how far the broker has come",
            next_step="Rebuild with --no-index, which leaves it as it is, or with --out",
        )


def with_delivery_state(directory: Path, *, marks: bool = True) -> str | None:
    """The column family of ``rocksdbstore/`` that says what is still to be delivered; None if none does.

    With ``marks``, how far the broker has come counts, too, which stays when all was delivered.
    """
    if not traces(directory):
        return None
    with opened(directory) as database:
        for family in (rocksdbindex.TIMER, rocksdbindex.TRANS):
            if family not in database.families:
                continue
            keys, _ = next(database.blocks(family, most=len(_DELIVERY_MARKS) + 1), ((), ()))
            if any(marks or key not in _DELIVERY_MARKS for key in keys):
                return family
    return None


def check_continues(plan: Plan) -> None:
    """Refuse to add to a database that was made, where the log has more than it."""
    from reput.output.rocksdb import are_made, directories

    target = plan.target(flush_in_tasks=False)
    if target.in_rocksdb and are_made(target):
        raise OutputError(
            "the log has gone on since this database was made, and a database isn't added to",
            path=directories(target)[0],
            expected=f"a log that ends at {plan.journal.state.cursor}",
            found=f"one that ends at {plan.end}",
            next_step=f"Remove {plan.root} and run again",
        )


def carried(plan: Plan) -> dict[QueueBytes, QueueEnd]:
    """The last message of each queue of the store whose messages have all expired from the log.

    A broker goes on there, so that consumers' offsets stay valid. Only of a store that is rebuilt in place or
    restored, by its database and its files: of a queue in both what goes further. Where that can't be told,
    such queues begin at 0, and the journal gets a finding.
    """
    name = str(plan.settings.rocksdb.queues)
    directory, remote = plan.settings.root / name, plan.settings.remote
    if remote is not None:
        if not plan.log.start:
            return {}
        store = with_queues(remote, missing_queues(plan, remote.evidence_root))
        is_there = is_database(remote.evidence_root / name)
        directory = with_queues(remote, [name]) / name if is_there else directory
    elif not plan.in_place:
        return {}
    else:
        store, is_there = plan.settings.root, is_database(directory)
    found: dict[QueueBytes, QueueEnd] = {}
    doubtful: dict[QueueBytes, QueueEnd] = {}
    try:
        if is_there:
            with opened(directory) as database:
                found = expired_ends(database, plan, doubtful if plan.log.start else None)
    except StoreError as error:
        if plan.log.start:  # else none of their messages can have expired
            _tell(
                plan,
                str(error.path or directory),
                str(error.expected or "a RocksDB that can be read"),
                f"{error.found or 'none'}: {error.problem}",
                "queues without a message in the log begin at 0 again, but for those with files",
            )
    for (topic, queue_id), end in list(doubtful.items())[:1]:
        what = f"none at {end.position}, where {topic.decode('utf-8', 'replace')}:{queue_id} ends"
        others = f", and {len(doubtful) - 1:,} more queues" if len(doubtful) > 1 else ""
        outcome = "without a message in the log, they go on behind it"
        _tell(plan, str(directory), "a message in the log", what + others, outcome, len(doubtful))
    found |= {queue: QueueEnd(plan.log.start - 1, end.queue_offset) for queue, end in doubtful.items()}
    for queue, end in _last_units(plan, store, found.keys()).items():
        found[queue] = max(found.get(queue, end), end, key=lambda one: one.queue_offset)
    return found


def _tell(plan: Plan, path: str, expected: str, found: str, outcome: str, count: int = 1) -> None:
    """Have the journal say, once, what becomes of queues whose messages have expired."""
    state, start = plan.journal.state, plan.log.start
    finding = Finding(EXPIRED_QUEUES, path, start, start, expected, found, outcome, count=count)
    if finding not in state.findings:
        plan.journal.append(replace(state.without_messages(), findings=[finding]))


def expired_ends(
    database: Database, plan: Plan, doubtful: dict[QueueBytes, QueueEnd] | None = None
) -> dict[QueueBytes, QueueEnd]:
    """The last message of each queue of a database that points before the log.

    ``doubtful`` gets those that point into it, of queues that the log has no message of.
    """
    found: dict[QueueBytes, QueueEnd] = {}
    state = plan.journal.state
    for one in stored_ends(database):
        queue, end = one.queue, one.end
        if queue is None or end is None or not plan.selection.wants_topic(queue[0]):
            continue
        if end.position < plan.log.start:
            found[queue] = end
            continue
        name = queue[0].decode("utf-8", "surrogateescape"), queue[1]
        if doubtful is not None and end.position < state.cursor and name not in state.queues:
            doubtful[queue] = end
    return found


def _last_units(plan: Plan, store: Path, known: Set[QueueBytes]) -> dict[QueueBytes, QueueEnd]:
    """The last message of each queue that a store has in files and that the log has no message of.

    A place before the log stands for one that can't be told. Nothing is told of ``known`` queues where their
    files don't say it.
    """
    found: dict[QueueBytes, QueueEnd] = {}
    at_zero: list[tuple[str, str, str]] = []
    doubtful: list[tuple[str, str, str]] = []
    start = plan.log.start
    if not start:
        return found  # nothing has expired
    # A light queue, which RocksDB doesn't have then, may have any name.
    maybe_light = plan.settings.enable_multi_dispatch and not plan.settings.rocksdb.lmq
    for queue in queues_without_messages(plan, store):
        last, key = queue.last, (queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id)
        if isinstance(last, str):
            if last != NO_UNIT and key not in known and not maybe_light:
                at_zero.append((str(queue), "a last file that begins with units", last))
            continue
        if 0 <= last.left_out < plan.journal.state.cursor and key not in known and not maybe_light:
            where = f"a last unit before {start}, where the log begins"
            doubtful.append((str(queue), where, f"one at {last.left_out}"))
        position = last.last_position if last.last_position >= 0 else start - 1
        found[key] = QueueEnd(position, last.next_offset - 1)
    for odd, outcome in (
        (at_zero, "they begin at 0 again"),
        (doubtful, "they go on behind what their files hold"),
    ):
        for named, expected, what in odd[:1]:
            others = f", and {len(odd) - 1:,} more queues" if len(odd) > 1 else ""
            outcome = f"without a message in the log, {outcome}"
            _tell(plan, plan.settings.place, f"{named}: {expected}", f"{what}{others}", outcome, len(odd))
    return found


def make(plan: Plan, target: Target, runner: Runner, writer: BatchWriter) -> None:
    """Make the databases of what the tasks have put aside. After an error the same command makes it anew."""
    from reput.output import rocksdb
    from reput.output.batch import BatchTasks
    from reput.replay.state import collector_paused

    if not target.in_rocksdb:
        return
    writer.stages.begin()
    tasks = BatchTasks.for_databases(runner, target)
    with collector_paused():
        rocksdb.make(target, plan.journal, tasks, runner.slots, lambda: carried(plan), writer.stages.end)
    writer.finish()


def are_made(plan: Plan) -> bool:
    """Whether what goes into RocksDB is there; it isn't before all of the log was read."""
    from reput.output.rocksdb import are_made

    return are_made(plan.target(flush_in_tasks=False))
