"""``import reput``: the page about it is run, and what it refuses is an error of reput's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reput
import reput as reput_api
from reput import demo
from reput.newer_python import UTC
from tests.golden.store import GoldenStore
from tests.pages import ROOT
from tests.rebuilds import Command, broker_conf, environment, golden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "interface.md"
TABLES = ROOT / "docs" / "sql.md"


def blocks(text: str) -> list[str]:
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


def opened(store: GoldenStore) -> reput.Store:
    return reput.open(store.root, broker_conf=broker_conf(store), rocketmq_version=store.version)


def run_page(which: list[str], root: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for block in which:
        exec(block.replace("/data/store", str(root)).replace("/data/rebuilt", str(out)), found)
    assert capsys.readouterr().out
    return found


@pytest.mark.slow
def test_the_page_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpacked = demo.unpack(tmp_path / "demo")
    *light, _ = blocks(PAGE.read_text())
    light += blocks(TABLES.read_text().partition("## Tables without Spark")[2])
    found = run_page(light, unpacked.root, tmp_path / "out", capsys)
    assert found["damaged"] == []
    assert found["count"] > 1000
    assert len(found["frame"]) > 1000


@pytest.mark.spark
def test_the_page_with_spark(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpacked = demo.unpack(tmp_path / "demo")
    found = run_page(
        [blocks(PAGE.read_text())[which] for which in (0, -1)], unpacked.root, tmp_path / "out", capsys
    )
    assert found["summary"].findings == []
    assert (tmp_path / "out" / "consumequeue").is_dir()


def test_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, reput; assert reput.open; assert reput.ReputError\n"
        "heavy = {'numpy', 'numba', 'pyspark', 'pandas', 'pyarrow', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


def test_a_store_is_mended(store: GoldenStore) -> None:
    shutil.rmtree(store.root / "consumequeue" / "t")
    settings: dict[str, Any] = {"broker_conf": broker_conf(store), "rocketmq_version": store.version}
    foreseen = reput.mend(store.root, **settings)
    assert (foreseen.applied, foreseen.exit_code) == (False, 3)
    assert not (store.root / "consumequeue" / "t").exists()
    mended = reput.mend(store.root, apply=True, **settings)
    assert (mended.applied, mended.exit_code, opened(store).check().exit_code) == (True, 0, 0)
    assert (store.root / "consumequeue" / "t").is_dir()


def test_it_says_what_the_commands_say(reput: Command, store: GoldenStore) -> None:
    words = [store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", store.version, "--json"]
    one = opened(store)
    settings: dict[str, Any] = {"broker_conf": broker_conf(store), "rocketmq_version": store.version}
    for command, result in (
        (["check"], one.check()),
        (["check", "--quick"], one.check(quick=True)),
        (["mend"], reput_api.mend(store.root, **settings)),
    ):
        said = json.loads(reput(*command, *words).stdout)
        facts = json.loads(json.dumps(result.to_dict()))
        timed = {"seconds", "before"}
        assert {name: said[name] for name in facts if name not in timed} == {
            name: value for name, value in facts.items() if name not in timed
        }
    lines = reput("dump", "commitlog", *words, "--topic", "t").stdout.splitlines()
    told = [{"schema_version": 2, "type": "message", **one.to_dict()} for one in one.messages(topic="t")]
    assert told == [json.loads(line) for line in lines]


def test_queues_are_where_a_query_finds_them(store: GoldenStore) -> None:
    one = opened(store)
    rows = one.queues()
    assert len(rows) > 10
    assert [(row.topic, row.queue_id) for row in rows] == sorted((row.topic, row.queue_id) for row in rows)
    for row in rows:
        view = one.query.queue(row.topic, row.queue_id)
        assert (row.min_offset, row.max_offset) == (view.min_offset, view.max_offset)
        assert row.log_messages is None


@pytest.mark.parametrize("queue", ["t:0", ("t", 0), ["t:0"], [("t", 0), "t:0"]])
def test_a_queue_in_each_way(store: GoldenStore, queue: Any) -> None:
    found = list(opened(store).messages(queue=queue, limit=3))
    assert [(one.topic, one.record.queue_id, one.record.queue_offset) for one in found] == [
        ("t", 0, number) for number in range(3)
    ]


def test_times_are_half_open_and_have_a_zone(store: GoldenStore) -> None:
    one = opened(store)
    times = [message.record.store_timestamp for message in one.messages()]
    at = times[len(times) // 2]
    moment = datetime.fromtimestamp(at / 1000, UTC)
    before, after = list(one.messages(until=moment)), list(one.messages(since=at))
    assert (len(before), len(after)) == (sum(time < at for time in times), sum(time >= at for time in times))
    with pytest.raises(reput.ReputError, match="of no time zone"):
        one.messages(since=datetime(2026, 11, 21))  # noqa: DTZ001 - that is what is refused


def test_what_is_refused(store: GoldenStore, tmp_path: Path) -> None:
    with pytest.raises(reput.ReputError, match="there is no store here"):
        reput.open(tmp_path / "nowhere")
    conf = tmp_path / "other.conf"
    conf.write_text("mappedFileSizeCommitLog=x\n")
    with pytest.raises(reput.ReputError, match="mappedFileSizeCommitLog"):
        reput.open(store.root, broker_conf=conf)
    with pytest.raises(reput.ReputError, match="a queue can't be understood"):
        opened(store).messages(queue=[("t", "0")])  # type: ignore[list-item]


def test_damage_ends_it_or_is_taken(store: GoldenStore) -> None:
    one = opened(store)
    places = [message.record.physical_offset for message in one.messages(limit=3)]
    with min((store.root / "commitlog").iterdir()).open("r+b") as file:
        file.seek(places[1] + 4)
        file.write(b"\xff\xff\xff\xff")
    messages = one.messages()
    assert next(messages).record.physical_offset == places[0]
    with pytest.raises(reput.ReputError, match="the commit log is damaged: bad-magic") as refused:
        next(messages)
    assert refused.value.offset == places[1]
    damaged: list[Any] = []
    found = [message.record.physical_offset for message in one.messages(damage=damaged.append, limit=2)]
    assert (found, [each.offset for each in damaged]) == ([places[0], places[2]], [places[1]])
