"""Processes forked in place of Python processes that Spark starts."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from reput.remote import store as remote_store
from reput.remote.store import client_of
from reput.spark import fork_server

LIB = Path(__file__).parents[3] / "lib"
SCRIPT = LIB / "reput" / "spark" / "worker_python.sh"
OWNER = """
import os, sys
from pathlib import Path
import pyspark.worker
from reput.spark import fork_server
server = fork_server.begin(Path(sys.argv[1]), float(os.environ.get("grace", 0)))
print(server is not None, flush=True)
sys.stdin.read()
server.end()
"""
LOADED = ["numba", "pyspark.worker"]
MODULE = """
import atexit, os, sys, time
loaded = [name for name in ("numba", "pyspark.worker") if name in sys.modules]
print(sys.argv[1:], os.getcwd(), os.environ.get("MARK"), loaded, sys.stdin.read(), __name__)
print("said", file=sys.stderr)
if sys.argv[1] == "wait":
    print(os.getpid(), flush=True)
    time.sleep(600)
if sys.argv[1] == "leave":
    atexit.register(lambda: print("left", flush=True))
    print(os.getpid(), flush=True)
    time.sleep(0.5)
    sys.exit(5)
if sys.argv[1] == "raise":
    raise ValueError("of the module")
sys.exit(int(sys.argv[1]))
"""


class Owner(NamedTuple):
    process: subprocess.Popen[str]
    path: Path


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules")
    (path / "probe.py").write_text(MODULE)
    return path


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    path = tmp_path_factory.mktemp("fork") / "socket"
    process = begun(path)
    yield Owner(process, path)
    process.kill()
    process.communicate()


def begun(path: Path, **variables: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)],
        env={**os.environ, "PYTHONPATH": str(LIB), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    until(path.exists)
    return process


def client(modules: Path, path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SCRIPT, "-m", "probe", *words],
        cwd=modules,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{modules}:{LIB}",
            "REPUT_PYTHON": sys.executable,
            "REPUT_FORK_SERVER": str(path),
            "MARK": "a=b",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_running(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet doesn't."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)


def waiting(modules: Path, path: Path, word: str = "wait") -> tuple[subprocess.Popen[str], int]:
    one = client(modules, path, word)
    assert one.stdin is not None
    assert one.stdout is not None
    one.stdin.close()
    one.stdin = None
    one.stdout.readline()
    return one, int(one.stdout.readline())


def test_a_fork_is_what_the_client_would_have_been(owner: Owner, modules: Path) -> None:
    for code in (0, 3):
        one = client(modules, owner.path, str(code), "x y")
        stdout, stderr = one.communicate("input")
        assert one.returncode == code
        assert stdout == f"{[str(code), 'x y']} {modules} a=b {LOADED} input __main__\n"
        assert stderr == "said\n"
    one = client(modules, owner.path, "raise")
    _, stderr = one.communicate("")
    assert one.returncode == 1
    assert "ValueError: of the module" in stderr


def test_a_fork_ends_with_its_client_and_a_client_with_its_fork(owner: Owner, modules: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        one, fork = waiting(modules, owner.path)
        one.send_signal(number)
        one.communicate()
        until(lambda fork=fork: not is_running(fork))
    one, fork = waiting(modules, owner.path)
    os.kill(fork, signal.SIGKILL)
    one.communicate()
    assert one.returncode == -signal.SIGKILL


def test_a_fork_and_its_client_may_end_in_the_same_moment(owner: Owner, modules: Path) -> None:
    process = owner.process.pid
    server = int(Path(f"/proc/{process}/task/{process}/children").read_text())
    one, fork = waiting(modules, owner.path)
    os.kill(server, signal.SIGSTOP)
    os.kill(fork, signal.SIGKILL)
    until(lambda: not is_running(fork))
    one.kill()
    one.communicate()
    os.kill(server, signal.SIGCONT)
    another = client(modules, owner.path, "0")
    assert f"a=b {LOADED} input" in another.communicate("input")[0], "it still serves"


def links(process: int) -> set[str]:
    """What its file descriptors lead to."""
    found = set()
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(path.readlink()))
    return found


@pytest.mark.parametrize("left", [0, 2, 4])
def test_where_the_server_can_open_no_more_the_client_becomes_that_python(
    modules: Path, tmp_path: Path, left: int
) -> None:
    process = begun(tmp_path / "socket")
    server = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    one, fork = waiting(modules, tmp_path / "socket")  # so that it serves
    assert one.stderr is not None
    lent = str(Path(f"/proc/self/fd/{one.stderr.fileno()}").readlink())
    until(lambda: lent not in links(server))  # it has closed what the client lent
    opened = max(int(place.name) for place in Path(f"/proc/{server}/fd").iterdir()) + 1
    resource.prlimit(server, resource.RLIMIT_NOFILE, (opened + left, opened + left))
    another = client(modules, tmp_path / "socket", "4")
    stdout, stderr = another.communicate("input")
    assert another.returncode == 4
    assert f"a=b {LOADED if left == 4 else []} input" in stdout
    assert stderr == "said\n"
    assert is_running(fork)
    process.communicate()
    one.communicate()
    until(lambda: not is_running(fork))


def test_without_a_server_the_client_becomes_that_python(modules: Path, tmp_path: Path) -> None:
    gone = socket.socket(socket.AF_UNIX)
    gone.bind(str(tmp_path / "gone"))
    gone.close()
    for path in (tmp_path / "gone", tmp_path / "none"):
        one = client(modules, path, "4")
        stdout, _ = one.communicate("input")
        assert one.returncode == 4
        assert stdout == f"['4'] {modules} a=b [] input __main__\n"


def test_all_ends_with_the_owner(modules: Path, tmp_path: Path) -> None:
    for number in (None, signal.SIGKILL):
        path = tmp_path / f"{number}" / "socket"
        path.parent.mkdir()
        process = begun(path)
        one, fork = waiting(modules, path)
        if number is not None:
            process.send_signal(number)
        process.communicate()
        one.communicate()
        assert one.returncode == -signal.SIGKILL
        until(lambda fork=fork: not is_running(fork))


def test_what_runs_has_time_to_end_by_itself(modules: Path, tmp_path: Path) -> None:
    path = tmp_path / "alone" / "socket"
    path.parent.mkdir()
    process = begun(path, grace="30")
    one, _ = waiting(modules, path, "leave")
    process.kill()
    process.communicate()
    assert one.communicate()[0] == "left\n"
    assert one.returncode == 5
    until(lambda: not path.parent.exists())


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_it_ends_while_it_compiles_kernels(number: int | None, tmp_path: Path) -> None:
    process = begun(tmp_path / "socket", NUMBA_CACHE_DIR=str(tmp_path / "none"))
    server = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    if number is not None:
        process.send_signal(number)
    process.communicate()
    until(lambda: not is_running(server))
    assert not list((tmp_path / "none").rglob("*.nbc")), "it had the time to compile one"


def test_there_is_none_after_something_elsewhere_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker-a").mkdir()
    monkeypatch.setattr(remote_store, "_clients", {})
    assert list(client_of(f"file://{tmp_path}/broker-a").list()) == []
    assert fork_server.begin(tmp_path / "socket") is None


def test_there_is_none_beside_other_threads(tmp_path: Path) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert fork_server.begin(tmp_path / "socket") is None
    finally:
        done.set()
        thread.join()
    assert list(tmp_path.iterdir()) == []
