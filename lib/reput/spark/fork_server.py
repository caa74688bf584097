"""A process that has loaded what Spark's Python processes need, and is forked in their place.

A local session starts six of them: two daemons of workers, and one each to look data sources up, to make one,
to plan a read and to run a stream's source. Each would load the same modules anew, most of a second of a core
together with the kernels. A command forks this process from itself before it has any thread, lock or session
(:func:`begin`). Any other Python starts it (:func:`start`) for the sources of its streams, which each query
starts anew; daemons, whose workers run anybody's functions, start there by themselves. worker_python.sh
starts :mod:`reput.spark.fork_client`, which asks it for a fork. Without it each process starts by itself.

It ends with its owner, the command or the other Python, however that ends: it reads from a pipe whose other
end is the owner's alone. What it forked ends then, too.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from reput.remote.store import has_clients

#: Bytes that tell how long a request is.
_LENGTH = 8
_OPEN_FILES = Path("/proc/self/fd")


class ForkServer:
    """The server, as its owner sees it."""

    def __init__(self, process: int, owned: int) -> None:
        self._process, self._owned = process, owned

    def end(self) -> None:
        """See it end, and with it what it forked."""
        with suppress(OSError):
            os.close(self._owned)
            os.waitpid(self._process, 0)


def begin(path: Path) -> ForkServer | None:
    """Fork the server, which listens at ``path``, in a directory of the user's alone.

    What the caller has loaded, forked processes have loaded, too.

    Returns:
        None if there can't be one: in a process with other threads a fork might copy their locks.
    """
    if threading.active_count() > 1 or has_clients() or not _can_serve():
        return None
    _load()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        listening.listen()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        ended, owned = os.pipe()
        process = _fork()
    except OSError:
        listening.close()
        return None
    if process == 0:
        os.setsid()  # Ctrl-C is the command's alone
        _serve_and_exit(listening, ended, with_kernels=True)
    listening.close()
    os.close(ended)
    return ForkServer(process, owned)


def start(path: Path) -> ForkServer | None:
    """Start the server as a process of its own; it listens at ``path``, in a directory of the user's alone.

    Returns:
        None if there can't be one.
    """
    if not _can_serve():
        return None
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    # As Spark starts its processes: one that isn't forked has to have the same hashes.
    seed = os.environ.get("PYTHONHASHSEED", "0")
    try:
        ended, owned = os.pipe()
    except OSError:
        return None
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(path)],
            stdin=ended,
            stdout=subprocess.DEVNULL,
            # Ctrl-C is its owner's alone.
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "PYTHONHASHSEED": seed,
            },
        )
    except OSError:
        os.close(owned)
        return None
    finally:
        os.close(ended)
    process.returncode = 0  # it is waited for by its number, and not by this object when that is collected
    return ForkServer(process.pid, owned)


def _can_serve() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):  # Linux before 5.3, or a sandbox
        return False
    return _OPEN_FILES.is_dir()


def _serve_and_exit(listening: socket.socket, ended: int, *, with_kernels: bool) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _let_go({0, 1, 2, listening.fileno(), ended})
        if with_kernels:
            _load_kernels(ended)
        _Server(listening, ended).run()
    except BaseException:  # noqa: BLE001 - it must not return into the owner's own stack
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _load() -> None:
    """Load what the forked processes need of PySpark; without pyarrow, which starts a thread."""
    import pyspark.daemon
    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.lookup_data_sources
    import pyspark.worker  # noqa: F401


def _load_kernels(ended: int) -> None:
    """Load them; they may have to be compiled. If the owner ends meanwhile, so does this process."""
    from reput.replay import kernels

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(ended, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(ended, fcntl.F_GETFL)
    fcntl.fcntl(ended, fcntl.F_SETFL, flags | os.O_ASYNC)
    if not select.select([ended], [], [], 0)[0]:
        kernels.load()
    fcntl.fcntl(ended, fcntl.F_SETFL, flags)


def _let_go(kept: set[int]) -> None:
    """Close all files but these: pipes whose other end waits for the owner's end among them."""
    for number in [int(place.name) for place in _OPEN_FILES.iterdir()]:
        if number not in kept:
            with suppress(OSError):
                os.close(number)


class _Server:
    def __init__(self, listening: socket.socket, ended: int) -> None:
        self._listening, self._ended = listening, ended
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(ended, selectors.EVENT_READ)
        self._running: dict[int, socket.socket] = {}

    def run(self) -> None:
        """Serve until the owner has ended."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._ended:
                    self._end_all()
                    return
                if key.fileobj == self._listening:
                    self._serve()
                elif key.data is None:
                    self._stop(key.fileobj)
                else:
                    self._report(key.fileobj, key.data)

    def _serve(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:  # who waits for an answer, or comes later, does without a fork
            self._selector.unregister(self._listening)
            self._listening.close()
            return
        try:
            process = _forked(client)
            handle = _handle(process)
        except (OSError, ValueError):  # without an answer the client does without a fork
            client.close()
            return
        self._running[process] = client
        self._selector.register(handle, selectors.EVENT_READ, process)
        self._selector.register(client, selectors.EVENT_READ)
        with suppress(OSError):
            client.sendall(b"\1")

    def _stop(self, client: object) -> None:
        """End the process whose client is gone."""
        process = next((process for process, one in self._running.items() if one is client), None)
        if process is None:
            return  # it has ended in the same moment, which was told
        self._selector.unregister(client)  # type: ignore[arg-type]
        with suppress(OSError):
            os.kill(process, signal.SIGTERM)

    def _report(self, handle: object, process: int) -> None:
        """Tell a client how its process ended."""
        self._selector.unregister(handle)  # type: ignore[arg-type]
        os.close(handle)  # type: ignore[arg-type]
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        client = self._running.pop(process)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client)
        with client, suppress(OSError):
            client.sendall(code.to_bytes(4, "big", signed=True))

    def _end_all(self) -> None:
        for process in self._running:
            for kill in (os.killpg, os.kill):
                with suppress(OSError):
                    kill(process, signal.SIGKILL)
        for process in self._running:
            with suppress(OSError):
                os.waitpid(process, 0)


def _forked(client: socket.socket) -> int:
    """The process that a client asks for."""
    head, streams, _, _ = socket.recv_fds(client, _LENGTH, 3)
    try:
        fields = _received(client, int.from_bytes(head, "big")).split(b"\0")
        if len(streams) != 3:
            raise OSError(errno.EMFILE, "not all streams have come")
        process = _fork()
        if process == 0:
            _become(streams, fields)
        return process
    finally:
        for stream in streams:
            os.close(stream)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads see to forks themselves
        return os.fork()


def _handle(process: int) -> int:
    try:
        return os.pidfd_open(process)
    except OSError:  # no descriptor is left
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise


def _received(client: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = client.recv(length - len(found))
        if not more:
            raise OSError("the client is gone")
        found += more
    return found


def _become(streams: list[int], fields: list[bytes]) -> NoReturn:
    """Be the Python that was asked for, in the forked process."""
    code = 1
    try:
        os.setpgid(0, 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _let_go({0, 1, 2})
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
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def main() -> NoReturn:
    """Be the server that :func:`start` starts."""
    ended = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(sys.argv[1])
    listening.listen()
    _load()
    _serve_and_exit(listening, ended, with_kernels=False)  # a stream's source needs none


if __name__ == "__main__":
    main()
