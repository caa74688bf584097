"""``python -m bench.queues``: what queues of other kinds cost, and queues in great number.

The log of ``python -m bench`` is rebuilt by the real store and by reput (warm: the second rebuild of a
session) as what it is, then with ``enableConsumeQueueExt``, then as if all its topics were of type BatchCQ.
Then a log of one-line messages for many queues, by reput (warm) and, as far as one process can map so many
files, by the real store; and one for light queues (LMQ), twenty of them a message. Each time counts only if
the bytes are the same.

Each run writes into a new directory, and all are removed at the end: for some minutes ext4 passes over the
inodes of removed files one by one, and whoever makes files meanwhile takes up to ten times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import machine
from bench.__main__ import size
from bench.errors import BenchError, say, told
from bench.generate import Log, log_directory, warm_page_cache, write_log
from bench.memory import MemorySampler
from bench.process import pinned, run
from reput.format import commitlog, names
from reput.format.commitlog import Record
from reput.store.compare import compare
from reput.store.system import human
from tests.compat.conf import conf_text
from tests.compat.jars import VERSIONS
from tests.compat.java_store import JavaStore

_HEAP = "4g"
_NO_LIMIT = 0x7FFFFFFF
_BATCH = {"queue.type": "BatchCQ"}
#: Queue files of the store of many queues: the default of 6 MB each would be 600 GB of address space.
SMALL_FILES = {"mappedFileSizeConsumeQueue": 20 * 200}
_QUEUES_A_TOPIC = 8
_LIGHT_A_MESSAGE = 20
_SEGMENT = 1 << 30
_LIGHT = {**SMALL_FILES, "enableLmq": True, "enableMultiDispatch": True}
_MOST_TOLD = 10
#: From so many queue files on the time for each is told.
_GREAT = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """One store to rebuild.

    Attributes:
        name: of the line.
        log: its log.
        config: the settings.
        topics: their attributes.
    """

    name: str
    log: Log
    config: Mapping[str, object]
    topics: Mapping[str, Mapping[str, str]]


@dataclass(slots=True)
class Line:
    """What came of a case; seconds, bytes of anonymous memory, None where it wasn't measured.

    Attributes:
        floor_seconds: of the same without Spark (:mod:`bench.floor`).
    """

    name: str
    messages: int
    queue_files: int
    java_seconds: float | None
    java_peak_bytes: int | None
    reput_seconds: float
    reput_peak_bytes: int
    floor_seconds: float
    stages: dict[str, float]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description=__doc__)
    parser.add_argument("--size", type=size, default=1 << 30, help="bytes of commit log (default: 1g)")
    parser.add_argument("--version", choices=VERSIONS, default="5.5.0")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "reput-bench")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--many", type=int, nargs="*", default=[10_000, 100_000], help="numbers of queues")
    parser.add_argument("--light", type=int, nargs="*", default=[1_000_000], help="numbers of light queues")
    parser.add_argument("--no-kinds", action="store_true", help="only queues in great number")
    parser.add_argument(
        "--most-java", type=int, default=10_000, help="queues the real store is given; it opens each file"
    )
    parser.add_argument("--one", nargs=4, metavar=("STORE", "VERSION", "CONF", "OUT"), help=argparse.SUPPRESS)
    return parser.parse_args(words)


def many_queues(directory: Path, version: str, queues: int, each: int = 10) -> Log:
    """A log with some messages for each of many queues, in turns; the same for the same number."""
    home = directory / f"many-{queues}"
    store = home / "store"
    shutil.rmtree(home, ignore_errors=True)
    (store / names.COMMIT_LOG).mkdir(parents=True)
    shuffled = random.Random(queues)
    data = bytearray()
    for turn in range(each):
        order = list(range(queues))
        shuffled.shuffle(order)
        for number in order:
            properties = f"UNIQ_KEY\x01{turn * queues + number:016X}\x02TAGS\x01t{number % 7}\x02".encode()
            data += commitlog.encode(
                Record(
                    topic=b"light-%06d" % (number // _QUEUES_A_TOPIC),
                    queue_id=number % _QUEUES_A_TOPIC,
                    body=b"one line of text",
                    properties=properties,
                    queue_offset=turn,
                    physical_offset=len(data),
                    born_timestamp=1_700_000_000_000,
                    store_timestamp=1_700_000_000_000 + turn,
                )
            )
    _segment(store, data)
    return Log(store, version, len(data), len(data), queues * each)


def light_queues(
    directory: Path, version: str, queues: int, each: int = 3, named: int = _LIGHT_A_MESSAGE
) -> Log:
    """A log whose messages go to some light queues each as well, in turns, until each queue has some."""
    home = directory / f"light-{queues}"
    store = home / "store"
    shutil.rmtree(home, ignore_errors=True)
    (store / names.COMMIT_LOG).mkdir(parents=True)
    shuffled = random.Random(queues)
    data, messages = bytearray(), 0
    for turn in range(each):
        order = list(range(queues))
        shuffled.shuffle(order)
        for at in range(0, queues, named):
            light = order[at : at + named]
            listed = ",".join(f"%LMQ%device-{number:07d}" for number in light)
            offsets = ",".join([str(turn)] * len(light))
            properties = f"INNER_MULTI_DISPATCH\x01{listed}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
            data += commitlog.encode(
                Record(
                    topic=b"parent",
                    body=b"one line of text",
                    properties=properties.encode(),
                    queue_offset=messages,
                    physical_offset=len(data),
                    born_timestamp=1_700_000_000_000,
                    store_timestamp=1_700_000_000_000 + turn,
                )
            )
            messages += 1
    _segment(store, data)
    return Log(store, version, len(data), len(data), messages)


def _segment(store: Path, data: bytearray) -> None:
    if len(data) > _SEGMENT:
        raise BenchError(f"messages of {len(data):,} bytes need more than one segment")
    path = store / names.COMMIT_LOG / names.offset_name(0)
    path.write_bytes(data)
    os.truncate(path, _SEGMENT)


def by_java(case: Case, root: Path, version: str, cores: int) -> tuple[float, int]:
    """A crash start of the real store on the log alone: seconds of load(), and peak memory in bytes.

    Args:
        root: a store that has only the log.
    """
    (root / names.ABORT).touch()
    warm_page_cache(case.log)
    os.sync()
    config = {**case.config, "commitLogRecoverMaxNum": _NO_LIMIT}
    with (
        pinned(cores),
        JavaStore(version, root, config, topics=case.topics, heap=_HEAP, jvm_options=()) as store,
        MemorySampler(store.jvm.process.pid) as memory,
    ):
        if not store.load():
            raise BenchError(f"RocketMQ {version} didn't load the store; {store.jvm.log_tail()}")
        seconds = store.load_seconds()
        store.kill()
    return seconds, memory.peak_bytes


def _link(case: Case, root: Path) -> None:
    (root / names.COMMIT_LOG).mkdir(parents=True)
    for segment in case.log.segments:
        os.link(segment, root / names.COMMIT_LOG / segment.name)
    if case.topics:
        table = {topic: {"topicName": topic, "attributes": facts} for topic, facts in case.topics.items()}
        (root / names.CONFIG).mkdir()
        (root / names.CONFIG / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def measure(case: Case, home: Path, version: str, repeat: int, *, java: bool) -> Line:
    """One case.

    Args:
        home: a directory of its own, where all that is written stays.

    Raises:
        BenchError: a run failed, or wrote other bytes.
    """
    cores = len(os.sched_getaffinity(0))
    root, out, conf = home / "store", home / "out", home / "broker.conf"
    _link(case, root)
    conf.write_text(conf_text(case.config), encoding="utf-8")
    seconds, peaks, floors, stages = [], [], [], {}
    for turn in range(repeat):
        out = home / f"out-{turn}"
        warm_page_cache(case.log)
        done = run(["-m", "bench.queues", "--one", str(root), version, str(conf), str(out)], cores, home)
        facts = json.loads(done.output)
        if facts["messages"] != case.log.messages or facts["findings"]:
            raise BenchError(f"{case.name}: {facts['messages']} messages, findings {facts['findings']}")
        seconds.append(facts["seconds"])
        peaks.append(done.peak_bytes)
        stages = facts["stages"]
        outs = [f"{out}-{number}" for number in range(2)]
        alone = run(["-m", "bench.floor", "--one", str(root), version, str(conf), *outs], cores, home)
        floors.append(json.loads(alone.output)[-1]["seconds"])
        say(f"{case.name}: reput {facts['seconds']:.2f} s, without Spark {floors[-1]:.2f} s")
    java_seconds, java_peaks = [], []
    for turn in range(repeat if java else 0):
        root = home / f"store-{turn}"
        _link(case, root)
        took, peak = by_java(case, root, version, cores)
        java_seconds.append(took)
        java_peaks.append(peak)
        say(f"{case.name}: RocketMQ {took:.2f} s")
    out = home / f"out-{repeat - 1}" / "1"
    found = compare(root, out) if java else compare(out, out)
    if found.differing_bytes:
        some = found.differences[:_MOST_TOLD]
        raise BenchError("\n".join([f"{case.name}: other bytes than RocketMQ's:", *some]))
    return Line(
        case.name,
        case.log.messages,
        found.queue_files,
        _median(java_seconds) if java else None,
        max(java_peaks) if java else None,
        _median(seconds),
        max(peaks),
        _median(floors),
        stages,
    )


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def one(store: str, version: str, conf: str, out: str) -> None:
    """The second rebuild of a session; prints one JSON object."""
    from reput.job import RebuildOptions, rebuild
    from reput.spark.sessions import session

    master = f"local[{len(os.sched_getaffinity(0))}]"
    for turn in range(2):
        options = RebuildOptions(
            store=Path(store), out=Path(out, str(turn)), broker_conf=Path(conf), rocketmq_version=version
        )
        began = time.perf_counter()
        summary = rebuild(options, lambda: session("reput bench", master)).to_dict()
        seconds = time.perf_counter() - began
    facts = {name: summary[name] for name in ("messages", "stages")}
    print(json.dumps({"seconds": seconds, "findings": len(summary["findings"]), **facts}))  # type: ignore[arg-type]


def cases(options: argparse.Namespace) -> list[tuple[Case, bool]]:
    """What is measured, each with whether the real store is as well."""
    found = [] if options.no_kinds else _kinds(options)
    for queues in options.many:
        many = many_queues(options.dir, options.version, queues)
        found.append((Case(f"{queues:,} queues", many, SMALL_FILES, {}), queues <= options.most_java))
    for queues in options.light:
        many = light_queues(options.dir, options.version, queues)
        found.append((Case(f"{queues:,} light queues", many, _LIGHT, {}), queues <= options.most_java))
    return found


def _kinds(options: argparse.Namespace) -> list[tuple[Case, bool]]:
    log = write_log(options.dir, options.version, options.size)
    topics = sorted({topic for segment in log.segments[:1] for topic in _topics(segment)})
    ext = {"enableConsumeQueueExt": True}
    return [
        (Case("consume queues", log, {}, {}), True),
        (Case("with ConsumeQueueExt", log, ext, {}), True),
        (Case("batch queues", log, {}, dict.fromkeys(topics, _BATCH)), True),
    ]


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The lines as a table in Markdown."""
    yield "| queues | RocketMQ | reput | times RocketMQ's | without Spark | a queue | peak memory |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for line in lines:
        java = "" if line.java_seconds is None else f"{line.java_seconds:.2f} s"
        times = "" if line.java_seconds is None else f"{line.java_seconds / line.reput_seconds:.1f}"
        each = f"{line.reput_seconds / line.queue_files * 1e6:.0f} µs" if line.queue_files >= _GREAT else ""
        peak = human(line.reput_peak_bytes)
        floor = f"{line.floor_seconds:.2f} s"
        yield f"| {line.name} | {java} | {line.reput_seconds:.2f} s | {times} | {floor} | {each} | {peak} |"


def _topics(segment: Path) -> set[str]:
    """The topics of a segment's first messages."""
    data = segment.read_bytes()[: 8 << 20]
    found, position = set(), 0
    while position + commitlog.MIN_RECORD_LENGTH < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        if length < commitlog.MIN_RECORD_LENGTH or position + length > len(data):
            break
        found.add(commitlog.decode(data, position).topic.decode())
        position += length
    return found


@told
def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = arguments(words)
    if options.one:
        one(*options.one)
        return 0
    chosen = cases(options)  # which may make the directory anew
    home = log_directory(options.dir, options.version, options.size)
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as place:
        lines = []
        for number, (case, java) in enumerate(chosen):
            (own := Path(place, str(number))).mkdir()
            lines.append(measure(case, own, options.version, options.repeat, java=java))
    print(json.dumps({"machine": machine.facts(options.dir), "lines": [asdict(line) for line in lines]}))
    print(*table(lines), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
