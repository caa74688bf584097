"""The batch queues of a verification: what their files hold, and what the log says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from reput.config.settings import StoreSettings
from reput.errors import Finding
from reput.format import names
from reput.replay.runner import Runner
from reput.replay.selection import Selection
from reput.verify.batch_files import BatchFiles, BatchRun, look_at
from reput.verify.batch_units import BatchRange
from reput.verify.explain import Explainer
from reput.verify.plan import Plan, queues_on_disk
from reput.verify.report import Difference, Note
from reput.verify.tasks import BatchCompared, InLog, compare_runs, in_waves, of_each
from reput.verify.units import MISSING, add_ranges

_Queue = tuple[str, int]
_QUEUES_AT_ONCE = 16


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

    def find(self) -> None:
        """Look at which files there are, and where their units point to."""
        plan = self._plan
        self.map = find_batch_units(
            self._runner, plan.settings, plan.selection, plan.end, running=plan.running
        )
        for queue, found in self.map.files.items():
            self._ranges[queue] = list(found.ranges)

    def add(self, compared: BatchCompared) -> None:
        """Take what came of a part of the log."""
        for queue, ranges in compared.ranges.items():
            add_ranges(self._ranges.setdefault(queue, []), ranges)
        for queue, here in compared.queues.items():
            known = self.queues.get(queue)
            self.queues[queue] = here if known is None else known.then(here)
        for finding in compared.bad:
            same = (at for at, one in enumerate(self.bad) if _queue_of(one) == _queue_of(finding))
            at = next(same, None)
            if at is None:
                self.bad.append(finding)
            else:
                self.bad[at] = replace(self.bad[at], count=self.bad[at].count + finding.count)

    def check_leftovers(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Units that point to where no part was: into one of these ranges."""
        settings = self._plan.settings
        file_size = settings.recovery.batch_queue_file_size
        tasks = [
            partial(compare_runs, {}, settings.root, file_size, runs, start, end)
            for start, end in ranges
            if (runs := self.map.runs(start, end))
        ]
        for compared in in_waves(self._runner, tasks):
            self.add(compared)

    @property
    def restarts(self) -> dict[str, int]:
        """By topic, the physical offset where a queue of it last begins anew."""
        found: dict[str, int] = {}
        for (topic, _), known in self.queues.items():
            if known.anew >= 0:
                found[topic] = max(found.get(topic, -1), known.anew)
        return found

    def findings(self, explainer: Explainer) -> Iterator[Difference | Note]:
        """What is wrong, and what was deleted with its topic."""
        for queue, ranges in sorted(self._ranges.items()):
            files = self.map.files.get(queue) or BatchFiles(*queue)
            dropped = self._dropped(queue, files)
            deleted = 0
            for one in sorted(ranges, key=lambda each: (each.place, each.first)):
                if one.kind == MISSING and one.last < dropped:
                    deleted += one.count
                else:
                    yield explainer.batch(queue, one, files)
            if deleted:
                yield _deleted(queue, deleted, has_files=files.has_any)
            yield from files.problems

    def _dropped(self, queue: _Queue, files: BatchFiles) -> int:
        """The physical offset before which a live broker has dropped the queue's units, -1 for none.

        A queue with an older unit is one that was rebuilt since: it has them all.
        """
        known = self.queues.get(queue)
        if known is None:
            return -1
        if not files.has_any:
            # The whole queue went with its topic, and got no message since.
            anew = self.restarts.get(queue[0], -1)
            return anew if anew > known.last else known.anew
        return known.anew if files.least >= known.anew else -1

    @property
    def units(self) -> int:
        """Units that the log has."""
        return sum(each.units for each in self.queues.values())


def find_batch_units(
    runner: Runner, settings: StoreSettings, selection: Selection, log_end: int, *, running: bool
) -> BatchMap:
    """Read the files of a store's batch queues once; see :func:`reput.verify.batch_files.look_at`."""
    if not settings.dialect.recovery.switches_queue_types:
        return BatchMap({})  # a release before 5.0 reads none
    queues = queues_on_disk(settings.root / names.BATCH_CONSUME_QUEUE, selection)
    file_size = settings.recovery.batch_queue_file_size
    look = partial(look_at, settings.root, file_size, log_end=log_end, running=running)
    found = of_each(runner, look, queues, _QUEUES_AT_ONCE)
    return BatchMap({(each.topic, each.queue_id): each for each in found})


def _deleted(queue: _Queue, count: int, *, has_files: bool) -> Note:
    kind = "queue-restarted" if has_files else "deleted-queue"
    text = f"{queue[0]}:{queue[1]} has no unit of {count:,} records: "
    text += "the topic was deleted and created again since"
    return Note(kind, text, *queue, count)


def _queue_of(finding: Finding) -> tuple[str | None, int | None]:
    return finding.topic, finding.queue_id
