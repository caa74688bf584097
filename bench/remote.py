"""``python -m bench.remote``: a log here and the same in an object store, rebuilt in turn in one session.

Third in each turn comes a restore from there, which copies the log as well; beside it, a copy of the log
alone by ``cp``. The server, versitygw, runs on the same cores. Prints a line per run, and one of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.__main__ import size
from bench.errors import BenchError, say
from bench.generate import log_directory, warm_page_cache, write_log
from bench.warm import rebuilds
from reput.config.stand_in import here
from reput.job import RebuildOptions
from reput.job.restore import restore
from reput.spark.sessions import session
from reput.store.compare import compare
from tests.remote.gateway import gateway

_VERSION = "5.5.0"


def main() -> None:
    """Measure, and compare every byte."""
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=__doc__)
    parser.add_argument("--size", type=size, default=1000 << 20, help="bytes of commit log (default: 1000m)")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--repeat", type=int, default=3, help="measured runs of each (default: %(default)s)")
    options = parser.parse_args()
    home = log_directory(options.dir, _VERSION, options.size)
    log = write_log(options.dir, _VERSION, options.size)
    work = Path(tempfile.mkdtemp(prefix="reput-bench-remote-"))
    try:
        with gateway(work) as server:
            os.environ |= server.environment()
            url = server.upload(log.store, "store")
            seconds: dict[str, list[float]] = {"local": [], "s3": [], "restore": [], "copy": []}
            for number in range(options.repeat + 1):
                outs = {}
                for name, store in (("local", log.store), ("s3", Path(url))):
                    warm_page_cache(log)
                    outs[name] = home / f"out-{name}"
                    shutil.rmtree(outs[name], ignore_errors=True)
                    ((took, summary),) = rebuilds(
                        here(store, derived=False), _VERSION, "local[2]", [outs[name]]
                    )
                    if summary.messages != log.messages or summary.findings:
                        raise BenchError(f"{name}: {summary.messages} of {log.messages} messages")
                    say(f"{name}: {took:.2f} s{'' if number else ', not counted'}")
                    if number:
                        seconds[name].append(took)
                outs["restore"] = home / "out-restore"
                took = restored(url, outs["restore"])
                copied = copy(log.store, home / "out-copy")
                say(f"restore: {took:.2f} s; a copy here: {copied:.2f} s{'' if number else ', not counted'}")
                if number:
                    seconds["restore"].append(took)
                    seconds["copy"].append(copied)
                for name in ("s3", "restore"):
                    found = compare(outs["local"], outs[name])
                    if found.differences:
                        raise BenchError(f"{name}: other bytes: {found.differences[0]}")
    finally:
        shutil.rmtree(work)
    local, *others = (median(seconds[name]) for name in ("local", "s3", "restore"))
    rates = {"rate_of_local": round(local / others[0], 3), "restore_of_local": round(local / others[1], 3)}
    print(json.dumps({"bytes": log.end, **seconds, **rates}))


def restored(url: str, out: Path) -> float:
    """Restore a store from elsewhere; the seconds that it took."""
    shutil.rmtree(out, ignore_errors=True)
    options = RebuildOptions(store=Path(), out=out, rocketmq_version=_VERSION)
    began = time.perf_counter()
    done = restore(url, options, lambda: session("reput bench", "local[2]"))
    if done.exit_code:
        raise BenchError(f"restore: exit code {done.exit_code}")
    return time.perf_counter() - began


def copy(store: Path, out: Path) -> float:
    """Copy a store's log here, and flush it; the seconds that it took."""
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    subprocess.run(["cp", "-r", store, out], check=True)
    subprocess.run(["sync", "-f", out], check=True)
    took = time.perf_counter() - began
    shutil.rmtree(out)
    return took


if __name__ == "__main__":
    main()
