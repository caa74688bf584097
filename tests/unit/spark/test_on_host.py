"""Tasks for one host: where they run, and what is done when they come to another, or no executor is there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reput.errors import ReputError, SparkError
from reput.spark import on_host
from reput.spark.command import Command
from reput.spark.on_host import Executor, HostMark, HostRunner, addresses

LIB = Path(__file__).parents[3] / "lib"
#: Of documentation (RFC 5737): nobody's.
OTHER = "192.0.2.1"


def own_address() -> str:
    """An address of this host by which others know it."""
    found = [
        str(one[4][0])
        for name in (socket.gethostname(),)
        for one in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_DGRAM)
    ]
    return next((one for one in found if not one.startswith("127.")), "")


def test_a_host_is_told_by_its_addresses() -> None:
    assert addresses("localhost") == addresses("127.0.0.1") == addresses("no such host") == frozenset()
    assert addresses(OTHER) == {OTHER}
    assert addresses("fd00:0::1") == {"fd00::1"}
    assert not HostMark(socket.gethostname().lower(), frozenset({OTHER})).is_here, "its name doesn't count"
    assert HostMark("x", frozenset({OTHER, "127.0.0.1"})).is_here
    own = own_address()
    assert not own or HostMark("x", frozenset({own})).is_here


def test_without_an_address_by_its_name() -> None:
    assert HostMark(socket.gethostname().lower(), frozenset()).is_here
    assert not HostMark("x", frozenset()).is_here


class Spark:
    """Executors, and tasks that run here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: Sequence[Executor]) -> None:
        self.looks = list(looks)
        self.placed: list[str] = []
        self.cancelled = 0
        self.here: Callable[[], bool] = lambda: True
        self.attempt = 0
        self.during: Callable[[], object] = lambda: None
        context = SimpleNamespace(addJobTag=lambda _: None, cancelJobsWithTag=self._cancel)
        self.runner = HostRunner(cast("Any", context))
        monkeypatch.setattr(HostRunner, "_look", lambda _: self._look())
        monkeypatch.setattr(HostRunner, "_placed", lambda _, host: self._place(host))
        monkeypatch.setattr(HostMark, "is_here", property(lambda _: self.here()))
        task = SimpleNamespace(attemptNumber=lambda: self.attempt)
        monkeypatch.setattr(on_host, "TaskContext", SimpleNamespace(get=lambda: task))
        monkeypatch.setattr(on_host, "_EXECUTOR_SECONDS", 0.2)
        monkeypatch.setattr(on_host, "_LOOK_SECONDS", 0.01)
        monkeypatch.setattr(on_host.time, "sleep", lambda _: None)

    def _look(self) -> list[Executor]:
        return list(self.looks.pop(0) if len(self.looks) > 1 else self.looks[0])

    def _place(self, host: str) -> Any:
        self.placed.append(host)

        def map_(task: Callable[[object], object]) -> Any:
            def collect() -> list[object]:
                self.during()
                return [task(None)]

            return SimpleNamespace(collect=collect)

        return SimpleNamespace(map=map_)

    def _cancel(self, _tag: str) -> None:
        self.cancelled += 1

    def run(self, host: str = "h") -> object:
        return self.runner.run(host, lambda cores: lambda: cores)


def test_with_the_cores_of_all_executors_there(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch, [Executor("H", 2), Executor("x", 16), Executor("H", 3)])
    assert spark.run() == 5
    assert spark.placed == ["H"]


def test_an_address_stands_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "addresses", lambda name: frozenset({OTHER} if name in ("h", OTHER) else ()))
    spark = Spark(monkeypatch, [Executor("x", 1), Executor("h", 4)])
    assert spark.run(OTHER) == 4
    assert spark.placed == ["h"]


def test_a_name_of_several_hosts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "addresses", lambda name: frozenset({"a", "b"} if name == "h" else {name}))
    spark = Spark(monkeypatch, [Executor("a", 1), Executor("b", 1)])
    with pytest.raises(SparkError, match="this name leads to several hosts"):
        spark.run()
    assert spark.placed == []


def test_an_executor_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch, [], [Executor("x", 1)], [Executor("h", 1)])
    monkeypatch.setattr(on_host, "_EXECUTOR_SECONDS", 60.0)
    assert spark.run() == 1


def test_no_executor_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch, [Executor("x", 1), Executor("a", 1)])
    with pytest.raises(SparkError, match="no executor is on this host") as refused:
        spark.run()
    assert (refused.value.host, refused.value.found) == ("h", "executors on a, x")
    assert spark.placed == []


def test_a_task_that_came_to_another_host_does_nothing_and_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = Spark(monkeypatch, [Executor("h", 1)])
    here = iter([False, False, True])
    spark.here = lambda: next(here)
    assert spark.run() == 1
    assert spark.placed == ["h"] * 3


def test_a_host_that_is_never_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch, [Executor("h", 1)])
    spark.here = lambda: False
    with pytest.raises(
        SparkError, match="has an executor on this host, but runs the task on others"
    ) as refused:
        spark.run()
    assert refused.value.found == f"101 tasks elsewhere, the last on {socket.gethostname()}"


def test_executors_that_end_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch, [Executor("h", 1)])
    spark.here = lambda: False
    spark.attempt = 1
    with pytest.raises(SparkError, match="its executor ended each time"):
        spark.run()
    assert len(spark.placed) == 4


def test_all_executors_end_while_a_task_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would wait for ever."""
    spark = Spark(monkeypatch, [Executor("h", 1)])
    waits = threading.Event()

    def during() -> None:
        spark.looks = [[]]
        waits.wait(30)

    spark.during = during
    with pytest.raises(SparkError, match="the executor on this host has ended, and no other came"):
        spark.run()
    waits.set()
    assert spark.cancelled == 1


def test_what_spark_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import PySparkRuntimeError

    spark = Spark(monkeypatch, [Executor("h", 1)])

    def fail(error: BaseException) -> Callable[[], None]:
        def during() -> None:
            raise error

        return during

    spark.during = fail(ReputError("own"))
    with pytest.raises(ReputError, match="own"):
        spark.run()
    spark.during = fail(PySparkRuntimeError("task failed"))
    with pytest.raises(SparkError, match="Spark failed"):
        spark.run()


def test_a_command_runs_without_the_executors_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(LIB))
    monkeypatch.setenv("REPUT_BROKER_CONF", "/of/the/executor")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    ended = Command(("check", str(tmp_path), "--json"), {"REPUT_TRACEBACK": ""})()
    assert ended.code == 2
    assert '"error"' in ended.stdout
    assert "/of/the/executor" not in ended.stdout
    assert ended.last_lines
    assert ended.last_lines[-1] in capfd.readouterr().err


def test_a_command_ends_with_its_stdin() -> None:
    program = "import os, sys; sys.argv[1:] = ['--version']; from reput.cli import bound, main; "
    program += "import threading, time; threading.Thread(target=bound._end_with_stdin, daemon=True).start(); "
    program += (
        "\ntry:\n print('begun', flush=True)\n time.sleep(60)\nexcept KeyboardInterrupt: print('cleared')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(LIB)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.stdin.close()
        began = time.monotonic()
        assert process.stdout.read() == "cleared\n"
        assert time.monotonic() - began < 50
    assert process.returncode == 0
