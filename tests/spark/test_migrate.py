"""``reput migrate`` through the command: to RocksDB and back, taken back, and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reput.format import names, rocksdbindex
from reput.rocksdb import CURRENT
from tests import rocksdbs
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, golden, tree

pytestmark = pytest.mark.spark

OFFSETS = {"Orders@readers": {"0": 3}}


@pytest.fixture
def reput(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Command:
    return Command(monkeypatch, lambda: request.getfixturevalue("spark"))


def settings(store: GoldenStore) -> list[str | Path]:
    return ["--broker-conf", broker_conf(store), "--rocketmq-version", store.version]


def set_lines(store: GoldenStore, lines: list[str]) -> None:
    """Change broker.conf as it was said."""
    keys = {line.partition("=")[0] for line in lines}
    conf = broker_conf(store)
    left = [line for line in conf.read_text().splitlines() if line.partition("=")[0] not in keys]
    conf.write_text("\n".join([*left, *lines, ""]))


@pytest.mark.parametrize("name", ["5.3.3-mixed", "5.5.0-batch-queue"])
def test_there_and_back(name: str, tmp_path: Path, reput: Command) -> None:
    store = golden(name, tmp_path)
    store.write_topics_json()
    offsets = store.root / names.CONFIG / "consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": OFFSETS}))
    before = tree(store.root, "lock", names.CHECKPOINT)

    planned = reput("migrate", store.root, "--to", "rocksdb", "--plan", *settings(store), "--json")
    assert planned.code == 0, planned.stderr
    assert tree(store.root, "lock", names.CHECKPOINT) == before
    plan = json.loads(planned.stdout)
    assert plan["broker_conf_lines"] == ["storeType=defaultRocksDB"]
    assert any("batch queues" in line for line in plan["lacking"]) == ("batch" in name)
    assert any(
        line.startswith("consumerOffset.json: written anew, with counter 1") for line in plan["config"]
    )

    done = reput("migrate", store.root, "--to", "rocksdb", "--apply", *settings(store), "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["broker_conf_lines"] == ["storeType=defaultRocksDB"]
    assert (store.root / names.CONSUME_QUEUE / CURRENT).is_file()
    assert not (store.root / names.BATCH_CONSUME_QUEUE).exists()
    written = json.loads(offsets.read_text())
    assert (written["offsetTable"], written["dataVersion"]["counter"]) == (OFFSETS, 1)
    again = reput("migrate", store.root, "--to", "rocksdb", "--apply", *settings(store))
    assert (again.code, "in RocksDB already" in again.stdout) == (0, True)

    set_lines(store, plan["broker_conf_lines"])
    verified = reput("check", store.root, *settings(store), "--proofs", tmp_path / "proofs")
    assert verified.code == 0, verified.stdout
    assert "  believed   nothing, each time: what is in RocksDB" in verified.stdout
    assert verified.stdout.splitlines()[0] == (
        f"{store.root}: start it: nothing is wrong for RocketMQ {store.version}"
    )

    back = reput("migrate", store.root, "--to", "file", "--apply", *settings(store))
    assert back.code == 0, back.stderr
    assert "storeType=default" in back.stdout
    set_lines(store, ["storeType=default"])
    assert reput("check", store.root, *settings(store)).code == 0
    queues = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.INDEX)
    after = tree(store.root, "lock", names.CHECKPOINT)
    of_queues = {path for path in before if path.startswith(queues)}
    assert {path: after.get(path) for path in of_queues} == {path: before[path] for path in of_queues}

    assert reput("undo", store.root).code == 0
    assert (store.root / names.CONSUME_QUEUE / CURRENT).is_file()


def test_what_is_still_to_be_delivered_is_not_thrown_away(tmp_path: Path, reput: Command) -> None:
    store = golden("5.5.0-mixed", tmp_path)
    directory = store.root / names.ROCKSDB_STORE
    shutil.rmtree(directory, ignore_errors=True)
    rocksdbs.write(directory, {"default": {}, rocksdbindex.TIMER: {}, rocksdbindex.TRANS: {b"k": b"v"}})
    before = tree(store.root)
    for word in ("--plan", "--apply"):
        done = reput("migrate", store.root, "--to", "rocksdb", word, *settings(store))
        assert done.code == 2
        assert "half messages in RocksDB that are still to be delivered" in done.stderr
    assert tree(store.root) == before
    assert reput.sessions == 0


def test_refusals_change_nothing(tmp_path: Path, reput: Command) -> None:
    store = golden("4.9.7-tiny", tmp_path)
    before = tree(store.root)
    for more, said in (
        ([], "--broker-conf"),
        (settings(store), "can't keep queues in RocksDB"),
    ):
        done = reput("migrate", store.root, "--to", "rocksdb", "--plan", *more)
        assert done.code == 2
        assert said in " ".join(done.stderr.split())
    assert reput("migrate", store.root, "--to", "rocksdb", *settings(store)).code == 2
    assert tree(store.root) == before
