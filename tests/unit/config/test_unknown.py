"""Queues that were chosen and that a store isn't seen to have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.config.kept import ConfigPlace, Form, unknown_queues
from tests import rocksdbs
from tests.rocksdbs import write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for queue in ("Orders/0", "Orders/3", "Payments/0"):
        (tmp_path / "consumequeue" / queue).mkdir(parents=True)
    return tmp_path


def configured(root: Path, **queues: int) -> None:
    (root / "config").mkdir()
    table = {topic: {"readQueueNums": number, "writeQueueNums": 1} for topic, number in queues.items()}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def test_a_topic_without_directory(root: Path) -> None:
    assert unknown_queues(root, [("Orders", None), ("Orders", 0)]) == {}
    assert unknown_queues(root, [("orders", None), ("Payment", 1), ("zzzzzz", 2)]) == {
        "orders": "Orders",
        "Payment:1": "Payments:0",
        "zzzzzz:2": None,
    }


def test_a_lost_directory_is_no_misspelling(root: Path) -> None:
    assert unknown_queues(root, [("Orders", 2)]) == {}, "nothing says how many there are"
    configured(root, Orders=4, Lost=1)
    assert unknown_queues(root, [("Orders", 2), ("Lost", None), ("Lost", 0)]) == {}
    assert unknown_queues(root, [("Orders", 9), ("lost", None)]) == {"Orders:9": "Orders:3", "lost": "Lost"}


def test_of_a_store_that_shows_no_topic_nothing_is_said(tmp_path: Path) -> None:
    assert unknown_queues(tmp_path, [("Orders", None)]) == {}


def test_a_broken_file_of_topics_is_passed_over(root: Path) -> None:
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{")
    assert unknown_queues(root, [("orders", 3)]) == {"orders:3": "Orders:3"}


def test_topics_in_rocksdb_are_known_where_settings_say_so(tmp_path: Path) -> None:
    root = tmp_path / "store"
    queues = write(root / "consumequeue", {"default": {b"k": b"v"}})
    (queues / "Orders" / "0").mkdir(parents=True)
    config = rocksdbs.settings(root, "v2", topics={"Payments": {"readQueueNums": 2, "writeQueueNums": 2}})
    chosen = [("Payments", 1), ("Payments", 2), ("Order", None), ("CURRENT", None), ("LOG", None)]
    assert unknown_queues(root, chosen) == {}
    found = unknown_queues(root, chosen, ConfigPlace(config, Form.V2))
    assert found == {"Payments:2": None, "Order": "Orders", "CURRENT": None, "LOG": None}
