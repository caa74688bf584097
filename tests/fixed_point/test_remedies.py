"""Every remedy that a check names, followed to its end: none leads back to where it was named."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.diagnosis.verdict import COUNTS, Remedy
from tests.fixed_point.cases import Case, Original
from tests.fixed_point.damages import ALL
from tests.fixed_point.small import VERSIONS, small
from tests.fuzz.calm import calm
from tests.rebuilds import Command

_COMMAND = re.compile(r"`(?:\S*/)?reput ([^`]+)`")
_MOVED = re.compile(r"(\S+): Move it elsewhere\.?")
_DONE = ("start", "start-with-loss")
_MOST_STEPS = 4
#: What is found in stores with one damage each; a kind that is found no more has to be looked into.
_KINDS = frozenset[str]()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Original]]:
    with calm():
        yield small(tmp_path_factory)


@pytest.mark.slow
def test_no_remedy_leads_back(
    originals: dict[tuple[str, str], Original], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, kinds = Counter[str](), set[str]()
    for number, kind in enumerate(ALL):
        version = VERSIONS[number % len(VERSIONS)]
        case, original = Case(version, "tiny", ((kind, number),)), originals[version, "tiny"]
        root = tmp_path / "store"
        shutil.copytree(original.root, root, symlinks=True)
        if case.damage(root, original):
            walk = _Walk(case, root, original, Command(monkeypatch, _no_spark))
            ends[walk.run()] += 1
            kinds |= walk.kinds
        shutil.rmtree(root)
    assert ends.keys() == {"start", "start-with-loss", "by-hand"}
    print(sorted(kinds))
    assert kinds >= _KINDS, sorted(_KINDS - kinds)


def _no_spark() -> Any:
    raise AssertionError("Spark was to be started")


class _Walk:
    """One store, from its first check to its last."""

    def __init__(self, case: Case, root: Path, original: Original, reput: Command) -> None:
        self.kinds: set[str] = set()
        self._case = case
        self._root = root
        self._asked = (root, "--broker-conf", original.conf, "--rocketmq-version", original.version)
        self._reput = reput

    def run(self) -> str:
        """The verdict that it ends with, or ``by-hand``."""
        before: list[str] = []
        for _ in range(_MOST_STEPS + 1):
            found = self._json("check", *self._asked)
            self.kinds |= {one["kind"] for one in found["findings"]}
            if found["verdict"] in _DONE:
                return str(found["verdict"])
            steps = found["next_steps"]
            assert steps, f"{self._case}: {found['summary']}: and what now?"
            assert steps != before, f"{self._case}: the same advice again: {steps}"
            before = steps
            if not sum(self._follow(step) for step in steps):
                left = [one for one in found["findings"] if one["effect"] in COUNTS]
                assert any(one["remedy"] == Remedy.BY_HAND for one in left), f"{self._case}: {steps}"
                return "by-hand"
        raise AssertionError(f"{self._case}: no end after {_MOST_STEPS} steps: {before}")

    def _follow(self, step: str) -> bool:
        """Do what a step says; False where only an operator can."""
        if (moved := _MOVED.fullmatch(step)) is not None:
            path = Path(moved[1])
            path.rename(self._root.parent / f"moved-{path.name}-{len(list(self._root.parent.iterdir()))}")
            return True
        for command in _COMMAND.findall(step):
            words = shlex.split(command)
            if "REPLICA" in words:
                continue  # there is none
            assert words[0] == "mend", f"{self._case}: {step}"
            answer = self._json(*words, "--apply")
            named = [one for said in answer["next_steps"] for one in _COMMAND.findall(said)]
            assert command not in named, (
                f"{self._case}: {command} answers with itself: {answer['next_steps']}"
            )
            return True
        return False

    def _json(self, *words: str | Path) -> dict[str, Any]:
        done = self._reput(*words, "--json")
        assert done.code != 2, f"{self._case}: {words[0]}: {done.stdout} {done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found
