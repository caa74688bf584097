"""The history of a fleet: a row per store and run, whatever kills the run, and proofs that belong to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from reput.errors import OutputError, ReputError, SettingsError, StoreInUseError
from reput.job import history as histories
from reput.job.history import History, Row
from reput.job.many import Place
from reput.newer_python import UTC
from reput.verify.proofs import Proofs
from tests.levels import PROOF
from tests.memory import scratch
from tests.rebuilds import environment

PLACES = [Place(Path(f"/fleet/it's {name}/store")) for name in "abc"]

#: For each directory that it is told, a child that does a run over three stores, and says at each step where
#: it is. What they need is imported once: the table's package starts no thread before it is used.
RUNS = """
import os, sys
from pathlib import Path
import deltalake, pyarrow
from reput.job import history as histories
from reput.job.history import History
from reput.verify.proofs import Proofs
from tests.unit.job.test_history import PLACES, row

def said(owner, name):
    real = getattr(owner, name)
    def told(*words, **more):
        print(name, flush=True)
        sys.stdin.readline()
        found = real(*words, **more)
        print(name, flush=True)
        sys.stdin.readline()
        return found
    setattr(owner, name, told)

def run(directory):
    print(os.getpid(), flush=True)
    for name in ("write_atomically", "fsync_path", "remove_files"):
        said(histories.files, name)
    for name in ("_flush", "begin", "_sweep"):
        said(History, name)
    with History(Path(directory)) as history:
        history.begin()
        for place in PLACES:
            if history.done(place) is None:
                before = history.last(place)
                history.add(place, row(3), Proofs(verified=history.run), before and before["proofs"])
        history.end()

for line in iter(sys.stdin.readline, ""):
    if (child := os.fork()) == 0:
        run(line.rstrip("\\n"))
        os._exit(0)
    print("ended", os.waitpid(child, 0)[1], flush=True)
"""


def row(findings: int, code: int = 1) -> Row:
    return {
        "time": datetime.now(UTC),
        "verdict": "broken",
        "exit_code": code,
        "findings": findings,
        "log_end": 10,
        "finding_list": [{"kind": "missing-unit", "count": 2, "first_seen": "2026-11-24T00:00:00+00:00"}],
    }


def night(directory: Path) -> str:
    with History(directory) as history:
        history.begin()
        for place in PLACES:
            if history.done(place) is None:
                history.add(place, row(3), Proofs(verified=history.run), None)
        history.end()
        return history.run


def rows(directory: Path) -> list[Row]:
    with History(directory) as history:
        return history.rows(PLACES, 1000)


def test_rows_and_proofs_belong_together(tmp_path: Path) -> None:
    first = night(tmp_path / "h")
    second = night(tmp_path / "h")
    assert first != second
    found = rows(tmp_path / "h")
    assert sorted((one["run"], one["place"]) for one in found) == sorted(
        (run, str(place)) for run in (first, second) for place in PLACES
    )
    assert found[0]["finding_list"][0]["count"] == 2
    with History(tmp_path / "h") as history:
        history.begin()
        assert not history.is_continued
        for place in PLACES:
            assert history.done(place) is None
            last = history.last(place)
            assert last is not None
            assert last["run"] == second
            proofs = history.proofs(last)
            assert proofs is not None
            assert proofs.verified == second
        # A refused run says nothing of the log, and keeps what was proven.
        last = history.last(PLACES[0])
        assert last is not None
        history.add(PLACES[0], {**row(0, 2), "log_end": None}, None, last["proofs"])
        again = history.last(PLACES[0])
        assert again is not None
        assert again["run"] == second
        assert len(list((tmp_path / "h" / "proofs").iterdir())) == len(PLACES)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with scratch() as place:
        yield place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nights", "stride"),
    [(0, 5), (2, 1 if PROOF else 6)],
    ids=["the first run", "a later run"],
)
def test_killed_at_any_step(in_memory: Path, nights: int, stride: int) -> None:
    """Each kill is followed by the same command: a row per store and run, and no more, in the end."""
    step = continued = 0
    known = [night(in_memory / "before") for _ in range(nights)]
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=f"{environment()['PYTHONPATH']}:{Path(__file__).parents[3]}"),
    )
    with process:
        while True:
            directory = in_memory / f"h{step}"
            if nights:
                shutil.copytree(in_memory / "before", directory)
            ended = not _killed(process, directory, step)
            began = Counter(one["run"] for one in rows(directory))
            partly = [run for run, count in began.items() if count < len(PLACES)]
            continued += len(partly)
            run = night(directory)  # goes on with it, or is a new one
            assert partly in ([], [run])
            with History(directory) as history:
                found = history.rows(PLACES, 1000)
                assert {one["run"] for one in found} == {*known, *began, run}
                assert Counter((one["run"], one["place"]) for one in found) == Counter(
                    (one, str(place)) for one in {*known, *began, run} for place in PLACES
                )
                for one in found[-len(PLACES) :]:
                    assert history.proofs(one) is not None
            shutil.rmtree(directory)
            if ended:
                break
            step += stride
    assert process.returncode == 0
    assert step > 30
    assert continued > 3


def _killed(runs: subprocess.Popen[str], directory: Path, step: int) -> bool:
    """Whether a run over a directory was killed at a step; it has ended before, if it wasn't."""
    assert runs.stdin is not None
    assert runs.stdout is not None
    runs.stdin.write(f"{directory}\n")
    runs.stdin.flush()
    child = int(runs.stdout.readline())
    for number, line in enumerate(runs.stdout):
        if line.startswith("ended "):
            assert line.split() == ["ended", "0"]
            return False
        if number == step:
            os.kill(child, signal.SIGKILL)
            assert runs.stdout.readline().split() == ["ended", str(int(signal.SIGKILL))]
            return True
        runs.stdin.write("\n")
        runs.stdin.flush()
    raise AssertionError("the process that starts runs has ended")


def test_a_run_that_began_long_ago_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with History(tmp_path / "h") as history:
        history.begin()
        begun = history.run
        history.add(PLACES[0], row(1), None, None)
    with History(tmp_path / "h") as history:
        history.begin()
        assert (history.is_continued, history.run) == (True, begun)
        done = history.done(PLACES[0])
        assert done is not None
        assert done["findings"] == 1
    with History(tmp_path / "h") as history:
        history.begin("all")
        assert not history.is_continued
        assert history.done(PLACES[0]) is None
    monkeypatch.setattr(histories, "CONTINUED_SECONDS", 0)
    with History(tmp_path / "h") as history:
        history.begin()
        assert not history.is_continued
        assert history.done(PLACES[0]) is None


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        History(tmp_path / "h"),
        pytest.raises(StoreInUseError),
        History(tmp_path / "h"),
    ):
        pass


def test_other_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OutputError, match=r"holds something else; .* found notes\.txt"), History(tmp_path):
        pass


def test_a_run_that_is_not_of_ours_is_not_continued(tmp_path: Path) -> None:
    night(tmp_path / "h")
    (tmp_path / "h" / histories.RUN).write_text('{"run": "r", "began_ms": 1e400, "how": ""}')
    with History(tmp_path / "h") as history:
        history.begin()
        assert not history.is_continued


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_proofs_that_are_lost_are_an_error(tmp_path: Path, damage: str) -> None:
    night(tmp_path / "h")
    with History(tmp_path / "h") as history:
        last = history.last(PLACES[0])
        assert last is not None
        path = tmp_path / "h" / "proofs" / last["proofs"]
        if damage == "gone":
            path.unlink()
        else:
            os.truncate(path, 20)
        with pytest.raises(SettingsError, match="what was proven before can't be read"):
            history.proofs(last)


def test_a_table_that_lost_a_file_is_an_error(tmp_path: Path) -> None:
    night(tmp_path / "h")
    for path in (tmp_path / "h" / "runs").glob("*.parquet"):
        path.unlink()
    with History(tmp_path / "h") as history, pytest.raises(ReputError, match="the history can't be read"):
        history.last(PLACES[0])


def test_files_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "_MOST_FILES", 4)
    for _ in range(3):
        night(tmp_path / "h")
    found = rows(tmp_path / "h")
    assert len(found) == 9
    with History(tmp_path / "h") as history:
        assert len(history._delta.file_uris()) < 9  # type: ignore[union-attr]


def test_each_version_of_the_table_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge makes more than one, where it removes files that are old enough."""
    monkeypatch.setattr(histories, "_MOST_FILES", 2)
    vacuum = DeltaTable.vacuum
    at_once = {"retention_hours": 0, "enforce_retention_duration": False}
    monkeypatch.setattr(DeltaTable, "vacuum", lambda table, **how: vacuum(table, **{**how, **at_once}))
    flushed: set[str] = set()
    real = histories.files.fsync_path
    monkeypatch.setattr(histories.files, "fsync_path", lambda path: (flushed.add(path.name), real(path)))
    night(tmp_path / "h")
    made = {path.name for path in (tmp_path / "h" / "runs" / "_delta_log").iterdir()}
    assert len(made) > len(PLACES)
    assert made <= flushed


def test_a_row_from_the_future_is_followed_by_later_ones(tmp_path: Path) -> None:
    ahead = datetime.now(UTC) + timedelta(days=365)
    with History(tmp_path / "h") as history:
        history.begin()
        history.add(PLACES[0], {**row(1), "time": ahead}, Proofs(verified="the future"), None)
        history.end()
    for verified in ("the next night", "the night after that"):
        with History(tmp_path / "h") as history:
            history.begin()
            last = history.last(PLACES[0])
            assert last is not None
            added = history.add(PLACES[0], row(1), Proofs(verified=verified), last["proofs"])
            assert added["time"] > ahead
            history.end()
        with History(tmp_path / "h") as history:
            history.begin()
            left = history.proofs(history.last(PLACES[0]))
            assert left is not None
            assert left.verified == verified
            history.end()
