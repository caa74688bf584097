"""Writes the golden stores with bit maps: ``python -m tests.compat.write_filtered [VERSION ...]``.

A real broker runs with a name server, and real consumers with SQL92 expressions; a real client sends it
messages. Without versions it writes the stores that are missing. CI never runs it.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from reput.newer_python import UTC
from tests.compat.broker import Broker
from tests.compat.jvm import JavaError
from tests.compat.message import Message
from tests.golden.store import ARCHIVE, DIRECTORY, FILTERED, MANIFEST, describe, pack

SEED = 20_261_121
MESSAGES = 60
KIND = "filter-bit-maps"
TOPICS = {"Orders": 2, "Payments": 1, "Audit": 1}
#: By group: the topics that it listens to, and its expressions.
CONSUMERS: dict[str, dict[str, str]] = {
    # Throws for an amount that is no whole number.
    "eu-orders": {"Orders": "region = 'eu' AND amount > 100"},
    "odd-orders": {"Orders": "rush IS NOT NULL OR amount NOT BETWEEN 5 AND 5000.5"},
    "auditors": {
        "Orders": "region NOT IN ('eu', 'us') OR TAGS = 'paid'",
        "Payments": "NOT (kind = 'card') AND amount <> 7",
    },
}
STORE: dict[str, object] = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 50 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "enableConsumeQueueExt": True,
    "mappedFileSizeConsumeQueueExt": 1000,
}
BROKER: dict[str, object] = {
    "enablePropertyFilter": True,
    "enableCalcFilterBitMap": True,
    # Not the defaults: 3 hashes, 48 bits.
    "maxErrorRateOfBloomFilter": 15,
    "expectConsumerNumUseFilter": 12,
}
_SECONDS = 90.0


def messages() -> Iterator[Message]:
    """What is sent, the same at every run."""
    chance = random.Random(SEED)
    for number in range(MESSAGES):
        topic = chance.choice(("Orders", "Orders", "Payments", "Audit"))
        properties = {}
        for name, values in (
            ("region", ("eu", "us", "asia", "größe", "€🚀")),
            ("amount", ("7", "+250", "99", "100000", "12.5", "many", "3000000000")),
            ("rush", ("yes",)),
            ("kind", ("card", "cash")),
        ):
            if chance.random() < 0.7:
                properties[name] = chance.choice(values)
        yield Message(
            topic,
            queue_id=chance.randrange(TOPICS[topic]),
            body=b"%d" % number,
            tags=chance.choice((None, "paid", "created")),
            # As a client at 192.0.2.7 would make them; a real one would name the machine that this ran on.
            uniq_key=f"C00002071A2B18B4AAC2{number:012X}",
            properties=properties,
        )


def write_filtered(version: str) -> None:
    """Let a real broker write one store, in place of the one that is there."""
    target = DIRECTORY / f"{version}-{KIND}"
    # Delays of any length have a store of their own, of 40 MB.
    more = {} if version.startswith("4.") else {"timerWheelEnable": False}
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        root = Path(scratch) / "store"
        with ExitStack() as stack:
            broker = stack.enter_context(Broker(version, root, {**STORE, **more, **BROKER}))
            for topic, queues in TOPICS.items():
                broker.create_topic(topic, queues)
            for group, expressions in CONSUMERS.items():
                stack.callback(idle_consumer(broker, group, expressions).shutdown)
            wait_for_filters(broker, CONSUMERS)
            broker.produce(messages())
            broker.wait_dispatched()
            start, end = int(broker.store.getMinPhyOffset()), int(broker.store.getMaxPhyOffset())
            java = str(broker.java.java.lang.System.getProperty("java.version"))
        # 5.5 opens a RocksDB, whose files name absolute paths; the rest tells nothing of the messages.
        shutil.rmtree(root / "rocksdbstore", ignore_errors=True)
        for path in (root / "config").glob("*.bak"):
            path.unlink()
        target.mkdir(exist_ok=True)
        pack(root, target / ARCHIVE)
        files = describe(root)
    manifest = {
        "rocketmq": version,
        "java": java,
        "written": datetime.now(UTC).strftime("%Y-%m-%d"),
        "workload": KIND,
        "seed": SEED,
        "config": {**STORE, **more},
        "broker": BROKER,
        "consumers": CONSUMERS,
        "topics": {},
        "crashed": False,
        "log": {"start": start, "end": end},
        "counts": {"Message": MESSAGES},
        "files": files,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (target / MANIFEST).write_text(text, encoding="utf-8")


def idle_consumer(broker: Broker, group: str, expressions: Mapping[str, str]) -> Any:
    """A running consumer that asks for nothing: its heartbeats bring the broker its expressions."""
    client = broker.clients.java.org.apache.rocketmq.client.consumer
    consumer = client.DefaultLitePullConsumer(group)
    consumer.setNamesrvAddr(broker.name_server)
    consumer.setInstanceName(group)
    consumer.setAutoCommit(False)
    for topic, expression in expressions.items():
        consumer.subscribe(topic, client.MessageSelector.bySql(expression))
    consumer.start()
    return consumer


def wait_for_filters(broker: Broker, consumers: Mapping[str, Mapping[str, str]]) -> None:
    """Wait until the broker knows the expressions of these consumers, by group and topic.

    Raises:
        JavaError: it doesn't after a minute and a half.
    """
    manager = broker.controller.getConsumerFilterManager()
    deadline = time.monotonic() + _SECONDS
    wanted = [(topic, group) for group, expressions in consumers.items() for topic in expressions]
    while any(manager.get(topic, group) is None for topic, group in wanted):
        if time.monotonic() > deadline:
            raise JavaError(f"the broker did not learn of all filters in {_SECONDS} s")
        time.sleep(0.1)


def main(versions: list[str]) -> None:
    """Write the stores of these versions, or those that are missing."""
    every = [name.partition("-")[0] for name in FILTERED]
    missing = [version for version in every if not (DIRECTORY / f"{version}-{KIND}" / MANIFEST).exists()]
    for version in versions or missing:
        write_filtered(version)
        print(f"{version}-{KIND}: {(DIRECTORY / f'{version}-{KIND}' / ARCHIVE).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
