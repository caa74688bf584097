"""Locks held by real processes; the broker's stand-in locks as a JVM does, with fcntl on the first byte."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from reput.errors import OutputError, StoreError, StoreInUseError
from reput.store import lock
from reput.store.lock import OutputLock, StoreLock, is_broker_running, store_holder
from reput.store.ownership import Owner

OPEN = "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)"
#: What FileChannel.tryLock(0, 1, false) and the write after it come to.
BROKER = f"{OPEN}; fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0); os.write(fd, b'lock')"
REPUT = "import sys; from pathlib import Path; from reput.store.lock import *; root = Path(sys.argv[1])"


@contextmanager
def process(program: str, argument: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has run ``program`` and now waits; it ends with the block."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}\nprint('ready', flush=True)\nsys.stdin.read()", argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def can_lock(path: Path) -> bool:
    """Whether another process gets the lock as a broker would."""
    program = (
        f"{OPEN}\ntry: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\nexcept OSError: sys.exit(9)"
    )
    return subprocess.run([sys.executable, "-c", program, path], check=False).returncode == 0


@pytest.fixture(params=["lock of the open file", "lock of the process"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of lock that a StoreLock can be, by system."""
    if request.param == "lock of the process":
        monkeypatch.setattr(lock, "_SET_OWN", fcntl.F_SETLK)


# the store


def test_a_running_broker_is_seen_and_nothing_is_changed(tmp_path: Path) -> None:
    with process(BROKER, tmp_path / "lock") as broker:
        before = (tmp_path / "lock").stat()
        found = store_holder(tmp_path)
        assert found is not None
        assert found.pid == broker.pid
        assert f"process {broker.pid} (" in found.what
        assert is_broker_running(tmp_path)
        assert (tmp_path / "lock").stat() == before
    assert not is_broker_running(tmp_path)


def test_a_store_without_a_lock_file_stays_without_one(tmp_path: Path) -> None:
    assert not is_broker_running(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_that_nobody_holds_is_no_broker(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"lock")
    assert not is_broker_running(tmp_path)


def test_a_lock_file_that_cannot_be_opened_is_not_taken_for_a_free_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't tell whether a broker runs"):
        is_broker_running(tmp_path / "file")


def test_a_running_broker_keeps_reput_out(tmp_path: Path, kind: None) -> None:
    with process(BROKER, tmp_path / "lock") as broker:
        with pytest.raises(StoreInUseError, match="the store is in use") as caught:
            StoreLock(tmp_path).acquire()
        assert f"process {broker.pid} (" in (caught.value.found or "")
        assert caught.value.path == str(tmp_path / "lock")
        assert "run the same command again" in (caught.value.next_step or "")
        assert not can_lock(tmp_path / "lock")
    with StoreLock(tmp_path):
        pass


def test_a_broker_that_is_still_loading_is_seen(tmp_path: Path) -> None:
    """It has opened its lock file, not locked it yet, and cuts queues meanwhile."""
    with process(OPEN, tmp_path / "lock") as broker:
        with pytest.raises(StoreInUseError, match="hasn't locked it yet") as caught:
            StoreLock(tmp_path).acquire()
        assert str(broker.pid) in (caught.value.found or "")
        assert is_broker_running(tmp_path)
        assert can_lock(tmp_path / "lock")  # the refused lock was given back
    assert not is_broker_running(tmp_path)


def test_somebody_who_only_reads_the_lock_file_is_no_broker(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    reading = "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY)"
    with process(reading, tmp_path / "lock"):
        assert not is_broker_running(tmp_path)
        with StoreLock(tmp_path):
            pass


def test_reput_keeps_a_broker_out(tmp_path: Path, kind: None) -> None:
    with StoreLock(tmp_path):
        assert not can_lock(tmp_path / "lock")
    assert can_lock(tmp_path / "lock")


def test_looking_does_not_give_the_lock_up(tmp_path: Path, kind: None) -> None:
    """A POSIX lock goes with the first descriptor of its file that is closed, whoever opened it."""
    with StoreLock(tmp_path):
        assert not is_broker_running(tmp_path)
        with pytest.raises(StoreInUseError, match="this very process"):
            StoreLock(tmp_path).acquire()
        assert not can_lock(tmp_path / "lock")


def test_closing_another_descriptor_does_not_give_the_lock_up(tmp_path: Path) -> None:
    with StoreLock(tmp_path):
        (tmp_path / "lock").read_bytes()
        assert not can_lock(tmp_path / "lock")


def test_two_reputs_keep_each_other_out(tmp_path: Path) -> None:
    with process(f"{REPUT}; held = StoreLock(root); held.acquire()", tmp_path) as other:
        with pytest.raises(StoreInUseError, match="another reput"):
            StoreLock(tmp_path).acquire()
        assert is_broker_running(tmp_path)
        other.send_signal(signal.SIGKILL)
        other.wait()
        with StoreLock(tmp_path):
            pass


def test_a_lock_can_be_taken_and_given_back_again_and_again(tmp_path: Path, kind: None) -> None:
    held = StoreLock(tmp_path)
    for _ in range(3):
        held.acquire()
        held.release()
        held.release()
    assert can_lock(tmp_path / "lock")


def test_a_kernel_without_locks_of_open_files_gets_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl

    def old_kernel(fd: int, command: int, argument: bytes) -> Any:
        if command == fcntl.F_OFD_SETLK:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", old_kernel)
    with StoreLock(tmp_path):
        assert not can_lock(tmp_path / "lock")
        assert not is_broker_running(tmp_path)
        assert not can_lock(tmp_path / "lock")


def test_a_file_system_without_locks_is_an_error_not_a_free_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, command: int, argument: bytes) -> Any:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(OutputError, match="ENOLCK"):
        StoreLock(tmp_path).acquire()


def test_a_new_lock_file_can_be_opened_by_the_broker(tmp_path: Path) -> None:
    segment = tmp_path / "commitlog" / f"{0:020d}"
    segment.parent.mkdir()
    segment.touch()
    segment.chmod(0o660)
    with StoreLock(tmp_path):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o660
    (tmp_path / "lock").unlink()
    with StoreLock(tmp_path, Owner(file_mode=0o604)):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o604


def test_a_holder_without_a_pid_is_looked_up_in_abort(tmp_path: Path) -> None:
    """5.x leaves its pid there; another reput's lock belongs to no process, as far as the system tells."""
    (tmp_path / "abort").write_text("4711")
    with (
        process(f"{REPUT}; held = StoreLock(root); held.acquire()", tmp_path),
        pytest.raises(StoreInUseError, match="abort names process 4711"),
    ):
        StoreLock(tmp_path).acquire()


# the output


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    held = OutputLock(tmp_path / "out")
    with held, pytest.raises(StoreInUseError, match=f"another reput writes here.*process {os.getpid()} on"):
        OutputLock(tmp_path / "out").acquire()
    with OutputLock(tmp_path / "out"):
        pass
    held.release()


def test_who_only_asks_is_waited_for(tmp_path: Path) -> None:
    """He has the lock for a moment, and that can last where others want the processor, too."""
    with OutputLock(tmp_path):
        pass
    asking = os.open(tmp_path / ".reput" / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    ending = threading.Timer(0.2, os.close, [asking])
    ending.start()
    with OutputLock(tmp_path), pytest.raises(StoreInUseError):
        OutputLock(tmp_path).acquire()
    ending.join()


def test_the_writers_lock_goes_when_its_process_dies(tmp_path: Path) -> None:
    with process(f"{REPUT}; held = OutputLock(root); held.acquire()", tmp_path) as other:
        with pytest.raises(StoreInUseError, match=f"process {other.pid} on"):
            OutputLock(tmp_path).acquire()
        other.send_signal(signal.SIGKILL)
        other.wait()
        with OutputLock(tmp_path):
            note = (tmp_path / ".reput" / "lock").read_text()
            assert note.startswith(f"process {os.getpid()} on ")


def test_the_locks_files_take_the_owners_modes(tmp_path: Path) -> None:
    owner = Owner(os.geteuid(), os.getegid(), 0o640, 0o750)
    with OutputLock(tmp_path, owner), OutputLock(tmp_path, owner).shared():
        pass
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / ".reput").iterdir()}
    assert modes == {"lock": 0o640, "tasks.lock": 0o640}
    assert stat.S_IMODE((tmp_path / ".reput").stat().st_mode) == 0o750


def test_tasks_share_the_output_with_each_other_and_the_writer(tmp_path: Path) -> None:
    output = OutputLock(tmp_path)
    with (
        output,
        output.shared(),
        output.shared(),
        process(f"{REPUT}; c = OutputLock(root).shared(); c.__enter__()", tmp_path),
    ):
        pass


def test_recovery_waits_for_late_tasks(tmp_path: Path) -> None:
    with ExitStack() as task:
        child = task.enter_context(
            process(f"{REPUT}; c = OutputLock(root).shared(); c.__enter__()", tmp_path)
        )
        started = time.monotonic()
        with (
            pytest.raises(StoreInUseError, match="tasks of an earlier run still write"),
            OutputLock(tmp_path).exclusive(wait_seconds=0.15),
        ):
            raise AssertionError("it was not exclusive")
        assert time.monotonic() - started >= 0.15
        ending = threading.Timer(0.2, child.kill)
        ending.start()
        with OutputLock(tmp_path).exclusive(wait_seconds=60):
            assert child.wait() == -signal.SIGKILL
        ending.join()


def test_a_task_that_comes_during_recovery_is_turned_away(tmp_path: Path) -> None:
    output = OutputLock(tmp_path)
    with output.exclusive(), pytest.raises(StoreInUseError, match="comes too late"), output.shared():
        raise AssertionError("it got in")
    with output.shared():
        pass


def test_an_output_that_cannot_be_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OutputError, match="ENOLCK"):
        OutputLock(tmp_path).acquire()
    with pytest.raises(OutputError, match="ENOLCK"), OutputLock(tmp_path).shared():
        raise AssertionError("it got in")
