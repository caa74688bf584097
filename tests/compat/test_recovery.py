"""What reput says of a broker's start, against what the real store does, damage by damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.broker.predict import predict
from reput.broker.snapshot import take
from tests.compat.damage import ODD_FILES, Damage, unit_of_a_cut
from tests.compat.jars import VERSIONS
from tests.compat.starts import Bench, Case, batched, cases, differences, expected

pytestmark = pytest.mark.compat


def _whole() -> list[tuple[str, Damage, str | None]]:
    # The matrix asks what became of messages, and this one takes none of those that are there.
    left = [(f"unit_of_a_cut-{crash or 'stopped'}", unit_of_a_cut, crash) for crash in (None, "killed")]
    return [*cases(), *left]


def _odd() -> list[tuple[str, Damage, str | None]]:
    stops = (None, "killed")
    return [(f"{one.__name__}-{stop or 'stopped'}", one, stop) for one in ODD_FILES for stop in stops]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("damages", [_whole, _odd])
def test_a_start_is_predicted(version: str, damages: Callable[[], list[Any]], tmp_path: Path) -> None:
    bench = Bench(version, tmp_path)
    tried: list[Case] = []
    try:
        for name, damage, crash in damages():
            copy = bench.copy(name, crash=crash)
            damage(copy)
            before = _tree(copy.root)
            tried.append(Case(name, copy.root, expected(predict(take(bench.settings(copy.root))))))
            assert _tree(copy.root) == before, "a prediction writes nothing"
        wrong = {}
        for some in batched(tried):
            bench.open_all(some)
        for case in tried:
            found = differences(case.predicted, case.seen)
            if case.name.startswith("second_queue_file"):  # its units are there twice
                found = [one for one in found if not one.startswith("units of")]
            if found:
                wrong[case.name] = [*found, case.error[:2000]]
        assert not wrong, _text(wrong, len(tried))
    finally:
        bench.close()


def _tree(root: Path) -> dict[str, tuple[int, int]]:
    facts = {path: path.lstat() for path in root.rglob("*")}
    return {str(path): (fact.st_size, fact.st_mtime_ns) for path, fact in facts.items()}


def _text(wrong: dict[str, list[str]], tried: int) -> str:
    lines = [f"{len(wrong)} of {tried} differ"]
    for name, found in wrong.items():
        lines += [name, *(f"    {line}" for line in found)]
    return "\n".join(lines)
