"""The real store on what was mended: it makes of it what was foretold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.compat import starts
from tests.compat.starts import Bench, batched, differences, expected
from tests.fixed_point.cases import Case
from tests.fixed_point.proof import Outcome


@dataclass(frozen=True, slots=True)
class Started:
    """A result that the real store was started on.

    Attributes:
        case: what it was.
        wrong: what isn't as it was foretold, in words.
    """

    case: Case
    wrong: list[str]


def start(kept: Iterable[tuple[Case, Outcome, Path]], place: Path) -> list[Started]:
    """Start the release's own store on each."""
    by_version: dict[str, list[tuple[Case, starts.Case]]] = {}
    for case, outcome, root in kept:
        if outcome.predicted is not None:
            tried = starts.Case(str(case), root, expected(outcome.predicted))
            by_version.setdefault(case.version, []).append((case, tried))
    result = []
    for version, some in by_version.items():
        (place / f"bench-{version}").mkdir()
        bench = Bench(version, place / f"bench-{version}", filled=lambda _store: None)
        try:
            for batch in batched([one for _, one in some]):
                bench.open_all(batch)
            for case, one in some:
                wrong = differences(one.predicted, one.seen)
                result.append(Started(case, [*wrong, one.error[:500]] if wrong else []))
        finally:
            bench.close()
    return result
