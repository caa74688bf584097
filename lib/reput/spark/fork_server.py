"""A process that has loaded what other Python processes need, and is forked in their place.

A local session starts six of them: two daemons of workers, and one each to look data sources up, to make one,
to plan a read and to run a stream's source; a command on several stores starts one for each. Each would load
the same modules anew, most of a second of a core together with the kernels. A command forks this process from
itself before it has any thread, lock or session (:func:`begin`). :mod:`reput.spark.fork_client` asks it for a
fork; worker_python.sh starts that for Spark. Without it each process starts by itself.

It ends with the command, however that ends: it reads from a pipe whose other end is the command's alone. What
it forked ends then, too, and ends with the client that asked for it: Linux sends it a signal (``F_SETSIG``).
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import io
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from reput.remote.store import has_clients

#: Bytes that tell how long a request is.
_LENGTH = 8
_WAIT_SECONDS = 0.02
_OPEN_FILES = Path("/proc/self/fd")


class ForkServer:
    """The server, as its owner sees it."""

    def __init__(self, process: int, owned: int) -> None:
        self._process, self._owned = process, owned

    def let_go(self) -> None:
        """Have it end what it forked, which is told by the owner's own end."""
        with suppress(OSError):
            os.close(self._owned)

    def end(self) -> None:
        """See it end, and with it what it forked."""
        self.let_go()
        with suppress(OSError):
            os.waitpid(self._process, 0)


def begin(path: Path, grace_seconds: float = 0.0) -> ForkServer | None:
    """Fork the server, which listens at ``path``, in a directory of the user's alone.

    What the caller has loaded, forked processes have loaded, too. When the caller has ended, they have
    ``grace_seconds`` to end by themselves.

    Returns:
        None if there can't be one: in a process with other threads a fork might copy their locks.
    """
    if threading.active_count() > 1 or has_clients() or not _OPEN_FILES.is_dir():
        return None
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    pipe: tuple[int, ...] = ()
    try:
        listening.bind(str(path))
        listening.listen()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        pipe = ended, owned = os.pipe()
        process = _fork()
    except OSError:
        listening.close()
        for opened in pipe:
            os.close(opened)
        return None
    if process == 0:
        _be_server(listening, ended, grace_seconds)
    listening.close()
    os.close(ended)
    return ForkServer(process, owned)


def _be_server(listening: socket.socket, ended: int, grace_seconds: float) -> NoReturn:
    try:
        os.setsid()  # Ctrl-C is the command's alone
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _let_go({0, 1, 2, listening.fileno(), ended})
        from reput.replay.runner import load_kernels

        # They may have to be compiled.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, there is no end to wait for
        _end_with(ended, signal.SIGIO)
        load_kernels()
        fcntl.fcntl(ended, fcntl.F_SETFL, fcntl.fcntl(ended, fcntl.F_GETFL) & ~os.O_ASYNC)
        _serve(listening, ended, grace_seconds)
    except BaseException:  # noqa: BLE001 - it must not return into the owner's own stack
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _end_with(opened: int, number: signal.Signals) -> None:
    """Have this process get the signal when the other end of a pipe or a socket is closed, or if it is."""
    fcntl.fcntl(opened, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(opened, fcntl.F_SETSIG, number)
    fcntl.fcntl(opened, fcntl.F_SETFL, fcntl.fcntl(opened, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([opened], [], [], 0)[0]:
        signal.raise_signal(number)


def _let_go(kept: set[int]) -> None:
    """Close all files but these: pipes whose other end waits for the owner's end among them."""
    for number in [int(place.name) for place in _OPEN_FILES.iterdir()]:
        if number not in kept:
            with suppress(OSError):
                os.close(number)


def _serve(listening: socket.socket, ended: int, grace_seconds: float) -> None:
    """Fork what is asked for, until the owner has ended; then end it all."""
    died, dying = os.pipe()
    os.set_blocking(dying, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(dying)
    waited, running = [listening.fileno(), ended, died], dict[int, socket.socket]()
    while ended not in (ready := select.select(waited, [], [])[0]):
        if died in ready:
            os.read(died, 1 << 16)
            _tell_ends(running)
            continue
        try:
            client, _ = listening.accept()
        except OSError:  # who waits for an answer, or comes later, does without a fork
            waited.remove(ready[0])
            listening.close()
            continue
        try:
            running[_forked(client)] = client
        except (OSError, ValueError):  # without an answer the client does without a fork
            client.close()
    _remove(listening)
    until = time.monotonic() + grace_seconds
    while running and time.monotonic() < until:
        time.sleep(_WAIT_SECONDS)
        _tell_ends(running)
    for process in running:
        for kill in (os.killpg, os.kill):
            with suppress(OSError):
                kill(process, signal.SIGKILL)
    for process in running:
        with suppress(OSError):
            os.waitpid(process, 0)


def _remove(listening: socket.socket) -> None:
    """Remove the socket, and its directory where it is alone in it: an owner that was killed doesn't."""
    with suppress(OSError):  # it may be closed, and so have no name
        path = Path(listening.getsockname())
        path.unlink()
        path.parent.rmdir()


def _tell_ends(running: dict[int, socket.socket]) -> None:
    """Tell the clients of processes that have ended how: an exit code, or a signal."""
    for process in list(running):
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            with running.pop(process) as client, suppress(OSError):
                client.sendall(bytes([code, 0] if code >= 0 else [0, -code]))


def _forked(client: socket.socket) -> int:
    """The process that a client asks for."""
    head, streams, _, _ = socket.recv_fds(client, _LENGTH, 3)
    try:
        fields = _received(client, int.from_bytes(head, "big")).split(b"\0")
        if len(streams) != 3:
            raise OSError(errno.EMFILE, "not all streams have come")
        process = _fork()
        if process == 0:
            _become(client, streams, fields)
        return process
    finally:
        for stream in streams:
            os.close(stream)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads see to forks themselves
        return os.fork()


def _received(client: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = client.recv(length - len(found))
        if not more:
            raise OSError("the client is gone")
        found += more
    return found


def _become(client: socket.socket, streams: list[int], fields: list[bytes]) -> NoReturn:
    """Be the Python that was asked for, in the forked process."""
    code = 1
    try:
        # What is to be done at the owner's end is the owner's.
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        client.sendall(b"\1")
        _end_with(client.fileno(), signal.SIGTERM)
        os.register_at_fork(after_in_child=client.close)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _let_go({0, 1, 2, client.fileno()})
        # What a data source prints comes at once, as Spark has it (PYTHONUNBUFFERED).
        sys.stdin, sys.stdout = os.fdopen(0), io.TextIOWrapper(os.fdopen(1, "wb", 0), write_through=True)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
        directory, count, *rest = fields
        os.chdir(directory)
        words = [os.fsdecode(word) for word in rest[: int(count)]]
        os.environ.clear()
        for pair in rest[int(count) :]:
            name, _, value = pair.partition(b"=")
            os.environb[name] = value
        for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if entry and entry not in sys.path:
                sys.path.insert(0, entry)
        _, module, *sys.argv[1:] = words
        if module == "reput.spark.worker_daemon":
            from reput.spark import worker_daemon

            worker_daemon.run()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001 - as Python does, but nothing of the owner may run
        sys.excepthook(*sys.exc_info())
    for last in (atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
        with suppress(BaseException):
            last()
    os._exit(code & 0xFF)
