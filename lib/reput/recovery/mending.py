"""Mending a store, so that a broker starts on it and loses nothing that is still there.

All that changes is made beside the store first: queues and index by a rebuild, segments as copies.
The model of the start is then asked about the result, and only if nothing is lost and nothing broken, all
of it takes its place in one swap. ``reput undo`` is that swap the other way round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.broker.problem import Problem
from reput.broker.snapshot import Snapshot, take, type_problems
from reput.config.settings import StoreSettings
from reput.errors import SettingsError, StoreError, StoreInUseError
from reput.format import names
from reput.job.options import RebuildOptions
from reput.job.output_directory import discard_if_swapped, staging_of
from reput.job.plan import prepare
from reput.job.run import stage
from reput.job.summary import Summary, summarize
from reput.recovery.log_copies import LogCopies
from reput.recovery.losses import Loss
from reput.recovery.mend_log import Change, mend_log
from reput.recovery.plan import Plan, plan
from reput.recovery.refusals import (
    is_derived,
    refuse_other_settings,
    refuse_problems,
    refuse_without_log,
    strays_of,
    without_strays,
)
from reput.recovery.replica import Comparison, compare_logs
from reput.recovery.replica_view import ReplicaView
from reput.store import files
from reput.store.ignored_features import ignored_features
from reput.store.lock import OutputLock, StoreLock
from reput.store.ownership import Owner
from reput.store.swap import Swap, SwapOvertakenError, abandon, is_pending, new_stamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.output.writer import Progress

#: Where segments are copied to when nothing is rebuilt; else a rebuild's staging is that.
_MENDING = "mending"


@dataclass(slots=True)
class Mended:
    """What was mended; ``to_dict`` is what ``--json`` prints.

    Attributes:
        plan: what a start would have done.
        changes: what of the log isn't any more what it was.
        rebuilt: what came of the rebuild; None when queues and index were sound.
        finished: where an earlier command's swap, finished by this one, keeps what it replaced.
        kept: the directory of what was replaced; None when nothing was.
        replica: what came from a replica, None where none was given.
    """

    plan: Plan
    changes: list[Change] = field(default_factory=list)
    rebuilt: Summary | None = None
    finished: str | None = None
    kept: str | None = None
    replica: Comparison | None = None

    @property
    def exit_code(self) -> int:
        """0, or 1 when messages were found damaged and are gone, or stay damaged; or files of config/."""
        if self.plan.lost_config or (self.replica is not None and self.replica.left):
            return 1
        damaged = self.rebuilt is not None and (
            self.rebuilt.has_broken_queues
            or any(finding.kind != "torn-tail" for finding in self.rebuilt.findings)
        )
        return int(damaged or any(change.kind == "stand-in" for change in self.changes))

    def to_dict(self) -> dict[str, object]:
        """The facts as a JSON-ready mapping."""
        return {
            "plan": self.plan.to_dict(),
            "finished": self.finished,
            "changes": [change.to_dict() for change in self.changes],
            "rebuilt": None if self.rebuilt is None else self.rebuilt.to_dict(),
            "kept": self.kept,
            "replica": None if self.replica is None else self.replica.to_dict(),
        }


def mend(
    options: RebuildOptions,
    start_spark: Callable[[], SparkSession],
    shown: Callable[[Plan], None] = lambda _plan: None,
    listener: Callable[[Progress, int], None] = lambda _progress, _total: None,
    replica: Path | None = None,
    comparing: Callable[[int, int], None] = lambda _done, _total: None,
    compared: Callable[[Comparison], None] = lambda _comparison: None,
    check_spark: Callable[[], None] = lambda: None,
) -> Mended:
    """Mend what a start of the broker would lose or leave broken, as far as it can be.

    A swap that was interrupted is finished first.

    Args:
        options: those of a rebuild in place of all queues and the index.
        start_spark: gives the session; only called when queues and index have to be rebuilt.
        shown: is told the plan before anything is done.
        listener: gets the rebuild's progress and the bytes that there are in all.
        replica: a copy of the log that damaged and missing ranges are taken from first.
        comparing: gets bytes of the log that were compared, and how many there are.
        compared: is told what came of that before anything is done.
        check_spark: raises where no session can start; called before anything is written for a rebuild.

    Raises:
        ReputError: refused or failed. What was there before is unchanged, or a swap is pending that the same
            command finishes.
    """
    settings = StoreSettings.load(
        options.store, options.broker_conf, options.rocketmq_version, rocksdb=True, asked=options.asked
    )
    snapshot = take(settings)
    if snapshot.holder is not None:
        raise StoreInUseError(
            "the store is in use",
            path=settings.root,
            found=snapshot.holder.what,
            next_step="Stop the broker, then run the same command again.",
        )
    finished = None
    if is_pending(settings.root):
        finished = _finish_swap(settings)
        snapshot = take(settings)
    mended = Mended(plan(snapshot), finished=finished)
    if replica is not None:
        check_spark()
        with _locked(settings) as owner:
            _clear(settings)
            mended.replica = compare_logs(settings, replica, comparing)
            compared(mended.replica)
            if mended.replica.taken:
                _with_replica(mended, mended.replica, options, owner, start_spark, listener)
                return mended
    shown(mended.plan)
    if not mended.plan.loses:
        return mended
    refuse_problems(mended.plan.prediction.problems, settings)
    refuse_other_settings(snapshot)
    refuse_without_log(snapshot)
    current = plan(without_strays(snapshot)) if strays_of(snapshot) else mended.plan
    if _is_derived_broken(snapshot, current):
        check_spark()
        _with_rebuild(mended, options, start_spark, listener)
    else:
        _log_alone(mended, settings)
    return mended


def _finish_swap(settings: StoreSettings) -> str | None:
    with _locked(settings):
        try:
            kept = Swap.resume(settings.root)
        except SwapOvertakenError:
            abandon(settings.root)
            files.remove_tree(staging_of(settings.root))
            _clear(settings)
            return None
        discard_if_swapped(staging_of(settings.root))
        _clear(settings)
    return None if kept is None else str(kept)


@contextmanager
def _locked(settings: StoreSettings) -> Iterator[Owner]:
    owner = Owner.of_store(settings.root, settings.commit_log_dirs)
    owner.check_can_apply(settings.root)
    with StoreLock(settings.root, owner), OutputLock(settings.root, owner):
        yield owner


def _is_derived_broken(snapshot: Snapshot, current: Plan) -> bool:
    """Whether queues or index are broken, as a start sees it once strays are away."""
    if any(is_derived(problem, snapshot.settings) for problem in current.prediction.problems):
        return True
    # Messages behind damage: units may lead into it.
    log = ("log-cut", "segment-deleted")
    return any(loss.kind not in log or loss.count for loss in (*current.losses, *current.unrepaired))


def _log_alone(mended: Mended, settings: StoreSettings) -> None:
    with _locked(settings) as owner:
        staging = settings.root / names.REPUT / _MENDING
        _clear(settings)
        try:
            snapshot = take(settings)
            _put(mended, without_strays(snapshot), snapshot, staging, (), owner)
        finally:
            if not is_pending(settings.root):
                files.remove_tree(staging)


def _with_rebuild(
    mended: Mended,
    options: RebuildOptions,
    start_spark: Callable[[], SparkSession],
    listener: Callable[[Progress, int], None],
) -> None:
    started = time.perf_counter()
    with prepare(options) as rebuilding:
        before = replace(rebuilding.journal.state)
        stage(rebuilding, start_spark, listener)
        staging, owner = rebuilding.root, rebuilding.owner or Owner.default()
        staged = _staged(staging)
        snapshot = take(rebuilding.settings)
        try:
            _put(mended, _staged_view(snapshot, staging, staged), snapshot, staging, staged, owner)
        finally:
            if not is_pending(rebuilding.settings.root):
                files.remove_tree(staging)
        mended.rebuilt = summarize(rebuilding, before, time.perf_counter() - started, mended.kept, {})


def _with_replica(
    mended: Mended,
    comparison: Comparison,
    options: RebuildOptions,
    owner: Owner,
    start_spark: Callable[[], SparkSession],
    listener: Callable[[Progress, int], None],
) -> None:
    """Take over what the replica has, derive queues and index from that log, and mend what is left of it.

    A rebuild that was begun from the log as it was is given up: the two don't go together.
    """
    started = time.perf_counter()
    settings = comparison.settings
    refuse_other_settings(take(settings))
    mending = settings.root / names.REPUT / _MENDING
    files.remove_tree(staging_of(settings.root))
    try:
        view = ReplicaView.make(comparison, mending, owner)
        staging = mending / "out"
        with view.reported():
            derived = replace(options, store=view.root, out=staging)
            with prepare(derived) as rebuilding:
                _refuse_elsewhere(rebuilding.settings, view.root)
                before = replace(rebuilding.journal.state)
                stage(rebuilding, start_spark, listener)
                staged = _staged(staging)
                files.give_tree(staging, owner)
                snapshot = take(rebuilding.settings)
                stops = [problem for problem in snapshot.problems if problem.stops]
                refuse_problems(stops, rebuilding.settings)
                copies = LogCopies(rebuilding.settings, staging, comparison.segment_size, owner)
                log = mend_log(_staged_view(snapshot, staging, staged), copies)
                _refuse_unproven(log.plan, rebuilding.settings)
                copies.flush()
                summary = summarize(rebuilding, before, 0.0, None, {}, carried_from=view.root)
        strays = [copies.name(path) for path in strays_of(snapshot)]
        new = view.move(staging, copies.names)
        files.remove_tree(view.root)
        remove = [*strays, *(name for name in log.removed if name not in copies.names)]
        order = [*sorted({*new, *copies.names}), *staged]
        swap = Swap(settings.root, staging, order, new_stamp(settings.root), remove=remove, owner=owner)
        mended.kept = str(swap.run())
        mended.changes = [*(Change("moved-away", name, 0, 0) for name in strays), *log.changes]
        mended.rebuilt = replace(
            summary,
            store=str(settings.root),
            output=str(settings.root),
            in_place=True,
            kept=mended.kept,
            seconds=time.perf_counter() - started,
            left_alone=ignored_features(settings.root),
            findings=[replace(one, path=view.told(one.path)) for one in summary.findings],
        )
    finally:
        if not is_pending(settings.root):
            _clear(settings)


def _clear(settings: StoreSettings) -> None:
    """Remove what only a mending needs, once no swap does."""
    for path in (settings.root / names.VIEW, settings.root / names.REPUT / _MENDING):
        files.remove_tree(path)


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


def _staged(staging: Path) -> list[str]:
    """What a rebuild made, the checkpoint last: it speaks for all others."""
    found = sorted(path.name for path in staging.iterdir())
    found = [name for name in found if name not in (names.REPUT, names.COMMIT_LOG)]
    return sorted(found, key=lambda name: name == names.CHECKPOINT)


def _staged_view(snapshot: Snapshot, staging: Path, staged: list[str]) -> Snapshot:
    """The store as it will be, seen before: what is staged, in the place of what is there."""
    settings = snapshot.settings
    seen = take(replace(settings, root=staging))
    whole = without_strays(snapshot)
    replaced = [settings.root / name for name in staged]
    # What isn't staged stays, and so do its problems.
    problems = [
        problem
        for problem in whole.problems
        if not (
            is_derived(problem, settings)
            and any(Path(problem.path).is_relative_to(directory) for directory in replaced)
        )
    ]
    problems += [
        problem
        for problem in seen.problems
        # Which type a topic's queues are of is said by a file that isn't staged.
        if problem.kind != "queue-type" and Path(problem.path).is_relative_to(staging)
    ]
    queues = {name: (seen if name in staged else whole).all_queues[name] for name in names.QUEUES}
    view = replace(
        whole,
        problems=problems,
        queues=queues[names.CONSUME_QUEUE],
        ext_queues=queues[names.CONSUME_QUEUE_EXT],
        batch_queues=queues[names.BATCH_CONSUME_QUEUE],
        index=(seen if names.INDEX in staged else whole).index,
    )
    if whole.kept is not None and whole.kept.directory.name in staged:
        view = replace(view, kept=seen.kept)
    if names.CHECKPOINT in staged:
        view = replace(view, checkpoint=seen.checkpoint, checkpoint_exists=True)
    problems += type_problems(view)
    return view


def _put(
    mended: Mended,
    view: Snapshot,
    snapshot: Snapshot,
    staging: Path,
    staged: tuple[str, ...] | list[str],
    owner: Owner,
) -> None:
    """Mend the log on copies, ask the model, and put everything in place."""
    root = snapshot.settings.root
    copies = LogCopies(snapshot.settings, staging, snapshot.segment_size, owner)
    log = mend_log(view, copies)
    strays = [copies.name(path) for path in strays_of(snapshot)]
    _refuse_unproven(log.plan, snapshot.settings)
    copies.flush()
    remove = [*strays, *(name for name in log.removed if name not in copies.names)]
    stamp = new_stamp(root)
    # The log first: a start in between doesn't cut it.
    order = [*copies.names, *staged]
    mended.kept = str(Swap(root, staging, order, stamp, remove=remove, owner=owner).run())
    mended.changes = [*(Change("moved-away", name, 0, 0) for name in strays), *log.changes]


def _refuse_unproven(result: Plan, settings: StoreSettings) -> None:
    if not result.loses:
        return
    left: list[Problem | Loss] = [*result.prediction.problems, *result.losses, *result.unrepaired]
    first = left[0]
    in_place, beside = settings.command("rebuild", "--in-place"), settings.command("rebuild", "--out", "DIR")
    raise StoreError(
        "what --apply can do isn't enough: a start would still lose something, or leave it broken",
        path=first.path,
        found=f"{first.kind}: {first.found if isinstance(first, Problem) else first.text}",
        next_step=f"`{in_place}` mends queues and index alone; "
        f"`{beside}` takes all that the log has into a directory of its own.",
    )
