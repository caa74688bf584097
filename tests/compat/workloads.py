"""What the real store is made to write: small, seeded workloads that touch every rule of the formats.

The files are small, so a thousand messages roll commit-log segments, consume queues and index files many
times. A workload is the same for the same version and seed; times and index names come from the clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.compat.message import COMMIT, NOT_TRANSACTIONAL, PREPARED, ROLLBACK, SCHEDULE_TOPIC, Host, Message

SEED = 20_240_229
SMALL_FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 50 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}

IPV4 = Host("192.0.2.7", 51234)
IPV6 = Host("2001:db8::a:7", 51235)
TRANSACTION_TYPES = (NOT_TRANSACTIONAL, PREPARED, COMMIT, ROLLBACK)

# Text that compresses: the fixtures live in the repository.
_TEXT = "the quick brown fox jumps over the lazy dog and counts to 7 before it rests"
# The last one's hash is Integer.MIN_VALUE.
_TAGS = ("TagA", "TagB", "TagC", "Größe", "標籤", "tag🚀", "*", "a||b", "polygenelubricants")
_KEYS = (
    "order",
    "invoice",
    "Bestellung-ä",
    "订单",
    "ключ",
    "🚀🛰",
    "\U0001d518\U0001d52b\U0001d526",  # beyond the BMP, but letters
    "é",  # composed and decomposed forms are different keys
    "e\u0301",
    "a#b",
    "tab\tbed",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one queue, put in one go."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Let the store's clock go on."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop cleanly and open the store again."""


@dataclass(frozen=True, slots=True)
class FillSegment:
    """One message that leaves exactly this many bytes of the segment, at least 8: room for a BLANK."""

    leave: int
    topic: str = "Filler"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One message whose body holds records that say their right place; see tests.hostile.hostile_body."""

    topic: str
    victim: str
    fill: str
    length: int


@dataclass(frozen=True, slots=True)
class LoseHead:
    """Stop, lose the first segments and all that was derived, mark a crash and open again.

    The store then derives everything from what is left, as live dispatch would: queues start above offset 0.
    """

    segments: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic and its queues; the log keeps its messages, the next one gets queueOffset 0 again."""

    topic: str


@dataclass(frozen=True, slots=True)
class QueryMin:
    """Ask for a queue's first offset; the RocksDB then keeps it."""

    topic: str
    queue_id: int


Operation = Message | Batch | Pause | Restart | FillSegment | LoseHead | DeleteTopic | Hostile | QueryMin


@dataclass(frozen=True, slots=True)
class Workload:
    """What to write.

    Attributes:
        name, version, seed: what it was made from.
        config: MessageStoreConfig properties.
        operations: in this order.
        topics: attributes by topic (5.x).
        crash: end with SIGKILL in place of a clean stop.
    """

    name: str
    version: str
    seed: int
    config: dict[str, object]
    operations: list[Operation]
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    crash: bool = False


def workload(name: str, version: str, seed: int = SEED) -> Workload:
    """The workload of this name.

    Raises:
        KeyError: there is none of this name for this version.
    """
    return WORKLOADS[version][name](name, version, seed)


class _Source:
    """Random messages, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._number = 0

    def body(self) -> bytes:
        kind = self.random.random()
        if kind < 0.05:
            return b""
        if kind < 0.08:
            return bytes(self.random.randrange(256) for _ in range(40))
        words = self.random.choices(_TEXT.split(), k=self.random.choice((1, 8, 40, 80)))
        return " ".join(words).encode()

    def uniq_key(self) -> str:
        self._number += 1
        return f"7F0000010A2B18B4AAC2{self._number:012X}"

    def keys(self) -> str | None:
        count = self.random.choices((0, 1, 2, 3, 6), weights=(3, 5, 3, 1, 1))[0]
        if count == 0:
            return None
        words = [
            f"{self.random.choice(_KEYS)}{self.random.choice(('', '-7', f'-{self._number}'))}"
            for _ in range(count)
        ]
        separator = self.random.choice((" ", " ", " ", "  ", "   "))
        around = self.random.choice(("", "", "", "", " "))
        return around + separator.join(words) + around

    def message(self, topic: str, queue_id: int, **other: object) -> Message:
        chance = self.random.random
        settings: dict[str, object] = {
            "body": self.body(),
            "tags": self.random.choice(_TAGS) if chance() < 0.7 else None,
            "keys": self.keys(),
            "uniq_key": self.uniq_key() if chance() < 0.9 else None,
            "born_timestamp": 1_700_000_000_000 + self._number,
            "flag": self.random.choice((0, 0, 0, 1, -1)),
            "born_host": IPV6 if chance() < 0.1 else IPV4,
            "store_host": IPV6 if chance() < 0.1 else Host(),
        }
        if chance() < 0.5:
            settings["properties"] = {"WAIT": "true", "CLUSTER": "DefaultCluster"}
        if chance() < 0.03:
            settings.update(tags=None, keys=None, uniq_key=None, properties={})
        settings.update(other)
        return Message(topic=topic, queue_id=queue_id, **settings)  # type: ignore[arg-type]

    def batch(self, topic: str, queue_id: int, count: int, **other: object) -> Batch:
        # Hosts and times of a batch are its first message's; the store writes them into all.
        return Batch(tuple(self.message(topic, queue_id, **other) for _ in range(count)))

    def queue(self) -> tuple[str, int]:
        """A topic and a queue; half of all in one queue, so that it rolls often."""
        if self.random.random() < 0.5:
            return "Orders", 0
        return self.random.choice(("Orders", "Payments", "Shipments-of-2024", "t")), self.random.randrange(4)


def _delayed(source: _Source, version: str) -> list[Operation]:
    """Every delay level, one above the last, and what is no level at all."""
    made: list[Operation] = []
    for level in range(1, 19):
        if version.startswith("4."):
            # The 4.9 store itself moves a delayed message to the schedule topic.
            made.append(source.message("Delayed", level % 4, delay_level=level))
        else:
            made.append(source.message(SCHEDULE_TOPIC, level - 1, delay_level=level))
    for queue_id, level in ((18, 19), (17, 30), (0, 0), (0, -1), (3, -18)):
        # A batch, because the 4.9 store would correct the level of a single message.
        made.append(source.batch(SCHEDULE_TOPIC, queue_id, 1, delay_level=level))
    made.append(source.message(SCHEDULE_TOPIC, 2, tags="NoLevel"))
    made.append(source.message("NotTheScheduleTopic", 0, properties={"DELAYED": "3"}, tags="NoDelay"))
    return made


def _transactions(source: _Source) -> list[Operation]:
    return [
        source.message(
            topic, source.random.randrange(2), sys_flag=kind, prepared_transaction_offset=4711 * kind
        )
        for topic in ("Transfers", "RMQ_SYS_TRANS_HALF_TOPIC")
        for _ in range(4)
        for kind in TRANSACTION_TYPES
    ]


def _retries(source: _Source) -> list[Operation]:
    return [
        source.message(f"%{kind}%group", 0, reconsume_times=times, properties={"RETRY_TOPIC": "Orders"})
        for kind in ("RETRY", "DLQ")
        for times in range(4)
    ]


def _corners(source: _Source, version: str) -> list[Operation]:
    nothing: dict[str, object] = {"tags": None, "keys": None, "uniq_key": None, "properties": {}}
    return [
        source.message("Corners", 0, **nothing, body=b""),
        source.message("Corners", 0, **nothing, body=b"no properties"),
        source.message("Corners", 0, **{**nothing, "tags": "only"}),
        source.message("Corners", 0, **{**nothing, "keys": "only"}),
        source.message("Corners", 0, **{**nothing, "uniq_key": "only"}),
        source.message("Corners", 0, **{**nothing, "keys": "a  b   c"}),
        source.message("Corners", 0, **{**nothing, "keys": " before and after "}),
        source.message("Corners", 0, **{**nothing, "keys": "   "}),
        source.message("Corners", 0, **{**nothing, "keys": "same same same", "uniq_key": "same"}),
        source.message("Corners", 0, **{**nothing, "keys": "\U0001d518 🚀 \U0010fffd e\u0301 é"}),
        source.message("Corners", 0, **{**nothing, "keys": " ".join(f"k{n}" for n in range(300))}),
        # The hash of topic#key is Integer.MIN_VALUE, which has no absolute value: 0 takes its place.
        source.message("Corners", 0, **{**nothing, "keys": "key-aeggphuf"}),
        source.message("Corners", 0, **{**nothing, "tags": "x" * 3000}),
        source.message("Corners", 0, born_host=IPV4, store_host=Host()),
        source.message("Corners", 0, born_host=IPV6, store_host=Host()),
        source.message("Corners", 0, born_host=IPV4, store_host=IPV6),
        source.message("Corners", 0, born_host=IPV6, store_host=IPV6),
        source.message("Corners", 2_000_000_000, tags="high-queue-id"),
        source.message("Corners", 1, body=b"large" * 6000, keys="large"),
        source.message("x" * 127, 0, tags="longest-v1-topic"),
    ]


def _shuffled(source: _Source, plain: int, special: list[Operation]) -> list[Operation]:
    """Plain messages and a few batches with the special ones strewn in, in an order of the seed."""
    operations: list[Operation] = [source.message(*source.queue()) for _ in range(plain)]
    operations += [source.batch(*source.queue(), source.random.randrange(1, 9)) for _ in range(plain // 40)]
    operations += special
    source.random.shuffle(operations)
    return operations


def _with_pauses(operations: list[Operation], count: int, seconds: float = 1.3) -> list[Operation]:
    """The same with pauses: entries of the index then differ by whole seconds."""
    step = len(operations) // (count + 1) + 1
    out: list[Operation] = []
    for number, operation in enumerate(operations, start=1):
        out.append(operation)
        if number % step == 0:
            out.append(Pause(seconds))
    return out


def _mixed(name: str, version: str, seed: int) -> Workload:
    """All that a broker with plain settings stores."""
    source = _Source(seed)
    special = _delayed(source, version) + _transactions(source) + _retries(source) + _corners(source, version)
    special += [FillSegment(leave) for leave in (8, 9, 15, 96)]
    return Workload(name, version, seed, dict(SMALL_FILES), _with_pauses(_shuffled(source, 700, special), 3))


def _crash(name: str, version: str, seed: int) -> Workload:
    """The same kind of store, whose process was killed: `abort` is there, the checkpoint is behind."""
    source = _Source(seed + 1)
    special = _delayed(source, version) + _transactions(source) + _corners(source, version)
    # 990 is no multiple of a unit: the store rounds up.
    config = {**SMALL_FILES, "mappedFileSizeConsumeQueue": 990}
    return Workload(name, version, seed, config, _with_pauses(_shuffled(source, 250, special), 1), crash=True)


def _restart(name: str, version: str, seed: int) -> Workload:
    """Stopped and started twice: what recovery leaves alone must look like one long run."""
    source = _Source(seed + 2)
    operations: list[Operation] = []
    for _ in range(3):
        operations += _shuffled(source, 120, _transactions(source) + _retries(source))
        operations.append(Restart())
    return Workload(name, version, seed, dict(SMALL_FILES), operations[:-1])


def _lost_head(name: str, version: str, seed: int) -> Workload:
    """The log's first segments have expired: queues start above offset 0, in the middle of a file."""
    source = _Source(seed + 3)
    # No delayed messages: 4.9 derives wrong tagsCodes for them when it recovers.
    operations = _shuffled(source, 450, _transactions(source) + _retries(source))
    operations.append(LoseHead(2))
    operations += _shuffled(source, 60, [])
    # A queue that no message of the first run went to.
    operations.append(source.message("Late", 0))
    return Workload(name, version, seed, dict(SMALL_FILES), operations)


def _no_keys(name: str, version: str, seed: int) -> Workload:
    """Not one key: is there an index file?"""
    source = _Source(seed + 4)
    operations: list[Operation] = [
        source.message("Keyless", n % 2, keys=None, uniq_key=None, tags=None, properties={})
        for n in range(60)
    ]
    return Workload(name, version, seed, dict(SMALL_FILES), operations)


def _no_index(name: str, version: str, seed: int) -> Workload:
    """messageIndexEnable=false."""
    source = _Source(seed + 5)
    config = {**SMALL_FILES, "messageIndexEnable": False}
    return Workload(name, version, seed, config, _shuffled(source, 60, []))


def _odd_properties(name: str, version: str, seed: int) -> Workload:
    """Property strings that no client sends but a store accepts."""
    source = _Source(seed + 6)
    strings = [
        "TAGS\x01first\x02TAGS\x01second\x02",
        "KEYS\x01first\x02KEYS\x01second third\x02UNIQ_KEY\x01u\x02",
        "TAGS\x01\x02KEYS\x01\x02",
        "\x01value\x02TAGS\x01t\x02",
        "TAGS\x02KEYS\x01k\x02",
        "TAGS\x01a\x01b\x02KEYS\x01k\x01l m\x02",
        "KEYS\x01no-end",
        "\x02\x02\x02TAGS\x01t\x02\x02\x02",
        "\x01\x02",
        "\x02",
        "\x01",
        "x",
        "KEYS\x01\u00a0nbsp\u00a0 \u3000ideographic\u3000\x02",
        "KEYS\x01\t tab \n line\x02TAGS\x01 t \x02",
        "TAGS\x01\x00\x02KEYS\x01\x00 \x00\x00\x02",
        "tags\x01lower\x02keys\x01lower\x02",
        "UNIQ_KEY\x01two words\x02KEYS\x01two words\x02",
    ]
    operations: list[Operation] = [
        source.message("Odd", n % 2, properties_string=text) for n, text in enumerate(strings * 2)
    ]
    operations += [Batch((source.message("Odd", 2, properties_string=text),)) for text in strings]
    return Workload(name, version, seed, dict(SMALL_FILES), operations)


def _lmq_message(source: _Source, topic: str, queue_id: int, queues: list[str]) -> Message:
    properties = {"INNER_MULTI_DISPATCH": ",".join(queues), "WAIT": "true"}
    return source.message(topic, queue_id, properties=properties)


def _lmq(name: str, version: str, seed: int) -> Workload:
    """Messages that several light queues share; the store itself counts their offsets."""
    source = _Source(seed + 7)
    names = [f"%LMQ%device-{n}" for n in range(5)]
    if version.startswith("4."):
        # 4.9 counts for any name; 5.x writes the word null as the offset of one without %LMQ%.
        names += ["plain-queue", "Parent"]
    topics = [
        "Parent",
        "Parent",
        "Parent",
        "Other",
        "%RETRY%lmq",
        "rmq_sys_REVIVE_LOG_Cluster",
        SCHEDULE_TOPIC,
    ]
    special: list[Operation] = []
    for _ in range(400):
        topic = source.random.choice(topics)
        queue_id = source.random.randrange(2) if topic == "Parent" else 0
        queues = source.random.sample(names, source.random.randrange(1, 4))
        if source.random.random() < 0.1:
            queues = queues[:1] * 2
        special.append(_lmq_message(source, topic, queue_id, queues))
    special += [
        source.message("Parent", 0, properties={"INNER_MULTI_DISPATCH": "  "}),
        _lmq_message(source, "Parent", 1, ["%LMQ%device-0", "%LMQ%device-1", ""]),
    ]
    for kind in TRANSACTION_TYPES:
        message = _lmq_message(source, "Parent", 0, ["%LMQ%transactions"])
        special.append(source.message("Parent", 0, properties=message.properties, sys_flag=kind))
    config = {**SMALL_FILES, "enableMultiDispatch": True, "enableLmq": True}
    return Workload(name, version, seed, config, _shuffled(source, 100, special))


def _lmq_own_ids(name: str, version: str, seed: int) -> Workload:
    """enableMultiDispatch without enableLmq: light queues keep the message's queue id."""
    source = _Source(seed + 8)
    names = ["%LMQ%a", "%LMQ%b", "plain"]
    special: list[Operation] = [
        _lmq_message(source, "Parent", source.random.randrange(3), source.random.sample(names, n % 3 + 1))
        for n in range(200)
    ]
    operations = _shuffled(source, 40, special)
    if not version.startswith("4."):
        # A 5.x store without enableLmq counts no offsets, but dispatches those that a producer names.
        operations = _with_queue_offsets(operations)
    config = {**SMALL_FILES, "enableMultiDispatch": True, "enableLmq": False}
    return Workload(name, version, seed, config, operations)


def _with_queue_offsets(operations: list[Operation]) -> list[Operation]:
    """The same with the light queues' offsets as a property, counted in this order."""
    next_offset: Counter[tuple[str, int]] = Counter()
    out: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Message) and "INNER_MULTI_DISPATCH" in operation.properties:
            queues = operation.properties["INNER_MULTI_DISPATCH"].split(",")
            offsets = ",".join(str(next_offset[queue, operation.queue_id]) for queue in queues)
            next_offset.update((queue, operation.queue_id) for queue in queues)
            properties = {**operation.properties, "INNER_MULTI_QUEUE_OFFSET": offsets}
            operation = replace(operation, properties=properties)
        out.append(operation)
    return out


def _property_crc(name: str, version: str, seed: int) -> Workload:
    """enabledAppendPropCRC (5.2 and later), with single messages, batches and light queues."""
    source = _Source(seed + 9)
    special = _transactions(source) + _corners(source, version) + _delayed(source, version)
    special += [_lmq_message(source, "Parent", 0, ["%LMQ%a", "%LMQ%b"]) for _ in range(20)]
    special += [source.message("Crc", 0, properties={"__CRC32#": "0123456789"}) for _ in range(3)]
    special += [FillSegment(leave) for leave in (8, 9)]
    config = {**SMALL_FILES, "enabledAppendPropCRC": True, "enableMultiDispatch": True, "enableLmq": True}
    return Workload(name, version, seed, config, _shuffled(source, 250, special))


def _long_topics(name: str, version: str, seed: int) -> Workload:
    """Topics above 127 bytes (5.x): records of version 2 among those of version 1."""
    source = _Source(seed + 10)
    special: list[Operation] = []
    for length in (126, 127, 128, 129, 200, 255):
        topic = f"Topic-of-{length}-".ljust(length, "x")
        special += [source.message(topic, n % 2) for n in range(30)]
        special.append(source.batch(topic, 0, 4))
        special += [source.message(topic, 0, sys_flag=kind) for kind in TRANSACTION_TYPES]
        special.append(source.message(topic, 0, born_host=IPV6, store_host=IPV6))
    return Workload(name, version, seed, dict(SMALL_FILES), _shuffled(source, 60, special))


def _recreated_topic(name: str, version: str, seed: int) -> Workload:
    """A topic deleted and created again, twice: its queues hold the newest incarnation only."""
    source = _Source(seed + 11)

    def some(count: int, queues: int) -> list[Operation]:
        made: list[Operation] = [source.message("Again", n % queues) for n in range(count)]
        return made + [source.message("Constant", n % 2) for n in range(40)]

    # The newest incarnation is shorter in queue 0, longer in queue 1, and unknown in queue 2.
    operations = [*some(200, 3), DeleteTopic("Again"), *some(30, 1), DeleteTopic("Again"), *some(170, 2)]
    return Workload(name, version, seed, dict(SMALL_FILES), operations)


def _queue_ext(name: str, version: str, seed: int) -> Workload:
    """enableConsumeQueueExt: units point into files of their own."""
    source = _Source(seed + 12)
    special = _transactions(source) + _delayed(source, version) + _retries(source)
    config = {**SMALL_FILES, "enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1000}
    return Workload(name, version, seed, config, _shuffled(source, 200, special))


def _batch_queue(name: str, version: str, seed: int) -> Workload:
    """A topic of type BatchCQ (5.x): its queues have units of their own kind."""
    source = _Source(seed + 13)
    special: list[Operation] = []
    for n in range(150):
        count = source.random.randrange(1, 9)
        inner = source.message("Batches", n % 2, sys_flag=0x80, properties={"INNER_NUM": str(count)})
        special += [inner] if n % 4 else [source.message("Batches", n % 2)]
    config = {**SMALL_FILES, "mapperFileSizeBatchConsumeQueue": 20 * 46}
    topics = {"Batches": {"queue.type": "BatchCQ"}}
    return Workload(name, version, seed, config, _shuffled(source, 60, special), topics)


def _tiny(name: str, version: str, seed: int) -> Workload:
    """Two short segments with something of everything, so that each bit can be turned by itself.

    In 5.3.3 with ``enabledAppendPropCRC``: there a CRC covers each whole record.
    """
    source = _Source(seed + 13)
    short: dict[str, object] = {"tags": None, "keys": None, "properties": {}, "born_host": IPV4}
    short |= {"store_host": Host(), "uniq_key": None}

    def message(topic: str, **other: object) -> Message:
        body = f"{topic.lower()}".encode()
        return source.message(topic, 0, **{**short, "body": body, **other})

    delayed = "Late" if version.startswith("4.") else SCHEDULE_TOPIC
    both = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    operations: list[Operation] = [
        message("One", tags="A", keys="k l", uniq_key="u1"),
        message("One", body=b""),
        message(delayed, delay_level=1, tags="B"),
        message("Two", properties=both),
        message("One", keys="ключ 🚀", born_host=IPV6),
        message("Half", sys_flag=PREPARED, uniq_key="t"),
        Pause(1.3),
        message("One", sys_flag=COMMIT, uniq_key="t", tags="a||b"),
        message("One", sys_flag=ROLLBACK, uniq_key="t"),
        message("Two", store_host=IPV6, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}, keys="k"),
        message("One", flag=-1, reconsume_times=2),
    ]
    config: dict[str, object] = {
        "mappedFileSizeCommitLog": 1024,
        "mappedFileSizeConsumeQueue": 4 * 20,
        "maxHashSlotNum": 5,
        "maxIndexNum": 8,
        "enableMultiDispatch": True,
        "enableLmq": True,
    }
    if version == "5.3.3":
        config["enabledAppendPropCRC"] = True
    return Workload(name, version, seed, config, operations)


def _hostile(name: str, version: str, seed: int) -> Workload:
    """Two segments in which bodies hold records and closing records, each bit of which can be turned."""
    source = _Source(seed + 14)
    short: dict[str, object] = {"tags": None, "keys": None, "properties": {}, "born_host": IPV4}
    short |= {"store_host": Host(), "uniq_key": None, "body": b"honest"}

    def honest(topic: str) -> Message:
        return source.message(topic, 0, **{**short, "keys": "k", "tags": "A"})

    operations: list[Operation] = [honest("Victim"), honest("Other")]
    for fill in ("chain", "apart", "blank"):
        operations += [Hostile("Evil", "Victim", fill, 380), honest("Victim"), honest("Victim")]
    config: dict[str, object] = {
        "mappedFileSizeCommitLog": 2048,
        "mappedFileSizeConsumeQueue": 4 * 20,
        "maxHashSlotNum": 5,
        "maxIndexNum": 8,
    }
    return Workload(name, version, seed, config, operations)


def _dledger(name: str, version: str, seed: int) -> Workload:
    """A log that DLedger writes, in a group of one."""
    source = _Source(seed + 12)
    special = _delayed(source, version) + _transactions(source) + _retries(source)
    special += [FillSegment(leave) for leave in (8, 9, 60)]
    config = {
        **SMALL_FILES,
        "mappedFileSizeCommitLog": 16 * 1024,
        "enableDLegerCommitLog": True,
        "dLegerGroup": "group",
        "dLegerSelfId": "n0",
        # Whatever port is free: nobody else is to come.
        "dLegerPeers": "n0-127.0.0.1:0",
    }
    return Workload(name, version, seed, config, _shuffled(source, 150, special))


_Maker = Callable[[str, str, int], Workload]
_EVERYWHERE: dict[str, _Maker] = {
    "mixed": _mixed,
    "crash": _crash,
    "restart": _restart,
    "lost-head": _lost_head,
    "no-keys": _no_keys,
    "no-index": _no_index,
    "odd-properties": _odd_properties,
    "lmq": _lmq,
    "lmq-own-ids": _lmq_own_ids,
    "recreated-topic": _recreated_topic,
    "queue-ext": _queue_ext,
    "tiny": _tiny,
}
_SINCE_5: dict[str, _Maker] = {
    "property-crc": _property_crc,
    "long-topics": _long_topics,
    "batch-queue": _batch_queue,
}

WORKLOADS: dict[str, dict[str, _Maker]] = {
    # 5.3.3 has the DLedger of 4.9.7.
    "4.9.7": {**_EVERYWHERE, "dledger": _dledger},
    "5.3.3": {**_EVERYWHERE, **_SINCE_5},
    "5.5.0": {**_EVERYWHERE, **_SINCE_5, "dledger": _dledger, "hostile": _hostile},
}
"""What makes each workload, by version and name."""


def of_release(name: str, release: str, seed: int = SEED) -> Workload:
    """What a release of any age can write of ``"mixed"`` or ``"queue-ext"``; from 4.5 on of ``"dledger"``.

    Batches came with 4.1, but in DLedger, as hosts of 16 bytes there, with 4.8.
    """
    number, ledger = tuple(map(int, release.split("."))), name == "dledger"
    made = (_dledger if ledger else _EVERYWHERE[name])(name, release, seed)
    operations: list[Operation] = []
    for one in made.operations:
        if number < ((4, 8) if ledger else (4, 6)) and _has_v6(one):
            continue
        if number < ((4, 8) if ledger else (4, 1)) and isinstance(one, Batch):
            operations += one.messages
        else:
            operations.append(one)
    return replace(made, operations=operations)


def _has_v6(operation: Operation) -> bool:
    messages = operation.messages if isinstance(operation, Batch) else (operation,)
    return any(isinstance(one, Message) and IPV6 in (one.born_host, one.store_host) for one in messages)
