"""The plain queues of a verification: their units, and the places that the log says nothing of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from reput.derived.files import place_in
from reput.derived.last_file import Lost, nowhere
from reput.derived.plain import QueueReader
from reput.errors import Finding
from reput.format import names
from reput.format.commitlog import LMQ_PREFIX, SCHEDULE_TOPIC
from reput.format.consumequeue import PHYSICAL_OFFSET, SIZE, TAGS_CODE, UNIT_LENGTH
from reput.format.consumequeueext import FIRST_ADDRESS, MAX_ADDRESS
from reput.format.dtypes import UNIT_DTYPE
from reput.format.names import Queue
from reput.replay.altered import Altered, in_rounds
from reput.replay.placing import BatchQueues, QueueOutcome
from reput.replay.runner import Runner
from reput.replay.state import QueueState
from reput.scan.rules import Part
from reput.verify.explain import DELAY_LEVELS, LOG_DAMAGED, TAGS_LOST, Explainer, of_range
from reput.verify.plan import Plan, queues_on_disk
from reput.verify.queue_files import Known, Outside, check_outside, files_of, series_files
from reput.verify.report import LEGAL, Difference, Note
from reput.verify.tasks import IrregularTask, PartChecked, QueueChecked
from reput.verify.units import (
    DANGLING,
    EXTRA,
    MISPLACED,
    MISSING,
    UNORDERED,
    WRONG_EXT,
    Compared,
    Range,
    Unit,
    add_ranges,
)
from reput.verify.waves import done, of_each

if TYPE_CHECKING:
    from reput.verify.proofs import Remembering
    from reput.verify.proven import SegmentProof
    from reput.verify.run import LogRead

_QUEUES_AT_ONCE = 64
_LMQ_PREFIX = LMQ_PREFIX.decode()


class QueueCheck:
    """The plain queues' side of one run.

    Attributes:
        queues: those of the log.
        restarts: by topic, the physical offset where a queue of it begins anew.
        holes: findings of queues whose queueOffsets have gaps or repeats.
        notes: what is odd about them and legal.
        ext: units whose tagsCode is an address in consumequeue_ext.
        plain: units of a queue with such addresses whose tagsCode is none.
        outside: what came of each queue's places outside of what the log has.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self._plan = plan
        self._runner = runner
        self._target = plan.target()
        self._stands = nowhere(plan.log.segment_size)
        self._ranges: dict[Queue, list[Range]] = {}
        self._found: dict[Queue, Compared] = {}  # of the batch at hand
        self.queues: dict[Queue, QueueState] = {}
        self.restarts: dict[str, int] = {}
        self.holes: list[Finding] = []
        self.notes: list[Note] = []
        self.ext = self.plain = 0
        self.outside: list[Outside] = []

    def find(self, _proven: object, _held: ExitStack) -> None:
        """See :class:`reput.verify.run.Form`: tasks read the files as they come to them."""

    def add(self, checked: PartChecked) -> None:
        """See :class:`reput.verify.run.Form`."""
        for queue, compared in checked.queues.items():
            self._found.setdefault(queue, Compared()).add(compared)

    def keep(self, proof: SegmentProof) -> None:
        """Take over what was proven of a segment."""
        for queue, part in proof.queues.items():
            first = self.queues[queue].first if queue in self.queues else part.first
            self.queues[queue] = QueueState(first, part.next, part.end)
            add_ranges(self._ranges.setdefault(queue, []), list(part.ranges))

    def end_batch(self, queues: BatchQueues, parts: list[Part], log: LogRead) -> Set[Queue]:
        """Look at queues whose queueOffsets don't follow one by one; which these are."""
        irregular = self._irregular(queues, parts, log) if self._target.queue_files else {}
        for queue, each in irregular.items():
            outcome, known = each.outcome, self._found.get(queue, Compared())
            ranges = each.compared.ranges
            each.compared.ranges = [one for one in ranges if not self._is_kept(queue, one, outcome.findings)]
            # Its ranges were by places that it hasn't got.
            ext, plain = known.ext + each.compared.ext, known.plain + each.compared.plain
            self._found[queue] = Compared(each.compared.ranges, ext, plain)
            if outcome.restarted:
                self._ranges.pop(queue, None)
                self.restarts[queue[0]] = max(self.restarts.get(queue[0], -1), each.restarted_at)
            for finding in outcome.findings:
                self.tell_odd(finding, each.compared.ranges, log)
        for queue, compared in self._found.items():
            add_ranges(self._ranges.setdefault(queue, []), compared.ranges)
            self.ext += compared.ext
            self.plain += compared.plain
        self._found = {}
        is_batch = self._plan.selection.is_batch
        self.queues |= {queue: state for queue, state in queues.changed().items() if not is_batch(queue[0])}
        return irregular.keys()

    def _irregular(self, queues: BatchQueues, parts: list[Part], log: LogRead) -> dict[Queue, QueueChecked]:
        breaks, from_zero = log.all_breaks(), self._plan.log.start == 0
        if from_zero:
            queues.doubt_heads()
        else:
            queues.anchor(self._plan.settings)
        queues.doubt(breaks, self._plan.settings.largest_record)
        irregular: dict[Queue, QueueChecked] = {}

        def place(some: dict[Queue, QueueState | None], altered: Altered) -> Iterator[QueueOutcome]:
            of_files = self._plan.queue_ext, from_zero
            task = IrregularTask(self._target, tuple(parts), some, breaks, altered, *of_files)
            (found,) = done(self._runner, [task])
            for checked in found:
                irregular[checked.outcome.topic, checked.outcome.queue_id] = checked
                yield checked.outcome

        in_rounds(self._target, self._plan.log, parts, queues, place)
        return irregular

    def tell_odd(
        self, finding: Finding, ranges: Sequence[Range], log: LogRead, legal: Set[str] = LEGAL
    ) -> None:
        """Take what is odd about a queue's messages, ``ranges`` being what differs of its units.

        Missing messages whose places are filled as a rebuild fills them are a note.
        """
        queue, count = (finding.topic, finding.queue_id), finding.count
        if finding.kind in legal:
            self.notes.append(Note(finding.kind, str(finding), *queue, count))
            return
        self.holes.append(finding)
        first, end = finding.queue_offset or 0, (finding.queue_offset or 0) + count
        is_hole = finding.kind == "missing-queue-offsets" and finding.queue_offset is not None
        if is_hole and not any(one.first < end and first < one.end for one in ranges):
            text = f"{queue[0]}:{queue[1]} queueOffset {first} to {end} ({count:,}): messages that "
            text += f"the log has lost; the unit of the next one, at {finding.offset}, stands for them"
            self.notes.append(Note("filled-hole", text, *queue, count))
        else:
            log.findings.append(finding)

    def _is_kept(self, queue: Queue, one: Range, holes: Iterable[Finding] = ()) -> bool:
        """Whether units stand where a mending kept the end of a queue that had lost its last messages.

        Such units lead where the one before does, which alone may know the tags of a message that has lost
        them. Messages that came later make a hole of their places, one of ``holes``.
        """
        at = one.first
        if one.kind == EXTRA:
            if queue not in self.queues or at < self.queues[queue].next:
                return False
            at = self.queues[queue].next
        elif not any(
            hole.kind == "missing-queue-offsets"
            and hole.queue_offset is not None
            and hole.queue_offset <= one.first
            and one.end <= hole.queue_offset + hole.count
            for hole in holes
        ):
            return False
        settings = self._plan.settings
        size = settings.consume_queue_file_size
        with suppress(OSError), QueueReader(settings.root, size) as reader:
            (before,) = np.frombuffer(reader.read(*queue, at - 1, 1) if at else self._stands, UNIT_DTYPE)
            return bool(before["size"] > 0) and not any(
                (units[name] != before[name]).any()
                for _, units in reader.blocks(*queue, at, one.end)
                for name in ("position", "size")
            )
        return False

    def compare(self, _log: LogRead, proven: Remembering | None) -> None:
        """Look at the queues' files, and at the places outside of what the log has."""
        plan, settings = self._plan, self._plan.settings
        if not self._target.queue_files:
            return
        queues = []
        for queue in queues_on_disk(settings.root / names.CONSUME_QUEUE, plan.selection):
            state = self.queues.get(queue)
            first, end = (None, None) if state is None else (state.first, max(state.next, state.first))
            queues.append(Known(*queue, first, end, {} if proven is None else proven.seen_of(queue)))
        look = partial(
            check_outside,
            settings.root,
            settings.consume_queue_file_size,
            plan.log.start,
            plan.end if plan.running else None,
            settings.recovery.queue_ext_file_size if settings.recovery.queue_ext else None,
            self._stands,
        )
        self.outside = list(of_each(self._runner, look, queues, _QUEUES_AT_ONCE))

    def findings(self, explainer: Explainer) -> Iterator[Difference | Note]:
        """What is wrong, by queue; a queue that was deleted with its topic is a note."""
        lost = Lost(explainer.damaged)
        merged = {queue: list(ranges) for queue, ranges in self._ranges.items() if ranges}
        for each in self.outside:
            queue = each.topic, each.queue_id
            for one in each.ranges:
                if self._is_kept(queue, one):
                    text = f"{queue[0]}:{queue[1]} queueOffset {one.first} to {one.end} ({one.count:,}): "
                    text += "messages that the log has lost; the unit of the one before stands for them"
                    yield Note("filled-hole", text, *queue, one.count)
                else:
                    merged.setdefault(queue, []).append(one)
        for queue, ranges in sorted(merged.items()):
            joined: list[Range] = []
            add_ranges(joined, sorted(ranges, key=lambda one: one.first))
            yield from self._of_queue(explainer, queue, joined, lost)
        for each in self.outside:
            yield from each.problems

    def _of_queue(
        self, explainer: Explainer, queue: Queue, ranges: Sequence[Range], lost: Lost
    ) -> Iterator[Difference | Note]:
        bases = files_of(self._plan.settings.root, *queue)
        state = self.queues.get(queue)
        if state is not None and not bases:
            reason = explainer.deleted(queue[0], state.end)
            if reason is not None:
                count = state.next - state.first
                text = f"{queue[0]}:{queue[1]} has no files, and {count:,} messages in the log: {reason}"
                yield Note("deleted-queue", text, *queue, count)
                return
        last = max((one.end for one in ranges), default=0)
        for one in ranges:
            if one.kind in (DANGLING, WRONG_EXT):
                yield self._record(queue, one)
                continue
            for part in self._parted(queue, one, lost):
                yield self._unit(explainer, queue, part, bases, part.end == last)

    def _parted(self, queue: Queue, one: Range, lost: Lost) -> list[Range]:
        """Units without messages, parted before the first and behind the last that lead to what is lost."""
        if one.kind != EXTRA or not lost or one.count < one.end - one.first:
            return [one]
        first = end = one.end
        with QueueReader(self._plan.settings.root, self._plan.settings.consume_queue_file_size) as reader:
            for at, block in reader.blocks(*queue, one.first, one.end):
                found = np.flatnonzero(lost.has(block))
                if len(found):
                    first, end = min(first, at + int(found[0])), at + int(found[-1]) + 1
            parts = list(pairwise(sorted({one.first, first, end, one.end})))
            if len(parts) == 1:
                return [one]
            units = [np.frombuffer(reader.read(*queue, at, 1), UNIT_DTYPE)[0] for at, _ in parts]
        return [
            replace(one, first=at, end=to, count=to - at, found=Unit(*unit.tolist()))
            for (at, to), unit in zip(parts, units, strict=True)
        ]

    def _record(self, queue: Queue, one: Range) -> Difference:
        """Where an address leads to the wrong thing."""
        settings = self._plan.settings
        directory = names.queue_ext_directory(settings.root, *queue)
        file_size = settings.recovery.queue_ext_file_size
        place = place_in(directory, file_size, one.stored.tags - FIRST_ADDRESS)
        cause = None
        if one.kind == DANGLING:
            files = series_files(directory, queue, file_size)[0]
            lost = "queue-ext-file-lost" if files else "queue-ext-lost"
            cause = lost if one.field == "file" else "queue-ext-broken"
        wanted = f"a record of tagsCode {0 if one.expected is None else one.expected.tags}"
        found = "no such file" if one.field == "file" else "none"
        if one.record is not None:
            wanted, found = map(str, one.record)
        return of_range(queue, one, place, (wanted, found), cause)

    def _unit(
        self, explainer: Explainer, queue: Queue, one: Range, bases: Set[int], is_last: bool
    ) -> Difference:
        settings = self._plan.settings
        directory = names.queue_directory(settings.root, *queue)
        path, at = place_in(directory, settings.consume_queue_file_size, one.first * UNIT_LENGTH)
        field_at = {"size": SIZE, "tagsCode": TAGS_CODE}.get(one.field or "", PHYSICAL_OFFSET)
        base = one.first * UNIT_LENGTH - at
        odd = explainer.odd(queue, one)
        cause: str | None
        if one.kind == MISSING:
            cause = self._missing(one, queue, bases, base, odd, is_last)
        else:
            cause = self._cause(explainer, one, queue[0], odd)
        expected, found = "nothing" if one.expected is None else str(one.expected), str(one.found)
        if one.kind == UNORDERED:
            expected = "an address above the one of the unit before"
        elif one.kind == MISSING and one.expected is None:
            expected = "a unit of a message that has expired"
        is_blank = one.stored.is_zero or one.stored.is_pre_blank
        if not is_blank and (one.kind == EXTRA or one.field == "message"):
            found += f" ({explainer.target(one.stored.position)[1]})"
        if one.kind == MISPLACED:
            found += f"; it lies at queueOffset {one.first + one.shift}"
        return of_range(queue, one, (path, at + field_at), (expected, found), cause)

    def _missing(
        self, one: Range, queue: Queue, bases: Set[int], base: int, odd: str | None, is_last: bool
    ) -> str:
        state = self.queues.get(queue)
        if not bases:
            return "queue-lost"
        if state is not None and one.first < state.first:
            return "before-first"
        if odd is not None:
            return odd
        if base not in bases and base < max(bases):
            return "queue-file-lost"
        if one.stored.is_pre_blank:
            return "pre-blanked"
        at_end = state is not None and one.end == state.next
        return "queue-short" if at_end and is_last else "zeroed"

    def _cause(self, explainer: Explainer, one: Range, topic: str, odd: str | None) -> str | None:
        if one.kind == UNORDERED:
            return None
        if one.kind == MISPLACED:
            return odd or "shifted"
        if one.field is not None and one.field != "message":
            if one.stored.tags <= MAX_ADDRESS:
                return "queue-ext"
            if topic == SCHEDULE_TOPIC.decode() and one.field == "tagsCode":
                return "delay-tags-hashed" if one.stored.is_hash else DELAY_LEVELS
            return TAGS_LOST if one.field == "tagsCode" and one.has_lost_tags() else None
        if topic.startswith(_LMQ_PREFIX) and not self._plan.settings.enable_multi_dispatch:
            return "multi-dispatch-off"
        target = explainer.target(one.stored.position)[0]
        return odd if odd is not None and target != LOG_DAMAGED else target
