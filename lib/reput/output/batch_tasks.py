"""Who does a batch's work: Spark's tasks, or this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reput.build.placement import Breaks
from reput.errors import ReputError
from reput.output import scan_task
from reput.output.index import index_task
from reput.output.queues import appended_queues, irregular_queues
from reput.output.scan_task import Floors
from reput.replay.part_result import PartResult, witnessed
from reput.replay.placing import QueueOutcome
from reput.replay.runner import InlineRunner, Runner
from reput.replay.state import QueueState
from reput.replay.target import Target
from reput.scan.part import Part

#: Queues differ in size; a task that is done early leaves room for another one.
_SHARES_A_SLOT = 2


class StateFloors:
    """The floors of a state, without a copy of all queues."""

    def __init__(self, queues: Mapping[tuple[str, int], QueueState]) -> None:
        self._queues = queues

    def get(self, queue: tuple[str, int], default: int, /) -> int:
        """A queue's committed next queueOffset, or the default."""
        state = self._queues.get(queue)
        return default if state is None else state.next


@dataclass(frozen=True, slots=True)
class BatchTasks:
    """Who does a batch's work, and on what terms.

    Attributes:
        runner: runs the batch's functions.
        target: where they write; says whether they flush.
        floors: each queue's committed next queueOffset, at least where it isn't 0.
    """

    runner: Runner
    target: Target
    floors: Floors

    @property
    def is_here(self) -> bool:
        """Whether this process does it all."""
        return isinstance(self.runner, InlineRunner)

    def scan(self, parts: list[Part]) -> list[PartResult]:
        """Scan parts and place their units; see :func:`reput.output.scan_task.scan`.

        Raises:
            ReputError: a part's.
        """
        items: list[object] = [witnessed(self.runner, part) for part in parts]
        return _checked(self.runner.map(_Scan(self.target, self.floors), items))

    def place_again(
        self,
        parts: list[Part],
        committed: dict[tuple[str, int], QueueState | None],
        breaks: Breaks,
        *,
        from_zero: bool,
    ) -> list[QueueOutcome]:
        """Place some queues' units again, in log order; see :mod:`reput.output.queues.irregular_queues`.

        Raises:
            ReputError: it could not be done.
        """
        task = _PlaceAgain(self.target, committed, breaks, from_zero)
        ((done),) = _checked(self.runner.map(task, [parts]))
        return list(done)

    def append(
        self, queues: list[appended_queues.Waiting], parts: list[Part], breaks: Breaks, *, from_zero: bool
    ) -> list[QueueOutcome]:
        """Write the queues that are written in log order; see :mod:`reput.output.queues.appended_queues`.

        Raises:
            ReputError: it could not be done.
        """
        if not queues:
            return []
        task = _Append(self.target, parts, breaks, from_zero)
        shares = appended_queues.shares(queues, 1 if self.is_here else _SHARES_A_SLOT * self.runner.slots)
        return [outcome for done in _checked(self.runner.map(task, list(shares))) for outcome in done]

    def build_index(self, tasks: list[index_task.IndexTask]) -> list[Any]:
        """Build index files; see :func:`reput.output.index.index_task.build`."""
        return self.runner.map(index_task.build, list(tasks))


@dataclass(frozen=True, slots=True)
class _Scan:
    target: Target
    floors: Floors

    def __call__(self, part: Part) -> object:
        return scan_task.scan(self.target, part, scan_task.attempt_id(), self.floors)


@dataclass(frozen=True, slots=True)
class _Append:
    target: Target
    parts: list[Part]
    breaks: Breaks
    from_zero: bool

    def __call__(self, queues: list[appended_queues.Waiting]) -> object:
        return appended_queues.write(self.target, queues, self.parts, self.breaks, from_zero=self.from_zero)


@dataclass(frozen=True, slots=True)
class _PlaceAgain:
    target: Target
    committed: dict[tuple[str, int], QueueState | None]
    breaks: Breaks
    from_zero: bool

    def __call__(self, parts: list[Part]) -> object:
        return irregular_queues.place_again(
            self.target, parts, self.committed, self.breaks, from_zero=self.from_zero
        )


def _checked(results: list[object]) -> list[Any]:
    good = []
    for result in results:
        if isinstance(result, ReputError):
            raise result
        good.append(result)
    return good
