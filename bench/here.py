"""``python -m bench.here``: verification and rebuild in place, without Spark and on it, by turns.

Each run is a process of its own that begins cold, with the log in the page cache. The store is whole after
the first rebuild.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.__main__ import size
from bench.compare import ratio
from bench.errors import say, told
from bench.generate import Log, warm_page_cache, write_log
from bench.process import Run, run
from reput.format import names
from reput.store.swap import KEPT

_VERSION = "5.5.0"
_HERE = {
    "verify": "from reput.verify import VerifyOptions, verify; "
    "assert not verify(VerifyOptions(root, rocketmq_version=version), None).findings",
    "rebuild": "from reput.job import RebuildOptions, rebuild; "
    "rebuild(RebuildOptions(root, rocketmq_version=version), None)",
}
_SPARK = {"verify": ["check", "--master", "local[*]"], "rebuild": ["rebuild", "--in-place"]}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m bench.here", description=__doc__)
    parser.add_argument("--size", type=size, default=size("4g"), help="bytes of commit log (default: 4g)")
    parser.add_argument("--dir", type=Path, default=Path("/tmp/reput-bench"), help="where the log is kept")
    parser.add_argument("--repeat", type=int, default=6, help="pairs of runs of each (default: 6)")
    parser.add_argument("--cores", type=int, default=2, help="CPUs for each run (default: 2)")
    parser.add_argument("--here-alone", action="store_true", help="leave Spark out")
    return parser.parse_args(words)


def measure(what: str, where: str, log: Log, cores: int) -> Run:
    """One run.

    Raises:
        BenchError: it failed.
    """
    if what == "rebuild":
        for name in (*names.OUTPUT, *(path.name for path in log.store.glob(f"{KEPT}*"))):
            path = log.store / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    warm_page_cache(log)
    given = "import sys; from pathlib import Path; root, version = Path(sys.argv[1]), sys.argv[2]"
    store = str(log.store)
    words = (
        ["-c", f"{given}; {_HERE[what]}", store, _VERSION]
        if where == "here"
        else ["-m", "reput.cli", *_SPARK[what], store, "--rocketmq-version", _VERSION]
    )
    return run(words, cores, log.store.parent)


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    log = write_log(options.dir, _VERSION, options.size)
    places = ["here"] if options.here_alone else ["here", "spark"]
    for what in ("rebuild", "verify"):
        runs: dict[str, list[Run]] = {where: [] for where in places}
        for number in range(options.repeat):
            for where in places if number % 2 else reversed(places):
                runs[where].append(measure(what, where, log, options.cores))
        for where, found in runs.items():
            seconds = statistics.median(one.seconds for one in found)
            peak = max(one.peak_bytes for one in found) >> 20
            say(f"{what:8} {where:6} {seconds:6.2f} s, at most {peak} MiB")
        if len(places) == 2:
            pairs = [(a.seconds, b.seconds) for a, b in zip(runs["spark"], runs["here"], strict=True)]
            part = ratio(pairs)
            say(f"{what:8} here in {part.median:.2f} of Spark's time ({part.low:.2f} to {part.high:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
