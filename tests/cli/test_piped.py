"""Where results go: into a pipe that is closed, to a full disk, to a terminal with or without colours."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from reput.cli import app as cli
from tests.golden.store import GoldenStore
from tests.rebuilds import broker_conf, environment, golden


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GoldenStore:
    store = golden("5.3.3-lost-head", tmp_path)
    # Nothing is left to be assumed, and so to be said.
    monkeypatch.setenv("REPUT_ROCKETMQ_VERSION", store.version)
    monkeypatch.setenv("REPUT_BROKER_CONF", str(broker_conf(store)))
    return store


@contextmanager
def stdout(monkeypatch: pytest.MonkeyPatch, fd: int) -> Iterator[None]:
    """This process's stdout is ``fd``, buffered as Python's own."""
    with (
        suppress(OSError),
        os.fdopen(fd, "w", encoding="utf-8") as file,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stdout", file)
        yield


def closed_pipe() -> int:
    """The end for writing of a pipe that nobody reads from."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def ended(monkeypatch: pytest.MonkeyPatch, fd: int, *words: str | Path) -> int | str | None:
    """The exit code of ``reput``, with its results to ``fd``."""
    with stdout(monkeypatch, fd), pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    return left.value.code


@pytest.mark.parametrize(("offset", "code"), [("134044", 0), ("134045", 1)])
@pytest.mark.parametrize("form", ["--bodies", "--json"])
def test_who_closes_the_pipe_has_seen_enough(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    store: GoldenStore,
    offset: str,
    code: int,
    form: str,
) -> None:
    words = ("query", store.root, "--broker-conf", broker_conf(store), "--offset", offset, form)
    assert ended(monkeypatch, closed_pipe(), *words) == code
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 0),
        ("dump -h", 0),
        ("dump commitlog --help", 0),
        ("--show-completion bash", 0),
        ("--version", 0),
    ],
)
def test_help_into_a_closed_pipe_ends_as_it_does_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, code: int
) -> None:
    with pytest.raises(SystemExit) as read:
        cli.main(words.split())
    assert (read.value.code, bool(capfd.readouterr().out)) == (code, True)
    assert ended(monkeypatch, closed_pipe(), *words.split()) == code
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("words", ["", "dump", "nosuch", "nosuch --help", "query", "dump commitlog --nosuch"])
def test_wrong_usage_is_no_finding_though_nobody_reads_of_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    with suppress(OSError), os.fdopen(closed_pipe(), "w") as nobody, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", nobody)
        assert ended(monkeypatch, closed_pipe(), *words.split()) == 2
    assert capfd.readouterr() == ("", "")


def test_a_result_that_cannot_be_written_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], store: GoldenStore
) -> None:
    for words in (
        ("query", store.root, "--broker-conf", broker_conf(store), "--offset", "134044"),
        ("--version",),
        ("--help",),
    ):
        assert ended(monkeypatch, os.open("/dev/full", os.O_WRONLY), *words) == 2
        said = capfd.readouterr()
        assert said.err == "reput: the result can't be written to stdout; found No space left on device\n"


@pytest.mark.slow
def test_a_process_leaves_nothing_to_be_flushed_at_its_end(store: GoldenStore) -> None:
    words = ["query", str(store.root), "--broker-conf", str(broker_conf(store)), "--offset", "134044"]
    with os.fdopen(closed_pipe(), "wb") as nobody:
        ended = subprocess.run(
            [sys.executable, "-m", "reput.cli", *words],
            stdout=nobody,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=180,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


def on_a_terminal(*words: str, **changes: str | None) -> str:
    """What ``reput`` writes to a terminal."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "reput.cli", *words]
    env = environment(TERM="xterm-256color", FORCE_COLOR=None, **changes)
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=env)
    os.close(its)
    shown = b""
    with suppress(OSError):  # EIO: the other end is closed
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


@pytest.mark.slow
def test_help_is_plain_on_a_terminal_too() -> None:
    assert "\x1b" not in on_a_terminal("lag", "--help", NO_COLOR=None)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_changes_nothing_of_how_a_command_ends(
    store: GoldenStore, closed: str
) -> None:
    command = f'"{sys.executable}" -m reput.cli query "{store.root}" --offset'
    for offset, code in (("134044", 0), ("134045", 1), ("none", 2)):
        done = subprocess.run(
            ["sh", "-c", f"{command} {offset} {closed}"], env=environment(), capture_output=True, check=False
        )
        assert done.returncode == code
        assert b"Traceback" not in done.stderr
        assert (done.stdout == b"") == (closed in (">&-", "<&- >&- 2>&-") or code == 2)
