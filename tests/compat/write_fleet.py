"""Writes the fleet that comes with reput: ``python -m tests.compat.write_fleet``.

Two real masters, a real slave of one of them, and real clients, for two minutes: the shop of
``tests/compat/write_demo.py`` when it has outgrown one broker. CI never runs it.

What is to be seen: a large customer whose orders all go to one queue, a group that one broker holds back,
messages that consumers fail on until they are dead letters, and a slave that was stopped before its master.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from reput.demo import FLEET, FLEET_BROKERS, VERSION
from reput.newer_python import UTC
from tests.compat.broker import CLUSTER, Broker, Listener
from tests.compat.conf import conf_text
from tests.compat.jvm import JavaError
from tests.compat.message import Message
from tests.compat.write_demo import tidy
from tests.golden.store import MANIFEST, describe, pack

SEED = 20_261_123
ORDERS = 1_500
#: Of the orders, so many are placed before the slave stops.
REPLICATED = 1_200
#: Queues of each topic on a broker; one that only the first broker has.
TOPICS = {"Orders": 4, "Payments": 2, "Shipments": 2}
ONLY_FIRST = {"Audit": 1}
CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 250 * 20,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
    # Delays of any length have a store of their own, of 40 MB: not for a demonstration.
    "timerWheelEnable": False,
}

#: A customer with this share of the orders. As all messages of a customer go to one queue, so do these.
_LARGE, _LARGE_SHARE = 11, 0.3
#: Customers that pay in what isn't money any more: `billing` fails on these.
_OLD_MONEY, _OLD_CURRENCY = (42, 77), "DEM"
#: And `mailer` on parcels that nobody can send.
_NO_ADDRESS = '"address": null'
#: Deliveries after the first one that fails: 10 s and then 30 s later, by the default delay levels.
_TRIES = 2
_WAIT = 120.0
_CONF_HEAD = """\
# What the broker ran with that wrote this store (RocketMQ {version}), without addresses and directories of
# the machine it ran on. Small files, so that a small store has many of them.
"""


class _Shop:
    """What the shop sends, in the order in which it happens: which broker, and which message."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)
        self._keys = 0

    def orders(self, first: int, last: int) -> Iterator[tuple[int, Message]]:
        """The messages of these orders."""
        for order in range(first, last):
            chance = self._random.random
            customer = _LARGE if chance() < _LARGE_SHARE else self._random.randrange(100, 400)
            old = order % 137 == 5
            if old:
                customer = self._random.choice(_OLD_MONEY)
            keys = f"order-{order:06d} customer-{customer:04d}"
            # Where a customer's messages go: eight queues, four on each broker.
            place = customer * 5 % 8
            body: dict[str, object] = {"order": order, "customer": customer, "items": 1 + customer % 5}
            yield place // 4, self._message("Orders", place % 4, keys, "created", body)
            if old or chance() < 0.3:
                cents = self._random.randrange(500, 50_000)
                money = {"order": order, "amount": cents / 100, "currency": _OLD_CURRENCY if old else "EUR"}
                # The service that takes payments knows more of the first broker's queues.
                broker, queue = int(chance() < 0.35), self._random.randrange(2)
                yield broker, self._message("Payments", queue, keys, "card", money)
            if chance() < 0.15:
                parcel: dict[str, object] = {"order": order, "parcel": f"P{order:08d}"}
                parcel["address"] = None if self._random.random() < 0.04 else f"Road {customer % 90 + 1}"
                place = self._random.randrange(4)
                yield place // 2, self._message("Shipments", place % 2, keys, "parcel", parcel)
            if chance() < 0.04:
                yield 0, self._message("Audit", 0, None, None, {"order": order, "by": "clerk"})

    def _message(
        self, topic: str, queue: int, keys: str | None, tags: str | None, body: dict[str, object]
    ) -> Message:
        self._keys += 1
        return Message(
            topic=topic,
            queue_id=queue,
            body=json.dumps(body).encode(),
            tags=tags,
            keys=keys,
            # As a client at 192.0.2.7 would make them; a real one would name the machine that this ran on.
            uniq_key=f"C00002070F1E18B4AAC2{self._keys:012X}",
        )


def write_fleet(archive: Path = FLEET) -> dict[str, object]:
    """Run the brokers and pack their stores; returns the manifest."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as scratch:
        root = Path(scratch)
        counts = _run(root)
        for directory in FLEET_BROKERS:
            name, number = directory.removesuffix("-slave"), int(directory.endswith("-slave"))
            tidy(root / directory / "store")
            conf: dict[str, object] = {"brokerClusterName": CLUSTER, "brokerName": name, "brokerId": number}
            conf |= {"brokerRole": "SLAVE"} if number else {}
            text = _CONF_HEAD.format(version=VERSION) + conf_text({**conf, **CONFIG})
            (root / directory / "broker.conf").write_text(text, encoding="utf-8")
        manifest: dict[str, object] = {
            "rocketmq": VERSION,
            "written": datetime.now(UTC).strftime("%Y-%m-%d"),
            "seed": SEED,
            "config": CONFIG,
            "topics": {**TOPICS, **ONLY_FIRST},
            "counts": counts,
            "files": describe(root),
        }
        (root / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        pack(root, archive)
    return manifest


def _run(root: Path) -> dict[str, int]:
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        first = Broker(VERSION, root / "broker-a" / "store", CONFIG, replicates=True)
        stack.enter_context(first)
        second = Broker(VERSION, root / "broker-b" / "store", CONFIG, name="broker-b", beside=first)
        stack.enter_context(second)
        masters = (first, second)
        for topic, queues in TOPICS.items():
            for master in masters:
                master.create_topic(topic, queues)
        for topic, queues in ONLY_FIRST.items():
            first.create_topic(topic, queues)
        listeners = {
            "billing": first.listen("billing", "Payments", refused=_OLD_CURRENCY, most_tries=_TRIES),
            "mailer": first.listen("mailer", "Shipments", refused=_NO_ADDRESS, most_tries=_TRIES),
        }
        shop = _Shop()
        with Broker(VERSION, root / "broker-a-slave" / "store", CONFIG, slave_of=first) as slave:
            _trade(shop, (0, REPLICATED), masters, counts)
            _wait_for_dead_letters(masters, counts, listeners)
            _wait_for_slave(first, slave)
        _trade(shop, (REPLICATED, ORDERS), masters, counts)
        _wait_for_dead_letters(masters, counts, listeners)
        for master in masters:
            master.wait_dispatched()
        _consume(masters)
        first.stop_clients()  # the consumers commit where they are
        second.stop_clients()
        time.sleep(1)
    return dict(sorted(counts.items()))


def _trade(
    shop: _Shop, orders: tuple[int, int], masters: tuple[Broker, Broker], counts: Counter[str]
) -> None:
    for number, (at, message) in enumerate(shop.orders(*orders)):
        masters[at].produce([message])
        counts[message.topic] += 1
        counts["refused by billing"] += _OLD_CURRENCY.encode() in message.body
        counts["refused by mailer"] += _NO_ADDRESS.encode() in message.body
        if number % 200 == 0:
            time.sleep(1)


def _wait_for_dead_letters(
    masters: tuple[Broker, Broker], counts: Counter[str], listeners: dict[str, Listener]
) -> None:
    deadline = time.monotonic() + _WAIT
    for group, listener in listeners.items():
        topic = f"%DLQ%{group}"
        while (found := sum(int(master.store.getMaxOffsetInQueue(topic, 0)) for master in masters)) < counts[
            f"refused by {group}"
        ]:
            if time.monotonic() > deadline:
                given = len(listener.received())
                raise JavaError(f"{topic} has {found} messages in the end, {given} were given to {group}")
            time.sleep(0.2)


def _wait_for_slave(master: Broker, slave: Broker) -> None:
    """Until the slave has what its master has, the list of topics and the consumers' places included."""
    master.wait_dispatched()
    deadline = time.monotonic() + _WAIT
    while int(slave.store.getMaxPhyOffset()) < int(master.store.getMaxPhyOffset()):
        if time.monotonic() > deadline:
            raise JavaError(f"the slave ends at {slave.store.getMaxPhyOffset()}")
        time.sleep(0.1)
    time.sleep(15)  # it asks its master for its config every ten seconds
    slave.wait_dispatched()


def _consume(masters: tuple[Broker, Broker]) -> None:
    """Two more groups, which have come to different places on the two brokers."""
    for group, shares in (("warehouse", (0.98, 0.6)), ("analytics", (0.8, 0.8))):
        for master, share in zip(masters, shares, strict=True):
            for queue in range(TOPICS["Orders"]):
                end = int(master.store.getMaxOffsetInQueue("Orders", queue))
                master.commit_offset(group, "Orders", queue, int(end * share))


if __name__ == "__main__":
    written = write_fleet()
    print(f"{FLEET.name}: {FLEET.stat().st_size} bytes, {written['counts']}")
