"""Real consumers on a real broker whose queues of other kinds reput rebuilt.

Units in consumequeue_ext with the bit maps of SQL92 consumers, batch queues, and light queues: one broker
writes all of them, all is derived anew, and consumers of each kind read it and what comes after. One start
serves all kinds, because starts and stops are what takes long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput.config.kept import batch_queue_topics
from reput.config.settings import StoreSettings
from reput.format import names
from reput.replay.target import Selection
from reput.store.compare import compare
from tests.compat.broker import Broker, Received
from tests.compat.conf import conf_text
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.compat.write_filtered import idle_consumer, wait_for_filters
from tests.local import Store, rebuild_locally

pytestmark = [pytest.mark.compat, pytest.mark.proof]

VERSION = "5.5.0"
SEED = 20261123
DERIVED = (*names.QUEUES, names.INDEX, names.CHECKPOINT)
TOPIC, QUEUES = "Orders", 2
BATCHES = "Batches"
LIGHT = ("%LMQ%device-0", "%LMQ%device-1", "%LMQ%device-2")
CONFIG: dict[str, object] = {
    **SMALL_FILES,
    "enablePropertyFilter": True,
    "enableConsumeQueueExt": True,
    "enableCalcFilterBitMap": True,
    # 18 units with a bit map of 14 bytes, and a rest.
    "mappedFileSizeConsumeQueueExt": 650,
    "enableMultiDispatch": True,
    "enableLmq": True,
    "timerWheelEnable": False,
    "mapperFileSizeBatchConsumeQueue": 5 * 46,
}

Wanted = Callable[[Message], bool]
#: By group: an expression, and what it says.
SQL: dict[str, tuple[str, Wanted]] = {
    "eu-orders": (
        "region = 'eu' AND amount > 100",
        lambda sent: sent.properties.get("region") == "eu" and int(sent.properties.get("amount", 0)) > 100,
    ),
    "odd-orders": (
        "rush IS NOT NULL OR region NOT IN ('eu', 'us')",
        lambda sent: "rush" in sent.properties or sent.properties.get("region") in ("asia", "größe"),
    ),
    "auditors": ("TAGS = 'paid'", lambda sent: sent.tags == "paid"),
    "nobody": ("amount < 0", lambda _: False),
}
TAGS: dict[str, tuple[str, Wanted]] = {
    "payers": ("paid || refused", lambda sent: sent.tags in ("paid", "refused")),
    "everybody": ("*", lambda _: True),
}


def orders(first: int, count: int) -> Iterator[Message]:
    """Messages that differ in all that the consumers look at; some are in light queues, too."""
    chance = random.Random(SEED + first)
    for number in range(first, first + count):
        properties = {}
        for name, values in (
            ("region", ("eu", "eu", "us", "asia", "größe")),
            ("amount", ("7", "100", "101", "250", "100000")),
            ("rush", ("yes",)),
        ):
            if chance.random() < 0.6:
                properties[name] = chance.choice(values)
        if number % 3 == 0:
            properties["INNER_MULTI_DISPATCH"] = ",".join(chance.sample(LIGHT, chance.randrange(1, 3)))
        yield Message(
            TOPIC,
            queue_id=chance.randrange(QUEUES),
            body=b"%d" % number,
            tags=chance.choice((None, "paid", "refused", "created")),
            keys=f"key{number}",
            uniq_key=f"unique{number}",
            properties=properties,
        )


def bodies(received: list[Received]) -> list[bytes]:
    return [message.body for message in received]


def pull_all(broker: Broker, light_queue: str) -> list[Received]:
    """All of a light queue; it has no route of its own, and so can't be subscribed to by this client."""
    received: list[Received] = []
    offset = 0
    while (found := broker.pull(light_queue, 0, offset))[0]:
        received += found[0]
        offset = found[1]
    return received


def light(sent: list[Message], queue: str) -> list[bytes]:
    return [m.body for m in sent if queue in m.properties.get("INNER_MULTI_DISPATCH", "").split(",")]


class Traffic:
    """What was sent, and whether consumers get it.

    Attributes:
        sent: messages of the topic with filters.
        batched: those of the topic with batch queues.
    """

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.batched: list[Message] = []

    def send(self, broker: Broker, count: int) -> None:
        messages = list(orders(len(self.sent), count))
        broker.produce(messages)
        self.sent += messages
        for inner in (7, 1, 4, 0, 2, 8):  # 0: one that is no batch
            some = [
                Message(BATCHES, 0, b"inner %d" % (len(self.batched) + n), uniq_key=None, tags=f"t{n}")
                for n in range(inner or 1)
            ]
            broker.produce_batch(some) if inner else broker.produce(some)
            self.batched += some
        broker.wait_dispatched()

    def listen(self, broker: Broker) -> None:
        """Start consumers of all kinds, from the first offset on."""
        self._listeners = {
            **{group: broker.listen(group, TOPIC, sql=sql) for group, (sql, _) in SQL.items()},
            **{group: broker.listen(group, TOPIC, tags=tags) for group, (tags, _) in TAGS.items()},
        }
        self._unwrapping = broker.listen("unwrapping", BATCHES)

    def check(self, broker: Broker) -> None:
        """Each consumer got exactly its messages, none of them twice; and so does who pulls."""
        wanted = {
            group: sorted(message.body for message in self.sent if is_wanted(message))
            for group, (_, is_wanted) in {**SQL, **TAGS}.items()
        }
        for group, expected in wanted.items():
            self._listeners[group].wait(len(expected))
        time.sleep(0.5)  # for what nobody waits for
        found = {group: sorted(bodies(listener.received())) for group, listener in self._listeners.items()}
        assert found == wanted
        pulled = broker.consume_all(TOPIC)  # and from now on the client knows the broker
        assert sorted(bodies(pulled)) == wanted["everybody"]
        assert {name: bodies(pull_all(broker, name)) for name in LIGHT} == {
            name: light(self.sent, name) for name in LIGHT
        }
        expected = [message.body for message in self.batched]
        self._unwrapping.wait(len(expected))
        received = sorted(self._unwrapping.received(), key=lambda message: message.queue_offset)
        assert bodies(received) == expected
        assert [message.queue_offset for message in received] == list(range(len(expected)))


def test_consumers_read_rebuilt_queues_of_each_kind(tmp_path: Path) -> None:
    root, traffic = tmp_path / "store", Traffic()
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(VERSION, root, CONFIG))
        broker.create_topic(TOPIC, QUEUES)
        broker.create_topic(BATCHES, 1, {"queue.type": "BatchCQ"})
        filters = {group: {TOPIC: sql} for group, (sql, _) in SQL.items()}
        for group, expressions in filters.items():
            stack.callback(idle_consumer(broker, group, expressions).shutdown)
        wait_for_filters(broker, filters)
        traffic.send(broker, 200)

    written = tmp_path / "written"
    written.mkdir()
    for name in DERIVED:
        (root / name).rename(written / name)
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")

    def rebuilt(out: Path) -> Path:
        settings = StoreSettings.load(root, conf, VERSION)
        selection = Selection(batch=frozenset(batch_queue_topics(settings.config)))
        state = rebuild_locally(Store(root, settings), out, part_bytes=20_000, selection=selection)
        # A broker that was killed leaves the segment that it had made for later.
        assert {finding.kind for finding in state.findings} <= {"unwritten-range"}
        return out

    first = rebuilt(tmp_path / "first")
    assert compare(written, first).differences == ()
    for name in DERIVED:
        (first / name).rename(root / name)

    with Broker(VERSION, root, CONFIG) as broker:
        traffic.listen(broker)
        traffic.check(broker)
        traffic.send(broker, 100)
        traffic.check(broker)
        broker.stop_clients()
        broker.kill()  # a stop takes ten seconds, and its files are what they are
    # What was sent later went behind what reput wrote, in consumequeue_ext, too, where places are addresses.
    found = compare(root, rebuilt(tmp_path / "grown"))
    assert [line for line in found.differences if not line.startswith(names.INDEX)] == []
    assert len(list((root / names.BATCH_CONSUME_QUEUE).glob("*/*/*"))) > 2
    assert len(list((root / names.CONSUME_QUEUE_EXT).glob("*/*/*"))) > 10
