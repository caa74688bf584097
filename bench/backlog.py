"""How fast ``reput tail`` catches up with a log that is there already, beside a warm rebuild of the same log.

One process and one Spark session: two rebuilds, then a tail. Measured are the second rebuild, from its call
to its return, and the tail, from its call to the commit of the batch that leaves the log's last message at
most. That one may come later: where it stood at the first look, it is left alone for two seconds
(docs/internals/live-log.md). The outputs of rebuild and tail are compared.

``python -m bench.backlog STORE VERSION MASTER END FIRST SECOND TAIL`` runs the three in this process, into
these directories, and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

from bench.errors import BenchError
from bench.generate import Log, warm_page_cache
from bench.process import run
from bench.warm import rebuilds
from reput.job.options import TailOptions
from reput.job.tail import tail
from reput.output.writer import BatchWriter
from reput.spark.sessions import session
from reput.store.compare import compare

_LAST_MESSAGE = 64 << 10


def measure(home: Path, log: Log, version: str) -> dict[str, object]:
    """Two rebuilds and one tail.

    Args:
        home: the log's directory.
        log: what to catch up with.
        version: the dialect.

    Raises:
        BenchError: one of them failed, or they wrote different bytes.
    """
    cores = len(os.sched_getaffinity(0))
    outs = [home / f"backlog-{name}" for name in ("first", "second", "tail")]
    for directory in outs:
        shutil.rmtree(directory, ignore_errors=True)
    warm_page_cache(log)
    words = [str(log.store), version, f"local[{cores}]", str(log.end), *map(str, outs)]
    facts = json.loads(run(["-m", "bench.backlog", *words], cores, home).output)
    found = compare(outs[1], outs[2])
    if found.differing_bytes:
        raise BenchError("\n".join(["the tail wrote other bytes than the rebuild:", *found.differences]))
    for directory in outs:
        shutil.rmtree(directory)
    caught_up = next(
        batch["seconds"] for batch in facts["batches"] if log.end - batch["end"] <= _LAST_MESSAGE
    )
    return {
        "bytes": log.end,
        "messages": log.messages,
        "rebuild_seconds": facts["rebuild_seconds"],
        "rebuild_bytes_per_second": log.end / facts["rebuild_seconds"],
        "tail_seconds": caught_up,
        "tail_bytes_per_second": log.end / caught_up,
        "tail_to_rebuild": facts["rebuild_seconds"] / caught_up,
        "batches": facts["batches"],
        "stages": facts["stages"],
        "equal_bytes": found.queue_bytes + found.index_bytes,
    }


def main(store: str, version: str, master: str, end: str, *outs: str) -> None:
    """Rebuild into the first two directories, and let a tail catch up in the third."""
    *rebuilt, followed = map(Path, outs)
    *_, (seconds, _summary) = rebuilds(Path(store), version, master, rebuilt)
    stopping = threading.Event()
    batches: list[dict[str, float]] = []

    def committed(writer: BatchWriter) -> None:
        batches.append({"seconds": time.perf_counter() - began, "end": writer.state.cursor})
        if writer.state.cursor >= int(end):
            stopping.set()

    began = time.perf_counter()
    summary = tail(
        TailOptions(store=Path(store), out=followed, rocketmq_version=version),
        lambda: session("reput bench", master),
        stopping,
        committed,
    )
    print(json.dumps({"rebuild_seconds": seconds, "batches": batches, "stages": summary.stages}))


if __name__ == "__main__":
    main(*sys.argv[1:])
