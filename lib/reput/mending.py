"""Mending a store, so that a broker starts on it and loses nothing that is still there.

The diagnosis says what is wrong; of each thing that the log can put right, a step is made here. All that
changes is made beside the store first: queues, index and checkpoint by a rebuild, segments as copies. The
model of the start is then asked about the result, and only if nothing is lost and nothing left wrong, all
of it takes its place in one swap. ``reput undo`` is that swap the other way round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reput.broker.config_files import LOST_CONFIG, MISSING_CONFIG
from reput.broker.snapshot import Snapshot, take, type_problems
from reput.config.settings import StoreSettings
from reput.derived.files import NO_FILE, Listing
from reput.derived.last_file import EXPIRED_QUEUES
from reput.diagnosis.check import Diagnosis, check, settings_to_look
from reput.diagnosis.findings import (
    CLOSED,
    LOG_CUTS,
    ODD_IN_ROCKSDB,
    QUEUE_CUT,
    area_of,
    closable,
    leads_to_damage,
    lost_queues,
    merged,
    of_start,
    torn_end,
    unique,
)
from reput.diagnosis.verdict import (
    EXIT_CODES,
    WORDS,
    Area,
    Effect,
    Finding,
    Judged,
    Remedy,
    Sort,
    Verdict,
    lost,
)
from reput.errors import OutputError, Problem, SettingsError, StoreError, StoreInUseError
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.dtypes import UNIT_DTYPE
from reput.format.names import Queue
from reput.job.in_place import discard_leftovers, finish_swap, of_mending, staging_of
from reput.job.options import RebuildOptions
from reput.job.plan import Plan as Rebuilding
from reput.job.plan import intended, log_files, prepare
from reput.job.rebuilding import rebuild, stage
from reput.job.summary import KeptEnd, Summary, summarize
from reput.log.segments import SECOND_FILE
from reput.newer_python import Self
from reput.recovery.losses import named
from reput.recovery.mend_log import Change, LogCopies, MendedLog, WholeMessagesError, joined, mend_log
from reput.recovery.refusals import (
    is_derived,
    outside,
    outside_step,
    refuse_problems,
    strays_of,
    without_strays,
)
from reput.recovery.replica import Comparison, compare_logs
from reput.recovery.replica_view import ReplicaView
from reput.store import files
from reput.store.listing import ignored_features
from reput.store.lock import OutputLock, StoreLock
from reput.store.ownership import Owner
from reput.store.reading import check_store, read_file
from reput.store.swap import Swap, broker_mark, check_movable, is_pending, new_stamp
from reput.store.system import check_free, human
from reput.verify.explain import TAGS_LOST
from reput.verify.plan import VerifyOptions
from reput.verify.report import LEGAL, LOG, Difference, Note, Report
from reput.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.output.writer import Progress

    Spark = Callable[[], SparkSession] | None
    Listener = Callable[[Progress, int], None]


#: More queues than this aren't made one by one.
_MOST_QUEUES = 200
#: What is wrong with a queue that the log has messages of: those can be made one by one.
_IN_LOG = frozenset({"missing-unit", "wrong-unit", "misplaced-unit"})
#: Files in the log's directory that are none of the log's.
_STRAY = frozenset({"stray-file", "stray-directory", NO_FILE, SECOND_FILE})


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do."""

    #: ``move-aside``, ``take``, ``close-log``, ``make-queues``, ``make-index``, ``make-checkpoint``,
    #: or ``by-hand``
    kind: str
    said: str  # what it changes, for people

    @property
    def by_hand(self) -> bool:
        """Nobody but the operator can do it."""
        return self.kind == "by-hand"

    def __str__(self) -> str:
        return self.said


@dataclass(frozen=True, slots=True)
class Making:
    """What of queues, index and checkpoint is to be made anew."""

    queues: frozenset[Queue] | None = frozenset()  # these; None for all, and whatever lies beside them
    index: bool = False  # index, checkpoint: these, too
    checkpoint: bool = False

    @classmethod
    def whole(cls) -> Self:
        """All of it."""
        return cls(None, index=True, checkpoint=True)

    @property
    def anything(self) -> bool:
        """Whether there is anything to make."""
        return self.queues is None or bool(self.queues) or self.index or self.checkpoint

    @property
    def alone(self) -> bool:
        """Only some queues."""
        return bool(self.queues) and not self.index and not self.checkpoint

    def options(self, options: RebuildOptions) -> RebuildOptions:
        """Those of the rebuild that makes it."""
        if not self.alone or self.queues is None:
            return options
        return replace(
            options, queues=tuple(f"{topic}:{queue_id}" for topic, queue_id in sorted(self.queues))
        )

    def staged(self, rebuilding: Rebuilding) -> tuple[list[str], list[str]]:
        """What takes its place in the store, the checkpoint last, and what goes without a successor."""
        staging, root = rebuilding.root, rebuilding.settings.root
        there = {path.name for path in staging.iterdir()} - {names.REPUT, names.COMMIT_LOG}
        staged: list[str] = []
        removed: list[str] = []
        batch = names.BATCH_CONSUME_QUEUE
        if self.queues is None and batch not in there and (root / batch).is_dir():
            # No topic has such queues, and none of them has messages that have expired.
            reads = rebuilding.settings.dialect.recovery.switches_queue_types
            removed += [batch] if reads and rebuilding.settings.rocksdb.files else []
        if self.queues is None and self.index and self.checkpoint:
            return sorted(there, key=lambda name: (name == names.CHECKPOINT, name)), removed
        directories = (names.queue_directory, names.queue_ext_directory, names.batch_queue_directory)
        if self.queues is None:
            staged += [name for name in (*names.QUEUES, names.CONSUME_QUEUE_ROCKSDB) if name in there]
        for queue in sorted(self.queues or ()):
            for directory in directories:
                name = directory(Path(), *queue).as_posix()
                if (staging / name).exists():
                    staged.append(name)
                elif (root / name).exists():
                    if queue not in rebuilding.journal.state.queues:
                        # Its messages have expired: only a whole making keeps where it ends.
                        raise NotEnoughError("the log has no message of a queue", path=root / name)
                    removed.append(name)
        if self.index:
            staged += [name for name in (names.INDEX, names.ROCKSDB_STORE) if name in there]
            removed += [names.INDEX] if names.INDEX not in there and (root / names.INDEX).exists() else []
        if (self.checkpoint or self.index) and names.CHECKPOINT in there:
            staged.append(names.CHECKPOINT)
        return staged, removed


def making(before: Diagnosis) -> Making:
    """What of queues, index and checkpoint has to be made anew."""
    found = [one for one in before.mendable if one.area is not Area.LOG or one.kind not in _STRAY]
    if before.all_lost:
        return Making.whole() if before.mendable else Making()
    # Units that go with a cut of the log stay when the log is closed.
    of_queues = [one for one in found if one.area is Area.QUEUE and one.kind != QUEUE_CUT]
    # What a start puts right depends on where the log ends, how far all queues reach, and on the checkpoint.
    healed = [one for one in before.findings if found and one.effect is Effect.HEALS]
    closes = any(one.area is Area.LOG for one in found)
    of_queues += [one for one in healed if one.area is Area.QUEUE and (closes or one.kind in _IN_LOG)]
    # That of queues in RocksDB is a key in their database.
    own = str(before.settings.root / names.CHECKPOINT)
    of_queues += [one for one in found if one.area is Area.CHECKPOINT and one.path != own]
    index = any(one.area is Area.INDEX for one in (*found, *healed))
    checkpoint = index or any(one.area is Area.CHECKPOINT for one in found)
    if not of_queues:
        return Making(frozenset(), index, checkpoint)
    queues = frozenset(one.queue for one in of_queues if one.queue is not None)
    by_one = all(
        one.queue is not None and one.offset is not None and one.kind in _IN_LOG for one in of_queues
    )
    if not by_one or len(queues) > _MOST_QUEUES:
        return Making.whole()
    return Making(queues, index, checkpoint)


def steps_of(before: Diagnosis, replica: Comparison | None) -> Iterator[Step]:
    """What there is to do, in order; nothing where nothing can be done."""
    asked = before.asks_first
    for step in asked or before.by_hand:
        yield Step("by-hand", step)
    if asked:
        return
    root = before.settings.root
    if replica is not None and replica.taken and (elsewhere := outside(before.settings)):
        step = outside_step(before.settings, elsewhere[0])
        if replica.new.issuperset(replica.sources):  # else a slave that is behind may have less of them
            bases = ", ".join(map(names.offset_name, sorted(replica.sources)))
            step = f"With the broker stopped, copy {bases} whole from {replica.replica} to {elsewhere[0]}"
        yield Step("by-hand", step)
        return
    found = before.mendable
    for one in found:
        if one.area is Area.LOG and one.kind in _STRAY:
            yield Step("move-aside", f"move {_below(one.path, root)} aside: {one.said}")
    if replica is not None and replica.taken:
        size = human(sum(one.end - one.offset for one in replica.taken))
        messages = counted(sum(one.count for one in replica.taken), "message")
        ranges = counted(len(replica.taken), "range")
        yield Step("take", f"take {ranges} of the log with {messages}, {size}, from {replica.replica}")
    taken = [] if replica is None else joined((one.offset, one.end) for one in replica.taken)
    log = [one for one in found if one.area is Area.LOG and one.kind not in _STRAY]
    log = [one for one in log if not any(start <= one.first and one.end <= end for start, end in taken)]
    if log:
        places = ", ".join(dict.fromkeys(_below(one.path, root) for one in log[:_MOST_NAMED]))
        more = f" and {len(log) - _MOST_NAMED:,} more" if len(log) > _MOST_NAMED else ""
        yield Step(
            "close-log",
            f"close {counted(len(log), 'damaged place')} of the log, on copies of its segments, so that a "
            f"start goes on behind: {places}{more}",
        )
    anew = Making.whole() if replica is not None and replica.taken else making(before)
    if anew.queues is None:
        yield Step("make-queues", "make all queues anew from the log")
    elif anew.queues:
        some = named(sorted(anew.queues))
        yield Step("make-queues", f"make {counted(len(anew.queues), 'queue')} anew from the log: {some}")
    if anew.index:
        yield Step("make-index", "make the index anew from the log")
    if anew.checkpoint:
        yield Step("make-checkpoint", "make the checkpoint anew")


_MOST_NAMED = 5


def _below(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


#: Problems that a load tells by the files in ``config/``.
_BY_CONFIG = frozenset({"queue-type", MISSING_CONFIG, LOST_CONFIG})
#: Whole messages that stand-ins take the places of, where a start would end the log.
_WRONG_BODY = frozenset({"bad-crc", "bad-property-crc"})


@dataclass(slots=True)
class Mended(Judged):
    """What ``reput mend`` would do, or has done; ``to_dict`` is what ``--json`` prints."""

    before: Diagnosis  # what was wrong
    steps: list[Step] = field(default_factory=list)  # what there is to do about it, in order
    applied: bool = False  # they were taken
    after: Diagnosis | None = None  # what is left; None where nothing was done
    changes: list[Change] = field(default_factory=list)  # what of the log isn't any more what it was
    #: what came of the rebuild; None when queues and index were left as they were
    rebuilt: Summary | None = None
    #: the queues, index and checkpoint that were made anew, relative to the store
    made: list[str] = field(default_factory=list)
    #: where an earlier command's swap, finished by this one, keeps what it replaced
    finished: str | None = None
    kept: str | None = None  # the directory of what was replaced; None when nothing was
    replica: Comparison | None = None  # what a replica has, None where none was given
    seconds: float = 0.0  # wall time

    hidden = ("after",)

    @property
    def now(self) -> Diagnosis:
        """How the store is."""
        return self.before if self.after is None else self.after

    @property
    def verdict(self) -> Verdict:
        """That of ``reput check`` for the store as it is now; to be mended where a replica has more."""
        found = self.now.verdict
        gives = self.replica is not None and self.replica.taken and not self.applied
        if self.replica is None or not gives or found.exit_code >= EXIT_CODES[Sort.MEND]:
            return found
        messages = counted(sum(one.count for one in self.replica.taken), "message")
        has = f"{self.replica.replica} has {messages} that the log lacks"
        return Verdict(Sort.MEND, found.store, WORDS[Sort.MEND], has)

    @property
    def lost(self) -> int:
        """How many messages neither the log nor what was given has."""
        if self.replica is not None and self.replica.taken:
            return lost(self.now.findings) + self.now.filled
        closed = [(one.offset, one.end) for one in self.changes]
        bodies = [one.first for one in self.before.findings if one.kind in _WRONG_BODY]
        bodies = [at for at in bodies if any(start <= at < end for start, end in closed)]
        # Units that a start cuts off together with the log stay where the log is closed.
        cut = [one for one in self.before.findings if leads_to_damage(one) and not one.messages]
        return lost(self.before.findings) + len(bodies) + sum(one.count for one in cut if closed)

    def to_dict(self) -> dict[str, object]:
        """The diagnosis as it is now, and what was done."""
        return {**self.now.to_dict(), **Judged.to_dict(self)}


def mend(
    options: RebuildOptions,
    replica: Path | None = None,
    *,
    apply: bool = False,
    start_spark: Spark = None,
    checking: Callable[[int, int, int], None] = lambda _bytes, _messages, _total: None,
    comparing: Callable[[int, int], None] = lambda _done, _total: None,
    listener: Listener = lambda _progress, _total: None,
    begins: Callable[[Mended], None] = lambda _mended: None,
) -> Mended:
    """Say what mends a store, or do it, as far as the log and a replica can.

    The options are those of a rebuild in place of all queues and the index. Damaged and missing ranges are
    taken first from ``replica``, a copy of the log. With ``apply``, a swap that was interrupted is finished
    first; ``begins`` is told what there is to do, before anything is done.

    ``checking`` gets bytes of log, messages and bytes in all; ``comparing`` and ``listener`` how far they
    are, and bytes in all. After an error what was there before is unchanged, or a swap is pending that the
    same command finishes.
    """
    started = time.perf_counter()
    wanted = _comparing(options)
    settings = settings_to_look(options.store, options.broker_conf, options.rocketmq_version)
    check_store(settings.root)
    finished = None
    begun = (staging_of(settings.root), *of_mending(settings.root))
    if apply and (is_pending(settings.root) or any(path.exists() for path in begun)):
        _refuse_in_use(take(settings))
        finished = _finish_swap(settings)
    seen = _seen(settings)
    comparison = None if replica is None else compare_logs(settings, replica, comparing)
    before = check(wanted, start_spark, checking, enough=_is_all_lost)
    # With another log all is made anew: the release counts, whatever is wrong now.
    before.all_lost = before.all_lost or (comparison is not None and bool(comparison.taken))
    result = Mended(before, finished=finished, replica=comparison)
    result.steps = list(steps_of(before, result.replica))
    if not all(step.by_hand for step in result.steps):
        if apply and before.snapshot is not None:
            _refuse_in_use(before.snapshot)
        work = _Mending(result, seen, options, start_spark, listener)
        if apply:
            begins(result)
            work.run()
        else:
            work.foresee_refusal()
    result.seconds = time.perf_counter() - started
    return result


def _comparing(options: RebuildOptions) -> VerifyOptions:
    """The options of a check of the same store."""
    return VerifyOptions(options.store, None, options.broker_conf, options.rocketmq_version)


def _is_all_lost(snapshot: Snapshot) -> bool:
    """Whether all queues and the index are to be made anyway: then nothing has to be compared before."""
    settings = snapshot.settings
    has_queues = snapshot.queues or snapshot.batch_queues or settings.rocksdb.queues is not None
    return not (has_queues or snapshot.index) and bool(snapshot.log.files)


def _refuse_in_use(snapshot: Snapshot) -> None:
    if snapshot.holder is not None:
        raise StoreInUseError(
            "the store is in use",
            path=snapshot.settings.root,
            found=snapshot.holder.what,
            next_step="Stop the broker, or let the other reput end; then run the same command again.",
        )


def _seen(settings: StoreSettings) -> dict[str, tuple[int, ...]]:
    """Of the log's files, and of the last start of a broker, what changes where one writes."""
    return {**log_files(settings), str(settings.root / names.LOCK): (broker_mark(settings.root) or 0,)}


def _finish_swap(settings: StoreSettings) -> str | None:
    with _locked(settings):
        kept = finish_swap(settings.root)
        discard_leftovers(settings.root)
    return None if kept is None else str(kept)


@contextmanager
def _locked(settings: StoreSettings) -> Iterator[Owner]:
    owner = Owner.of_store(settings.root, settings.commit_log_dirs)
    owner.check_can_apply(settings.root)
    with StoreLock(settings.root, owner), OutputLock(settings.root, owner):
        yield owner


class NotEnoughError(StoreError):
    """By the model of a start, what was made leaves something wrong."""


class _Mending:
    """One run that changes a store."""

    def __init__(
        self,
        result: Mended,
        seen: dict[str, tuple[int, ...]],
        options: RebuildOptions,
        start_spark: Spark,
        listener: Listener,
    ) -> None:
        self._result = result
        self._seen = seen  # before the diagnosis
        self._options = options
        self._start_spark = start_spark
        self._listener = listener
        self._settings = result.before.settings
        self._making = making(result.before)

    def run(self) -> None:
        result, before = self._result, self._result.before
        self._foresee()
        if result.replica is not None and result.replica.taken:
            with _locked(self._settings) as owner:
                self._refuse_changed()
                discard_leftovers(self._settings.root)
                comparison = result.replica
                self._without_whole(lambda options: self._with_replica(comparison, owner, options))
        elif before.snapshot is None or before.plan is None:
            self._derived_alone()
            result.applied = True
            return
        else:
            snapshot = before.snapshot
            self._without_whole(
                lambda options: (
                    self._with_rebuild(options) if self._making.anything else self._log_alone(snapshot)
                )
            )
        result.applied = True
        if result.after is not None:
            result.after.findings += _still_by_hand(before, result.after, result.made)

    def _foresee(self) -> None:
        """See, before the first write, that all has room together, and that files can be moved."""
        before, root = self._result.before, self._settings.root
        snapshot = before.snapshot
        if snapshot is None:
            return
        bases, new = self._copied
        there = {one.base for one in snapshot.log.files}
        copies = len((bases & there) | new)
        needed, what = copies * snapshot.segment_size, f"copies of {counted(copies, 'segment')}"
        if self._making.anything and before.plan is not None and not new:
            run = intended(self._making.options(self._options))
            if not run.journal_path.exists():
                needed += run.estimate.output_bytes
                what = f"{what}, and the rebuild" if copies else "the rebuild"
        check_free(root, needed, what)
        self._see_movable(writable=True)

    def foresee_refusal(self) -> None:
        """Say in the steps what :meth:`run` would refuse to move."""
        try:
            self._see_movable(writable=False)
        except OutputError as error:
            self._result.steps.insert(0, Step("by-hand", str(error)))

    @cached_property
    def _copied(self) -> tuple[set[int], set[int]]:
        """The bases of the segments that are closed, and of those that a replica gives."""
        before, replica = self._result.before, self._result.replica
        snapshot = before.snapshot
        if snapshot is None:
            return set(), set()
        size = snapshot.segment_size
        places = [] if before.report is None else closable(before.report.findings, snapshot)
        places += [(one.first, one.first + 1) for one in before.findings if one.kind in LOG_CUTS]
        taken = [] if replica is None else [(one.offset, one.end) for one in replica.taken]
        bases, new = (
            {at for start, end in some for at in range(start - start % size, end, size)}
            for some in (places, taken)
        )
        return bases, new

    def _see_movable(self, *, writable: bool) -> None:
        """See that what is replaced can be moved: OutputError. ``writable``: by this process, too."""
        snapshot, making, root = self._result.before.snapshot, self._making, self._settings.root
        if snapshot is None:
            return
        bases, new = self._copied
        moved = [one.path for one in snapshot.log.files if one.base in bases | new]
        moved = [path for path in (*moved, *strays_of(snapshot)) if path.is_relative_to(root)]
        queues = making.queues or ()
        made = [root / kind / topic / str(number) for topic, number in queues for kind in names.QUEUES]
        made += [root / names.CONSUME_QUEUE] if new or making.queues is None else []
        made += [root / names.INDEX] if new or making.index else []
        made += [root / names.CHECKPOINT] if new or making.checkpoint else []
        moved += [path for path in made if path.exists()]
        check_movable(root, [path.relative_to(root).as_posix() for path in moved], writable=writable)

    def _refuse_changed(self) -> None:
        """See, under the locks, that the log is as it was when it was looked at: that may be hours ago."""
        now = _seen(self._settings)
        for path in sorted(now.keys() | self._seen.keys()):
            if now.get(path) != self._seen.get(path):
                raise StoreInUseError(
                    "the store was written to while it was looked at; nothing was changed",
                    path=path,
                    expected="the file as it was before" if path in self._seen else "no such file",
                    found="another one" if path in now else "none",
                    next_step="Stop what writes to it; then run the same command again.",
                )

    def _without_whole(self, work: Callable[[RebuildOptions], None]) -> None:
        """Mend; once more, with all made anew, where that turns out to be not enough.

        So it is if queues and index hold messages that stand-ins take the places of, or if a start that the
        log's damage kept from being foretold would take something of them away.
        """
        options = self._options
        while True:
            try:
                return work(options)
            except WholeMessagesError as found:
                if {*found.offsets} <= {*options.without}:
                    raise
                options = replace(options, without=found.offsets)
            except NotEnoughError:
                if self._making == Making.whole():
                    raise
            self._making = Making.whole()

    def _derived_alone(self) -> None:
        """Of a store whose start isn't foretold the log stays as it is."""
        result = self._result
        result.rebuilt = rebuild(self._options, self._start_spark, self._listener)
        result.kept = result.rebuilt.kept
        result.after = check(_comparing(self._options), self._start_spark)

    def _log_alone(self, snapshot: Snapshot) -> None:
        with _locked(self._settings) as owner:
            self._refuse_changed()
            staging = self._settings.root / names.REPUT / names.MENDING
            discard_leftovers(self._settings.root)
            try:
                report = self._result.before.report
                found = [] if report is None else report.findings
                self._put(snapshot, staging, [], [], owner, found)
            finally:
                if not is_pending(self._settings.root):
                    files.remove_tree(staging)

    def _with_rebuild(self, options: RebuildOptions) -> None:
        result, started = self._result, time.perf_counter()
        options = self._making.options(options)
        with prepare(intended(options)) as rebuilding:
            self._refuse_changed()
            before = replace(rebuilding.journal.state)
            stage(rebuilding, self._start_spark, self._listener)
            staging, owner = rebuilding.root, rebuilding.owner or Owner.default()
            snapshot = take(rebuilding.settings)
            staged, removed = self._making.staged(rebuilding)
            _keep_tags(result.before, staging)
            summary = summarize(rebuilding, before, 0.0, None, {}, rebuilding.settings.root)
            report = result.before.report
            try:
                found = [Difference.of_log(one) for one in summary.findings]
                if report is not None and self._making.alone:  # it looked at messages of all queues
                    found = report.findings
                elif report is not None:  # it sums no damaged places up, as a journal does
                    places = [one for one in report.findings if one.area == LOG and one.kind in CLOSED]
                    found = [*places, *(one for one in found if one.kind not in CLOSED)]
                all_made = self._making.queues is None
                earlier = list(_earlier_ends(result.before, rebuilding, summary)) if all_made else []
                self._put(
                    snapshot,
                    staging,
                    staged,
                    removed,
                    owner,
                    found,
                    options.without,
                    summary.kept_ends,
                    earlier,
                )
            finally:
                if not is_pending(rebuilding.settings.root):
                    files.remove_tree(staging)
            result.rebuilt = summarize(rebuilding, before, time.perf_counter() - started, result.kept, {})

    def _with_replica(self, comparison: Comparison, owner: Owner, options: RebuildOptions) -> None:
        """Take over what the replica has, derive queues and index from that log, and mend what is left of it.

        A rebuild that was begun from the log as it was is given up: the two don't go together.
        """
        result, started = self._result, time.perf_counter()
        settings = comparison.settings
        mending = settings.root / names.REPUT / names.MENDING
        files.remove_tree(staging_of(settings.root))
        try:
            view = ReplicaView.make(comparison, mending, owner)
            staging = mending / "out"
            with view.reported():
                derived = replace(options, store=view.root, out=staging)
                with prepare(intended(derived)) as rebuilding:
                    _refuse_elsewhere(rebuilding.settings, view.root)
                    before = replace(rebuilding.journal.state)
                    stage(rebuilding, self._start_spark, self._listener)
                    staged = Making.whole().staged(rebuilding)[0]
                    files.give_tree(staging, owner)
                    snapshot = take(rebuilding.settings)
                    refuse_problems([one for one in snapshot.problems if one.stops], rebuilding.settings)
                    copies = LogCopies(rebuilding.settings, staging, comparison.segment_size, owner)
                    summary = summarize(rebuilding, before, 0.0, None, {}, carried_from=view.root)
                    found = [Difference.of_log(one) for one in summary.findings]
                    seen = _staged_view(snapshot, staging, staged, ())
                    damage, torn = closable(found, snapshot), torn_end(found)
                    log = mend_log(seen, copies, damage, options.without, torn)
                    result.after = _afterwards(log, found, snapshot, summary.kept_ends)
                    result.after.findings += _earlier_ends(result.before, rebuilding, summary)
                    copies.flush()
            strays = [name for name in map(copies.name, strays_of(snapshot)) if name not in copies.names]
            new = view.move(staging, copies.names)
            files.remove_tree(view.root)
            order = [*sorted({*new, *copies.names}), *staged]
            swap = Swap(settings.root, staging, order, new_stamp(settings.root), remove=strays, owner=owner)
            result.kept = str(swap.run())
            result.changes = [*(Change("moved-away", name, 0, 0) for name in strays), *log.changes]
            result.made = staged
            result.rebuilt = replace(
                summary,
                store=str(settings.root),
                output=str(settings.root),
                in_place=True,
                kept=result.kept,
                seconds=time.perf_counter() - started,
                left_alone=ignored_features(settings.root),
                findings=[replace(one, path=view.told(one.path)) for one in summary.findings],
            )
            result.after = replace(
                result.after,
                settings=settings,
                findings=[
                    replace(
                        one,
                        path=view.told(one.path),
                        expected=view.told(one.expected),
                        found=view.told(one.found),
                        outcome=view.told(one.outcome),
                        step=view.told(one.step),
                    )
                    for one in result.after.findings
                ],
            )
        finally:
            if not is_pending(settings.root):
                discard_leftovers(settings.root)

    def _put(
        self,
        snapshot: Snapshot,
        staging: Path,
        staged: Sequence[str],
        removed: Sequence[str],
        owner: Owner,
        found: Sequence[Difference],
        without: Sequence[int] = (),
        ends: Sequence[KeptEnd] = (),
        earlier: Sequence[Finding] = (),
    ) -> None:
        """Mend the log on copies, ask the model, and put everything in place."""
        result, root = self._result, snapshot.settings.root
        copies = LogCopies(snapshot.settings, staging, snapshot.segment_size, owner)
        view = _staged_view(snapshot, staging, staged, removed)
        log = mend_log(view, copies, closable(found, snapshot), without, torn_end(found))
        result.after = _afterwards(log, found, snapshot, ends)
        for number, one in enumerate(result.after.findings):
            if Path(one.path).is_relative_to(staging):  # a copy, told by where it will be
                path = root / Path(one.path).relative_to(staging)
                there = replace(one, path=str(path), area=area_of(path, self._settings))
                result.after.findings[number] = there
        result.after.findings += [one for one in result.before.findings if one.cause == TAGS_LOST]
        result.after.findings += earlier
        strays = [name for name in map(copies.name, strays_of(snapshot)) if name not in copies.names]
        copies.flush()
        remove = [*strays, *removed]
        stamp = new_stamp(root)
        # The log first: a start in between doesn't cut it.
        order = [*copies.names, *staged]
        result.kept = str(Swap(root, staging, order, stamp, remove=remove, owner=owner).run())
        result.changes = [*(Change("moved-away", name, 0, 0) for name in strays), *log.changes]
        result.made = [*staged, *removed]


def _keep_tags(before: Diagnosis, staging: Path) -> None:
    """Give units that were made anew the tags that their messages have lost, and the old units have."""
    settings = before.settings
    size = settings.consume_queue_file_size
    for one in before.findings:
        if one.cause != TAGS_LOST or one.queue is None:
            continue
        start, end = one.first * UNIT_LENGTH, one.end * UNIT_LENGTH
        for base in range(start - start % size, end, size):
            old, new = (names.queue_file(root, *one.queue, base) for root in (settings.root, staging))
            if not new.is_file():
                continue
            was, now = (np.frombuffer(read_file(path), UNIT_DTYPE).copy() for path in (old, new))
            place = np.arange(base, base + size, UNIT_LENGTH)
            lost = (place >= start) & (place < end) & (now["tags"] == 0)
            lost &= (was["position"] == now["position"]) & (was["size"] == now["size"])
            now["tags"][lost] = was["tags"][lost]
            with files.opened(new, size, None) as fd:
                files.pwrite_all(fd, now.tobytes(), 0)
                files.fsync_file(fd)


def _still_by_hand(before: Diagnosis, after: Diagnosis, made: Sequence[str]) -> list[Finding]:
    """What only the operator mends, but of what is made anew, and what the model of a start has looked at."""
    said = {(one.kind, one.path) for one in after.findings}
    new = [before.settings.root / name for name in made]
    return [
        one
        for one in before.left
        if one.remedy is Remedy.BY_HAND
        and one.area is not Area.LOG
        and one.kind != EXPIRED_QUEUES
        and (one.kind, one.path) not in said
        and not any(Path(one.path).is_relative_to(path) for path in new)
    ]


def _afterwards(
    log: MendedLog, found: Sequence[Difference], snapshot: Snapshot, ends: Sequence[KeptEnd] = ()
) -> Diagnosis:
    """What is left, by the model of a start on what was made, with the ends that were kept.

    ``found`` is what a scan said of the log before its damage was closed; what stands in the way in the log
    of ``snapshot``, the store before, is moved aside. Raises NotEnoughError where a start would still lose
    something, or leave wrong what was made.
    """
    settings = snapshot.settings
    closed = joined((change.offset, change.end) for change in log.changes)
    batch = settings.batch_topics()
    report = Report(0, 0, broker_running=False)
    aside = {str(path) for path in strays_of(snapshot)}
    for one in found:
        if settings.rocksdb.queues is not None and one.kind in ODD_IN_ROCKSDB:
            report.notes.append(Note(one.kind, one.said, one.topic, one.queue_id, one.count))
            continue
        if one.area != LOG or one.kind in LEGAL or one.path in aside:
            continue
        if any(start <= one.first and one.end <= end for start, end in closed):
            continue
        if one.kind == "missing-queue-offsets" and one.topic not in batch:  # a rebuild fills their places
            report.notes.append(_filled(one.topic, one.queue_id, one.count))
        else:
            report.findings.append(one)
    report.notes += [_filled(one.topic, one.queue_id, one.end - one.first) for one in ends]
    start = of_start(log.view, log.plan)
    findings = list(unique(merged(start, report, log.view, log.plan, settings, log_alone=True)))
    findings += lost_queues(settings, log.view, findings)
    wrong = [
        one
        for one in findings
        if one.effect in (Effect.BLOCKS, Effect.LOSES, Effect.LACKS) and one.remedy is Remedy.MEND
    ]
    if wrong:
        first = wrong[0]
        raise NotEnoughError(
            "what was made isn't enough: a start would still lose something, or leave it wrong",
            path=first.path,
            expected=first.expected or None,
            found=f"{first.kind}: {first.said}",
            next_step="Nothing was changed. Please report this with the output of `reput check --json`.",
        )
    return Diagnosis(settings, findings, log.view, log.plan, report)


def _earlier_ends(before: Diagnosis, rebuilding: Rebuilding, summary: Summary) -> Iterator[Finding]:
    """Queues that were made anew, and end before places that they had of lost messages."""
    ends = {queue: state.next for queue, state in rebuilding.journal.state.queues.items()}
    ends |= {(kept.topic, kept.queue_id): kept.end for kept in summary.kept_ends}
    carried = set(summary.carried_queues)
    for one in before.findings:
        if not leads_to_damage(one) or one.queue is None or f"{one.topic}:{one.queue_id}" in carried:
            continue
        end = ends.get(one.queue, 0)
        if end < one.end:
            outcome = f"the queue ends at {end}: new messages get the queueOffsets of lost ones"
            yield replace(one, effect=Effect.GONE, remedy=Remedy.NONE, step="", outcome=outcome)


def _filled(topic: str | None, queue_id: int | None, count: int) -> Note:
    text = f"{topic}:{queue_id}: {count:,} messages that the log has lost; their places are filled"
    return Note("filled-hole", text, topic, queue_id, count)


def _refuse_elsewhere(settings: StoreSettings, view: Path) -> None:
    """Refuse a broker.conf by which the log is looked for at the place of the store as it is."""
    for directory in settings.commit_log_dirs:
        if not directory.is_relative_to(view):
            raise SettingsError(
                "storePathCommitLog names the commit log without storePathRootDir around it",
                path=settings.broker_conf,
                expected="storePathRootDir, and the log below it",
                found=directory,
                next_step="Give a copy of broker.conf with storePathRootDir set to the store.",
            )


def _staged_view(
    snapshot: Snapshot, staging: Path, staged: Sequence[str], removed: Sequence[str]
) -> Snapshot:
    """The store as it will be, seen before: what is staged, in the place of what is there."""
    settings = snapshot.settings
    seen = take(replace(settings, root=staging)) if staged else replace(snapshot, problems=[])
    replaced = [settings.root / name for name in (*staged, *removed)]
    strays = {str(path) for path in strays_of(snapshot)}
    # What isn't staged stays, and so do its problems. The log's own are mended on copies.
    problems = [
        problem
        for problem in snapshot.problems
        if not (
            problem.path in strays
            or _is_of_log(problem, settings)
            or (
                is_derived(problem, settings)
                and any(Path(problem.path).is_relative_to(directory) for directory in replaced)
            )
        )
    ]
    problems += [
        problem
        for problem in seen.problems
        # config/ isn't staged: what is said of it there holds for nothing.
        if problem.kind not in _BY_CONFIG and Path(problem.path).is_relative_to(staging)
    ]
    view = replace(
        without_strays(snapshot),
        problems=[problem for problem in problems if not problem.stops or is_derived(problem, settings)],
        queues=_queues(snapshot, seen, names.CONSUME_QUEUE, staged, removed),
        ext_queues=_queues(snapshot, seen, names.CONSUME_QUEUE_EXT, staged, removed),
        batch_queues=_queues(snapshot, seen, names.BATCH_CONSUME_QUEUE, staged, removed),
        index=(seen if names.INDEX in staged else snapshot).index,
    )
    if snapshot.kept is not None and snapshot.kept.directory.name in staged:
        view = replace(view, kept=seen.kept)
    if names.ROCKSDB_STORE in staged:
        view = replace(view, index_mark=seen.index_mark)
    if names.CHECKPOINT in staged:
        view = replace(view, checkpoint=seen.checkpoint, checkpoint_exists=True)
    view.problems.extend(type_problems(view))
    return view


def _is_of_log(problem: Problem, settings: StoreSettings) -> bool:
    """Whether it is a file of the log that is too short, or missing between others."""
    in_log = Path(problem.path).parent in settings.commit_log_dirs
    return in_log and problem.kind in ("wrong-length", "missing-segments")


def _queues(
    snapshot: Snapshot, seen: Snapshot, directory: str, staged: Iterable[str], removed: Iterable[str]
) -> dict[Queue, Listing]:
    """The queues of one kind."""
    if directory in (*staged, *removed):
        return seen.all_queues[directory]
    both = {**snapshot.all_queues[directory], **seen.all_queues[directory]}
    new, gone = set(staged), set(removed)
    found: dict[Queue, Listing] = {}
    for queue in both:
        name = f"{directory}/{queue[0]}/{queue[1]}"
        listing = (seen if name in new else snapshot).all_queues[directory].get(queue)
        if name not in gone and listing is not None:
            found[queue] = listing
    return found
