"""What a check says."""

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
    """One thing that was looked at.

    Attributes:
        name: what; stable, for programs.
        status: how it is.
        found: what is there.
        next_step: how to mend it; None when it is well.
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
    """All is well."""
    return Check(name, Status.OK, found)


def warning(name: str, found: str, next_step: str) -> Check:
    """It works, but not for everything, or not for ever."""
    return Check(name, Status.WARNING, found, next_step)


def wrong(name: str, found: str, next_step: str) -> Check:
    """It doesn't work."""
    return Check(name, Status.WRONG, found, next_step)
