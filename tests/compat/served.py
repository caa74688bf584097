"""Whether the real store serves what a RocksDB leads to: read, written on, compacted, opened again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reput.format.consumequeue import PRE_BLANK_SIZE, UNIT_LENGTH
from reput.format.dtypes import UNIT_DTYPE
from tests.compat.compiled import instance
from tests.compat.java_store import JavaStore
from tests.compat.jvm import JavaError, Jvm, private
from tests.compat.message import Message
from tests.compat.rocksdb import Families

_SERVED = Path(__file__).with_name("Served.java")
_PARENT = "ReputServed"
_COMPACTION_TIMEOUT = 60.0
_making = threading.Lock()

#: Topic and queue id.
Queue = tuple[str, int]
#: Physical offset of each message by its place in the queue.
Places = dict[int, int]


@dataclass
class Read:
    """A queue as a consumer got it.

    Attributes:
        low, high: its first offset and the one after its last, as the store says.
        messages: what came, by place.
        broken: places whose message isn't whole.
        empty: answers without a message: the offset asked for, the status or exception, and the next offset.
    """

    low: int = 0
    high: int = 0
    messages: Places = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)
    empty: list[tuple[int, str, int]] = field(default_factory=list)


@dataclass
class Report:
    """What the real store did.

    Attributes:
        loaded: it loaded the store; else all else is empty.
        first: each queue right after the start.
        put: the place that each queue's next message got.
        then: each queue with these.
        compacted: SST files that the compaction wrote.
        after: each queue behind it.
        again: each queue after a clean stop and one more start.
    """

    loaded: bool
    first: dict[Queue, Read] = field(default_factory=dict)
    put: dict[Queue, int] = field(default_factory=dict)
    then: dict[Queue, Read] = field(default_factory=dict)
    compacted: int = 0
    after: dict[Queue, Read] = field(default_factory=dict)
    again: dict[Queue, Read] = field(default_factory=dict)


def places(queues: Families) -> dict[Queue, Places]:
    """What the units of a dump of ``consumequeue`` lead to."""
    found: dict[Queue, Places] = {}
    for key, value in queues["default"].items():
        topic = key[5 : 5 + int.from_bytes(key[:4])].decode()
        queue = topic, int.from_bytes(key[-13:-9], signed=True)
        found.setdefault(queue, {})[int.from_bytes(key[-8:])] = int.from_bytes(value[:8])
    return found


def in_files(root: Path) -> dict[Queue, Places]:
    """What the units of consume queue files lead to."""
    found: dict[Queue, Places] = {}
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        units = np.frombuffer(path.read_bytes(), UNIT_DTYPE)
        first = int(path.name) // UNIT_LENGTH
        for row in np.flatnonzero((units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE)).tolist():
            queue = path.parent.parent.name, int(path.parent.name)
            found.setdefault(queue, {})[first + row] = int(units["position"][row])
    return found


def read(store: JavaStore, queues: Iterable[Queue]) -> dict[Queue, Read]:
    """All messages of these queues, from each one's first offset on."""
    asked = list(queues)
    with _making:  # py4j knows classes by their name: there may be one of it
        if _SERVED not in store.jvm.kept:
            store.jvm.kept[_SERVED] = instance(store.jvm, _SERVED)
    lines = "\n".join(f"{topic}\t{queue_id}" for topic, queue_id in asked)
    answers = str(store.jvm.kept[_SERVED].read(store.store, lines)).splitlines()
    return {queue: _parsed(answer) for queue, answer in zip(asked, answers, strict=True)}


def _parsed(answer: str) -> Read:
    found = Read()
    numbers = []
    for word in answer.split("\t"):
        if word.startswith("!"):
            offset, status, following = word[1:].split(",")
            found.empty.append((int(offset), status, int(following)))
        elif "," in word:
            place, offset, *other = word.split(",")
            found.messages[int(place)] = int(offset)
            if other:
                found.broken.append(int(place))
        elif word:
            numbers.append(int(word))
    found.low, found.high = numbers or (0, 0)
    return found


def serve(
    jvm: Jvm,
    root: Path,
    config: Mapping[str, object],
    queues: Iterable[Queue],
    topics: Mapping[str, Mapping[str, str]] | None = None,
) -> Report:
    """Start the real store of the JVM's release, and see what it makes of the queues.

    Args:
        root: the store; it is written to.
        config: its settings, with ``storeType`` or ``rocksdbCQDoubleWriteEnable``.
        queues: those that are read and written to.
        topics: attributes of topics.
    """
    asked = list(queues)
    with _made(jvm, root, config, topics) as store:
        if not store.load():
            return Report(loaded=False)
        store.start()
        report = Report(loaded=True, first=read(store, asked))
        for topic, queue_id in asked:
            report.put[topic, queue_id] = put(store, topic, queue_id)
        store.wait_dispatched()
        report.then = read(store, asked)
        report.compacted = compact(store)
        report.after = read(store, asked)
    with _made(jvm, root, config, topics) as store:
        assert store.load()
        store.start()
        report.again = read(store, asked)
    return report


def _made(
    jvm: Jvm, root: Path, config: Mapping[str, object], topics: Mapping[str, Mapping[str, str]] | None
) -> JavaStore:
    # One at a time: StoreStatsService fills a static TreeMap when it is made.
    with _making:
        return JavaStore(jvm.version, root, config, topics=topics, jvm=jvm)


def put(store: JavaStore, topic: str, queue_id: int) -> int:
    """Put one message into a queue; returns its place there."""
    if not topic.startswith("%LMQ%"):
        return store.put(Message(topic, queue_id, b"one more")).queue_offset
    place = int(store.store.getMaxOffsetInQueue(topic, queue_id))
    store.put(Message(_PARENT, 0, b"one more", properties={"INNER_MULTI_DISPATCH": topic}))
    store.wait_dispatched()
    return place


def compact(store: JavaStore) -> int:
    """Let the store compact its queues as it does when segments expire; returns how many files that wrote.

    Raises:
        JavaError: it doesn't end.
    """
    written = 0
    for queues in store.rocksdb_queues():
        storage = private(queues, "rocksDBStorage")
        directory = Path(str(private(storage, "dbPath")))
        queues.flush()
        before = _tables(directory)
        queues.cleanExpired(store.store.getMinPhyOffset())
        workers: Any = private(storage, "manualCompactionThread")
        deadline = time.monotonic() + _COMPACTION_TIMEOUT
        while workers.getCompletedTaskCount() == 0:
            if time.monotonic() > deadline:
                raise JavaError(f"no compaction in {_COMPACTION_TIMEOUT} s; {store.jvm.log_tail()}")
            time.sleep(0.02)
        written += len(_tables(directory) - before)
    return written


def _tables(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.sst")}


def problems(report: Report, expected: Mapping[Queue, Places], start: int = 0) -> list[str]:
    """What isn't served as it should be, in words.

    Args:
        report: what the store did.
        expected: what each queue should lead to.
        start: the log's first offset: nothing before it is served.
    """
    if not report.loaded:
        return ["the store doesn't load"]
    found = []
    for queue, wanted in expected.items():
        there = {place: offset for place, offset in wanted.items() if offset >= start}
        end = max(wanted, default=-1) + 1
        found += _differences(f"{queue} at first", report.first[queue], there, exact=True)
        if report.put[queue] != end:
            found.append(f"{queue}: the next message is put at {report.put[queue]}, not at {end}")
        for when in ("then", "after", "again"):
            is_there = getattr(report, when)[queue]
            found += _differences(f"{queue} {when}", is_there, there, exact=False)
            if end not in is_there.messages:
                found.append(f"{queue} {when}: nothing is served at {end}")
    if not report.compacted:
        found.append("nothing was compacted")
    return found


def _differences(what: str, seen: Read, wanted: Places, *, exact: bool) -> list[str]:
    found = []
    if seen.empty or seen.broken:
        found.append(f"{what}: empty {seen.empty}, broken {seen.broken}")
    missing = {place: offset for place, offset in wanted.items() if seen.messages.get(place) != offset}
    if missing:
        found.append(f"{what}: {len(missing)} of {len(wanted)} messages not served: {sorted(missing)[:5]}")
    if exact and set(seen.messages) - set(wanted):
        found.append(f"{what}: served beside: {sorted(set(seen.messages) - set(wanted))[:5]}")
    return found
