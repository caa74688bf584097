"""The start of a rebuild, step by step: ``python -m bench.cold [--against TREE]``.

Runs the whole command again and again, in turns with that of another tree if there is one, and prints when
each step was reached and what processor time the command, its JVM and its workers had taken by then: medians.
The store is the demonstration's, or with ``--size`` the benchmark's log of that size. Every output is
compared with the files that RocketMQ wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import java_load
from bench.__main__ import size
from bench.errors import BenchError, say
from bench.generate import Log, log_directory, warm_page_cache, write_log
from reput.demo import VERSION, unpack
from reput.store.compare import compare

_HERE = Path(__file__).parents[1]
_TRACED = Path(__file__).with_name("cold_traced.py")
_PROGRAMS = ("command", "JVM", "workers")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one run.

    Attributes:
        name: what was reached.
        seconds: since the command was started.
        processor: seconds by then, of command, JVM and workers; not known at the end.
    """

    name: str
    seconds: float
    processor: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Given:
    """What is rebuilt.

    Attributes:
        reference: a directory with the files that RocketMQ made of it.
        log: of the benchmark; None for the demonstration's store.
    """

    store: Path
    words: tuple[str, ...]
    reference: Path
    log: Log | None = None


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cold", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="TREE", help="another work tree of reput")
    parser.add_argument("--size", type=size, help="a log of the benchmark of so many bytes")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each tree (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print all runs as JSON")
    return parser.parse_args(words)


def once(tree: Path, given: _Given, scratch: Path) -> list[Step]:
    """Run a tree's command once.

    Raises:
        BenchError: it failed, or wrote other bytes than RocketMQ.
    """
    out, notes = scratch / "out", scratch / "notes"
    shutil.rmtree(out, ignore_errors=True)
    if given.log is not None:
        warm_page_cache(given.log)
    os.sync()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = f"{tree / 'lib'}:{tree}"
    words = [*("-q", "rebuild", str(given.store), "--out", str(out)), *given.words]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(_TRACED), str(notes), *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    ended = time.monotonic()
    if done.returncode != 0:
        raise BenchError(f"{tree} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    if found := compare(given.reference, out).differences:
        raise BenchError(f"{tree} wrote other bytes than RocketMQ: {found[0]} ({len(found)} in all)")
    steps = [
        Step(name, at - began, tuple(used.get(program, 0.0) for program in _PROGRAMS))
        for name, at, used in json.loads(notes.read_text(encoding="utf-8"))
    ]
    return [*steps, Step("ended", ended - began, ())]


def table(runs: dict[str, list[list[Step]]]) -> str:
    """Medians of each step, a column a tree; a step that not all runs have is left out."""
    names = [step.name for step in next(iter(runs.values()))[0]]
    head = [f"{tree}: {what}" for tree in runs for what in ("s", *_PROGRAMS)]
    lines = [f"| step | {' | '.join(head)} |", f"| --- |{' ---: |' * len(head)}"]
    for name in names:
        cells: list[str] = []
        for tree in runs.values():
            found = [step for run in tree for step in run if step.name == name]
            if len(found) < len(tree):
                cells += [""] * (1 + len(_PROGRAMS))
                continue
            cells.append(f"{median(step.seconds for step in found):.2f}")
            used = zip(*(step.processor for step in found), strict=True)
            cells += [f"{median(program):.2f}" for program in used] or [""] * len(_PROGRAMS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    options = arguments(words)
    trees = {"this": _HERE} | ({} if options.against is None else {"other": options.against.resolve()})
    runs: dict[str, list[list[Step]]] = {tree: [] for tree in trees}
    try:
        with tempfile.TemporaryDirectory(prefix="reput-cold-", dir=_made(options.dir)) as place:
            given = _given(options, Path(place))
            for tree in trees.values():  # compiles kernels and modules, once per tree
                once(tree, given, Path(place))
            for number in range(options.repeat):
                for name, tree in trees.items() if number % 2 else reversed(trees.items()):
                    runs[name].append(once(tree, given, Path(place)))
                    say(f"{name}: {runs[name][-1][-1].seconds:.2f} s")
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(
            json.dumps(
                {
                    name: [[(s.name, s.seconds, s.processor) for s in run] for run in of]
                    for name, of in runs.items()
                }
            )
        )
    else:
        print(table(runs))
        if options.against is not None:
            this, other = (median(run[-1].seconds for run in runs[name]) for name in ("this", "other"))
            print(f"\nthis takes {this / other:.2f} times as long as the other")
    return 0


def _given(options: argparse.Namespace, place: Path) -> _Given:
    if options.size is None:
        demo = unpack(place / "demo")
        words = ("--broker-conf", str(demo.broker_conf), "--rocketmq-version", VERSION)
        return _Given(demo.root, words, demo.root)
    log = write_log(options.dir, VERSION, options.size)
    home = log_directory(options.dir, VERSION, options.size)
    if java_load.known_result(home, VERSION) is None:
        java_load.measure(home, log, VERSION, len(os.sched_getaffinity(0)), 1)
    return _Given(log.store, ("--rocketmq-version", VERSION), java_load.reference(home, VERSION), log)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


if __name__ == "__main__":
    sys.exit(main())
