"""``python -m bench.hosts``: what it costs that each output file has one writer, as on several hosts.

One process and one Spark session: rebuilds of one log by turns, all tasks into the same files, and each file
by one process. The first of each isn't counted. The outputs are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.__main__ import size
from bench.errors import BenchError, told
from bench.generate import Log, log_directory, warm_page_cache, write_log
from reput.job import RebuildOptions, rebuild
from reput.spark.sessions import session
from reput.store.compare import compare
from tests.compat.jars import VERSIONS

WAYS = {"same_files": True, "one_writer": False}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.hosts", description=__doc__)
    parser.add_argument("--size", type=size, default=4 << 30, help="bytes of commit log (default: 4g)")
    parser.add_argument("--version", choices=VERSIONS, default="5.5.0")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--repeat", type=int, default=5, help="rebuilds of each (default: %(default)s)")
    return parser.parse_args(words)


def measure(log: Log, home: Path, version: str, repeat: int) -> dict[str, object]:
    """Rebuild by turns.

    Raises:
        BenchError: the outputs differ.
        ReputError: a run failed.
    """
    warm_page_cache(log)
    master = f"local[{len(os.sched_getaffinity(0))}]"
    outs = {way: home / f"hosts-{way}" for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    stages: dict[str, dict[str, float]] = {}
    for number in range(repeat + 1):
        for way, single_host in WAYS.items():
            shutil.rmtree(outs[way], ignore_errors=True)
            options = RebuildOptions(log.store, outs[way], rocketmq_version=version, single_host=single_host)
            began = time.perf_counter()
            summary = rebuild(options, lambda: session("reput bench", master))
            if number:
                seconds[way].append(time.perf_counter() - began)
                stages[way] = summary.stages
    found = compare(*outs.values())
    if found.differences or not found.queue_bytes or not found.index_bytes:
        raise BenchError(f"the outputs differ: {found}")
    for out in outs.values():
        shutil.rmtree(out)
    medians = {way: median(each) for way, each in seconds.items()}
    return {
        "bytes": log.end,
        "messages": log.messages,
        "seconds": seconds,
        "stages": stages,
        "one_writer_to_same_files": medians["one_writer"] / medians["same_files"],
    }


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    log = write_log(options.dir, options.version, options.size)
    home = log_directory(options.dir, options.version, options.size)
    print(json.dumps(measure(log, home, options.version, options.repeat), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
