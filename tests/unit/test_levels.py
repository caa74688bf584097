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
DONE = proof.Outcome(0, "12 passed in 3 s", 0.1, "2026-11-28", "abcd1234", [])


def test_every_proof_is_a_target() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [one.words[0] for one in proof.PROOFS if f"\n{one.words[0]}: " not in targets] == []


def test_a_row_that_was_not_run_keeps_what_it_said() -> None:
    before = proof.between(proof.PAGE, proof.BEGIN, proof.END).splitlines()
    rows = list(proof.rows({"fuzz": DONE, "site": replace(DONE, exit_code=2)}))
    assert [row.split("|")[1].strip() for row in rows] == [one.name for one in proof.PROOFS]
    changed = [row for row in rows if row not in before]
    assert [row.split("|")[4].strip() for row in changed] == [DONE.said, f"**failed**: {DONE.said}"]


def test_what_passed_at_this_commit_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[str] = []

    def show(one: proof.Proof, at: str) -> proof.Outcome:
        runs.append(one.name)
        return replace(DONE, exit_code=1, commit=at)

    monkeypatch.setattr(proof, "_PLACE", tmp_path)
    monkeypatch.setattr(proof, "show", show)
    monkeypatch.setattr(proof, "missing", lambda one: ["glusterd"] if one.name == "hosts" else [])
    (tmp_path / proof.commit()).mkdir()
    (tmp_path / proof.commit() / "site.json").write_text(json.dumps(asdict(DONE)))
    assert proof.main(["hosts", "site"]) == 1
    assert runs == ["hosts"]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "hosts: part of it can't be run here, for want of glusterd"
    assert said[-1].startswith("1 of 2 passed at ")


def test_an_unknown_level_is_refused() -> None:
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(Path(__file__))]
    done = subprocess.run(
        asked, cwd=ROOT, env={**os.environ, "REPUT_TESTS": "all"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "REPUT_TESTS is all; give one of quick, gate, proof" in done.stdout + done.stderr
