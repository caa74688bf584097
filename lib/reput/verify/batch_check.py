"""The batch queues of a verification: what their files hold, and what the log says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from reput.errors import Finding
from reput.format import names
from reput.sink.runner import Runner
from reput.verify.batch_files import BatchFiles, BatchRun
from reput.verify.batch_units import BatchRange, add_batch_ranges
from reput.verify.explain import Explainer
from reput.verify.plan import Plan, queues_on_disk
from reput.verify.report import Difference
from reput.verify.tasks import BatchCompared, BatchFilesTask, BatchUnitsTask
from reput.verify.waves import in_waves

_Queue = tuple[str, int]
_QUEUES_AT_ONCE = 16
_LONG_MAX = (1 << 63) - 1


@dataclass(slots=True)
class InLog:
    """What the log has of a batch queue: [first, next) are queueOffsets."""

    first: int
    next: int
    units: int = 0


@dataclass(slots=True)
class BatchMap:
    """The batch queues' files, and where their units point to, block by block."""

    files: dict[_Queue, BatchFiles] = field(default_factory=dict)

    def runs(self, start: int, end: int) -> tuple[BatchRun, ...]:
        """The blocks that may hold units which point into [start, end) of the log."""
        return tuple(run for files in self.files.values() for run in files.runs(start, end))


class BatchCheck:
    """The batch queues' side of one run. Without queues until :meth:`find`.

    Attributes:
        map: the files.
        queues: those of the log.
        bad: messages that got no unit.
    """

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self._plan = plan
        self._runner = runner
        self.map = BatchMap()
        self.queues: dict[_Queue, InLog] = {}
        self.bad: list[Finding] = []
        self._ranges: dict[_Queue, list[BatchRange]] = {}
        self._covered: list[tuple[int, int]] = []

    def find(self) -> None:
        """Look at which files there are, and where their units point to.

        Raises:
            ReputError: a file can't be read.
        """
        settings, selection = self._plan.settings, self._plan.selection
        queues = [
            queue
            for queue in queues_on_disk(settings.root / names.BATCH_CONSUME_QUEUE)
            if selection.wants_topic(queue[0].encode("utf-8", "replace")) and selection.wants_queue(*queue)
        ]
        self.map = find_batch_units(
            self._runner, settings.root, settings.recovery.batch_queue_file_size, queues, self._plan.end
        )
        for queue, found in self.map.files.items():
            self._ranges[queue] = list(found.ranges)

    def add(self, start: int, end: int, compared: BatchCompared) -> None:
        """Take what came of a part [start, end) of the log."""
        self._covered.append((start, end))
        self._add(compared)
        for queue, (first, after, units) in compared.queues.items():
            known = self.queues.setdefault(queue, InLog(first, after))
            known.next, known.units = max(after, known.next), known.units + units
        for finding in compared.bad:
            same = (at for at, one in enumerate(self.bad) if _queue_of(one) == _queue_of(finding))
            at = next(same, None)
            if at is None:
                self.bad.append(finding)
            else:
                self.bad[at] = replace(self.bad[at], count=self.bad[at].count + finding.count)

    def check_leftover_units(self) -> None:
        """Units that point to where no part was: before 0, between parts, past the end."""
        plan = self._plan
        ranges = uncovered(self._covered, plan.log.start)
        if plan.running:
            ranges = [(start, min(end, plan.end)) for start, end in ranges if start < plan.end]
        settings = plan.settings
        tasks = [
            BatchUnitsTask(settings.root, settings.recovery.batch_queue_file_size, start, end, runs)
            for start, end in ranges
            if (runs := self.map.runs(start, end))
        ]
        for compared in in_waves(self._runner, tasks):
            self._add(compared)

    def _add(self, compared: BatchCompared) -> None:
        for queue, ranges in compared.ranges.items():
            add_batch_ranges(self._ranges.setdefault(queue, []), ranges)

    def findings(self, explainer: Explainer) -> Iterator[Difference]:
        """What is wrong."""
        for queue, ranges in sorted(self._ranges.items()):
            files = self.map.files.get(queue) or BatchFiles(*queue)
            for one in sorted(ranges, key=lambda each: (each.place, each.first)):
                yield explainer.batch(queue, one, files)
            yield from (explainer.file(queue, problem) for problem in files.problems)

    @property
    def units(self) -> int:
        """Units that the log has."""
        return sum(each.units for each in self.queues.values())

    @property
    def files_fit(self) -> bool:
        """Whether some file has the length that the settings ask for, or none has a wrong one."""
        found = self.map.files.values()
        wrong = any(problem.kind == "queue-file-length" for each in found for problem in each.problems)
        return not wrong or any(each.fitting for each in found)


def find_batch_units(
    runner: Runner, root: Path, file_size: int, queues: list[_Queue], log_end: int
) -> BatchMap:
    """Read the files of batch queues once.

    Raises:
        ReputError: one can't be read.
    """
    tasks = [
        BatchFilesTask(root, file_size, tuple(queues[at : at + _QUEUES_AT_ONCE]), log_end)
        for at in range(0, len(queues), _QUEUES_AT_ONCE)
    ]
    found = [each for looked in in_waves(runner, tasks) for each in looked]
    return BatchMap({(each.topic, each.queue_id): each for each in found})


def uncovered(covered: list[tuple[int, int]], log_start: int) -> list[tuple[int, int]]:
    """What lies outside of a log's parts: before 0, between parts, past the end. Before its start is known.

    Args:
        covered: [start, end) of the parts.
    """
    ranges, at = [(-_LONG_MAX - 1, 0)], log_start
    for start, end in sorted(covered):
        if start > at:
            ranges.append((at, start))
        at = max(at, end)
    return [*ranges, (at, _LONG_MAX)]


def _queue_of(finding: Finding) -> tuple[str | None, int | None]:
    return finding.topic, finding.queue_id
