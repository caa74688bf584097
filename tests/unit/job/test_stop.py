"""Stopping a writer from outside; the writers are threads, and a process where it matters."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reput.errors import OutputError, StoreInUseError
from reput.format import names
from reput.job.status import stop
from reput.store.lock import OutputLock, output_holder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out" / names.REPUT).mkdir(parents=True)
    (tmp_path / "out" / names.REPUT / names.JOURNAL).touch()
    return tmp_path / "out"


@contextmanager
def tail(out: Path, run: Callable[[], None]) -> Iterator[None]:
    """A writer that holds the output's lock while ``run`` lasts."""
    held = threading.Event()

    def hold() -> None:
        with OutputLock(out):
            held.set()
            run()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    yield
    thread.join(60)
    assert not thread.is_alive()


def stop_file(out: Path) -> Path:
    return out / names.REPUT / names.STOP


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_nobody_writes(out: Path) -> None:
    stopped = stop(out)
    assert stopped.holder is None
    assert (stopped.clean, stopped.exit_code) == (True, 0)
    assert [path.name for path in (out / names.REPUT).iterdir()] == [names.JOURNAL], (
        "nothing was left, no lock file either"
    )
    (out / names.REPUT / names.SCRATCH).mkdir()
    died = stop(out)
    assert (died.holder, died.clean, died.exit_code) == (None, False, 1)


def test_the_writer_ends(out: Path) -> None:
    def run() -> None:
        until(stop_file(out).exists)
        time.sleep(0.1)  # the batch under way

    with tail(out, run):
        stopped = stop(out, 60)
    assert stopped.holder is not None
    assert stopped.holder.pid == os.getpid()
    assert stopped.holder.what.startswith(f"process {os.getpid()} on ")
    assert stopped.waited_seconds >= 0.1
    assert stopped.clean
    assert not stop_file(out).exists()


def test_a_writer_that_just_begins_clears_what_was_left(out: Path) -> None:
    """And with it a request that was made a moment ago: it is made again."""

    def run() -> None:
        until(stop_file(out).exists)
        stop_file(out).unlink()
        until(stop_file(out).exists)

    with tail(out, run):
        assert stop(out, 60).clean
    assert not stop_file(out).exists()


def test_a_writer_that_breaks_off(out: Path) -> None:
    def run() -> None:
        (out / names.REPUT / names.SCRATCH).mkdir()
        until(stop_file(out).exists)

    with tail(out, run):
        assert not stop(out, 60).clean


def test_a_writer_that_does_not_end(out: Path) -> None:
    ending = threading.Event()
    with tail(out, lambda: until(ending.is_set)):
        with pytest.raises(StoreInUseError, match=r"not ended within 0 s; found process .* run the same"):
            stop(out, 0)
        assert stop_file(out).exists(), "it ends when it can"
        ending.set()


def test_no_output(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(OutputError, match="no output of reput here"):
            stop(path)
    assert not list(tmp_path.iterdir())


def test_the_holder_by_its_note(out: Path) -> None:
    assert output_holder(out) is None
    assert output_holder(out / "gone") is None
    with OutputLock(out):
        (out / names.REPUT / "lock").write_text("process 7 on another.host\n")
        holder = output_holder(out)
        assert holder is not None
        assert (holder.pid, holder.what) == (None, "process 7 on another.host")
    assert output_holder(out) is None, "the note stays, the lock went"


def test_asking_does_not_keep_a_writer_out(out: Path) -> None:
    """Asking takes the lock for a moment, and a writer doesn't wait."""
    with OutputLock(out):
        pass
    asking = "import sys, time; from pathlib import Path; from reput.store.lock import output_holder\n"
    asking += "print(flush=True)\nwhile True: output_holder(Path(sys.argv[1])); time.sleep(0.001)"
    asker = subprocess.Popen([sys.executable, "-c", asking, out], stdout=subprocess.PIPE)
    try:
        assert asker.stdout is not None
        asker.stdout.readline()
        for _ in range(200):
            with OutputLock(out):
                pass
    finally:
        asker.kill()
        asker.communicate()
