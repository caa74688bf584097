"""Rebuilds for tests: of golden stores, by a command in this process or in one of its own."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from reput.cli import app as cli
from reput.cli import jvm
from reput.format import names
from reput.format.commitlog import BLANK_LENGTH, MAGIC_V1, MAGIC_V2
from reput.store.compare import compare
from tests.golden.store import GoldenStore, unpack
from tests.schemas import hold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIB = Path(cli.__file__).parents[2]

_LOCKED = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


class Command:
    """``reput`` in this process; a session is taken, not started.

    Attributes:
        sessions: how often a command asked for one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spark: Callable[[], SparkSession]) -> None:
        self.sessions = 0

        def start(*_: object, **__: object) -> SparkSession:
            self.sessions += 1
            return spark()

        for module in (cli, jvm):
            monkeypatch.setattr(module, "start_spark", start)

    def __call__(self, *arguments: str | Path) -> Outcome:
        result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        hold(arguments, result.stdout)
        return Outcome(result.exit_code, result.stdout, result.stderr)


def golden(name: str, directory: Path, **changes: object) -> GoldenStore:
    """A golden store at ``directory/store``, its broker.conf beside it, with other values if asked for."""
    store = unpack(name, directory / "store")
    conf = store.write_broker_conf(broker_conf(store))
    with conf.open("a", encoding="utf-8") as file:
        file.writelines(f"{key}={value}\n" for key, value in changes.items())
    return store


def give_settings(store: GoldenStore) -> None:
    """Have a golden store hold the files of settings that each broker has written that took a message."""
    config = store.root / names.CONFIG
    config.mkdir()
    (config / "topics.json").write_text('{"topicConfigTable":{}}')
    (config / "consumerOffset.json").write_text('{"offsetTable":{}}')
    version = {"counter": 0, "stateVersion": 0, "timestamp": 0}
    (config / "delayOffset.json").write_text(json.dumps({"dataVersion": version, "offsetTable": {}}))


def broker_conf(store: GoldenStore) -> Path:
    return store.root.parent / "broker.conf"


def words(store: GoldenStore, *more: str | Path) -> list[str | Path]:
    """The words of a rebuild command for a golden store."""
    conf = broker_conf(store)
    return ["rebuild", store.root, "--broker-conf", conf, "--rocketmq-version", store.version, *more]


def start(*arguments: str | Path, before: Sequence[str] = (), **more: object) -> subprocess.Popen[str]:
    """``reput`` in a process of its own, at the head of a session; ``before``: what runs the command."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "reput.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **{"env": environment(), **more},  # type: ignore[call-overload]
    )


def run(*arguments: str | Path, **more: Any) -> Outcome:
    """``reput`` in a process of its own, to its end."""
    process = start(*arguments, **more)
    try:
        stdout, stderr = process.communicate(timeout=600)
    finally:
        process.kill()
    hold(arguments, stdout)
    return Outcome(process.returncode, stdout, stderr)


_LIBC = ctypes.CDLL(None)
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


def without_root_powers() -> None:
    """Let permissions count for root, too, in the program that this process is about to become."""
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to others, who have no such power


def environment(**changes: str | None) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(LIB), **changes}
    return {name: value for name, value in env.items() if value is not None}


def tree(root: Path, *leave_out: str) -> dict[str, str]:
    """SHA-256 of every file below ``root``, and "" for every directory, by relative path."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] not in leave_out:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


def assert_same(expected: Path, actual: Path) -> None:
    """Consume queues and index files are the same, byte for byte."""
    found = compare(expected, actual)
    assert found.differences == ()
    assert found.empty_directories == ()
    assert found.queue_files


@contextmanager
def broker_lock(store: Path) -> Iterator[int]:
    """Another process that holds the lock of a running broker; its id."""
    lock = store / names.LOCK
    lock.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", _LOCKED, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield holder.pid
    finally:
        holder.communicate()


def record_starts(store: Path, base: int) -> list[int]:
    """Physical offsets of the records in a sound segment."""
    data = (store / names.COMMIT_LOG / names.offset_name(base)).read_bytes()
    found, at = [], 0
    while at + BLANK_LENGTH <= len(data):
        size, magic = struct.unpack_from(">iI", data, at)
        if magic not in (MAGIC_V1, MAGIC_V2):
            break
        found.append(base + at)
        at += size
    return found


def overwrite(store: Path, segment_size: int, offset: int, data: bytes) -> None:
    """Change bytes of the commit log at a physical offset."""
    base = offset - offset % segment_size
    with (store / names.COMMIT_LOG / names.offset_name(base)).open("r+b") as file:
        file.seek(offset - base)
        file.write(data)
