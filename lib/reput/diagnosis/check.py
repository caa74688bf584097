"""The diagnosis of a store: what a start meets, does and loses; what is derived, against the whole log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.broker.config_files import LOST_CONFIG, missing_config
from reput.broker.snapshot import OLD_TIMES, Snapshot, take
from reput.config.committed import committed_offsets
from reput.config.dialect import DIALECTS
from reput.config.settings import StoreSettings
from reput.derived.files import NO_FILE, UNFINISHED_RESTORE
from reput.diagnosis.findings import (
    BROKEN_ROCKSDB_STORE,
    GIVE_DELAY_LEVELS,
    LOG_CUTS,
    NO_LOG,
    QUEUE_CUT,
    area_of,
    index_database,
    judged,
    lost_queues,
    mending,
    merged,
    not_derived,
    of_problem,
    of_start,
    unique,
)
from reput.diagnosis.verdict import COUNTS, Area, Effect, Finding, Judged, Remedy, Verdict, of_two, verdict
from reput.errors import OutputError, Problem, ReputError, SettingsError, StoreError, UnsupportedError
from reput.format import commitlog, names
from reput.recovery.plan import MOST_READ, Plan, brings_back, plan
from reput.recovery.refusals import strays_of, without_strays
from reput.replay.placing import QUEUE_RESTARTED, save_steps
from reput.statistics import Listener
from reput.store.listing import ignored_features
from reput.store.lock import Holder
from reput.store.reading import check_store
from reput.store.swap import refuse_half_replaced
from reput.store.system import human
from reput.verify.plan import VerifyOptions
from reput.verify.report import MEASURES, OTHER_SETTINGS, Note, Report, key_of
from reput.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.verify.proofs import Remembering

_TOPICS = "topics.json"
#: A start that isn't foretold, or a comparison that isn't made: what decides is not known.
NOT_FORETOLD, NOT_COMPARED, HALF_REPLACED = "not-foretold", "not-compared", "half-replaced"
IN_USE = "in-use"
GIVE_RELEASE = "Give the broker's release: --rocketmq-version"
_GIVE = (GIVE_RELEASE, GIVE_DELAY_LEVELS)


@dataclass(slots=True)
class Diagnosis(Judged):
    """What ``reput check`` says of a store; ``to_dict`` is what ``--json`` prints."""

    settings: StoreSettings  # what the store was read with
    findings: list[Finding]  # all that was found, each once, the worst first
    snapshot: Snapshot | None = None  # the store as a start finds it; None where none can be made on it
    plan: Plan | None = None  # what a start does; None where that isn't foretold, or a broker runs
    #: the comparison with the whole log, or with another store; None where that wasn't made
    report: Report | None = None
    quick: bool = False  # it wasn't asked for
    #: all has to be made from the log: nothing is there that could be compared, or the log gets more
    all_lost: bool = False
    not_read: list[str] = field(default_factory=list)  # what wasn't looked at, for people
    seconds: float = 0.0  # wall time

    hidden = ("snapshot", "plan", "report", "all_lost")

    @property
    def notes(self) -> list[Note]:
        """What is odd and legal."""
        notes = [] if self.report is None else list(self.report.notes)
        if self.plan is not None:
            notes += [Note("brought-back", text) for text in brings_back(self.plan.prediction)]
        return notes

    @property
    def holder(self) -> Holder | None:
        """Who used the store when it was looked at."""
        return None if self.snapshot is None else self.snapshot.holder

    @property
    def running(self) -> bool:
        """Somebody uses the store."""
        return self.holder is not None or (self.report is not None and self.report.broker_running)

    def for_start(self) -> Diagnosis:
        """What of it decides whether a broker may be started: what loses no message counts as harmless.

        A crash takes an index file that wasn't full, as a rule: a mend can make it anew later.
        """
        found = [
            replace(one, effect=Effect.HARMLESS, remedy=Remedy.NONE)
            if (one.effect is Effect.LACKS and not one.messages)
            or (one.effect is Effect.LOSES and one.area is Area.INDEX)
            else one
            for one in self.findings
        ]
        holder = self.holder
        if holder is not None:  # ``load`` takes files away from one that runs, before ``start`` is refused
            found.append(
                Finding(
                    IN_USE, str(self.settings.root / names.LOCK), area=Area.STORE, effect=Effect.BLOCKS,
                    remedy=Remedy.BY_HAND, expected="a store that nobody uses", found=holder.what,
                    outcome="a second broker takes index files away from the first",
                    step=f"Stop {holder.what} first",
                )
            )  # fmt: skip
        return replace(self, findings=found)

    @property
    def filled(self) -> int:
        """Messages that the log has lost, and whose places in queues are filled."""
        return sum(note.count for note in self.notes if note.kind == "filled-hole")

    @property
    def verdict(self) -> Verdict:
        """Whether to start the broker, or to mend first; of two stores, whether they are the same."""
        if self.report is not None and self.report.against is not None:
            return of_two(
                self.settings.place, self.report.against, self.findings, unread="; ".join(self.not_read)
            )
        # What another release's start does is what a quick look at it is for.
        against = () if self.quick else self.settings.basis.contradictions
        return verdict(
            self.settings.place,
            self.settings.basis.given_in_full or self.settings.dialect.name,
            self.findings,
            filled=self.filled,
            otherwise=next((one.shown for one in against if one.given and not one.by_conf), ""),
            unread=self._unread,
            running=self.running,
        )

    @property
    def _unread(self) -> str:
        if not self.quick or self.snapshot is None:
            return ""
        size = len(self.snapshot.log.files) * self.snapshot.segment_size
        read = 0
        if self.plan is not None:
            walks = (self.plan.prediction.recovered, self.plan.prediction.dispatched)
            read = sum(walk.bytes for walk in walks if walk is not None)
        left = f"{human(max(size - read, 0))} of {human(size)} of the log"
        return f"{left}, and all units and keys that no start looks at"

    @property
    def mendable(self) -> list[Finding]:
        """What a mend puts right; nothing where it isn't known what is right."""
        if self.report is None and not (self.quick or self.all_lost):
            return []
        for one in self.findings:
            # Which queues there have to be is said by the topics.
            no_topics = one.area is Area.CONFIG and Path(one.path).name.startswith(_TOPICS)
            no_topics = no_topics or (one.kind == "queue-type" and one.remedy is Remedy.BY_HAND)
            # A log that has to be mended first, and can't be: queues and index are of it.
            no_log = one.area is Area.LOG and one.remedy is Remedy.BY_HAND and one.kind != OLD_TIMES
            if one.effect is Effect.UNKNOWN and one.kind != NOT_FORETOLD:
                return []
            if (no_topics or no_log) and one.effect in (Effect.BLOCKS, Effect.LOSES, Effect.LACKS):
                return []
        # Of a store whose start isn't foretold the log stays as it is.
        foretold = self.plan is not None or self.running
        return [
            one for one in self.left if one.remedy is Remedy.MEND and (one.area is not Area.LOG or foretold)
        ]

    @property
    def left(self) -> list[Finding]:
        """The findings that a verdict is made of."""
        return [one for one in self.findings if one.effect in COUNTS]

    @property
    def by_hand(self) -> list[str]:
        """What the operator has to do, each step once."""
        steps = (one.step for one in self.left if one.remedy is Remedy.BY_HAND and one.step)
        return list(dict.fromkeys(steps))

    @property
    def asks_first(self) -> list[str]:
        """What has to be given before anything is mended, since all else depends on it.

        The release, where starts differ, or the index that is to be made; broker.conf, where delayed messages
        are due at other times than by RocketMQ's default.
        """
        settings, asked = self.settings, [one for one in self.by_hand if one in _GIVE]
        shown = settings.basis.evidence
        if settings.basis.given is not None or shown is None or GIVE_RELEASE in asked:
            return asked
        if not any(self.all_lost or one.area is Area.INDEX for one in self.mendable):
            return asked
        rows = [row for row in DIALECTS if shown.release.allows(row)]
        differs = len({(row.counts_keys, row.index_tags) for row in rows}) > 1
        return [*asked, GIVE_RELEASE] if differs else asked

    @property
    def unless_deleted(self) -> list[str]:
        """What to know before topics with messages get queues, where others have some and they have none.

        They are lost or deleted: a topic that was created again is in ``topics.json`` as it was before.
        """
        snapshot = self.snapshot
        if snapshot is None:
            return []
        queues = {**snapshot.queues, **snapshot.batch_queues}
        there = {topic for (topic, _), listing in queues.items() if listing.files or listing.problems}
        there |= set() if snapshot.kept is None else {topic for topic, _ in snapshot.kept.ends}
        topics = {one.topic for one in self.left if one.kind == "missing-unit" and one.topic is not None}
        gone = sorted(topics - there) if there else []
        if not gone:
            return []
        named = ", ".join(gone[:3]) + (", …" if len(gone) > 3 else "")
        step = (
            f"If {named} was deleted and created again on purpose, don't mend: that brings its messages back."
        )
        if all(one.kind == "missing-unit" and one.topic in gone for one in self.left):
            step += " The broker can start as it is; let a guard skip its look once."
        return [step]

    @property
    def next_steps(self) -> list[str]:
        """What to do, in order; nothing where nothing can be done."""
        if asked := self.asks_first:
            return asked
        left, steps = self.left, self.by_hand
        if self.mendable:
            stopped = "With the broker stopped: " if self.running else ""
            mend = self.settings.command("mend")
            steps.append(f"{stopped}`{mend}` says what it would change; with --apply it does.")
        steps += self.unless_deleted
        of_log = [one for one in left if one.area is Area.LOG or one.kind == QUEUE_CUT]
        of_log = [one for one in of_log if one.kind != OLD_TIMES]  # the log lacks nothing yet
        lacks = self.filled or any(one.effect in (Effect.GONE, Effect.LOSES) for one in of_log)
        if lacks and self.settings.dledger is not None:
            steps.append(
                "DLedger's group brings a member's log back itself: let it join its group with an empty "
                "directory."
            )
        elif lacks and self.settings.remote is None:
            replica = self.settings.command("mend", "--from", "REPLICA")
            steps.append(f"If a slave or a copy has what the log lacks: `{replica}` says what it would take.")
        if not any(one.remedy is Remedy.MEND for one in left):
            kinds = [one.kind for one in left]
            if not self.settings.dialect.recovery.makes_lost_queues:  # most likely none was deleted
                kinds += [note.kind for note in self.notes if note.kind == QUEUE_RESTARTED]
            steps += save_steps(kinds, self.settings.command)
        return steps

    def more(self) -> dict[str, Any]:
        """What isn't a field."""
        snapshot, report = self.snapshot, self.report
        has_checkpoint = snapshot is not None and snapshot.checkpoint_exists
        remembered = None if report is None else report.remembered
        findings = [one.to_dict() for one in self.findings]
        if remembered is not None:
            for one, told in zip(self.findings, findings, strict=True):
                told["first_seen"] = remembered.first_seen.get(key_of(one))
        return {
            "clean": None if snapshot is None else snapshot.clean,
            "in_use_by": None if self.holder is None else self.holder.what,
            "checkpoint": snapshot.checkpoint if snapshot is not None and has_checkpoint else None,
            "segment_size": None if snapshot is None else snapshot.segment_size,
            "starting": None if self.plan is None else self.plan.facts(),
            **(dict.fromkeys((*MEASURES, "remembered")) if report is None else report.facts()),
            "findings": findings,
            "notes": self.notes,
            "next_steps": self.next_steps,
        }


def settings_to_look(store: Path, broker_conf: Path | None, rocketmq_version: str | None) -> StoreSettings:
    """The settings of a store of any kind, as nothing is changed there: SettingsError."""
    return StoreSettings.load(
        store, broker_conf, rocketmq_version, dledger=True, rocksdb=True, elsewhere=True
    )


def check(
    options: VerifyOptions,
    start_spark: Callable[[], SparkSession] | None = None,
    listener: Listener = lambda _bytes, _messages, _total: None,
    *,
    quick: bool = False,
    proven: Remembering | None = None,
    enough: Callable[[Snapshot], bool] | None = None,
) -> Diagnosis:
    """Diagnose a store. Nothing is changed.

    Args:
        start_spark: gives a session whose executors compare; None to compare on this host's processes.
        listener: gets bytes of log and messages that were compared, and the bytes that there are in all.
        quick: read what a start reads, at most :data:`~reput.recovery.plan.MOST_READ` bytes of log.
        proven: what was proven before, and gets what is proven now.
        enough: says of a store whether there is nothing in it that could be compared; None to compare always.

    Raises:
        SettingsError: what was given can't be used.
        ReputError: there is no store, or reput itself fails.
    """
    from reput.verify.run import verify

    started = time.perf_counter()
    settings = settings_to_look(options.store, options.broker_conf, options.rocketmq_version)
    result = Diagnosis(settings, [], quick=quick)
    if settings.remote is None:
        check_store(settings.root)
    try:
        refuse_half_replaced(settings.root, settings.broker_conf, settings.basis.given)
    except (StoreError, OutputError) as error:  # the second of a record that can't be read
        if not os.access(settings.root, os.X_OK):
            raise  # nothing of the store can be looked at
        result.findings.append(replace(not_looked_at(HALF_REPLACED, settings, error), effect=Effect.LOSES))
        result.not_read.append("all else: it changes when that is finished")
        return result
    _foretell(result, quick=quick)
    foretold, cleared = result.plan, None
    if result.snapshot is not None and foretold is not None and strays_of(result.snapshot):
        foretold = cleared = plan(without_strays(result.snapshot), MOST_READ if quick else None)
    found = [] if result.snapshot is None else of_start(result.snapshot, result.plan, cleared)
    if result.plan is not None and enough is not None and result.snapshot is not None:
        result.all_lost = enough(result.snapshot)
    found = [one for one in found if one.kind == UNFINISHED_RESTORE] or found
    is_empty = result.snapshot is not None and _is_empty(result.snapshot)
    if any(_is_without_log(one) for one in found):  # nothing can be said of what is derived from it
        found = [one for one in found if one.area not in (Area.QUEUE, Area.INDEX, Area.CHECKPOINT)]
    elif is_empty and not (_is_used(settings) or any(_is_of_log(one) for one in found)):
        where = " and ".join(map(str, settings.commit_log_dirs))
        result.not_read.append(
            f"{where}: empty, as that of a new broker. Else check the STORE argument and storePathCommitLog"
        )
    elif is_empty or not (quick or result.all_lost):
        try:
            result.report = verify(options, start_spark, listener, proven)
        except (StoreError, UnsupportedError) as error:
            if result.snapshot is None or error.host is not None:  # another host doesn't see this store
                raise
            said = [one for one in found if one.effect in COUNTS and one.path == str(error.path)]
            if not said:
                said = [_no_file(settings, error) or not_looked_at(NOT_COMPARED, settings, error)]
                found += said
            result.all_lost = any(one.remedy is Remedy.MEND for one in said)
        except SettingsError as error:
            # What topics there are decides which queues there have to be.
            if area_of(Path(error.path or ""), settings) is not Area.CONFIG:
                raise
            if not any(one.area is Area.CONFIG and one.effect in COUNTS for one in found):
                found.append(not_looked_at(NOT_COMPARED, settings, error))
            result.not_read.append(f"queues and index, which weren't compared: {error}")
    if result.report is not None:
        found = list(merged(found, result.report, result.snapshot, foretold, settings))
        if result.snapshot is not None and not options.queues:  # else what others hold isn't known
            found += lost_queues(settings, result.snapshot, found)
        result.not_read += [str(note) for note in result.report.not_checked]
    else:
        result.not_read += _beside(settings)
        if count := sum(one.count for one in found if _may_be_legal(settings, one)):
            moved = counted(count, "message")
            text = f"whether {moved} at other places than their own were put there by a broker"
            result.not_read.append(text)
        found = [_harmless(one) if _may_be_legal(settings, one) else one for one in found]
    absent = list(_absent(result, found))
    roots = [settings.root / names.ROCKSDB_STORE for one in absent if one.kind == BROKEN_ROCKSDB_STORE]
    # Of a database that doesn't open, a comparison says that its keys are missing.
    unsaid = [one for one in found if one.kind == NOT_COMPARED and _is_below(one.path, roots)]
    result.not_read += [f"queues and index, which weren't compared: {one.outcome}" for one in unsaid]
    found = [
        one
        for one in found
        if one not in unsaid and (one.effect is Effect.UNKNOWN or not _is_below(one.path, roots))
    ]
    found += absent
    order = list(Effect)  # the worst first; of these the log's, which the others follow from
    result.findings = sorted(
        unique([*result.findings, *found]),
        key=lambda one: (order.index(one.effect), one.area is not Area.LOG),
    )
    result.seconds = time.perf_counter() - started
    return result


def _is_empty(snapshot: Snapshot) -> bool:
    try:
        return not any(one.path.stat().st_size for one in snapshot.log.files)
    except FileNotFoundError:  # a running broker deletes what has expired
        return False


def _is_used(settings: StoreSettings) -> bool:
    """Whether a group has read a message."""
    try:
        return any(one.offset > 0 for one in committed_offsets(settings).committed)
    except (SettingsError, StoreError):  # none has, or a finding says more
        return False


def _is_of_log(one: Finding) -> bool:
    return one.area is Area.LOG and one.effect in COUNTS


def refuse_no_start(options: VerifyOptions) -> None:
    """Refuse a store that no start takes, and that making queues anew doesn't put right: StoreError."""
    found = check(options, quick=True)
    for one in found.left:
        stops = one.effect is Effect.BLOCKS and (one.area is Area.LOG or one.remedy is Remedy.BY_HAND)
        if stops or one.kind in (OTHER_SETTINGS, LOST_CONFIG):
            text = replace(found, quick=False).verdict.text.removeprefix(f"{found.settings.place}: ")
            step = next(iter(found.next_steps), one.step).removeprefix(f"{one.path}: ")
            raise StoreError(text, path=one.path, expected=one.expected, found=one.found, next_step=step)


def compare(
    options: VerifyOptions,
    start_spark: Callable[[], SparkSession] | None = None,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Diagnosis:
    """Compare queues and index with those of ``options.against``, and do no more. Nothing is changed.

    ``start_spark`` and ``listener``: as those of :func:`check`.
    """
    from reput.verify.plan import prepare_pair
    from reput.verify.run import verify_against

    started = time.perf_counter()
    pair = prepare_pair(options)
    report = verify_against(pair, start_spark, listener)
    which = " and ".join(f"`{one.command('check')}`" for one in (pair.first, pair.second))
    step = f"{which} say which of them is as its log says."
    if pair.start >= pair.end:
        step = "Name a store whose log has a part of this one's"
    found = [judged(one, Effect.UNKNOWN, Remedy.BY_HAND, step=step) for one in report.findings]
    not_read = [str(note) for note in report.not_checked]
    if pair.running:
        not_read.append("what came after the comparison began: a broker is running on one of them")
    seconds = time.perf_counter() - started
    return Diagnosis(pair.first, found, report=report, not_read=not_read, seconds=seconds)


def _is_without_log(one: Finding) -> bool:
    """Whether the log can't be read: it is elsewhere, or its segments have another length than was given."""
    return one.kind in NO_LOG or (one.kind == OTHER_SETTINGS and one.area is Area.LOG)


def _no_file(settings: StoreSettings, error: ReputError) -> Finding | None:
    """What isn't a file among those that can be made anew; None of a file that somebody may read."""
    path = Path(error.path or settings.root)
    area = area_of(path, settings)
    if area not in (Area.QUEUE, Area.INDEX, Area.CHECKPOINT) or path.is_file() or not os.path.lexists(path):
        return None
    if isinstance(error, UnsupportedError):
        return None  # of what is there, and not in the form that broker.conf says
    remedy, step = mending(settings)
    return Finding(
        NO_FILE, str(path), area=area, effect=Effect.LACKS, remedy=remedy,
        expected="a file", found=error.found or "", step=step,
    )  # fmt: skip


def _foretell(result: Diagnosis, *, quick: bool) -> None:
    """What a start finds, and does, where that can be told."""
    settings = result.settings
    if settings.remote is not None:
        text = "a broker starts on a store here (`reput restore`)"
        result.not_read.append(f"what a start would do: {text}")
        if quick:
            result.findings.append(_unknown(NOT_FORETOLD, f"{text}, and nothing was compared", settings.root))
        return
    if settings.dledger is not None:
        text = "how DLedger recovers its log, and its own index, aren't known to reput"
        result.findings.append(_unknown(NOT_FORETOLD, text, settings.dledger.home))
        return
    snapshot = result.snapshot = take(settings)
    if snapshot.holder is not None:
        result.not_read.append(f"what a start would do: the store is in use by {snapshot.holder.what}")
        return
    if any(problem.kind == OTHER_SETTINGS for problem in snapshot.problems):
        return
    try:
        result.plan = plan(snapshot, MOST_READ if quick else None)
    except UnsupportedError as error:
        result.findings.append(not_looked_at(NOT_FORETOLD, settings, error))
        return
    others = (
        [] if settings.basis.given is not None else _other_starts(result.plan, MOST_READ if quick else None)
    )
    if others:
        # What all of these releases meet is still said.
        shared = [
            one
            for one in snapshot.problems
            if all(any(_is_same(one, other) for other in some.snapshot.problems) for some in others)
        ]
        result.snapshot, result.plan = replace(snapshot, problems=shared), None
        text = "the store may be one of RocketMQ 4.9.2, which starts otherwise than others"
        if any(not one.snapshot.settings.dialect.recovery.makes_lost_queues for one in others):
            text = "the store may be one of RocketMQ 4.4 or before, which start otherwise than later ones"
        found = _unknown(NOT_FORETOLD, text, settings.root)
        result.findings.append(replace(found, remedy=Remedy.BY_HAND, step=GIVE_RELEASE))
        return
    unread = result.plan.unread
    if unread is not None:
        text = f"a start reads {unread}, more than a quick look does"
        result.findings.append(_unknown(NOT_FORETOLD, text, settings.root))
    timers = [name for name in ignored_features(settings.root) if name.startswith("timer")]
    if timers and any(loss.kind in (*LOG_CUTS, QUEUE_CUT) for loss in result.plan.losses):
        result.not_read.append(
            f"what {' and '.join(timers)} hold of messages behind {result.plan.prediction.log_end}"
        )
    if quick and result.plan.deleted:
        topics, messages = result.plan.deleted_topics, counted(sum(result.plan.deleted.values()), "message")
        result.not_read.append(
            f"whether {topics} was lost or deleted: {messages} in the log, no queues, and not in "
            f"{names.CONFIG}/topics.json"
        )
    result.not_read += _settings_not_there(settings, snapshot)


def _other_starts(known: Plan, most: int | None) -> list[Plan]:
    """What releases that the marks also allow would make of it, where that is something else.

    Those up to 4.4, and 4.9.2; where the marks say 4.7.0 or before, all up to 4.7.0.
    """
    settings = known.snapshot.settings
    shown = settings.basis.evidence
    if shown is None:
        return []
    rows = [
        row
        for row in DIALECTS
        if shown.release.allows(row)
        and ((settings.dialect.counts_keys and row.counts_keys) or not row.recovery.refuses_wrong_length)
    ]
    # A rule of what isn't there makes no difference, and a start needn't be worked out for it.
    own, problems = settings.dialect.recovery, known.snapshot.problems
    unmet: dict[str, Any] = {}
    if not any(one.unloads for one in problems):
        unmet["refuses_wrong_length"] = own.refuses_wrong_length
    if all(one.path != str(settings.root / names.LOCK) for one in problems):
        unmet["takes_lock"] = own.takes_lock
    starts = {replace(row.recovery, **unmet): row for row in rows}
    starts.pop(own, None)
    found = [plan(take(replace(settings, dialect=row)), most) for row in starts.values()]
    return [one for one in found if _outcome(one) != _outcome(known)]


def _is_same(one: Problem, other: Problem) -> bool:
    return (one.kind, one.path, one.stops) == (other.kind, other.path, other.stops)


def _outcome(found: Plan) -> tuple[object, ...]:
    """What a start comes to, whatever way it takes."""
    facts, checkpoint = found.facts(), found.prediction.checkpoint
    same = [facts[name] for name in ("starts", "log_start", "log_end", "next_offsets", "index_left")]
    # Fields that older releases don't have decide nothing in theirs.
    same += [getattr(checkpoint, f"{name}_msg_timestamp") for name in ("physic", "logics", "index")]
    return same, found.prediction.problems, found.losses, found.unrepaired


def _may_be_legal(settings: StoreSettings, one: Finding) -> bool:
    """Whether the whole log alone tells that a message stands at a wrong place of its queue.

    Where queueOffsets jump, a broker gives messages other places in files; a light queue has other ones where
    a message names it twice.
    """
    is_light = str(one.topic).startswith(commitlog.LMQ_PREFIX.decode())
    return one.kind == "misplaced-unit" and (settings.rocksdb.files or is_light)


def _harmless(one: Finding) -> Finding:
    return replace(one, effect=Effect.HARMLESS, remedy=Remedy.NONE, step="")


def _is_below(path: str, roots: list[Path]) -> bool:
    return any(Path(path).is_relative_to(root) for root in roots)


def _absent(result: Diagnosis, found: list[Finding]) -> Iterator[Finding]:
    """What is missing altogether, where nothing was compared, and an index database that doesn't open."""
    settings, snapshot, plan = result.settings, result.snapshot, result.plan
    if snapshot is None:
        return
    try:
        yield from (of_problem(one, settings) for one in index_database(settings))
    except OutputError as error:  # no room for links or copies, without which a database isn't opened
        result.not_read.append(f"{names.ROCKSDB_STORE}/, whether it opens and what is in it: {error}")
    if result.report is not None or any(_is_without_log(one) for one in found):
        return
    reads_all = plan is not None and plan.is_whole and plan.first_read <= plan.prediction.log_start
    for one in map(partial(of_problem, settings=settings), not_derived(snapshot)):
        if any(other.area is one.area and other.effect in COUNTS for other in found):
            continue  # said in detail
        makes = reads_all and plan is not None and plan.adds(one.area is Area.INDEX)
        yield replace(one, effect=Effect.HEALS, remedy=Remedy.START, step="") if makes else one


def _settings_not_there(settings: StoreSettings, snapshot: Snapshot) -> list[str]:
    """Settings that aren't there and no finding, for it isn't known that a broker had any."""
    said = {problem.path for problem in snapshot.problems}
    return [
        f"{one.path.relative_to(settings.root)}: found {one.found}; where a broker has taken messages, it "
        f"starts {one.without}"
        for one in missing_config(settings)
        if str(one.path) not in said
    ]


def _beside(settings: StoreSettings) -> Iterator[str]:
    if beside := ignored_features(settings.root):
        yield f"{', '.join(beside)}: the commit log alone doesn't hold them"


def not_looked_at(kind: str, settings: StoreSettings, error: ReputError) -> Finding:
    """What decides, and couldn't be looked at."""
    step = error.next_step or ""
    if step and error.path is not None and str(error.path) not in step:
        step = f"{error.path}: {step}"
    return Finding(
        kind=kind,
        path=str(error.path or settings.root),
        area=Area.STORE,
        effect=Effect.UNKNOWN,
        remedy=Remedy.BY_HAND,
        expected=error.expected or "",
        found=error.found or "",
        outcome=error.problem,
        step=step,
    )


def _unknown(kind: str, text: str, path: Path) -> Finding:
    return Finding(
        kind, str(path), area=Area.STORE, effect=Effect.UNKNOWN, remedy=Remedy.NONE, expected="", found=text
    )
