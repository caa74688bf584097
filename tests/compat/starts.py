"""Stores that are damaged and then opened by the real store, many at once.

One JVM a release writes a store of small files, and then opens every damaged copy of it. Each damage is tried
on a store that was stopped in good order, on one that was killed, and on one that was killed long after its
last checkpoint.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from reput.broker.predict import Prediction, predict
from reput.broker.snapshot import take
from reput.config.dialect import dialect
from reput.config.settings import StoreSettings
from reput.derived.index import read_header
from reput.errors import UnsupportedError
from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import IndexHeader
from tests.compat.conf import conf_text
from tests.compat.damage import DAMAGES, ODD_FILES, OF_SIZES, Copy, Damage, device_in_queue, unit_of_a_cut
from tests.compat.java_store import JavaStore, spelled
from tests.compat.jvm import Jvm, private
from tests.compat.message import COMMIT, PREPARED, ROLLBACK, SCHEDULE_TOPIC, Message

CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 15 * UNIT_LENGTH,
    "maxHashSlotNum": 20,
    "maxIndexNum": 100,
    "cleanFileForciblyEnable": False,
}
SEGMENT = int(str(CONFIG["mappedFileSizeCommitLog"]))
QUEUE_FILE = int(str(CONFIG["mappedFileSizeConsumeQueue"]))
_FLUSHED_AFTER = 1.3  # the service that flushes queues, and 5.5's checkpoint with them, runs every second
_FLUSHED_AT_LAST = 120.0  # where others want the processor, too
_START_TIMEOUT = 180.0
_STORES_AT_ONCE = 18  # each has some twenty threads and a hundred open files
_STARTS_AT_ONCE = 12  # 4.9 sleeps a second in a start that has to dispatch


@dataclass
class Seen:
    """A store as its own API and its files show it, or as it was predicted.

    Index files that the broker's clock will name have the name None. ``filled`` are the endTimestamps of
    those that filled up: a thread for each writes it to the checkpoint, in any order.
    """

    starts: bool
    log: tuple[int, int] = (-1, 0)
    segments: list[str] = field(default_factory=list)
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    files: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    units: dict[tuple[str, int], bytes] = field(default_factory=dict)
    index: list[tuple[str | None, IndexHeader]] = field(default_factory=list)
    checkpoint: StoreCheckpoint = field(default_factory=StoreCheckpoint)
    filled: list[int] = field(default_factory=list)
    #: Of consumequeue_ext: the place of its first byte, and of its next record.
    ext: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


def fill(store: JavaStore) -> None:
    """Some 20 segments of messages of every kind."""
    for n in range(300):
        sys_flag = {11: PREPARED, 12: ROLLBACK, 13: COMMIT}.get(n % 29, 0)
        topic = "Payments" if n % 5 == 0 else "Orders"
        keys = None if n % 7 == 0 else f"k{n} all"
        store.put(
            Message(
                topic,
                n % 3 if topic == "Payments" else n % 2,
                b"body" * (n % 40 + 1),
                tags=f"t{n % 3}",
                keys=keys,
                uniq_key=None if n % 14 == 0 else f"u{n}",
                sys_flag=sys_flag,
            )
        )
        if n % 20 == 7:
            level = {"topic": "Later"} if store.version.startswith("4.") else {"topic": SCHEDULE_TOPIC}
            store.put(Message(**level, queue_id=17, body=b"later", tags="late", delay_level=18))
    store.wait_dispatched()


@dataclass
class Case:
    """A damaged store: what was said of it, why it shouldn't start, and what became of it."""

    name: str
    root: Path
    predicted: Seen
    why: str = ""
    seen: Seen = field(default_factory=lambda: Seen(starts=False))
    store: JavaStore | None = None
    error: str = ""


class Stores:
    """A store of one release as it was when stopped and when killed, and damaged copies of both."""

    def __init__(self, version: str, tmp: Path, config: Mapping[str, object]) -> None:
        self.version, self.tmp = version, tmp
        self.config = dict(config)
        self.conf = tmp / "broker.conf"
        self.conf.write_text(conf_text(spelled(self.config, version)), encoding="utf-8")
        self.stopped, self.killed = tmp / "written", tmp / "killed"

    def copy(self, name: str, *, crash: str | None) -> Copy:
        root = self.tmp / name
        shutil.copytree(self.killed if crash == "killed" else self.stopped, root)
        copy = Copy(root, SEGMENT, QUEUE_FILE)
        if crash == "behind":
            (root / names.ABORT).touch()
            record = next(r for r in copy.records() if r.segment == copy.segments[13])
            old = record.timestamp + 3000
            known = StoreCheckpoint(old, old, record.timestamp, 0, record.offset, record.offset)
            copy.set_checkpoint(fields(self.version, known))
        return copy

    def settings(self, root: Path) -> StoreSettings:
        return StoreSettings.load(root, self.conf, self.version)


class Bench(Stores):
    """One release: its JVM, and the stores that it wrote."""

    def __init__(
        self,
        version: str,
        tmp: Path,
        *,
        other: Mapping[str, object] | None = None,
        filled: Callable[[JavaStore], None] = fill,
        topics: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(version, tmp, {**CONFIG, **(other or {})})
        self._making = threading.Lock()
        self.jvm = Jvm(version, heap="700m")
        root = self.stopped
        self.topics = dict(topics or {})
        store = JavaStore(version, root, self.config, topics=self.topics, jvm=self.jvm)
        assert store.load()
        store.start()
        filled(store)
        if self.topics:
            table = {topic: {"attributes": attributes} for topic, attributes in self.topics.items()}
            (root / names.CONFIG).mkdir(exist_ok=True)
            (root / names.CONFIG / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
        time.sleep(_FLUSHED_AFTER)  # the checkpoint of the killed one then holds something
        shutil.copytree(root, self.killed)
        store.shutdown()

    def open_all(self, cases: list[Case]) -> None:
        """Load and start stores in a JVM of their own, see what they made of themselves, and kill it."""
        self.jvm.kill()
        self.jvm.close()
        self.jvm = Jvm(self.version, heap="700m")
        with ThreadPoolExecutor(_STARTS_AT_ONCE) as pool:
            list(pool.map(self.open, cases))
        time.sleep(_FLUSHED_AFTER)
        latest = time.monotonic() + _FLUSHED_AT_LAST
        for case in cases:
            while case.store is not None:
                case.seen = look(case.store)
                if not differences(case.predicted, case.seen) or time.monotonic() > latest:
                    break
                time.sleep(0.1)

    def open(self, case: Case) -> None:
        """Load and start; what comes of it is looked at later."""
        try:
            # One at a time: StoreStatsService fills a static TreeMap when it is made.
            with self._making:
                store = JavaStore(self.version, case.root, self.config, topics=self.topics, jvm=self.jvm)
            if not store.load():
                return
        except Exception as error:  # noqa: BLE001 - whatever Java threw, the store doesn't start
            case.error = str(error)
            return
        case.error = "start() doesn't return"
        thread = threading.Thread(target=_start, args=(store, case), daemon=True)
        thread.start()
        thread.join(_START_TIMEOUT if case.predicted.starts else 3.0)

    def close(self) -> None:
        self.jvm.kill()
        self.jvm.close()


def _start(store: JavaStore, case: Case) -> None:
    try:
        store.start()
        case.store, case.error = store, ""
    except Exception as error:  # noqa: BLE001 - as above
        case.error = str(error)


def look(store: JavaStore) -> Seen:
    """What the running store says of itself."""
    java, root = store.store, store.root
    table: Any = java.getConsumeQueueTable()
    checkpoint = java.getStoreCheckpoint()
    seen = Seen(starts=True, log=(int(java.getMinPhyOffset()), int(java.getMaxPhyOffset())))
    log = root / names.COMMIT_LOG
    skips = not dialect(store.version).recovery.refuses_wrong_length
    old = store.version.startswith("4.0.")  # it spells two names otherwise, and has no consumequeue_ext
    seen.segments = [
        name for name in _names(log) if names.number(name) is not None and (log / name).is_file()
    ]
    if skips:
        seen.segments = _mapped(java.getCommitLog())
    for topic in table.keySet():
        for queue_id in table.get(topic).keySet():
            queue = str(topic), int(queue_id)
            consume_queue = table.get(topic).get(queue_id)
            batch = consume_queue.getClass().getSimpleName() == "BatchConsumeQueue"
            kind = names.BATCH_CONSUME_QUEUE if batch else names.CONSUME_QUEUE
            directory = root / kind / queue[0] / str(queue[1])
            seen.files[queue] = [name for name in _names(directory) if (directory / name).is_file()]
            if skips:
                seen.files[queue] = _mapped(consume_queue)
            low = int((java.getMinOffsetInQuque if old else java.getMinOffsetInQueue)(topic, queue_id))
            high = int((java.getMaxOffsetInQuque if old else java.getMaxOffsetInQueue)(topic, queue_id))
            if not (seen.files[queue] or high):
                del seen.files[queue]  # somebody asked for it, and so it was made
                continue
            seen.queues[queue] = low, high
            seen.units[queue] = b"".join((directory / name).read_bytes() for name in seen.files[queue])
            ext = None if batch or old else private(consume_queue, "consumeQueueExt")
            if ext is not None:
                seen.ext[queue] = int(ext.getMinAddress()) + (1 << 63), int(ext.getMaxAddress()) + (1 << 63)
            if seen.files[queue]:
                end = high * UNIT_LENGTH
                if batch:
                    end = int(private(consume_queue, "mappedFileQueue").getMaxOffset())
                seen.units[queue] = seen.units[queue][: end - int(seen.files[queue][0])]
    seen.index = _index_files(java, root / names.INDEX)
    getters = ("PhysicMsgTimestamp", "LogicsMsgTimestamp", "IndexMsgTimestamp")
    getters += ("MasterFlushedOffset", "ConfirmPhyOffset", "LogicsPhysicalOffset")
    known = getters[: dialect(store.version).checkpoint_fields]
    seen.checkpoint = StoreCheckpoint(*(int(getattr(checkpoint, f"get{name}")()) for name in known))
    return seen


def _mapped(holder: Any) -> list[str]:
    """Names of what a commit log or queue has loaded: up to 4.4.0 that isn't all that there is."""
    files = private(holder, "mappedFileQueue").getMappedFiles()
    return [Path(str(file.getFileName())).name for file in files]


def _index_files(java: Any, directory: Path) -> list[tuple[str | None, IndexHeader]]:
    """Names and headers of a running store's index files.

    RocketMQ names them by the millisecond. Two small ones of the same one share a file, and the last flush
    leaves its header in it: those are taken from memory.
    """
    in_memory: dict[str, list[IndexHeader]] = {}
    for file in private(private(java, "indexService"), "indexFileList"):
        header = private(file, "indexHeader")
        in_memory.setdefault(Path(str(file.getFileName())).name, []).append(
            IndexHeader(
                int(header.getBeginTimestamp()),
                int(header.getEndTimestamp()),
                int(header.getBeginPhyOffset()),
                int(header.getEndPhyOffset()),
                int(header.getHashSlotCount()),
                int(header.getIndexCount()),
            )
        )
    found: list[tuple[str | None, IndexHeader]] = []
    for name in _names(directory):
        if (directory / name).is_file() and names.number(name) is not None:
            headers = in_memory.get(name, [])
            if len(headers) < 2:
                headers = [read_header(directory / name)]
            found += [(name, header) for header in headers]
    return found


def fields(version: str, checkpoint: StoreCheckpoint) -> StoreCheckpoint:
    """As far as the release has them."""
    return StoreCheckpoint(*astuple(checkpoint)[: dialect(version).checkpoint_fields])


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def expected(prediction: Prediction) -> Seen:
    """The same, as it was predicted."""
    if not prediction.starts:
        return Seen(starts=False)
    seen = Seen(starts=True, log=(prediction.log_start, prediction.log_end))
    seen.segments = [segment.path.name for segment in prediction.segments]
    for queue, model in prediction.queues.items():
        if not model.files:
            continue
        seen.queues[queue] = model.min_offset, model.max_offset
        seen.files[queue] = [
            names.offset_name(file.base) if file.path is None else file.path.name for file in model.files
        ]
        seen.units[queue] = b"".join(units.tobytes() for _, units in model.units())
        if model.ext is not None:
            seen.ext[queue] = model.ext.start, model.ext.end
    for queue, batch in prediction.batch_queues.items():
        if batch.files:
            seen.queues[queue] = batch.min_offset, batch.max_offset
            seen.files[queue] = [names.offset_name(file.base) for file in batch.files]
            seen.units[queue] = b"".join(file.counting.tobytes() for file in batch.files)
    seen.index = [(file.path and file.path.name, file.header) for file in prediction.index.files]
    seen.filled = prediction.index.filled
    seen.checkpoint = fields(prediction.snapshot.settings.dialect.versions[-1], prediction.checkpoint)
    return seen


def differences(expected: Seen, seen: Seen) -> list[str]:
    """What isn't as predicted, in words."""
    if not (expected.starts and seen.starts):
        return [] if expected.starts == seen.starts else [f"starts: {expected.starts}, is {seen.starts}"]
    if seen.checkpoint.index_msg_timestamp in expected.filled:
        late = seen.checkpoint.index_msg_timestamp
        expected.checkpoint = replace(expected.checkpoint, index_msg_timestamp=late)
    found = []
    for what in ("log", "segments", "queues", "files", "ext", "checkpoint"):
        one, other = getattr(expected, what), getattr(seen, what)
        if isinstance(one, dict):
            for key in sorted(set(one) | set(other)):
                if one.get(key) != other.get(key):
                    found.append(f"{what} {key}: {one.get(key)}, is {other.get(key)}")
        elif one != other:
            found.append(f"{what}: {one}, is {other}")
    found += [f"units of {key}" for key, units in expected.units.items() if seen.units.get(key) != units]
    one_index, other_index = _index(expected.index), _index(seen.index)
    known = {name for name, _ in expected.index}
    names_seen = [name if name in known else None for name, _ in seen.index]
    if [name for name, _ in expected.index] != names_seen or one_index != other_index:
        found.append(f"index: {expected.index}, is {seen.index}")
    return found


def _index(files: list[tuple[str | None, IndexHeader]]) -> list[tuple[int, ...]]:
    # How many slots hold a chain isn't predicted.
    return [
        (h.begin_timestamp, h.end_timestamp, h.begin_physical_offset, h.end_physical_offset, h.index_count)
        for _, h in files
    ]


def batched(cases: list[Case]) -> Iterator[list[Case]]:
    for start in range(0, len(cases), _STORES_AT_ONCE):
        yield cases[start : start + _STORES_AT_ONCE]


def cases() -> Iterator[tuple[str, Damage, str | None]]:
    for damage in DAMAGES:
        for crash in (None, "killed", "behind"):
            yield f"{damage.__name__}-{crash or 'stopped'}", damage, crash


def whole() -> list[tuple[str, Damage, str | None]]:
    """All cases, and one that the matrix leaves out: it takes none of the messages that are there."""
    left = [(f"unit_of_a_cut-{crash or 'stopped'}", unit_of_a_cut, crash) for crash in (None, "killed")]
    return [*cases(), *left]


def odd() -> list[tuple[str, Damage, str | None]]:
    """Files under another name, of zeros, and what is no file; other lengths."""
    stops = (None, "killed")
    damages = (*ODD_FILES, *OF_SIZES)
    return [(f"{one.__name__}-{stop or 'stopped'}", one, stop) for one in damages for stop in stops]


def prepared(stores: Stores, damages: Sequence[tuple[str, Damage, str | None]]) -> list[Case]:
    """A damaged copy for each, and what is foretold of its start."""
    tried: list[Case] = []
    for name, damage, crash in damages:
        copy = stores.copy(name, crash=crash)
        damage(copy)
        before = _tree(copy.root)
        snapshot = take(stores.settings(copy.root))
        if damage is device_in_queue and crash and snapshot.starts:
            with pytest.raises(UnsupportedError):  # units for it are tried for 30 s each
                predict(snapshot)
            continue
        tried.append(Case(name, copy.root, expected(predict(snapshot))))
        assert _tree(copy.root) == before, "a prediction writes nothing"
    return tried


def otherwise(tried: Sequence[Case]) -> dict[str, list[str]]:
    """Of each start that didn't go as foretold what differs."""
    wrong = {}
    for case in tried:
        found = differences(case.predicted, case.seen)
        if case.name.startswith("second_queue_file"):  # its units are there twice
            found = [one for one in found if not one.startswith("units of")]
        if found:
            wrong[case.name] = [*found, case.error[:2000]]
    return wrong


def started(bench: Bench, tried: list[Case]) -> list[Case]:
    """The same cases, after their starts."""
    for some in batched(tried):
        bench.open_all(some)
    return tried


def compared(
    version: str, damages: Sequence[tuple[str, Damage, str | None]], directory: Path
) -> tuple[int, dict[str, list[str]]]:
    """How many starts were foretold and made, and of each that went otherwise what differs."""
    bench = Bench(version, directory)
    try:
        tried = started(bench, prepared(bench, damages))
    finally:
        bench.close()
    return len(tried), otherwise(tried)


def _tree(root: Path) -> dict[str, tuple[int, int]]:
    facts = {path: path.lstat() for path in root.rglob("*")}
    return {str(path): (fact.st_size, fact.st_mtime_ns) for path, fact in facts.items()}
