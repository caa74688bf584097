"""A real broker with the other storeType, after a migration, and a client: nothing is lost, groups go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.job.migrate import migrate
from reput.job.options import RebuildOptions
from reput.rocksdb import opened
from tests import rocksdbs
from tests.compat.broker import Broker
from tests.compat.jvm import Jvm
from tests.compat.message import Message
from tests.compat.served import in_files, places, problems, serve
from tests.golden.store import GoldenStore, unpack
from tests.levels import tried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

#: By topic: how many messages each of its queues holds (tests/compat/write_settings.py).
HELD = {"Orders": [3, 3, 2, 2], "Payments": [4, 3, 3], "Kinds": [10], "Odd%|name_1": [10]}
COMMITTED = {
    ("audit", "Orders"): [0, 1, 2, 0],
    ("readers", "Orders"): [3, 3, 2, 2],
    ("billing", "Payments"): [-1, -1, 3],
    ("odd%|group_1", "Odd%|name_1"): [10],
}


#: Of light groups, which files keep apart with enableLmq.
LIGHT = {("devices", "%LMQ%device-0"): [7], ("%LMQ%one", "%LMQ%device-0"): [5], ("%LMQ%two", "%LMQ%d@1"): [9]}


def moved(golden: GoldenStore, to: str, store_type: str, spark: SparkSession) -> dict[str, object]:
    """Migrate, by the broker.conf of before; returns the settings of after."""
    conf = golden.write_broker_conf(golden.root.parent / "broker.conf")
    if store_type:
        lines = [line for line in conf.read_text().splitlines() if not line.startswith("storeType")]
        conf.write_text("\n".join([*lines, f"storeType={store_type}", ""]))
    done = migrate(
        RebuildOptions(golden.root, broker_conf=conf, rocketmq_version=golden.version), to, lambda: spark
    )
    config: dict[str, object] = {**golden.config, **golden.manifest.get("broker", {})}
    config.update(line.split("=") for line in done.plan.lines)
    return config


def check(broker: Broker, more: int) -> None:
    """Every message and every group's offsets; ``more`` messages were sent to each queue of Orders."""
    held = {**HELD, "Orders": [count + more for count in HELD["Orders"]]}
    for topic, counts in held.items():
        received = broker.consume_all(topic)
        found = [(message.queue_id, message.queue_offset) for message in received]
        wanted = [(queue_id, place) for queue_id, count in enumerate(counts) for place in range(count)]
        assert found == wanted, topic
    for (group, topic), offsets in (COMMITTED | LIGHT).items():
        expected = held["Orders"] if more and (group, topic) == ("readers", "Orders") else offsets
        assert [broker.committed(group, topic, n) for n in range(len(offsets))] == expected, (group, topic)
    listener = broker.listen("readers", "Orders")
    sent = broker.produce(Message("Orders", queue_id, b"one more") for queue_id in range(4))
    assert [one.queue_offset for one in sent] == held["Orders"]
    listener.wait(4)
    came = [(one.queue_id, one.queue_offset, one.body) for one in listener.received()]
    assert sorted(came) == [(n, place, b"one more") for n, place in enumerate(held["Orders"])]


def put_light_groups(golden: GoldenStore) -> None:
    """Offsets of light groups, as RocksDBConsumerOffsetManager keeps them."""
    single = golden.root / "config" / "metadata"
    directory = single if single.is_dir() else golden.root / "config" / "consumerOffsets"
    with opened(directory) as database:
        families = [name for name in database.families if name != "default"]
    with rocksdbs.writing(directory, *families) as written:
        family = written.get_column_family("consumerOffset") if single.is_dir() else written
        for (group, topic), [offset] in LIGHT.items():
            family[f"{topic}@{group}".encode()] = b'{"offsetTable":{0:%d}}' % offset
        if family is not written:
            family.close()


@pytest.mark.proof
@pytest.mark.parametrize("name", tried("5.5.0-rocksdb-settings-single", more=["5.3.3-rocksdb-settings-v1"]))
def test_a_broker_goes_on_in_files_and_in_rocksdb_again(
    name: str, tmp_path: Path, spark: SparkSession
) -> None:
    golden = unpack(name, tmp_path / "store")
    golden.manifest["config"]["enableLmq"] = True
    put_light_groups(golden)
    config = moved(golden, "file", "", spark)
    assert config["storeType"] == "default"
    with Broker(golden.version, golden.root, config) as broker:
        check(broker, 0)
        kept = broker.controller.getConsumerOffsetManager().getLmqOffsetTable()
        assert dict(kept) == {"%LMQ%device-0@%LMQ%one": 5, "%LMQ%d@1@%LMQ%two": 9}
        broker.commit_offset("%LMQ%one", "%LMQ%device-0", 0, 6)
    config = moved(golden, "rocksdb", "default", spark)
    assert config["storeType"] == "defaultRocksDB"
    with Broker(golden.version, golden.root, config) as broker:
        assert broker.committed("%LMQ%one", "%LMQ%device-0", 0) == 6
        broker.commit_offset("%LMQ%one", "%LMQ%device-0", 0, 5)
        check(broker, 1)
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it


@pytest.fixture(scope="module", params=tried("5.5.0", more=["5.3.3"]))
def jvm(request: pytest.FixtureRequest) -> Iterator[Jvm]:
    with Jvm(request.param, heap="1g") as jvm:
        yield jvm


def test_without_light_queues_offsets_are_in_another_file(
    jvm: Jvm, tmp_path: Path, spark: SparkSession
) -> None:
    """What a broker's start reads of its settings, without the rest of a start."""
    golden = unpack(f"{jvm.version}-rocksdb-settings-v1", tmp_path / "store")
    for to, store_type in (("file", ""), ("rocksdb", "default")):
        config = moved(golden, to, store_type, spark) | {"storePathRootDir": golden.root}
        java = jvm.java.org.apache.rocketmq
        broker, store = java.common.BrokerConfig(), java.store.config.MessageStoreConfig()
        properties = jvm.java.java.util.Properties()
        for key, value in config.items():
            properties.setProperty(key, str(value).lower() if isinstance(value, bool) else str(value))
        for settings in (broker, store):
            java.common.MixAll.properties2Object(properties, settings)
        netty = java.remoting.netty.NettyServerConfig(), java.remoting.netty.NettyClientConfig()
        controller = java.broker.BrokerController(broker, *netty, store)
        assert controller.initializeMetadata()
        offsets = controller.getConsumerOffsetManager()
        for (group, topic), expected in COMMITTED.items():
            found = [int(offsets.queryOffset(group, topic, n)) for n in range(len(expected))]
            assert found == expected, (to, group, topic)
        assert set(HELD) <= set(controller.getTopicConfigManager().getTopicConfigTable())
        for manager in (
            offsets,
            controller.getTopicConfigManager(),
            controller.getSubscriptionGroupManager(),
        ):
            manager.stop()


@pytest.mark.proof
def test_the_real_stores_serve_what_was_migrated(jvm: Jvm, tmp_path: Path, spark: SparkSession) -> None:
    """The first message of the log, too: without a database a start after a clean stop loses it."""
    found = {}
    for kind in ("mixed",) if jvm.version == "5.3.3" else ("lost-head",):
        of_files = unpack(f"{jvm.version}-{kind}", tmp_path / kind / "store")
        expected = in_files(of_files.root)
        config = moved(of_files, "rocksdb", "", spark)
        report = serve(jvm, of_files.root, config, expected)
        assert sum(len(queue.messages) for queue in report.first.values()) > 10
        found[kind] = problems(report, expected, of_files.manifest["log"]["start"])
    of_rocksdb = unpack(f"{jvm.version}-rocksdb-mixed", tmp_path / "back" / "store")
    expected = places(of_rocksdb.dump()["consumequeue"])
    config = moved(of_rocksdb, "file", "", spark)
    served = problems(serve(jvm, of_rocksdb.root, config, expected), expected, 0)
    found["back"] = [line for line in served if line != "nothing was compacted"]  # files never are
    assert {kind: lines for kind, lines in found.items() if lines} == {}
