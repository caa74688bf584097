"""Running functions somewhere, some at a time, with their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, TypeVar

from reput.store.ownership import Owner

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Waves of functions under way at once: while one's results are fetched, the next one works.
_AT_ONCE = 2


class Runner(Protocol):
    """Runs functions over items somewhere: on a cluster, or right here."""

    is_local: bool  # functions see the same files as this process

    @property
    def slots(self) -> int:
        """How many functions run at once."""
        ...

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The function's results in the items' order."""
        ...

    def shared(
        self, output: Path, owner: Owner | None, config: Sequence[Path]
    ) -> AbstractContextManager[None]:
        """Have functions on other hosts prove that they see an output, while the block runs."""
        ...

    def cancel(self) -> None:
        """Stop waiting for functions."""
        ...


class Here:
    """What there is nothing to do for where functions run on this host."""

    is_local = True

    def shared(
        self, _output: Path, _owner: Owner | None, _config: Sequence[Path]
    ) -> AbstractContextManager[None]:
        """They see what this process sees."""
        return nullcontext()

    def cancel(self) -> None:
        """They end by themselves."""


class InlineRunner(Here):
    """Runs functions at once in this process, which is faster than a Spark task for small work."""

    slots = 1

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The function's results in the items' order."""
        return [function(item) for item in items]


def in_waves(
    runner: Runner,
    do: Callable[[list[Item]], Sequence[Result]],
    items: Sequence[Item],
    give_up: Callable[[], None] = lambda: None,
) -> Generator[Result]:
    """The results of many items in order, done in waves of as many as run at once.

    When the generator is closed no further wave begins, and those under way have come to their end. ``do`` is
    called by threads, with one wave's items, and what it raises is raised here. ``give_up`` ends the waves
    under way, when the generator is closed before its end or one has failed.
    """
    under_way: deque[Future[Sequence[Result]]] = deque()
    is_done = False
    with ThreadPoolExecutor(_AT_ONCE, "reput-wave") as pool:
        try:
            at = 0
            while at < len(items):
                # Read each time: a cluster's executors come one by one.
                stop = at + max(runner.slots, 1)
                under_way.append(pool.submit(do, list(items[at:stop])))
                at = stop
                if len(under_way) == _AT_ONCE:
                    yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
            is_done = True
        finally:
            for future in under_way:
                future.cancel()
            if not is_done:
                give_up()
