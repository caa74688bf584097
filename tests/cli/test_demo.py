"""``reput demo``: it leaves what it names, and says what to do next."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "lib"


def demo(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reput.cli", *words],
        env={**os.environ, "PYTHONPATH": str(LIB), "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.spark
def test_what_it_names_is_there_afterwards(tmp_path: Path) -> None:
    done = demo(tmp_path, "demo")
    assert done.returncode == 0, done.stderr
    (place,) = tmp_path.glob("reput-demo-*")
    lines = done.stdout.splitlines()
    assert "  0 bytes differ" in lines
    assert lines[-1] == f"Remove it all: rm -r {place}"
    assert f"unpacking a store that RocketMQ 5.5.0 wrote into {place}" in done.stderr
    following = shlex.split(lines[-2].removeprefix("Try next: reput "))
    following[-1] = str(tmp_path / following[-1])
    assert demo(tmp_path, *following).returncode == 0
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_a_directory_that_exists_is_refused(tmp_path: Path) -> None:
    done = demo(tmp_path, "demo", "--dir", str(tmp_path), "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "the directory exists"
    assert list(tmp_path.iterdir()) == []
