"""A tail of stores with queues or topics in RocksDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.format import names
from reput.job import TailOptions
from reput.store.compare import compare
from tests import rocksdbs
from tests.compat.served import in_files, places
from tests.golden.store import GoldenStore
from tests.rebuilds import broker_conf, golden
from tests.spark.test_tail import tailing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def options(store: GoldenStore, conf: Path, out: Path) -> TailOptions:
    return TailOptions(store.root, out, broker_conf=conf, rocketmq_version=store.version)


@pytest.mark.parametrize("store_type", ["defaultRocksDB", "default"])
def test_of_queues_in_rocksdb_files_are_made(spark: SparkSession, tmp_path: Path, store_type: str) -> None:
    """Whatever broker.conf says of them: they come from the log."""
    store = golden("5.3.3-rocksdb-mixed", tmp_path)
    store.manifest["config"]["storeType"] = store_type
    store.write_broker_conf(broker_conf(store))
    out = tmp_path / "out"
    with tailing(options(store, broker_conf(store), out), spark) as running:
        running.reach(_end(store))
    assert running.summary is not None
    assert running.summary.exit_code == 0
    said = running.summary.basis.kept
    assert any("files are made" in line for line in said) == (store_type != "default")
    assert in_files(out) == places(store.dump()["consumequeue"])
    assert list((out / names.CONSUME_QUEUE).rglob("CURRENT")) == []


def test_topics_in_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    store = golden("5.5.0-batch-queue", tmp_path, configManagerVersion="v2")
    topics = json.loads(store.write_topics_json().read_text())["topicConfigTable"]
    (store.root / "config" / "topics.json").unlink()
    rocksdbs.settings(store.root, "v2", topics=topics)
    out = tmp_path / "out"
    with tailing(options(store, broker_conf(store), out), spark) as running:
        running.reach(_end(store))
    found = compare(store.root, out)
    assert [line for line in found.differences if line.startswith(names.BATCH_CONSUME_QUEUE)] == []
    assert any((out / names.BATCH_CONSUME_QUEUE).iterdir()), "only the settings say which these are"


def _end(store: GoldenStore) -> int:
    """Physical offset from which on the log has nothing but zeros, or a little more."""
    last = sorted((store.root / names.COMMIT_LOG).iterdir())[-1]
    return int(last.name) + len(last.read_bytes().rstrip(b"\0"))
