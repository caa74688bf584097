"""``python -m bench.nightly``: a fleet of stores, checked on a first night and when each has grown.

The real store writes one, which the others are links to; with ``--s3`` one more is put into an
object store, whose server, versitygw, runs on the same cores. Each night is a command of its own,
`reput check --history`, for which files that were written just now are old, as a day later. On a third one
nothing is new, and a whole check of the same stores stands beside them. Prints a line per night, and one of
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.__main__ import size
from bench.errors import BenchError, say
from bench.generate import QUEUES, TOPICS, writer_in
from bench.memory import MemorySampler
from reput.format import names
from reput.store.system import human
from tests.compat.java_store import JavaStore
from tests.remote.gateway import Gateway, gateway

_VERSION = "5.5.0"
#: In each of the command's processes.
_OLD = "from reput.verify import proofs; proofs.RACY_NS = -(10**18)"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.nightly", description=__doc__)
    parser.add_argument("--size", type=size, default=1 << 30, help="bytes of log of a store (default: 1g)")
    parser.add_argument("--stores", type=int, default=2, help="here (default: %(default)s)")
    parser.add_argument("--s3", action="store_true", help="one more, in an object store")
    parser.add_argument("--segment", type=size, default=64 << 20, help="bytes of one (default: 64m)")
    parser.add_argument("--growth", type=float, default=0.05, help="of each (default: %(default)s)")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="reput-bench-nightly-", dir=options.dir))
    try:
        stores = [work / f"broker-{number:03d}" / "store" for number in range(options.stores)]
        conf = work / "broker.conf"
        conf.write_text(f"mappedFileSizeCommitLog={options.segment}\n")
        fleet = Fleet(work, stores, conf, options.segment)
        fleet.grow(options.size)
        end = int(options.size * (1 + options.growth))
        access = work / "access.log"
        with gateway(work / "s3", "--access-log", access) if options.s3 else nullcontext() as server:
            found = nights(fleet, server, access, end)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(found))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Stores here that are all alike."""

    work: Path
    stores: list[Path]
    conf: Path
    segment: int  # bytes

    def grow(self, end: int) -> None:
        """Have the real store write until the first one's log has so many bytes, and link the others."""
        first, *others = self.stores
        config = {"mappedFileSizeCommitLog": self.segment, "flushDiskType": "ASYNC_FLUSH"}
        with JavaStore(_VERSION, first, config, heap="2g", jvm_options=()) as java:
            writer = writer_in(java.jvm, "MassWriter")
            if not java.load():
                raise BenchError(f"{first}: the store did not load; {java.jvm.log_tail()}")
            java.start()
            request = {"bytes": end, "threads": 2, "topics": TOPICS, "queues": QUEUES}
            done = writer.apply({"store": java.store, **request})
            java.wait_dispatched()
            say(f"{first.parent.name}: {human(int(done['end']))}")
        for other in others:
            if not other.is_symlink():
                other.parent.mkdir(parents=True)
                other.symlink_to(first, target_is_directory=True)


def upload(server: Gateway, store: Path) -> str:
    """Put what isn't there yet, or has another size or time, as a backup does."""
    target = server.data / "lake" / "broker-c" / "store"
    for path in sorted(store.rglob("*")):
        there = target / path.relative_to(store)
        if path.is_file() and path.name != names.LOCK:
            facts = path.stat()
            if (
                not there.exists()
                or there.stat().st_size != facts.st_size
                or there.stat().st_mtime < facts.st_mtime
            ):
                server.put(path, f"broker-c/store/{path.relative_to(store).as_posix()}")
    return "s3://lake/broker-c/store"


def nights(fleet: Fleet, server: Gateway | None, access: Path, end: int) -> dict[str, Any]:
    """What each night took."""
    work, stores = fleet.work, fleet.stores
    places = [str(store) for store in stores]
    (work / "sitecustomize.py").write_text(_OLD)
    path = os.pathsep.join([str(work), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    if server is not None:
        places.append(upload(server, stores[0]))
        environment |= server.environment()
    listed = work / "stores.toml"
    tables = "".join(f'[[store]]\nplace = "{place}"\n' for place in places)
    listed.write_text(f'broker_conf = "{fleet.conf}"\nrocketmq_version = "{_VERSION}"\n{tables}')
    found: dict[str, Any] = {}
    history: list[str | Path] = ["--history", work / "history"]
    for name, words in (("first", history), ("grown", history), ("unchanged", history), ("whole", [])):
        if name == "grown":
            fleet.grow(end)
            if server is not None:
                upload(server, stores[0])
        before = len(_lines(access))
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "reput.cli", "check", listed, *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        with MemorySampler(process.pid) as memory:
            stdout, _ = process.communicate()
        seconds = time.perf_counter() - began
        told = json.loads(stdout)
        if told["exit_code"]:
            raise BenchError(f"{name}: exit code {told['exit_code']}: {stdout[:2000]!r}")
        each = [one["seconds"] for one in told["stores"]]
        remembered = [one["remembered"] or {} for one in told["stores"]]
        found[name] = {
            "seconds": round(seconds, 1),
            "a_store": round(statistics.median(each[: len(stores)]), 2),
            "s3": round(each[-1], 1) if server is not None else None,
            "log": sum(one["end"] - one["start"] for one in told["stores"]),
            "bytes_read": sum(one.get("bytes_read", 0) for one in remembered),
            "requests": len(_lines(access)) - before,
            "bytes_fetched": remembered[-1].get("bytes_fetched"),
            "peak_memory": memory.peak_bytes,
        }
        say(f"{name}: {json.dumps(found[name])}")
    found["proofs"] = sum(path.stat().st_size for path in (work / "history" / "proofs").iterdir())
    return found


def _lines(access: Path) -> list[str]:
    return access.read_text().splitlines() if access.exists() else []


if __name__ == "__main__":
    main()
