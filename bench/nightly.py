"""``python -m bench.nightly``: a fleet of three stores, checked on a first night and when each has grown.

The real store writes them: two here, the third one is put into an object store, whose server, versitygw,
runs on the same cores. Each night is a command of its own, `reput check --history`, for which files
that were written just now are old, as a day later. On a third one nothing is new, and a whole check of
the same stores stands beside them. Prints a line per night, and one of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
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
_SEGMENT = 64 << 20
_TOLD = ("requests", "bytes_fetched")
_COMMAND = (
    "from reput.verify import proofs; proofs.RACY_NS = -(10**18); from reput.cli.app import main; main()"
)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.nightly", description=__doc__)
    parser.add_argument("--size", type=size, default=1 << 30, help="bytes of log of a store (default: 1g)")
    parser.add_argument("--growth", type=float, default=0.05, help="of each (default: %(default)s)")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="reput-bench-nightly-", dir=options.dir))
    try:
        stores = [work / name / "store" for name in ("broker-a", "broker-b", "broker-c")]
        conf = work / "broker.conf"
        conf.write_text(f"mappedFileSizeCommitLog={_SEGMENT}\n")
        for store in stores:
            grow(store, options.size)
        access = work / "access.log"
        with gateway(work / "s3", "--access-log", access) as server:
            found = nights(work, stores, conf, server, access, int(options.size * (1 + options.growth)))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(found))


def grow(store: Path, end: int) -> None:
    """Have the real store write until its log has so many bytes, and stop it."""
    config = {"mappedFileSizeCommitLog": _SEGMENT, "flushDiskType": "ASYNC_FLUSH"}
    with JavaStore(_VERSION, store, config, heap="2g", jvm_options=()) as java:
        writer = writer_in(java.jvm, "MassWriter")
        if not java.load():
            raise BenchError(f"{store}: the store did not load; {java.jvm.log_tail()}")
        java.start()
        request = {"bytes": end, "threads": 2, "topics": TOPICS, "queues": QUEUES}
        done = writer.apply({"store": java.store, **request})
        java.wait_dispatched()
        say(f"{store.parent.name}: {human(int(done['end']))}")


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


def nights(
    work: Path, stores: list[Path], conf: Path, server: Gateway, access: Path, end: int
) -> dict[str, Any]:
    """What each night took."""
    url = upload(server, stores[2])
    listed = work / "stores.toml"
    places = [str(store) for store in stores[:2]] + [url]
    tables = "".join(f'[[store]]\nplace = "{place}"\n' for place in places)
    listed.write_text(f'broker_conf = "{conf}"\nrocketmq_version = "{_VERSION}"\n{tables}')
    found: dict[str, Any] = {}
    history: list[str | Path] = ["--history", work / "history"]
    environment = {**os.environ, **server.environment()}
    for name, words in (("first", history), ("grown", history), ("unchanged", history), ("whole", [])):
        if name == "grown":
            for store in stores:
                grow(store, end)
            upload(server, stores[2])
        before = len(access.read_text().splitlines()) if access.exists() else 0
        began = time.perf_counter()
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _COMMAND,
                "check",
                listed,
                *words,
                "--master",
                "local[2]",
                "--json",
            ],
            stdout=subprocess.PIPE,
            env=environment,
        )
        with MemorySampler(process.pid) as memory:
            stdout, _ = process.communicate()
        seconds = time.perf_counter() - began
        told = json.loads(stdout)
        if told["exit_code"]:
            raise BenchError(f"{name}: exit code {told['exit_code']}: {stdout[:2000]!r}")
        requests = [line.split() for line in access.read_text().splitlines()[before:]]
        read = sum(one["remembered"]["bytes_read"] for one in told["stores"]) if words else 0
        log = sum(one["end"] - one["start"] for one in told["stores"])
        found[name] = {
            "seconds": round(seconds, 1),
            "store_seconds": [round(one["seconds"], 1) for one in told["stores"]],
            "log": log,
            "bytes_read": read,
            "requests": len(requests),
            "told": [one.get("remembered", {}).get(name) for one in told["stores"] for name in _TOLD],
            "peak_memory": memory.peak_bytes,
        }
        say(f"{name}: {json.dumps(found[name])}")
    found["proofs"] = sum(path.stat().st_size for path in (work / "history" / "proofs").iterdir())
    return found


if __name__ == "__main__":
    main()
