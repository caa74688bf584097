"""``reput tail --status`` and ``--stop`` as processes, beside a writer that is another one."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reput.format import names
from tests.golden.store import GoldenStore
from tests.local import open_store, rebuild_locally
from tests.rebuilds import LIB, Command, environment, golden, run, start, words

PAGE = LIB.parent / "docs" / "tail.md"

#: Holds an output's lock, and ends as a tail does: when it is asked to.
_WRITER = """
import sys, time
from pathlib import Path
from reput.store.lock import OutputLock
from reput.format import names
out = Path(sys.argv[1])
with OutputLock(out):
    print("holds", flush=True)
    while not (out / names.REPUT / names.STOP).exists():
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
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_status_and_stop(store: GoldenStore, out: Path) -> None:
    with writer(out) as pid:
        running = run("tail", "--status", out)
        assert (running.code, running.stderr) == (0, "")
        first, *lines = running.stdout.splitlines()
        assert first.startswith(f"{out} is being written by process {pid} on ")
        page = PAGE.read_text(encoding="utf-8")
        example = page.split("reput tail --status /data/derived\n")[1].split("```")[0]
        told = [line.split()[0] for line in example.splitlines()[1:]]
        told.remove("metrics")  # this writer has none
        assert [line.split()[0] for line in lines] == told
        assert lines[0] == f"  store      {store.root}"
        stopped = run("tail", "--stop", out, "--timeout", "60", "--json")
    assert (stopped.code, stopped.stderr) == (0, "")
    told = json.loads(stopped.stdout)
    assert told["exit_code"] == 0
    assert told["stopped_holder"].startswith(f"process {pid} on ")
    assert (told["stopped"], told["clean"], told["state"]) == (True, True, "stopped")
    assert told["lag_bytes"] == told["lag_ms"] == 0
    assert told["offset"] == told["log_end"] > 0

    again = run("tail", "--stop", out)
    assert (again.code, again.stderr) == (0, "")
    assert again.stdout.startswith(f"Nobody writes to {out}\n  offset     {told['offset']}, its last message")
    assert not (out / names.REPUT / names.STOP).exists()
    assert (
        json.loads(run("tail", "--status", out, "--json").stdout).items()
        >= {"state": "stopped", "pid": None}.items()
    )


def test_a_dead_run_and_findings(out: Path, reput: Command) -> None:
    (out / names.REPUT / names.SCRATCH).mkdir()
    status = reput("tail", "--status", out)
    assert status.code == 1
    assert "the last run died; the next start rolls back" in status.stdout
    stopped = reput("tail", "--stop", out)
    assert stopped.code == 1
    assert "broke off" in stopped.stdout


def test_refusals(store: GoldenStore, out: Path, reput: Command) -> None:
    for way in ("--status", "--stop"):
        for path in (store.root, out / "gone"):
            refused = reput("tail", way, path, "--json")
            assert refused.code == 2
            assert json.loads(refused.stdout)["error"] == "there is no output of reput here"
            assert refused.stderr.startswith(
                f"reput: {path}: there is no output of reput here; expected .reput/"
            )
    with writer(out):
        late = reput("tail", "--stop", out, "--timeout", "0")
        assert late.code == 2
        assert "has not ended within 0 s; found process" in late.stderr
        reput("tail", "--stop", out)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--status D --stop D", "--status follows nothing; expected --status DIR without --stop"),
        ("S --stop D --queue T", "--stop follows nothing; expected --stop DIR without STORE, --queue"),
        ("--status D --timeout 0", "--status follows nothing; expected --status DIR without --timeout"),
        ("S --out D --timeout 1", "--timeout is about --stop; expected --stop DIR with it"),
        ("", "what to follow, and where to, is not clear; expected STORE and --out DIR; or --status DIR, or"),
        ("S", "what to follow, and where to, is not clear; expected STORE and --out DIR"),
    ],
)
def test_what_does_not_go_together(reput: Command, more: str, said: str) -> None:
    refused = reput("tail", *more.split())
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"reput: {said}")
    assert refused.stderr.count("\n") == 1


def test_a_broker_conf_in_the_environment_is_the_followed_stores(
    out: Path, reput: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPUT_BROKER_CONF", "/nowhere/broker.conf")
    monkeypatch.setenv("REPUT_ROCKETMQ_VERSION", "5.3.3")
    said = reput("tail", "--status", out, "--json")
    assert (said.code, json.loads(said.stdout)["command"]) == (0, "tail --status")
    assert json.loads(reput("tail", "--stop", out, "--json").stdout)["command"] == "tail --stop"
    named = reput("tail", "--status", out, "--broker-conf", "/nowhere/broker.conf")
    assert "lag        unknown: /nowhere/broker.conf" in named.stdout


@pytest.mark.spark
def test_a_tail_from_its_start_to_its_end(store: GoldenStore, tmp_path: Path, reput: Command) -> None:
    """What a tail tells of itself in its four ways: status, metrics, stop, and its own summary."""
    out = tmp_path / "tailed"
    tail = start("tail", *words(store, "--out", out, "--metrics-port", "0", "--json")[1:])
    try:
        assert tail.stderr is not None
        said = next(line for line in tail.stderr if "metrics are at" in line)
        url = said.split()[-1]
        deadline = time.monotonic() + 120
        while True:
            assert tail.poll() is None, tail.communicate()
            status = json.loads(reput("tail", "--status", out, "--json").stdout)
            if status.get("lag_bytes") == 0 and status["messages"]:
                break
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
        assert (status["state"], status["pid"], status["metrics"]) == ("running", tail.pid, url)
        assert status["rocketmq_version"] == "5.3.4"
        trigger = 'reput_trigger_duration_seconds{step="triggerExecution"}'
        while True:
            with urllib.request.urlopen(url) as answer:
                text = answer.read().decode()
            metrics = dict(re.findall(r"^(reput_\S+) (\S+)$", text, re.MULTILINE))
            # A batch is committed, which status reads, before it is counted; Spark tells of it later still.
            if float(metrics["reput_messages_total"]) == status["messages"] and trigger in metrics:
                break
            assert time.monotonic() < deadline, metrics
            time.sleep(0.1)
        assert float(metrics["reput_offset"]) == status["offset"]
        assert float(metrics["reput_lag_bytes"]) == 0
        assert float(metrics[trigger]) > 0
        stopped = json.loads(run("tail", "--stop", out, "--json").stdout)
        assert (stopped["exit_code"], stopped["stopped"], stopped["clean"]) == (0, True, True)
        stdout, stderr = tail.communicate(timeout=120)
    finally:
        tail.kill()
    assert tail.returncode == 0, stderr
    summary = json.loads(stdout)
    assert (summary["end"], summary["messages"]) == (status["offset"], status["messages"])


@pytest.mark.slow
def test_a_port_in_use_is_refused_before_anything_begins(store: GoldenStore, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("tail", *words(store, "--out", tmp_path / "new", "--metrics-port", str(port))[1:])
    assert refused.code == 2
    assert f"127.0.0.1 port {port}: Address already in use" in refused.stderr
    assert not (tmp_path / "new").exists()
