"""Questions to the real store and to reput, thousands of them, and the same answers.

One JVM a release writes a store of small files, and from 5.0 on one with batch queues, and opens them again,
whole and with an expired head. The questions are seeded; times, and with them the index files' names, come
from the clock.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reput.config.dialect import dialect
from reput.config.settings import StoreSettings
from reput.format import batchconsumequeue, names
from reput.format.consumequeue import UNIT_LENGTH
from reput.query import Boundary, MessageId, QueryStore, Status, TagFilter
from reput.query.message import Message as Found
from tests.compat.compiled import instance
from tests.compat.conf import conf_text
from tests.compat.java_store import JavaStore, spelled
from tests.compat.jvm import Jvm
from tests.compat.message import PREPARED, ROLLBACK, Host, Message, encode_batch
from tests.levels import tried

pytestmark = pytest.mark.compat

CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": 16 << 10,
    "mappedFileSizeConsumeQueue": 15 * UNIT_LENGTH,
    "maxHashSlotNum": 50,
    "maxIndexNum": 300,
    "cleanFileForciblyEnable": False,
}
#: For one release its units' tagsCodes are addresses.
QUEUE_EXT: dict[str, dict[str, object]] = {
    "5.3.3": {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 4096}
}
#: Their stores alone are driven; hosts of 16 bytes came with 4.6.0.
OLD = ("4.3.1", "4.8.0")
SEED = 20_261_121
MESSAGES = 800
PAUSES = 6
_QUESTIONS = Path(__file__).with_name("Questions.java")

# "Aa" and "BB" have the same hash, and so have all words of the same length made of them.
QUEUES = {"Orders": 3, "Aa": 2, "BB": 2, "Größe": 1, "Once": 1}
TAGS = (None, "Aa", "BB", "t0", "t1", "标签")
KEYS = (*("Aa", "BB", "AaAa", "BBBB", "AaBB", "BBAa", "all", "ключ"), *(f"k{n}" for n in range(30)))
UNKNOWN = ("Nobody", 0)
HOSTS = (Host(), Host("2001:db8::a:7", 10911))
OLD_HOSTS = (Host(), Host(port=10911))


#: Queue 4 never gets a message.
BATCH_QUEUES = {"Batches": 5, "Orders": 1}
BATCH_TOPICS = {"Batches": {"queue.type": "BatchCQ"}}
BATCH_RECORDS = 320
#: Messages in a batch; a pull with tags looks at units whose queue offsets lie less than 348 apart.
BATCH_SIZES = (1, 1, 2, 3, 7, 8, 20, 33, 90)


def fill(store: JavaStore) -> None:
    """Messages of every queue, with pauses, so that index files hold several seconds."""
    chance = random.Random(SEED)
    store.put(Message("Once", 0, b"once", tags="t0", keys="once", uniq_key="u-once"))
    for n in range(MESSAGES):
        if n % (MESSAGES // PAUSES) == MESSAGES // PAUSES // 2:
            time.sleep(chance.choice((0.3, 0.7)))
        topic = chance.choice([*QUEUES][:-1])
        queue_id = chance.randrange(QUEUES[topic])
        one = Message(
            topic,
            queue_id,
            chance.randbytes(chance.choice((0, 10, 90, 700))),
            tags=chance.choice(TAGS),
            keys=" ".join(chance.sample(KEYS, chance.randrange(4))) or None,
            uniq_key=chance.choice((None, f"u{n}", "Aa")),
            sys_flag={11: PREPARED, 12: ROLLBACK}.get(n % 31, 0),
            store_host=chance.choice(HOSTS if dialect(store.version).name >= "4.7" else OLD_HOSTS),
        )
        if n % 12 == 5:  # of one time
            few = [Message(topic, queue_id, b"%d" % m, tags=chance.choice(TAGS)) for m in range(n % 25 + 2)]
            store.put_batch(few)
        else:
            store.put(one)
    store.wait_dispatched()


def fill_batches(store: JavaStore) -> None:
    """Batches of all sizes, some of which a client takes apart, and single messages."""
    chance = random.Random(SEED)
    for n in range(BATCH_RECORDS):
        if n % 40 == 20:
            time.sleep(0.02)
        queue_id, tags = chance.choice((0, 0, 1, 1, 2, 3)), chance.choice(TAGS)
        count, kind = chance.choice(BATCH_SIZES), chance.randrange(8)
        if kind < 2:
            topic = "Orders" if kind else "Batches"
            store.put(Message(topic, queue_id if topic == "Batches" else 0, b"single", tags=tags))
            continue
        inner = [Message("Batches", body=b"%d" % m, tags=chance.choice(TAGS)) for m in range(count)]
        body = (
            encode_batch(inner, final_separator=True)
            if kind > 3
            else chance.randbytes(chance.choice((9, 900)))
        )
        store.put(
            Message(
                "Batches",
                queue_id,
                body,
                tags=tags,
                sys_flag=0x80 if kind == 2 else 0xC0,
                properties={"INNER_NUM": str(count)},
            )
        )
    store.wait_dispatched()


def expire_batches(root: Path) -> None:
    """Take away the head of the log, the first file of a queue, and one in the middle of another."""
    segments = sorted((root / names.COMMIT_LOG).iterdir())
    for segment in segments[: len(segments) // 3]:
        segment.unlink()
    first, *_ = sorted(names.batch_queue_directory(root, "Batches", 0).iterdir())
    first.unlink()
    files = sorted(names.batch_queue_directory(root, "Batches", 1).iterdir())
    files[len(files) // 2].unlink()


def expire(root: Path) -> None:
    """Take away the head of the log, the first file of a queue, and one in the middle of another."""
    segments = sorted((root / names.COMMIT_LOG).iterdir())
    for segment in segments[: len(segments) // 3]:
        segment.unlink()
    first, *_ = sorted(names.queue_directory(root, "Orders", 0).iterdir())
    first.unlink()
    files = sorted(names.queue_directory(root, "Orders", 1).iterdir())
    files[len(files) // 2].unlink()


def spread_file_times(root: Path, times: list[int]) -> None:
    """Give queue files times of change that say something: 4.9 looks for a file by them."""
    chance = random.Random(SEED)
    queues = {path.parent for path in (root / names.CONSUME_QUEUE).rglob("0*") if path.is_file()}
    for directory in sorted(queues):
        files = sorted(directory.iterdir())
        moments = sorted(chance.choice(times) for _ in files)
        for file, moment in zip(files, moments, strict=True):
            os.utime(file, ns=(moment * 1_000_000, moment * 1_000_000 + chance.randrange(1_000_000)))


Question = tuple[object, ...]


@dataclass
class Known:
    """What questions are made of: the store's messages by reput's own reading."""

    chance: random.Random
    version: str
    queues: dict[str, int]
    reach: int
    ends: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    messages: list[Found] = field(default_factory=list)

    @property
    def times(self) -> list[int]:
        return [message.record.store_timestamp for message in self.messages]

    @property
    def end(self) -> int:
        return self.messages[-1].record.physical_offset + self.messages[-1].size

    def queue(self) -> tuple[str, int]:
        if self.chance.random() < 0.03:
            return UNKNOWN
        topic = self.chance.choice([*self.queues])
        return topic, self.chance.randrange(self.queues[topic])

    def time(self) -> int:
        chance = self.chance
        if chance.random() < 0.08:
            return chance.choice((-1000, -1, 0, 1, 10**12, 10**15, min(self.times) - 1, max(self.times) + 1))
        return chance.choice(self.times) + chance.choice((0, 0, 0, -1, 1, -999, 999, -1000, 1000))

    def queue_offset(self) -> int:
        return self.chance.choice((-1, 0, 1, 10**9, *[self.chance.randrange(self.reach) for _ in range(12)]))

    def key(self) -> tuple[str, str]:
        topic = self.chance.choice((*QUEUES, "Nobody"))
        return topic, self.chance.choice(
            (*KEYS, "once", "u-once", "nothing", f"u{self.chance.randrange(MESSAGES)}")
        )


def offset_questions(known: Known) -> Iterator[Question]:
    chance = known.chance
    yield from (("offset", offset) for offset in (-1, 0, known.end, known.end + 1, 10**12))
    for message in chance.sample(known.messages, min(400, len(known.messages))):
        yield "offset", message.record.physical_offset
        yield "offset", message.record.physical_offset + chance.randrange(1, 100)
    yield from (("offset", chance.randrange(known.end)) for _ in range(200))


def queue_questions(known: Known) -> Iterator[Question]:
    yield from (
        ("range", topic, queue_id) for topic, count in known.queues.items() for queue_id in range(count + 1)
    )
    yield from (("unit", *known.queue(), known.queue_offset()) for _ in range(300))


def edge_questions(known: Known) -> Iterator[Question]:
    """About both ends of every queue."""
    for (topic, queue_id), ends in known.ends.items():
        for offset in (end + step for end in ends for step in (-2, -1, 0, 1)):
            yield "unit", topic, queue_id, offset
            yield from (("pull", topic, queue_id, offset, wanted, "") for wanted in (1, 32))


def pull_questions(known: Known) -> Iterator[Question]:
    for _ in range(1000):
        expression = known.chance.choice(("", "*", "Aa", "BB", "t0 || t1", " Aa||标签 ||", "nothing", "t0"))
        yield (
            "pull",
            *known.queue(),
            known.queue_offset(),
            known.chance.choice((0, 1, 2, 8, 32, 100)),
            expression,
        )


def time_questions(known: Known) -> Iterator[Question]:
    boundaries = ("",) if known.version.startswith("4.") else ("", "LOWER", "UPPER")
    for _ in range(1200):
        yield "time", *known.queue(), known.time(), known.chance.choice(boundaries)


def key_questions(known: Known) -> Iterator[Question]:
    for n in range(1200):
        topic, key = known.key()
        begin, end = (0, 2**63 - 1) if n % 3 == 0 else (known.time(), known.time())
        if begin > end and n % 20:
            begin, end = end, begin
        words = (topic, key, known.chance.choice((0, 1, 2, 5, 64, 100)), begin, end)
        yield "key", *words
        yield "index", *words, ""
    if known.version == "5.5.0":
        for _ in range(200):
            tag = known.chance.choice((*filter(None, TAGS), "nothing"))
            words = (known.chance.choice([*QUEUES]), tag, known.chance.choice((1, 7, 64)))
            yield "index", *words, *sorted((known.time(), known.time())), "T"


def id_questions(known: Known) -> Iterator[Question]:
    chance = known.chance
    for n in range(200):
        address = ".".join(str(chance.randrange(256)) for _ in range(4))
        if n % 2 and known.version not in OLD:
            address = ":".join(f"{chance.randrange(1, 1 << 16):x}" for _ in range(8))
        text = MessageId(address, chance.randrange(1 << 16), chance.randrange(1 << 63)).encode()
        yield "id", chance.choice((text, text.lower()))


QUESTIONS: tuple[Callable[[Known], Iterator[Question]], ...] = (
    offset_questions,
    queue_questions,
    edge_questions,
    pull_questions,
    time_questions,
    key_questions,
    id_questions,
)


@dataclass(frozen=True)
class Kind:
    """What a store holds.

    Attributes:
        config: its settings beside those of all.
        queues: how many of each topic are asked for.
        topics: attributes of topics.
        fill, expire: what writes it, and what takes away of it.
        questions: what is asked.
        reach: an offset past the end of most of its queues.
    """

    config: dict[str, object]
    queues: dict[str, int]
    topics: dict[str, dict[str, str]]
    fill: Callable[[JavaStore], None]
    expire: Callable[[Path], None]
    questions: tuple[Callable[[Known], Iterator[Question]], ...]
    reach: int


PLAIN = Kind({}, QUEUES, {}, fill, expire, QUESTIONS, 260)
BATCHES = Kind(
    {"mapperFileSizeBatchConsumeQueue": 12 * batchconsumequeue.UNIT_LENGTH},
    BATCH_QUEUES,
    BATCH_TOPICS,
    fill_batches,
    expire_batches,
    (offset_questions, queue_questions, edge_questions, pull_questions, time_questions),
    1400,
)


class Asked:
    """reput's answers, in the helper's words."""

    def __init__(self, store: QueryStore) -> None:
        self._store = store

    def answer(self, question: Question) -> str:
        kind, *words = question
        return "\t".join(map(str, getattr(self, f"_{kind}")(*words)))

    def _offset(self, offset: int) -> list[object]:
        message = self._store.message_at(offset)
        if message is None:
            return ["none"]
        record, keys = message.record, message.properties.get("KEYS")
        texts = (message.tags, keys, message.uniq_key)
        return [
            record.physical_offset,
            message.topic,
            record.queue_id,
            record.queue_offset,
            message.size,
            record.store_timestamp,
            *("null" if text is None else text for text in texts),
            len(record.body),
            message.offset_msg_id,
        ]

    def _range(self, topic: str, queue_id: int) -> list[object]:
        queue = self._store.queue(topic, queue_id)
        return [queue.min_offset, queue.max_offset]

    def _unit(self, topic: str, queue_id: int, offset: int) -> list[object]:
        units = self._store.queue(topic, queue_id).units_from(offset, 1)
        return [units[0].physical_offset if units else 0]

    def _pull(self, topic: str, queue_id: int, offset: int, wanted: int, expression: str) -> list[object]:
        pulled = self._store.pull(topic, queue_id, offset, wanted, TagFilter.parse(expression))
        found = [
            f"{one.message.record.queue_offset},{one.physical_offset},{one.size},{str(one.tag_fits).lower()}"
            for one in pulled.found
            if one.message is not None
        ]
        assert len(found) == len(pulled.found)
        return [pulled.status.name, pulled.next_begin_offset, pulled.min_offset, pulled.max_offset, *found]

    def _time(self, topic: str, queue_id: int, moment: int, boundary: str) -> list[object]:
        which = Boundary[boundary] if boundary else None
        return [self._store.offset_by_time(topic, queue_id, moment, which)]

    def _index(self, topic: str, key: str, most: int, begin: int, end: int, kind: str) -> list[object]:
        return [*self._store.index.reader().offsets(topic, key, begin, end, most, index_type=kind or None)]

    def _key(self, topic: str, key: str, most: int, begin: int, end: int) -> list[object]:
        hits = self._store.by_key(topic, key, begin, end, most)
        return [
            f"{hit.physical_offset},{str(hit.verdict.name == 'MATCH').lower()}"
            for hit in hits
            if hit.message is not None
        ]

    def _id(self, text: str) -> list[object]:
        found = MessageId.decode(text)
        packed = bytes.fromhex(found.encode())[:-12].hex().upper()
        return [packed, found.port, found.physical_offset]


def meant(question: Question, answer: str, min_offset: int) -> str:
    """The broker's answer, where reput gives the same; what it should give, where it chooses not to.

    A broker reads what is at an offset, whatever it is: it may be no message that begins there. At physical
    offset 0 it reads the first segment that it has, wherever that begins: 4.9 gives another topic's message
    to consumers of a queue that has expired as a whole, when its first message was the log's first. And 5.x
    throws for a time before 1970 in such a queue, and for a batch queue without a file.
    """
    kind, *words = question
    if kind == "offset" and answer.partition("\t")[0] != str(words[0]):
        return "none"
    if kind == "pull" and answer.endswith("\tother"):
        return answer.removesuffix("\tother").replace("FOUND", "MESSAGE_WAS_REMOVING")
    if kind == "time" and answer == "failed BufferUnderflowException" and int(str(words[2])) < 0:
        return str(min_offset)
    if answer == "failed NullPointerException" and words[:2] == ["Batches", 4]:
        return "-1" if kind == "time" else "0"
    return answer


def features(question: Question, answer: str) -> Iterator[str]:
    """What an answer shows, so that the questions are known to reach it."""
    first, *rest = answer.split("\t")
    if question[0] == "pull":
        yield first
    if question[0] == "offset":
        yield "none" if first == "none" else "message"
    if question[0] in ("pull", "key"):
        yield from {word.rpartition(",")[2] for word in rest if "," in word}
    if question[0] == "index":
        yield "some" if first else "none"


@dataclass(frozen=True)
class Compared:
    """Questions to both sides: how many, which answers differ, and what reput's answers show."""

    asked: int
    different: list[str]
    seen: Counter[object]


class Bench:
    """One release: its JVM, and the stores that it wrote."""

    def __init__(self, version: str, kind: Kind, jvm: Jvm, questions: Any, tmp: Path) -> None:
        self.version, self.kind, self.jvm, self.questions = version, kind, jvm, questions
        self.config = {**CONFIG, **kind.config, **QUEUE_EXT.get(version, {})}
        self.whole, self.expired = tmp / "whole", tmp / "expired"
        self.whole.mkdir(parents=True)
        self.conf = tmp / "broker.conf"
        self.conf.write_text(conf_text(spelled(self.config, version)), encoding="utf-8")
        with self.java_store(self.whole) as store:
            kind.fill(store)
        topics = {topic: {"attributes": attributes} for topic, attributes in kind.topics.items()}
        (self.whole / names.CONFIG).mkdir(exist_ok=True)
        table = json.dumps({"topicConfigTable": topics})
        (self.whole / names.CONFIG / "topics.json").write_text(table, encoding="utf-8")
        shutil.copytree(self.whole, self.expired)
        kind.expire(self.expired)

    def java_store(self, root: Path) -> JavaStore:
        store = JavaStore(self.version, root, self.config, topics=self.kind.topics, jvm=self.jvm)
        assert store.load()
        store.start()
        return store

    def known(self, root: Path) -> Known:
        store = self.opened(root)
        log = store.log
        known = Known(random.Random(SEED), self.version, self.kind.queues, self.kind.reach)
        for topic, count in self.kind.queues.items():
            views = {(topic, queue_id): store.queue(topic, queue_id) for queue_id in range(count)}
            known.ends |= {queue: (view.min_offset, view.max_offset) for queue, view in views.items()}
        offset = log.start
        while True:
            message = log.message(offset)
            if message is not None:
                known.messages.append(message)
                offset += message.size
            elif offset % int(str(CONFIG["mappedFileSizeCommitLog"])) and log.holds(
                log.roll_next_file(offset), 0
            ):
                offset = log.roll_next_file(offset)
            else:
                return known

    def opened(self, root: Path) -> QueryStore:
        return QueryStore(StoreSettings.load(root, self.conf, self.version))

    def compare(self, root: Path) -> Compared:
        """Ask both sides."""
        known = self.known(root)
        spread_file_times(root, known.times)
        questions = [question for kind in self.kind.questions for question in kind(known)]
        store = self.java_store(root)  # nobody writes to it, and it ends with the JVM
        text = "\n".join("\t".join(map(str, question)) for question in questions)
        answers = self.questions.answer(store.store, text).split("\n")[:-1]
        reput = self.opened(root)
        asked = Asked(reput)
        different = []
        seen: Counter[object] = Counter()
        for question, answer in zip(questions, answers, strict=True):
            low = (
                reput.queue(str(question[1]), int(str(question[2]))).min_offset
                if question[0] == "time"
                else 0
            )
            own = asked.answer(question)
            if own != meant(question, answer, low):
                different.append(f"{question}: {answer}, reput says {own}")
            seen.update((question[0], word) for word in features(question, own))
        return Compared(len(questions), different, seen)


STATUSES = {status.name for status in Status}
SEEN = {
    *(("pull", status) for status in STATUSES),
    *((kind, kept) for kind in ("pull", "key") for kept in ("true", "false")),
    *(("offset", found) for found in ("message", "none")),
    *(("index", found) for found in ("some", "none")),
}
#: A unit is found for each offset of a batch queue; it may be one before it.
SEEN_OF_BATCHES = {one for one in SEEN if one[0] in ("pull", "offset")} - {("pull", "OFFSET_FOUND_NULL")}


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.3.1", "4.8.0", "4.9.7", "5.3.3"]))
def test_the_same_questions_have_the_same_answers(version: str, tmp_path: Path) -> None:
    jvm = Jvm(version)
    try:
        questions = instance(jvm, _QUESTIONS)
        _compare(Bench(version, PLAIN, jvm, questions, tmp_path / "plain"), SEEN)
        if not version.startswith("4."):
            _compare(Bench(version, BATCHES, jvm, questions, tmp_path / "batches"), SEEN_OF_BATCHES)
    finally:
        jvm.close()


def _compare(bench: Bench, features_to_see: set[tuple[str, str]]) -> None:
    seen: Counter[object] = Counter()
    for root in (bench.whole, bench.expired):
        result = bench.compare(root)
        assert result.asked > 2500
        assert not result.different, _text(root, result)
        seen += result.seen
    assert set(seen) == features_to_see


def _text(root: Path, result: Compared) -> str:
    head = f"{root.name}: {len(result.different)} of {result.asked} differ"
    return "\n".join([head, *result.different[:30]])
