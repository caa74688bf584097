"""A real broker with its queues and settings in RocksDB, and a real client: nothing is lost, groups go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.broker import Broker
from tests.compat.message import Message
from tests.golden.store import unpack
from tests.levels import tried

pytestmark = [pytest.mark.compat, pytest.mark.proof]

#: By topic: how many messages each of its queues holds (tests/compat/write_settings.py).
HELD = {"Orders": [3, 3, 2, 2], "Payments": [4, 3, 3], "Kinds": [10], "Odd%|name_1": [10]}
COMMITTED = {
    ("audit", "Orders"): [0, 1, 2, 0],
    ("readers", "Orders"): [3, 3, 2, 2],
    ("billing", "Payments"): [-1, -1, 3],
    ("odd%|group_1", "Odd%|name_1"): [10],
    ("devices", "%LMQ%device-0"): [7],
}


@pytest.mark.parametrize("name", tried("5.3.3-rocksdb-settings-v1", more=["5.5.0-rocksdb-settings-single"]))
def test_a_broker_and_its_consumers_go_on_with_what_is_in_rocksdb(name: str, tmp_path: Path) -> None:
    golden = unpack(name, tmp_path / "store")
    config = {**golden.config, **golden.manifest["broker"]}
    with Broker(golden.version, golden.root, config) as broker:
        for topic, counts in HELD.items():
            received = broker.consume_all(topic)
            found = [(message.queue_id, message.queue_offset) for message in received]
            wanted = [(queue_id, place) for queue_id, count in enumerate(counts) for place in range(count)]
            assert found == wanted, topic
        for (group, topic), offsets in COMMITTED.items():
            assert [broker.committed(group, topic, n) for n in range(len(offsets))] == offsets, (group, topic)
        listener = broker.listen("readers", "Orders")
        sent = broker.produce(Message("Orders", queue_id, b"one more") for queue_id in range(4))
        assert [one.queue_offset for one in sent] == HELD["Orders"]
        listener.wait(4)
        came = [(one.queue_id, one.queue_offset, one.body) for one in listener.received()]
        assert sorted(came) == [(n, place, b"one more") for n, place in enumerate(HELD["Orders"])]
