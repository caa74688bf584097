from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.compat.broker import Broker
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried

pytestmark = pytest.mark.compat

_LOOPBACK = {"127.0.0.1", "::1"}


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
        _wait(lambda: len(broker.consume_all("t")) == 60 + 2 + 1)  # a transaction's end has no answer
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


@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7"]))
def test_a_broker_listens_on_the_loopback_only(version: str, tmp_path: Path) -> None:
    with Broker(version, tmp_path / "store", {**SMALL_FILES, "timerWheelEnable": False}) as broker:
        broker.create_topic("t", 1)
        (sent,) = broker.produce([Message("t", body=b"body")])
        assert sent.queue_offset == 0
        listening = _listening(broker)
        assert {address.port for address in listening} >= {broker.port, broker.port - 2}
        assert {address.ip.removeprefix("::ffff:") for address in listening} <= _LOOPBACK
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it


@pytest.mark.proof
def test_a_cluster_with_a_slave_and_a_consumer_that_fails(tmp_path: Path) -> None:
    config = {**SMALL_FILES, "timerWheelEnable": False}
    with (
        Broker("5.5.0", tmp_path / "a", config, replicates=True) as first,
        Broker("5.5.0", tmp_path / "b", config, name="broker-b", beside=first) as second,
    ):
        for broker in (first, second):
            broker.create_topic("t", 1)
        bodies = {"a": [b"good", b"bad a"], "b": [b"bad b"]}
        for broker, of in zip((first, second), bodies.values(), strict=True):
            assert [sent.queue_offset for sent in broker.produce(Message("t", body=one) for one in of)]
        listener = first.listen("group", "t", refused="bad", most_tries=0)
        listener.wait(3)
        assert {one.body for one in listener.received()} == {b"good", b"bad a", b"bad b"}
        _wait(lambda: all(one.store.getMaxOffsetInQueue("%DLQ%group", 0) == 1 for one in (first, second)))
        with Broker("5.5.0", tmp_path / "slave", config, slave_of=first) as slave:
            listening = [address for broker in (first, second, slave) for address in _listening(broker)]
            assert {address.port for address in listening} >= {first.port + 1, slave.port}
            assert {address.ip.removeprefix("::ffff:") for address in listening} <= _LOOPBACK
            end = int(first.store.getMaxPhyOffset())
            assert end > 0
            _wait(lambda: int(slave.store.getMaxPhyOffset()) == end)
            # A stop takes ten seconds each, and their files are what they are.
            for broker in (slave, second, first):
                broker.stop_clients()
                broker.kill()
    logs = [(tmp_path / name / "commitlog" / f"{0:020}").read_bytes()[:end] for name in ("a", "slave")]
    assert logs[0] == logs[1]


def _wait(fits: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _listening(broker: Broker) -> list[Any]:
    """Addresses that the broker's JVM, and that of its name server and clients, listen on."""
    processes = (psutil.Process(jvm.process.pid) for jvm in (broker._clients, broker._broker))
    return [
        connection.laddr
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
