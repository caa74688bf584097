"""Stores with consumequeue_ext and batch queues that ``--apply`` has mended, opened by the real store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reput.broker.predict import predict
from reput.broker.snapshot import take
from reput.format import names
from reput.job import RebuildOptions, rebuild, undo
from reput.mending import mend
from reput.recovery.plan import plan
from reput.replay.runner import InlineRunner
from reput.store.swap import KEPT
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.report import Report
from reput.verify.run import check
from tests.compat.damage import Copy
from tests.compat.starts import Bench, Case, differences, expected
from tests.compat.test_ext_and_batch_recovery import (
    BATCH_FILE,
    EXT_FILE,
    TOPICS,
    batch_queues_gone,
    batch_queues_shorter,
    ext_files,
    ext_gone,
    ext_size_leads_out,
    fill_batches,
)
from tests.rebuilds import tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.spark]

VERSION = "5.3.3"
CONFIG = {
    "enableConsumeQueueExt": True,
    "mappedFileSizeConsumeQueueExt": EXT_FILE,
    "mapperFileSizeBatchConsumeQueue": BATCH_FILE,
}


def some_damaged(copy: Copy) -> None:
    """A record leads out of its file, so that no broker starts; others have lost their last ones."""
    ext_size_leads_out(copy)
    ext_files(copy, "Orders", 1)[-1].unlink()
    batch_queues_shorter(copy)


def all_gone(copy: Copy) -> None:
    """Neither of them is there."""
    ext_gone(copy)
    batch_queues_gone(copy)


def verified(bench: Bench, root: Path) -> Report:
    options = VerifyOptions(root, broker_conf=bench.conf, rocketmq_version=VERSION)
    return check(prepare(options), InlineRunner())


def contents(root: Path) -> dict[str, str]:
    kept = [path.name for path in root.glob(f"{KEPT}*")]
    return tree(root, names.REPUT, names.LOCK, *kept)


def test_the_real_store_loses_nothing_of_what_is_in_log_order(tmp_path: Path, spark: SparkSession) -> None:
    bench = Bench(VERSION, tmp_path, other=CONFIG, filled=fill_batches, topics=TOPICS)
    tried = []
    try:
        for harm, crash in ((some_damaged, None), (all_gone, "killed")):
            copy = bench.copy(harm.__name__, crash=crash)
            harm(copy)
            before = contents(copy.root)
            assert plan(take(bench.settings(copy.root))).loses
            assert verified(bench, copy.root).findings
            mended = mend(
                RebuildOptions(copy.root, broker_conf=bench.conf, rocketmq_version=VERSION), apply=True
            )
            assert mended.rebuilt is not None
            assert mended.exit_code == 0
            assert not plan(take(bench.settings(copy.root))).loses
            assert verified(bench, copy.root).findings == []
            opened = copy.root.with_name(f"{copy.root.name}-opened")
            shutil.copytree(copy.root, opened)
            undo(copy.root)
            assert contents(copy.root) == before
            tried.append(Case(harm.__name__, opened, expected(predict(take(bench.settings(opened))))))
        copy = bench.copy("chosen", crash=None)
        some_damaged(copy)
        queues = ("Orders", "Batches:0", "Batches:1")
        wanted = RebuildOptions(copy.root, broker_conf=bench.conf, rocketmq_version=VERSION, queues=queues)
        assert rebuild(wanted, lambda: spark).exit_code == 0
        assert verified(bench, copy.root).findings == []
        assert not plan(take(bench.settings(copy.root))).loses
        bench.open_all(tried)
        for case in tried:
            assert differences(case.predicted, case.seen) == [], (case.name, case.error)
            assert case.predicted.ext[("Orders", 0)][1] > 0
            assert case.seen.queues["Batches", 0][1] > 0
    finally:
        bench.close()
