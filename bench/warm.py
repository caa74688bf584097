"""Rebuild the same store several times in one process and one Spark session.

``python -m bench.warm STORE VERSION MASTER OUT...``; prints one JSON list, an object for each OUT in turn.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from reput.job import RebuildOptions, rebuild
from reput.spark import session


def main(store: str, version: str, master: str, *outs: str) -> None:
    """Rebuild into each of the directories."""
    rebuilds = []
    for out in outs:
        options = RebuildOptions(store=Path(store), out=Path(out), rocketmq_version=version)
        began = time.perf_counter()
        summary = rebuild(options, lambda: session("reput bench", master))
        rebuilds.append({"seconds": time.perf_counter() - began, "summary": summary.to_dict()})
    print(json.dumps(rebuilds))


if __name__ == "__main__":
    main(*sys.argv[1:])
