"""``reput rebuild`` as a process: what it prints, and what it leaves when it is stopped."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from reput.format import names
from reput.output.journal import read
from reput.store import swap
from tests.rebuilds import (
    LIB,
    Command,
    assert_same,
    broker_conf,
    environment,
    golden,
    run,
    start,
    tree,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.spark


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Command:
    return Command(monkeypatch, lambda: request.getfixturevalue("spark"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def journal_of(root: Path) -> Path:
    return root / names.REPUT / "journal"


def committed(root: Path) -> int:
    """Batches in an output's journal."""
    return len(read(journal_of(root))[1]) if journal_of(root).exists() else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill_all(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a process and everything that it started, at once."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for member in family:
            with suppress(psutil.NoSuchProcess):  # it has ended by itself
                member.send_signal(number)
    process.communicate()
    psutil.wait_procs(family, timeout=60)


def test_what_is_printed(tmp_path: Path, out: Path) -> None:
    """One JSON document on stdout; on stderr what reput says, and nothing of Spark and its JVM."""
    store = golden("5.3.3-mixed", tmp_path)
    outcome = run(*words(store, "--out", out, "--json"))
    assert outcome.code == 0
    summary = json.loads(outcome.stdout)
    assert summary["exit_code"] == 0
    assert summary["findings"] == []
    assert summary["output"] == str(out)
    assert all(line.startswith("reput: ") for line in outcome.stderr.splitlines()), outcome.stderr
    assert "reput: starting Spark\n" in outcome.stderr
    assert_same(store.root, out)

    again = run(*words(store, "--out", out), env=environment(PATH="/usr/bin:/bin"))
    assert again.code == 0
    assert again.stderr == ""
    lines = again.stdout.splitlines()
    assert lines[0] == f"Nothing to do: {out} has all of {store.root} as RocketMQ 5.3 writes it"
    assert lines[1] == "  log        0 to 495028: 847 messages, 474.2 KiB"
    assert lines[-1] == "  findings   none: every byte of the log was understood"


def test_killed_in_the_middle(tmp_path: Path, out: Path, reput: Command) -> None:
    """Twice, wherever it happens to be; the next run goes on and ends with the same bytes."""
    store = golden("5.3.3-mixed", tmp_path)
    command = words(store, "--out", out)
    slow = [*command, "--max-bytes-per-trigger", "8k"]
    for number in range(2):
        before = committed(out)
        process = start(*slow, env=environment(SPARK_LOCAL_DIRS=str(tmp_path)))
        wait_for(lambda: committed(out) >= before + 3 + 5 * number, process)  # noqa: B023 - called here
        kill_all(process)
    _, batches = read(journal_of(out))
    assert len(batches) < 50, "killed before the end"
    assert reput(*command).code == 0
    assert read(journal_of(out))[1][: len(batches)] == batches, "what was committed stays"
    assert_same(store.root, out)


@pytest.mark.proof
def test_interrupted(tmp_path: Path, out: Path, reput: Command) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    command = words(store, "--out", out)
    slow = [*command, "--max-bytes-per-trigger", "8k"]
    process = start(*slow)
    wait_for(lambda: committed(out) >= 3, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stdout == ""
    said = [line for line in stderr.splitlines() if not re.match("reput: .* of .* messages", line)]
    assert said == [
        "reput: starting Spark",
        "reput: interrupted; the same command goes on from the last committed batch",
    ]
    assert reput(*command).code == 0
    assert_same(store.root, out)


def test_a_file_system_that_takes_no_more(tmp_path: Path, out: Path, reput: Command) -> None:
    """A limit on file sizes stands for a full disk: files of the second half can't be made."""
    store = golden("5.3.3-mixed", tmp_path, maxHashSlotNum=1_000_000)
    log = store.root / names.COMMIT_LOG
    later = [path for path in sorted(log.iterdir()) if int(path.name) >= 196_608]
    for path in later:
        path.rename(store.root.parent / path.name)
    command = words(store, "--out", out)
    assert reput(*command).code == 0
    before, state = tree(out, names.REPUT), read(journal_of(out))
    for path in later:
        (store.root.parent / path.name).rename(path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    outcome = run(*command, preexec_fn=limit)
    assert outcome.code == 2
    assert outcome.stdout == ""
    *_, last = outcome.stderr.splitlines()
    assert all(line.startswith("reput: ") for line in outcome.stderr.splitlines()), outcome.stderr
    for said in (f"{out}/index/", "(EFBIG)", "Raise the limit on file sizes (ulimit -f)", "the same command"):
        assert said in last
    assert read(journal_of(out)) == state
    after = tree(out, names.REPUT)
    assert after[names.CHECKPOINT] == before[names.CHECKPOINT]
    assert {name for name in before if name.startswith("ledger")} == {
        name for name in after if name.startswith("ledger")
    }

    assert reput(*command).code == 0
    whole = out.with_name("whole")
    assert reput(*words(store, "--out", whole)).code == 0
    assert_same(whole, out)


#: For each number on its stdin: a process of its own that dies before that step; the answer is how it ended.
_KILLED_IN_SWAP = """
import os, signal, sys
from reput.cli import main
from reput.output import audit, writer  # else each child loads them anew
from reput.output import log_changes
from reput.output import ledger
import reput.stream
from reput.store import files

left = 0

def dying(function):
    def step(*arguments):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*arguments)
    return step

files.rename, files.exchange = dying(files.rename), dying(files.exchange)
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        left = int(line)
        main(sys.argv[1:])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.proof
def test_killed_while_replacing(tmp_path: Path, reput: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each of the swap's steps; the next run finishes what was begun, without Spark."""
    store = golden("5.3.3-restart", tmp_path)
    command = words(store, "--in-place", "--json")
    good = tmp_path / "good"
    shutil.copytree(store.root, good)
    for path in (store.root / names.INDEX).iterdir():
        path.unlink()
    before = tree(store.root, names.REPUT, names.LOCK)
    with monkeypatch.context() as patched:
        patched.setattr("reput.job.rebuilding._swap", interrupt)
        assert reput(*command).code == 130
    staged = tmp_path / "staged"
    store.root.rename(staged)
    sessions = reput.sessions
    said = tmp_path / "said"
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", _KILLED_IN_SWAP, *map(str, command)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            bufsize=1,
        ) as dying,
    ):
        assert dying.stdin is not None
        assert dying.stdout is not None
        deaths = 0
        for step in range(40):
            shutil.copytree(staged, store.root, ignore=shutil.ignore_patterns(names.COMMIT_LOG))
            # The log is no copy: a run goes on only in the one that it began with.
            (staged / names.COMMIT_LOG).rename(store.root / names.COMMIT_LOG)
            dying.stdin.write(f"{step}\n")
            ended = int(dying.stdout.readline())
            if ended == 0:
                break
            assert ended == -signal.SIGKILL, said.read_text()
            deaths += 1
            finished = reput(*command)
            assert finished.code == 0, finished.stderr
            assert "starting Spark" not in finished.stderr
            assert reput.sessions == sessions
            assert_same(good, store.root)
            kept = tree(Path(json.loads(finished.stdout)["kept"]), swap.INTENT)
            assert kept.items() <= before.items()
            assert {names.CONSUME_QUEUE, names.INDEX, names.CHECKPOINT} <= kept.keys()
            (store.root / names.COMMIT_LOG).rename(staged / names.COMMIT_LOG)
            shutil.rmtree(store.root)
    assert deaths > 4, "every step was tried"


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_job_script_takes_the_same_words(tmp_path: Path, out: Path) -> None:
    job = LIB.parent / "jobs" / "rebuild.py"
    store = golden("5.3.3-no-keys", tmp_path)
    outcome = subprocess.run(
        [sys.executable, job, store.root, "--out", out, "--broker-conf", tmp_path / "no.conf"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 2
    assert "no.conf" in outcome.stderr


def test_help_has_examples_that_parse(reput: Command) -> None:
    outcome = run("rebuild", "--help", env=environment(COLUMNS="200"))
    assert outcome.code == 0
    examples = re.findall(r"reput (rebuild /\S+ .*\S)", outcome.stdout)
    assert len(examples) == 4
    for example in examples:
        told = reput(*shlex.split(example))
        assert told.code == 2
        assert "found nothing" in told.stdout + told.stderr


def test_broker_conf_is_named_in_refusals(tmp_path: Path, out: Path) -> None:
    store = golden("5.3.3-no-keys", tmp_path, maxIndexNum="many")
    outcome = run(*words(store, "--out", out))
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"reput: {broker_conf(store)}: line ")
