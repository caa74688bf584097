"""What each level of the tests leaves out, and what a release is proven by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests import proof

ROOT = Path(__file__).parents[2]
DONE = proof.Outcome(0, "12 passed in 3 s", 0.1, "2026-11-28", "abcd1234", [], [])
_TABLE = proof.PAGE, proof.BEGIN, proof.END


def test_every_proof_is_a_target() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [one.words[0] for one in proof.PROOFS if f"\n{one.words[0]}: " not in targets] == []


def test_the_page_says_what_is_run() -> None:
    """Its rows are by hand until the next run writes them."""
    told = {line.split("|")[1].strip(): line for line in proof.between(*_TABLE).splitlines() if "|" in line}
    for row in proof.rows({one.name: DONE for one in proof.PROOFS}):
        name, shows, command = (cell.strip() for cell in row.split("|")[1:4])
        assert [cell.strip() for cell in told[name].split("|")[2:4]] == [shows, command]


def test_a_row_that_was_not_run_keeps_what_it_said() -> None:
    before = proof.between(*_TABLE).splitlines()
    failed, in_part = replace(DONE, exit_code=2), replace(DONE, lacks=["glusterd"])
    rows = list(proof.rows({"fuzz": DONE, "hosts": in_part, "site": failed}))
    assert [row.split("|")[1].strip() for row in rows] == [one.name for one in proof.PROOFS]
    changed = [row for row in rows if row not in before]
    said = [row.split("|")[4].strip() for row in changed]
    assert said == [
        f"**in part, for want of glusterd**: {DONE.said}",
        DONE.said,
        f"**failed**: {DONE.said}",
    ]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run; site has passed at this commit, hosts without glusterd."""
    found: list[str] = []

    def show(one: proof.Proof, at: str) -> proof.Outcome:
        found.append(one.name)
        return replace(DONE, commit=at, lacks=proof.missing(one))

    monkeypatch.setattr(proof, "_PLACE", tmp_path)
    monkeypatch.setattr(proof, "show", show)
    monkeypatch.setattr(proof, "commit", lambda: "abcd1234")
    for name, lacks in (("site", []), ("hosts", ["glusterd"])):
        (tmp_path / "abcd1234").mkdir(exist_ok=True)
        outcome = asdict(replace(DONE, lacks=lacks))
        (tmp_path / "abcd1234" / f"{name}.json").write_text(json.dumps(outcome))
    return found


def test_what_passed_at_this_commit_is_not_run_again(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proof, "missing", lambda one: ["glusterd"] if one.name == "hosts" else [])
    assert proof.main(["hosts", "site", "lint"]) == 1
    assert runs == ["lint"]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "hosts: part of it can't be run here, for want of glusterd"
    assert said[-1] == "2 of 3 passed at abcd1234; hosts in part, for want of glusterd"


def test_what_could_be_run_in_part_is_run_once_all_is_there(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "missing", lambda _: [])
    assert proof.main(["hosts", "site"]) == 0
    assert runs == ["hosts"]


def test_a_tree_with_changes_proves_nothing_for_later(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proof, "missing", lambda _: [])
    monkeypatch.setattr(proof, "commit", lambda: "abcd1234+")
    (tmp_path / "abcd1234").rename(tmp_path / "abcd1234+")
    assert proof.main(["site"]) == 0
    assert runs == ["site"]


def test_an_unknown_level_is_refused() -> None:
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(Path(__file__))]
    done = subprocess.run(
        asked, cwd=ROOT, env={**os.environ, "REPUT_TESTS": "all"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "REPUT_TESTS is all; give one of quick, gate, proof" in done.stdout + done.stderr
