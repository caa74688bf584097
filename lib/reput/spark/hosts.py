"""Functions that run on other hosts: what a worker proves before it runs one, and where an error is from.

A path may lead to different files on each host. So a worker first shows that it sees what the driver sees,
and the driver accepts nothing from a worker before it has checked that.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reput.errors import ReputError, SegmentGoneError, StoreError


class Proof(Protocol):
    """Shows that a worker sees what the driver sees; pickled with every task."""

    def show(self) -> Any:
        """In a worker: returns what the driver checks.

        Raises:
            ReputError: the worker sees something else.
        """
        ...

    def see(self, host: str, shown: Any) -> None:
        """On the driver: check what a worker on ``host`` has shown.

        Raises:
            ReputError: it doesn't prove it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task on another host returns."""

    host: str
    shown: tuple[Any, ...]
    result: object


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    function: Callable[..., object]
    proofs: tuple[Proof, ...]

    def __call__(self, item: object) -> Answer:
        host = socket.gethostname()
        shown: tuple[Any, ...] = ()
        try:
            shown = tuple(proof.show() for proof in self.proofs)
            result = self.function(item)
        except ReputError as error:
            result = error
        if isinstance(result, ReputError):
            result.host = host
        return Answer(host, shown, result)


class Elsewhere:
    """The driver's side of functions that run on other hosts.

    Args:
        proofs: what every worker has to show.
    """

    def __init__(self, proofs: Iterable[Proof]) -> None:
        self._proofs = tuple(proofs)
        self._seen: set[tuple[str, tuple[Any, ...]]] = set()

    def task(self, function: Callable[..., object]) -> Callable[[object], Answer]:
        """Wraps ``function`` for a worker; what it returns is for :meth:`results`."""
        return _Elsewhere(function, self._proofs)

    def results(self, answers: Iterable[Answer]) -> list[object]:
        """What the function returned, or the error that it raised; errors name their host.

        Raises:
            ReputError: a worker sees something else than this process.
        """
        return [self._result(answer) for answer in answers]

    def _result(self, answer: Answer) -> object:
        result = answer.result
        if isinstance(result, SegmentGoneError):
            return _if_here(result)
        if isinstance(result, ReputError):
            return result
        if (answer.host, answer.shown) not in self._seen:
            for proof, shown in zip(self._proofs, answer.shown, strict=True):
                proof.see(answer.host, shown)
            self._seen.add((answer.host, answer.shown))
        return result


def _if_here(error: SegmentGoneError) -> StoreError:
    """The error itself if the file is gone for the driver, too; otherwise that host doesn't have it."""
    if error.path is None or not Path(error.path).exists():
        return error
    return StoreError(
        "this host doesn't have a file of the store that the driver has",
        path=error.path,
        offset=error.offset,
        expected=error.expected,
        found="no such file",
        next_step="Mount the store at this path on all hosts, or let everything run on one host: "
        "--master 'local[*]'",
        host=error.host,
    )
