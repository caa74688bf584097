"""``python -m bench.verify``: how fast ``reput verify`` is, beside a warm rebuild of the same store.

One process and one Spark session: two rebuilds, whose files then take their place beside the log, and
verifications of the store that this makes. The first verification counts, too: the rebuilds have warmed the
session up, and nothing else is to be expected of it. Each has to find nothing.
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

from bench.__main__ import size
from bench.errors import BenchError
from bench.generate import Log, log_directory, warm_page_cache, write_log
from bench.warm import rebuilds
from reput.errors import ReputError
from reput.format import names
from reput.spark.sessions import session
from reput.verify import VerifyOptions, verify
from tests.compat.jars import VERSIONS, JarsUnavailableError
from tests.compat.jvm import JavaError

_DERIVED = (names.CONSUME_QUEUE, names.INDEX, names.CHECKPOINT)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.verify", description=__doc__)
    parser.add_argument("--size", type=size, default=4 << 30, help="bytes of commit log (default: 4g)")
    parser.add_argument("--version", choices=VERSIONS, default="5.5.0")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--repeat", type=int, default=3, help="verifications (default: %(default)s)")
    return parser.parse_args(words)


def measure(log: Log, home: Path, version: str, repeat: int) -> dict[str, object]:
    """Two rebuilds, and ``repeat`` verifications.

    Args:
        log: of the store.
        home: the log's directory.
        version: the dialect.
        repeat: how many verifications.

    Raises:
        BenchError: a verification found something, or looked at less than all.
        ReputError: a run failed.
    """
    store, *outs = (home / f"verify-{name}" for name in ("store", "first", "second"))
    for directory in (store, *outs):
        shutil.rmtree(directory, ignore_errors=True)
    (store / names.COMMIT_LOG).mkdir(parents=True)
    for segment in log.segments:
        os.link(segment, store / names.COMMIT_LOG / segment.name)
    warm_page_cache(log)
    master = f"local[{len(os.sched_getaffinity(0))}]"
    *_, (rebuilt, _summary) = rebuilds(store, version, master, outs)
    for name in _DERIVED:
        (outs[-1] / name).rename(store / name)
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        report = verify(
            VerifyOptions(store=store, rocketmq_version=version), lambda: session("reput bench", master)
        )
        seconds.append(time.perf_counter() - began)
        if report.findings or report.messages != log.messages:
            raise BenchError(f"{report.messages} messages verified, {len(report.findings)} findings")
    for directory in (store, *outs):
        shutil.rmtree(directory)
    median = sorted(seconds)[len(seconds) // 2]
    return {
        "bytes": log.end,
        "messages": log.messages,
        "rebuild_seconds": rebuilt,
        "verify_seconds": seconds,
        "verify_to_rebuild": rebuilt / median,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    try:
        log = write_log(options.dir, options.version, options.size)
        home = log_directory(options.dir, options.version, options.size)
        print(json.dumps(measure(log, home, options.version, options.repeat), indent=2))
    except (BenchError, JarsUnavailableError, JavaError, ReputError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
