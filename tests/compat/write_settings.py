"""Writes the golden stores with settings in RocksDB: ``python -m tests.compat.write_settings [NAME ...]``.

A real broker with its settings in JSON runs first, without a message; then one that keeps them in RocksDB,
whose topics, groups and offsets differ. Without names it writes the missing stores. CI never runs it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from reput.newer_python import UTC
from tests.compat import rocksdb
from tests.compat.broker import Broker
from tests.compat.jvm import Jvm
from tests.compat.message import Message
from tests.golden.store import ARCHIVE, DIRECTORY, MANIFEST, SETTINGS, describe, pack, write_dump

STORE: dict[str, object] = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 50 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    # Delays of any length have a store of their own, of 40 MB.
    "timerWheelEnable": False,
}
#: Before v1, each commit of an offset raises the counter that consumerOffset.json has, as every 500th does by
#: default: with a counter of 0 no broker takes it over.
_COUNTED = {"consumerOffsetUpdateVersionStep": 1}
#: By form: the store's settings, the broker's.
FORMS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "v1": ({"storeType": "defaultRocksDB"}, {}),
    "single": ({"storeType": "defaultRocksDB"}, {"useSingleRocksDBForAllConfigs": True}),
    "v2": ({"storeType": "defaultRocksDB", "enableLmq": True}, {"configManagerVersion": "v2"}),
}
_MESSAGES = 40


def write_settings(name: str) -> None:
    """Let real brokers write one store, in place of the one that is there.

    Raises:
        ValueError: no such fixture.
    """
    if name not in SETTINGS:
        raise ValueError(f"no such golden store: {name}; there are {', '.join(SETTINGS)}")
    version, _, kind = name.partition("-")
    store, broker_settings = FORMS[kind.rpartition("-")[2]]
    target = DIRECTORY / name
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        root = Path(scratch) / "store"
        with Broker(version, root, {**STORE, **(_COUNTED if kind.endswith("-v1") else {})}) as broker:
            _in_json(broker)
        with Broker(version, root, {**STORE, **store, **broker_settings}) as broker:
            _in_rocksdb(broker)
            broker.wait_dispatched()
            start, end = int(broker.store.getMinPhyOffset()), int(broker.store.getMaxPhyOffset())
            java = str(broker.java.java.lang.System.getProperty("java.version"))
        for path in (root / "config").glob("*.bak"):
            path.unlink()
        with Jvm(version) as jvm:
            write_dump(name, rocksdb.text(rocksdb.dump(jvm, root)))
        pack(root, target / ARCHIVE)
        files = describe(root)
    manifest = {
        "rocketmq": version,
        "java": java,
        "written": datetime.now(UTC).strftime("%Y-%m-%d"),
        "workload": kind,
        "seed": 0,
        "config": {**STORE, **store},
        "broker": broker_settings,
        "topics": {},
        "crashed": False,
        "log": {"start": start, "end": end},
        "counts": {"Message": _MESSAGES},
        "files": files,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (target / MANIFEST).write_text(text, encoding="utf-8")


def _in_json(broker: Broker) -> None:
    """What the JSON then says; part of it is changed later."""
    for topic, queues in {"Orders": 2, "Payments": 3, "Gone": 1}.items():
        broker.create_topic(topic, queues)
    for group in ("billing", "audit", "gone"):
        _group(broker, group)
    broker.commit_offset("audit", "Orders", 0, 0)
    broker.commit_offset("gone", "Gone", 0, 0)


def _in_rocksdb(broker: Broker) -> None:
    broker.create_topic("Orders", 4)
    broker.create_topic("Kinds", 1, {"message.type": "FIFO"})
    broker.create_topic("Odd%|name_1", 1)
    broker.create_topic("Payments", 3)
    broker.controller.getTopicConfigManager().deleteTopicConfig("Gone")
    _group(broker, "billing", tries=3)
    _group(broker, "odd%|group_1")
    groups = broker.controller.getSubscriptionGroupManager()
    groups.deleteSubscriptionGroupConfig("gone")
    groups.updateForbidden("audit", "Orders", 2, True)
    broker.produce(
        Message(
            ("Orders", "Payments", "Kinds", "Odd%|name_1")[n % 4],
            queue_id=n // 4 % (3 if n % 4 == 1 else 4 if n % 4 == 0 else 1),
            body=b"%d" % n,
            # As a client at 192.0.2.7 would make them; a real one would name the machine that this ran on.
            uniq_key=f"C00002071A2B18B4AAC2{n:012X}",
        )
        for n in range(_MESSAGES)
    )
    broker.wait_dispatched()
    offsets = broker.controller.getConsumerOffsetManager()
    for queue_id in range(4):
        broker.commit_offset("audit", "Orders", queue_id, queue_id % 3)
    broker.commit_offset("odd%|group_1", "Odd%|name_1", 0, 10)
    broker.commit_offset("billing", "Payments", 2, 1)
    broker.commit_offset("billing", "Payments", 2, 3)
    broker.commit_offset("devices", "%LMQ%device-0", 0, 7)
    offsets.commitPullOffset("127.0.0.1", "pullers", "Orders", 1, 2)
    listener = broker.listen("readers", "Orders")
    listener.wait(10)


def _group(broker: Broker, name: str, tries: int = 16) -> None:
    config = broker.java.org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig()
    config.setGroupName(name)
    config.setRetryMaxTimes(tries)
    broker.controller.getSubscriptionGroupManager().updateSubscriptionGroupConfig(config)


def main(names: list[str]) -> None:
    """Write these stores, or those that are missing."""
    for name in names or [name for name in SETTINGS if not (DIRECTORY / name / MANIFEST).exists()]:
        write_settings(name)
        print(f"{name}: {(DIRECTORY / name / ARCHIVE).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
