"""What is wrong or odd about a store, as a starting broker meets it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TypeVar

from reput.errors import ReputError

_E = TypeVar("_E", bound=ReputError)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a start stumbles over.

    Attributes:
        kind: a stable, hyphenated name; docs/recovery.md lists them all.
        path: the file or directory.
        expected: what should have been there.
        found: what was there.
        outcome: what the broker does about it.
        next_step: what the operator can do.
        stops: the broker doesn't start.
    """

    kind: str
    path: str
    expected: str
    found: str
    outcome: str
    next_step: str
    stops: bool = False

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.path}: expected {self.expected}, found {self.found}; {self.outcome}. "
            f"{self.next_step}"
        )

    def error(self, kind: type[_E], text: str) -> _E:
        """The problem as what ends a run: ``text`` says in one sentence what can't be done."""
        return kind(text, path=self.path, expected=self.expected, found=self.found, next_step=self.next_step)

    def to_dict(self) -> dict[str, object]:
        """The problem as a JSON-ready mapping."""
        return asdict(self)


class StartFailsError(Exception):
    """The broker fails here, and doesn't start."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem
