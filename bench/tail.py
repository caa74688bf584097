"""``python -m bench.tail``: what ``reput tail`` costs, and how far it is behind a store that is written to.

The real store writes on the same machine. First nothing happens: the processor time and the memory of the
tail's processes. Then the store writes at steady rates; a reader polls the consume queues that reput writes
and compares the clock with each message's storeTimestamp. Then the store is silent for a while, and a few
single messages follow. Then it writes as fast as it can, by turns with a tail that works and with one that is
stopped (SIGSTOP). In the end every consume-queue byte is compared with the store's own.

With ``--backlog`` it is how fast a tail catches up instead: bench.backlog.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench import backlog, machine, usage
from bench.__main__ import size
from bench.errors import BenchError, say, told
from bench.generate import log_directory, write_log, writer_in
from bench.memory import MemorySampler
from reput.config.settings import StoreSettings
from reput.format import names
from reput.job.status import RunNote
from reput.output.journal import read_state
from reput.replay.state import State
from reput.store.compare import compare
from tests.compat.jars import VERSIONS
from tests.compat.java_store import JavaStore

_ROOT = Path(__file__).parents[1]
_TOPICS, _QUEUES = 4, 4
_BODY = 170  # records of 300 bytes
_START_SECONDS = 90.0
_SAMPLE_SECONDS = 0.5
_BETWEEN_SECONDS = 3.0
#: Written as fast as the store can, some seconds' worth.
_FAST_MESSAGES = 1_000_000
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.tail", description=__doc__)
    parser.add_argument(
        "--rate",
        type=int,
        nargs="*",
        default=[100_000, 200_000],
        help="messages a second, one after the other (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long each (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=20, help="first seconds that don't count (JIT warm-up)")
    parser.add_argument(
        "--idle", type=int, default=60, help="seconds that are watched before (default: %(default)s)"
    )
    parser.add_argument(
        "--settle", type=int, default=100, help="seconds before that, after the start (default: %(default)s)"
    )
    parser.add_argument(
        "--silence",
        type=int,
        default=180,
        help="seconds of silence before ten single messages (default: %(default)s)",
    )
    parser.add_argument(
        "--pairs", type=int, default=3, help="of runs with and without a tail (default: %(default)s)"
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
    words = ["tail", str(store), "--out", str(out), "--rocketmq-version", options.version]
    facts: dict[str, object] = {"machine": machine.facts(options.dir)}
    with (
        JavaStore(options.version, store, heap="2g", jvm_options=()) as java,
        (home / "tail.log").open("w") as log,
    ):
        writer = writer_in(java.jvm, "PacedWriter")
        if not java.load():
            raise BenchError(f"{store}: the store did not load")
        java.start()
        load = {"store": java.store, "topics": _TOPICS, "queues": _QUEUES, "body": _BODY}

        def put(**how: int) -> dict[str, int]:
            return dict(writer.apply({**load, **how}))

        put(rate=1000, seconds=1)
        tail = subprocess.Popen(
            [sys.executable, "-m", "reput.cli", *words, "--metrics-port", "0", "--json"],
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
            with MemorySampler(tail.pid, interval=_SAMPLE_SECONDS) as memory:
                if options.idle:
                    time.sleep(options.settle)
                    facts["idle"] = usage.over(options.idle, memory.processes, tail.pid)
                loads = [_load(options, rate, put, out, memory) for rate in options.rate]
                quiet = 0.0
                if options.silence:
                    time.sleep(options.silence * 2 // 3)
                    facts["idle_after"] = usage.over(options.silence / 3, memory.processes, tail.pid)
                    quiet = time.time()
                    put(rate=1, seconds=10)
                time.sleep(2)
                seen, _ = probe.communicate(timeout=60)
                if options.pairs:
                    facts["broker"] = _with_and_without(options.pairs, put, out, memory)
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
    for one in loads:
        _reckon(one, by_second, memory, options.skip)
    facts |= {"loads": loads, "batches": _state(out).batches, "stages": json.loads(output)["stages"]}
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


def _load(
    options: argparse.Namespace,
    rate: int,
    put: Callable[..., dict[str, int]],
    out: Path,
    memory: MemorySampler,
) -> dict[str, Any]:
    """Write at a rate; what each of Spark's and of reput's steps took is read from the tail's metrics."""
    before = _state(out).batches
    processes = memory.processes
    used = usage.look(processes, 0)
    began = time.time()
    with _steps(out) as steps:
        done = put(rate=rate, seconds=options.seconds)
    ended = time.time()
    now = usage.look(processes, 0)
    core = sum(now[pid].seconds - used[pid].seconds for pid in now if pid in used) / (ended - began)
    say(f"{rate:,} messages/s for {options.seconds} s, {done['behind'] / 1e6:.0f} ms late")
    time.sleep(_BETWEEN_SECONDS)
    return {
        "rate": rate,
        "began": began,
        "ended": ended,
        "writer_late_ms": done["behind"] / 1e6,
        "batches": _state(out).batches - before,
        "core": core,
        "steps_ms": {name: statistics.mean(found) * 1000 for name, found in sorted(steps.items())},
    }


def _reckon(
    load: dict[str, Any], by_second: dict[int, list[list[int]]], memory: MemorySampler, skip: int
) -> None:
    """Add to a load what the reader saw."""
    began, ended = load.pop("began"), load.pop("ended")
    counts = [pair for second, pairs in by_second.items() if began + skip <= second < ended for pair in pairs]
    load["latency_ms"] = percentiles(counts)
    load["peak_bytes"] = memory.peak_between(began, ended)
    load["tenths"] = _tenths(by_second, memory, began, ended)


@contextmanager
def _steps(out: Path) -> Iterator[dict[str, list[float]]]:
    """Meanwhile, how long each step of Spark's last trigger took, seconds, looked at once a second."""
    note = RunNote.read(out)
    found: dict[str, list[float]] = defaultdict(list)
    over = threading.Event()

    def watch() -> None:
        while note is not None and note.metrics is not None and not over.wait(1.0):
            with suppress(OSError), urllib.request.urlopen(note.metrics, timeout=5) as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith("reput_trigger_duration_seconds{"):
                        name, _, value = line.partition('"')[2].partition('"} ')
                        found[name].append(float(value))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _with_and_without(
    pairs: int, put: Callable[..., dict[str, int]], out: Path, memory: MemorySampler
) -> dict[str, Any]:
    """The store's own throughput, messages/s, by turns with a tail and with one that is stopped."""
    rates: dict[str, list[float]] = {"without": [], "with": []}
    _await_end(out, put(messages=_FAST_MESSAGES)["end"])
    for _ in range(pairs):
        for kind, found in rates.items():
            stopped = memory.processes if kind == "without" else ()
            _signal(stopped, signal.SIGSTOP)
            try:
                done = put(messages=_FAST_MESSAGES)
            finally:
                _signal(stopped, signal.SIGCONT)
            found.append(done["messages"] / done["nanos"] * 1e9)
            _await_end(out, done["end"])
    medians = {kind: statistics.median(found) for kind, found in rates.items()}
    return {**rates, "ratio": medians["with"] / medians["without"]}


def _signal(processes: Iterable[int], number: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _await_end(out: Path, end: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while _state(out).cursor < end:
        if time.monotonic() > deadline:
            raise BenchError(f"the tail doesn't reach {end}")
        time.sleep(0.5)
    time.sleep(_BETWEEN_SECONDS)


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


def _state(out: Path) -> State:
    return read_state(out / names.REPUT / names.JOURNAL)[1]


def catch_up(options: argparse.Namespace) -> dict[str, object]:
    """How fast a tail catches up.

    Raises:
        BenchError: a process failed, or a byte differs.
    """
    log = write_log(options.dir, options.version, options.backlog)
    return backlog.measure(log_directory(options.dir, options.version, options.backlog), log, options.version)


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    facts = measure(options) if options.backlog is None else catch_up(options)
    print(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
