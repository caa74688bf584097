"""Running functions somewhere, some at a time, with their results in order.

Without Spark, processes of this host run them, which are forked from this one with all that it has loaded.
Such a process has no thread of its parent's, and its memory is the parent's until one of both changes it. It
ends with the block that it was begun for, and with the parent, however that ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NoReturn, Protocol, TypeVar

import numpy as np

from reput.build.index import KeyRows, put_keys
from reput.build.units import pack
from reput.errors import ReputError
from reput.format.indexfile import IndexHeader
from reput.log import walk_kernel
from reput.replay.spills import crc32_of_each
from reput.scan import kernel, output
from reput.scan.rules import Rules
from reput.scan.table import QueueTable
from reput.store.ownership import Owner
from reput.store.system import end_with_parent
from reput.unforeseen import unforeseen

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Waves of functions under way at once: while one's results are fetched, the next one works.
_AT_ONCE = 2


class Runner(Protocol):
    """Runs functions over items somewhere: on a cluster, or right here."""

    is_local: bool  # functions see the same files as this process

    @property
    def slots(self) -> int:
        """How many functions run at once."""
        ...

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The function's results in the items' order."""
        ...

    def shared(
        self, output: Path, owner: Owner | None, config: Sequence[Path]
    ) -> AbstractContextManager[None]:
        """Have functions on other hosts prove that they see an output, while the block runs."""
        ...

    def cancel(self) -> None:
        """Stop waiting for functions."""
        ...


class Here:
    """What there is nothing to do for where functions run on this host."""

    is_local = True

    def shared(
        self, _output: Path, _owner: Owner | None, _config: Sequence[Path]
    ) -> AbstractContextManager[None]:
        """They see what this process sees."""
        return nullcontext()

    def cancel(self) -> None:
        """They end by themselves."""


class InlineRunner(Here):
    """Runs functions at once in this process, which is faster than a Spark task for small work.

    ``slots``: by as many threads, for functions that mostly hold no lock of the interpreter.
    """

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The function's results in the items' order."""
        if min(self.slots, len(items)) < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(self.slots, len(items)), "reput-inline") as pool:
            return list(pool.map(function, items))


def load_kernels() -> None:
    """Load the kernels from numba's cache, or compile them, by running each over nothing."""
    nothing = np.zeros(128, np.uint8)
    nothing.flags.writeable = False
    rules = Rules(True, True, True, True, True, True, True, True, False, np.zeros(1, np.int64))
    out = output.output()
    kernel.scan(nothing, 0, 0, 1, rules, QueueTable(), out)
    kernel.walk(nothing, 0, 0, 1, True)
    kernel.find_record(nothing, 0, 0, 1, True)
    kernel.first_written(nothing, 0, 1)
    walk_kernel.load()
    pack(out, 1)
    none = np.zeros(0, np.int64)
    crc32_of_each(np.zeros(0, np.uint8), none, none)
    QueueTable().grow_queues()
    rows = KeyRows(none, none, np.zeros(0, np.int32), np.zeros(0, np.int32))
    put_keys(IndexHeader(), np.zeros(1, np.int32), rows, 0, 2)
    # What is loaded stays: the garbage collector, which PySpark calls after every task, can skip it.
    gc.freeze()


#: Bytes of log that this process has read before others are forked and have what they need.
_SMALL = 16 << 20


@contextmanager
def on_this_host(log_bytes: int, *, elsewhere: bool = False) -> Iterator[Runner]:
    """What runs a command's work without Spark: processes, or this one alone for a log of a few bytes.

    ``elsewhere``: what is read lies in an object store, whose client's threads a fork doesn't copy.
    """
    if elsewhere or log_bytes <= _SMALL:
        yield InlineRunner()
        return
    with Processes() as runner:
        yield runner


@dataclass(frozen=True, slots=True)
class _Failed:
    """What a function ended with that it doesn't return."""

    error: ReputError


class Processes(Here):
    """Runs functions on processes of this host, for as long as its block runs; several threads may ask.

    To be begun while no other thread holds a lock that functions need, and before anything is opened that
    works by threads of its own, such as a client of stores elsewhere. ``slots`` None: as many as this process
    may have cores.
    """

    def __init__(self, slots: int | None = None) -> None:
        self.slots = len(os.sched_getaffinity(0)) if slots is None else slots
        self._workers: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._callers = ThreadPoolExecutor(self.slots, "reput-process")

    def __enter__(self) -> Processes:
        load_kernels()
        try:
            for _ in range(self.slots):
                self._workers.append(_Worker(self._workers))
                self._idle.put(self._workers[-1])
        except OSError as error:
            self._end()
            raise unforeseen(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def map(self, function: Callable[..., object], items: list[object]) -> list[object]:
        """The function's results in the items' order; ReputError also where a process has ended."""
        under_way: list[Future[object]] = []
        try:
            under_way += [self._callers.submit(self._do, function, item) for item in items]
            return [each.result() for each in under_way]
        finally:
            for each in under_way:
                each.cancel()

    def _do(self, function: Callable[..., object], item: object) -> object:
        worker = self._idle.get()
        try:
            result = worker.do(function, item)
        finally:
            self._idle.put(worker)
        if isinstance(result, _Failed):
            raise result.error
        return result

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()
        self._callers.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()


class _Worker:
    """A process that does one thing after the other.

    It lets go of this process's ends of the pipes to ``others``.
    """

    def __init__(self, others: list[_Worker]) -> None:
        parent = os.getpid()
        theirs, self._tasks = _pipe()
        self._results, ours = _pipe()
        self._lock = threading.Lock()
        self._ended: int | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: see Processes
                self.number = os.fork()
        except OSError:
            self.close()
            raise
        else:
            if self.number == 0:
                for one in (*others, self):
                    one.close()
                _serve(theirs, ours, parent)
        finally:
            theirs.close()
            ours.close()

    def do(self, function: Callable[..., object], item: object) -> object:
        """The function's result; to be called by one thread at a time."""
        try:
            self._tasks.write(pickle.dumps((function, item), pickle.HIGHEST_PROTOCOL))
            self._tasks.flush()
            return pickle.load(self._results)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise self._error(self._wait()) from None

    def end(self) -> None:
        """End it, whatever it does, and wait until it has."""
        with self._lock, suppress(ProcessLookupError):
            if self._ended is None:
                os.kill(self.number, signal.SIGKILL)
        self._wait()

    def close(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self._tasks, self._results):
            with suppress(OSError):  # what was left to be written has no reader
                pipe.close()

    def _wait(self) -> int:
        """How it ended, as ``waitstatus_to_exitcode`` has it."""
        with self._lock:
            if self._ended is None:
                try:
                    self._ended = os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])
                except ChildProcessError:  # SIGCHLD is ignored here, and the system tells nobody
                    self._ended = 0
            return self._ended

    def _error(self, code: int) -> ReputError:
        how = f"exit code {code}" if code >= 0 else f"ended by signal {-code} ({_name(-code)})"
        step = "Run the same command again"
        if -code == signal.SIGKILL:
            step = (
                "The system does that where memory runs out, and notes it in its log (dmesg): see that there "
                "is more, or give the command fewer cores (taskset -c 0), and run it again"
            )
        return ReputError(
            "a process that this command works with has ended",
            expected="it works until the command ends",
            found=f"process {self.number}: {how}",
            next_step=step,
        )


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")


def _name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return "unknown"


def _serve(tasks: BinaryIO, results: BinaryIO, parent: int) -> NoReturn:
    """Be a worker's process: do what comes, until nothing can come any more."""
    code = 1
    try:
        end_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group: the parent ends this
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        with suppress(EOFError, BrokenPipeError):
            while True:
                results.write(_done(*pickle.load(tasks)))
                results.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - it must not return into the parent's own stack
        traceback.print_exc()
    os._exit(code)


def _done(function: Callable[..., object], item: object) -> bytes:
    try:
        return pickle.dumps(function(item), pickle.HIGHEST_PROTOCOL)
    except ReputError as error:
        return pickle.dumps(_Failed(error))
    except BaseException as error:  # noqa: BLE001 - as a result, with the line that raised it
        return pickle.dumps(_Failed(unforeseen(error)))


def in_waves(
    runner: Runner,
    do: Callable[[list[Item]], Sequence[Result]],
    items: Sequence[Item],
    give_up: Callable[[], None] = lambda: None,
) -> Generator[Result]:
    """The results of many items in order, done in waves of as many as run at once.

    When the generator is closed no further wave begins, and those under way have come to their end. ``do`` is
    called by threads, with one wave's items, and what it raises is raised here. ``give_up`` ends the waves
    under way, when the generator is closed before its end or one has failed.
    """
    under_way: deque[Future[Sequence[Result]]] = deque()

    def ended() -> Sequence[Result]:
        found = under_way[0].result()
        under_way.popleft()  # not before: it is under way until then
        return found

    at = 0
    with ThreadPoolExecutor(_AT_ONCE, "reput-wave") as pool:
        try:
            while at < len(items):
                # Read each time: a cluster's executors come one by one.
                stop = at + max(runner.slots, 1)
                under_way.append(pool.submit(do, list(items[at:stop])))
                at = stop
                if len(under_way) == _AT_ONCE:
                    yield from ended()
            while under_way:
                yield from ended()
        finally:
            for future in under_way:
                future.cancel()
            if at < len(items) or under_way:
                give_up()
