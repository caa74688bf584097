"""Committed offsets that lie outside of their queues, corrected, and read by a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.lag import lag, write_corrected
from tests.compat.broker import Broker, Message
from tests.compat.conf import conf_text
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried

pytestmark = [pytest.mark.compat, pytest.mark.proof]


# reput asks for no release here; the file of 5.x has a dataVersion besides, that of 4.9 has none.
@pytest.mark.parametrize("version", tried("5.5.0", more=["4.9.7"]))
def test_a_broker_goes_on_from_corrected_offsets(version: str, tmp_path: Path) -> None:
    root, config = tmp_path / "store", {**SMALL_FILES, "timerWheelEnable": False}
    with Broker(version, root, config) as broker:
        broker.create_topic("Orders", 2)
        broker.produce(Message("Orders", n % 2, f"order {n}".encode()) for n in range(20))
        broker.wait_dispatched()
        broker.commit_offset("past", "Orders", 0, 5000)
        broker.commit_offset("past", "Orders", 1, 7)
        broker.commit_offset("fine", "Orders", 0, 3)
        broker.stop()
    offsets = root / "config" / "consumerOffset.json"
    kept = offsets.read_bytes()
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(config), encoding="utf-8")
    report = lag(StoreSettings.load(root, conf, version))
    corrected = write_corrected(report, tmp_path / "corrected.json")
    assert corrected.moved == 1
    assert offsets.read_bytes() == kept
    (tmp_path / "corrected.json").replace(offsets)

    with Broker(version, root, config) as broker:
        manager = broker.controller.getConsumerOffsetManager()
        found = [
            manager.queryOffset(group, "Orders", queue_id)
            for group, queue_id in (("past", 0), ("past", 1), ("fine", 0))
        ]
        assert found == [10, 7, 3]
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it
