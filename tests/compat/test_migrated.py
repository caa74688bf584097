"""A real broker with the other storeType, after a migration, and a client: nothing is lost, groups go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reput.format.consumequeue import FIELDS, PRE_BLANK_SIZE, UNIT_LENGTH
from reput.job.migrate import migrate
from reput.job.options import RebuildOptions
from tests.compat.broker import Broker
from tests.compat.jvm import Jvm
from tests.compat.message import Message
from tests.compat.served import Places, Queue, places, problems, serve
from tests.golden.store import GoldenStore, unpack

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
    for (group, topic), offsets in COMMITTED.items():
        expected = held["Orders"] if more and (group, topic) == ("readers", "Orders") else offsets
        assert [broker.committed(group, topic, n) for n in range(len(offsets))] == expected, (group, topic)
    listener = broker.listen("readers", "Orders")
    sent = broker.produce(Message("Orders", queue_id, b"one more") for queue_id in range(4))
    assert [one.queue_offset for one in sent] == held["Orders"]
    listener.wait(4)
    came = [(one.queue_id, one.queue_offset, one.body) for one in listener.received()]
    assert sorted(came) == [(n, place, b"one more") for n, place in enumerate(held["Orders"])]


@pytest.mark.parametrize("name", ["5.5.0-rocksdb-settings-single", "5.3.3-rocksdb-settings-v1"])
def test_a_broker_goes_on_in_files_and_in_rocksdb_again(
    name: str, tmp_path: Path, spark: SparkSession
) -> None:
    golden = unpack(name, tmp_path / "store")
    config = moved(golden, "file", "", spark)
    assert config["storeType"] == "default"
    with Broker(golden.version, golden.root, config) as broker:
        check(broker, 0)
    config = moved(golden, "rocksdb", "default", spark)
    assert config["storeType"] == "defaultRocksDB"
    with Broker(golden.version, golden.root, config) as broker:
        check(broker, 1)


@pytest.fixture(scope="module", params=["5.3.3", "5.5.0"])
def jvm(request: pytest.FixtureRequest) -> Iterator[Jvm]:
    with Jvm(request.param, heap="1g") as jvm:
        yield jvm


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


def in_files(root: Path) -> dict[Queue, Places]:
    """What the units of consume queue files lead to."""
    found: dict[Queue, Places] = {}
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        units = np.frombuffer(path.read_bytes(), np.dtype(FIELDS))
        first = int(path.name) // UNIT_LENGTH
        for row in np.flatnonzero((units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE)).tolist():
            queue = path.parent.parent.name, int(path.parent.name)
            found.setdefault(queue, {})[first + row] = int(units["position"][row])
    return found
