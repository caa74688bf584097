"""What a command says that may not read or write what it needs: what to do, and nothing of damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.store import GoldenStore, unpack

ME = "Run the same command as root, or as the user that the broker runs as"
#: Root reads whatever it likes, unless it has let go of that.
RIGHTS = ("dac_override", "dac_read_search")
LESS = [] if os.geteuid() else [
    "setpriv",
    *(f"--{which}=" + ",".join(f"-{one}" for one in RIGHTS) for which in ("bounding-set", "inh-caps")),
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack("5.5.0-mixed", tmp_path)


def reput(*words: object) -> tuple[int, str]:
    command = [*LESS, sys.executable, "-m", "reput.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    ["commitlog/*", "config/topics.json", "config/consumerOffset.json", "config", "checkpoint", "index/*"],
)
def test_what_may_not_be_read_is_not_called_broken(store: GoldenStore, name: str) -> None:
    config = store.root / "config"
    config.mkdir(exist_ok=True)
    for file in ("topics.json", "consumerOffset.json"):
        if not (config / file).exists():
            (config / file).write_text("{}")
    place = sorted(store.root.glob(name))[0]
    mode = place.stat().st_mode
    place.chmod(0)
    code, said = reput("check", store.root, "--rocketmq-version", store.version)
    place.chmod(mode)
    assert code in (2, 5), said
    assert ME in said
    assert "Permission denied" in said
    assert "move it" not in said


def test_a_dry_run_refuses_what_cannot_be_written(store: GoldenStore, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o555)
    words = "rebuild", store.root, "--out", tmp_path / "closed" / "out", "--rocketmq-version", store.version
    code, said = reput(*words, "--dry-run")
    assert (code, "may write there" in said, list((tmp_path / "closed").iterdir())) == (2, True, []), said
    assert str(tmp_path / "closed" / "out") in said
