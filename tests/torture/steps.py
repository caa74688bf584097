"""The steps of docs/internals/protocol.md, as places where a process stops dead so that all can be killed.

A step is told by what it does to which file, so that it stays where it is when code moves. The process that
comes to its step for the n-th time writes the step's name to a file and stops itself (SIGSTOP, which no
thread outlives); whoever waits for that file then kills everything. Loaded by inside/sitecustomize.py, in
every Python process of the command: it imports nothing of reput until the command does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

BEFORE, HALF, AFTER = "before", "half", "after"
#: What a line of Spark's own words begins with, where a tail prints them for whoever looks into a failure.
SPARK_SAID = "Spark said: "


@dataclass(frozen=True, slots=True)
class Step:
    """A place in the protocol.

    Attributes:
        number: of the step in docs/internals/protocol.md.
        name: short.
        calls: methods of System, or functions of :data:`_FUNCTIONS`, one of which it is.
        path: matches from the beginning of the path below the output.
        when: before the call, after it, or after half of what it writes.
        most: the occurrence that is waited for is drawn from 1 to this; rarer ones come but once a run.
    """

    number: str
    name: str
    calls: tuple[str, ...]
    path: str
    when: str
    most: int = 1


_REMOVAL = ("rmtree", "remove_directory")

STEPS = (
    Step("start 2", "journal opened", ("sync_directory",), r"\.reput$", AFTER),
    Step("start 6", "rolling back queues", ("punch_hole",), r"consumequeue/", AFTER, 3),
    Step("start 6", "rolling back the index", ("punch_hole",), r"index/", BEFORE),
    Step("3", "scratch made", ("make_directory",), r"\.reput/scratch$", AFTER, 3),
    Step("4", "spill half written", ("pwrite",), r"\.reput/scratch/", HALF, 3),
    Step("4", "queue file created, no size yet", ("truncate",), r"consumequeue/", BEFORE, 20),
    Step("4", "units half written", ("pwrite",), r"consumequeue/", HALF, 200),
    Step("6", "index entries half written", ("pwrite",), r"index/", HALF, 9),
    Step("6", "index file created, no size yet", ("truncate",), r"index/", BEFORE, 2),
    Step("6", "index entries of a small batch flushed", ("sync_map",), r"index/", AFTER, 5),
    Step("6", "index slots half shown", ("store_in_map",), r"", HALF, 5),
    Step("8", "queues about to be flushed", ("sync",), r"consumequeue/", BEFORE, 60),
    Step("8", "index flushed", ("sync",), r"index/", AFTER),
    Step("8", "directories flushed", ("sync_directory",), r"consumequeue", AFTER, 5),
    Step("9", "journal record not written", ("pwrite",), r"\.reput/journal$", BEFORE, 5),
    Step("9", "journal record half written", ("pwrite",), r"\.reput/journal$", HALF, 5),
    Step("9", "journal record not flushed", ("sync",), r"\.reput/journal$", BEFORE, 5),
    Step("9", "committed", ("sync",), r"\.reput/journal$", AFTER, 5),
    Step("9", "journal about to be replaced by a shorter one", ("rename",), r"\.reput/journal$", BEFORE),
    Step("10", "ledger data half written", ("pwrite",), r"ledger/part-", HALF, 5),
    Step("10", "ledger data without its commit", ("rename",), r"ledger/_delta_log/", BEFORE, 5),
    Step("10", "ledger committed", ("rename",), r"ledger/_delta_log/", AFTER, 5),
    Step("11", "checkpoint half written", ("pwrite",), r"\.?checkpoint", HALF, 5),
    Step("11", "checkpoint not renamed", ("rename",), r"checkpoint$", BEFORE, 5),
    Step("11", "checkpoint renamed", ("rename",), r"checkpoint$", AFTER, 5),
    Step("12", "scratch not removed", _REMOVAL, r"\.reput/scratch$", BEFORE, 3),
    Step("12", "scratch removed", _REMOVAL, r"\.reput/scratch$", AFTER, 3),
    Step("12", "batch done, Spark not told", ("write",), r"", AFTER, 5),
)

#: Steps that are functions of others than System.
_FUNCTIONS = ("rmtree", "write")
_PART_BYTES = 150_000

#: Of databases and of what is put in a store's place; a tail has none.
IN_PLACE = (
    Step("4", "units put aside, not flushed", ("sync",), r"\.reput/staging/\.reput/rocksdb/", BEFORE, 2),
    Step("database", "made, not named", ("rename",), r"\.reput/staging/consumequeue/CURRENT$", BEFORE),
    Step("swap", "begun", ("exchange",), r"consumequeue$", AFTER),
)

BY_NAME = {step.name: step for step in (*STEPS, *IN_PLACE)}


@dataclass(frozen=True, slots=True)
class Doom:
    """Which step ends a command.

    Attributes:
        out: the output.
        fired: the file that says that it came to it.
        step: its name; None to let the command live.
        occurrence: from 1 on.
        in_spark: do small batches in Spark's tasks, too, as if they were large, cut into small parts.
    """

    out: str
    fired: str
    step: str | None = None
    occurrence: int = 1
    in_spark: bool = False

    def encode(self) -> str:
        return json.dumps(asdict(self))


def doom(text: str) -> None:
    """Have this process work and end as the text says, once it comes to that."""
    doomed = Doom(**json.loads(text))
    then: dict[str, list[Callable[[Any], None]]] = {"reput.spark.sessions": [_tell_all]}
    if doomed.in_spark:
        then["reput.output.writer"] = [lambda writer: setattr(writer, "_INLINE_BYTES", 0)]
        then["reput.job.plan"] = [_small_parts]
    if doomed.step is not None:
        end = _End(BY_NAME[doomed.step], doomed)
        then.setdefault("reput.store.files", []).append(end.replace_system)
        then.setdefault("reput.output.writer", []).append(
            lambda writer: end.wrap(writer.BatchWriter, "write")
        )
    sys.meta_path.insert(0, _AfterImport(then))


def _tell_all(spark: Any) -> None:
    """Print what Spark said before it becomes a sentence: a torture that fails may not fail again."""
    spark_error = spark.spark_error

    def tell(error: BaseException, *places: Any) -> Any:
        print(*(SPARK_SAID + line for line in str(error).splitlines()), sep="\n", file=sys.stderr)
        return spark_error(error, *places)

    spark.spark_error = tell


def _small_parts(planning: Any) -> None:
    source = planning.Plan.source
    planning.Plan.source = lambda plan, **more: source(plan, **more, partBytes=_PART_BYTES)


class _End:
    def __init__(self, step: Step, doomed: Doom) -> None:
        self._step = step
        self._left = doomed.occurrence
        self._out = doomed.out + os.sep
        self._fired = doomed.fired
        self._lock = threading.Lock()

    def replace_system(self, module: ModuleType) -> None:
        """Let the layer that all file writes go through come here first."""
        import shutil

        from reput.store.system import System

        end = self

        def wrapped(method: str) -> Callable[..., Any]:
            original = getattr(System, method)

            def call(self: System, *arguments: Any) -> Any:
                if not end._is_at(method, arguments):
                    return original(self, *arguments)
                if end._step.when == HALF and method == "store_in_map":
                    mapped, at, values = arguments
                    original(self, mapped, at[: len(at) // 2], values[: len(at) // 2])
                elif end._step.when == HALF:
                    fd, data, offset = arguments
                    original(self, fd, data[: len(data) // 2], offset)
                if end._step.when == AFTER:
                    original(self, *arguments)
                end._stop()
                return None

            return call

        methods = {method: wrapped(method) for method in self._step.calls if hasattr(System, method)}
        module.system = type("Doomed", (System,), methods)()  # type: ignore[attr-defined]
        if "rmtree" in self._step.calls:
            self.wrap(shutil, "rmtree")

    def wrap(self, owner: Any, name: str) -> None:
        """Let a function come here first."""
        if name not in self._step.calls:
            return
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if not self._is_at(name, arguments):
                return original(*arguments, **options)
            if self._step.when == AFTER:
                original(*arguments, **options)
            self._stop()
            return None

        setattr(owner, name, call)

    def _is_at(self, call: str, arguments: tuple[Any, ...]) -> bool:
        """Whether this call is the one."""
        if self._step.path and not any(
            re.match(self._step.path, path) for path in self._paths(call, arguments)
        ):
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0

    def _paths(self, call: str, arguments: Iterable[Any]) -> list[str]:
        """The paths below the output that a call is about."""
        found = []
        for argument in arguments:
            if isinstance(argument, int) and call not in _FUNCTIONS:
                with suppress(OSError):
                    argument = Path(f"/proc/self/fd/{argument}").readlink()
            if isinstance(argument, str | Path) and str(argument).startswith(self._out):
                found.append(str(argument)[len(self._out) :])
            if call not in ("rename", "exchange", *_FUNCTIONS):
                break  # numbers that follow are no descriptors
        return found

    def _stop(self) -> None:
        Path(self._fired).write_text(self._step.name)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)  # should anybody wake it


class _AfterImport(MetaPathFinder):
    """Calls something after a module was imported."""

    def __init__(self, then: dict[str, list[Callable[[Any], None]]]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        then = self._then.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_tell(module: ModuleType) -> None:
            load(module)
            for function in then:
                function(module)

        spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
