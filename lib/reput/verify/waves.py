"""Having a verification's tasks done, with their results in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from reput.errors import ReputError
from reput.replay import runner as runners
from reput.replay.runner import Runner
from reput.verify.tasks import work


def done(runner: Runner, tasks: Sequence[Callable[[], object]]) -> list[Any]:
    """The results of some tasks, at once.

    Raises:
        ReputError: one failed.
    """
    if not tasks:
        return []
    results = runner.map(work, list(tasks))
    for result in results:
        if isinstance(result, ReputError):
            raise result
    return results


def in_waves(runner: Runner, tasks: Sequence[Callable[[], object]]) -> Generator[Any]:
    """The results of many tasks in order; see :func:`reput.replay.runner.in_waves`.

    Raises:
        ReputError: one failed.
    """
    return runners.in_waves(runner, lambda wave: done(runner, wave), tasks)
