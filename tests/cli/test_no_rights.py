"""What a command says that may not read or write what it needs: what to do, and nothing of damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reput.store import swap
from tests.cli.test_check_cli import options
from tests.golden.store import GoldenStore, unpack
from tests.levels import tried
from tests.rebuilds import golden, overwrite, record_starts, tree

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


@pytest.mark.parametrize(
    ("closed", "whole"),
    tried(
        ("consumequeue", True),
        ("", False),
        more=[("commitlog", False), ("consumequeue/Orders", False), ("consumequeue/Orders/3", False)],
    ),
)
@pytest.mark.slow
def test_what_may_not_be_moved_is_seen_before_anything_is(tmp_path: Path, closed: str, whole: bool) -> None:
    """A mending would put the log's copies in place, and stop at the queue."""
    store = golden("5.3.3-restart", tmp_path)
    queue = next((store.root / "consumequeue/Orders/3").iterdir())
    if whole:
        os.truncate(queue, 100)
    else:
        with queue.open("r+b") as file:
            file.write(bytes(6) + b"\1\1")
    overwrite(store.root, 65536, record_starts(store.root, 65536)[3] + 4, b"oops")
    before = tree(store.root, ".reput", "lock")
    if not closed:
        (store.root / ".reput").mkdir()
        (store.root / "lock").touch()

    def refused(*words: object) -> None:
        place, now = store.root / closed, tree(store.root, ".reput", "lock")
        mode = place.stat().st_mode
        place.chmod(mode & ~0o222)
        code, said = reput(*words)
        for found in (place, *store.root.glob(f"replaced-*/{closed}")):
            found.chmod(mode)
        assert code == 2, said
        assert f"{place}: can't write there" in said
        assert f"{place} belongs to" in said
        assert f"has mode {mode & ~0o222 & 0o7777:04o}: run as a user that may write there" in said
        assert tree(store.root, ".reput", "lock") == now
        assert not swap.is_pending(store.root)

    refused("mend", *options(store), "--apply")
    if whole:
        refused("rebuild", *options(store), "--in-place", "--dry-run")
    code, said = reput("mend", *options(store), "--apply")
    assert code == 0, said
    refused("undo", store.root)
    refused("undo", store.root, "--dry-run")
    code, said = reput("undo", store.root)
    assert (code, tree(store.root, ".reput", "lock", *(p.name for p in store.root.glob("replaced-*")))) == (
        0,
        before,
    )
