"""What nobody foresees, wherever it happens: one line, and never the exit code of findings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rebuilds import LIB, Outcome, environment, run


def broken(directory: Path, module: str, code: str, *words: str | Path, **changes: str) -> Outcome:
    """``reput`` where importing a module fails."""
    (directory / f"{module}.py").write_text(code)
    return run(*words, env=environment(PYTHONPATH=f"{directory}:{LIB}", **changes))


@pytest.mark.parametrize(
    ("module", "words"),
    [("rich", ["--version"]), ("numba", ["check", "/nowhere"]), ("numba", ["stats", "/nowhere"])],
    ids=["while the command line is loaded", "by check", "by stats"],
)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise KeyError('a bug')", "reput failed in a way that it doesn't foresee; found KeyError: 'a bug'"),
        ("raise EOFError('marshal data too short')", "found EOFError: marshal data too short"),
        (
            "raise OSError(24, 'Too many open files', '/x.so')",
            "/x.so: the system refused what the command needs",
        ),
        ("raise OSError(24, 'Too many open files', '/x.so')", "Raise the limit on open files (ulimit -n)"),
        ("raise MemoryError", "Give it more memory"),
        ("raise ImportError('x.so: failed to map segment from shared object')", "(ENOMEM)"),
        (
            "try:\n open('/nowhere/x')\nexcept OSError:\n raise OSError('no x.so')",
            "/nowhere/x: the system refused",
        ),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_loaded(tmp_path: Path, module: str, words: list[str], code: str, said: str) -> None:
    outcome = broken(tmp_path, module, code, *words)
    assert (outcome.code, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("reput: ")
    assert said in line


def test_no_words_are_left(tmp_path: Path) -> None:
    """What says them may fail for the same reason."""
    code = "import sys\ndel sys.modules['reput.cli.process'].visible\nraise MemoryError"
    outcome = broken(tmp_path, "rich", code, "check", "/nowhere", "--json")
    assert outcome.code == 2
    assert json.loads(outcome.stdout)["exit_code"] == 2
    assert outcome.stderr == "reput: it failed, and can't say why: it has too little memory, or a bug\n"


@pytest.mark.slow
def test_where_it_was_and_how_to_see_more(tmp_path: Path) -> None:
    outcome = broken(tmp_path, "numba", "raise KeyError('a bug')", "check", "/nowhere", "--json")
    assert outcome.code == 2
    told = json.loads(outcome.stdout)
    assert told["exit_code"] == 2
    assert told["error"] == "reput failed in a way that it doesn't foresee"
    assert f"({tmp_path / 'numba.py'} line 1, called by {LIB}/reput/" in told["found"]
    assert "REPUT_TRACEBACK=1" in told["next_steps"][0]
    more = broken(tmp_path, "numba", "raise KeyError('a bug')", "check", "/nowhere", REPUT_TRACEBACK="1")
    assert more.code == 2
    assert more.stderr.startswith("Traceback (most recent call last):\n")
    assert more.stderr.count("\nreput: ") == 1


def test_completion(tmp_path: Path) -> None:
    words = {"_REPUT_COMPLETE": "complete_bash", "COMP_WORDS": "reput lag --group ", "COMP_CWORD": "3"}
    program = "import sys; sys.argv[0] = 'reput'; from reput.cli import main; main()"
    (tmp_path / "rich.py").write_text("raise KeyError('a bug')")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(PYTHONPATH=f"{tmp_path}:{LIB}", **words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("name", ["catalog", "check", "mend", "rebuild", "tail"])
def test_a_job_where_python_has_no_reput(name: str) -> None:
    """As spark-submit's is where PYSPARK_PYTHON was forgotten."""
    words = [sys.executable, "-S", LIB.parent / "jobs" / f"{name}.py", "/nowhere"]
    done = subprocess.run(
        words, env=environment(PYTHONPATH=None), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reput: this Python can't load reput; expected one with reput, found ")
    assert done.stderr.endswith("Set PYSPARK_PYTHON (docs/cluster.md)\n")


def test_interrupted_before_it_is_loaded(tmp_path: Path) -> None:
    outcome = broken(tmp_path, "logging", "raise KeyboardInterrupt", "--version")
    assert (outcome.code, outcome.stderr) == (130, "")
