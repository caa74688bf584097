"""What a start would meet, do and lose, as findings.

:mod:`reput.broker` foretells the start; :mod:`reput.recovery.plan` says what it takes away and leaves broken.
Here each of these gets its effect and its one remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from reput.broker.config_files import LOST_CONFIG, MISSING_CONFIG
from reput.broker.snapshot import NO_CHECKPOINT, Snapshot
from reput.config.settings import StoreSettings
from reput.derived.files import MISSING_SEGMENTS, UNFINISHED_RESTORE, WRONG_LENGTH
from reput.derived.rocksdb import open_index
from reput.diagnosis.verdict import PHYSICAL, QUEUE_OFFSET, Area, Effect, Finding, Remedy
from reput.errors import Problem, StoreError, UnsupportedError
from reput.format import commitlog, names, properties
from reput.format.names import Queue
from reput.log.rivals import MISTAKEN, SECOND_FILE
from reput.log.segments import map_segment
from reput.log.walk import Frame, frame
from reput.recovery.losses import Loss
from reput.recovery.plan import Plan
from reput.recovery.refusals import are_its_own, is_derived, is_stray
from reput.rocksdb import traces
from reput.rocksdb.reader import is_installed

# No start tells of these, and of the first only a comparison with the log, which isn't always made.

#: No queue at all, no index file at all: of a log whose first message belongs there.
NO_QUEUES, NO_INDEX = "no-queues", "no-index"
BROKEN_ROCKSDB_STORE = "broken-rocksdbstore"
_GETS_UNIT = (commitlog.TRANSACTION_NONE, commitlog.TRANSACTION_COMMIT)


def not_derived(snapshot: Snapshot) -> Iterator[Problem]:
    """Queues or index that are missing, though the log begins with a message that belongs there."""
    settings, files, kept = snapshot.settings, snapshot.log.files, snapshot.kept
    in_database = kept is not None and bool(kept.ends or kept.units)
    has_queues = bool(snapshot.queues or snapshot.batch_queues or in_database)
    if not files or snapshot.log.unloadable is not None or (has_queues and snapshot.index):
        return
    data = map_segment(files[0].path, snapshot.segment_size).data
    first = frame(data, files[0].base, 0, settings.dialect.topic_length_v2)
    if not isinstance(first, Frame):
        return
    sys_flag = int.from_bytes(data[commitlog.SYS_FLAG : commitlog.SYS_FLAG + 4], "big")
    known = {problem.path for problem in snapshot.problems}  # a file in the directory's place, say
    broken = any(problem.kind == "broken-rocksdb" for problem in snapshot.problems)
    queues = str(settings.root / names.CONSUME_QUEUE if kept is None else kept.directory)
    gets_unit = sys_flag & commitlog.TRANSACTION_MASK in _GETS_UNIT
    if not has_queues and gets_unit and queues not in known and not broken:
        yield Problem(
            kind=NO_QUEUES,
            path=queues,
            expected="queues, for the log has messages",
            found="none" if kept is None or kept.exists else "no RocksDB there",
            outcome="consumers get nothing until they are made",
            next_step="",
        )
    if snapshot.index or not settings.message_index_enable:
        return
    index = str(settings.root / names.INDEX)
    in_rocksdb = settings.rocksdb.index and settings.broker_conf is None
    has_keys = properties.has_keys(properties.parse(bytes(data[slice(*first.properties)])))
    if has_keys and not in_rocksdb and index not in known:
        yield Problem(
            kind=NO_INDEX,
            path=index,
            expected="index files, for the log has messages with keys",
            found="none",
            outcome="a search by key finds nothing until they are made",
            next_step="",
        )


def index_database(settings: StoreSettings) -> Iterator[Problem]:
    """A ``rocksdbstore/`` that doesn't open; nothing where it can't be tried. What is in it isn't read.

    Raises:
        OutputError: there is no room for links to its files.
    """
    directory = settings.root / names.ROCKSDB_STORE
    if not traces(directory) or not is_installed():
        return
    try:
        with open_index(directory):
            return
    except (StoreError, UnsupportedError) as error:
        yield Problem(
            kind=BROKEN_ROCKSDB_STORE,
            path=str(error.path or directory),
            expected=str(error.expected or "a RocksDB that opens"),
            found=str(error.found or error.problem),
            outcome=f"{error.problem}: what a broker makes of index, timers and half messages isn't known",
            next_step=f"Bring {directory} back from a copy. The log gives back an index alone: move it away, "
            f"and `{settings.command('rebuild', '--in-place')}` makes it where broker.conf has it there",
        )


#: What a start neither stops at nor loses anything by, or what the plan of the start speaks of in detail.
_HARMLESS = frozenset(
    {
        "stray-index-file",
        "stray-directory",
        "empty-file",
        "broken-config",
        "rocksdb-elsewhere",
        "rocksdb-checkpoint",
        "unused-queue-files",
        "checkpoint-length",
        NO_CHECKPOINT,
    }
)
#: The log is elsewhere, lost, or not all here yet: nothing can be said of what is derived from it.
NO_LOG = frozenset({"no-log", "missing-log-directory", UNFINISHED_RESTORE})
_CONFIG = frozenset({LOST_CONFIG, MISSING_CONFIG})
#: What a start takes off the log; the messages are whole.
LOG_CUTS = frozenset({"log-cut", "segment-deleted"})
#: What is wrong with a queue so that consumers don't get messages that the log has.
_UNREACHED = frozenset({"missing-unit", "queue-begins-late", "queue-ends-early"})
#: Segments, or files of a queue, that a start doesn't load, and writes over.
UNLOADED = "unloaded-files"
#: Units of messages that the log hasn't got.
QUEUE_CUT = "queue-cut"
_INDEX_KINDS = frozenset({"index-dropped", "missing-entry", "index-torn", "index-ahead"})


def of_start(snapshot: Snapshot, plan: Plan | None, cleared: Plan | None = None) -> list[Finding]:
    """What a start meets and does, in the order in which it comes to it.

    ``plan``: what the start does; None where that isn't foretold. ``cleared``: the same once files are away
    that aren't the log's: what else is wrong; None without any.
    """
    settings = snapshot.settings
    problems = list(snapshot.problems)
    mistaken = 0 if plan is None or cleared is None else _cut(plan) - _cut(cleared)
    plan = plan if cleared is None else cleared
    if plan is not None:
        known = {id(one) for one in problems}
        problems += [one for one in plan.prediction.problems if id(one) not in known]
    found = [of_problem(one, settings) for one in problems]
    for number, one in enumerate(found):
        if one.kind == SECOND_FILE and mistaken > 0:
            found[number], mistaken = replace(one, messages=mistaken), 0
    if plan is not None:
        said = {(one.kind, one.path) for one in found}
        losses = [one for one in (*plan.losses, *plan.unrepaired) if (one.kind, one.path) not in said]
        found += [of_loss(one, plan, takes=one in plan.losses) for one in losses]
    return found


def _cut(plan: Plan) -> int:
    """Messages that a start takes off the log."""
    return sum(loss.count for loss in plan.losses if loss.kind in LOG_CUTS)


def mending(settings: StoreSettings, path: str | Path | None = None) -> tuple[Remedy, str]:
    """Who puts right what can be made anew from the log, and what has to be done by hand before.

    ``path``: what would be changed, where that has to lie in the store.
    """
    if not are_its_own(settings):
        steps = dict.fromkeys(
            one.next_step for one in (*settings.basis.contradictions, *settings.basis.unproven)
        )
        return Remedy.BY_HAND, ". ".join(steps)
    if settings.remote is not None:
        restore = settings.command("restore", "--out", "DIR")
        return Remedy.BY_HAND, f"`{restore}` brings the log here, and makes queues and index anew."
    if path is not None and not Path(path).is_relative_to(settings.root):
        return Remedy.BY_HAND, f"Give a store whose log lies in it: {path} lies outside of {settings.root}"
    if path is not None and not Path(path).exists() and Path(path).is_symlink():
        text = f"{path} is a link that leads nowhere: bring back what it led to, or move it elsewhere."
        return Remedy.BY_HAND, text
    return Remedy.MEND, ""


def of_problem(problem: Problem, settings: StoreSettings) -> Finding:
    """One thing that a load meets."""
    path = Path(problem.path)
    effect, step = Effect.LACKS, problem.next_step
    remedy = Remedy.BY_HAND
    if problem.stops:
        effect = Effect.BLOCKS
    elif problem.kind in _HARMLESS and not problem.hides:
        effect = Effect.HARMLESS
    elif problem.kind in NO_LOG or problem.kind == "other-settings":
        effect = Effect.UNKNOWN
    elif problem.kind in MISTAKEN and not is_derived(problem, settings):
        effect = Effect.LOSES if problem.kind == SECOND_FILE else Effect.UNKNOWN
    elif problem.kind in _CONFIG:
        effect = Effect.LOSES
    if effect in (Effect.BLOCKS, Effect.LOSES, Effect.LACKS) and is_mended(problem, settings):
        replaced = path.parent in settings.commit_log_dirs or path == settings.root / names.CHECKPOINT
        remedy, step = mending(settings, path if replaced else None)
    if effect is Effect.HARMLESS:
        remedy, step = Remedy.NONE, ""
    if step and problem.path not in step:
        step = f"{problem.path}: {step}"
    return Finding(
        kind=problem.kind,
        path=problem.path,
        area=area_of(path, settings),
        effect=effect,
        remedy=remedy,
        expected=problem.expected,
        found=problem.found,
        outcome=problem.outcome,
        step=step,
    )


def is_mended(problem: Problem, settings: StoreSettings) -> bool:
    """Whether ``reput mend`` takes away what a load stumbles over."""
    if problem.kind in ("dispatch-never-ends", MISSING_SEGMENTS):
        return True
    path = Path(problem.path)
    if problem.kind == WRONG_LENGTH and path.parent in settings.commit_log_dirs:
        return True
    return is_derived(problem, settings) or is_stray(problem, settings)


def area_of(path: Path, settings: StoreSettings) -> Area:
    """What of a store a file or directory belongs to."""
    if any(path.is_relative_to(one) or one.is_relative_to(path) for one in settings.commit_log_dirs):
        return Area.LOG
    for name, area in (
        *((one, Area.QUEUE) for one in (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB)),
        (names.INDEX, Area.INDEX),
        (names.ROCKSDB_STORE, Area.INDEX),
        (names.CHECKPOINT, Area.CHECKPOINT),
        (names.CONFIG, Area.CONFIG),
    ):
        if path.is_relative_to(settings.root / name):
            return area
    return Area.STORE


def of_loss(loss: Loss, plan: Plan, *, takes: bool) -> Finding:
    """Something that a start takes away, or leaves as it is."""
    settings, snapshot = plan.snapshot.settings, plan.snapshot
    remedy, step = mending(settings, loss.path if loss.kind in LOG_CUTS else None)
    effect = Effect.LOSES if takes else Effect.LACKS
    messages = 0
    if loss.kind in LOG_CUTS:
        messages = loss.count
        if not loss.count:
            # A message that was never written whole. After a crash nobody was told that it had been.
            effect, remedy, step = (Effect.GONE, Remedy.NONE, "") if snapshot.clean else _by_start()
    elif loss.kind == QUEUE_CUT:
        if plan.left_by_a_cut:
            effect, remedy, step = _by_start()
        elif not plan.cuts_messages:  # else they are counted where the log is cut
            messages, effect, remedy, step = loss.count, Effect.GONE, Remedy.NONE, ""
    elif loss.kind in _UNREACHED or loss.kind == UNLOADED:
        messages = loss.count
    topic, queue_id = (None, None) if loss.queue is None else loss.queue
    has_places = loss.queue is not None or loss.end > loss.offset
    return Finding(
        kind=loss.kind,
        path=loss.path,
        area=_area(loss, settings),
        effect=effect,
        remedy=remedy,
        expected="",
        found=loss.text,
        step=step,
        span=None if not has_places else QUEUE_OFFSET if loss.queue is not None else PHYSICAL,
        first=loss.offset,
        end=loss.end,
        count=max(loss.count, 1),
        messages=messages,
        topic=topic,
        queue_id=queue_id,
    )


def _by_start() -> tuple[Effect, Remedy, str]:
    return Effect.HEALS, Remedy.START, ""


def _area(loss: Loss, settings: StoreSettings) -> Area:
    if loss.queue is not None:
        return Area.QUEUE
    return Area.INDEX if loss.kind in _INDEX_KINDS else area_of(Path(loss.path), settings)


def unique(found: Iterable[Finding]) -> Iterator[Finding]:
    """Each finding once: of one place and kind that several tell of, the first."""
    said: set[tuple[str, str, int, int, Queue | None]] = set()
    for one in found:
        key = one.kind, one.path, one.first, one.end, one.queue
        if key not in said:
            said.add(key)
            yield one
