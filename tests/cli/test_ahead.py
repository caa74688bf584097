"""A command's JVM, which is started before the command is loaded, and what is left of it: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reput.caches import temporary
from reput.demo import VERSION, DemoStore, unpack
from reput.spark import ahead
from reput.store.compare import compare

LIB = Path(__file__).parents[2] / "lib"
_SECONDS = 180.0


@dataclass
class Command:
    """A command and all that it starts, which inherit a mark in their environment."""

    process: subprocess.Popen[str]
    mark: bytes

    def running(self) -> dict[str, dict[bytes, bytes]]:
        """The environments of all its processes that run, by what they execute and their number."""
        found = {}
        for place in Path("/proc").iterdir():
            try:
                words = (place / "environ").read_bytes().split(b"\0")
                if self.mark in words:
                    name = (place / "exe").readlink().name
                    found[f"{name} {place.name}"] = dict(
                        word.split(b"=", 1) for word in words if b"=" in word
                    )
            except OSError:
                continue
        return found

    def leaders(self) -> list[str]:
        """Those that lead a session, as the command does, and its JVM or the script that becomes it."""
        found = []
        for name in self.running():
            with suppress(ProcessLookupError):
                number = int(name.rpartition(" ")[2])
                found += [name] if os.getsid(number) == number else []
        return found

    def jvm_directory(self) -> Path:
        """Where its JVM has temporary files, once it, or the script that becomes it, runs."""
        return Path(
            os.fsdecode(
                until(
                    lambda: next(
                        (
                            one[b"REPUT_FORK_SERVER"].rpartition(b"/")[0]
                            for one in self.running().values()
                            if b"REPUT_FORK_SERVER" in one
                        ),
                        None,
                    )
                )
            )
        )


def until(found: Callable[[], Any]) -> Any:
    """What a function finds as soon as it finds something."""
    end = time.monotonic() + _SECONDS
    while not (value := found()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return value


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    commands: list[Command] = []

    def started(*words: str | Path) -> Command:
        mark = f"REPUT_TEST_MARK={uuid.uuid4()}"
        name, _, value = mark.partition("=")
        process = subprocess.Popen(
            [sys.executable, "-m", "reput.cli", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(LIB), name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        commands.append(Command(process, mark.encode()))
        return commands[-1]

    yield started
    for command in commands:
        command.process.kill()
        command.process.communicate()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DemoStore:
    return unpack(tmp_path_factory.mktemp("store"))


def rebuild(store: DemoStore, out: Path) -> list[str | Path]:
    words = ["rebuild", store.root, "--out", out, "--broker-conf", store.broker_conf]
    return [*words, "--rocketmq-version", VERSION]


@pytest.mark.spark
def test_nothing_outlives_its_command(
    start: Callable[..., Command], store: DemoStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    settings = f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\n"
    (tmp_path / "spark-defaults.conf").write_text(settings)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    command = start(*rebuild(store, tmp_path / "out"))
    directory = command.jvm_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    stdout, stderr = command.process.communicate(timeout=_SECONDS)
    assert command.running() == {}, "at once, not a moment later"
    assert not directory.exists()
    assert command.process.returncode == 0, stderr
    assert "Rebuilt" in stdout
    assert not [line for line in stderr.splitlines() if not line.startswith("reput: ")]
    assert not compare(store.root, tmp_path / "out").differences
    assert list(events.iterdir()), "the operator's own"
    assert not [path for path in events.rglob("*") if path.suffix == ".inprogress"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "code", "when"),
    [
        (signal.SIGINT, 130, "JVM"),
        (signal.SIGINT, 130, "workers"),
        (signal.SIGTERM, -15, "JVM"),
        (signal.SIGTERM, -15, "workers"),
        (signal.SIGHUP, -1, "workers"),
        (signal.SIGKILL, -9, "JVM"),
        (signal.SIGKILL, -9, "workers"),
    ],
)
def test_one_that_is_interrupted_or_killed_leaves_no_process(
    start: Callable[..., Command],
    store: DemoStore,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    when: str,
) -> None:
    # Whoever began these tests may ignore it.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        command = start(*rebuild(store, tmp_path / "out"))
    finally:
        signal.signal(signal.SIGHUP, before)
    directory = command.jvm_directory()
    if when == "workers":
        until(lambda: any(directory.glob(".*.sock")))
    command.process.send_signal(number)
    _, stderr = command.process.communicate(timeout=_SECONDS)
    # A shell says 130 of both: Python ends by the signal that came while it ran a string (CPython's exec).
    assert command.process.returncode in {code, -number}, stderr
    assert "Traceback" not in stderr
    if number == signal.SIGINT:
        assert command.leaders() == []
        # What the script of a starting JVM has begun is killed with it, but only the script is waited for.
        assert when == "JVM" or command.running() == {}
    until(lambda: not command.running())
    if number == signal.SIGKILL:
        assert directory.is_dir()
        os.utime(directory, (0, 0))
        with temporary("reput-jvm-", directory.parent):  # as the next command has it
            pass
    assert not directory.exists()


@pytest.mark.spark
def test_a_command_that_is_refused_ends_its_jvm(
    start: Callable[..., Command], store: DemoStore, tmp_path: Path
) -> None:
    command = start("rebuild", store.root, "--out", tmp_path / "out", "--rocketmq-version", "3.5")
    directory = command.jvm_directory()
    _, stderr = command.process.communicate(timeout=_SECONDS)
    assert command.leaders() == []
    assert not directory.exists()
    until(lambda: not command.running())
    assert command.process.returncode == 2
    assert "3.5" in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("demo", True),
        ("rebuild --out OUT STORE", True),
        ("rebuild NONE --out OUT", False),
        ("-q rebuild STORE --out OUT --master local[2]", True),
        ("tail STORE --out OUT --master=local[*]", True),
        ("rebuild STORE --in-place --dry-run", False),
        ("rebuild --help", False),
        ("rebuild STORE --out OUT --master spark://host:7077", False),
        ("rebuild STORE --out OUT --master=yarn", False),
        ("check STORE", False),
        ("--version", False),
        ("", False),
    ],
)
def test_only_a_command_with_a_local_session_begins_one(
    words: str, needed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "STORE" / "commitlog").mkdir(parents=True)
    assert ahead._needs_one(words.split()) is needed


def test_none_is_begun_where_spark_submit_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_ENV_LOADED"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "1")
            assert not ahead._needs_one(["demo"])


def test_none_is_begun_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not ahead._needs_one(["demo"])


@pytest.mark.parametrize("script", ["bin/reput", "../bin/reput", "{}/bin/reput", "bin/other"])
def test_a_script_is_a_command_however_it_is_named(script: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "sub").mkdir()
    for name in ("reput", "other"):
        (tmp_path / "bin" / name).write_text(
            "import reput.cli; from reput.spark import ahead; print(ahead.is_command)"
        )
    directory = tmp_path / "sub" if script.startswith("..") else tmp_path
    found = subprocess.check_output(
        [sys.executable, script.format(tmp_path)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(LIB)},
        text=True,
    )
    assert found == f"{script != 'bin/other'}\n"
