"""A real broker opens a rebuilt store in place of its own files, and a real client finds everything in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.format import names
from reput.job import RebuildOptions, rebuild
from tests.compat.broker import Broker, Received
from tests.compat.conf import conf_text
from tests.compat.message import Message
from tests.compat.workloads import SMALL_FILES
from tests.levels import tried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark, pytest.mark.proof]

TOPICS = ("Orders", "Payments")
CONFIG = {**SMALL_FILES, "timerWheelEnable": False}


#: Messages by topic, and those found under some keys.
Everything = tuple[list[list[Received]], list[list[Received]]]
#: A directory of stores, and what a client found in them.
Written = tuple[Path, Everything]


def everything(broker: Broker) -> Everything:
    """What a consumer gets of each topic, and what is found under some keys."""
    consumed = [broker.consume_all(topic) for topic in TOPICS]
    found = [broker.query_by_key(topic, f"key{n}") for topic in TOPICS for n in range(0, 60, 7)]
    # A broker's crash recovery dispatches the log's last message again and indexes it a second time, whoever
    # made the index: IndexService only passes over messages *before* the last file's end.
    return consumed, [list(dict.fromkeys(messages)) for messages in found]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """What one broker wrote and dispatched: as a kill leaves it then, and after a clean stop."""
    place = tmp_path_factory.mktemp("written")
    root = place / "stopped"
    with Broker("5.5.0", root, CONFIG) as broker:
        for topic in TOPICS:
            broker.create_topic(topic, 2)
        broker.produce(
            Message(
                topic, n % 2, f"{topic} {n}".encode(), tags=f"t{n % 3}", keys=f"key{n} all", uniq_key=f"u{n}"
            )
            for n in range(300)
            for topic in TOPICS
        )
        broker.produce_in_transaction(Message("Orders", body=b"committed", keys="key0"), commit=True)
        broker.wait_dispatched()
        before = everything(broker)
        broker.copy_as_killed(place / "killed")
    assert sum(map(len, before[0])) == 601
    assert all(before[1])
    return place, before


@pytest.mark.parametrize("ended", tried("stopped", more=["killed"]))
def test_a_broker_serves_a_rebuilt_store(
    ended: str, written: Written, tmp_path: Path, spark: SparkSession
) -> None:
    (place, before), root = written, tmp_path / "store"
    shutil.copytree(place / ended, root)
    assert (root / names.ABORT).exists() == (ended == "killed")
    # Everything that can be derived is lost.
    for name in (names.CONSUME_QUEUE, names.INDEX):
        shutil.rmtree(root / name)
    (root / names.CHECKPOINT).unlink()
    conf = tmp_path / "broker.conf"
    conf.write_text(conf_text(CONFIG), encoding="utf-8")
    options = RebuildOptions(store=root, broker_conf=conf, rocketmq_version="5.5.0")
    summary = rebuild(options, lambda: spark)
    assert summary.findings == []

    with Broker("5.5.0", root, CONFIG) as broker:
        assert everything(broker) == before
        # And the broker goes on where it was.
        (sent,) = broker.produce([Message("Orders", 0, b"one more", keys="after", uniq_key="another")])
        broker.wait_dispatched()
        queue = [message for message in broker.consume_all("Orders") if message.queue_id == 0]
        assert (queue[-1].queue_offset, queue[-1].body) == (sent.queue_offset, b"one more")
        assert [message.queue_offset for message in queue] == list(range(len(queue)))
        assert [message.body for message in broker.query_by_key("Orders", "after")] == [b"one more"]
        broker.kill()  # a stop takes ten seconds, and nothing is looked at after it
