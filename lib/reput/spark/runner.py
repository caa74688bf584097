"""Functions run by Spark's executors."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from reput.errors import OtherHostError, OutputError, ReputError, SegmentGoneError, StoreError
from reput.format import names
from reput.spark.sessions import converting_spark_errors
from reput.store import files
from reput.store.ownership import Owner
from reput.store.system import output_error
from reput.store.witness import config_seen

# If a path leads to another directory on every host, all writes succeed, but no host has them all. So the
# driver puts a file with a new name into the output, which each worker has to read before its first task; and
# each worker puts one there, which the driver has to read before it accepts anything from that worker.

_DRIVER = "driver"
_NEXT_STEP = (
    "Give a directory that all hosts have mounted at this path, or let everything run on one host: "
    "--master 'local[*]'"
)
#: The files that this process has left, by the nonce that they answer.
_left: dict[str, Left] = {}


@dataclass(frozen=True, slots=True)
class Left:
    """What a worker has left for the driver."""

    name: str  # the file's, never looked up before: a host may cache that there was no such file
    text: str  # what it holds


@dataclass(frozen=True, slots=True)
class SharedOutput:
    """What a worker needs to prove that it sees the driver's output; made by :func:`shared_output`."""

    root: Path  # the output
    nonce: str  # the run's
    driver: str  # the host that made it

    @property
    def _directory(self) -> Path:
        return self.root / names.REPUT / f"{names.SHARED}{self.nonce}"

    @property
    def _text(self) -> str:
        return f"{self.nonce} {self.driver}\n"

    def show(self) -> Left:
        """In a worker, before a task: read what the driver left, and leave something; once in a process.

        Raises:
            OutputError: what the driver left isn't there, or this process can't leave anything.
        """
        left = _left.get(self.nonce)
        if left is None:
            found = _read(self._directory / _DRIVER)
            if found != self._text:
                raise OutputError(
                    "this host doesn't see the output that the driver sees",
                    path=self.root,
                    expected=f"what the driver on {self.driver} left in {self._directory}",
                    found="nothing" if found is None else "something else",
                    next_step=_NEXT_STEP,
                )
            host, word = socket.gethostname(), secrets.token_hex(16)
            left = Left(f"{host}-{os.getpid()}-{word}", f"{word} {host}\n")
            _write(self._directory / left.name, left.text, None)
            _left[self.nonce] = left
        return left

    def see(self, host: str, left: Left) -> None:
        """On the driver: read what a worker left.

        Raises:
            OutputError: it isn't there.
        """
        found = _read(self._directory / left.name)
        if found != left.text:
            raise OutputError(
                "the driver doesn't see what this host writes to the output",
                path=self._directory / left.name,
                expected=f"what a task on {host} left there",
                found="nothing" if found is None else "something else",
                next_step=_NEXT_STEP,
                host=host,
            )


@contextmanager
def shared_output(root: Path, owner: Owner | None) -> Iterator[SharedOutput]:
    """A run's proof, for as long as it has tasks.

    Args:
        root: the output; its lock is held.
        owner: of what is made; None for the process's own.

    Raises:
        OutputError: nothing can be written there.
    """
    _clear(root)  # a run that was killed leaves its own
    shared = SharedOutput(root, secrets.token_hex(16), socket.gethostname())
    files.make_dirs(shared._directory, owner)
    _write(shared._directory / _DRIVER, shared._text, owner)
    try:
        yield shared
    finally:
        # What stays is removed by the next run; it is no reason for this one to fail.
        with suppress(OutputError):
            _clear(root)


def _clear(root: Path) -> None:
    for path in (root / names.REPUT).glob(f"{names.SHARED}*"):
        files.remove_tree(path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise output_error("the output can't be read", path, error) from error


def _write(path: Path, text: str, owner: Owner | None) -> None:
    """Write a new file, flushed with its name: other hosts find all of it from now on."""
    fd = files.create_file(path, None, owner)
    try:
        files.pwrite_all(fd, text.encode(), 0)
        files.fsync_file(fd)
    finally:
        files.system.close(fd)
    files.fsync_dir(path.parent)


#: Long enough for every core to get a task of its own.
_SECONDS = 0.1


def page_cache(directory: Path) -> str:
    """What two processes have in common that share the pages of the files in a directory.

    That is the kernel and the mounted file system: two mounts of a network's file system have caches of
    their own even on one host. Empty if the directory isn't there.
    """
    kernel = platform.node()
    with suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        found = directory.stat()
    except OSError:
        return ""
    return f"{kernel} {found.st_dev} {found.st_ino}"


def _look(directory: Path, _item: object) -> tuple[str, str]:
    """In a task: the host's name, and its page cache."""
    time.sleep(_SECONDS)
    return socket.gethostname(), page_cache(directory)


@dataclass(frozen=True, slots=True)
class OnePageCache:
    """Has each worker show that it shares the driver's page cache."""

    directory: Path  # the output
    expected: str  # the driver's

    def show(self) -> None:
        """In a worker.

        Raises:
            OtherHostError: it has another one.
        """
        found = page_cache(self.directory)
        if found != self.expected:
            raise OtherHostError(
                "an executor has come that doesn't share the driver's page cache",
                path=self.directory,
                expected=self.expected,
                found=found,
                next_step="Run the same command again with --several-hosts",
            )

    def see(self, host: str, shown: None) -> None:
        """On the driver: the worker has compared."""


# A path may lead to different files on each host. So a worker first shows that it sees what the driver sees,
# and the driver accepts nothing from a worker before it has checked that.


class Proof(Protocol):
    """Shows that a worker sees what the driver sees; pickled with every task."""

    def show(self) -> Any:
        """In a worker: returns what the driver checks.

        Raises:
            ReputError: the worker sees something else.
        """
        ...

    def see(self, host: str, shown: Any) -> None:
        """On the driver: check what a worker on ``host`` has shown.

        Raises:
            ReputError: it doesn't prove it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task on another host returns."""

    host: str
    shown: tuple[Any, ...]
    result: object


@dataclass(frozen=True, slots=True)
class ProvenTask:
    """A function that runs on other hosts, once the worker has shown its proofs; errors name their host."""

    function: Callable[..., object]
    proofs: tuple[Proof, ...]

    def __call__(self, item: object) -> Answer:
        """What the worker has shown, and what the function returned, or the error that either raised."""
        host = socket.gethostname()
        shown: tuple[Any, ...] = ()
        try:
            shown = tuple(proof.show() for proof in self.proofs)
            result = self.function(item)
        except ReputError as error:
            result = error
        if isinstance(result, ReputError):
            result.host = host
        return Answer(host, shown, result)


def _if_here(error: SegmentGoneError) -> StoreError:
    """The error itself if the file is gone for the driver, too; otherwise that host doesn't have it."""
    if error.path is None or not Path(error.path).exists():
        return error
    return StoreError(
        "this host doesn't have a file of the store that the driver has",
        path=error.path,
        offset=error.offset,
        expected=error.expected,
        found="no such file",
        next_step="Mount the store at this path on all hosts, or let everything run on one host: "
        "--master 'local[*]'",
        host=error.host,
    )


def is_local(context: SparkContext) -> bool:
    """Whether tasks run on this host, as children of this process's JVM."""
    return str(context.master).startswith("local")


class SparkRunner:
    """Runs functions over items as Spark tasks, one an item.

    Attributes:
        is_local: tasks run on this host, as children of its JVM, which see the same file systems. Then
            nothing has to be proven, and no host is named.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._tag = f"reput-{uuid.uuid4()}"
        self.is_local = is_local(context)
        self._proofs: tuple[Proof, ...] = ()
        self._seen: set[tuple[str, tuple[Any, ...]]] = set()  # what workers have shown, and was right

    def demand(self, *proofs: Proof) -> None:
        """From now on, have every worker prove what it sees before its first function."""
        self._proofs, self._seen = proofs, set()

    def other_hosts(self, output: Path) -> list[str]:
        """The hosts of executors so far that don't share this process's page cache of the output.

        Raises:
            ReputError: a worker doesn't see what this process sees, or Spark failed.
        """
        if self.is_local:
            return []
        ours = page_cache(output)
        with converting_spark_errors():  # its first job: a cluster may have nothing to run it on
            found: list[Any] = self.map(partial(_look, output), list(range(self.slots)))
        for one in found:
            if isinstance(one, ReputError):
                raise one
        return sorted({host for host, theirs in found if theirs != ours})

    @contextmanager
    def sharing_pages(self, output: Path) -> Iterator[None]:
        """While the block runs, refuse workers that don't share this process's page cache of the output."""
        proofs = self._proofs
        self.demand(*proofs, OnePageCache(output, page_cache(output)))
        try:
            yield
        finally:
            self.demand(*proofs)

    @contextmanager
    def shared(self, output: Path, owner: Owner | None, config: Sequence[Path]) -> Iterator[None]:
        """Have every worker prove that it sees an output, and the same configuration, while the block runs.

        That it sees the log it proves with each part: see :mod:`reput.store.witness`.

        Args:
            output: its lock is held.
            owner: of the files that prove it; None for the process's own.
            config: files that this process has read.

        Raises:
            OutputError: nothing can be written to the output.
        """
        if self.is_local:
            yield
            return
        with shared_output(output, owner) as proof:
            self.demand(proof, config_seen(config))
            yield

    @property
    def slots(self) -> int:
        """Tasks that run at once, as of now: a cluster's executors start after the session, one by one."""
        return max(int(self._context.defaultParallelism), 1)

    def warm_up(self) -> None:
        """Have the workers started and the kernels loaded while Spark plans the query; returns at once."""
        items: list[object] = list(range(self.slots))
        threading.Thread(target=self._warm_up, args=(items,), name="reput-warm-up", daemon=True).start()

    def _warm_up(self, items: list[object]) -> None:
        # Cancelled, or an error that the query reports, too.
        with suppress(PySparkException, Py4JError, ConnectionError):
            self._run(abs, items)

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The results in the items' order; a function's errors are results.

        Raises:
            ReputError: a worker doesn't see what this process sees.
        """
        if self.is_local:
            return self._run(function, items)
        return [self.result(answer) for answer in self._run(ProvenTask(function, self._proofs), items)]

    def result(self, answer: Answer) -> object:
        """What a function on another host returned, or the error that it raised.

        Raises:
            ReputError: the worker sees something else than this process.
        """
        result = answer.result
        if isinstance(result, SegmentGoneError):
            return _if_here(result)
        if isinstance(result, ReputError):
            return result
        if (answer.host, answer.shown) not in self._seen:
            for proof, shown in zip(self._proofs, answer.shown, strict=True):
                proof.see(answer.host, shown)
            self._seen.add((answer.host, answer.shown))
        return result

    def _run(self, function: Callable[..., Any], items: list[object]) -> list[Any]:
        if not items:
            return []
        self._context.addJobTag(self._tag)
        return self._context.parallelize(items, len(items)).map(function).collect()

    def cancel(self) -> None:
        """Stop waiting for functions, since tasks may never get an executor; those that run end later."""
        with suppress(PySparkException, Py4JError, ConnectionError):  # a session that is gone runs nothing
            self._context.cancelJobsWithTag(self._tag)
