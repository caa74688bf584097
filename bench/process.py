"""A measured subprocess: wall time, peak memory, and on how many CPUs it may run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import reput
from bench.errors import BenchError
from bench.memory import MemorySampler

_ROOT = Path(__file__).parents[1]
_LIB = Path(reput.__file__).parents[1]
_TAIL = 4000


@dataclass(frozen=True, slots=True)
class Run:
    """What a command took.

    Attributes:
        seconds: wall time from its start to its end.
        peak_bytes: anonymous memory of all its processes together; 0 where it wasn't watched.
        output: its standard output.
    """

    seconds: float
    peak_bytes: int
    output: str


@contextmanager
def pinned(cores: int) -> Iterator[None]:
    """Processes started meanwhile by this thread run on the first ``cores`` of its CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(
    arguments: Sequence[str], cores: int, directory: Path, lib: Path = _LIB, *, watched: bool = True
) -> Run:
    """Run this Python with these arguments and measure it.

    Dirty pages are written back before, so that a run doesn't pay for the one before it.

    Args:
        arguments: what follows the interpreter's name.
        cores: CPUs that it may use.
        directory: its working directory.
        lib: the reput that it imports.
        watched: have a look at its memory again and again, which takes some hundredths of a core.

    Raises:
        BenchError: its exit code isn't 0.
    """
    paths = [str(lib), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed modules are compiled, too
    command = [sys.executable, *arguments]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        os.sync()
        with pinned(cores):
            began = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )
        memory = MemorySampler(process.pid) if watched else None
        try:
            with memory or nullcontext():
                process.wait()
                seconds = time.perf_counter() - began
        except BaseException:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        errors.seek(0)
        said = output.read().decode(errors="replace")
        if process.returncode != 0:
            complaint = errors.read().decode(errors="replace")[-_TAIL:]
            raise BenchError(
                f"{' '.join(command)} ended with {process.returncode}:\n{said[-_TAIL:]}{complaint}"
            )
    return Run(seconds, 0 if memory is None else memory.peak_bytes, said)
