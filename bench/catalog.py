"""``python -m bench.catalog``: ``reput catalog`` beside a rebuild of the same log, and Spark SQL reading it.

Whole commands, by turns: a rebuild on Spark, and a catalog, which is done without it, without bodies; a read
of all columns by Spark SQL, which keeps nothing, and a catalog with bodies. Each catalog makes a new table,
which has to have each message once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench import reput_runs
from bench.__main__ import size
from bench.errors import BenchError, say
from bench.generate import Log, log_directory, warm_page_cache, write_log
from bench.process import Run, run
from tests.compat.jars import VERSIONS, JarsUnavailableError
from tests.compat.jvm import JavaError

_READ = """
import sys
from reput.source import read
from reput.spark.sessions import session
store, version, master = sys.argv[1:]
rows = read(session("reput bench", master), store, rocketmqVersion=version)
rows.write.format("noop").mode("overwrite").save()
"""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.catalog", description=__doc__)
    parser.add_argument("--size", type=size, default=4 << 30, help="bytes of commit log (default: 4g)")
    parser.add_argument("--version", choices=VERSIONS, default="5.5.0")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=("plain", "bodies"),
        default=("plain", "bodies"),
        help="these tables alone",
    )
    return parser.parse_args(words)


def measure(log: Log, home: Path, options: argparse.Namespace) -> dict[str, object]:
    """Run them by turns.

    Raises:
        BenchError: a command failed, or a table has other messages than the log.
    """
    cores = len(os.sched_getaffinity(0))
    master = f"local[{cores}]"
    known = ["--rocketmq-version", options.version, "--json"]
    out = home / "catalog-out"
    reput_runs.prepare(home, cores)
    runs: dict[str, list[Run]] = {}

    def timed(name: str, *words: str) -> Run:
        shutil.rmtree(out, ignore_errors=True)
        warm_page_cache(log)
        done = run(words, cores, home)
        runs.setdefault(name, []).append(done)
        say(f"{name}: {done.seconds:.2f} s")
        return done

    def cataloged(name: str, *asked: str) -> None:
        words = ("catalog", str(log.store), "--table", str(out), *known, *asked)
        done = timed(f"catalog, {name}", "-m", "reput.cli", *words)
        _check(log, out, json.loads(done.output))
        sizes[name] = sum(path.stat().st_size for path in out.glob("*=*/*.parquet"))

    sizes: dict[str, int] = {}
    for _ in range(options.repeat):
        if "plain" in options.only:
            words = ("rebuild", str(log.store), "--out", str(out), "--master", master, *known)
            timed("rebuild", "-m", "reput.cli", *words)
            cataloged("plain")
        if "bodies" in options.only:
            timed("read, bodies", "-c", _READ, str(log.store), options.version, master)
            cataloged("bodies", "--bodies")
    shutil.rmtree(out)
    seconds = {name: [one.seconds for one in each] for name, each in runs.items()}
    medians = {name: median(each) for name, each in seconds.items()}
    beside = (("catalog, plain", "rebuild"), ("catalog, bodies", "read, bodies"))
    return {
        "bytes": log.end,
        "messages": log.messages,
        "seconds": seconds,
        "peak_bytes": {name: max(one.peak_bytes for one in each) for name, each in runs.items()},
        "table_bytes": sizes,
        "ratios": {f"{one} / {other}": medians[one] / medians[other] for one, other in beside if one in runs},
    }


def _check(log: Log, table: Path, done: dict[str, object]) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    held = QueryBuilder().register("held", DeltaTable(str(table)))
    query = 'SELECT count(*) AS all, count(DISTINCT "physicalOffset") AS different FROM held'
    (found,) = pa.table(held.execute(query).read_all()).to_pylist()
    if set(found.values()) != {log.messages} or done["messages"] != log.messages:
        raise BenchError(f"the log has {log.messages} messages, the table {found}, and it was said: {done}")


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    try:
        log = write_log(options.dir, options.version, options.size)
        home = log_directory(options.dir, options.version, options.size)
        print(json.dumps(measure(log, home, options), indent=2))
    except (BenchError, JarsUnavailableError, JavaError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
