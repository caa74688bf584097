"""The verification: from a store's commit log to what in its derived files isn't as the log says.

The log is read in parts, and each form of storage compares what a part has to have with what is there, by
queue or by file: plain queues, batch queues and the index in files, queues and index in RocksDB. What no part
says anything of is looked at in the end. Nothing is written, not even beside the store: what tasks return is
counts and ranges.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from reput.broker.snapshot import read_checkpoint
from reput.build.placement import Breaks
from reput.errors import Finding
from reput.format import names
from reput.format.checkpoint import LENGTH, LOGICS_FIELDS
from reput.format.names import Queue
from reput.log.segments import cut
from reput.replay.part_result import Chain, PartResult, witnessed
from reput.replay.placing import BatchQueues
from reput.replay.runner import Runner, on_this_host
from reput.replay.target import Selection, Target
from reput.scan.rules import Part
from reput.statistics import Listener
from reput.store.listing import ignored_features
from reput.store.witness import StoreSeen, config_seen, store_seen
from reput.verify.batch import BatchCheck, compare_batch_queues
from reput.verify.explain import Explainer
from reput.verify.index import IndexCheck, compare_index
from reput.verify.plan import Pair, Plan, VerifyOptions, no_such_queue, prepare
from reput.verify.proofs import Remembering
from reput.verify.proven import SegmentProof
from reput.verify.queue_check import QueueCheck
from reput.verify.queue_files import compare_queues
from reput.verify.report import (
    CHECKPOINT,
    INDEX,
    LEGAL,
    LOG,
    NOT_IN_LOG,
    NOTHING_IN_COMMON,
    OTHER_SETTINGS,
    QUEUE,
    SWITCHED_OFF,
    Difference,
    Note,
    Report,
    of_two,
)
from reput.verify.rocksdb_index import IndexDatabaseCheck, compare_indexes
from reput.verify.rocksdb_queues import QueueDatabaseCheck, compare_databases
from reput.verify.tasks import PartChecked, PartTask
from reput.verify.waves import done, in_waves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Gives the session; only called when nothing speaks against the run.
StartSpark = Callable[[], "SparkSession"]
_LONG_MAX = (1 << 63) - 1


class Form(Protocol):
    """A form of storage in one run: what it has, compared with what the log says."""

    def find(self, proven: Remembering | None, held: ExitStack) -> None:
        """Look at what there is, before the log is read; ``held`` is until the run has ended."""

    def add(self, checked: PartChecked) -> None:
        """Take what came of a part of the log; parts come in its order."""

    def compare(self, log: LogRead, proven: Remembering | None) -> None:
        """Compare what no part of the log was compared with."""

    def findings(self, explainer: Explainer) -> Iterator[Difference | Note]:
        """What is wrong, then what is odd and legal."""


def verify(
    options: VerifyOptions,
    start_spark: StartSpark | None,
    listener: Listener = lambda _bytes, _messages, _total: None,
    proven: Remembering | None = None,
) -> Report:
    """Verify a store.

    ``listener`` gets bytes of log and messages that were looked at, and the bytes that there are in all.
    ``proven`` is what was proven before, and gets what was proven now.
    """
    started = time.perf_counter()
    plan = prepare(options)
    if plan.settings.basis.hiding:
        return of_other_settings(plan)
    seen = (
        lambda: store_seen(plan.settings.root, live=plan.running),
        lambda: config_seen(plan.settings.config_files),
    )
    elsewhere = plan.settings.remote is not None
    with running(start_spark, plan.end - plan.log.start, seen, elsewhere=elsewhere) as runner:
        report = check(plan, runner, listener, proven)
    report.seconds = time.perf_counter() - started
    return report


def verify_against(
    pair: Pair,
    start_spark: StartSpark | None,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Report:
    """Compare a store's derived files with another's.

    ``listener`` gets bytes of queue files that were compared, units, and 0, since their sum is not known.
    """
    elsewhere = any(settings.remote is not None for settings in pair.stores)
    seen = [partial(store_seen, settings.root, live=pair.running) for settings in pair.stores]
    with running(start_spark, pair.end - pair.start, seen, elsewhere=elsewhere) as runner:
        return compare_pair(pair, runner, listener)


@contextmanager
def running(
    start_spark: StartSpark | None, size: int, seen: Sequence[Callable[[], StoreSeen]], *, elsewhere: bool
) -> Iterator[Runner]:
    """What runs the tasks of a verification of so many bytes of log.

    Spark, whose session is only asked for here, its hosts seeing what is ``seen``; with None processes of
    this host.
    """
    if start_spark is None:
        with on_this_host(size, elsewhere=elsewhere) as runner:
            yield runner
        return
    from reput.spark.runner import SparkRunner
    from reput.spark.sessions import converting_spark_errors

    with converting_spark_errors():
        spark = SparkRunner(start_spark().sparkContext)
        spark.warm_up()
        if not spark.is_local:
            spark.demand(*(one() for one in seen))
        yield spark


def of_other_settings(plan: Plan) -> Report:
    """What is said of a store whose files aren't as the settings say: that alone, and nothing is compared."""
    basis = plan.settings.basis
    findings = [
        Difference(
            OTHER_SETTINGS,
            str(plan.settings.root / one.directory),
            INDEX if one.directory == names.INDEX else QUEUE,
            one.used,
            one.shown,
        )
        for one in basis.hiding
    ]
    text = "log, queues and index: by settings that aren't the files', all of them differ"
    return Report(
        start=plan.log.start,
        end=plan.log.start,
        broker_running=plan.running,
        findings=findings,
        not_checked=[Note(OTHER_SETTINGS, text)],
    )


def check(
    plan: Plan,
    runner: Runner,
    listener: Listener = lambda _bytes, _messages, _total: None,
    proven: Remembering | None = None,
) -> Report:
    """Verify what a plan names, with tasks run by ``runner``.

    The plan's settings are those of its files: :func:`of_other_settings` is for others.
    """
    return _Run(plan, runner, listener, proven).report()


def compare_pair(
    pair: Pair,
    runner: Runner,
    listener: Listener = lambda _bytes, _messages, _total: None,
) -> Report:
    """Compare two stores, with tasks run by ``runner``.

    ReputError where something can't be read.
    """
    selection = Selection.parse(pair.options.queues)
    report = Report(against=pair.second.place, start=pair.start, end=pair.end, broker_running=pair.running)
    if pair.start >= pair.end:
        # Of no message anything can differ: that says nothing of the stores.
        paths = [settings.commit_log_dirs[0] for settings in pair.stores]
        said = [*(f"{low} to {high}" for low, high in pair.logs), "no log"][:2]
        report.findings.append(of_two(NOTHING_IN_COMMON, paths, LOG, said, (*pair.logs[0], 1)))
        return report
    ext = compare_queues(pair, runner, selection, report, listener)
    compare_batch_queues(pair, runner, selection, report)
    if pair.first.rocksdb.queues is not None:
        compare_databases(pair, runner, selection, report)
    if selection.is_all and pair.options.index:
        compare_index(pair, runner, report)
        if pair.first.rocksdb.index or pair.second.rocksdb.index:
            compare_indexes(pair, runner, report)
    else:
        report.not_checked.append(Note("index", "the index: queues were chosen, or --no-index"))
    if ext:
        text = (
            f"the bit maps of {ext:,} units in {names.CONSUME_QUEUE_EXT}, and where there their records stand"
        )
        report.not_checked.append(Note("queue-ext", text, count=ext))
    return report


@dataclass(slots=True)
class LogRead:
    """The log, as far as it was read."""

    plan: Plan
    end: int  # physical offset after the last message
    findings: list[Finding]
    breaks: list[int] = field(default_factory=list)  # physical offsets where messages may be missing
    unproven: list[tuple[int, int]] = field(default_factory=list)
    covered: list[tuple[int, int]] = field(default_factory=list)  # physical offsets, half open
    #: by topic, how many messages got no units, and where the first one is
    without: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    last_timestamp: int = 0  # storeTimestamp of the last message, ms
    last_unit: int = -1  # physical offset of the last message with a unit
    reached: int = 0  # the greatest storeTimestamp of a part's last message, ms
    reached_queues: int = 0  # that of the last one with a unit
    messages: int = 0  # messages, bytes: whole records
    bytes: int = 0
    length: int = 0  # bytes of log

    def add(self, start: int, end: int, of: PartResult | SegmentProof) -> None:
        """Take what was found, or proven before, in [start, end)."""
        self.covered.append((start, end))
        self.length += end - start
        self.messages += of.messages
        self.bytes += of.message_bytes
        if of.messages:
            self.reached = max(self.reached, of.last_timestamp)
        for topic, count, position in of.without_unit:
            known = self.without.get(topic, (0, position))
            self.without[topic] = known[0] + count, known[1]

    def has_unit(self, position: int, timestamp: int) -> None:
        """Take the last message with a unit, if there is one."""
        if position >= 0:
            self.last_unit = position
            self.reached_queues = max(self.reached_queues, timestamp)

    def all_breaks(self) -> Breaks:
        """Where the log isn't whole, as far as it was read."""
        places = sorted([*self.breaks, *(gap.offset for gap in self.plan.log.gaps)])
        return Breaks(places, self.unproven)

    def uncovered(self) -> list[tuple[int, int]]:
        """What lies outside of the log's parts, half open: before 0, between parts, past the end.

        Before the log's start is known.
        """
        plan = self.plan
        ranges, at = [(-_LONG_MAX - 1, 0)], plan.log.start
        for start, end in sorted(self.covered):
            if start > at:
                ranges.append((at, start))
            at = max(at, end)
        ranges.append((at, _LONG_MAX))
        if plan.running:
            return [(start, min(end, plan.end)) for start, end in ranges if start < plan.end]
        return ranges

    def unsafe_topics(self, target: Target) -> Iterator[Finding]:
        """Topics of messages that no directory can have."""
        plan = self.plan
        for topic, (count, position) in sorted(self.without.items()):
            problem = target.topic_problem(topic)
            if problem is None:
                continue
            bases = [segment.base for segment in plan.log.segments]
            segment = plan.log.segments[max(bisect_right(bases, position) - 1, 0)]
            name = topic.decode("utf-8", "replace")
            yield Finding(
                kind="unsafe-topic",
                path=str(segment.path),
                offset=position,
                end=position,
                expected="a topic that can be a directory of its own",
                found=f"{problem}: {name!r}",
                outcome="its messages have no units",
                topic=name,
                count=count,
            )


class _Run:
    """One run: the log, and what is compared with it."""

    def __init__(self, plan: Plan, runner: Runner, listener: Listener, proven: Remembering | None) -> None:
        self._plan = plan
        self._proven = proven
        self._runner = runner
        self._listener = listener
        self._target = plan.target()
        self._log = LogRead(plan, plan.log.start, list(plan.log.findings))
        self._queues = QueueCheck(plan, runner)
        self._batch = BatchCheck(plan, runner)
        self._database = QueueDatabaseCheck(plan, runner)
        self._entries = IndexDatabaseCheck(plan, runner)
        self._index = IndexCheck(plan, runner)
        self._forms: tuple[Form, ...] = (
            self._queues,
            self._batch,
            self._database,
            self._entries,
            self._index,
        )
        self._total = sum(
            max(min(segment.base + segment.length, plan.end) - segment.base, 0)
            for segment in plan.log.segments
        )

    def report(self) -> Report:
        """Read the log, compare, and tell."""
        plan, proven, log = self._plan, self._proven, self._log
        if proven is not None:
            proven.begin(plan)
        with ExitStack() as held:
            for form in self._forms:
                form.find(proven, held)
            self._compare()
            explainer = Explainer(
                plan=plan,
                queues=self._queues.queues,
                end=log.end,
                damaged=sorted(
                    (finding.offset, finding.end)
                    for finding in log.findings
                    if finding.topic is None and finding.end > finding.offset
                ),
                holes=self._queues.holes,
                restarts={**self._database.restarts, **self._queues.restarts},
            )
            unsafe = log.unsafe_topics(self._target)
            findings = [Difference.of_log(finding) for finding in (*log.findings, *self._batch.bad, *unsafe)]
            told = [one for form in self._forms for one in form.findings(explainer)]
        notes = [*self._queues.notes, *(one for one in told if isinstance(one, Note)), *self._plain_tags()]
        findings += [one for one in told if isinstance(one, Difference)]
        # The log is looked at first, so that a broker's checkpoint may be newer.
        if plan.selection.is_all and not plan.running:
            findings += self._check_checkpoint()
        if proven is not None:
            notes += proven.settle()
            proven.tell_cut(log.end)
            findings = [*proven.findings, *findings]
            proven.finish(self._index.map, self._index.unsound, self._queues.outside, findings)
            odd = {(note.topic, note.queue_id) for note in notes}
            proven.ends = {
                queue: (state.first, state.next)
                for queue, state in self._queues.queues.items()
                if not findings and queue not in odd
            }
        units, in_files = self._database.units, self._queues.queues
        if self._target.queue_files:
            units = max(sum(state.next - state.first for state in in_files.values()), units)
        return Report(
            start=plan.log.start,
            end=log.end,
            broker_running=plan.running,
            messages=log.messages,
            bytes=log.bytes,
            queues=max(len(in_files) + len(self._batch.queues), self._database.queues),
            units=units + self._batch.units,
            index_files=len(self._index.map.infos),
            index_entries=self._index.map.keys + self._entries.entries,
            findings=findings,
            notes=notes,
            not_checked=list(self._not_checked()),
            remembered=None if proven is None else proven.counts(),
        )

    def _compare(self) -> None:
        """Read the log and compare all."""
        with self._index.following_chains():
            for batch in self._batches():
                self._check_batch(batch)
            for form in self._forms:
                form.compare(self._log, self._proven)
            self._add_odd_queues()
            self._refuse_unknown()

    # --- the log ------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[list[Part]]:
        """Parts of whole segments, at least one segment and about ``batch_bytes`` together.

        Without those of segments that needn't be verified again: all before them has been when they come.
        """
        plan, options = self._plan, self._plan.options
        batch: list[Part] = []
        parts = cut(plan.log, plan.log.start, plan.end, options.part_bytes, plan.log.start)
        for _, of_segment in groupby(parts, attrgetter("base")):
            segment = list(of_segment)
            proof = None if self._proven is None else self._proven.proof_of(segment[0].base)
            if batch and (proof is not None or _length(batch) >= options.batch_bytes):
                yield batch
                batch = []
            if proof is None or not self._keep(segment, proof):
                batch += segment
        if batch:
            yield batch

    def _check_batch(self, parts: list[Part]) -> None:
        log = self._log
        if self._proven is not None:
            self._proven.bytes_read += _length(parts)
        parts[0] = replace(parts[0], exact=True, after_timestamp=log.last_timestamp)
        chain = Chain(parts[0].start, log.last_timestamp)
        queues = BatchQueues(self._queues.queues)
        accepted: list[PartChecked] = []
        for each in in_waves(self._runner, [self._task(part) for part in parts]):
            for checked in self._fit(chain, each):
                result, is_batch = checked.result, self._plan.selection.is_batch
                accepted.append(checked)
                # Batch queues have no places: those aren't put in order again.
                of_batches = (queue for queue in result.queues.queues() if is_batch(queue[0]))
                result.waiting = {queue: [] for queue in of_batches}
                queues.add(result)
                for form in self._forms:
                    form.add(checked)
                log.add(result.part.start, result.part.end, result)
                self._listener(log.length, log.messages, self._total)
        log.end, log.last_timestamp = chain.finish(), chain.last_timestamp
        log.findings += chain.findings
        log.breaks += chain.breaks
        log.unproven += chain.unproven
        log.has_unit(queues.last_unit_position, queues.last_unit_timestamp)
        irregular = self._queues.end_batch(queues, [each.result.part for each in accepted], log)
        if self._proven is not None:
            self._prove(self._proven, accepted, chain, irregular)

    def _task(self, part: Part) -> PartTask:
        plan = self._plan
        return PartTask(
            target=self._target,
            part=witnessed(self._runner, part),
            runs=self._index.map.runs(part.start, part.end) if plan.index else None,
            infos=self._index.map.infos,
            batch_runs=self._batch.map.runs(part.start, part.end),
            queue_ext=plan.queue_ext,
            bound=None if self._proven is None else self._bound_start(part),
            scratch=self._database.scratch,
            keys=self._entries.scratch,
        )

    def _bound_start(self, part: Part) -> int:
        """Where a part began before it was found to continue the one before it further on."""
        return part.start - (part.start - part.base) % self._plan.options.part_bytes

    def _fit(self, chain: Chain, checked: PartChecked) -> Iterator[PartChecked]:
        verdict = chain.judge(checked.result)
        if verdict.accepted:
            yield checked
        elif verdict.again is not None:
            (again,) = done(self._runner, [self._task(verdict.again)])
            yield from self._fit(chain, again)

    def _prove(
        self, proven: Remembering, checked: list[PartChecked], chain: Chain, irregular: Set[Queue]
    ) -> None:
        """Keep what was proven of a batch's segments, of each by itself."""
        odd = [(finding.offset, finding.end) for finding in chain.findings]
        odd += [(at, at) for at in chain.breaks] + chain.unproven
        for base, of_segment in groupby(checked, lambda one: one.result.part.base):
            parts = list(of_segment)
            end = base + parts[0].result.part.segment_size
            if any(first <= end and last >= base for first, last in odd):
                continue
            ranges = [(self._bound_start(one.result.part), one.result.part.end) for one in parts]
            proven.add(parts, ranges, irregular, self._index.map.infos)

    def _keep(self, parts: list[Part], proof: SegmentProof) -> bool:
        """Take over what was proven of a segment, where that is what it would come to again."""
        log, queues = self._log, self._queues.queues
        if self._proven is None or parts[-1].end != proof.end:
            return False
        if self._batch.map.runs(proof.base, proof.end):
            return False  # units of batch queues aren't bound by any sum
        is_broken = self._plan.log.start == 0 and bool(log.breaks or self._plan.log.gaps)
        for queue, part in proof.queues.items():
            state = queues.get(queue)
            if state is None and part.first and is_broken:
                return False  # messages before its first one may be missing
            if state is not None and state.next != part.first:
                return False
        if any(end + self._plan.settings.largest_record > proof.base for _, end in log.unproven):
            return False
        self._proven.keep(proof)
        self._queues.keep(proof)
        log.add(proof.base, proof.end, proof)
        log.has_unit(*proof.last_unit)
        if proof.messages:
            log.last_timestamp = proof.last_timestamp
        log.end = proof.end
        self._listener(log.length, log.messages, self._total)
        return True

    # --- what was found -----------------------------------------------------------------------------------

    def _add_odd_queues(self) -> None:
        """Take what is odd about queues in a database alone: files have their own findings."""
        known = {(one.kind, one.topic, one.queue_id) for one in (*self._log.findings, *self._queues.holes)}
        known |= {(one.kind, one.topic, one.queue_id) for one in self._queues.notes}
        for finding in self._database.log_findings():
            if (finding.kind, finding.topic, finding.queue_id) not in known:
                ranges = self._database.ranges_of(finding.topic or "", finding.queue_id or 0)
                self._queues.tell_odd(finding, ranges, self._log, {*LEGAL, "repeated-queue-offset"})

    def _refuse_unknown(self) -> None:
        """See that there is what was asked for: of a misspelt topic nothing is wrong.

        SettingsError where neither the log nor the store has such a queue.
        """
        there = {*self._queues.queues, *((each.topic, each.queue_id) for each in self._queues.outside)}
        there |= self._batch.queues.keys() | self._batch.map.keys()
        topics = {topic for topic, _ in there}
        for topic, queue_id in sorted(self._plan.selection.queues, key=str):
            if (topic, queue_id) in there or (queue_id is None and topic in topics):
                continue
            without = [(left_out.decode("utf-8", "replace"), None) for left_out in self._log.without]
            expected = "a queue that the log has messages of, or that has files"
            raise no_such_queue(self._plan.settings.root, (topic, queue_id), expected, [*there, *without])

    def _check_checkpoint(self) -> Iterator[Difference]:
        """What of the checkpoint is ahead of the data: a broker that recovers by it would pass over messages.

        To the millisecond, and of the data as they lie there. What is ahead after a restart, by more than a
        start takes off, :mod:`reput.recovery.plan` says.
        """
        log, settings = self._log, self._plan.settings
        path = str(settings.root / names.CHECKPOINT)
        queues, last_unit = log.reached_queues, max(log.last_unit, 0)
        if log.without:  # a broker may have made queues of these
            queues, last_unit = max(queues, log.reached), log.end
        stored, length = read_checkpoint(Path(path))
        if length is None:
            return  # a broker starts its recovery at the beginning then
        limits = [
            (0, "physicMsgTimestamp", stored.physic_msg_timestamp, log.reached),
            (8, "logicsMsgTimestamp", stored.logics_msg_timestamp, queues),
            (16, "indexMsgTimestamp", stored.index_msg_timestamp, self._index.end_timestamp),
        ]
        if settings.dialect.checkpoint_fields >= LOGICS_FIELDS:
            limits.append((40, "logicsPhysicalOffset", stored.logics_physical_offset, last_unit))
        for at, name, value, most in limits:
            if value > most:
                said = f"{name} of at most {most}", str(value)
                yield Difference("checkpoint-ahead", path, CHECKPOINT, *said, offset=at)
        if length not in (0, LENGTH):
            said = f"{LENGTH} bytes", f"{length} bytes"
            yield Difference("checkpoint-length", path, CHECKPOINT, *said)

    def _plain_tags(self) -> Iterator[Note]:
        """Where addresses are expected."""
        plain = self._queues.plain
        if plain and self._plan.settings.recovery.queue_ext:
            text = (
                f"{plain:,} units hold their plain tagsCode and no address in "
                f"{names.CONSUME_QUEUE_EXT}: enableConsumeQueueExt was turned on later, or a record was too "
                "long; a rebuild makes addresses of all"
            )
            yield Note("plain-tags", text, count=plain)

    def _not_checked(self) -> Iterator[Note]:
        plan = self._plan
        if ext := self._queues.ext:
            text = (
                f"the bit maps of {ext:,} units in {names.CONSUME_QUEUE_EXT}, but for their length: "
                "they depend on the consumers that the broker knew at the time"
            )
            yield Note("queue-ext", text, count=ext)
        if not plan.selection.is_all:
            yield Note("index", "the index and the checkpoint, for queues were chosen", count=1)
        elif not plan.settings.message_index_enable and not plan.settings.rocksdb.index:
            yield Note(SWITCHED_OFF, "the index: broker.conf switches it off")
        elif not plan.options.index:
            yield Note("index", "the index: --no-index")
        if beside := ignored_features(plan.settings.root):
            yield Note(NOT_IN_LOG, f"{', '.join(beside)}: the commit log alone doesn't hold them")
        yield from self._database.not_checked()
        if plan.running:
            yield Note("live", f"what the running broker wrote past {plan.end}, and the checkpoint")


def _length(parts: Sequence[Part]) -> int:
    """Bytes of log in consecutive parts."""
    return sum(part.end - part.start for part in parts)
