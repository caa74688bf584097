from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.compat.broker import Broker
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES

pytestmark = pytest.mark.compat


def test_a_broker_serves_what_was_sent_before_and_after_it_was_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = {**SMALL_FILES, "timerWheelEnable": False}
    with Broker("5.5.0", root, config) as broker:
        broker.create_topic("t", 2)
        sent = broker.produce(
            Message(
                "t", n % 2, f"body {n}".encode(), tags=f"tag{n % 3}", keys=f"key{n // 2}", uniq_key=f"u{n}"
            )
            for n in range(60)
        )
        assert [(message.queue_id, message.queue_offset) for message in sent[-2:]] == [(0, 29), (1, 29)]
        assert sent[0].unique_key == "u0"
        assert (
            broker.produce_batch([Message("t", 1, b"a"), Message("t", 1, b"b", keys="batch")]).queue_offset
            == 30
        )
        broker.produce_in_transaction(Message("t", body=b"committed", keys="tx"), commit=True)
        broker.produce_in_transaction(Message("t", body=b"rolled back", keys="tx"), commit=False)
        broker.wait_dispatched()
        received = broker.consume_all("t")
        assert len(received) == 60 + 2 + 1
        for queue_id in (0, 1):
            offsets = [message.queue_offset for message in received if message.queue_id == queue_id]
            assert offsets == list(range(len(offsets)))
        assert {message.body for message in broker.consume_all("t", "tag1")} == {
            f"body {n}".encode() for n in range(1, 60, 3)
        }
        assert {message.unique_key for message in broker.query_by_key("t", "key7")} == {"u14", "u15"}
        assert [message.body for message in broker.query_by_key("t", "tx")] == [b"committed"]
        assert broker.query_by_key("t", "no such key") == []
        broker.kill()
        processes = [jvm.process for jvm in (broker._clients, broker._broker)]
    assert all(process.poll() is not None for process in processes)
    assert (root / "abort").exists()
    with Broker("5.5.0", root, config) as broker:
        assert broker.consume_all("t") == received
    assert not (root / "abort").exists()


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_broker_listens_on_the_loopback_only(version: str, tmp_path: Path) -> None:
    with Broker(version, tmp_path / "store", {**SMALL_FILES, "timerWheelEnable": False}) as broker:
        broker.create_topic("t", 1)
        (sent,) = broker.produce([Message("t", body=b"body")])
        assert sent.queue_offset == 0
        processes = (psutil.Process(jvm.process.pid) for jvm in (broker._clients, broker._broker))
        listening = [
            connection.laddr
            for process in processes
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert {address.port for address in listening} >= {broker.port, broker.port - 2}
        assert {address.ip.removeprefix("::ffff:") for address in listening} <= {"127.0.0.1", "::1"}
