"""``python -m bench.here``: whole commands, from a cold shell to their end, the log in the page cache.

``check`` of a small store and a large one, and ``mend --apply`` of the large one without index and with one
queue left (without any, the start makes all, and a mend nothing): without Spark and on it, by turns.
Then ``check --quick`` of a store with many segments and queues.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.__main__ import size
from bench.compare import ratio
from bench.errors import say, told
from bench.generate import Log, warm_page_cache, write_log
from bench.process import Run, run
from reput.format import commitlog, consumequeue, names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.commitlog import Record
from reput.store.swap import KEPT

_VERSION = "5.5.0"
_SMALL = 8 << 20
_SEGMENT = 1 << 30
_QUEUE_FILE = 300_000 * consumequeue.UNIT_LENGTH
_SPARK = ["--master", "local[*]"]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m bench.here", description=__doc__)
    parser.add_argument("--size", type=size, default=size("4g"), help="bytes of commit log (default: 4g)")
    parser.add_argument(
        "--dir", type=Path, default=Path("/tmp/reput-bench"), help="where the stores are kept"
    )
    parser.add_argument("--repeat", type=int, default=6, help="runs of each (default: 6)")
    parser.add_argument("--cores", type=int, default=2, help="CPUs for each run (default: 2)")
    parser.add_argument("--here-alone", action="store_true", help="leave Spark out")
    parser.add_argument("--segments", type=int, default=1000, help="of the store with many (default: 1000)")
    parser.add_argument("--queues", type=int, default=10_000, help="of the store with many (default: 10000)")
    return parser.parse_args(words)


def command(words: Sequence[str], store: Path, cores: int) -> Run:
    """One run of a command.

    Raises:
        BenchError: it failed.
    """
    conf = store.parent / "broker.conf"
    conf.write_text("# all as it is by default\n", encoding="utf-8")
    given = [str(store), "--rocketmq-version", _VERSION, "--broker-conf", str(conf)]
    return run(["-m", "reput.cli", *words, *given], cores, store.parent)


def lose(log: Log) -> None:
    """Take the index and all queues but one away, and what an earlier mend kept."""
    queues = sorted((log.store / names.CONSUME_QUEUE).glob("*/*"))[1:]
    for place in (*queues, log.store / names.INDEX, *log.store.glob(f"{KEPT}*")):
        shutil.rmtree(place, ignore_errors=True)
    warm_page_cache(log)


def many(directory: Path, segments: int, queues: int) -> Path:
    """A store of sparse segments of 1 GiB, with a hundred short messages in each, and of so many queues."""
    store = directory / f"many-{segments}-{queues}" / "store"
    if (store / names.CONSUME_QUEUE).exists():
        return store
    shutil.rmtree(store, ignore_errors=True)
    units: dict[tuple[str, int], bytes] = {}
    (store / names.COMMIT_LOG).mkdir(parents=True)
    number = 0
    for base in range(0, segments * _SEGMENT, _SEGMENT):
        data = bytearray()
        for _ in range(100):
            queue = number % queues
            place = Record(
                topic=b"light-%06d" % (queue // 8),
                queue_id=queue % 8,
                body=b"one line of text",
                queue_offset=number // queues,
                physical_offset=base + len(data),
                born_timestamp=1_700_000_000_000,
                store_timestamp=1_700_000_000_000 + number,
            )
            record = commitlog.encode(place)
            unit = consumequeue.unit(base + len(data), len(record), 0)
            name = place.topic.decode(), place.queue_id
            units[name] = units.get(name, b"") + unit
            data += record
            number += 1
        if base < (segments - 1) * _SEGMENT:
            data += struct.pack(">II", _SEGMENT - len(data), commitlog.MAGIC_BLANK)
        path = store / names.COMMIT_LOG / names.offset_name(base)
        path.write_bytes(data)
        with path.open("r+b") as file:
            file.truncate(_SEGMENT)
    last = 1_700_000_000_000 + number - 1
    (store / names.CHECKPOINT).write_bytes(StoreCheckpoint(last, last, last).encode())
    for (topic, queue_id), found in units.items():
        path = names.queue_file(store, topic, queue_id, 0)
        path.parent.mkdir(parents=True)
        path.write_bytes(found)
        with path.open("r+b") as file:
            file.truncate(_QUEUE_FILE)
    return store


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    small, log = (write_log(options.dir, _VERSION, one) for one in (_SMALL, options.size))
    for one in (small, log):
        lose(one)
        command(["rebuild", "--in-place"], one.store, options.cores)
        warm_page_cache(one)
    _compared("check, 8 MiB", ["check"], small.store, lambda: None, options)
    _compared(f"check, {options.size >> 20} MiB", ["check"], log.store, lambda: None, options)
    _compared(f"mend, {options.size >> 20} MiB", ["mend", "--apply"], log.store, lambda: lose(log), options)
    store = many(options.dir, options.segments, options.queues)
    runs = [command(["check", "--quick"], store, options.cores) for _ in range(options.repeat)]
    _say(f"check --quick, {options.segments:,} segments", "here", runs)
    return 0


def _compared(
    what: str, words: list[str], store: Path, before: Callable[[], None], options: argparse.Namespace
) -> None:
    runs: dict[str, list[Run]] = {"here": []} if options.here_alone else {"here": [], "spark": []}
    for number in range(options.repeat):
        for where in runs if number % 2 else reversed(runs):
            before()
            runs[where].append(command([*words, *(_SPARK if where == "spark" else [])], store, options.cores))
    for where, found in runs.items():
        _say(what, where, found)
    if len(runs) == 2:
        pairs = [(a.seconds, b.seconds) for a, b in zip(runs["spark"], runs["here"], strict=True)]
        part = ratio(pairs)
        say(f"{what}: here in {part.median:.2f} of Spark's time ({part.low:.2f} to {part.high:.2f})")


def _say(what: str, where: str, found: list[Run]) -> None:
    seconds = [one.seconds for one in found]
    peak = max(one.peak_bytes for one in found) >> 20
    times = f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
    say(f"{what}: {where} {times}, at most {peak} MiB")


if __name__ == "__main__":
    sys.exit(main())
