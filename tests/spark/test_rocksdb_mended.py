"""``reput mend --apply`` where the queues are in RocksDB."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.broker.snapshot import take
from reput.config.settings import StoreSettings
from reput.format import names
from reput.format.rocksdbqueue import OFFSETS, UNITS
from reput.job import undo
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.recovery.plan import plan
from reput.store.swap import KEPT
from tests.compat.conf import conf_text
from tests.golden.store import GoldenStore, unpack
from tests.rebuilds import tree
from tests.rocksdbs import writing
from tests.spark.test_rocksdb import contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def gone(directory: Path) -> None:
    shutil.rmtree(directory)


def without_a_table(directory: Path) -> None:
    max(directory.glob("*.sst"), key=lambda path: path.stat().st_size).unlink()


def half_gone(directory: Path) -> None:
    with writing(directory, OFFSETS) as db:
        for key in list(db.keys())[1::2]:
            del db[key]
        db.flush()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("5.3.3-rocksdb-mixed", gone),
        ("5.3.3-rocksdb-mixed", half_gone),
        ("5.5.0-rocksdb-mixed", without_a_table),
        ("5.5.0-rocksdb-separate-path", gone),
    ],
)
def test_a_damaged_rocksdb_is_made_anew_and_comes_back(
    name: str, damage: object, tmp_path: Path, spark: SparkSession
) -> None:
    golden = unpack(name, tmp_path / "store")
    options = _options(golden)
    queues = golden.config.get("useSeparateStorePathForRocksdbCQ")
    directory = golden.root / (names.CONSUME_QUEUE_ROCKSDB if queues else names.CONSUME_QUEUE)
    expected = golden.dump()[directory.name][UNITS]
    damage(directory)  # type: ignore[operator]
    before = tree(golden.root, names.REPUT, names.LOCK)
    mended = mend(options, apply=True)
    assert mended.rebuilt is not None
    assert mended.kept is not None
    assert contents(directory)[UNITS] == expected
    found = plan(take(_settings(options)))
    assert (found.losses, found.unrepaired) == ([], [])
    assert not mend(options, apply=True).applied
    undo(golden.root)
    kept = [path.name for path in golden.root.glob(f"{KEPT}*")]
    assert tree(golden.root, names.REPUT, names.LOCK, *kept) == before


def test_a_rocksdb_at_another_place_than_broker_conf_says_is_not_mended(
    tmp_path: Path, spark: SparkSession
) -> None:
    golden = unpack("5.5.0-rocksdb-tiny", tmp_path / "store")
    config = {**golden.config, "useSeparateStorePathForRocksdbCQ": True}
    options = _options(golden, config)
    before = tree(golden.root)
    found = mend(options, apply=True)
    assert found.exit_code == 4
    assert {one.kind for one in found.steps} == {"by-hand"}
    assert any(one.path.endswith("CURRENT") for one in found.now.left)
    assert tree(golden.root) == before


def _options(golden: GoldenStore, config: dict[str, object] | None = None) -> RebuildOptions:
    conf = golden.root.parent / "broker.conf"
    conf.write_text(conf_text(config or golden.config), encoding="utf-8")
    return RebuildOptions(golden.root, broker_conf=conf, rocketmq_version=golden.version)


def _settings(options: RebuildOptions) -> StoreSettings:
    return StoreSettings.load(options.store, options.broker_conf, options.rocketmq_version, rocksdb=True)
