"""``reput status`` and ``reput stop`` as processes, beside a writer that is another one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reput.format import names
from tests.golden.store import GoldenStore
from tests.local import open_store, rebuild_locally
from tests.rebuilds import environment, golden, run

#: Holds an output's lock, and ends as a tail does: when it is asked to.
_WRITER = """
import sys, time
from pathlib import Path
from reput.store.lock import OutputLock
from reput.watch.stop import is_requested
out = Path(sys.argv[1])
with OutputLock(out):
    print("holds", flush=True)
    while not is_requested(out):
        time.sleep(0.01)
"""


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-no-keys", tmp_path)


@pytest.fixture
def out(store: GoldenStore, tmp_path: Path) -> Path:
    rebuild_locally(open_store(store.root, version="5.3.3"), tmp_path / "out", ledger=True)
    return tmp_path / "out"


@contextmanager
def writer(out: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, out], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield process.pid
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


def test_status_and_stop(store: GoldenStore, out: Path) -> None:
    with writer(out) as pid:
        running = run("status", out)
        assert (running.code, running.stderr) == (0, "")
        first, *lines = running.stdout.splitlines()
        assert first.startswith(f"{out} is being written by process {pid} on ")
        assert [line.split()[0] for line in lines] == [
            "store", "offset", "lag", "done", "queues", "index", "ledger", "disk", "findings",
        ]  # fmt: skip
        assert lines[0] == f"  store      {store.root}"
        stopped = run("stop", out, "--timeout", "10", "--json")
    assert (stopped.code, stopped.stderr) == (0, "")
    told = json.loads(stopped.stdout)
    assert told["exit_code"] == 0
    assert told["stopped_holder"].startswith(f"process {pid} on ")
    assert (told["stopped"], told["clean"], told["state"]) == (True, True, "stopped")
    assert told["lag_bytes"] == told["lag_ms"] == 0
    assert told["offset"] == told["log_end"] > 0

    again = run("stop", out)
    assert (again.code, again.stderr) == (0, "")
    assert again.stdout.startswith(f"Nobody writes to {out}\n  offset     {told['offset']}, its last message")
    assert not (out / names.REPUT / names.STOP).exists()
    assert (
        json.loads(run("status", out, "--json").stdout).items() >= {"state": "stopped", "pid": None}.items()
    )


def test_a_dead_run_and_findings(out: Path) -> None:
    (out / names.REPUT / names.SCRATCH).mkdir()
    status = run("status", out)
    assert status.code == 1
    assert "the last run died; the next start rolls back" in status.stdout
    stopped = run("stop", out)
    assert stopped.code == 0
    assert "broke off" in stopped.stdout


def test_refusals(store: GoldenStore, out: Path) -> None:
    for command in ("status", "stop"):
        for path in (store.root, out / "gone"):
            refused = run(command, path, "--json")
            assert refused.code == 2
            assert json.loads(refused.stdout)["error"] == "there is no output of reput here"
            assert refused.stderr.startswith(
                f"reput: {path}: there is no output of reput here; expected .reput/"
            )
    with writer(out):
        late = run("stop", out, "--timeout", "0")
        assert late.code == 2
        assert "has not ended within 0 s; found process" in late.stderr
        run("stop", out)
