"""What each level of the tests leaves out, and what a release is proven by."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import proof

ROOT = Path(__file__).parents[2]
DONE = proof.Outcome("12 passed in 3 s", "0.1", "2026-11-28", "abcd1234")
IN_PART = replace(DONE, said="**in part, for want of glusterd**: 12 passed in 3 s")


def test_every_proof_is_a_target() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [one.words[0] for one in proof.PROOFS if f"\n{one.words[0]}: " not in targets] == []


def test_the_page_says_what_is_run(page: Path) -> None:
    """Its rows are by hand until the next run writes them."""
    before = [line.split("|")[1:4] for line in page.read_text().splitlines() if "| `make " in line]
    proof.write({one.name: DONE for one in proof.PROOFS})
    assert [line.split("|")[1:4] for line in page.read_text().splitlines() if "| `make " in line] == before
    assert proof.known() == {one.name: DONE for one in proof.PROOFS}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page."""
    copy = tmp_path / "proof.md"
    copy.write_text(proof.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(proof, "PAGE", copy)
    return copy


@pytest.fixture
def runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run; site has passed with this code, hosts without glusterd."""
    found: list[str] = []

    def show(one: proof.Proof, at: str) -> proof.Outcome:
        found.append(one.name)
        return replace(IN_PART if proof.missing(one) else DONE, code=at)

    monkeypatch.setattr(proof, "show", show)
    monkeypatch.setattr(proof, "code", lambda: "abcd1234")
    proof.write({"site": DONE, "hosts": IN_PART})
    return found


def test_what_passed_with_this_code_is_not_run_again(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proof, "missing", lambda one: ["glusterd"] if one.name == "hosts" else [])
    assert proof.main(["hosts", "site", "lint"]) == 1
    assert runs == ["lint", "hosts"]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "hosts: part of it can't be run here, for want of glusterd"
    assert said[-1] == "2 of 3 passed with the code of abcd1234; not hosts"
    known = proof.known()
    assert (known["lint"], known["hosts"], known["fuzz"].passed) == (DONE, IN_PART, False)


def test_what_could_be_run_in_part_is_run_once_all_is_there(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "missing", lambda _: [])
    assert proof.main(["hosts", "site"]) == 0
    assert runs == ["hosts"]


@pytest.mark.parametrize("code", ["abcd1234+", "ef567890"])
def test_other_code_proves_nothing(runs: list[str], monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(proof, "missing", lambda _: [])
    proof.write({"site": replace(DONE, code="abcd1234+")})
    monkeypatch.setattr(proof, "code", lambda: code)
    assert proof.main(["site"]) == 0
    assert runs == ["site"]


@pytest.mark.parametrize(("code", "said"), [(0, ""), (2, "**failed** (")])
def test_what_came_of_it_is_how_its_output_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    monkeypatch.setattr(proof, "ROOT", tmp_path)
    monkeypatch.setattr(proof, "_LOGS", tmp_path / "logs")
    monkeypatch.setenv("ARGS", "site")  # of the make that runs it
    (tmp_path / "Makefile").write_text(f"site:\n\t@echo 'one | two$(ARGS)'; exit {code}\n")
    found = proof.show(proof.Proof("site", ("site",), ""), "abcd1234")
    assert found.said.startswith(said)
    assert found.said.endswith("one / two")
    assert found.passed is (code == 0)


def test_an_unknown_level_is_refused() -> None:
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(Path(__file__))]
    done = subprocess.run(
        asked, cwd=ROOT, env={**os.environ, "REPUT_TESTS": "all"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "REPUT_TESTS is all; give one of quick, gate, proof" in done.stdout + done.stderr
