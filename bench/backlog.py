"""How fast ``reput tail`` catches up with a log that is there already, beside a warm rebuild of the same log.

Measured is from the moment that the tail begins to work on its first batch, which is before Spark has planned
it, until the batch is committed that leaves the log's last message at most: the process's start isn't in it,
but all that a first batch pays for in a new session is. The last message may come later: one that stood there
at the first look is left alone for two seconds (docs/live-log.md). The rebuild is the second one of its
process (bench.warm). Both outputs are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.errors import BenchError, say
from bench.generate import Log, warm_page_cache
from bench.process import run
from reput.format import names
from reput.sink.journal import Journal, read_state
from reput.store.compare import compare

_ROOT = Path(__file__).parents[1]
_LOOK_SECONDS = 0.1
_LOOK_FOR_WORK_SECONDS = 0.01
_LONGEST_SECONDS = 1800.0
_STOP_SECONDS = 90.0
_LAST_MESSAGE = 64 << 10


def measure(home: Path, log: Log, version: str) -> dict[str, object]:
    """One rebuild, then one tail.

    Args:
        home: the log's directory.
        log: what to catch up with.
        version: the dialect.

    Raises:
        BenchError: one of them failed, or they wrote different bytes.
    """
    cores = len(os.sched_getaffinity(0))
    first, second, out = (home / f"backlog-{name}" for name in ("first", "second", "tail"))
    for directory in (first, second, out):
        shutil.rmtree(directory, ignore_errors=True)
    warm_page_cache(log)
    done = run(
        ["-m", "bench.warm", str(log.store), version, f"local[{cores}]", str(first), str(second)], cores, home
    )
    shutil.rmtree(first)
    rebuild = json.loads(done.output)[-1]["seconds"]
    say(f"rebuild, warm: {rebuild:.2f} s")
    warm_page_cache(log)
    os.sync()
    summary, began = _catch_up(home, log, version, out)
    ends = _commits(out, began)
    seconds = next(after for after, end in ends if log.end - end <= _LAST_MESSAGE)
    say(f"tail: {seconds:.2f} s")
    found = compare(second, out)
    if found.differing_bytes:
        raise BenchError("\n".join(["the tail wrote other bytes than the rebuild:", *found.differences]))
    for directory in (second, out):
        shutil.rmtree(directory)
    return {
        "bytes": log.end,
        "messages": log.messages,
        "rebuild_seconds": rebuild,
        "rebuild_bytes_per_second": log.end / rebuild,
        "tail_seconds": seconds,
        "tail_bytes_per_second": log.end / seconds,
        "tail_to_rebuild": rebuild / seconds,
        "last_message_seconds": ends[-1][0],
        "batches": [{"seconds": after, "end": end} for after, end in ends],
        "stages": summary["stages"],
        "equal_bytes": found.queue_bytes + found.index_bytes,
    }


def _catch_up(home: Path, log: Log, version: str, out: Path) -> tuple[dict[str, object], float]:
    """Let a tail come to the log's end, and stop it; returns its summary, and when its work began."""
    command = [sys.executable, "-m", "reput.cli", "tail", str(log.store), "--out", str(out)]
    with (home / "backlog-tail.log").open("w+") as said:
        tail = subprocess.Popen(
            [*command, "--rocketmq-version", version, "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "lib"), str(_ROOT)])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
        )
        try:
            began = _await_work(tail, out)
            is_there = _await_end(tail, log, out)
            tail.send_signal(signal.SIGTERM)
            output, _ = tail.communicate(timeout=_STOP_SECONDS)
        finally:
            if tail.poll() is None:
                tail.kill()
                tail.wait()
        if not is_there or tail.returncode != 0:
            said.seek(0)
            raise BenchError(f"reput tail ended with {tail.returncode}:\n{said.read()[-4000:]}")
    summary: dict[str, object] = json.loads(output)
    return summary, began


def _await_work(tail: subprocess.Popen[bytes], out: Path) -> float:
    """When the tail began its first batch, as ``time.time``: that makes the directory for scratch."""
    scratch = out / names.REPUT / names.SCRATCH
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not scratch.exists() and time.monotonic() < deadline and tail.poll() is None:
        time.sleep(_LOOK_FOR_WORK_SECONDS)
    return time.time()


def _await_end(tail: subprocess.Popen[bytes], log: Log, out: Path) -> bool:
    """Whether the tail commits the log's end before it ends, and in time."""
    journal = out / names.REPUT / names.JOURNAL
    deadline = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline and tail.poll() is None:
        # Its first batch was after the moment from which on a signal ends it cleanly.
        if journal.exists() and read_state(journal)[1].cursor >= log.end:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _commits(out: Path, began: float) -> list[tuple[float, int]]:
    """Of each batch: when it was committed, s after the work began, and its end."""
    with Journal.open(out / names.REPUT / names.JOURNAL) as journal:
        return [
            (journal.committed_at(number) - began, journal.batch(number).end)
            for number in range(1, journal.state.batches + 1)
        ]
