"""The verification: from a store's commit log to what in its derived files isn't as the log says.

Nothing is written, not even beside the store: what tasks return is counts and ranges.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from reput.build.placement import Breaks
from reput.errors import Finding
from reput.format import names
from reput.log.parts import cut
from reput.replay.altered import Altered, in_rounds
from reput.replay.chain import Chain
from reput.replay.part_result import PartResult, witnessed
from reput.replay.placing import QueueOutcome
from reput.replay.processes import on_this_host
from reput.replay.queues import BatchQueues
from reput.replay.runner import Runner
from reput.replay.state import QueueState
from reput.scan.rules import Part
from reput.statistics.count import Listener
from reput.store.ignored_features import ignored_features
from reput.store.witness import config_seen, store_seen
from reput.verify.batch_check import BatchCheck
from reput.verify.checkpoint import check_checkpoint
from reput.verify.explain import Explainer
from reput.verify.index_check import IndexCheck
from reput.verify.outside import Known, Outside, check_outside
from reput.verify.plan import Plan, VerifyOptions, no_such_queue, prepare, queues_on_disk
from reput.verify.proofs import Remembering
from reput.verify.proven import SegmentProof
from reput.verify.report import (
    INDEX,
    LEGAL,
    NOT_IN_LOG,
    OTHER_SETTINGS,
    QUEUE,
    SWITCHED_OFF,
    Difference,
    Note,
    Report,
)
from reput.verify.rocksdb_check import QueueDatabaseCheck
from reput.verify.rocksdb_index import IndexDatabaseCheck
from reput.verify.tasks import IrregularTask, PartChecked, PartTask, QueueChecked, done, in_waves, of_each
from reput.verify.units import Compared, UnitRange, add_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Queue = tuple[str, int]

_QUEUES_AT_ONCE = 64
_LONG_MAX = (1 << 63) - 1


def verify(
    options: VerifyOptions,
    start_spark: Callable[[], SparkSession] | None,
    listener: Listener = lambda _bytes, _messages, _total: None,
    proven: Remembering | None = None,
) -> Report:
    """Verify a store.

    Args:
        start_spark: gives the session; only called when nothing speaks against the run. None: on processes of
            this host, without Spark.
        listener: gets bytes of log and messages that were looked at, and the bytes that there are in all.
        proven: what was proven before, and gets what was proven now.
    """
    started = time.perf_counter()
    plan = prepare(options)
    if plan.settings.basis.hiding:
        return of_other_settings(plan)
    if start_spark is None:
        elsewhere = plan.settings.remote is not None
        with on_this_host(plan.end - plan.log.start, elsewhere=elsewhere) as runner:
            report = check(plan, runner, listener, proven)
    else:
        report = _on_spark(plan, start_spark, listener, proven)
    report.seconds = time.perf_counter() - started
    return report


def _on_spark(
    plan: Plan, start_spark: Callable[[], SparkSession], listener: Listener, proven: Remembering | None
) -> Report:
    from reput.spark.runner import SparkRunner
    from reput.spark.sessions import converting_spark_errors

    with converting_spark_errors():
        runner = SparkRunner(start_spark().sparkContext)
        runner.warm_up()
        if not runner.is_local:
            runner.demand(
                store_seen(plan.settings.root, live=plan.running), config_seen(plan.settings.config_files)
            )
        return check(plan, runner, listener, proven)


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
    with QueueDatabaseCheck(plan, runner) as queues, IndexDatabaseCheck(plan, runner) as entries:
        return _Verification(plan, runner, listener, queues, entries, proven).run()


class _Verification:
    """One run."""

    def __init__(
        self,
        plan: Plan,
        runner: Runner,
        listener: Listener,
        database: QueueDatabaseCheck,
        entries: IndexDatabaseCheck,
        proven: Remembering | None = None,
    ) -> None:
        self._plan = plan
        self._proven = proven
        self._runner = runner
        self._listener = listener
        self._database = database
        self._entries = entries
        self._target = plan.target()
        self._index = IndexCheck(plan, runner)
        self._batch = BatchCheck(plan, runner)
        self._queues: dict[_Queue, QueueState] = {}
        self._restarts: dict[str, int] = {}
        self._breaks: list[int] = []
        self._unproven: list[tuple[int, int]] = []
        self._reached_log = self._reached_queues = 0
        self._last_unit = -1
        self._last_timestamp = 0
        self._without: dict[bytes, tuple[int, int]] = {}
        self._log_findings: list[Finding] = list(plan.log.findings)
        self._holes: list[Finding] = []
        self._ranges: dict[_Queue, list[UnitRange]] = {}
        self._covered: list[tuple[int, int]] = []
        self._ext = self._plain = 0
        self._end = plan.log.start
        self._total = sum(
            max(min(segment.base + segment.length, plan.end) - segment.base, 0)
            for segment in plan.log.segments
        )
        self._done = self._messages = self._bytes = 0
        self._notes: list[Note] = []

    def run(self) -> Report:
        plan = self._plan
        if self._proven is not None:
            self._proven.begin(plan)
        self._index.find(self._proven)
        if self._target.queue_files:
            self._batch.find()
        ended = threading.Event()
        with ThreadPoolExecutor(1, "reput-chains") as pool:
            # Each file's chains are one task's work: it is begun first, beside the log's.
            following = pool.submit(self._index.follow_chains, ended)
            try:
                for batch in self._batches():
                    self._check_batch(batch)
                leftovers = self._uncovered()
                self._index.check_leftovers(leftovers)
                self._batch.check_leftovers(leftovers)
                self._database.compare(self._all_breaks())
                self._entries.compare()
                self._add_odd_queues()
                outside = self._check_outside()
                self._refuse_unknown(outside)
                chains = following.result()
            finally:
                ended.set()
        explainer = Explainer(
            plan=self._plan,
            queues=self._queues,
            end=self._end,
            damaged=sorted(
                (finding.offset, finding.end)
                for finding in self._log_findings
                if finding.topic is None and finding.end > finding.offset
            ),
            holes=self._holes,
            restarts={**self._database.restarts, **self._restarts},
            infos=self._index.map.infos,
        )
        findings = [Difference.of_log(finding) for finding in self._of_log()]
        for queue, ranges in sorted(self._merged(outside).items()):
            differing, notes = explainer.queue(queue, ranges)
            findings += differing
            self._notes += notes
        findings += [problem for each in outside for problem in each.problems]
        for one in self._batch.findings(explainer):
            if isinstance(one, Note):
                self._notes.append(one)
            else:
                findings.append(one)
        findings += [*self._database.findings(explainer), *self._entries.findings()]
        findings += self._index.findings(explainer, chains)
        self._notes += [*self._database.notes(), *self._entries.notes(), *self._index.notes()]
        self._notes += self._plain_tags()
        # The log is looked at first, so that a broker's checkpoint may be newer.
        if plan.selection.is_all and not plan.running:
            findings += self._check_checkpoint()
        if self._proven is not None:
            self._notes += self._proven.settle()
            self._proven.tell_cut(self._end)
            findings = [*self._proven.findings, *findings]
            self._finish(chains, outside, findings)
        return Report(
            start=plan.log.start,
            end=self._end,
            broker_running=plan.running,
            messages=self._messages,
            bytes=self._bytes,
            queues=max(len(self._queues) + len(self._batch.queues), self._database.queues),
            units=self._units + self._batch.units,
            index_files=len(self._index.map.infos),
            index_entries=self._index.map.keys + self._entries.entries,
            findings=findings,
            notes=self._notes,
            not_checked=self._not_checked(),
            remembered=None if self._proven is None else self._proven.counts(),
        )

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
        if self._proven is not None:
            self._proven.bytes_read += _length(parts)
        parts[0] = replace(parts[0], exact=True, after_timestamp=self._last_timestamp)
        chain = Chain(parts[0].start, self._last_timestamp)
        queues = BatchQueues(self._queues)
        accepted: list[Part] = []
        kept: list[PartChecked] = []
        found: dict[_Queue, Compared] = {}
        for checked in in_waves(self._runner, [self._task(part) for part in parts]):
            for fitting in self._fit(chain, checked):
                accepted.append(fitting.result.part)
                if self._proven is not None:
                    kept.append(fitting)
                # Batch queues have no places: those aren't put in order again.
                fitting.result.waiting = {queue: [] for queue in self._batch_queues(fitting.result)}
                queues.add(fitting.result)
                self._database.add(fitting.result)
                self._entries.add(fitting.result)
                self._add(fitting, found)
        self._end = chain.finish()
        self._last_timestamp = chain.last_timestamp
        self._log_findings += chain.findings
        self._breaks += chain.breaks
        self._unproven += chain.unproven
        if queues.last_unit_position >= 0:
            self._last_unit = queues.last_unit_position
            self._reached_queues = max(self._reached_queues, queues.last_unit_timestamp)
        irregular = (
            self._check_irregular(queues, accepted, found) if self._target.queue_files else frozenset()
        )
        self._prove(kept, chain, irregular)
        for queue, compared in found.items():
            add_ranges(self._ranges.setdefault(queue, []), compared.ranges)
            self._ext += compared.ext
            self._plain += compared.plain
        self._queues.update(
            (queue, state)
            for queue, state in queues.changed().items()
            if not self._plan.selection.is_batch(queue[0])
        )

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

    def _prove(self, checked: list[PartChecked], chain: Chain, irregular: Set[_Queue]) -> None:
        """Keep what was proven of a batch's segments, of each by itself."""
        if self._proven is None:
            return
        odd = [(finding.offset, finding.end) for finding in chain.findings]
        odd += [(at, at) for at in chain.breaks] + chain.unproven
        for base, of_segment in groupby(checked, lambda one: one.result.part.base):
            parts = list(of_segment)
            end = base + parts[0].result.part.segment_size
            if any(first <= end and last >= base for first, last in odd):
                continue
            ranges = [(self._bound_start(one.result.part), one.result.part.end) for one in parts]
            self._proven.add(parts, ranges, irregular, self._index.map.infos)

    def _keep(self, parts: list[Part], proof: SegmentProof) -> bool:
        """Take over what was proven of a segment, where that is what it would come to again."""
        if self._proven is None or parts[-1].end != proof.end:
            return False
        if self._batch.map.runs(proof.base, proof.end):
            return False  # units of batch queues aren't bound by any sum
        for queue, part in proof.queues.items():
            state = self._queues.get(queue)
            if state is None and part.first and self._plan.log.start == 0 and self._places():
                return False  # messages before its first one may be missing
            if state is not None and state.next != part.first:
                return False
        if any(end + self._plan.settings.largest_record > proof.base for _, end in self._unproven):
            return False
        self._proven.keep(proof)
        for queue, part in proof.queues.items():
            first = self._queues[queue].first if queue in self._queues else part.first
            self._queues[queue] = QueueState(first, part.next, part.end)
            add_ranges(self._ranges.setdefault(queue, []), list(part.ranges))
        position, timestamp = proof.last_unit
        if position >= 0:
            self._last_unit = position
            self._reached_queues = max(self._reached_queues, timestamp)
        if proof.messages:
            self._reached_log = max(self._reached_log, proof.last_timestamp)
            self._last_timestamp = proof.last_timestamp
        self._add_without_unit(proof.without_unit)
        self._covered.append((proof.base, proof.end))
        self._end = proof.end
        self._messages += proof.messages
        self._bytes += proof.message_bytes
        self._count(proof.length)
        return True

    def _finish(self, chains: list[Difference], outside: list[Outside], findings: list[Difference]) -> None:
        """Leave what was proven to the next run."""
        if self._proven is None:
            return
        found = self._index.map
        blocks = zip(found.least, found.greatest, strict=True)
        unsound = {one.path for one in chains}
        self._proven.finish(found.infos, blocks, unsound, outside, findings)
        odd = {(note.topic, note.queue_id) for note in self._notes}
        self._proven.ends = {
            queue: (state.first, state.next)
            for queue, state in self._queues.items()
            if not findings and queue not in odd
        }

    def _fit(self, chain: Chain, checked: PartChecked) -> Iterator[PartChecked]:
        verdict = chain.judge(checked.result)
        if verdict.accepted:
            yield checked
        elif verdict.again is not None:
            (again,) = done(self._runner, [self._task(verdict.again)])
            yield from self._fit(chain, again)

    def _batch_queues(self, result: PartResult) -> Iterator[_Queue]:
        is_batch = self._plan.selection.is_batch
        return (queue for queue in result.queues.queues() if is_batch(queue[0]))

    def _add(self, checked: PartChecked, found: dict[_Queue, Compared]) -> None:
        result = checked.result
        self._covered.append((result.part.start, result.part.end))
        self._index.add(checked)
        self._batch.add(checked.batch)
        for queue, compared in checked.queues.items():
            found.setdefault(queue, Compared()).add(compared)
        if result.messages:
            self._reached_log = max(self._reached_log, result.last_timestamp)
        self._add_without_unit(result.without_unit)
        self._messages += result.messages
        self._bytes += result.message_bytes
        self._count(result.part.end - result.part.start)

    def _add_without_unit(self, found: Iterable[tuple[bytes, int, int]]) -> None:
        for topic, count, position in found:
            known = self._without.get(topic)
            self._without[topic] = (count, position) if known is None else (known[0] + count, known[1])

    def _count(self, length: int) -> None:
        self._done += length
        self._listener(self._done, self._messages, self._total)

    def _places(self) -> list[int]:
        """Physical offsets where messages may be missing, ascending."""
        return sorted([*self._breaks, *(finding.offset for finding in self._plan.log.findings)])

    def _uncovered(self) -> list[tuple[int, int]]:
        """What lies outside of the log's parts, half open: before 0, between parts, past the end.

        Before the log's start is known.
        """
        plan = self._plan
        ranges, at = [(-_LONG_MAX - 1, 0)], plan.log.start
        for start, end in sorted(self._covered):
            if start > at:
                ranges.append((at, start))
            at = max(at, end)
        ranges.append((at, _LONG_MAX))
        if plan.running:
            return [(start, min(end, plan.end)) for start, end in ranges if start < plan.end]
        return ranges

    def _all_breaks(self) -> Breaks:
        """Where the log isn't whole, as far as it was read."""
        places = sorted([*self._breaks, *(finding.offset for finding in self._plan.log.findings)])
        return Breaks(places, self._unproven)

    def _add_odd_queues(self) -> None:
        """Take what is odd about queues in a database alone: files have their own findings."""
        known = {(one.kind, one.topic, one.queue_id) for one in (*self._log_findings, *self._holes)}
        known |= {(one.kind, one.topic, one.queue_id) for one in self._notes}
        for finding in self._database.log_findings():
            if (finding.kind, finding.topic, finding.queue_id) in known:
                continue
            if finding.kind in LEGAL or finding.kind == "repeated-queue-offset":
                note = Note(finding.kind, str(finding), finding.topic, finding.queue_id, finding.count)
                self._notes.append(note)
                continue
            self._holes.append(finding)
            filled = _filled_note(finding) if self._database.is_filled(finding) else None
            if filled is None:
                self._log_findings.append(finding)
            else:
                self._notes.append(filled)

    @property
    def _units(self) -> int:
        if not self._target.queue_files:
            return self._database.units
        return max(sum(state.next - state.first for state in self._queues.values()), self._database.units)

    def _check_irregular(
        self, queues: BatchQueues, parts: list[Part], found: dict[_Queue, Compared]
    ) -> Set[_Queue]:
        breaks = self._all_breaks()
        from_zero = self._plan.log.start == 0
        if from_zero:
            queues.doubt_heads()
        queues.doubt(breaks, self._plan.settings.largest_record)

        irregular: dict[_Queue, QueueChecked] = {}

        def place(some: dict[_Queue, QueueState | None], altered: Altered) -> Iterator[QueueOutcome]:
            of_files = self._plan.queue_ext, from_zero
            task = IrregularTask(self._target, tuple(parts), some, breaks, altered, *of_files)
            (found,) = done(self._runner, [task])
            for checked in found:
                irregular[checked.outcome.topic, checked.outcome.queue_id] = checked
                yield checked.outcome

        in_rounds(self._target, self._plan.log, parts, queues, place)
        for queue, each in irregular.items():
            outcome = each.outcome
            known = found.get(queue, Compared())
            # Its ranges were by places that it hasn't got.
            found[queue] = Compared(
                each.compared.ranges, known.ext + each.compared.ext, known.plain + each.compared.plain
            )
            if outcome.restarted:
                self._ranges.pop(queue, None)
                self._restarts[outcome.topic] = max(self._restarts.get(outcome.topic, -1), each.restarted_at)
            for finding in outcome.findings:
                if finding.kind in LEGAL:
                    self._notes.append(
                        Note(finding.kind, str(finding), finding.topic, finding.queue_id, finding.count)
                    )
                    continue
                self._holes.append(finding)
                filled = _filled_hole(finding, each.compared.ranges)
                if filled is None:
                    self._log_findings.append(finding)
                else:
                    self._notes.append(filled)
        return irregular.keys()

    # --- queues -------------------------------------------------------------------------------------------

    def _check_outside(self) -> list[Outside]:
        plan, settings = self._plan, self._plan.settings
        if not self._target.queue_files:
            return []
        queues = []
        for queue in queues_on_disk(settings.root / names.CONSUME_QUEUE, plan.selection):
            state = self._queues.get(queue)
            first, end = (None, None) if state is None else (state.first, max(state.next, state.first))
            seen = {} if self._proven is None else self._proven.seen_of(queue)
            queues.append(Known(*queue, first, end, seen))
        look = partial(
            check_outside,
            settings.root,
            settings.consume_queue_file_size,
            plan.log.start,
            plan.end if plan.running else None,
            settings.recovery.queue_ext_file_size if plan.queue_ext else None,
        )
        return list(of_each(self._runner, look, queues, _QUEUES_AT_ONCE))

    def _refuse_unknown(self, outside: list[Outside]) -> None:
        """See that there is what was asked for: of a misspelt topic nothing is wrong.

        Raises:
            SettingsError: neither the log nor the store has such a queue.
        """
        selection = self._plan.selection
        there = {*self._queues, *((each.topic, each.queue_id) for each in outside)}
        there |= self._batch.queues.keys() | self._batch.map.files.keys()
        topics = {topic for topic, _ in there}
        for topic, queue_id in sorted(selection.queues, key=str):
            if (topic, queue_id) in there:
                continue
            if queue_id is None and topic in topics:
                continue
            raise no_such_queue(
                self._plan.settings.root,
                (topic, queue_id),
                "a queue that the log has messages of, or that has files",
                [*there, *((left_out.decode("utf-8", "replace"), None) for left_out in self._without)],
            )

    def _merged(self, outside: list[Outside]) -> dict[_Queue, list[UnitRange]]:
        merged = {queue: list(ranges) for queue, ranges in self._ranges.items() if ranges}
        for each in outside:
            if each.ranges:
                merged.setdefault((each.topic, each.queue_id), []).extend(each.ranges)
        for queue, ranges in merged.items():
            ranges.sort(key=lambda one: one.first)
            joined: list[UnitRange] = []
            add_ranges(joined, ranges)
            merged[queue] = joined
        return merged

    # --- the report ---------------------------------------------------------------------------------------

    def _check_checkpoint(self) -> list[Difference]:
        queues, last_unit = self._reached_queues, self._last_unit
        if self._without:  # a broker may have made queues of these
            queues, last_unit = max(queues, self._reached_log), self._end
        return check_checkpoint(
            self._plan.settings.root,
            self._plan.settings.dialect.checkpoint_fields,
            log=self._reached_log,
            queues=queues,
            index=self._index.end_timestamp,
            last_unit=last_unit,
        )

    def _of_log(self) -> Iterator[Finding]:
        yield from self._log_findings
        yield from self._batch.bad
        yield from self._unsafe_topics()

    def _plain_tags(self) -> Iterator[Note]:
        """Where addresses are expected."""
        if self._plain and self._plan.settings.recovery.queue_ext:
            text = (
                f"{self._plain:,} units hold their plain tagsCode and no address in "
                f"{names.CONSUME_QUEUE_EXT}: enableConsumeQueueExt was turned on later, or a record was too "
                "long; a rebuild makes addresses of all"
            )
            yield Note("plain-tags", text, count=self._plain)

    def _unsafe_topics(self) -> Iterator[Finding]:
        """Topics of messages that no directory can have."""
        for topic, (count, position) in sorted(self._without.items()):
            problem = self._target.topic_problem(topic)
            if problem is None:
                continue
            bases = [segment.base for segment in self._plan.log.segments]
            segment = self._plan.log.segments[max(bisect_right(bases, position) - 1, 0)]
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

    def _not_checked(self) -> list[Note]:
        plan = self._plan
        found = []
        if self._ext:
            text = (
                f"the bit maps of {self._ext:,} units in {names.CONSUME_QUEUE_EXT}, but for their length: "
                "they depend on the consumers that the broker knew at the time"
            )
            found.append(Note("queue-ext", text, count=self._ext))
        if not plan.selection.is_all:
            found.append(Note("index", "the index and the checkpoint, for queues were chosen", count=1))
        elif not plan.settings.message_index_enable and not plan.settings.rocksdb.index:
            found.append(Note(SWITCHED_OFF, "the index: broker.conf switches it off"))
        elif not plan.options.index:
            found.append(Note("index", "the index: --no-index"))
        if beside := ignored_features(plan.settings.root):
            found.append(Note(NOT_IN_LOG, f"{', '.join(beside)}: the commit log alone doesn't hold them"))
        found += self._database.not_checked()
        if plan.running:
            found.append(Note("live", f"what the running broker wrote past {plan.end}, and the checkpoint"))
        return found


def _length(parts: Sequence[Part]) -> int:
    """Bytes of log in consecutive parts."""
    return sum(part.end - part.start for part in parts)


def _filled_hole(finding: Finding, ranges: Sequence[UnitRange]) -> Note | None:
    """A note in place of a finding of missing messages whose places are filled as a rebuild fills them."""
    first = finding.queue_offset
    if finding.kind != "missing-queue-offsets" or first is None:
        return None
    end = first + finding.count
    if any(one.first < end and first < one.end for one in ranges):
        return None
    return _filled_note(finding)


def _filled_note(finding: Finding) -> Note:
    first, end = finding.queue_offset or 0, (finding.queue_offset or 0) + finding.count
    text = (
        f"{finding.topic}:{finding.queue_id} queueOffset {first} to {end} ({finding.count:,}): messages that "
        f"the log has lost; the unit of the next one, at {finding.offset}, stands for them"
    )
    return Note("filled-hole", text, finding.topic, finding.queue_id, finding.count)
