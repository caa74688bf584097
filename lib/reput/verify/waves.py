"""Tasks of a verification, done some at a time; what stores elsewhere were asked is counted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from reput.errors import ReputError, StoreError
from reput.remote import client
from reput.remote.client import Spent
from reput.replay import runner as runners
from reput.replay.runner import Runner
from reput.store.reading import step_to_read

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def done(runner: Runner, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """The results of some tasks, at once."""
    found: list[Any] = runner.map(_work, list(tasks)) if tasks else []
    results: list[Any] = []
    for one in found:
        if isinstance(one, ReputError):
            raise one
        result, spent = one
        client.add(spent)
        results.append(result)
    return results


def in_waves(runner: Runner, tasks: Sequence[Callable[[], _Result]]) -> Generator[_Result]:
    """The results of many tasks in order; see :func:`reput.replay.runner.in_waves`."""
    return runners.in_waves(runner, lambda wave: done(runner, wave), tasks)


def of_each(
    runner: Runner, look: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int
) -> Iterator[_Result]:
    """What a function makes of each item, in order; a task takes ``at_once`` of them."""
    tasks = [partial(_each, look, items[at : at + at_once]) for at in range(0, len(items), at_once)]
    for found in in_waves(runner, tasks):
        yield from found


def _each(look: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    return [look(item) for item in items]


def _work(task: Callable[[], object]) -> tuple[object, dict[str, Spent]] | ReputError:
    """Do a task; what it returns, and what stores elsewhere were asked; or the error that it ended with."""
    try:
        return task(), client.taken()
    except ReputError as error:
        return error
    except OSError as error:
        return StoreError(
            "the store can't be read",
            path=error.filename,
            found=error.strerror or str(error),
            next_step=step_to_read(error),
        )
