"""The rebuild job: from a store's commit log to its consume queues, index files, ledger and checkpoint.

A run is refused while it is planned, before Spark is started and before anything is changed.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Set
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from reput.config.stand_in import with_queues
from reput.derived.last_file import LastFile
from reput.derived.rocksdb import stored_ends
from reput.errors import Finding, OtherHostError, OutputError, SparkError, StoreError
from reput.format import names
from reput.format.names import QueueBytes
from reput.format.rocksdbqueue import QueueEnd
from reput.job.options import RebuildOptions
from reput.job.plan import Plan, intended, prepare
from reput.job.summary import (
    Gone,
    Summary,
    carry_over,
    drop_carried,
    expired_queues,
    left_to_mend,
    missing_queues,
    odd_queues,
    queues_without_messages,
    summarize,
)
from reput.log.segments import likely_end, open_segment
from reput.rocksdb import Database, is_database, opened
from reput.store import files
from reput.store.lock import OutputLock
from reput.store.swap import Swap, new_stamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.catalog.update import Catalog
    from reput.output.writer import BatchWriter, Progress
    from reput.replay.runner import Runner
    from reput.replay.target import Target
    from reput.spark.runner import SparkRunner


_Result = TypeVar("_Result")


def as_hosts_allow(
    plan: Plan, runner: SparkRunner, announce: Callable[[str], None], work: Callable[[Target], _Result]
) -> _Result:
    """Do a run's work, with tasks that write as the hosts of the executors allow.

    If an executor comes later, on a host that the others' way excludes, the work is begun again from what is
    committed; so it begins by rolling back what isn't. ``announce`` gets a line that says how tasks write,
    where that isn't the way of one host.
    """
    wanted = plan.options.single_host
    others = runner.other_hosts(plan.root) if wanted is None else []
    if wanted is None and not others and not runner.is_local:
        try:
            with runner.sharing_pages(plan.root):
                return work(plan.target(flush_in_tasks=True))
        except OtherHostError as error:
            others = [str(error.host)]
    several = bool(others) or wanted is False
    if several:
        where = f"executors on {_listed(others)}" if others else "executors may be on several hosts"
        announce(f"{where}: each queue file and index file is written by one process")
    return work(plan.target(flush_in_tasks=not runner.is_local, several_hosts=several))


def _listed(hosts: list[str]) -> str:
    shown = ", ".join(hosts[:3])
    return shown if len(hosts) <= 3 else f"{shown} and {len(hosts) - 3} more hosts"


def _silently(_text: str) -> None:
    pass


def rebuild(
    options: RebuildOptions,
    start_spark: Callable[[], SparkSession] | None,
    listener: Callable[[Progress, int], None] = lambda _progress, _total: None,
    announce: Callable[[str], None] = _silently,
) -> Summary:
    """Run a rebuild, on processes of this host where ``start_spark`` is None.

    Else it is only called once the run isn't refused. After an error what was there before is unchanged;
    running the same command again resumes an output that was begun.
    """
    started = time.perf_counter()
    to_catalog = options.to_catalog()
    table: Catalog | None = None
    intent = intended(options)
    if to_catalog is not None:
        from reput.catalog.update import Catalog

        table = Catalog(to_catalog, intent.settings)
    start_spark = None if start_spark is None else cache(start_spark)
    with ExitStack() as stack:
        plan = stack.enter_context(prepare(intent))
        if table is not None:
            stack.enter_context(table).check()
        before = replace(plan.journal.state)
        stages = {"check": time.perf_counter() - started}
        kept = plan.swapped
        if kept is None:
            stages |= (stage if plan.in_place else write)(plan, start_spark, listener, announce)
        cataloged = None
        if table is not None:
            began = time.perf_counter()
            cataloged = table.advance(lambda: _runner(start_spark), lambda: plan.journal.state.cursor)
            stages["catalog"] = time.perf_counter() - began
        if plan.in_place:
            kept = _swap(plan) if kept is None else kept
            files.remove_tree(plan.root)
        summary = summarize(plan, before, time.perf_counter() - started, kept, stages)
        return replace(summary, catalog=cataloged, stops=left_to_mend(plan))


def _runner(start_spark: Callable[[], SparkSession] | None) -> Runner:
    if start_spark is None:
        from reput.replay.runner import InlineRunner

        return InlineRunner()
    from reput.spark.runner import SparkRunner

    return SparkRunner(start_spark().sparkContext)


def write(
    plan: Plan,
    start_spark: Callable[[], SparkSession] | None,
    listener: Callable[[Progress, int], None],
    announce: Callable[[str], None] = _silently,
) -> dict[str, float]:
    """Write to the plan's directory what the log holds and the directory lacks.

    Returns the wall time of the run's stages in seconds; empty if there was nothing to do. After an error the
    committed state is as it was.
    """
    if _is_done(plan):
        catch_up(plan)
        return {}
    _check_continues(plan)
    if start_spark is None:
        return _run_here(plan, listener, announce)
    began = time.perf_counter()
    spark = start_spark()
    session = time.perf_counter() - began
    return {"session": session, **run(plan, spark, listener, announce).stages.seconds}


def stage(
    plan: Plan,
    start_spark: Callable[[], SparkSession] | None,
    listener: Callable[[Progress, int], None],
    announce: Callable[[str], None] = _silently,
    carried_from: Callable[[], Path] | None = None,
) -> dict[str, float]:
    """Do :func:`write`, so that what it wrote can take the place of a store's files.

    ``carried_from`` gives the store with the last files of queues that the log has no message of; the plan's
    own where there is none. It is called when the log was read.
    """
    from reput.output.audit import audit

    drop_carried(plan)
    stages = write(plan, start_spark, listener, announce)
    audit(plan.target(flush_in_tasks=False), plan.journal.state)
    carry_over(plan, plan.settings.root if carried_from is None else carried_from())
    ledger = plan.root / names.LEDGER
    if ledger.exists() and plan.owner is not None:  # written by a library that doesn't set owners
        files.give_tree(ledger, plan.owner)
    return stages


def run(
    plan: Plan,
    spark: SparkSession,
    listener: Callable[[Progress, int], None],
    announce: Callable[[str], None] = _silently,
) -> BatchWriter:
    """Run the pipeline from the journal's cursor to the log's end."""
    from reput.spark.runner import SparkRunner

    runner = SparkRunner(spark.sparkContext)
    plan = plan.for_slots(runner.slots)
    deliver = partial(_by_query, plan, spark, runner)
    with runner.shared(plan.root, plan.owner, plan.settings.config_files):
        return as_hosts_allow(
            plan, runner, announce, lambda target: _run(plan, runner, target, deliver, listener, announce)
        )


def _run_here(
    plan: Plan, listener: Callable[[Progress, int], None], announce: Callable[[str], None]
) -> dict[str, float]:
    """Do :func:`run` without Spark; the wall time of the stages in seconds."""
    from reput.output.journal import load_ledger
    from reput.replay.runner import on_this_host

    began, elsewhere = time.perf_counter(), plan.settings.remote is not None
    with on_this_host(plan.log.end - plan.log.start, elsewhere=elsewhere) as runner:
        # Once the processes are forked, for it starts a thread; beside the scan, which leaves this one idle.
        threading.Thread(target=load_ledger, name="reput-ledger", daemon=True).start()
        session = time.perf_counter() - began
        plan = plan.for_slots(runner.slots)
        target = plan.target(flush_in_tasks=False)
        writer = _run(plan, runner, target, partial(_in_turn, plan), listener, announce)
        return {"session": session, **writer.stages.seconds}


def _run(
    plan: Plan,
    runner: Runner,
    target: Target,
    deliver: Callable[[BatchWriter, int, int], None],
    listener: Callable[[Progress, int], None],
    announce: Callable[[str], None],
) -> BatchWriter:
    """Run the pipeline.

    ``deliver`` has a writer write the log's parts from the cursor up to a physical offset, so many bytes at
    once.
    """
    from reput.output.journal import ledger_is_kept
    from reput.output.log_changes import roll_back
    from reput.output.writer import BatchWriter

    with OutputLock(plan.root, plan.owner).exclusive():
        roll_back(target, plan.journal.state)
    cursor = plan.journal.state.cursor
    total = sum(
        max(min(segment.base + segment.length, plan.end) - max(segment.base, cursor), 0)
        for segment in plan.log.segments
    )
    writer = BatchWriter(
        target,
        plan.journal,
        plan.log,
        runner,
        lambda progress: listener(progress, total),
        abort_present=plan.abort_present,
        announce=announce,
    )
    writer.begin()
    end = max(plan.end, plan.journal.state.cursor)
    written = total - max(end - likely_end(plan.log), 0)
    deliver(writer, end, bytes_per_batch(total, written, plan.options.max_bytes_per_trigger))
    writer.finish()
    if ledger_is_kept():
        from reput.output.ledger import LedgerUpkeep

        LedgerUpkeep(writer.ledger).work()
    _make_databases(plan, target, runner, writer)
    return writer


def _by_query(
    plan: Plan, spark: SparkSession, runner: SparkRunner, writer: BatchWriter, end: int, most: int
) -> None:
    """Have a streaming query deliver the parts."""
    from reput.log.segments import batch_end, cut
    from reput.stream import run_available

    cursor = plan.journal.state.cursor
    first = batch_end(plan.log, cursor, end, most)
    # A run continues from the journal's cursor, not from Spark's own checkpoint.
    checkpoint = plan.root / names.REPUT / names.SPARK_CHECKPOINT
    shutil.rmtree(checkpoint, ignore_errors=True)
    try:
        writer.begin_ahead(list(cut(plan.log, cursor, first, plan.options.part_bytes, cursor)))
        asked = run_available(
            spark, writer, checkpoint, plan.log, plan.source(endOffset=end, maxBytesPerTrigger=most)
        )
        writer.undo_ahead()
        if cursor < end and asked < end:
            raise SparkError(
                "the stream has ended before the log's end",
                path=plan.root,
                offset=plan.journal.state.cursor,
                expected=f"parts up to {end}",
                found=f"parts up to {max(asked, cursor)}",
                next_step="Run the same command again; it continues from the last committed batch",
            )
    except BaseException:
        runner.cancel()
        raise
    finally:
        writer.stop_ahead()


def _in_turn(plan: Plan, writer: BatchWriter, end: int, most: int) -> None:
    """Deliver the parts batch by batch, those that the query would."""
    from reput.log.segments import batch_end, cut

    cursor = at = plan.journal.state.cursor
    for number in count():
        if at >= end:
            return
        stop = batch_end(plan.log, at, end, most)
        writer.write(list(cut(plan.log, at, stop, plan.options.part_bytes, cursor)), number)
        at = stop


def bytes_per_batch(total: int, written: int, wanted: int) -> int:
    """Bytes of log in a batch, for as few equal batches as possible.

    Of ``total`` bytes, ``written`` come before what the broker has allocated but not written yet. Up to a
    sixteenth more than ``wanted`` is taken, so that a small rest needs no batch of its own, which would take
    as long as 300 MB of log.
    """
    most = wanted + wanted // 16
    batches = -(-written // most)
    return max(total if batches <= 1 else -(-written // batches), 1)


def _is_done(plan: Plan) -> bool:
    """Whether the output has all that the log holds."""
    from reput.log.end import LogEnd
    from reput.output.databases import are_made

    state, log = plan.journal.state, plan.log
    # What goes into RocksDB isn't there before all of the log was read.
    if not are_made(plan.target(flush_in_tasks=False)):
        return False
    if (plan.root / names.REPUT / names.SCRATCH).exists():
        return False
    if state.cursor >= plan.end:
        return True
    last = log.segments[-1]
    if state.cursor < last.base:
        return False
    rest = open_segment(last.path, last.length)
    if rest.is_zero(state.cursor - last.base, plan.end - last.base):
        return True
    known = any(finding.kind == "torn-tail" and finding.offset == state.cursor for finding in state.findings)
    return known and LogEnd(plan.settings).find(log) <= state.cursor


def catch_up(plan: Plan) -> None:
    """Make ledger and checkpoint agree with the journal, where there is nothing else to do."""
    from reput.output.writer import BatchWriter
    from reput.replay.runner import InlineRunner

    target = plan.target(flush_in_tasks=False)
    writer = BatchWriter(target, plan.journal, plan.log, InlineRunner(), abort_present=plan.abort_present)
    writer.begin()
    writer.finish()
    if target.in_rocksdb:
        # A run was killed while it removed them. In a store's staging they would say that no swap was made.
        files.remove_tree(target.runs)


def _swap(plan: Plan) -> str | None:
    """Replace the store's files by the staged ones; returns the directory that keeps the old ones."""
    root = plan.settings.root
    if plan.selection.is_all:
        wanted = list(names.OUTPUT)
    else:
        wanted = [
            directory(Path(), *queue).as_posix()
            for queue in sorted(plan.journal.state.queues)
            for directory in (names.queue_directory, names.queue_ext_directory, names.batch_queue_directory)
        ]
    wanted = [name for name in wanted if (plan.root / name).exists()]
    if not wanted:
        return None
    return str(Swap(root, plan.root, wanted, new_stamp(root), owner=plan.owner).run())


def _check_continues(plan: Plan) -> None:
    """Refuse to add to a database that was made, where the log has more than it."""
    from reput.output.databases import are_made, directories

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
            finding = expired_queues(
                plan,
                str(error.path or directory),
                str(error.expected or "a RocksDB that can be read"),
                f"{error.found or 'none'}: {error.problem}",
                "queues without a message in the log begin at 0 again, but for those with files",
            )
            _tell(plan, finding)
    for (topic, queue_id), end in list(doubtful.items())[:1]:
        what = f"none at {end.position}, where {topic.decode('utf-8', 'replace')}:{queue_id} ends"
        others = f", and {len(doubtful) - 1:,} more queues" if len(doubtful) > 1 else ""
        outcome = "without a message in the log, they go on behind it"
        said = "a message in the log", what + others, outcome
        _tell(plan, expired_queues(plan, str(directory), *said, len(doubtful)))
    found |= {queue: QueueEnd(plan.log.start - 1, end.queue_offset) for queue, end in doubtful.items()}
    for queue, end in _last_units(plan, store, found.keys()).items():
        found[queue] = max(found.get(queue, end), end, key=lambda one: one.queue_offset)
    return found


def _tell(plan: Plan, finding: Finding) -> None:
    """Have the journal say it, once."""
    state = plan.journal.state
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
    start = plan.log.start
    if not start:
        return found  # nothing has expired
    # A light queue, which RocksDB doesn't have then, may have any name.
    maybe_light = plan.settings.enable_multi_dispatch and not plan.settings.rocksdb.lmq
    gone = list(queues_without_messages(plan, store))
    for queue in gone:
        if isinstance(queue.last, LastFile):
            position = queue.last.last_position if queue.last.last_position >= 0 else start - 1
            found[_key(queue)] = QueueEnd(position, queue.last.next_offset - 1)
    for finding in odd_queues(plan, gone, lambda one: maybe_light or _key(one) in known):
        _tell(plan, finding)
    return found


def _key(queue: Gone) -> QueueBytes:
    return queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id


def _make_databases(plan: Plan, target: Target, runner: Runner, writer: BatchWriter) -> None:
    """Make the databases of what the tasks have put aside. After an error the same command makes it anew."""
    from reput.output import databases
    from reput.output.batch import BatchTasks
    from reput.replay.state import collector_paused

    if not target.in_rocksdb:
        return
    writer.stages.begin()
    tasks = BatchTasks.for_databases(runner, target)
    with collector_paused():
        databases.make(target, plan.journal, tasks, runner.slots, lambda: carried(plan), writer.stages.end)
    writer.finish()
