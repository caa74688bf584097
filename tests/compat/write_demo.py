"""Writes the store that comes with reput: ``python -m tests.compat.write_demo``.

A real broker runs for a minute or two, a real client sends it the messages of a small shop. CI never runs it.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from reput.demo import ARCHIVE, VERSION
from reput.newer_python import UTC
from tests.compat.broker import BROKER_NAME, CLUSTER, Broker
from tests.compat.conf import conf_text
from tests.compat.message import Message
from tests.golden.store import MANIFEST, describe, pack

SEED = 20_240_229
ORDERS = 3_400
TOPICS = {"Orders": 8, "Payments": 4, "Shipments": 4, "Reminders": 2, "Audit": 1}
CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 500 * 20,
    "maxHashSlotNum": 4_000,
    "maxIndexNum": 16_000,
    # Delays of any length have a store of their own, of 40 MB: not for a demonstration.
    "timerWheelEnable": False,
}

_STEPS = ("created", "paid", "packed", "shipped")
_ITEMS = ("bicycle bell", "inner tube", "saddle", "chain", "brake pads", "front light", "rear light", "pump")
_CITIES = ("Zürich", "Köln", "København", "Łódź", "Málaga", "東京", "Oslo", "Lyon")
# The last deliveries of reminders come 5 s after the last one was sent.
_LAST_DELIVERY = 7.0
_CONF_HEAD = """\
# What the broker ran with that wrote this store (RocketMQ {version}), without addresses and directories of
# the machine it ran on. Small files, so that a small store has many of them.
"""


class _Shop:
    """What the shop sends, in the order in which it happens."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)
        self._keys = 0

    def batches(self) -> Iterator[list[Message]]:
        """Messages that are sent together: of one topic and queue, except those of one message."""
        open_orders: list[tuple[int, int]] = []
        waiting: dict[tuple[str, int], list[Message]] = {}
        created = 0
        while created < ORDERS or open_orders:
            if created < ORDERS and (len(open_orders) < 40 or self._random.random() < 0.25):
                created += 1
                order, step = created, 0
            else:
                order, step = open_orders.pop(self._random.randrange(len(open_orders)))
            if step + 1 < len(_STEPS) and self._random.random() < 0.97:
                open_orders.append((order, step + 1))
            for message in self._step(order, step):
                key = message.topic, message.queue_id
                waiting.setdefault(key, []).append(message)
                # Delayed messages can't go in a batch.
                limit = 1 if message.delay_level else self._random.choice((1, 4, 16, 32))
                if len(waiting[key]) >= limit:
                    yield waiting.pop(key)
        yield from waiting.values()

    def transfers(self, count: int) -> Iterator[Message]:
        """Messages to be sent in a transaction."""
        for number in range(count):
            body = {"transfer": number, "amount": self._random.randrange(100, 100_000) / 100}
            yield self._message("Payments", f"transfer-{number:05d}", "transfer", body)

    def _step(self, order: int, step: int) -> Iterator[Message]:
        name, chance = _STEPS[step], self._random.random
        keys = f"order-{order:06d} customer-{order * 7919 % 997:04d}"
        body: dict[str, object] = {"order": order, "step": name}
        if step == 0:
            body["city"] = self._random.choice(_CITIES)
            body["items"] = self._random.choices(_ITEMS, k=self._random.randrange(1, 4))
        yield self._message("Orders", keys, name, body)
        if name == "paid":
            amount = self._random.randrange(500, 50_000) / 100
            yield self._message("Payments", f"order-{order:06d}", "card", {"order": order, "amount": amount})
        elif name == "shipped":
            parcel = {"order": order, "parcel": f"P{order:08d}"}
            yield self._message("Shipments", f"order-{order:06d} P{order:08d}", "parcel", parcel)
        elif name == "created" and chance() < 0.06:
            level = self._random.choice((1, 2, 16, 17, 18))
            yield self._message("Reminders", keys, "unpaid", {"order": order}, delay_level=level)
        if chance() < 0.05:
            # No tag and no key: only the unique key is indexed.
            yield self._message("Audit", None, None, {"order": order, "step": name, "by": "clerk"})

    def _message(
        self,
        topic: str,
        keys: str | None,
        tags: str | None,
        body: Mapping[str, object],
        delay_level: int | None = None,
    ) -> Message:
        self._keys += 1
        return Message(
            topic=topic,
            queue_id=self._random.randrange(TOPICS[topic]),
            body=json.dumps(body, ensure_ascii=False).encode(),
            tags=tags,
            keys=keys,
            # As a client at 192.0.2.7 would make them; a real one would name the machine that this ran on.
            uniq_key=f"C00002071A2B18B4AAC2{self._keys:012X}",
            delay_level=delay_level,
        )


def write_demo(archive: Path = ARCHIVE) -> dict[str, object]:
    """Run the broker and pack its store; returns the manifest."""
    with tempfile.TemporaryDirectory(prefix="demo-") as scratch:
        root = Path(scratch)
        with Broker(VERSION, root / "store", CONFIG) as broker:
            counts = _trade(broker)
        tidy(root / "store")
        conf = {"brokerClusterName": CLUSTER, "brokerName": BROKER_NAME, "brokerId": 0, **CONFIG}
        text = _CONF_HEAD.format(version=VERSION) + conf_text(conf)
        (root / "broker.conf").write_text(text, encoding="utf-8")
        manifest: dict[str, object] = {
            "rocketmq": VERSION,
            "written": datetime.now(UTC).strftime("%Y-%m-%d"),
            "seed": SEED,
            "config": CONFIG,
            "topics": TOPICS,
            "counts": counts,
            "files": describe(root),
        }
        (root / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        pack(root, archive)
    return manifest


def _trade(broker: Broker) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for topic, queues in TOPICS.items():
        broker.create_topic(topic, queues)
    shop = _Shop()
    for number, messages in enumerate(shop.batches()):
        if len(messages) == 1:
            broker.produce(messages)
        else:
            broker.produce_batch(messages)
        counts[messages[0].topic] += len(messages)
        counts["delayed"] += sum(message.delay_level is not None for message in messages)
        if number % 500 == 0:
            time.sleep(1)
    for number, message in enumerate(shop.transfers(40)):
        commit = number % 4 != 3
        broker.produce_in_transaction(message, commit=commit)
        counts["committed" if commit else "rolled back"] += 1
    time.sleep(_LAST_DELIVERY)
    broker.wait_dispatched()
    _consume(broker)
    return dict(sorted(counts.items()))


def _consume(broker: Broker) -> None:
    """Consumer groups that have come to different places: what a notebook shows as lag."""
    store = broker.store
    for group, topic, share in (
        ("billing", "Payments", 1.0),
        ("warehouse", "Orders", 0.9),
        ("analytics", "Orders", 0.4),
        ("parcel-service", "Shipments", 0.97),
    ):
        for queue_id in range(TOPICS[topic]):
            end = int(store.getMaxOffsetInQueue(topic, queue_id))
            broker.commit_offset(group, topic, queue_id, int(end * share))


def tidy(store: Path) -> None:
    """Leave out what isn't the store: RocksDB's empty files name absolute paths, and old copies of config."""
    shutil.rmtree(store / "rocksdbstore", ignore_errors=True)
    for copy in (store / "config").glob("*.bak"):
        copy.unlink()


if __name__ == "__main__":
    written = write_demo()
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size} bytes, {written['counts']}")
