"""What a start would meet, do and lose, and what of queues and index is wrong or missing, as findings.

:mod:`reput.broker` foretells the start; :mod:`reput.recovery.plan` says what it takes away and leaves broken.
Here each of these gets its effect and its one remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reput.broker.config_files import LOST_CONFIG, MISSING_CONFIG
from reput.broker.snapshot import NO_CHECKPOINT, OLD_TIMES, Snapshot
from reput.config.committed import Committed, committed_offsets
from reput.config.kept import known_topics
from reput.config.settings import StoreSettings
from reput.derived.batch import BatchModel
from reput.derived.files import MISSING_SEGMENTS, NO_FILE, UNFINISHED_RESTORE, WRONG_LENGTH
from reput.derived.last_file import EXPIRED_QUEUES
from reput.derived.plain import QueueModel
from reput.derived.rocksdb import open_index
from reput.diagnosis.verdict import ORDINAL, PHYSICAL, QUEUE_OFFSET, SLOT, Area, Effect, Finding, Remedy
from reput.errors import Problem, ReputError, StoreError, UnsupportedError
from reput.format import commitlog, names, properties
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from reput.format.names import Queue
from reput.log.segments import MISTAKEN, SECOND_FILE, map_segment
from reput.log.walk import Frame, frame
from reput.recovery.losses import Loss
from reput.recovery.plan import Plan
from reput.recovery.refusals import are_its_own, is_derived, is_stray, outside_step, place_of_new, rebuild_out
from reput.replay.placing import ALTERED
from reput.rocksdb import traces
from reput.rocksdb.reader import is_installed
from reput.scan.part import CLOSES_EARLY
from reput.store.reading import LINK, read_file
from reput.verify.explain import DELAY_LEVELS, LEADS_AWAY, LOG_DAMAGED, TAGS_LOST
from reput.verify.report import (
    CHECKPOINT,
    DIFFERS,
    INDEX,
    LOG,
    ONLY_FIRST,
    ONLY_SECOND,
    OTHER_SETTINGS,
    QUEUE,
    Difference,
    Report,
)
from reput.verify.units import EXTRA, MISSING, WRONG

# Of what both know, one finding is left: that of the comparison, for it has file, offset and figures. What a
# start puts right by itself is told from what it leaves by what it is foretold to make (:class:`Plan`).

#: Findings of a scan that are damage; what is odd about a message isn't.
TORN_TAIL = "torn-tail"
#: A file that isn't what it should be, by the names that a load and a comparison give it.
_OF_A_FILE = frozenset(
    {
        "empty-file",
        "wrong-length",
        "stray-file",
        "stray-directory",
        "stray-index-file",
        "index-directory",
        "index-length",
        "not-a-directory",
        "not-a-file",
    }
)
_FILE_IS_WRONG = frozenset(
    {
        "segment-length",
        "not-a-file",
        "queue-file-length",
        "queue-file-name",
        "queue-stray-directory",
        "index-file-length",
        "index-stray-directory",
        "file-length",
    }
)
#: Findings of a scan whose ranges hold nothing that can be read, and that records can stand in for.
CLOSED = frozenset(
    {
        "bad-size",
        "bad-magic",
        "bad-physical-offset",
        "bad-lengths",
        "unwritten-range",
        "segment-length",
        MISSING_SEGMENTS,
    }
)
_LEAST = commitlog.MIN_RECORD_LENGTH + 1
#: What a start says of a queue in RocksDB whose messages repeat queueOffsets or leave some out (the second):
#: it is as its log has it, and as a broker leaves it, with the last message in a place.
_NOT_IN_PLACE = frozenset({"missing-unit", "misplaced-unit"})
ODD_IN_ROCKSDB = frozenset({"repeated-queue-offset", "queue-offset-jump"})
#: What a start leaves wrong of queues and index; where the comparison finds nothing, the start makes it so.
_BY_THE_START = frozenset({"missing-unit", "misplaced-unit", "missing-entry", "queue-begins-late"})


def merged(
    start: list[Finding],
    report: Report,
    snapshot: Snapshot | None,
    plan: Plan | None,
    settings: StoreSettings,
    *,
    log_alone: bool = False,
) -> Iterator[Finding]:
    """All findings, each once.

    Args:
        start: what was found about the start.
        report: the comparison with the whole log.
        snapshot, plan: the store as a start finds it, and what it does; None where that isn't foretold.
        log_alone: no unit was compared: a message that no unit leads to is missing.
    """
    healing = _Healing(plan)
    # Files that are mistaken for the log's are known from the start, where one can be made.
    found = (one for one in report.findings if snapshot is None or one.kind not in MISTAKEN)
    compared = [_of_difference(one, settings, healing, snapshot) for one in found]
    deleted = {(one.topic, one.queue_id) for one in report.notes if one.kind == "deleted-queue"}
    compared = [
        replace(one, effect=Effect.HARMLESS, messages=0, outcome="the topic was deleted")
        if one.kind == "missing-queue-offsets" and one.queue in deleted
        else one
        for one in compared
    ]
    start, compared = _joined_cuts(start, compared)
    odd = {(one.topic, one.queue_id) for one in report.notes if one.kind in ODD_IN_ROCKSDB}
    start = [
        one
        for one in start
        if not _is_said(one, start, compared, plan, log_alone=log_alone)
        and not (settings.rocksdb.queues and one.kind in _NOT_IN_PLACE and one.queue in odd)
    ]
    for one in start:
        # Right as it lies there, and wrong after the start.
        is_made = plan is not None and one.effect is Effect.LACKS and one.kind in _BY_THE_START
        yield replace(one, effect=Effect.LOSES) if is_made else one
    said = {(one.path, one.kind, one.queue) for one in start}
    files = {one.path for one in start if one.kind in _OF_A_FILE}
    yield from (
        one
        for one in compared
        if (one.path, one.kind, one.queue) not in said
        and not (one.path in files and one.kind in _FILE_IS_WRONG)
    )


class _Healing:
    """What a start puts right."""

    def __init__(self, plan: Plan | None) -> None:
        self._plan = plan if plan is not None and plan.is_whole else None
        self._broken = set()
        if self._plan is not None:
            found = (*self._plan.losses, *self._plan.unrepaired)
            self._broken = {one.queue if one.queue is not None else one.kind for one in found}

    def heals(self, one: Difference) -> bool:
        """Whether what differs now is right after the start."""
        plan = self._plan
        if plan is None:
            return False
        if one.area == QUEUE:
            return self._heals_queue(plan, one)
        if one.area == INDEX:
            return self._heals_index(plan, one)
        if one.area == CHECKPOINT:
            return one.kind == "checkpoint-ahead" and "checkpoint-ahead" not in self._broken
        return one.kind == TORN_TAIL and not (plan.snapshot.clean or self.keeps(one))

    def keeps(self, one: Difference) -> bool:
        """Whether the start takes a torn end for a message."""
        plan = self._plan
        return plan is not None and one.kind == TORN_TAIL and one.first < plan.prediction.log_end

    def _heals_queue(self, plan: Plan, one: Difference) -> bool:
        queue = (str(one.topic), one.queue_id or 0)
        model = plan.prediction.all_queues.get(queue)
        if isinstance(model, BatchModel):
            begins = model.recovered_max <= one.first
            return one.kind == "missing-unit" and begins and one.end <= model.max_offset
        if one.kind == "extra-unit" and model is not None:
            return one.first >= model.max_offset and all(loss.queue != queue for loss in plan.unrepaired)
        if one.kind != "missing-unit" or not isinstance(model, QueueModel):
            return False
        begin = model.recovered_end // UNIT_LENGTH
        # What stands at other places in a light queue, as its messages name it, does so in a rebuilt one.
        light = begin == 0 and queue[0].startswith(commitlog.LMQ_PREFIX.decode())
        if not light and (queue in self._broken or not model.puts_in_place):
            return False
        # The unit that a file begins with is taken as it is, zeros, too.
        put_from = model.end if model.put_from is None else model.put_from
        return max(begin, put_from // UNIT_LENGTH) <= one.first and one.end <= model.max_offset

    def _heals_index(self, plan: Plan, one: Difference) -> bool:
        if self._broken & _INDEX_KINDS:
            return False
        if Path(one.path) in plan.prediction.index_dropped:
            return True
        if one.kind != "missing-entry":
            return False
        dropped = plan.prediction.index_dropped
        there = [entry for entry in plan.snapshot.index if entry.path not in dropped]
        before = [entry.header for entry in there if entry.header.index_count > 1]
        after = [file.header for file in plan.prediction.index.files if file.header.index_count > 1]
        places = one.first, max(one.end - 1, one.first)
        return not any(_covers(before, place) for place in places) and all(
            _covers(after, place) for place in places
        )


def _covers(headers: Iterable[IndexHeader], place: int) -> bool:
    return any(one.begin_physical_offset <= place <= one.end_physical_offset for one in headers)


def torn_end(found: Iterable[Difference]) -> int:
    """Physical offset of the torn message that the log ends with; -1 where none is."""
    return next((one.first for one in found if one.kind == TORN_TAIL and not one.is_stand_in), -1)


def closable(found: Iterable[Difference], snapshot: Snapshot) -> list[tuple[int, int]]:
    """Ranges of the log, physical offsets, half open, that records can stand in for.

    Raises StoreError where they were too many for a journal, which has made one of them.
    """
    places = [one for one in found if _is_closable(one, snapshot.segment_size)]
    for one in places:
        if one.count > 1:  # between them lies what is sound
            raise StoreError(
                "the log has more damaged places than mend can close",
                path=one.path,
                found=f"{one.kind} in {one.count:,} places from {one.first} to {one.end}",
                next_step=rebuild_out(snapshot.settings),
            )
    return [(one.first, one.end) for one in places]


def _is_closable(one: Difference, segment_size: int) -> bool:
    if one.area != LOG or one.kind not in CLOSED or one.is_stand_in:
        return False
    if one.kind in ("segment-length", MISSING_SEGMENTS):
        return True
    # What is too small for a record has to reach up to its segment's end, for the closing one.
    return one.end - one.first >= _LEAST or (
        one.end % segment_size == 0 and one.end - one.first >= commitlog.BLANK_LENGTH
    )


def _is_lost(one: Difference, snapshot: Snapshot | None) -> bool:
    """Whether its units are all that is left of messages that the log has lost.

    Behind the log's end those are counted where a start cuts them, if it comes so far.
    """
    stops = snapshot is not None and not snapshot.starts
    return leads_to_damage(one) or (stops and one.kind == EXTRA and one.cause == "past-log-end")


def leads_to_damage(one: Difference) -> bool:
    """Whether its units are at a queue's end, of messages that lay where the log can't be read."""
    return one.kind == EXTRA and one.cause == LOG_DAMAGED


def _is_hidden(one: Difference) -> bool:
    """Whether no unit leads to its messages; in a database a start doesn't tell these from repeated ones."""
    return one.kind == MISSING or (one.kind == WRONG and one.offset is not None and one.cause in LEADS_AWAY)


#: Nothing in a store shows them; units made by others would be wrong.
GIVE_DELAY_LEVELS = "Give the broker's broker.conf, for its messageDelayLevel: -c FILE"


def _of_difference(
    one: Difference, settings: StoreSettings, healing: _Healing, snapshot: Snapshot | None
) -> Finding:
    remedy, step = mending(settings)
    effect, messages, outcome = Effect.LACKS, 0, ""
    if one.area == LOG:
        effect, remedy, step = Effect.GONE, Remedy.NONE, ""
        if one.is_stand_in:
            effect = Effect.HARMLESS
            outcome = "damage that was closed: a broker passes over it"
        elif one.kind == "missing-queue-offsets":
            messages = one.count
        elif snapshot is not None and _is_closable(one, snapshot.segment_size):
            effect, outcome = Effect.LACKS, "a start that comes by here cuts the log"
            if one.found.startswith(CLOSES_EARLY):
                outcome = "a start that comes by here passes over the rest of the segment"
            remedy, step = mending(settings, _changed(one, settings))
        elif healing.keeps(one):
            effect, outcome = Effect.LACKS, "a start takes it for a message"
            remedy, step = mending(settings, one.path)
    if one.cause == TAGS_LOST:
        effect, remedy, step = Effect.GONE, Remedy.NONE, ""
    elif one.cause == DELAY_LEVELS and settings.broker_conf is None:
        remedy, step = Remedy.BY_HAND, GIVE_DELAY_LEVELS
    elif healing.heals(one):
        effect, remedy, step = Effect.HEALS, Remedy.START, ""
        outcome = "the start puts it right"
    elif one.area == QUEUE and (_is_hidden(one) or _is_lost(one, snapshot)):
        messages = one.count
    return judged(one, effect, remedy, outcome=outcome, step=step, messages=messages)


def judged(one: Difference, effect: Effect, remedy: Remedy, **more: Any) -> Finding:
    """What differs, with what comes of it."""
    facts = asdict(one) | {"area": Area(one.area), "span": _span(one)}
    return Finding(**facts, effect=effect, remedy=remedy, **more)


def _span(one: Difference) -> str | None:
    """What its ``first`` and ``end`` are."""
    if one.end <= one.first and one.area != LOG:
        return None
    if one.area == QUEUE:
        return QUEUE_OFFSET
    if one.area == INDEX and one.kind not in ("missing-entry", ONLY_FIRST, ONLY_SECOND, DIFFERS):
        return SLOT if one.kind == "index-slot" else ORDINAL
    return PHYSICAL


def _joined_cuts(start: list[Finding], compared: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Where a start cuts the log at damage, that is one finding: the damage, and what goes with it.

    The segments that a start deletes behind a cut go with the cut, too.
    """
    cuts = [one for one in start if one.kind in LOG_CUTS]
    if not cuts:
        return start, compared
    # Whole segments may go behind half a message.
    worst = min(cuts, key=lambda one: list(Effect).index(one.effect))
    first = replace(cuts[0], effect=worst.effect, remedy=worst.remedy, step=worst.step)
    messages = sum(one.messages for one in cuts)
    deleted = sum(one.kind == "segment-deleted" for one in cuts[1:])
    outcome = first.found + (f", and {deleted} segments behind are deleted" if deleted else "")
    spanning = [
        one
        for one in compared
        if one.area is Area.LOG and one.first <= first.first <= max(one.end, one.first)
    ]
    damage = max(spanning, key=lambda one: one.first, default=None)  # that which begins there comes first
    rest = [one for one in start if one not in cuts]
    if damage is None:
        return [replace(first, messages=messages, found=outcome), *rest], compared
    joined = replace(
        damage,
        effect=first.effect,
        remedy=first.remedy,
        step=first.step,
        messages=messages,
        outcome=f"a start cuts the log here: {outcome}",
    )
    return rest, [joined if one is damage else one for one in compared]


def _is_said(
    one: Finding, start: list[Finding], compared: list[Finding], plan: Plan | None, *, log_alone: bool
) -> bool:
    """Whether the comparison says better what was found about the start, or that there is nothing."""
    if one.kind == ALTERED:
        return True
    if one.effect is not Effect.LACKS or one.kind in (QUEUE_CUT, "queue-ends-late") or one.kind in _OF_A_FILE:
        return False
    if one.queue is not None:
        known = any(other.queue == one.queue for other in compared)
        if known or (log_alone and one.kind == "missing-unit"):
            return known
        return plan is not None and not plan.changes_queue(one.queue)
    if one.area is Area.INDEX:
        known = any(other.area is Area.INDEX for other in compared)
        known = known or (one.kind == "missing-entry" and any(x.kind == "index-dropped" for x in start))
        if known or plan is None:
            return known
        changes = plan.prediction.index.added or plan.prediction.index_dropped
        return not changes and all(problem.path != one.path for problem in plan.snapshot.problems)
    if one.kind == "queue-file-missing":
        return any(other.area is Area.QUEUE for other in compared)
    return False


# No start tells of queues or an index that are missing altogether, nor of an index database that doesn't
# open; of the first only a comparison with the log does, which isn't always made.

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
    unseen = kept is not None and snapshot.holder is not None  # what a broker hasn't flushed isn't on disk
    if not has_queues and gets_unit and queues not in known and not (broken or unseen):
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


def lost_queues(settings: StoreSettings, snapshot: Snapshot, found: Iterable[Finding]) -> Iterator[Finding]:
    """Queues that groups have offsets in, and that neither the log nor anything else knows any more.

    ``found``: what the comparison with the whole log says, among it the queues that the log has messages of.
    A broker never deletes a queue's last file by itself (``MappedFileQueue.deleteExpiredFileByOffset``), but
    does if ``cleanExpiredCQ`` of mqadmin asks it to (``ConsumeQueueStore.cleanExpired``; rocketmq-all-5.3.3).
    """
    if not snapshot.log.files or not snapshot.log.files[0].base:
        return  # nothing has expired
    try:
        topics, read = known_topics(settings.config) or set(), committed_offsets(settings)
    except ReputError:
        return  # said of the settings themselves
    there = {one.queue for one in found} | (set() if snapshot.kept is None else set(snapshot.kept.ends))
    for listings in (snapshot.queues, snapshot.batch_queues):
        there |= {queue for queue, listing in listings.items() if listing.files or listing.problems}
    gone: dict[Queue, Committed] = {}
    for one in read.committed:
        queue = one.topic, one.queue_id
        if one.offset > 0 and one.topic in topics and queue not in there:
            gone.setdefault(queue, one)
    for first in list(gone.values())[:1]:
        others = f", and {len(gone) - 1:,} more queues" if len(gone) > 1 else ""
        whose = f"{first.topic}:{first.queue_id}"
        yield Finding(
            kind=EXPIRED_QUEUES,
            path=str(read.path),
            area=Area.QUEUE,
            effect=Effect.GONE,
            remedy=Remedy.BY_HAND,
            expected=f"the end of {whose}, since {first.group} has committed {first.offset} there",
            found=f"neither a queue nor a message of it{others}",
            outcome="the next message gets queueOffset 0, and groups pass over what is below their offsets",
            step="Bring the last files of these queues back from a copy; or reset their groups' offsets.",
            count=len(gone),
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
_INDEX_KINDS = frozenset({"index-dropped", "index-header", "missing-entry", "index-ahead"})


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
        return Remedy.BY_HAND, outside_step(settings, path)
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
    elif problem.kind in NO_LOG or problem.kind == OTHER_SETTINGS:
        effect = Effect.UNKNOWN
    elif problem.kind in MISTAKEN and not is_derived(problem, settings):
        effect = Effect.LOSES if problem.kind == SECOND_FILE else Effect.UNKNOWN
    elif problem.kind in _CONFIG or problem.kind == OLD_TIMES or _is_lost_segment(problem, settings):
        effect = Effect.LOSES
    if effect in (Effect.BLOCKS, Effect.LOSES, Effect.LACKS) and is_mended(problem, settings):
        replaced = path.parent in settings.commit_log_dirs or path == settings.root / names.CHECKPOINT
        if path.is_relative_to(settings.root) or not is_stray(problem, settings):
            remedy, step = mending(settings, _changed(problem, settings) if replaced else None)
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


def _changed(one: Problem | Difference, settings: StoreSettings) -> Path:
    path = Path(one.path)
    return place_of_new(settings, path.parent) if one.kind == MISSING_SEGMENTS else path


def _is_lost_segment(problem: Problem, settings: StoreSettings) -> bool:
    """Whether a start deletes the link that is all that is left of a segment, and the log ends before it."""
    path = Path(problem.path)
    is_link = problem.kind == NO_FILE and problem.found == LINK
    return is_link and path.parent in settings.commit_log_dirs and path.name.isdecimal()


def is_mended(problem: Problem, settings: StoreSettings) -> bool:
    """Whether ``reput mend`` takes away what a load stumbles over."""
    if problem.kind in ("dispatch-never-ends", MISSING_SEGMENTS):
        return True
    path = Path(problem.path)
    if problem.kind == "queue-type" and (not known_topics(settings.config) or _are_batches(path, settings)):
        return False  # the topics are lost, or what type each has
    if problem.kind == WRONG_LENGTH and path.parent in settings.commit_log_dirs:
        return True
    return is_derived(problem, settings) or is_stray(problem, settings)


def _are_batches(topic: Path, settings: StoreSettings) -> bool:
    """Whether a topic has batch queues with units: its ``queue.type``, which no broker changes, is lost."""
    if topic.parent != settings.root / names.BATCH_CONSUME_QUEUE:
        return False
    return any(read_file(path).strip(b"\0") for path in sorted(topic.glob("*/*")) if path.is_file())


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
    if loss.kind == ALTERED:
        effect, remedy, step = Effect.GONE, Remedy.NONE, ""
    elif loss.kind in LOG_CUTS:
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
