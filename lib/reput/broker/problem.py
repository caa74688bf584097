"""What is wrong or odd about a store, as a starting broker meets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from reput.errors import Fact, ReputError

_E = TypeVar("_E", bound=ReputError)


@dataclass(frozen=True, slots=True)
class Problem(Fact):
    """One thing that a start stumbles over; docs/findings.md lists the kinds."""

    expected: str  # what should have been there
    found: str  # what was there
    outcome: str  # what the broker does about it
    next_step: str  # what the operator can do
    stops: bool = False  # the broker doesn't start
    hides: bool = False  # it loads nothing of the directory from here on

    @property
    def unloads(self) -> bool:
        """Whether files of the directory aren't loaded."""
        return self.stops or self.hides

    @property
    def said(self) -> str:
        """What was expected and found, and what comes of it."""
        return f"expected {self.expected}, found {self.found}; {self.outcome}"

    def to_dict(self) -> dict[str, object]:
        """As :meth:`Fact.to_dict`, and whether it stops the start."""
        return {**Fact.to_dict(self), "next_steps": [self.next_step], "stops": self.stops}

    def error(self, kind: type[_E], text: str) -> _E:
        """The problem as what ends a run: ``text`` says in one sentence what can't be done."""
        return kind(text, path=self.path, expected=self.expected, found=self.found, next_step=self.next_step)


class StartFailsError(Exception):
    """The broker fails here, and doesn't start."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem
