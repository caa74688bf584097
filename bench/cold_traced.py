"""``reput`` with a note of when each step of its start was reached: ``cold_traced.py NOTES WORD...``.

Run as a script, so that it can trace the reput of another tree; :mod:`bench.cold` does. NOTES gets one JSON
list: of each step its name, the time (``CLOCK_MONOTONIC``, seconds), and the processor seconds that each
program below this process had used by then.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_notes: list[tuple[str, float, dict[str, float]]] = []


def processor_seconds(root: int) -> dict[str, float]:
    """Of a process and its descendants, by program; what ended and was waited for counts for who waited."""
    found: dict[int, tuple[int, str, float]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            found[int(place.name)] = int(fields[1]), name, sum(map(int, fields[11:15])) / _TICKS
    tree, grown = {root}, True
    while grown:
        more = {pid for pid, (parent, _, _) in found.items() if parent in tree} - tree
        tree |= more
        grown = bool(more)
    by_program: dict[str, float] = {}
    for pid in tree & found.keys():
        _, name, used = found[pid]
        program = "command" if pid == root else "JVM" if name == "java" else "workers"
        by_program[program] = by_program.get(program, 0.0) + used
    return by_program


def note(step: str) -> None:
    """Note that a step was reached, the first time."""
    if step not in (name for name, _, _ in _notes):
        _notes.append((step, time.monotonic(), processor_seconds(os.getpid())))


def _noting(function: Callable[..., Any], before: str | None, after: str | None) -> Callable[..., Any]:
    @wraps(function)
    def noted(*given: Any, **named: Any) -> Any:
        if before is not None:
            note(before)
        result = function(*given, **named)
        if after is not None:
            note(after)
        return result

    return noted


#: By module: the function or method, and the steps that are reached when it is called and when it returns.
_WATCHED: dict[str, list[tuple[str, str | None, str | None]]] = {
    "reput.cli.app": [("start_spark", "nothing refused", "session")],
    "pyspark.java_gateway": [("launch_gateway", "JVM started", "JVM answers")],
    "pyspark.core.context": [("SparkContext.__init__", None, "Spark context")],
    "reput.spark.runner": [("SparkRunner._run", None, "first task done")],
    "pyspark.sql.streaming.readwriter": [("DataStreamWriter.start", "stream planned", "query started")],
    "reput.output.writer": [("BatchWriter.write", "first batch", "batch committed")],
    "reput.stream": [("until_it_ends", None, "query ended")],
    "reput.cli.output": [("printed", "result", None)],
}


def _write(notes: Path) -> None:
    note("ending")
    notes.write_text(json.dumps(_notes), encoding="utf-8")


class _Watcher(importlib.abc.MetaPathFinder):
    """Wraps the watched functions of a module when it is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> Any:
        if name not in _WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def watched(module: ModuleType) -> None:
            run(module)
            for place, before, after in _WATCHED[name]:
                owner: Any = module
                *path, last = place.split(".")
                for part in path:
                    owner = getattr(owner, part)
                setattr(owner, last, _noting(getattr(owner, last), before, after))

        spec.loader.exec_module = watched  # type: ignore[method-assign]
        return spec


def main(notes: str, *words: str) -> None:
    """Run the command with these words."""
    note("interpreter")
    sys.meta_path.insert(0, _Watcher())
    with suppress(ImportError):  # an earlier reput
        from reput.spark import ahead

        ahead.begin(words)
    from reput.cli import main as command

    note("imported")
    atexit.register(_write, Path(notes))  # runs before what was begun earlier ends
    command(list(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
