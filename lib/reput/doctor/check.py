"""The result of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check came out, the best first."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: of the check; stable, for programs.
        status: how it came out.
        found: what is there.
        next_step: how to fix it; None when it is ok.
    """

    name: str
    status: Status
    found: str
    next_step: str | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self)


def worst(checks: Iterable[Check]) -> Status:
    """The worst of some checks."""
    return max((check.status for check in checks), key=list(Status).index, default=Status.OK)


def ok(name: str, found: str) -> Check:
    """It works."""
    return Check(name, Status.OK, found)


def warning(name: str, found: str, next_step: str) -> Check:
    """It works, but not in all cases."""
    return Check(name, Status.WARNING, found, next_step)


def wrong(name: str, found: str, next_step: str) -> Check:
    """It doesn't work."""
    return Check(name, Status.WRONG, found, next_step)
