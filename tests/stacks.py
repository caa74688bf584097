"""``python -m tests.stacks``: reput with each Spark that it runs on, in an environment of its own.

Each gets a virtual environment below ``.venv-stacks`` from its own lock file; then the tests that use Spark
run there: the demo, rebuilds, checks, a tail that is killed, the catalog, the sources by name, SQL and
spark-submit.
docs/data/stacks.md gets the table with ``--write``; what wasn't run keeps its cell, and a Python that isn't
installed is said there. ``python -m tests.stacks oldest``, which ``make test`` runs, tries the oldest Spark
with this very Python, and of the tests those that prove most.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.distribution import found
from tests.marked import between, put_between

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "data" / "stacks.md"
PLACE = ROOT / ".venv-stacks"
_BEGIN, _END = "<!-- stacks: begin -->", "<!-- stacks: end -->"
#: What is run, and by which tests.
RUNS = {
    "demo": ("tests/cli/test_demo.py",),
    "rebuild": ("tests/spark/test_golden.py", "tests/spark/test_rebuild.py"),
    "check": ("tests/spark/test_verify.py",),
    "tail, killed": ("tests/spark/test_tail.py",),
    "catalog": ("tests/spark/test_catalog.py",),
    "sources": ("tests/spark/test_source.py",),
    "SQL": ("tests/spark/test_source_sql.py", "tests/spark/test_ledger_in_spark.py"),
    "spark-submit": ("tests/spark/test_cluster.py",),
}
#: What of these ``make test`` runs with the oldest Spark, in a minute.
OLDEST = {
    **{name: RUNS[name] for name in ("demo", "sources")},
    "rebuild": tuple(
        f"tests/spark/test_golden.py::test_every_byte_is_that_of_the_java_store[5.5.0-{one}-spark]"
        for one in ("mixed", "batch-queue")
    ),
    "tail, killed": ("tests/spark/test_tail.py::test_a_killed_one_is_gone_on_with",),
    "SQL": tuple(
        f"tests/spark/test_source_sql.py::test_{one}" for one in ("tables_by_name", "the_page_runs")
    ),
}
_TIMEOUT = 3600.0
_SUM = re.compile(r"(\d+) (passed|failed|error|errors|skipped)\b")


@dataclass(frozen=True)
class Stack:
    """A Spark and a Python.

    Attributes:
        spark: ``major.minor``; its lock file is ``requirements/stacks/spark-SPARK.txt``.
        python: likewise.
    """

    spark: str
    python: str

    @property
    def name(self) -> str:
        return f"{self.spark}-py{self.python}"

    @property
    def lock(self) -> Path:
        return ROOT / "requirements" / "stacks" / f"spark-{self.spark}.txt"


_OURS = f"{sys.version_info[0]}.{sys.version_info[1]}"
#: The last one is this environment's.
STACKS = (Stack("4.0", "3.10"), Stack("4.1", "3.12"), Stack("4.2", _OURS))


def environment(stack: Stack) -> Path | None:
    """The interpreter of a stack's environment, made where it is missing; None without such a Python."""
    if stack == STACKS[-1]:
        return Path(sys.executable)
    place = PLACE / stack.name
    done = place / "done"
    lock = stack.lock.read_text(encoding="utf-8")
    if done.is_file() and done.read_text(encoding="utf-8") == lock:
        return place / "bin" / "python"
    python = sys.executable if stack.python == _OURS else found(stack.python)
    if python is None:
        return None
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([python, "-m", "venv", place], check=True)
    pip = [place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements" / "build.txt"], check=True)
    more = ("--no-compile", "--require-hashes", "--no-build-isolation", "--use-pep517", "-r", stack.lock)
    subprocess.run([*pip, *more], check=True)
    # Its line of Delta Lake's jars; tests fetch nothing.
    fetch = [place / "bin" / "python", "-c", "from reput.spark.jars import delta_jars; delta_jars()"]
    subprocess.run(fetch, env={**os.environ, "PYTHONPATH": str(ROOT / "lib")}, check=True)
    done.write_text(lock, encoding="utf-8")
    return place / "bin" / "python"


def outcome(python: Path, tests: Sequence[str], level: str) -> str:
    """What a run of tests, of a level (tests/levels.py), comes to: ``12 passed``, ``11 of 12``."""
    places = os.pathsep.join((str(ROOT / "lib"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": places, "REPUT_TESTS": level}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-200:]
    counts = {kind.rstrip("s"): int(count) for count, kind in _SUM.findall(last)}
    passed, wrong = counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    if wrong or done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        return f"{passed} of {passed + wrong}"
    return f"{passed} passed"


def oldest() -> int:
    """Run what proves most with the oldest Spark and this Python; returns 1 if anything failed."""
    began = time.monotonic()
    stack = Stack(STACKS[0].spark, _OURS)
    python = environment(stack)
    assert python is not None
    made = time.monotonic()
    said = outcome(python, [test for tests in OLDEST.values() for test in tests], "gate")
    spent = f"{made - began:.0f} s for its environment, {time.monotonic() - made:.0f} s for the tests"
    print(f"Spark {stack.spark}, Python {stack.python}: {said} ({', '.join(OLDEST)}; {spent})")
    return int(" of " in said)


def _cells(line: str) -> list[str]:
    """Those of a table's line."""
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []


def main(words: Sequence[str] | None = None) -> int:
    """Run; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.stacks", description=__doc__)
    parser.add_argument("stacks", nargs="*", help="4.0, 4.1 or 4.2 alone (default: all), or oldest")
    parser.add_argument("--only", choices=RUNS, action="append", help="this alone")
    parser.add_argument("--write", action="store_true", help="write the table into docs/data/stacks.md")
    options = parser.parse_args(words)
    if options.stacks == ["oldest"]:
        return oldest()
    lines = between(PAGE, _BEGIN, _END).splitlines()
    known = {tuple(row[:2]): row for row in map(_cells, lines) if len(row) > 2}
    rows = []
    for stack in STACKS:
        if options.stacks and stack.spark not in options.stacks:
            rows += [row for (spark, _), row in known.items() if spark.startswith(f"{stack.spark}.")]
            continue
        python = environment(stack)
        if python is None:
            rows.append([stack.spark, stack.python, f"Python {stack.python} isn't installed"])
            continue
        version = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
        spark = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
        kept = known.get((spark, stack.python), [""] * (len(RUNS) + 2))[2:]
        cells = [
            outcome(python, tests, "proof") if not options.only or name in options.only else cell
            for (name, tests), cell in zip(RUNS.items(), kept, strict=True)
        ]
        rows.append([spark, stack.python, *cells])
        print("| " + " | ".join(rows[-1]) + " |", flush=True)
    lines = [f"| Spark | Python | {' | '.join(RUNS)} |", "|---" * (len(RUNS) + 2) + "|"]
    lines += ["| " + " | ".join([*row, *[""] * (len(RUNS) + 2 - len(row))]) + " |" for row in rows]
    if options.write:
        put_between(PAGE, _BEGIN, _END, "\n".join(lines))
    return int(any(" of " in cell or "isn't" in cell for row in rows for cell in row))


if __name__ == "__main__":
    sys.exit(main())
