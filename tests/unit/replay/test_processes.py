"""Functions on processes of this host: their results, and how it ends when a process does."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reput.errors import ReputError, StoreError
from reput.replay.runner import InlineRunner, Processes, on_this_host
from tests.unit.spark.test_fork_server import is_running

LIB = Path(__file__).parents[3] / "lib"
PARENT = """
import os, sys, time
from reput.replay.runner import Processes

with Processes(2) as runner:
    print(*(worker.number for worker in runner._workers), flush=True)
    if sys.argv[1] == "waiting":
        runner.map(time.sleep, [60, 60])
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[Processes]:
    with Processes(2) as begun:
        yield begun


def squared_later(number: object) -> object:
    assert isinstance(number, int)
    time.sleep(0.02 * (number % 3))
    return number * number


def refused(path: object) -> object:
    raise StoreError("it can't be read", path=str(path), offset=7)


def returned(path: object) -> object:
    return StoreError("it can't be read", path=str(path), offset=7)


def divided(by: object) -> object:
    assert isinstance(by, int)
    return 1 / by


def of_its_own(_: object) -> object:
    return threading.Lock()


def ended_by(number: object) -> object:
    assert isinstance(number, int)
    if number:
        os.kill(os.getpid(), number)
    return os.getpid()


def left(code: object) -> object:
    assert isinstance(code, int)
    os._exit(code)


def gone(processes: list[int]) -> bool:
    """Whether all have ended, or do so within seconds."""
    deadline = time.monotonic() + 60
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_running, processes))


def test_results_are_in_order(runner: Processes) -> None:
    items: list[object] = list(range(20))
    assert runner.map(squared_later, items) == [number * number for number in range(20)]
    assert runner.map(squared_later, []) == []
    data: list[object] = [os.urandom(3 << 20) for _ in range(3)]
    assert runner.map(bytes, data) == data


def test_functions_run_in_other_processes_which_stay(runner: Processes) -> None:
    found = {*runner.map(ended_by, [0] * 20)}
    assert os.getpid() not in found
    assert found <= {worker.number for worker in runner._workers}


def test_several_threads_may_ask(runner: Processes) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: runner.map(squared_later, [n, n + 1]), range(10)))
    assert found == [[n * n, (n + 1) ** 2] for n in range(10)]


def test_what_a_function_fails_with_is_raised_here(runner: Processes) -> None:
    (error,) = runner.map(returned, ["/a"])
    assert isinstance(error, StoreError)
    with pytest.raises(StoreError, match="/a at offset 7: it can't be read"):
        runner.map(refused, ["/a", "/b"])
    with pytest.raises(ReputError) as failed:
        runner.map(divided, [1, 0, 2])
    said = str(failed.value)
    assert re.search(r"ZeroDivisionError: division by zero \(.*test_processes\.py line \d+", said)
    with pytest.raises(ReputError, match="cannot pickle"):
        runner.map(of_its_own, [0])
    with pytest.raises((pickle.PicklingError, AttributeError)):
        runner.map(lambda item: item, [0])
    assert runner.map(squared_later, [3]) == [9], "and it goes on"


@pytest.mark.parametrize("function", [ended_by, left])
def test_a_process_that_ends_is_one_clear_error(function) -> None:  # type: ignore[no-untyped-def]
    how = {ended_by: (signal.SIGKILL, r"ended by signal 9 \(SIGKILL\)"), left: (3, "exit code 3")}
    number, said = how[function]
    with Processes(2) as runner:
        workers = [worker.number for worker in runner._workers]
        with pytest.raises(ReputError, match=rf"process \d+: {said}") as failed:
            runner.map(function, [number, number])
        assert int(re.findall(r"process (\d+)", str(failed.value))[0]) in workers
        assert failed.value.next_step is not None
        assert "run" in failed.value.next_step.lower()
        with pytest.raises(ReputError, match=said):
            runner.map(squared_later, [1, 2, 3])
    assert gone(workers)


def test_one_that_ends_while_it_has_nothing_to_do() -> None:
    with Processes(1) as runner:
        os.kill(runner._workers[0].number, signal.SIGUSR1)
        with pytest.raises(ReputError, match="SIGUSR1"):
            runner.map(squared_later, [1])


def test_all_end_with_the_block_whatever_they_do() -> None:
    began = time.monotonic()
    runner = Processes(2)
    workers: list[int] = []

    def wait() -> None:
        with runner:
            workers.extend(worker.number for worker in runner._workers)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            runner.map(time.sleep, [60, 60])

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert gone(workers)
    assert time.monotonic() - began < 55


@pytest.mark.parametrize("doing", ["waiting", "nothing"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_they_end_with_their_parent(number: signal.Signals, doing: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, doing],
        env={**os.environ, "PYTHONPATH": str(LIB)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(0.1)
        if number == signal.SIGINT:  # Ctrl-C is for the whole group
            os.killpg(parent.pid, number)
        else:
            parent.send_signal(number)
        assert gone(workers)
        parent.communicate(timeout=60)
    finally:
        parent.kill()
        parent.communicate()
    assert parent.returncode in (-number, 1)


def test_a_small_log_is_read_by_this_process_alone() -> None:
    with on_this_host(1 << 20) as runner:
        assert isinstance(runner, InlineRunner)
    with on_this_host(1 << 40, elsewhere=True) as runner:
        assert isinstance(runner, InlineRunner)
    with on_this_host(1 << 40) as processes:
        assert isinstance(processes, Processes)
        assert processes.slots == len(os.sched_getaffinity(0))
