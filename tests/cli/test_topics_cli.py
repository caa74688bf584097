"""``reput stats --topics``: what it lists is what queries, files and config say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import reput as api
from reput.format import names
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, golden


def words(store: GoldenStore) -> list[str | Path]:
    return [store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", store.version]


@pytest.mark.parametrize("name", ["4.9.7-restart", "5.3.3-lost-head", "5.3.3-batch-queue", "5.5.0-lmq"])
def test_offsets_are_those_that_a_query_answers(reput: Command, tmp_path: Path, name: str) -> None:
    store = golden(name, tmp_path)
    said = reput("stats", "--topics", *words(store), "--json")
    assert said.code == 0
    found = json.loads(said.stdout)["topics"]
    opened = api.open(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)
    queues = 0
    for topic in found:
        for queue in topic["queues"]:
            view = opened.query.queue(topic["topic"], queue["queue_id"])
            # A batch queue that never got a message has no min offset for a broker.
            assert (queue["min_offset"], queue["max_offset"]) == (max(view.min_offset, 0), view.max_offset)
            queues += 1
        assert topic["messages"] == sum(queue["messages"] for queue in topic["queues"])
    assert queues > 5
    assert [one["messages"] for one in found] == sorted((one["messages"] for one in found), reverse=True)


def test_what_the_config_says(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    config = store.root / names.CONFIG
    config.mkdir(exist_ok=True)
    topics = {
        "t": {"readQueueNums": 4, "writeQueueNums": 8, "perm": 6, "topicName": "t"},
        "Empty": {"readQueueNums": "x", "perm": 2},
    }
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    found: dict[str, Any] = {
        one["topic"]: one
        for one in json.loads(reput("stats", "--topics", *words(store), "--json").stdout)["topics"]
    }
    one = found["t"]
    assert (one["read_queue_nums"], one["write_queue_nums"], one["perm"]) == (4, 8, 6)
    assert (found["Empty"]["queues"], found["Empty"]["read_queue_nums"]) == ([], None)
    assert found["Payments"]["in_config"] is False
    shown = reput("stats", "--topics", *words(store)).stdout
    assert "\n  not in config/topics.json: " in shown
    assert "\n  without queue files: Empty\n" in shown


def test_one_topic_by_queue_and_the_nearest(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    shown = reput("stats", "--topics", *words(store), "--topic", "Orders", "--by", "queue", "--limit", "1")
    assert shown.code == 0
    lines = shown.stdout.splitlines()
    assert lines[1].split()[:5] == ["topic", "queue", "min", "max", "messages"]
    assert lines[2].split()[:2] == ["Orders", "0"]
    assert "and 1 more" in shown.stdout or "and 3 more" in shown.stdout
    other = reput("stats", "--topics", *words(store), "--topic", "orders")
    assert (other.code, other.stdout.splitlines()[-1]) == (0, "  no topic orders; did you mean Orders?")


def test_skew_is_of_the_largest_queue(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    for one in json.loads(reput("stats", "--topics", *words(store), "--json").stdout)["topics"]:
        counts = [queue["messages"] for queue in one["queues"]]
        if len(counts) < 2 or not sum(counts):
            assert one["skew"] is None
        else:
            assert one["skew"] == pytest.approx(max(counts) * len(counts) / sum(counts), abs=0.001)


def test_a_queue_that_cannot_be_read_is_said(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    queue = store.root / names.CONSUME_QUEUE / "Orders" / "0"
    first = min(queue.iterdir())
    shutil.copy(first, first.with_name("00000000000000000007"))
    said = reput("stats", "--topics", *words(store))
    assert said.code == 1
    assert "\n  unreadable Orders:0: " in said.stdout
    assert "\n  next       reput check " in said.stdout


def test_without_a_log_it_is_refused(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    shutil.rmtree(store.root / names.COMMIT_LOG)
    said = reput("stats", "--topics", *words(store))
    assert (said.code, said.stdout) == (2, "")
    assert "commitlog" in said.stderr


@pytest.mark.parametrize(
    ("more", "found"),
    [
        (["--since", "today"], "--since"),
        (["--until", "now", "--start", "0", "--end", "9"], "--until, --start, --end"),
        (["--by", "hour"], "--by hour"),
    ],
)
def test_what_chooses_messages_is_refused(
    reput: Command, tmp_path: Path, more: list[str], found: str
) -> None:
    said = reput("stats", "--topics", tmp_path, *more)
    assert (said.code, said.stdout) == (2, "")
    expected = "expected --topics with --by topic or queue, for all of the store"
    assert said.stderr == f"reput: --topics doesn't read the log; {expected}, found {found}\n"


def test_its_document_says_what_it_is(reput: Command, tmp_path: Path) -> None:
    store = golden("5.3.3-tiny", tmp_path)
    said = json.loads(reput("stats", "--topics", *words(store), "--json").stdout)
    assert said["command"] == "stats --topics"


@pytest.mark.parametrize(
    "words", [("--start", "5", "--end", "5"), ("--since", "2026-11-22", "--until", "2026-11-21")]
)
def test_a_range_that_leaves_nothing_to_count(reput: Command, words: tuple[str, ...]) -> None:
    refused = reput("stats", "/nowhere", *words)
    assert (refused.code, refused.stdout) == (2, "")
    assert f"found {words[0]} {words[1]}, which isn't before {words[2]} {words[3]}" in refused.stderr
