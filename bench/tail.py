"""``python -m bench.tail``: how far ``reput tail`` is behind a store that is being written to.

The real store writes at a steady rate, on the same machine; a reader polls the consume queues that reput
writes and compares the clock with each message's storeTimestamp. Then the store is silent for a while, and a
few single messages follow. In the end every consume-queue byte is compared with the store's own.

With ``--backlog`` it is how fast a tail catches up instead: bench.backlog.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import backlog
from bench.__main__ import size
from bench.errors import BenchError, say
from bench.generate import log_directory, write_log, writer_in
from bench.memory import MemorySampler
from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.format import names
from reput.output.journal.journal import read
from reput.store.compare import compare
from tests.compat.jars import VERSIONS, JarsUnavailableError
from tests.compat.java_store import JavaStore
from tests.compat.jvm import JavaError

_ROOT = Path(__file__).parents[1]
_TOPICS, _QUEUES = 4, 4
_BODY = 170  # records of 300 bytes
_START_SECONDS = 90.0
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.tail", description=__doc__)
    parser.add_argument("--rate", type=int, default=50_000, help="messages a second (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=300, help="how long (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=10, help="first seconds that don't count (JIT warm-up)")
    parser.add_argument(
        "--silence", type=int, default=0, help="seconds of silence before ten single messages (default: none)"
    )
    parser.add_argument(
        "--backlog",
        type=size,
        metavar="SIZE",
        help="catch up with a finished log of so many bytes (4g) instead, and rebuild it beside that",
    )
    parser.add_argument("--version", choices=VERSIONS, default="5.5.0")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def percentiles(histogram: list[list[int]]) -> dict[str, float]:
    """Percentiles and the largest of [[latency in ms, messages], …], in any order."""
    counts = sorted(map(tuple, histogram))
    total = sum(count for _, count in counts)
    found: dict[str, float] = {"messages": total}
    for wanted in _PERCENTILES:
        seen = 0
        for ms, count in counts:
            seen += count
            if seen >= total * wanted / 100:
                found[f"p{wanted:g}"] = ms
                break
    found["max"] = counts[-1][0] if counts else 0
    return found


def measure(options: argparse.Namespace) -> dict[str, object]:
    """One run.

    Raises:
        BenchError: a process failed, or a byte differs.
    """
    home = options.dir / "tail"
    shutil.rmtree(home, ignore_errors=True)
    store, out = home / "store", home / "out"
    store.mkdir(parents=True)
    conf = home / "broker.conf"
    conf.write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "lib"), str(_ROOT)])}
    reput = [sys.executable, "-m", "reput.cli"]
    with (
        JavaStore(options.version, store, heap="2g", jvm_options=()) as java,
        (home / "tail.log").open("w") as log,
    ):
        writer = writer_in(java.jvm, "PacedWriter")
        if not java.load():
            raise BenchError(f"{store}: the store did not load")
        java.start()
        load = {"store": java.store, "topics": _TOPICS, "queues": _QUEUES, "body": _BODY}
        writer.apply({**load, "rate": 1000, "seconds": 1})
        tail = subprocess.Popen(
            [*reput, "tail", str(store), "--out", str(out), "--rocketmq-version", options.version, "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        probe = None
        try:
            _await_first_batch(tail, out, home)
            file_size = StoreSettings.load(store, conf, options.version).consume_queue_file_size
            probe = subprocess.Popen(
                [sys.executable, "-m", "bench.probe", str(store), str(out), str(file_size)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            time.sleep(3)
            with MemorySampler(tail.pid) as memory:
                began = time.time()
                done = writer.apply({**load, "rate": options.rate, "seconds": options.seconds})
                ended = time.time()
                behind_ms = done["behind"] / 1e6
            say(f"{options.rate:,} messages/s for {options.seconds} s, {behind_ms:.0f} ms late")
            quiet = 0.0
            if options.silence:
                time.sleep(options.silence)
                quiet = time.time()
                writer.apply({**load, "rate": 1, "seconds": 10})
            time.sleep(2)
            seen, _ = probe.communicate(timeout=60)
            tail.send_signal(signal.SIGTERM)
            output, _ = tail.communicate(timeout=90)
        finally:
            for process in (tail, probe):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
        java.wait_dispatched()
        java.shutdown()
    if tail.returncode != 0:
        raise BenchError(
            f"reput tail ended with {tail.returncode}: {(home / 'tail.log').read_text()[-3000:]}"
        )
    by_second = {int(second): counts for second, counts in json.loads(seen).items()}
    load_counts = [
        pair
        for second, counts in by_second.items()
        if began + options.skip <= second < ended
        for pair in counts
    ]
    facts: dict[str, object] = {
        "rate": options.rate,
        "seconds": options.seconds,
        "writer_late_ms": behind_ms,
        "latency_ms": percentiles(load_counts),
        "peak_bytes": memory.peak_bytes,
        "tenths": _tenths(by_second, memory, began, ended),
        "batches": len(_batches(out)),
        "stages": json.loads(output)["stages"],
    }
    if quiet:
        late = [pair for second, counts in by_second.items() if second >= int(quiet) for pair in counts]
        first = [pair for second, counts in by_second.items() if second == int(quiet) for pair in counts]
        facts["after_silence_ms"] = {"first": percentiles(first)["max"], **percentiles(late)}
    comparison = compare(store, out)
    if comparison.differing_bytes:
        raise BenchError(
            "\n".join(["the output differs from the store's own files:", *comparison.differences])
        )
    facts["equal_bytes"] = comparison.queue_bytes + comparison.index_bytes
    return facts


def _tenths(
    by_second: dict[int, list[list[int]]], memory: MemorySampler, began: float, ended: float
) -> list[dict[str, object]]:
    """Latency and memory of each tenth of the run: whether they depend on how much came before."""
    found: list[dict[str, object]] = []
    for number in range(10):
        begin, end = (began + (ended - began) * (number + step) / 10 for step in (0, 1))
        counts = [pair for second, pairs in by_second.items() if begin <= second < end for pair in pairs]
        found.append(
            {
                **percentiles(counts),
                "peak_bytes": memory.peak_between(begin, end),
                "median_bytes": memory.median_between(begin, end),
            }
        )
    return found


def _await_first_batch(tail: subprocess.Popen[bytes], out: Path, home: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and tail.poll() is None:
        if any((out / names.CONSUME_QUEUE).glob("*/*/*")):
            return
        time.sleep(0.2)
    raise BenchError(f"reput tail wrote no unit: {(home / 'tail.log').read_text()[-3000:]}")


def _batches(out: Path) -> list[object]:
    return list(read(out / names.REPUT / names.JOURNAL)[1])


def catch_up(options: argparse.Namespace) -> dict[str, object]:
    """How fast a tail catches up.

    Raises:
        BenchError: a process failed, or a byte differs.
    """
    log = write_log(options.dir, options.version, options.backlog)
    return backlog.measure(log_directory(options.dir, options.version, options.backlog), log, options.version)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    try:
        facts = measure(options) if options.backlog is None else catch_up(options)
    except (BenchError, JarsUnavailableError, JavaError, ReputError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
