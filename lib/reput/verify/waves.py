"""Having tasks done, some at a time, with their results in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from reput.errors import ReputError
from reput.verify.tasks import work


class Runner(Protocol):
    """Runs functions over items somewhere: on a cluster, or right here."""

    @property
    def slots(self) -> int:
        """How many functions run at once."""
        ...

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The function's results in the items' order."""
        ...


class InlineRunner:
    """Runs functions here and now."""

    slots = 1

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The function's results in the items' order."""
        return [function(item) for item in items]


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
    """The results of many tasks in order; two waves are under way, so that none waits for a straggler.

    Raises:
        ReputError: one failed.
    """
    size = max(runner.slots, 1)
    waves = [tasks[at : at + size] for at in range(0, len(tasks), size)]
    with ThreadPoolExecutor(2, "reput-verify") as pool:
        under_way: list[Future[list[Any]]] = []
        try:
            for wave in waves:
                under_way.append(pool.submit(done, runner, wave))
                if len(under_way) == 2:
                    yield from under_way.pop(0).result()
            while under_way:
                yield from under_way.pop(0).result()
        finally:
            for future in under_way:
                future.cancel()
