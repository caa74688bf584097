"""``python -m bench``: measure, compare, and print one table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import java_load, machine, reput_runs, table
from bench.errors import say, told
from bench.generate import Log, log_directory, write_log
from bench.result import Result
from tests.compat.jars import VERSIONS

PARTS = ("java", "cold", "warm", "floor", "cores")
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def size(text: str) -> int:
    """Bytes of ``300m``, ``4g`` or a plain number.

    Raises:
        ValueError: it is none of them.
    """
    digits, shift = (text[:-1], _UNITS[text[-1].lower()]) if text[-1:].lower() in _UNITS else (text, 0)
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(text)
    return int(digits) << shift


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--size", type=size, default=4 << 30, help="bytes of commit log (default: 4g)")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / "reput-bench",
        help="where log and outputs go; a log that is there is used again (default: %(default)s)",
    )
    parser.add_argument(
        "--written-by", choices=VERSIONS, default="5.5.0", help="who writes the log (default: %(default)s)"
    )
    parser.add_argument(
        "--versions",
        nargs="+",
        choices=VERSIONS,
        default=["4.9.7", "5.5.0"],
        help="whose rebuild is measured, and whose bytes reput writes (default: 4.9.7 5.5.0)",
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        help="these parts alone; without java, its earlier result for this log is used",
    )
    parser.add_argument("--cores", type=int, default=2, help="CPUs for each run (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the table into FILE, too, between its markers"
    )
    parsed = parser.parse_args(words)
    if parsed.repeat < 1:
        parser.error("--repeat: at least one run")
    if not 1 <= parsed.cores <= len(os.sched_getaffinity(0)):
        parser.error(f"--cores: this process may use {len(os.sched_getaffinity(0))}")
    return parsed


def measure(options: argparse.Namespace, log: Log) -> list[Result]:
    """Run the chosen parts.

    Raises:
        BenchError: a run failed, or built other bytes than the real store.
    """
    home = log_directory(options.dir, log.written_by, options.size)
    results: list[Result] = []
    for version in options.versions:
        if "java" in options.only:
            results.append(java_load.measure(home, log, version, options.cores, options.repeat))
        elif known := java_load.known_result(home, version):
            results.append(known)
    if {"cold", "warm", "floor", "cores"}.intersection(options.only):
        for version in options.versions:
            java_load.check_reference(home, version)
        reput_runs.prepare(home, options.cores)
    if "cold" in options.only:
        for version in options.versions:
            results.append(reput_runs.measure_cold(home, log, version, options.cores, options.repeat))
    if "warm" in options.only:
        for version in options.versions:
            results.append(reput_runs.measure_warm(home, log, version, options.cores, options.repeat))
    if "floor" in options.only:
        for version in options.versions:
            results.append(reput_runs.measure_floor(home, log, version, options.cores, options.repeat))
    if "cores" in options.only and options.cores > 1:
        newest = options.versions[-1]
        results.append(java_load.measure(home, log, newest, 1, options.repeat, keep=False))
        results.append(reput_runs.measure_cold(home, log, newest, 1, options.repeat))
        results.append(reput_runs.measure_warm(home, log, newest, 1, options.repeat))
    return results


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    if options.write is not None:
        table.check(options.write)
    say(f"a log of {options.size:,} bytes in {options.dir}")
    log = write_log(options.dir, options.written_by, options.size)
    results = measure(options, log)
    about = machine.facts(options.dir)
    text = table.render(results, log.messages, log.end, about)
    if options.write is not None:
        table.write(options.write, text)
    if options.json:
        facts = {
            "log": {"bytes": log.end, "messages": log.messages, "written_by": log.written_by},
            "machine": about,
            "results": [{**result.to_dict(), "median_seconds": result.median_seconds} for result in results],
        }
        print(json.dumps(facts, indent=2))
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
