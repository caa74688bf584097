"""Who may write: the broker's lock on a store, and reput's own on an output.

A broker holds a POSIX record lock on the first byte of ``<store>/lock`` while it runs
(``DefaultMessageStore.start``: ``lockFile.getChannel().tryLock(0, 1, false)``; rocketmq-all-4.9.7, 5.3.3, by
``javap`` 5.5.0). It takes it **after** load(), so a broker that starts has cut and deleted files before it
meets anybody's lock. It opens ``lock`` before load(), though, and that is looked for, too. Up to 4.1.0 there
is no lock: a Java program that has the checkpoint open for writing is then taken for the broker.

A plain POSIX lock belongs to the process, and closing any descriptor of the file, by whatever part of the
process, gives it up. On Linux :class:`StoreLock` takes an open file description lock instead: that one
conflicts with a broker's lock all the same, and only its own descriptor gives it up. Elsewhere the plain lock
has to do; for its sake nothing here opens a ``lock`` that this process holds.

The output's locks are flock locks, which have no such trap and go when their holder dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.errors import StoreError, StoreInUseError
from reput.format import names
from reput.newer_python import Self
from reput.store import files, system
from reput.store.ownership import Owner
from reput.store.places import refuse_links
from reput.store.reading import open_file, read_file, step_to_read
from reput.words import next_command

if TYPE_CHECKING:
    pass

OUTPUT_LOCK = "lock"
TASKS_LOCK = "tasks.lock"

#: struct flock: type, whence, start, length, pid on Linux; start, length, pid, type, whence on BSD and macOS.
_LINUX = sys.platform == "linux"
_FLOCK = struct.Struct("@hhqqi" if _LINUX else "@qqihh")
_SET_OWN = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
_POLL_SECONDS = 0.05
#: Somebody who asks :func:`output_holder` shares the writer's lock for some microseconds, or for longer when
#: others want the processor, too.
_ASKED_SECONDS, _ASKED_POLL_SECONDS = 10.0, 0.005
_NOTE = "process {} on {}\n"
_NOTED = re.compile(r"process ([0-9]+) on (.+)")
#: Device and inode of every lock file that this process holds.
_held: set[tuple[int, int]] = set()


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody else who uses a store."""

    #: its process id; None when the system doesn't say (another container or host, or another reput)
    pid: int | None
    what: str  # the same for people


class _Held(ABC):
    """A lock as a context manager: held inside, given up behind."""

    @abstractmethod
    def acquire(self) -> None:
        """Take it, without waiting."""

    @abstractmethod
    def release(self) -> None:
        """Give it up. Does nothing when it isn't held."""

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class StoreLock(_Held):
    """The lock that keeps a broker out of a store while reput writes in it. A context manager.

    A ``lock`` file that has to be created gets ``owner``, by default that of the store's files: a broker that
    can't open its own ``lock`` doesn't start.
    """

    def __init__(self, root: Path, owner: Owner | None = None) -> None:
        self.root = root
        self.owner = owner
        self._fd: int | None = None
        self._identity = (0, 0)

    def acquire(self) -> None:
        """Take the lock, without waiting."""
        path = self.root / names.LOCK
        if _identity(path) in _held:  # before opening: closing it again could give the lock up
            raise _in_use(self.root, Holder(os.getpid(), "this very process"))
        owner = self.owner
        if owner is None and not path.exists():
            owner = Owner.of_store(self.root, [self.root / names.COMMIT_LOG])
        fd = files.create_file(path, None, owner)
        try:
            if not _try_lock(fd, path):
                raise _in_use(self.root, _lock_holder(fd) or Holder(None, "another process"))
            opener = _opener(self.root)
            if opener is not None:
                raise _in_use(self.root, opener)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._identity = _file_identity(os.fstat(fd))
        _held.add(self._identity)

    def release(self) -> None:
        """Give the lock up; the file stays. Does nothing when it isn't held."""
        if self._fd is not None:
            _held.discard(self._identity)
            os.close(self._fd)
            self._fd = None


def store_holder(root: Path) -> Holder | None:
    """Who else uses a store: a broker that runs or starts, another reput that writes in it, or None.

    Nothing is created, locked or changed. A broker in another container is seen once it has its lock, not
    while it starts; one on another host only if the file system passes locks on.
    """
    path = root / names.LOCK
    if _identity(path) in _held:
        return None
    try:
        fd = open_file(path)
    except FileNotFoundError:
        return _opener(root)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR, errno.ELOOP):
            return None  # it is no file: no broker starts with that
        raise StoreError(
            "can't tell whether a broker runs on this store",
            path=path,
            found=error.strerror,
            next_step=step_to_read(error),
        ) from error
    try:
        return _lock_holder(fd) or _opener(root)
    finally:
        os.close(fd)


def broker_on(device: int) -> Holder | None:
    """A process that may be a broker with a store on a file system (``st_dev``), or None.

    A broker has its ``lock`` and the files of its commit log open for writing, as far as ``/proc`` shows. A
    Java program of another user that can't be looked into may be one, too.
    """
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        pid = int(process.name)
        try:
            opened = os.listdir(process / "fd")  # noqa: PTH208 - tens of thousands of them
        except PermissionError:
            what = _process(pid)
            if what.endswith("(java)"):
                return Holder(pid, f"{what}, whose files this user can't see")
            continue
        except OSError:
            continue
        if any(_is_store_file(process, fd, device) for fd in opened):
            return Holder(pid, _process(pid))
    return None


def _is_store_file(process: Path, fd: str, device: int) -> bool:
    """Whether a process has opened, for writing, a file of a store on a file system."""
    with suppress(OSError, StopIteration, ValueError):
        link = f"{process}/fd/{fd}"
        name = os.readlink(link)  # noqa: PTH115
        is_lock = name.endswith(f"/{names.LOCK}") and not name.endswith(f"/{names.REPUT}/{OUTPUT_LOCK}")
        if is_lock or f"/{names.COMMIT_LOG}/" in name:
            return os.stat(link).st_dev == device and _is_writable(process, fd)  # noqa: PTH116
    return False


def _is_writable(process: Path, fd: str) -> bool:
    info = (process / "fdinfo" / fd).read_text()
    flags = next(line.split()[1] for line in info.splitlines() if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def is_broker_running(root: Path) -> bool:
    """Whether anybody but this process uses the store, as :func:`store_holder` tells."""
    return store_holder(root) is not None


def may_be_running(root: Path) -> bool:
    """Whether a broker may write to a store; where it can't be told, it may."""
    try:
        return is_broker_running(root)
    except StoreError:
        return True


class OutputLock(_Held):
    """reput's own lock on a directory that it writes to: one writer at a time. A context manager.

    Beside the writer's lock there is one for tasks, which outlive the writer that started them: tasks hold it
    :meth:`shared`, and what must not meet a late task takes it :meth:`exclusive`.
    """

    def __init__(self, directory: Path, owner: Owner | None = None) -> None:
        self.directory = directory
        self.owner = owner
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the writer's lock, without waiting."""
        path = self.directory / names.REPUT / OUTPUT_LOCK
        refuse_links(self.directory, [names.REPUT])
        fd = self._open(path)
        try:
            if not _soon_flocked(fd, path):
                raise _written_to(self.directory, _note(fd) or None)
            note = _NOTE.format(os.getpid(), platform.node()).encode()
            files.pwrite_all(fd, note.ljust(len(os.pread(fd, 200, 0))), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Give the writer's lock up. Does nothing when it isn't held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A task's hold on the output, beside other tasks.

        Raises StoreInUseError where somebody holds it exclusively, so that this task comes too late.
        """
        with self._tasks(fcntl.LOCK_SH, 0.0, "a recovery is under way here, this task comes too late"):
            yield

    @contextmanager
    def exclusive(self, wait_seconds: float = 10.0) -> Iterator[None]:
        """The output without any task; StoreInUseError if late ones haven't ended after ``wait_seconds``."""
        with self._tasks(fcntl.LOCK_EX, wait_seconds, "tasks of an earlier run still write here"):
            yield

    @contextmanager
    def _tasks(self, kind: int, wait_seconds: float, problem: str) -> Iterator[None]:
        path = self.directory / names.REPUT / TASKS_LOCK
        fd = self._open(path)
        try:
            deadline = time.monotonic() + wait_seconds
            while not _try_flock(fd, kind, path):
                if time.monotonic() >= deadline:
                    raise StoreInUseError(
                        problem,
                        path=self.directory,
                        next_step="Wait until no Spark application writes here, and try again.",
                    )
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(fd)

    def _open(self, path: Path) -> int:
        files.make_dirs(path.parent, self.owner)
        return files.create_file(path, None, self.owner)


def output_holder(directory: Path) -> Holder | None:
    """Who writes to an output, this process included, or None. Nothing is created or changed."""
    path = directory / names.REPUT / OUTPUT_LOCK
    try:
        fd = open_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise system.output_error("can't tell who writes here", path, error) from error
    try:
        if _try_flock(fd, fcntl.LOCK_SH, path):
            return None
        note = _note(fd)
    finally:
        os.close(fd)
    noted = _NOTED.fullmatch(note)
    is_here = noted is not None and noted[2] == platform.node()
    return Holder(int(noted[1]) if noted and is_here else None, note or "another process")


def check_store_free(root: Path) -> None:
    """See that :class:`StoreLock` could be had now, without taking it."""
    holder = store_holder(root)
    if holder is not None:
        raise _in_use(root, holder)


def check_output_free(directory: Path) -> None:
    """See that :class:`OutputLock` could be had now, without taking it."""
    holder = output_holder(directory)
    if holder is not None:
        raise _written_to(directory, holder.what)


def _written_to(directory: Path, found: str | None) -> StoreInUseError:
    stop = next_command("tail --stop", directory)
    return StoreInUseError(
        "another reput writes here",
        path=directory,
        found=found,
        next_step=f"Wait until it has ended, or stop it: `{stop}`.",
    )


def _note(fd: int) -> str:
    """What the writer has said of itself in its lock file; the last one, if none holds the lock."""
    return os.pread(fd, 200, 0).decode(errors="replace").strip()


def _soon_flocked(fd: int, path: Path) -> bool:
    """Whether the lock could be had, as soon as nobody asks who has it any more."""
    deadline = time.monotonic() + _ASKED_SECONDS
    while not _try_flock(fd, fcntl.LOCK_EX, path):
        # Beside one who asks there is room for another one, beside a writer there is none.
        if not _try_flock(fd, fcntl.LOCK_SH, path) or time.monotonic() > deadline:
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(_ASKED_POLL_SECONDS)
    return True


def _file_identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        return _file_identity(path.stat())
    except OSError:
        return None


def _request(kind: int) -> bytes:
    """A struct flock for the first byte."""
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0) if _LINUX else _FLOCK.pack(0, 1, 0, kind, os.SEEK_SET)


def _try_lock(fd: int, path: Path) -> bool:
    for command in dict.fromkeys((_SET_OWN, fcntl.F_SETLK)):
        try:
            fcntl.fcntl(fd, command, _request(fcntl.F_WRLCK))
            return True
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            # A kernel or file system without open file description locks says EINVAL.
            if error.errno != errno.EINVAL or command == fcntl.F_SETLK:
                raise system.output_error("can't lock it", path, error) from error
    return False


def _lock_holder(fd: int) -> Holder | None:
    """Who has locked the first byte of an open file."""
    answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _request(fcntl.F_WRLCK)))
    kind, pid = (answer[0], answer[4]) if _LINUX else (answer[3], answer[2])
    if kind == fcntl.F_UNLCK:
        return None
    if pid > 0:
        return Holder(pid, _process(pid))
    return Holder(None, "a process of another container" if pid == 0 else "another reput, or another host")


def _opener(root: Path) -> Holder | None:
    """A broker without its lock, as far as /proc shows: before it takes it, or one that takes none."""
    lock, checkpoint = _identity(root / names.LOCK), _identity(root / names.CHECKPOINT)
    wanted = {lock, checkpoint} - {None}
    with suppress(OSError):
        for process in Path("/proc").iterdir():
            if not process.name.isdecimal() or int(process.name) == os.getpid():
                continue
            pid = int(process.name)
            opened = _written(process, wanted) if wanted else set()
            if lock in opened:
                what = "the lock file and hasn't locked it yet"
            elif opened and _process(pid).endswith("(java)"):
                what = "the checkpoint"
            else:
                continue
            return Holder(pid, f"{_process(pid)}, which has opened {what}")
    return None


def _written(process: Path, wanted: set[tuple[int, int] | None]) -> set[tuple[int, int] | None]:
    """Those of these files that a process has open for writing."""
    found: set[tuple[int, int] | None] = set()
    # Processes come and go, and those of other users can't be looked into.
    with suppress(OSError):
        for fd in (process / "fd").iterdir():
            if (identity := _identity(fd)) in wanted and _is_writable(process, fd.name):
                found.add(identity)
    return found


def _process(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name})"


def _in_use(root: Path, holder: Holder) -> StoreInUseError:
    found = holder.what
    if holder.pid is None:
        # 5.x writes its pid into abort; as seen from its own container, and left there by a crash.
        with suppress(OSError):
            pid = read_file(root / names.ABORT).decode(errors="replace").strip()
            found += f"; {names.ABORT} names process {pid}" if pid.isdecimal() else ""
    return StoreInUseError(
        "the store is in use",
        path=root / names.LOCK,
        expected="no broker running on it, and no other reput writing in it",
        found=found,
        next_step="Stop the broker, or wait for the other reput; then run the same command again.",
    )


def _try_flock(fd: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise system.output_error("can't lock it", path, error) from error
    return True
