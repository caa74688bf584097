"""Rebuild the same store several times in one process and one Spark session.

``python -m bench.warm STORE VERSION MASTER OUT...``; prints one JSON list, an object for each OUT in turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from reput.job import RebuildOptions, Summary, rebuild
from reput.spark.sessions import session


def rebuilds(store: Path, version: str, master: str, outs: Iterable[Path]) -> Iterator[tuple[float, Summary]]:
    """Rebuild into each of the directories; the seconds that it took, and its summary."""
    for out in outs:
        options = RebuildOptions(store=store, out=out, rocketmq_version=version)
        began = time.perf_counter()
        summary = rebuild(options, lambda: session("reput bench", master))
        yield time.perf_counter() - began, summary


def main(store: str, version: str, master: str, *outs: str) -> None:
    """Rebuild into each of the directories, and print what came of it."""
    done = rebuilds(Path(store), version, master, map(Path, outs))
    print(json.dumps([{"seconds": seconds, "summary": summary.to_dict()} for seconds, summary in done]))


if __name__ == "__main__":
    main(*sys.argv[1:])
