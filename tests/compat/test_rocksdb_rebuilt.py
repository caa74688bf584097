"""The real stores open what a rebuild wrote into RocksDB, serve every message, and go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.job import rebuild
from reput.job.in_place import undo
from tests.compat import rocksdb
from tests.compat.jvm import Jvm
from tests.compat.served import places, problems, serve
from tests.compat.test_rocksdb_served import config_of, queues_of
from tests.golden.store import unpack
from tests.levels import tried
from tests.rebuilds import tree
from tests.spark.test_golden import options, settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

REBUILT = {
    "5.3.3": ("mixed", "light", "lost-head"),
    "5.5.0": ("mixed", "light", "double-write", "separate-path", "index"),
}


@pytest.fixture(scope="module", params=tried("5.5.0", more=["5.3.3"]))
def jvm(request: pytest.FixtureRequest) -> Iterator[Jvm]:
    with Jvm(request.param, heap="1g") as jvm:
        yield jvm


@pytest.mark.proof
def test_what_was_rebuilt_in_place_is_served(jvm: Jvm, tmp_path: Path, spark: SparkSession) -> None:
    found = {}
    for kind in REBUILT[jvm.version]:
        golden = unpack(f"{jvm.version}-rocksdb-{kind}", tmp_path / kind / "store")
        expected = places(queues_of(golden))
        for directory in rocksdb.databases(golden.root):
            if directory.startswith("consumequeue"):
                shutil.rmtree(golden.root / directory)
        asked = options(golden, settle(golden))
        asked = type(asked)(
            store=golden.root,
            broker_conf=asked.broker_conf,
            rocketmq_version=golden.version,
            part_bytes=asked.part_bytes,
            max_bytes_per_trigger=asked.max_bytes_per_trigger,
        )
        rebuild(asked, lambda: spark)
        assert rocksdb.dump(jvm, golden.root)  # by the release's own library
        report = serve(jvm, golden.root, config_of(golden), expected)
        assert sum(len(queue.messages) for queue in report.first.values()) > 10
        found[kind] = problems(report, expected, golden.manifest["log"]["start"])
    assert found == {kind: [] for kind in REBUILT[jvm.version]}


def test_a_rebuild_in_place_is_undone(jvm: Jvm, tmp_path: Path, spark: SparkSession) -> None:
    golden = unpack(f"{jvm.version}-rocksdb-mixed", tmp_path / "store")
    before = tree(golden.root, "lock")
    asked = options(golden, settle(golden))
    asked = type(asked)(store=golden.root, broker_conf=asked.broker_conf, rocketmq_version=golden.version)
    rebuild(asked, lambda: spark)
    assert tree(golden.root / "consumequeue") != {}
    assert tree(golden.root, "lock") != before
    undo(golden.root)
    after = tree(golden.root, "lock")
    assert {name: after.get(name) for name in before} == before
