"""``python -m bench.plan``: how long what a start does takes to foretell on a large store."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench import java_load
from bench.__main__ import size
from bench.errors import BenchError, say, told
from bench.generate import log_directory, warm_page_cache, write_log
from bench.process import run
from bench.table import markdown
from reput.broker.snapshot import take
from reput.broker.walk import store_timestamp
from reput.config.settings import StoreSettings
from reput.diagnosis.check import check
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.recovery.plan import MOST_READ, plan
from reput.verify.plan import VerifyOptions
from tests.compat.jars import VERSIONS
from tests.compat.java_store import JavaStore

_NO_LIMIT = 0x7FFFFFFF


def _nothing(_store: Path) -> None:
    pass


def _kill(store: Path) -> None:
    (store / names.ABORT).touch()


def _lose(name: str) -> Callable[[Path], None]:
    return lambda store: shutil.rmtree(store / name)


#: What the start meets, and what makes it so of a store that was stopped in good order.
STATES: dict[str, Callable[[Path], None]] = {
    "stopped": _nothing,
    "killed": _kill,
    "stopped, queues lost": _lose(names.CONSUME_QUEUE),
    "stopped, index lost": _lose(names.INDEX),
}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--size", type=size, default=4 << 30, help="bytes of commit log (default: 4g)")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=list(VERSIONS))
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--one", type=Path, metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help="read all that the broker would")
    return parser.parse_args(words)


def prepare(home: Path, reference: Path) -> dict[str, Path]:
    """A store for each state, links all, from the one that RocketMQ 5.5.0 rebuilt.

    The real store loads and stops it in good order; the checkpoint then says what that of a broker says which
    has just written the log.
    """
    sound = home / "plan"
    if not (sound / "sound").exists():
        shutil.rmtree(sound, ignore_errors=True)
        shutil.copytree(reference, sound / "being-made", copy_function=os.link, ignore=_own)
        for name in (names.INDEX, names.CONSUME_QUEUE):
            shutil.rmtree(sound / "being-made" / name)
            shutil.copytree(reference / name, sound / "being-made" / name)
        root = sound / "being-made"
        (root / names.ABORT).touch()
        with JavaStore(
            "5.5.0", root, {"commitLogRecoverMaxNum": _NO_LIMIT}, heap="4g", jvm_options=()
        ) as store:
            if not store.load():
                raise BenchError(f"{root} did not load; {store.jvm.log_tail()}")
            store.start()
            store.shutdown()
        _set_checkpoint(root)
        root.rename(sound / "sound")
    stores = {}
    for state, change in STATES.items():
        stores[state] = sound / state.replace(", ", "-").replace(" ", "-")
        shutil.rmtree(stores[state], ignore_errors=True)
        shutil.copytree(sound / "sound", stores[state], copy_function=os.link)
        change(stores[state])
    return stores


def _own(_directory: str, found: list[str]) -> set[str]:
    known = {names.COMMIT_LOG, names.CONSUME_QUEUE, names.INDEX}
    return {name for name in found if not (name in known or name.isdigit() or name.startswith("bench-"))}


def _set_checkpoint(root: Path) -> None:
    snapshot = take(StoreSettings.load(root, None, "5.5.0"))
    walked = plan(snapshot).prediction.recovered
    if walked is None or walked.last_valid < 0:
        raise BenchError(f"{root}: no message in the last segment")
    last = store_timestamp(snapshot.log.files, snapshot.segment_size, walked.last_valid)
    checkpoint = StoreCheckpoint(last, last, 0, 0, walked.last_valid, walked.last_valid)
    (root / names.CHECKPOINT).write_bytes(checkpoint.encode())


def measure_one(store: Path, version: str, *, full: bool) -> dict[str, float]:
    """Seconds of a quick check and of a plan in this process, with kernels ready."""
    with tempfile.TemporaryDirectory() as directory:  # a store of nothing: the kernels are loaded by it
        (Path(directory) / names.COMMIT_LOG).mkdir()
        (Path(directory) / names.COMMIT_LOG / names.offset_name(0)).write_bytes(bytes(4096))
        plan(take(StoreSettings.load(Path(directory), None, version)))
    settings = StoreSettings.load(store, None, version)
    began = time.perf_counter()
    check(VerifyOptions(store, None, None, version), quick=True)
    checked = time.perf_counter()
    result = plan(take(settings), None if full else MOST_READ)
    ended = time.perf_counter()
    walks = (result.prediction.recovered, result.prediction.dispatched, result.prediction.tail)
    read = sum(walk.bytes for walk in walks if walk is not None)
    unread = result.prediction.unread
    return {
        "check": checked - began,
        "plan": ended - checked,
        "read": read,
        "unread": 0 if unread is None else unread[1] - unread[0],
        "exit_code": int(result.loses),
    }


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    if options.one is not None:
        print(json.dumps(measure_one(options.one, options.versions[0], full=options.full)))
        return 0
    log = write_log(options.dir, "5.5.0", options.size)
    home = log_directory(options.dir, "5.5.0", options.size)
    if java_load.known_result(home, "5.5.0") is None:
        java_load.measure(home, log, "5.5.0", 2, 1)
    stores = prepare(home, java_load.reference(home, "5.5.0"))
    warm_page_cache(log)
    lines = []
    for state, store in stores.items():
        for version in options.versions:
            wanted = ["-m", "bench.plan", "--one", str(store), "--versions", version]
            wanted += ["--full"] if options.full else []
            runs = [json.loads(run(wanted, 2, options.dir).output) for _ in range(options.repeat)]
            lines.append(_line(state, version, runs))
            say(" | ".join(lines[-1]))
    print(markdown(["broker was", "start of", "check", "plan", "of the log read", "not read", "exit"], lines))
    return 0


def _line(state: str, version: str, runs: list[dict[str, float]]) -> list[str]:
    check, planned = ([one[name] for one in runs] for name in ("check", "plan"))
    read, unread = (f"{runs[0][name] / (1 << 30):.2f} GiB" for name in ("read", "unread"))
    times = f"{median(planned):.2f} s ({min(planned):.2f} to {max(planned):.2f})"
    return [state, version, f"{median(check):.2f} s", times, read, unread, str(int(runs[0]["exit_code"]))]


if __name__ == "__main__":
    sys.exit(main())
