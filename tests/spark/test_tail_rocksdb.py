"""A tail of stores with queues or topics in RocksDB."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.errors import UnsupportedError
from reput.format import names
from reput.job import TailOptions
from reput.job.tail import tail
from reput.store.compare import compare
from tests import rocksdbs
from tests.golden.store import GoldenStore
from tests.rebuilds import broker_conf, golden
from tests.spark.test_tail import tailing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def options(store: GoldenStore, conf: Path, out: Path) -> TailOptions:
    return TailOptions(store.root, out, broker_conf=conf, rocketmq_version=store.version)


def test_queues_in_rocksdb_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    store = golden("5.3.3-rocksdb-mixed", tmp_path)
    out = tmp_path / "out"
    with pytest.raises(UnsupportedError, match="storeType asks for consume queues in RocksDB"):
        tail(options(store, broker_conf(store), out), lambda: spark, threading.Event())
    assert not out.exists()


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
