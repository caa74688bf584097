"""One run over a fleet with its history: what it goes on from, and what it says."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reput.cli.app import app
from reput.cli.many import Night, _lines, _target, run_on
from reput.diagnosis.nightly import Again
from reput.errors import OutputError, SettingsError
from reput.job import many
from reput.job.history import History
from reput.job.many import Job, plan_checks, run_many
from reput.report import fleet
from reput.spark.command import Ended
from reput.verify.plan import VerifyOptions
from reput.verify.proofs import Proofs
from reput.words import SCHEMA_VERSION
from tests.unit.job.test_history import PLACES, night, row

JOBS = [Job(place, VerifyOptions(place.path)) for place in PLACES]


@pytest.mark.parametrize("damage", ["junk", "gone"])
def test_all_begins_anew_where_proofs_are_lost(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "h"
    night(directory)
    with History(directory) as history:
        last = history.last(PLACES[0])
        assert last is not None
        path = directory / "proofs" / last["proofs"]
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(b"junk")
        with pytest.raises(SettingsError, match="--all"):
            Night(history, JOBS).work(JOBS[0])
        assert Night(history, JOBS, everything=True).work(JOBS[0]) == Again(None, everything=True)


def test_proofs_of_another_format_prove_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "h"
    night(directory)
    for path in (directory / "proofs").iterdir():
        path.write_bytes(gzip.compress(json.dumps({"format": 99}).encode()))
    with History(directory) as history:
        assert Night(history, JOBS).work(JOBS[0]) == Again(Proofs())


def test_a_host_with_another_release_is_refused_alone(tmp_path: Path) -> None:
    """Its proofs can't be read here: that is this store's outcome, and the others' rows are written."""
    document = {"command": "check", "schema_version": SCHEMA_VERSION, "exit_code": 0}
    kept = gzip.compress(json.dumps({"format": 99}).encode())
    ended = Ended(0, json.dumps(document), (), kept)
    job = replace(JOBS[0], place=replace(PLACES[0], host="broker-a"))

    class Host:
        def run(self, _host: str, _command: object) -> Ended:
            return ended

    (outcome,) = run_many([job], lambda one: run_on("broker-a", Host(), one, Again()))  # type: ignore[arg-type]
    assert outcome.exit_code == 2
    assert "on host broker-a" in str(outcome.result)
    assert "found format 99. See that its host has this release of reput" in str(outcome.result)
    with History(tmp_path / "h") as history:
        run = Night(history, [job])
        run.take(outcome)
        assert run.rows[0]["verdict"] == "refused"


@pytest.mark.parametrize(
    "other",
    [
        {"index": False},
        {"broker_conf": Path("/fleet/broker.conf")},
        {"rocketmq_version": "5.3.3"},
    ],
)
def test_a_run_is_continued_by_the_same_one_alone(tmp_path: Path, other: dict[str, Any]) -> None:
    asked = [replace(job, options=replace(job.options, **other)) for job in JOBS]
    for jobs in (JOBS, asked):
        with History(tmp_path / "h") as history:
            first = Night(history, jobs)
            assert first.todo == jobs
            history.add(PLACES[0], row(1), Proofs(), None)
        with History(tmp_path / "h") as history:
            assert Night(history, jobs).todo == jobs[1:]


def no_space(path: Path, _page: bytes) -> None:
    raise OutputError("the report can't be written", path=path, found="No space left on device")


def test_a_run_whose_page_cannot_be_written_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "stores.toml"
    listed.write_text('[[store]]\nplace = "store"\n')
    (job,) = plan_checks(many.listed([str(listed)]), VerifyOptions(Path()))
    history, page = tmp_path / "h", tmp_path / "fleet.html"
    words = ["check", str(listed), "--history", str(history), "-o", str(page)]
    with History(history) as kept:
        Night(kept, [job])
        made = {**row(3), "finding_list": [], "seconds": 1.0, "messages": 1, "log_start": 0}
        kept.add(job.place, made, None, None)
    with monkeypatch.context() as full:
        full.setattr(fleet, "write_alone", no_space)
        failed = CliRunner().invoke(app, words)
    assert failed.exit_code == 2, failed.output
    assert (history / "run.json").exists()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output
    assert page.exists()
    assert not (history / "run.json").exists()
    assert "Checked 1 of 1 store" in done.output


def test_no_page_in_the_history(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="a page isn't written into the history"):
        _target(tmp_path / "h" / "fleet.html", JOBS, tmp_path / "h", force=True)
    assert _target(tmp_path / "fleet.html", JOBS, tmp_path / "h", force=True) == tmp_path / "fleet.html"


def test_a_run_that_goes_on_tells_of_all_stores(tmp_path: Path) -> None:
    rows = [
        {**row(0, 0), "messages": 1234, "seconds": 1.5},
        {**row(3), "messages": 5, "seconds": 2.0, "next_steps": ["reput mend it"]},
        {**row(0, 2), "summary": "/fleet: there is no store here. Mount it", "seconds": 0.1},
    ]
    with History(tmp_path / "h") as history:
        Night(history, JOBS)
        for place, one in zip(PLACES, rows, strict=True):
            history.add(place, one, None, None)
    with History(tmp_path / "h") as history:
        run = Night(history, JOBS)
        assert run.todo == JOBS[2:], "it may be there now"
        history.add(PLACES[2], rows[2], None, None)
        run._take_row(JOBS[2], {**rows[2], "finding_list": []}, {})
        head, *lines = _lines(run.outcomes([]), "Checked")
    assert head == "Checked 2 of 3 stores"
    text = "\n".join(lines)
    assert "     0     1,234" in text
    assert "next       reput mend it" in text
    assert "failed     /fleet: there is no store here. Mount it" in text
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert lines[2].split()[:3] == ["1", "5", "3"]
