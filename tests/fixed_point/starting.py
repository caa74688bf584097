"""The real store on what was mended: it makes of it what was foretold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reput.broker.predict import predict
from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from tests.compat import starts
from tests.compat.starts import Bench, differences, expected
from tests.fixed_point.cases import Case


@dataclass(frozen=True, slots=True)
class Started:
    """A result that the real store was started on.

    Attributes:
        case: what it was.
        wrong: what isn't as it was foretold, in words.
    """

    case: Case
    wrong: list[str]


def start(kept: Iterable[tuple[Case, Path, Path]], place: Path) -> list[Started]:
    """Start the release's own store on each: a case, what came of it, and its broker.conf."""
    by_version: dict[str, list[tuple[Case, starts.Case]]] = {}
    for case, root, conf in kept:
        prediction = predict(take(StoreSettings.load(root, conf, case.version)))
        tried = starts.Case(str(case), root, expected(prediction))
        by_version.setdefault(case.version, []).append((case, tried))
    result = []
    for version, some in by_version.items():
        (place / f"bench-{version}").mkdir()
        bench = Bench(version, place / f"bench-{version}", filled=lambda _store: None)
        try:
            starts.started(bench, [one for _, one in some])
            for case, one in some:
                wrong = differences(one.predicted, one.seen)
                result.append(Started(case, [*wrong, one.error[:500]] if wrong else []))
        finally:
            bench.close()
    return result
