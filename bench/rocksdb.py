"""``python -m bench.rocksdb``: queues in RocksDB, by reput and by the real store's own load of the same log.

The real store starts on the log alone as after a crash, with ``storeType=defaultRocksDB``, and is timed until
all is dispatched and RocksDB has flushed it. reput is timed warm: the second rebuild of a session. A time
counts only if both have the same keys and values, read by RocksDB's Java library; ``min`` keys apart, which
the store writes when a queue is asked for. Then light queues in great number, by reput alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.__main__ import size
from bench.errors import BenchError, say, told
from bench.generate import Log, log_directory, warm_page_cache, write_log
from bench.memory import MemorySampler
from bench.process import pinned, run
from bench.queues import light_queues
from reput.format import names
from tests.compat import rocksdb
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore
from tests.compat.jvm import Jvm

VERSIONS = ("5.3.3", "5.5.0")
_ROCKSDB: dict[str, object] = {"storeType": "defaultRocksDB"}
_LIGHT: dict[str, object] = {**_ROCKSDB, "enableLmq": True, "enableMultiDispatch": True}
_HEAP = "4g"
_JVM_OPTIONS = ("-XX:-UseSerialGC", "-XX:+UseG1GC", f"-Xms{_HEAP}")
_LIMITS_RECOVERY = ("5.5.0",)
_NO_LIMIT = 0x7FFFFFFF
#: Light queues that each message is for, and messages of each.
_NAMED, _EACH = 3, 3
#: Where `bench.queues --one` leaves the second rebuild of its session.
_SECOND = "1"


@dataclass(slots=True)
class Measured:
    """Runs of one side.

    Attributes:
        who: the real store or reput, and what.
        seconds: of each run.
        peak_bytes: anonymous memory, the most of all runs.
        stages: of the last run, seconds.
    """

    who: str
    seconds: list[float]
    peak_bytes: int
    stages: dict[str, float]

    @property
    def median(self) -> float:
        """Of the seconds."""
        return sorted(self.seconds)[len(self.seconds) // 2]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.rocksdb", description=__doc__)
    parser.add_argument("--size", type=size, default=4 << 30, help="bytes of commit log (default: 4g)")
    parser.add_argument("--version", choices=VERSIONS, default="5.5.0")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--light", type=int, default=1_000_000, help="light queues (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=("java", "reput", "light"), help="default: all")
    return parser.parse_args(words)


def by_java(log: Log, root: Path, version: str, cores: int, config: Mapping[str, object]) -> Measured:
    """The real store's load of the log into RocksDB; the store is stopped cleanly and kept.

    Raises:
        BenchError: it didn't load, or found another end of the log.
    """
    _link(log, root)
    (root / names.ABORT).touch()
    warm_page_cache(log)
    os.sync()
    more = {"commitLogRecoverMaxNum": _NO_LIMIT} if version in _LIMITS_RECOVERY else {}
    with (
        pinned(cores),
        JavaStore(version, root, {**config, **more}, heap=_HEAP, jvm_options=_JVM_OPTIONS) as store,
        MemorySampler(store.jvm.process.pid) as memory,
    ):
        began = time.perf_counter()
        if not store.load():
            raise BenchError(f"RocketMQ {version} didn't load the store; {store.jvm.log_tail()}")
        loaded = time.perf_counter()
        store.start()
        store.wait_dispatched(timeout=3600)
        dispatched = time.perf_counter()
        for queues in store.rocksdb_queues():
            queues.flush()
        flushed = time.perf_counter()
        if int(store.store.getMaxPhyOffset()) != log.end:
            raise BenchError(f"RocketMQ {version} found another end of the log than {log.end}")
        store.shutdown()
        stages = {
            "load": loaded - began,
            "dispatch": dispatched - loaded,
            "flush": flushed - dispatched,
            "shutdown (not counted)": time.perf_counter() - flushed,
        }
    say(f"RocketMQ {version}: {flushed - began:.2f} s")
    return Measured(f"RocketMQ {version}", [flushed - began], memory.peak_bytes, stages)


def by_reput(log: Log, out: Path, version: str, cores: int, config: Mapping[str, object]) -> Measured:
    """The second rebuild of a session, into a directory.

    Raises:
        BenchError: it failed, missed messages or had findings.
    """
    home = out.parent
    conf = home / "rocksdb.conf"
    conf.write_text(conf_text(config), encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    warm_page_cache(log)
    done = run(["-m", "bench.queues", "--one", str(log.store), version, str(conf), str(out)], cores, home)
    facts = json.loads(done.output)
    if facts["messages"] != log.messages or facts["findings"]:
        raise BenchError(f"reput: {facts['messages']:,} of {log.messages:,}, {facts['findings']} findings")
    say(f"reput: {facts['seconds']:.2f} s")
    return Measured("reput", [facts["seconds"]], done.peak_bytes, facts["stages"])


def check_same(jvm: Jvm, one: Path, other: Path) -> int:
    """Compare two stores' queues key by key; returns how many units there are.

    Raises:
        BenchError: they differ.
    """
    units = [rocksdb.digest(jvm, root / names.CONSUME_QUEUE, "default") for root in (one, other)]
    if units[0] != units[1]:
        raise BenchError(f"other units: {units[0]} in {one.name}, {units[1]} in {other.name}")
    ends = []
    for root in (one, other):
        found = rocksdb.entries(jvm, root / names.CONSUME_QUEUE, "offset")
        ends.append({key: value for key, value in found.items() if b"\x01min\x01" not in key})
    differing = {key for key in ends[0].keys() | ends[1].keys() if ends[0].get(key) != ends[1].get(key)}
    if differing:
        raise BenchError(f"{len(differing)} other max or checkpoint keys: {sorted(differing)[:3]}")
    return units[0][0]


def _link(log: Log, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    (root / names.COMMIT_LOG).mkdir(parents=True)
    for segment in log.segments:
        os.link(segment, root / names.COMMIT_LOG / segment.name)


def _together(runs: Sequence[Measured]) -> Measured:
    seconds = [second for one in runs for second in one.seconds]
    return Measured(runs[0].who, seconds, max(one.peak_bytes for one in runs), runs[-1].stages)


def measure(options: argparse.Namespace) -> dict[str, object]:
    """All that was asked for; what came of it, as JSON has it.

    Raises:
        BenchError: a run failed, or the two sides differ.
    """
    cores = len(os.sched_getaffinity(0))
    parts = options.only or ("java", "reput", "light")
    told: dict[str, object] = {"version": options.version, "cores": cores}
    home = log_directory(options.dir, options.version, options.size)
    if "java" in parts or "reput" in parts:
        log = write_log(options.dir, options.version, options.size)
        told |= {"bytes": log.end, "messages": log.messages}
        java_root, out = home / "rocksdb-java", home / "rocksdb-reput"
        java, reput = [], []
        # In turns: what slows this machine for a while slows both.
        for _ in range(options.repeat):
            if "java" in parts:
                java.append(by_java(log, java_root, options.version, cores, _ROCKSDB))
            if "reput" in parts:
                reput.append(by_reput(log, out, options.version, cores, _ROCKSDB))
            if java and reput:
                with Jvm(options.version) as jvm:
                    told["units"] = check_same(jvm, java_root, out / _SECOND)
                say(f"both have the same {told['units']:,} units")
        sides = [_together(runs) for runs in (java, reput) if runs]
        told["runs"] = [asdict(side) for side in sides]
        if len(sides) == 2:
            told["times_as_fast"] = sides[0].median / sides[1].median
        for root in (java_root, out):
            shutil.rmtree(root, ignore_errors=True)
    if "light" in parts:
        log = light_queues(options.dir, options.version, options.light, _EACH, _NAMED)
        out = log.store.parent / "rocksdb-reput"
        light = by_reput(log, out, options.version, cores, _LIGHT)
        with Jvm(options.version) as jvm:
            units, _ = rocksdb.digest(jvm, out / _SECOND / names.CONSUME_QUEUE, "default")
        wanted = log.messages + options.light * _EACH
        if units != wanted:
            raise BenchError(f"{units:,} units of light queues and their topic, not {wanted:,}")
        shutil.rmtree(out)
        each = light.median / options.light
        told["light"] = {**asdict(light), "queues": options.light, "seconds_per_queue": each}
    return told


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    print(json.dumps(measure(arguments(words)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
