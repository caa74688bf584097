"""The rebuild job: from a store's commit log to its consume queues, index files, ledger and checkpoint.

Everything that can be refused is refused in :func:`prepare`, before Spark is started and anything changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import Finding, JournalError, OutputError, SettingsError, StoreError
from reput.estimate import Estimate, estimate
from reput.format import commitlog, names
from reput.scan.reference import Frame, frame
from reput.settings import StoreSettings
from reput.sink.selection import Selection, is_known
from reput.store import files
from reput.store.lock import OutputLock, StoreLock, is_broker_running
from reput.store.ownership import Owner
from reput.store.segments import CommitLog, discover, is_zero, map_segment, without_unwritten_end
from reput.store.space import check_free, existing_parent
from reput.store.swap import Swap, SwapOvertakenError, abandon, is_pending, new_stamp
from reput.topics import batch_queue_topics, known_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.sink.journal import Journal, Opening, State
    from reput.sink.scan_task import Target
    from reput.sink.writer import BatchWriter, Progress

GIB = 1 << 30
_JOURNAL = "journal"
_SCRATCH = "scratch"
_STAGING = "staging"
_SPARK_CHECKPOINT = "spark-checkpoint"
_LONGEST_VALUE = 60
_PERCENT_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
#: What StoreSettings.describe tells and no output byte depends on.
_PLACES = frozenset({"store", "broker_conf", "commit_log_dirs", "segment_size"})


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """What ``reput rebuild`` is asked for.

    Attributes:
        store: the store; holds ``commitlog/`` unless broker.conf says otherwise.
        out: directory for the output, None to rebuild in place.
        broker_conf: the broker's own configuration file, None for RocketMQ's defaults.
        rocketmq_version: the dialect, None for the newest.
        queues: ``TOPIC`` or ``TOPIC:ID``; empty for all.
        index: build index files, too.
        known_topics_only: leave out topics that config/topics.json doesn't name.
        max_bytes_per_trigger: bytes of log that one micro-batch takes.
        part_bytes: bytes of log that one task takes.
    """

    store: Path
    out: Path | None = None
    broker_conf: Path | None = None
    rocketmq_version: str | None = None
    queues: tuple[str, ...] = ()
    index: bool = True
    known_topics_only: bool = False
    max_bytes_per_trigger: int = 4 * GIB
    part_bytes: int = 128 << 20


@dataclass(slots=True)
class Summary:
    """What came of a rebuild; ``to_dict`` is what ``--json`` prints.

    Attributes:
        store, output: directories.
        in_place: the store's own files were replaced.
        rocketmq_version: the dialect.
        start, end: physical offsets, half open: what of the log the output stands for.
        messages, bytes: in that range, of whole records.
        new_messages, new_bytes: what this run added to an output that was there.
        queues, units: in the output.
        index_files, index_entries: in the output.
        batches: micro-batches that made the output.
        seconds: wall time of this run.
        absent_queues: of those that were asked for, the ones that the log has no message for.
        vanished_queues: of those that the store had, the ones that the log has no message for any more.
        unknown_topics: topics of the log that config/topics.json lacks; empty without that file.
        without_units: messages that got no unit because their topic was left out, by topic; empty where
            queues were chosen.
        findings: what was gone around.
        kept: the directory that holds what was replaced, None when nothing was.
        stages: wall time by stage, s.
    """

    store: str
    output: str
    in_place: bool
    rocketmq_version: str
    start: int
    end: int
    messages: int
    bytes: int
    new_messages: int
    new_bytes: int
    queues: int
    units: int
    index_files: int
    index_entries: int
    batches: int
    seconds: float
    absent_queues: list[str] = field(default_factory=list)
    vanished_queues: list[str] = field(default_factory=list)
    unknown_topics: list[str] = field(default_factory=list)
    without_units: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    kept: str | None = None
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 when all is sound, 1 with findings or when a queue that was asked for isn't in the log."""
        return 1 if self.findings or self.absent_queues else 0

    def to_dict(self) -> dict[str, object]:
        """The summary as a JSON-ready mapping."""
        facts = {name: getattr(self, name) for name in self.__slots__ if name not in ("findings", "stages")}
        findings = [finding.to_dict() for finding in self.findings]
        return {**facts, "findings": findings, "stages": self.stages}


@dataclass(slots=True)
class Plan:
    """A rebuild that may begin: settings read, locks held, journal open.

    Attributes:
        log: without segments at its end that nothing was written to yet.
        end: physical offset up to which the log is read.
        swapped: where an earlier run's swap, finished by this one, keeps what it replaced.
    """

    options: RebuildOptions
    settings: StoreSettings
    log: CommitLog
    end: int
    root: Path
    selection: Selection
    known: frozenset[str] | None
    owner: Owner | None
    estimate: Estimate
    journal: Journal
    abort_present: bool
    swapped: str | None = None

    @property
    def in_place(self) -> bool:
        """Whether the store's own files are to be replaced."""
        return self.options.out is None

    @property
    def index(self) -> bool:
        """Whether index files are built; a choice of queues has none, for an index is of the whole log."""
        return self.options.index and self.settings.message_index_enable and self.selection.is_all

    def target(self, *, flush_in_tasks: bool) -> Target:
        """What tasks need to know."""
        from reput.sink.scan_task import Target

        return Target(
            settings=self.settings,
            root=self.root,
            scratch=self.root / names.REPUT / _SCRATCH,
            selection=self.selection,
            index=self.index,
            owner=self.owner,
            flush_in_tasks=flush_in_tasks,
        )


def rebuild(
    options: RebuildOptions,
    start_spark: Callable[[], SparkSession],
    listener: Callable[[Progress, int], None] = lambda _progress, _total: None,
) -> Summary:
    """Rebuild what ``options`` ask for.

    Args:
        start_spark: gives the session; only called when nothing speaks against the run.
        listener: is told the progress and the bytes that there are in all.

    Raises:
        ReputError: refused or failed. What was there before is unchanged; an output that was begun is gone on
            with by the same command.
    """
    started = time.perf_counter()
    with prepare(options) as plan:
        before = replace(plan.journal.state)
        prepared = time.perf_counter()
        stages = {"check": prepared - started}
        kept = plan.swapped
        if kept is None:
            if _is_done(plan):
                catch_up(plan)
            else:
                spark = start_spark()
                stages["session"] = time.perf_counter() - prepared
                stages |= run(plan, spark, listener).stages.seconds
            if plan.in_place:
                _verify(plan)
                kept = _swap(plan)
        if plan.in_place:
            files.remove_tree(plan.root)
        return _summary(plan, before, time.perf_counter() - started, kept, stages)


@contextmanager
def prepare(options: RebuildOptions) -> Iterator[Plan]:
    """Check everything, take the locks, open or begin the output's journal.

    Raises:
        ReputError: the run is refused; nothing was changed.
    """
    from reput.sink.journal import Journal, Opening
    from reput.source.tail import LogEnd

    with files.reporting("the store can't be looked at", options.store):
        is_store, is_file = options.store.is_dir(), options.store.exists()
    if not is_store:
        raise StoreError(
            "there is no store here",
            path=options.store,
            expected="a directory with a commit log",
            found="a file" if is_file else "nothing",
            next_step="Check the STORE argument",
        )
    settings = StoreSettings.load(options.store, options.broker_conf, options.rocketmq_version)
    log = without_unwritten_end(discover(settings))
    topics = known_topics(settings.topics_json)
    known = None if topics is None else frozenset(topics)
    selection = _selection(options, settings, known)
    guess = estimate(
        settings,
        log,
        index=options.index and settings.message_index_enable and selection.is_all,
        bytes_per_batch=options.max_bytes_per_trigger,
    )
    deciding = _deciding(settings, options, selection)
    opening = Opening(str(settings.root), _fingerprint(deciding), log.start, deciding)
    if options.out is None:
        root = _staging(settings)
    else:
        with files.reporting("the output can't be looked at", options.out):
            root = _output_root(options.out, settings)
    _check_no_escape(root)
    journal_path = root / names.REPUT / _JOURNAL
    if not journal_path.exists() and not is_pending(settings.root):
        check_free(root, guess.output_bytes, "the rebuild")
    with ExitStack() as stack:
        owner = kept = None
        if options.out is None:
            owner = Owner.of_store(settings.root, settings.commit_log_dirs)
            kept = _enter_store(settings, root, owner, opening.fingerprint, stack)
        begun = journal_path.exists()
        if not begun:
            check_free(root, guess.output_bytes, "the rebuild")
        files.make_dirs(root / names.REPUT, owner)
        stack.enter_context(OutputLock(root, owner))
        if begun:
            journal = Journal.open(journal_path)
        else:
            journal = Journal.create(journal_path, opening, owner)
        stack.enter_context(journal)
        if begun:
            _check_continues(journal, opening, root)
            _check_same_log(journal, log, root)
        # What a broker is about to write is no damage: its half-written end is left for the next run.
        live = options.out is not None and _may_be_running(settings.root)
        yield Plan(
            options=options,
            settings=settings,
            log=log,
            end=LogEnd(settings).find(log) if live else log.end,
            root=root,
            selection=selection,
            known=known,
            owner=owner,
            estimate=guess,
            journal=journal,
            abort_present=(settings.root / names.ABORT).exists(),
            swapped=kept,
        )


def run(plan: Plan, spark: SparkSession, listener: Callable[[Progress, int], None]) -> BatchWriter:
    """Run the pipeline from the journal's cursor to the log's end.

    Raises:
        ReputError: a batch failed; the committed state is as it was.
    """
    from reput.sink.rollback import roll_back
    from reput.sink.streaming import SparkRunner, run_available
    from reput.sink.writer import BatchWriter

    runner = SparkRunner(spark.sparkContext)
    runner.warm_up()
    target = plan.target(flush_in_tasks=not runner.is_local)
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
    )
    # Spark's own checkpoint is not what a run goes on from; the journal's cursor is.
    checkpoint = plan.root / names.REPUT / _SPARK_CHECKPOINT
    shutil.rmtree(checkpoint, ignore_errors=True)
    run_available(
        spark,
        writer,
        checkpoint,
        plan.log,
        {
            "path": str(plan.settings.root),
            "content": "parts",
            "startOffset": str(cursor),
            "endOffset": str(max(plan.end, cursor)),
            "partBytes": str(plan.options.part_bytes),
            "maxBytesPerTrigger": str(plan.options.max_bytes_per_trigger),
            **({"brokerConf": str(plan.settings.broker_conf)} if plan.settings.broker_conf else {}),
            **({"rocketmqVersion": plan.options.rocketmq_version} if plan.options.rocketmq_version else {}),
        },
    )
    writer.finish()
    return writer


def _selection(options: RebuildOptions, settings: StoreSettings, known: frozenset[str] | None) -> Selection:
    selection = Selection.parse(options.queues)
    if options.known_topics_only:
        if known is None:
            raise SettingsError(
                "--known-topics-only needs the broker's list of topics",
                path=settings.topics_json,
                found="no such file",
                next_step="Copy config/topics.json beside the commit log, or leave the option out",
            )
        selection = replace(selection, known=known)
    batch_topics = frozenset(batch_queue_topics(settings.topics_json))
    named = sorted(topic for topic, _ in selection.queues if topic in batch_topics)
    if named:
        raise SettingsError(
            f"topic {named[0]} has queues of type BatchCQ, which reput doesn't write",
            path=settings.topics_json,
            next_step="Leave this topic out",
        )
    return replace(selection, left_out=batch_topics)


def _staging(settings: StoreSettings) -> Path:
    return settings.root / names.REPUT / _STAGING


def _enter_store(
    settings: StoreSettings, staging: Path, owner: Owner, fingerprint: str, stack: ExitStack
) -> str | None:
    """Lock the store; returns what :attr:`Plan.swapped` says.

    A swap that was interrupted is finished, whatever it was for. When it was this very run's, all is done.
    """
    owner.check_can_apply(settings.root)
    stack.enter_context(StoreLock(settings.root, owner))
    stack.enter_context(OutputLock(settings.root, owner))
    try:
        kept = Swap.resume(settings.root)
    except SwapOvertakenError:
        abandon(settings.root)
        files.remove_tree(staging)
        return None
    journal = staging / names.REPUT / _JOURNAL
    if kept is not None and _opening_fingerprint(journal) == fingerprint:
        return str(kept)
    if kept is not None or not journal.exists():
        files.remove_tree(staging)  # what was staged is in place already, or nothing was
    return None


def _opening_fingerprint(journal: Path) -> str | None:
    from reput.sink.journal import read

    try:
        return read(journal)[0].fingerprint
    except JournalError:
        return None


def _output_root(out: Path, settings: StoreSettings) -> Path:
    """The output directory, if it may be one."""
    root = Path(os.path.abspath(out))
    if root.exists() and root.samefile(settings.root):
        raise OutputError(
            "the output is the store itself",
            path=root,
            next_step="Use --in-place to replace the store's files, or another directory",
        )
    real = root.resolve()
    for directory in settings.commit_log_dirs:
        if real.is_relative_to(directory.resolve()):
            raise OutputError(
                "the output lies inside the commit log",
                path=root,
                found=directory,
                next_step="Choose a directory elsewhere",
            )
    for name in (names.CONSUME_QUEUE, names.INDEX):
        if real.is_relative_to((settings.root / name).resolve()):
            raise OutputError(
                "the output lies where a broker looks for its own files",
                path=root,
                found=settings.root / name,
                next_step="Choose a directory elsewhere",
            )
    _check_empty_or_ours(root)
    return root


def _check_no_escape(root: Path) -> None:
    escape = _PERCENT_ESCAPE.search(str(root))
    if escape is not None:
        raise OutputError(
            "the output's path holds a percent escape, which the Delta ledger's writer would decode",
            path=root,
            found=escape[0],
            next_step="Choose a directory without it",
        )


def _may_be_running(store: Path) -> bool:
    try:
        return is_broker_running(store)
    except StoreError:
        return True


def _check_empty_or_ours(root: Path) -> None:
    place = existing_parent(root)
    if not place.is_dir():
        raise OutputError(
            "there is a file where the output is to go",
            path=root,
            expected="a directory, or nothing yet",
            found=place,
            next_step="Choose another directory",
        )
    if place != root or (root / names.REPUT).is_dir():
        return
    found = next(root.iterdir(), None)
    if found is not None:
        raise OutputError(
            "the output directory is not empty",
            path=root,
            expected="an empty directory, or one that reput began",
            found=found.name,
            next_step="Choose another directory",
        )


def _deciding(settings: StoreSettings, options: RebuildOptions, selection: Selection) -> dict[str, object]:
    """Everything that decides what the output holds, JSON-ready."""
    return {
        **{name: value for name, value in settings.describe().items() if name not in _PLACES},
        "index": options.index,
        "queues": sorted(
            topic if queue_id is None else f"{topic}:{queue_id}" for topic, queue_id in selection.queues
        ),
        "known_topics": None if selection.known is None else sorted(selection.known),
        "left_out_topics": sorted(selection.left_out),
    }


def _fingerprint(deciding: dict[str, object]) -> str:
    # What the version is called, and whom else it holds for, says no more than the rules it stands for.
    facts = {name: value for name, value in deciding.items() if not name.startswith("rocketmq_")}
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _check_continues(journal: Journal, now: Opening, root: Path) -> None:
    begun = journal.opening
    if begun.store != now.store:
        raise OutputError(
            "the output was begun from another store",
            path=root,
            expected=begun.store,
            found=now.store,
            next_step="Choose another directory, or remove this one",
        )
    if begun.fingerprint != now.fingerprint:
        changed = [
            name
            for name in sorted(begun.settings.keys() | now.settings.keys())
            if name != "fingerprint" and begun.settings.get(name) != now.settings.get(name)
        ]
        raise OutputError(
            "the output was begun with other settings",
            path=root,
            expected=_told(begun.settings, changed),
            found=_told(now.settings, changed),
            next_step=f"Run with the settings it was begun with, or remove {root} and run again",
        )


def _told(settings: dict[str, object], names: list[str]) -> str:
    """Some settings in a few words."""
    return ", ".join(f"{name}={_short(settings.get(name))}" for name in names) or "rules of another release"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _check_same_log(journal: Journal, log: CommitLog, root: Path) -> None:
    """See that the log still holds what the output was made from: a broker may have cut it, or expired it."""
    state = journal.state
    if state.cursor < log.start:
        problem, expected, found = (
            "the log has lost segments that this output hasn't got yet",
            f"a log that begins at {state.cursor} or before",
            f"one that begins at {log.start}",
        )
    elif _last_message_stands(state, log):
        return
    else:
        problem, expected, found = (
            "the log isn't the one that this output was made from: it was cut, or is another one",
            f"a message stored at {state.last_timestamp} ms, at physical offset {state.last_position}",
            "none",
        )
    raise OutputError(
        problem,
        path=root,
        expected=expected,
        found=found,
        next_step=f"Remove {root} and run again, for a rebuild from the log's start",
    )


def _last_message_stands(state: State, log: CommitLog) -> bool:
    if state.last_position < 0:
        return True
    segment = log.segment_at(state.last_position)
    if segment is None:
        return state.last_position < log.end  # damage that came later
    data = map_segment(segment.path, segment.length)
    record = frame(data.data, segment.base, state.last_position - segment.base, topic_length_v2=True)
    if not isinstance(record, Frame):
        return False
    found = commitlog.decode(data.data, record.position)
    return found.physical_offset == state.last_position and found.store_timestamp == state.last_timestamp


def _is_done(plan: Plan) -> bool:
    """Whether the output has all that the log holds."""
    from reput.source.tail import LogEnd

    state, log = plan.journal.state, plan.log
    if (plan.root / names.REPUT / _SCRATCH).exists():
        return False
    if state.cursor >= plan.end:
        return True
    last = log.segments[-1]
    if state.cursor < last.base:
        return False
    rest = map_segment(last.path, last.length)[state.cursor - last.base : plan.end - last.base]
    if is_zero(rest):
        return True
    known = any(finding.kind == "torn-tail" and finding.offset == state.cursor for finding in state.findings)
    return known and LogEnd(plan.settings).find(log) <= state.cursor


def catch_up(plan: Plan) -> None:
    """Make ledger and checkpoint agree with the journal, where there is nothing else to do.

    Raises:
        OutputError: they can't be written.
    """
    from reput.sink.writer import BatchWriter, NoRunner

    target = plan.target(flush_in_tasks=False)
    BatchWriter(target, plan.journal, plan.log, NoRunner(), abort_present=plan.abort_present).finish()


def _verify(plan: Plan) -> None:
    """Look at the staged files once more before they replace anything.

    Raises:
        OutputError: a file is missing or doesn't end as the journal says.
    """
    from reput.sink.audit import audit

    problem = audit(plan.target(flush_in_tasks=False), plan.journal.state)
    if problem is not None:
        raise problem


def _swap(plan: Plan) -> str | None:
    """Put the staged files in the store's place; returns the directory that keeps the old ones."""
    root = plan.settings.root
    if plan.selection.is_all:
        wanted = [names.CONSUME_QUEUE, names.INDEX, names.LEDGER, names.CHECKPOINT]
    else:
        wanted = [
            names.queue_directory(Path(), topic, queue_id).as_posix()
            for topic, queue_id in sorted(plan.journal.state.queues)
        ]
    wanted = [name for name in wanted if (plan.root / name).exists()]
    if not wanted:
        return None
    if names.LEDGER in wanted and plan.owner is not None:  # written by a library that knows no owners
        files.give_tree(plan.root / names.LEDGER, plan.owner)
    return str(Swap(root, plan.root, wanted, new_stamp(root), owner=plan.owner).run())


def _summary(
    plan: Plan, before: State, seconds: float, kept: str | None, stages: dict[str, float]
) -> Summary:
    state = plan.journal.state
    known = plan.known
    topics = {topic for topic, _ in state.queues} | set(state.without_unit)
    return Summary(
        store=str(plan.settings.root),
        output=str(plan.settings.root if plan.in_place else plan.root),
        in_place=plan.in_place,
        rocketmq_version=plan.settings.dialect.name,
        start=plan.journal.opening.start,
        end=state.cursor,
        messages=state.messages,
        bytes=state.bytes,
        new_messages=state.messages - before.messages,
        new_bytes=state.bytes - before.bytes,
        queues=len(state.queues),
        units=sum(queue.next - queue.first for queue in state.queues.values()),
        index_files=len(state.index),
        index_entries=sum(header.index_count - 1 for _, header in state.index),
        batches=state.batches,
        seconds=seconds,
        absent_queues=_absent(plan.selection, state),
        vanished_queues=[] if kept is None else _vanished(plan, Path(kept)),
        unknown_topics=sorted(topic for topic in topics if known is not None and not is_known(topic, known)),
        without_units=dict(sorted(state.without_unit.items())) if plan.selection.is_all else {},
        findings=list(state.findings),
        kept=kept,
        stages=stages,
    )


def _absent(selection: Selection, state: State) -> list[str]:
    """The queues that were asked for and got no unit."""
    topics = {topic for topic, _ in state.queues}
    return sorted(
        topic if queue_id is None else f"{topic}:{queue_id}"
        for topic, queue_id in selection.queues
        if (topic not in topics if queue_id is None else (topic, queue_id) not in state.queues)
    )


def _vanished(plan: Plan, kept: Path) -> list[str]:
    """The queues among the kept ones that were replaced by nothing."""
    if not plan.selection.is_all:
        return []
    found = {
        (path.parent.name, int(path.name))
        for path in (kept / names.CONSUME_QUEUE).glob("*/*")
        if path.name.isdecimal() and any(path.iterdir())
    }
    return [
        f"{topic}:{queue_id}"
        for topic, queue_id in sorted(found - plan.journal.state.queues.keys())
        if plan.selection.wants_topic(topic.encode("utf-8", "surrogateescape"))
    ]
