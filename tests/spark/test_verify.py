"""``reput verify`` on Spark, through the command: what it prints, and that its advice mends the store."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.format import names
from reput.verify.plan import VerifyOptions
from reput.verify.run import verify
from tests.rebuilds import Command, broker_conf, golden
from tests.stores import tree_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STORES = ("4.9.7-mixed", "5.3.3-mixed", "5.5.0-mixed")


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Command:
    return Command(monkeypatch, lambda: request.getfixturevalue("spark"))


@pytest.mark.parametrize("name", STORES)
def test_a_sound_store(name: str, tmp_path: Path, reput: Command) -> None:
    store = golden(name, tmp_path)
    before = tree_of(store.root)
    done = reput(
        "check", store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", store.version
    )
    assert done.code == 0
    assert done.stdout.splitlines()[0].endswith(f": start it: nothing is wrong for RocketMQ {store.version}")
    assert "findings   none" in done.stdout
    assert tree_of(store.root) == before


@pytest.mark.parametrize("name", [*STORES, "5.5.0-rocksdb-index", "5.3.3-batch-queue", "4.9.7-queue-ext"])
def test_on_processes_it_finds_the_same(
    name: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts that begin inside messages, of a store with damage of each area."""
    monkeypatch.setattr("reput.replay.runner._SMALL", -1)
    store = golden(name, tmp_path)
    files = [path for path in sorted(store.root.rglob("*")) if path.is_file() and path.stat().st_size > 400]
    for path in files[:: max(len(files) // 6, 1)]:
        if path.suffix not in (".log", ".sst", ".dbtmp"):
            with path.open("r+b") as file:
                file.seek(330)
                file.write(b"\xfe" * 7)
    asked = VerifyOptions(
        store.root,
        broker_conf=broker_conf(store),
        rocketmq_version=store.version,
        part_bytes=50_000,
        batch_bytes=300_000,
    )
    here, there = verify(asked, None), verify(asked, lambda: spark)
    here.seconds = there.seconds = 0.0
    assert here.findings
    assert here == there


@pytest.mark.parametrize("index_too", [False, True])
def test_what_it_says_to_run_next_mends_what_it_found(
    index_too: bool, tmp_path: Path, reput: Command
) -> None:
    store = golden("5.3.3-mixed", tmp_path)
    queues = store.root / names.CONSUME_QUEUE
    shutil.rmtree(queues / "Payments" / "2")
    path = sorted((queues / "Orders" / "0").iterdir())[1]
    data = bytearray(path.read_bytes())
    data[100:160] = bytes(60)
    path.write_bytes(data)
    if index_too:
        max((store.root / names.INDEX).iterdir()).unlink()
    command = ["check", store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", store.version]

    done = reput(*command, "--json")
    assert done.code == 3
    report = json.loads(done.stdout)
    assert report["exit_code"] == 3
    found = {
        (one["topic"], one["queue_id"], one["kind"]) for one in report["findings"] if one["area"] == "queue"
    }
    assert found == {("Payments", 2, "missing-unit"), ("Orders", 0, "missing-unit")}

    text = reput(*command)
    assert text.code == 3
    assert "Orders:0 queueOffset 55 to 58 (3): expected " in text.stdout
    (step,) = report["next_steps"]
    assert text.stdout.splitlines()[0].split("mend it first: ")[1] == (
        f"no queue leads to 28 messages{'; the index is wrong (missing-entry)' * index_too}"
    )
    assert report["summary"] == text.stdout.splitlines()[0]
    assert f"\n  next       {step}\n" in text.stdout
    words = shlex.split(step.split("`")[1])
    assert words[:2] == ["reput", "mend"]
    assert reput(*words[1:], "--apply").code == 0
    assert reput(*command).code == 0


def test_two_stores(tmp_path: Path, reput: Command) -> None:
    store = golden("5.5.0-mixed", tmp_path)
    slave = tmp_path / "slave"
    shutil.copytree(store.root, slave)
    command = ["check", store.root, "--against", slave, "--broker-conf", broker_conf(store)]
    same = reput(*command)
    assert same.code == 0
    said = "nothing that was compared differs. Not read: slots, "
    assert same.stdout.startswith(f"{store.root}: the same as {slave}: {said}")
    shutil.rmtree(slave / names.CONSUME_QUEUE / "Payments" / "2")
    done = reput(*command, "--json")
    assert done.code == 5
    document = json.loads(done.stdout)
    (found,) = document["findings"]
    assert (found["kind"], found["topic"], found["queue_id"]) == ("only-in-first", "Payments", 2)
    assert (document["verdict"], document["against"]) == ("unknown", str(slave))
    assert document["next_steps"] == found["next_steps"]
    text = reput(*command).stdout
    assert text.startswith(f"{store.root}: can't be told: it isn't the same as {slave} (only-in-first)\n")
    assert f"\n  next       {found['next_steps'][0]}\n" in text
    assert "Payments:2 queueOffset" in text


def test_a_long_report_is_cut(tmp_path: Path, reput: Command) -> None:
    store = golden("5.5.0-mixed", tmp_path)
    for topic in (store.root / names.CONSUME_QUEUE).iterdir():
        shutil.rmtree(topic)
    done = reput(
        "check", store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", store.version
    )
    assert done.code == 0, "a start makes all anew"
    assert "and 27 more; --json lists all" in done.stdout
    assert len(done.stdout.splitlines()) < 40


def test_refusals_are_two(tmp_path: Path, reput: Command) -> None:
    done = reput("check", tmp_path / "nothing", "--json")
    assert done.code == 2
    assert json.loads(done.stdout)["exit_code"] == 2
    assert reput.sessions == 0
